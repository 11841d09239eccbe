//! What a socket did so far: counters beside the socket, read at any time through a monitor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot of one socket's counters, all since it was bound.
///
/// `received_datagrams - dropped_no_memory - dropped_truncated` is what the receiver delivered,
/// exactly, whenever the receiver is not in the middle of a read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketStats {
    /// Datagrams read from the kernel, those included that were dropped afterwards.
    pub received_datagrams: u64,
    /// Bytes of payload in these datagrams, as far as the kernel handed them over.
    pub received_bytes: u64,
    /// Calls to the kernel that returned at least one datagram.
    pub receive_calls: u64,
    /// Datagrams that the kernel took for sending.
    pub sent_datagrams: u64,
    /// Bytes of payload in these datagrams.
    pub sent_bytes: u64,
    /// Calls to the kernel that took at least one datagram for sending.
    pub send_calls: u64,
    /// Datagrams that were read and dropped because the pool had no chunk for them.
    pub dropped_no_memory: u64,
    /// Datagrams that were longer than their buffer, and dropped because the rest is lost.
    pub dropped_truncated: u64,
}

impl SocketStats {
    /// Datagrams dropped after they had been read, for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_no_memory + self.dropped_truncated
    }
}

/// Reads the counters of one socket while its receiver and senders run, and after they are gone.
///
/// From [`UdpReceiver::monitor`](crate::udp::UdpReceiver::monitor) or
/// [`UdpSender::monitor`](crate::udp::UdpSender::monitor).
#[derive(Debug, Clone)]
pub struct SocketMonitor {
    counters: Arc<SocketCounters>,
}

impl SocketMonitor {
    pub(crate) fn new(counters: Arc<SocketCounters>) -> Self {
        Self { counters }
    }

    /// The counters at this moment. Allocates nothing and disturbs nobody.
    #[must_use]
    pub fn stats(&self) -> SocketStats {
        let c = &*self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SocketStats {
            received_datagrams: read(&c.receive.datagrams),
            received_bytes: read(&c.receive.bytes),
            receive_calls: read(&c.receive.calls),
            sent_datagrams: read(&c.send.datagrams),
            sent_bytes: read(&c.send.bytes),
            send_calls: read(&c.send.calls),
            dropped_no_memory: read(&c.receive.no_memory),
            dropped_truncated: read(&c.receive.truncated),
        }
    }
}

/// The counters themselves. Receiving and sending may go on in two threads, so that each side has
/// a cache line pair of its own.
#[derive(Debug, Default)]
pub(crate) struct SocketCounters {
    pub(crate) receive: ReceiveCounters,
    pub(crate) send: SendCounters,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ReceiveCounters {
    pub(crate) datagrams: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) no_memory: AtomicU64,
    pub(crate) truncated: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct SendCounters {
    pub(crate) datagrams: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) calls: AtomicU64,
}

/// Adds to a counter that only one thread at a time writes: no read-modify-write needed.
pub(crate) fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_outlives_the_socket_and_sees_each_counter() {
        let counters = Arc::new(SocketCounters::default());
        let monitor = SocketMonitor::new(Arc::clone(&counters));
        assert_eq!(monitor.stats(), SocketStats::default());
        let all = [
            &counters.receive.datagrams,
            &counters.receive.bytes,
            &counters.receive.calls,
            &counters.send.datagrams,
            &counters.send.bytes,
            &counters.send.calls,
            &counters.receive.no_memory,
            &counters.receive.truncated,
        ];
        for (counter, n) in all.into_iter().zip(1..) {
            bump(counter, n);
        }
        drop(counters);
        let stats = monitor.stats();
        assert_eq!(
            stats,
            SocketStats {
                received_datagrams: 1,
                received_bytes: 2,
                receive_calls: 3,
                sent_datagrams: 4,
                sent_bytes: 5,
                send_calls: 6,
                dropped_no_memory: 7,
                dropped_truncated: 8,
            }
        );
        assert_eq!(stats.dropped(), 15);
    }
}
