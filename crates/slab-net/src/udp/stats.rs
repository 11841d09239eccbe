//! The counters of a socket, which a monitor can read at any time.

use super::io::Io;
use super::sys::{DropProbe, Received};
use super::tally::Tally;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot of one socket's counters, all since it was bound.
///
/// Once the receiver is dropped, `received_datagrams - dropped()` is exactly what it delivered; before
/// that, it includes what the receiver has read but not yet returned. It is never negative. The same
/// holds for `received_bytes - dropped_bytes()`.
///
/// ```
/// # use slab_net::PacketPool;
/// # use slab_net::udp::{Transmit, UdpReceiver};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// # let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
/// let monitor = socket.monitor();
/// let two = Transmit::new(b"onetwo", socket.local_addr()).segment_size(3);
/// socket.sender().send(&two).await?;
/// let one = socket.recv().await?;
/// drop(socket); // with the other datagram
///
/// let stats = monitor.stats();
/// assert_eq!((stats.received_datagrams - stats.dropped(), stats.dropped_bytes()), (1, 3));
/// # assert_eq!(one.packet, "one");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketStats {
    /// Datagrams read from the kernel, including those dropped afterwards.
    pub received_datagrams: u64,
    /// Bytes of payload in these datagrams, as far as the kernel returned them.
    pub received_bytes: u64,
    /// Bytes of the pool's chunks in which datagrams came to lie: all but those dropped at once, for want of
    /// memory or as truncated. Divided by the bytes of payload, this is the cost of rounding up to chunk sizes.
    /// 0 for receivers that read into other memory.
    pub received_chunk_bytes: u64,
    /// Reads that found at least one datagram: each is a system call, or two if it found two and only the
    /// [source](crate::udp::UdpReceiverBuilder::source_only) of each was asked for; by io_uring, a look at
    /// its ring.
    pub receive_calls: u64,
    /// Datagrams that the kernel accepted for sending.
    pub sent_datagrams: u64,
    /// Bytes of payload in these datagrams.
    pub sent_bytes: u64,
    /// System calls in which the kernel accepted at least one datagram.
    pub send_calls: u64,
    /// Datagrams lost because the system did not accept them and their sender is not told: only those
    /// of `QuinnSocket`, since quinn takes an error for the end of a connection. All other senders get
    /// a [`SendError`](crate::udp::SendError).
    pub send_lost_datagrams: u64,
    /// Datagrams that were read and dropped because the pool had no chunk for them.
    pub dropped_no_memory: u64,
    /// Bytes of payload in these datagrams, as far as the kernel returned them.
    pub dropped_no_memory_bytes: u64,
    /// Datagrams that were longer than their buffer, and dropped because their rest is lost.
    pub dropped_truncated: u64,
    /// Bytes of payload in these datagrams, as far as the kernel returned them.
    pub dropped_truncated_bytes: u64,
    /// Datagrams that had been read but not yet returned when the receiver was dropped.
    pub dropped_closed: u64,
    /// Bytes of payload in these datagrams, as far as the kernel returned them.
    pub dropped_closed_bytes: u64,
    /// Datagrams that were longer than their buffer: those dropped, and those delivered because
    /// [`deliver_truncated`](crate::udp::UdpReceiverBuilder::deliver_truncated) was set.
    pub truncated_datagrams: u64,
    /// Datagrams that the kernel dropped before they could be read: its queue for the socket was full,
    /// the checksum was wrong, or the receiver was [stopped](crate::udp::UdpReceiver::stop). Not included in
    /// `received_datagrams`.
    ///
    /// Linux only; 0 elsewhere. Exact without coalescing; with it, up to 128 datagrams that the kernel
    /// had coalesced before it dropped them count as one, because the kernel counts them so.
    pub kernel_dropped_datagrams: u64,
}

impl SocketStats {
    /// The number of datagrams dropped after they had been read, for any reason. Does not include those
    /// that the kernel dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_no_memory + self.dropped_truncated + self.dropped_closed
    }

    /// The bytes of payload in these datagrams, as far as the kernel returned them.
    #[must_use]
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_no_memory_bytes + self.dropped_truncated_bytes + self.dropped_closed_bytes
    }
}

