//! What a queue did so far, in datagrams: a batch counts as many as it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot of one queue's counters, in datagrams since the queue was made unless the name says
/// otherwise.
///
/// Whenever nobody is in the middle of a send or a receive, everything that was ever offered to
/// the queue is `delivered + datagrams + dropped()`, exactly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Datagrams that wait in the queue now.
    pub datagrams: u64,
    /// How many batches the queue holds at most.
    pub capacity_batches: u64,
    /// Datagrams that entered the queue.
    pub enqueued: u64,
    /// Datagrams that consumers took out.
    pub delivered: u64,
    /// Arriving datagrams that found the queue full and were dropped.
    pub dropped_queue_full: u64,
    /// Queued datagrams that the overflow policy gave up to make room for newer ones.
    pub dropped_policy: u64,
    /// Datagrams that no consumer was left for, or whose sending was cancelled while it waited.
    pub dropped_closed: u64,
}

impl QueueStats {
    /// Datagrams dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_queue_full + self.dropped_policy + self.dropped_closed
    }
}

/// Reads the counters of one queue while it is in use, and after its two ends are gone.
///
/// From [`QueueSender::monitor`](crate::pipeline::QueueSender::monitor) or
/// [`QueueReceiver::monitor`](crate::pipeline::QueueReceiver::monitor).
#[derive(Debug, Clone)]
pub struct QueueMonitor {
    counters: Arc<QueueCounters>,
}

impl QueueMonitor {
    pub(crate) fn new(counters: Arc<QueueCounters>) -> Self {
        Self { counters }
    }

    /// The counters at this moment. Allocates nothing and disturbs nobody.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        let c = &*self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let delivered = read(&c.consumers.delivered);
        let dropped_policy = read(&c.producers.evicted);
        let abandoned = read(&c.producers.abandoned);
        let enqueued = read(&c.producers.enqueued);
        QueueStats {
            // A consumer may count a batch before its producer has: then the difference is below
            // zero for a moment.
            datagrams: enqueued.saturating_sub(delivered + dropped_policy + abandoned),
            capacity_batches: c.capacity_batches,
            enqueued,
            delivered,
            dropped_queue_full: read(&c.producers.full),
            dropped_policy,
            dropped_closed: abandoned + read(&c.producers.refused),
        }
    }
}

/// The counters themselves; producers and consumers each have a cache line pair of their own.
#[derive(Debug, Default)]
pub(crate) struct QueueCounters {
    pub(crate) capacity_batches: u64,
    pub(crate) producers: ProducerCounters,
    pub(crate) consumers: ConsumerCounters,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ProducerCounters {
    pub(crate) enqueued: AtomicU64,
    /// Arrived when the queue was full, and dropped.
    pub(crate) full: AtomicU64,
    /// Taken out of the queue again to make room.
    pub(crate) evicted: AtomicU64,
    /// Still queued when the last consumer went.
    pub(crate) abandoned: AtomicU64,
    /// Never entered the queue: nobody to deliver to, or the sending was cancelled.
    pub(crate) refused: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ConsumerCounters {
    pub(crate) delivered: AtomicU64,
}
