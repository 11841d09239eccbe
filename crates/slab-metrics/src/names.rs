//! Every metric family that this crate exports: name, type and help text.
//!
//! Names are spelled out as Prometheus shows them, so no option of a recorder has to complete them. The
//! crate's README says what to do when a metric moves; `tests/table.rs` keeps the README and this file
//! equal.

use slab_core::WaitTimes;
#[cfg(feature = "net")]
use slab_net::rudp::RoundTripTimes;

/// The upper bounds of the buckets of `slab_pool_wait_seconds`, in seconds, without the last bucket,
/// which has none.
///
/// A program that feeds a recorder of its own passes them to
/// `PrometheusBuilder::set_buckets_for_metric`.
pub const WAIT_SECONDS_BOUNDS: &[f64] =
    &in_seconds::<{ WaitTimes::BOUNDS_NANOS.len() }>(WaitTimes::BOUNDS_NANOS);

/// The same for `slab_rudp_rtt_seconds`.
#[cfg(feature = "net")]
pub const RTT_SECONDS_BOUNDS: &[f64] =
    &in_seconds::<{ RoundTripTimes::BOUNDS_NANOS.len() }>(RoundTripTimes::BOUNDS_NANOS);

const fn in_seconds<const N: usize>(nanos: &[u64]) -> [f64; N] {
    assert!(nanos.len() == N);
    let mut seconds = [0.0; N];
    let mut at = 0;
    while at < N {
        seconds[at] = nanos[at] as f64 / 1e9;
        at += 1;
    }
    seconds
}

/// The type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    /// A counter that is read in nanoseconds and exported in seconds.
    #[cfg_attr(not(feature = "net"), expect(dead_code, reason = "only RUDP has one"))]
    SecondsCounter,
    /// A histogram with the upper bounds of all buckets but the last, in nanoseconds; exported in seconds.
    Histogram(&'static [u64]),
}