/// Reads the counters of one socket, even after its receiver and senders are gone.
///
/// Made by [`UdpReceiver::monitor`](crate::udp::UdpReceiver::monitor) or
/// [`UdpSender::monitor`](crate::udp::UdpSender::monitor).
#[derive(Debug, Clone)]
pub struct SocketMonitor {
    counters: Arc<SocketCounters>,
}

impl SocketMonitor {
    pub(crate) fn new(counters: Arc<SocketCounters>) -> Self {
        Self { counters }
    }

    /// Returns the counters at this moment. Allocates nothing.
    ///
    /// While the socket is open, asks the kernel for its drops by one system call.
    #[must_use]
    pub fn stats(&self) -> SocketStats {
        let c = &*self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let no_memory = c.receive.no_memory.read();
        let closed = c.receive.closed.read();
        let truncated = c.receive.truncated_dropped.read();
        let all_truncated = truncated + c.receive.truncated_delivered.read();
        // A drop may be counted before its datagram is counted as received, or between the two readings.
        let dropped = no_memory + truncated + closed;
        let received = c.receive.received.read().max(dropped);
        SocketStats {
            received_datagrams: received.datagrams,
            received_bytes: received.bytes,
            received_chunk_bytes: read(&c.receive.chunk_bytes),
            receive_calls: read(&c.receive.calls),
            sent_datagrams: read(&c.send.datagrams),
            sent_bytes: read(&c.send.bytes),
            send_calls: read(&c.send.calls),
            send_lost_datagrams: read(&c.send.lost),
            dropped_no_memory: no_memory.datagrams,
            dropped_no_memory_bytes: no_memory.bytes,
            dropped_truncated: truncated.datagrams,
            dropped_truncated_bytes: truncated.bytes,
            dropped_closed: closed.datagrams,
            dropped_closed_bytes: closed.bytes,
            truncated_datagrams: all_truncated.datagrams,
            kernel_dropped_datagrams: c.kernel.total(),
        }
    }
}

/// The counters. Receiving and sending may run on two threads, so each side has a cache line pair of
/// its own.
#[derive(Debug, Default)]
pub(crate) struct SocketCounters {
    pub(crate) receive: ReceiveCounters,
    pub(crate) send: SendCounters,
    pub(crate) kernel: KernelDrops,
}

impl SocketCounters {
    /// Counts what was read, where only one thread at a time reads. Returns how many datagrams the kernel has dropped
    /// since the last report.
    pub(super) fn count_read(&self, read: &[Received]) -> u64 {
        let all = read.iter().map(Received::amount).sum();
        self.receive.received.bump(all);
        let counted = read.last().and_then(|last| last.kernel_drops);
        counted.map_or(0, |counted| self.kernel.observe(counted))
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ReceiveCounters {
    pub(crate) received: Tally,
    /// Of the chunks in which datagrams were handed on.
    pub(crate) chunk_bytes: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) no_memory: Tally,
    pub(crate) truncated_delivered: Tally,
    pub(crate) truncated_dropped: Tally,
    pub(crate) closed: Tally,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct SendCounters {
    pub(crate) datagrams: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) calls: AtomicU64,
    /// Datagrams whose loss is reported nowhere else.
    pub(crate) lost: AtomicU64,
}

/// The kernel's drops. The kernel counts them in 32 bits, which wrap, and reports them in two ways:
/// with a datagram (the count when that one was queued) and when asked (the current count).
#[derive(Debug, Default)]
pub(crate) struct KernelDrops {
    total: AtomicU64,
    probe: DropProbe,
}

impl KernelDrops {
    pub(in crate::udp) fn attach(&self, socket: &Io) {
        self.probe.attach(socket);
    }

    /// Takes a last reading; the socket is about to be closed.
    pub(crate) fn detach(&self) {
        self.total();
        self.probe.detach();
    }

