//! The counters of a queue, in datagrams and in bytes of their payload: a batch counts as many
//! datagrams as it holds.

use super::queue::Shared;
use crate::udp::Tally;
use std::sync::{Arc, Weak};

/// A snapshot of one queue's counters, in datagrams since the queue was made unless the name says
/// otherwise.
///
/// While no send or receive is in progress, everything that was ever offered to the queue, and not given
/// back by the [error](crate::pipeline::QueueSendError) of a send, is exactly
/// `delivered + datagrams + dropped()`, and the same in bytes.
///
/// ```
/// # use slab_net::PacketPool;
/// # use slab_net::pipeline::{Overflow, queue};
/// # use slab_net::udp::PacketBatch;
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// # let batch = || PacketBatch::try_copy_from_slice(&pool, b"onetwo", 3, "192.0.2.1:53".parse().unwrap());
/// let (sender, receiver) = queue(1.try_into()?, Overflow::DropOldest);
/// sender.try_send(batch()?)?; // two datagrams of three bytes
/// sender.try_send(batch()?)?;
/// let stats = receiver.monitor().stats();
/// assert_eq!((stats.datagrams, stats.dropped(), stats.dropped_bytes()), (2, 2, 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Datagrams queued now.
    pub datagrams: u64,
    /// Bytes of payload in these datagrams.
    pub bytes: u64,
    /// Batches queued now: the queue is full when these are `capacity_batches`.
    pub batches: u64,
    /// The maximum number of batches in the queue.
    pub capacity_batches: u64,
    /// Datagrams that entered the queue.
    pub enqueued: u64,
    /// Bytes of payload in these.
    pub enqueued_bytes: u64,
    /// Datagrams that consumers took out.
    pub delivered: u64,
    /// Bytes of payload in these.
    pub delivered_bytes: u64,
    /// Arriving datagrams that found the queue full and were dropped.
    pub dropped_queue_full: u64,
    /// Bytes of payload in these.
    pub dropped_queue_full_bytes: u64,
    /// Queued datagrams that the overflow policy dropped to make room for newer ones.
    pub dropped_policy: u64,
    /// Bytes of payload in these.
    pub dropped_policy_bytes: u64,
    /// Datagrams dropped because no consumer was left, because their send was cancelled, or because the
    /// function that returns their priority panicked.
    pub dropped_closed: u64,
    /// Bytes of payload in these.
    pub dropped_closed_bytes: u64,
}

impl QueueStats {
    /// The number of datagrams dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_queue_full + self.dropped_policy + self.dropped_closed
    }

    /// The bytes of payload dropped for any reason.
    #[must_use]
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_queue_full_bytes + self.dropped_policy_bytes + self.dropped_closed_bytes
    }
}

/// Reads the counters of one queue, even after both ends are gone.
///
/// Made by [`QueueReceiver::monitor`](crate::pipeline::QueueReceiver::monitor).
#[derive(Debug, Clone)]
pub struct QueueMonitor {
    counters: Arc<QueueCounters>,
    /// Weak, so that the last end of the queue frees its places.
    queue: Weak<Shared>,
}

impl QueueMonitor {
    pub(super) fn new(queue: &Arc<Shared>) -> Self {
        Self {
            counters: Arc::clone(&queue.counters),
            queue: Arc::downgrade(queue),
        }
    }

    /// Returns the counters at this moment. Allocates nothing and takes no lock.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        let c = &*self.counters;
        let delivered = c.consumers.delivered.read();
        let policy = c.producers.evicted.read();
        let abandoned = c.producers.abandoned.read();
        let enqueued = c.producers.enqueued.read();
        let full = c.producers.full.read();
        // A consumer may count a batch before its producer has: the difference is then negative for a
        // moment.
        let queued = enqueued - (delivered + policy + abandoned);
        let closed = abandoned + c.producers.refused.read();
        QueueStats {
            datagrams: queued.datagrams,
            bytes: queued.bytes,
            // Its last owner may be this call, if both ends go meanwhile.
            batches: self.queue.upgrade().map_or(0, |queue| queue.len() as u64),
            capacity_batches: c.capacity_batches,
            enqueued: enqueued.datagrams,
            enqueued_bytes: enqueued.bytes,
            delivered: delivered.datagrams,
            delivered_bytes: delivered.bytes,
            dropped_queue_full: full.datagrams,
            dropped_queue_full_bytes: full.bytes,
            dropped_policy: policy.datagrams,
            dropped_policy_bytes: policy.bytes,
            dropped_closed: closed.datagrams,
            dropped_closed_bytes: closed.bytes,
        }
    }
}

/// The counters; those of producers and of consumers lie in different pairs of cache lines.
#[derive(Debug, Default)]
pub(crate) struct QueueCounters {
    pub(crate) capacity_batches: u64,
    pub(crate) producers: ProducerCounters,
    pub(crate) consumers: ConsumerCounters,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ProducerCounters {
    pub(crate) enqueued: Tally,
    /// Arrived while the queue was full, and dropped.
    pub(crate) full: Tally,
    /// Removed from the queue to make room.
    pub(crate) evicted: Tally,
    /// Still queued when the last consumer was dropped.
    pub(crate) abandoned: Tally,
    /// Never entered the queue: no receiver was left, the send was cancelled, or the priority function
    /// panicked.
    pub(crate) refused: Tally,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ConsumerCounters {
    pub(crate) delivered: Tally,
}
