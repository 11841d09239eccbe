//! The queue: an array of batches, [event counts](super::event_count) to wait for, and counters.
//!
//! When the last handle of one side is dropped, it sets that side's counter to zero and then wakes all
//! who wait for that; those who arrive there later see the zero.
//!
//! Work that can be shared by many batches is done once for all of them: one addition to a counter, one
//! check for waiters. In the steady state nothing here allocates: a waiter's place is part of its
//! future.

mod producer;
mod receiver;
mod sender;
mod shared;

use super::priority_lanes::{Priority, PriorityLanes};
use super::stats::QueueCounters;
use crate::udp::{Amount, PacketBatch};
use core::fmt;
use core::num::NonZeroUsize;
use crossbeam_queue::ArrayQueue;
pub(super) use shared::Shared;
use shared::Store;
use std::io;
use std::sync::Arc;

pub(super) use producer::Producer;
pub use receiver::QueueReceiver;
pub use sender::QueueSender;

/// What a full queue does with the next batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// The producer waits for room. While a receiving task waits it does not read its socket, and the
    /// kernel drops datagrams once the socket's buffer is full (see
    /// [`kernel_dropped_datagrams`](crate::udp::SocketStats::kernel_dropped_datagrams)).
    ///
    /// Producers that wait are woken in turn, but another that sends just then may take the place
    /// first: several producers have no fixed share of the queue.
    Wait,
    /// The arriving batch is dropped and counted as `queue_full`; queued batches are kept.
    DropNewest,
    /// The batch that has waited longest is dropped and counted as `policy`: consumers get the most
    /// recent batches.
    DropOldest,
}

/// Makes a queue that holds at most `capacity` batches.
///
/// Its memory is allocated here, once. A batch pins up to 64 KiB of pool memory (by io_uring up to a
/// chunk of its larger class), so `capacity` also limits how much of the pool the queue can hold.
///
/// A woken task runs next on the thread that woke it, and tokio lets no other thread steal it: while a
/// producer's loop has something to read, the consumer that it woke does not run, and a queue that
/// drops overflows beside idle threads. [`forward`](super::forward()) puts in at most half of the queue
/// at a time, and yields when it is half full; a loop of your own should do so too
/// ([`tokio::task::yield_now`]).
///
/// # Panics
/// As [`Vec::with_capacity`], if that many batches exceed `isize::MAX` bytes.
#[must_use]
pub fn queue(capacity: NonZeroUsize, overflow: Overflow) -> (QueueSender, QueueReceiver) {
    let (producer, receiver) = fifo(capacity, overflow);
    (QueueSender::to_one(producer), receiver)
}

pub(super) fn fifo(capacity: NonZeroUsize, overflow: Overflow) -> (Producer, QueueReceiver) {
    let batches = ArrayQueue::new(capacity.get());
    new_pair(capacity, Store::Fifo(batches, overflow))
}

/// Makes a queue that holds at most `capacity` batches, delivers the highest [`Priority`] first, and
/// drops the lowest first.
///
/// When it is full, the oldest batch of the lowest priority below that of the arriving batch is dropped
/// and counted as `policy`. If there is none, the arriving batch is dropped and counted as
/// `queue_full`. Batches of the same priority stay in order.
///
/// `priority_of` is called once for each batch, by the producer, and should be fast. Each priority has places
/// for all batches, so this takes four times the memory of a [`queue`].
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::pipeline::{Priority, priority_queue};
/// use slab_net::udp::{Transmit, UdpReceiver};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// # let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
/// let (sender, batches) = priority_queue(1.try_into()?, |batch| match batch.contents() {
///     [b'!', ..] => Priority::Critical,
///     _ => Priority::Normal,
/// });
/// for payload in ["hello", "!keep alive", "world"] {
///     let transmit = Transmit::new(payload.as_bytes(), socket.local_addr());
///     socket.sender().send(&transmit).await?;
///     sender.send(socket.recv_batch().await?).await?;
/// }
/// assert_eq!(batches.recv().await.unwrap().contents(), b"!keep alive");
/// let stats = batches.monitor().stats();
/// assert_eq!((stats.dropped_policy, stats.dropped_queue_full), (1, 1));
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// As [`queue`].
#[must_use]
pub fn priority_queue(
    capacity: NonZeroUsize,
    priority_of: impl Fn(&PacketBatch) -> Priority + Send + Sync + 'static,
) -> (QueueSender, QueueReceiver) {
    let lanes = PriorityLanes::new(capacity.get(), Box::new(priority_of));
    let (producer, receiver) = new_pair(capacity, Store::Priority(Box::new(lanes)));
    (QueueSender::to_one(producer), receiver)
}

fn new_pair(capacity: NonZeroUsize, store: Store) -> (Producer, QueueReceiver) {
    let shared = Arc::new(Shared::new(capacity, store));
    let producer = Producer::new(Arc::clone(&shared));
    (producer, QueueReceiver::new(shared))
}

/// All receivers of a queue are gone. Of many batches, those that were not delivered are dropped and counted as `closed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueClosed;

impl fmt::Display for QueueClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the queue has no receiver left")
    }
}

impl std::error::Error for QueueClosed {}

impl From<QueueClosed> for io::Error {
    fn from(error: QueueClosed) -> Self {
        Self::new(io::ErrorKind::BrokenPipe, error)
    }
}

/// The queue did not take a batch, which this error of [`send`](QueueSender::send) and
/// [`try_send`](QueueSender::try_send) gives back.
///
/// While it has the batch, the queue counts it nowhere. If the error is dropped, so is the batch, which
/// is then counted as `queue_full`, or as `closed` if all receivers are gone.
pub struct QueueSendError {
    // First: counted even if the drop of the batch, which may wake a waiter for memory, panics.
    uncounted: Uncounted,
    batch: PacketBatch,
}

impl QueueSendError {
    fn new(shared: &Shared, batch: PacketBatch, is_closed: bool) -> Self {
        let uncounted = Uncounted {
            counters: Arc::clone(&shared.counters),
            amount: batch.amount(),
            is_closed,
        };
        Self { uncounted, batch }
    }

    /// Returns `true` if all receivers are gone; `false` if there was no room.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.uncounted.is_closed
    }

    /// Returns the batch, which can be sent again. The queue does not count it.
    #[must_use]
    pub fn into_batch(mut self) -> PacketBatch {
        self.uncounted.amount = Amount::default();
        self.batch
    }
}

/// Counts a batch when it is dropped with its error.
struct Uncounted {
    counters: Arc<QueueCounters>,
    amount: Amount,
    is_closed: bool,
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        let producers = &self.counters.producers;
        if self.is_closed {
            producers.refused.add(self.amount);
        } else {
            producers.full.add(self.amount);
        }
    }
}

impl fmt::Debug for QueueSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueSendError")
            .field("is_closed", &self.is_closed())
            .field("batch", &self.batch)
            .finish()
    }
}

impl fmt::Display for QueueSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_closed() {
            return QueueClosed.fmt(f);
        }
        f.write_str("the queue is full")
    }
}

impl std::error::Error for QueueSendError {}

/// The batch is dropped, and counted.
impl From<QueueSendError> for io::Error {
    fn from(error: QueueSendError) -> Self {
        if error.is_closed() {
            return QueueClosed.into();
        }
        Self::new(io::ErrorKind::WouldBlock, error.to_string())
    }
}