    /// Adds the kernel's count to the total, and returns how many drops are new. Counts may arrive late
    /// and out of order: one that is behind the total is older. So there must be fewer than 2^31 drops
    /// between two readings.
    pub(crate) fn observe(&self, counted: u32) -> u64 {
        let new_drops = |total: u64| counted.wrapping_sub(total as u32);
        let is_newer = |total: u64| new_drops(total) as i32 > 0;
        let ahead = |total| is_newer(total).then(|| total + u64::from(new_drops(total)));
        self.total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, ahead)
            .map_or(0, |before| u64::from(new_drops(before)))
    }

    fn total(&self) -> u64 {
        if let Some(counted) = self.probe.query() {
            self.observe(counted);
        }
        self.total.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::{Amount, bump};
    use super::*;

    #[test]
    fn a_monitor_outlives_the_socket_and_reads_every_counter() {
        let counters = Arc::new(SocketCounters::default());
        let monitor = SocketMonitor::new(Arc::clone(&counters));
        assert_eq!(monitor.stats(), SocketStats::default());
        let receive = &counters.receive;
        let tallies = [
            &receive.received,
            &receive.no_memory,
            &receive.truncated_dropped,
            &receive.truncated_delivered,
            &receive.closed,
        ];
        for (tally, n) in tallies.into_iter().zip([30, 7, 8, 12, 10]) {
            tally.bump(Amount::new(n, 100 * n));
        }
        let all = [
            &receive.chunk_bytes,
            &receive.calls,
            &counters.send.datagrams,
            &counters.send.bytes,
            &counters.send.calls,
            &counters.send.lost,
        ];
        for (counter, n) in all.into_iter().zip([2, 3, 4, 5, 6, 11]) {
            bump(counter, n);
        }
        assert_eq!(counters.kernel.observe(9), 9);
        drop(counters);
        let stats = monitor.stats();
        assert_eq!(
            stats,
            SocketStats {
                received_datagrams: 30,
                received_bytes: 3000,
                received_chunk_bytes: 2,
                receive_calls: 3,
                sent_datagrams: 4,
                sent_bytes: 5,
                send_calls: 6,
                send_lost_datagrams: 11,
                dropped_no_memory: 7,
                dropped_no_memory_bytes: 700,
                dropped_truncated: 8,
                dropped_truncated_bytes: 800,
                dropped_closed: 10,
                dropped_closed_bytes: 1000,
                truncated_datagrams: 20,
                kernel_dropped_datagrams: 9,
            }
        );
        assert_eq!(stats.dropped_bytes(), 2500);
        assert_eq!(stats.dropped(), 25);
    }

    /// Read while the receiver is between the two counters.
    #[test]
    fn no_more_is_dropped_than_was_received() {
        let counters = Arc::new(SocketCounters::default());
        let monitor = SocketMonitor::new(Arc::clone(&counters));
        counters.receive.received.bump(Amount::new(3, 300));
        counters.receive.truncated_dropped.bump(Amount::new(4, 200));
        let stats = monitor.stats();
        assert_eq!((stats.received_datagrams, stats.dropped()), (4, 4));
        assert_eq!((stats.received_bytes, stats.dropped_bytes()), (300, 200));
    }

    #[test]
    fn kernel_drop_counts_may_wrap_and_arrive_late() {
        let drops = KernelDrops::default();
        assert_eq!(drops.observe(0), 0);
        assert_eq!(drops.observe(5), 5);
        assert_eq!(drops.observe(3), 0, "old news");
        assert_eq!(drops.observe(5), 0);
        for counted in [1 << 30, 1 << 31, 3 << 30, u32::MAX] {
            assert!(drops.observe(counted) > 0);
        }
        assert_eq!(drops.total(), u64::from(u32::MAX));
        assert_eq!(drops.observe(2), 3, "past the wrap");
        assert_eq!(drops.observe(u32::MAX), 0, "old news from before the wrap");
        assert_eq!(drops.total(), (1 << 32) + 2);
    }
}