impl Kind {
    /// Returns Prometheus' name of the type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter | Self::SecondsCounter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// One metric family.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

impl Family {
    /// Returns how many numbers make up the value of one series. For a histogram these are the count of
    /// each bucket, not cumulative, and the sum in nanoseconds.
    pub(crate) fn width(&self) -> usize {
        match self.kind {
            Kind::Counter | Kind::SecondsCounter | Kind::Gauge => 1,
            Kind::Histogram(bounds) => bounds.len() + 2,
        }
    }
}

macro_rules! families {
    ($($id:ident = $kind:ident $(($bounds:expr))? $name:literal, $help:literal;)*) => {
        $(pub(crate) static $id: Family = Family {
            name: $name,
            kind: Kind::$kind $(($bounds))?,
            help: $help,
        };)*
    };
}

families! {
    BUILD_INFO = Gauge "slab_build_info",
        "Always 1; carries how the program's packet-slab was built.";

    POOL_CAPACITY_BYTES = Gauge "slab_pool_capacity_bytes",
        "The cap: bytes that the pool's chunks can take at most.";
    POOL_RESIDENT_BYTES = Gauge "slab_pool_resident_bytes",
        "Bytes of the pool's chunks that are in memory, as the system counts them.";
    POOL_TOUCHED_BYTES = Gauge "slab_pool_touched_bytes",
        "Bytes of the pages that chunks were taken from and that were not given back: what may be in memory, as the pool counts it.";
    POOL_COMMITTED_BYTES = Gauge "slab_pool_committed_bytes",
        "Bytes of the slabs that serve the size class.";
    POOL_UNASSIGNED_BYTES = Gauge "slab_pool_unassigned_bytes",
        "Bytes of committed slabs that serve no size class now.";
    POOL_IN_USE_BYTES = Gauge "slab_pool_in_use_bytes",
        "Bytes of the chunks held by callers, counted as whole chunks.";
    POOL_CACHED_BYTES = Gauge "slab_pool_cached_bytes",
        "Bytes of free chunks that wait in threads' magazines or in the depot, by place.";
    POOL_CHUNKS = Gauge "slab_pool_chunks",
        "Chunks of the committed slabs by where they are; the states add up to all of them.";
    POOL_IN_USE_CHUNKS_PEAK = Gauge "slab_pool_in_use_chunks_peak",
        "High-water mark of the chunks held by callers, taken at scrapes and as chunks come out of slabs.";
    POOL_ALLOCS_TOTAL = Counter "slab_pool_allocs_total",
        "Chunks handed out, by the tier that served them.";
    POOL_FREES_TOTAL = Counter "slab_pool_frees_total",
        "Chunks returned; remote are those of other threads as far as that is sure, local all others.";
    POOL_EXHAUSTED_TOTAL = Counter "slab_pool_exhausted_total",
        "Allocations that found the pool at its cap, by what became of them; one of alloc_timeout whose time was up is under waited and under rejected, spare ones that a caller tried for are not among them.";
    POOL_WAITERS = Gauge "slab_pool_waiters",
        "Tasks that wait for a chunk of the size class now.";
    POOL_WAIT_SECONDS = Histogram(WaitTimes::BOUNDS_NANOS) "slab_pool_wait_seconds",
        "How long waits for memory took that have ended, those that were given up included.";
    POOL_SLAB_COMMITS_TOTAL = Counter "slab_pool_slab_commits_total",
        "Slabs that came to serve the size class.";
    POOL_SLAB_REBALANCES_TOTAL = Counter "slab_pool_slab_rebalances_total",
        "Slabs that came to serve the size class from another one.";
    POOL_SLAB_TRIMS_TOTAL = Counter "slab_pool_slab_trims_total",
        "Slabs of the size class whose memory went back to the system.";
    POOL_TOO_LARGE_TOTAL = Counter "slab_pool_too_large_total",
        "Requests that the pool refused because they were above the largest size class.";
    POOL_OVERSIZE_BYTES = Gauge "slab_pool_oversize_bytes",
        "Bytes on the heap for requests above the largest size class.";
    POOL_OVERSIZE_ALLOCS_TOTAL = Counter "slab_pool_oversize_allocs_total",
        "Requests above the largest size class that the heap served.";
    POOL_OVERSIZE_REFUSED_TOTAL = Counter "slab_pool_oversize_refused_total",
        "Requests above the largest size class that were refused, at their limit or by the heap.";
    POOL_COMMIT_FAILURES_TOTAL = Counter "slab_pool_commit_failures_total",
        "Slabs that the operating system would not back with memory.";
    POOL_THREAD_CACHES = Gauge "slab_pool_thread_caches",
        "Threads that have magazines in the pool.";
    POOL_SLOW_CLASSES = Gauge "slab_pool_slow_classes",
        "Size classes whose magazines threads have to search for.";

    HTTP_CONNECTIONS = Gauge "slab_metrics_connections",
        "Open connections to the metrics server, this scrape's included.";
    HTTP_ENDED_CONNECTIONS_TOTAL = Counter "slab_metrics_ended_connections_total",
        "Connections to the metrics server that ended, by why.";
    HTTP_REQUESTS_TOTAL = Counter "slab_metrics_requests_total",
        "Complete requests to the metrics server, by the status of the answer.";
    HTTP_ACCEPT_ERRORS_TOTAL = Counter "slab_metrics_accept_errors_total",
        "Failures to accept a connection to the metrics server.";
}

#[cfg(feature = "net")]
families! {
    NET_HEAP_FALLBACKS_TOTAL = Counter "slab_net_heap_fallbacks_total",
        "Packet buffers that came from the heap because the pool could not serve them.";
    NET_HEAP_BYTES = Gauge "slab_net_heap_bytes",
        "Bytes of packet buffers on the heap, outside the pool's cap.";
    NET_COMPACTED_PACKETS_TOTAL = Counter "slab_net_compacted_packets_total",
        "Packets copied out of a larger chunk by compact.";
    NET_COMPACT_REFUSED_PACKETS_TOTAL = Counter "slab_net_compact_refused_packets_total",
        "Packets that compact left in a larger chunk for want of memory.";

    POOL_PINNED_BYTES = Gauge "slab_pool_pinned_bytes",
        "Bytes of memory that held packets keep in use beyond their own; what several share counts for each.";
    NET_HELD_PACKETS = Gauge "slab_net_held_packets",
        "Packets that are held: kept on purpose, and counted for that.";
    NET_HELD_BYTES = Gauge "slab_net_held_bytes",
        "Bytes of the held packets themselves.";
    NET_HEAP_REFUSED_TOTAL = Counter "slab_net_heap_refused_total",
        "Packet buffers that the heap limit refused.";
    NET_COMPACTED_BYTES_TOTAL = Counter "slab_net_compacted_bytes_total",
        "Bytes of memory that packets copied by compact no longer pin; what several shared counts for each.";
    NET_COMPACT_REFUSED_BYTES_TOTAL = Counter "slab_net_compact_refused_bytes_total",
        "Bytes that packets went on to pin for want of memory for their copies.";
    NET_TRUNCATED_DATAGRAMS_TOTAL = Counter "slab_net_truncated_datagrams_total",
        "Datagrams longer than their buffer, dropped or delivered cut.";
    NET_KERNEL_DROPPED_DATAGRAMS_TOTAL = Counter "slab_net_kernel_dropped_datagrams_total",
        "Datagrams that the kernel dropped before they could be read, coalesced ones counted as one; 0 where it does not say.";

    NET_RECEIVED_DATAGRAMS_TOTAL = Counter "slab_net_received_datagrams_total",
        "Datagrams read from the kernel, those dropped afterwards included.";
    NET_RECEIVED_BYTES_TOTAL = Counter "slab_net_received_bytes_total",
        "Payload bytes of the datagrams read from the kernel.";
    NET_RECEIVED_CHUNK_BYTES_TOTAL = Counter "slab_net_received_chunk_bytes_total",
        "Bytes of the pool's chunks that the datagrams came to lie in, but for those dropped at once.";
    NET_RECEIVE_CALLS_TOTAL = Counter "slab_net_receive_calls_total",
        "Calls to the kernel that returned at least one datagram.";
    NET_SENT_DATAGRAMS_TOTAL = Counter "slab_net_sent_datagrams_total",
        "Datagrams that the kernel took for sending.";
    NET_SENT_BYTES_TOTAL = Counter "slab_net_sent_bytes_total",
        "Payload bytes of the datagrams that the kernel took for sending.";
    NET_SEND_CALLS_TOTAL = Counter "slab_net_send_calls_total",
        "Calls to the kernel that took at least one datagram for sending.";
    NET_SEND_LOST_DATAGRAMS_TOTAL = Counter "slab_net_send_lost_datagrams_total",
        "Datagrams that the kernel did not take for sending, and nobody but this counter was told of.";
    NET_DROPPED_DATAGRAMS_TOTAL = Counter "slab_net_dropped_datagrams_total",
        "Datagrams read from the kernel and dropped by the receiver, by reason.";
    NET_DROPPED_BYTES_TOTAL = Counter "slab_net_dropped_bytes_total",
        "Payload bytes of these datagrams, as far as the kernel handed them over, by reason.";

    NET_QUEUE_DATAGRAMS = Gauge "slab_net_queue_datagrams",
        "Datagrams that wait in the queue.";
    NET_QUEUE_BYTES = Gauge "slab_net_queue_bytes",
        "Payload bytes of the datagrams that wait in the queue.";
    NET_QUEUE_BATCHES = Gauge "slab_net_queue_batches",
        "Batches that wait in the queue.";
    NET_QUEUE_CAPACITY_BATCHES = Gauge "slab_net_queue_capacity_batches",
        "Batches that the queue holds at most.";
    NET_QUEUE_ENQUEUED_DATAGRAMS_TOTAL = Counter "slab_net_queue_enqueued_datagrams_total",
        "Datagrams that entered the queue.";
    NET_QUEUE_ENQUEUED_BYTES_TOTAL = Counter "slab_net_queue_enqueued_bytes_total",
        "Payload bytes of the datagrams that entered the queue.";
    NET_QUEUE_DELIVERED_DATAGRAMS_TOTAL = Counter "slab_net_queue_delivered_datagrams_total",
        "Datagrams that consumers took out of the queue.";
    NET_QUEUE_DELIVERED_BYTES_TOTAL = Counter "slab_net_queue_delivered_bytes_total",
        "Payload bytes of the datagrams that consumers took out of the queue.";
    NET_QUEUE_DROPPED_DATAGRAMS_TOTAL = Counter "slab_net_queue_dropped_datagrams_total",
        "Datagrams dropped at the queue, by reason.";
    NET_QUEUE_DROPPED_BYTES_TOTAL = Counter "slab_net_queue_dropped_bytes_total",
        "Payload bytes of the datagrams dropped at the queue, by reason.";

    RUDP_SESSIONS = Gauge "slab_rudp_sessions",
        "Sessions now.";
    RUDP_HALF_OPEN_SESSIONS = Gauge "slab_rudp_half_open_sessions",
        "Sessions now whose peer has not proved its address.";
    RUDP_BACKLOG_SESSIONS = Gauge "slab_rudp_backlog_sessions",
        "Sessions now that wait to be accepted.";
    RUDP_RESERVED_BYTES = Gauge "slab_rudp_reserved_bytes",
        "Bytes of pool memory reserved by all sessions.";
    RUDP_RESERVE_LIMIT_BYTES = Gauge "slab_rudp_reserve_limit_bytes",
        "Bytes of pool memory that sessions may reserve.";
    RUDP_RTT_SECONDS = Histogram(RoundTripTimes::BOUNDS_NANOS) "slab_rudp_rtt_seconds",
        "How long round trips took, as acknowledgements measured them; at most one a datagram.";
    RUDP_MEMORY_BLOCKED_SECONDS_TOTAL = SecondsCounter "slab_rudp_memory_blocked_seconds_total",
        "How long sessions were blocked for want of memory, all together, by direction.";
    RUDP_WAKEUPS_TOTAL = Counter "slab_rudp_wakeups_total",
        "Times that the endpoint's task woke up, for datagrams or for a timer.";
    RUDP_OPENED_SESSIONS_TOTAL = Counter "slab_rudp_opened_sessions_total",
        "Sessions opened, by either side.";
    RUDP_REFUSED_SESSIONS_TOTAL = Counter "slab_rudp_refused_sessions_total",
        "Sessions refused, by reason; each datagram or call that would have opened one counts.";
    RUDP_FORGOTTEN_SESSIONS_TOTAL = Counter "slab_rudp_forgotten_sessions_total",
        "Ended sessions that were forgotten before their time, because so many ended after them.";
    RUDP_UNKNOWN_SESSION_DATAGRAMS_TOTAL = Counter "slab_rudp_unknown_session_datagrams_total",
        "Datagrams that belonged to no session and opened none, but for those of refused sessions or answered by a cookie.";
    RUDP_SENT_COOKIES_TOTAL = Counter "slab_rudp_sent_cookies_total",
        "Cookies sent to peers whose addresses were not proved, for want of room or because all need one.";
    RUDP_TAKEN_COOKIES_TOTAL = Counter "slab_rudp_taken_cookies_total",
        "Sessions opened because their peer had such a cookie.";
    RUDP_UNOPENED_DATAGRAMS_TOTAL = Counter "slab_rudp_unopened_datagrams_total",
        "Datagrams that could not be opened with the key.";
    RUDP_SEND_ERRORS_TOTAL = Counter "slab_rudp_send_errors_total",
        "Datagrams that the system would not send; sessions take them for lost.";
    RUDP_UNSENT_ANSWERS_TOTAL = Counter "slab_rudp_unsent_answers_total",
        "Answers to datagrams without a session that the system would not send, or that there was no room for.";
    RUDP_SEND_BLOCKED_TOTAL = Counter "slab_rudp_send_blocked_total",
        "Times that the socket had no room for a session's datagrams, which then waited.";
    RUDP_DATAGRAMS_TOTAL = Counter "slab_rudp_datagrams_total",
        "Datagrams made for sending or taken, by direction.";
    RUDP_BYTES_TOTAL = Counter "slab_rudp_bytes_total",
        "Bytes of these datagrams, headers included, by direction.";
    RUDP_SEGMENTS_TOTAL = Counter "slab_rudp_segments_total",
        "PUSH segments, each transmission counted, by direction.";
    RUDP_SENT_ACKS_TOTAL = Counter "slab_rudp_sent_acks_total",
        "Acknowledgements sent.";
    RUDP_RETRANSMITS_TOTAL = Counter "slab_rudp_retransmits_total",
        "Segments sent again, by what triggered it.";
    RUDP_SPURIOUS_RETRANSMITS_TOTAL = Counter "slab_rudp_spurious_retransmits_total",
        "Segments sent again that were not lost.";
    RUDP_DUPLICATE_SEGMENTS_TOTAL = Counter "slab_rudp_duplicate_segments_total",
        "Segments received that were there already.";
    RUDP_DROPPED_SEGMENTS_TOTAL = Counter "slab_rudp_dropped_segments_total",
        "Segments dropped and not acknowledged, by reason.";
    RUDP_COPIED_SEGMENTS_TOTAL = Counter "slab_rudp_copied_segments_total",
        "Segments copied out of receive buffers that they would have pinned.";
    RUDP_WINDOW_REFUSED_TOTAL = Counter "slab_rudp_window_refused_total",
        "Times that a receive window did not grow for want of memory.";
    RUDP_WINDOW_PROBES_TOTAL = Counter "slab_rudp_window_probes_total",
        "Questions for the peer's window: the first one, signs of life, to measure round trips, because it was closed, or to give ours back.";
    RUDP_UNRELIABLE_DATAGRAMS_TOTAL = Counter "slab_rudp_unreliable_datagrams_total",
        "Unreliable datagrams of sessions, by direction.";
    RUDP_DROPPED_UNRELIABLE_DATAGRAMS_TOTAL = Counter "slab_rudp_dropped_unreliable_datagrams_total",
        "Unreliable datagrams received and dropped: nobody read them in time, the session was closed, or there was no memory.";
    RUDP_REJECTED_DATAGRAMS_TOTAL = Counter "slab_rudp_rejected_datagrams_total",
        "Datagrams refused because of what they contain, by reason.";
}

#[cfg(feature = "fec")]
families! {
    RUDP_FEC_SHARDS_TOTAL = Counter "slab_rudp_fec_shards_total",
        "Parity shards of error correction, by direction.";
    RUDP_FEC_RECOVERED_DATAGRAMS_TOTAL = Counter "slab_rudp_fec_recovered_datagrams_total",
        "Datagrams that were lost and computed from others.";
    RUDP_FEC_EXPIRED_GROUPS_TOTAL = Counter "slab_rudp_fec_expired_groups_total",
        "Groups given up with data missing: too many of their shards were lost or late.";
    RUDP_FEC_DROPPED_SHARDS_TOTAL = Counter "slab_rudp_fec_dropped_shards_total",
        "Shards that were of no use, by reason.";
}
