//! The queue: an array of batches, two [gates](super::gate) to wait at, and counters.
//!
//! The end of a side sets its counter to zero and then wakes all who wait at its gate; who comes
//! there later sees the zero.
//!
//! What can be done for many batches at once is: one addition to a counter, one look at who waits.
//! In the steady state nothing here allocates: a place to wait is part of the future that waits.

mod receiver;
mod sender;
mod shared;

use super::lanes::{Lanes, Priority};
use crate::udp::PacketBatch;
use core::fmt;
use core::num::NonZeroUsize;
use crossbeam_queue::ArrayQueue;
use shared::{Shared, Store};
use std::sync::Arc;

pub use receiver::QueueReceiver;
pub use sender::QueueSender;

/// What a full queue does with the next batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// The producer waits for room. A receiving task that waits does not read its socket: the
    /// kernel then drops what comes, beyond our counting.
    Wait,
    /// The batch that arrives is dropped and counted as `queue_full`: what is queued is kept.
    DropNewest,
    /// The batch that waited longest is dropped and counted as `policy`: consumers get what is
    /// most recent.
    DropOldest,
}

/// A queue that holds at most `capacity` batches.
///
/// Its memory is allocated here, once. A batch pins up to 64 KiB of pool memory, so that
/// `capacity` also says how much of the pool the queue can hold.
///
/// A task that is woken runs next on the thread that woke it, and tokio lets no other thread take it: while
/// a producer's loop finds something to read, the consumer that it woke has no turn, and a queue that drops
/// overflows beside idle threads. [`forward`](super::forward) yields where the queue is half full; a loop of
/// one's own should do so, too ([`tokio::task::yield_now`]).
pub fn queue(capacity: NonZeroUsize, overflow: Overflow) -> (QueueSender, QueueReceiver) {
    let batches = ArrayQueue::new(capacity.get());
    ends(capacity, Store::Fifo(batches, overflow))
}

/// A queue that holds at most `capacity` batches, of which it delivers those first, and drops those
/// last, that matter most.
///
/// When it is full, the oldest of the lowest [`Priority`] below that of the arriving batch is
/// dropped and counted as `policy`. If there is none, the arriving one is dropped and counted as
/// `queue_full`. Batches of one priority stay in their order.
///
/// `priority_of` is called once for each batch, by the producer, and should be short.
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
pub fn priority_queue(
    capacity: NonZeroUsize,
    priority_of: impl Fn(&PacketBatch) -> Priority + Send + Sync + 'static,
) -> (QueueSender, QueueReceiver) {
    let lanes = Lanes::new(capacity.get(), Box::new(priority_of));
    ends(capacity, Store::Lanes(Box::new(lanes)))
}

fn ends(capacity: NonZeroUsize, store: Store) -> (QueueSender, QueueReceiver) {
    let shared = Arc::new(Shared::new(capacity, store));
    let sender = QueueSender::new(Arc::clone(&shared));
    (sender, QueueReceiver::new(shared))
}

/// All receivers are gone. The batch that was sent is dropped and counted as `closed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueClosed;

impl fmt::Display for QueueClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the queue has no receiver left")
    }
}

impl std::error::Error for QueueClosed {}
