//! The queue: an array of batches, two places to wait at, and counters.
//!
//! # Why no wake-up is lost
//!
//! Each side that finds nothing to do *registers* with a [`Notify`] first, and then looks *again*
//! before it waits. The other side changes the queue first and then notifies. Registering and
//! notifying are read-modify-writes of one word inside of the `Notify`, so one of them comes first:
//!
//! * the notification came first: it is stored, the registration takes it and does not wait; or
//!   somebody else has taken it, and then the second look happens after the change;
//! * the registration came first: the notification wakes a registered waiter.
//!
//! Every batch that enters notifies once, so that no fewer consumers are woken than there are
//! batches, up to the number that wait. A consumer that is notified and then leaves with a batch it
//! saw by its second look, or whose future is dropped, hands its notification on: that is what
//! dropping a `Notified` does. Batches that entered when nobody was registered are stored as one
//! notification only, which is enough, since each consumer looks before it waits.
//!
//! The end of a side sets its counter to zero and then wakes all who are registered; who registers
//! later sees the zero. The same holds for producers that wait for room.
//!
//! In the steady state nothing here allocates: a `Notified` is part of the future that waits.

use super::lanes::{Lanes, Priority, Pushed};
use super::stats::{QueueCounters, QueueMonitor};
use crate::udp::{DropEpisode, PacketBatch};
use core::fmt;
use core::num::NonZeroUsize;
use core::pin::pin;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;
use tokio::sync::Notify;

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
    let shared = Arc::new(Shared {
        store,
        items: Notify::new(),
        room: Notify::new(),
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
        counters: Arc::new(QueueCounters {
            capacity_batches: capacity.get() as u64,
            ..QueueCounters::default()
        }),
        overflowing: DropEpisode::new("queue_full"),
    });
    let sender = QueueSender {
        shared: Arc::clone(&shared),
    };
    (sender, QueueReceiver { shared })
}

/// Where the batches lie.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each queue, and the plain queue has no further indirection"
)]
enum Store {
    Fifo(ArrayQueue<PacketBatch>, Overflow),
    Lanes(Box<Lanes>),
}

#[derive(Debug)]
struct Shared {
    store: Store,
    /// Notified once for each batch that enters, and when the last sender goes.
    items: Notify,
    /// Notified once for each batch that leaves, and when the last receiver goes; only producers
    /// under [`Overflow::Wait`] wait here.
    room: Notify,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    counters: Arc<QueueCounters>,
    overflowing: DropEpisode,
}

impl Shared {
    /// Puts a batch in if there is room, and gives it back if not.
    fn try_push(
        &self,
        batches: &ArrayQueue<PacketBatch>,
        batch: PacketBatch,
    ) -> Result<(), PacketBatch> {
        let datagrams = batch.datagrams() as u64;
        batches.push(batch)?;
        self.entered(datagrams);
        Ok(())
    }

    /// There was no room for a batch that arrived.
    fn full(&self, batch: PacketBatch) {
        let datagrams = batch.datagrams() as u64;
        drop(batch);
        add(&self.counters.producers.full, datagrams);
        self.overflowing.dropped(datagrams);
    }

    /// A queued batch made room for another.
    fn evicted(&self, batch: PacketBatch) {
        let datagrams = batch.datagrams() as u64;
        drop(batch);
        add(&self.counters.producers.evicted, datagrams);
        self.overflowing.dropped(datagrams);
    }

    /// A batch went in.
    fn entered(&self, datagrams: u64) {
        add(&self.counters.producers.enqueued, datagrams);
        if self.receivers.load(Ordering::SeqCst) == 0 {
            // The last receiver emptied the queue after it had set the counter to zero. Of its
            // look at the queue and our push one came first: it has dropped our batch, or we see
            // the zero here and do.
            self.abandon();
        }
        self.items.notify_one();
    }

    /// Drops all that is queued: nobody is left to deliver it to.
    fn abandon(&self) {
        while let Some(batch) = self.take() {
            add(&self.counters.producers.abandoned, batch.datagrams() as u64);
        }
    }

    fn take(&self) -> Option<PacketBatch> {
        match &self.store {
            Store::Fifo(batches, _) => batches.pop(),
            Store::Lanes(lanes) => lanes.pop(),
        }
    }

    fn pop(&self) -> Option<PacketBatch> {
        let batch = self.take()?;
        add(&self.counters.consumers.delivered, batch.datagrams() as u64);
        if matches!(self.store, Store::Fifo(_, Overflow::Wait)) {
            self.room.notify_one();
        }
        Some(batch)
    }

    fn refuse(&self, batch: PacketBatch) -> QueueClosed {
        add(&self.counters.producers.refused, batch.datagrams() as u64);
        QueueClosed
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
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

/// The producers' end of a [`queue`] or [`priority_queue`]. Clones put into the same queue; once the last is dropped,
/// consumers drain the queue and then get `None`.
#[derive(Debug)]
pub struct QueueSender {
    shared: Arc<Shared>,
}

impl QueueSender {
    /// Puts a batch into the queue, or does what the overflow policy says. Waits only under
    /// [`Overflow::Wait`].
    ///
    /// A batch in a future that is dropped while it waits is counted as `closed`.
    ///
    /// # Errors
    /// All receivers are gone.
    pub async fn send(&self, batch: PacketBatch) -> Result<(), QueueClosed> {
        let shared = &*self.shared;
        if shared.receivers.load(Ordering::Relaxed) == 0 {
            return Err(shared.refuse(batch));
        }
        match &shared.store {
            Store::Fifo(batches, Overflow::DropNewest) => match shared.try_push(batches, batch) {
                Ok(()) => shared.overflowing.all_well(),
                Err(batch) => shared.full(batch),
            },
            Store::Fifo(batches, Overflow::DropOldest) => {
                let datagrams = batch.datagrams() as u64;
                match batches.force_push(batch) {
                    None => shared.overflowing.all_well(),
                    Some(oldest) => shared.evicted(oldest),
                }
                shared.entered(datagrams);
            }
            Store::Fifo(batches, Overflow::Wait) => {
                return self.send_when_room(batches, batch).await;
            }
            Store::Lanes(lanes) => {
                let datagrams = batch.datagrams() as u64;
                match lanes.push(batch) {
                    Pushed::In => shared.overflowing.all_well(),
                    Pushed::InsteadOf(other) => shared.evicted(other),
                    Pushed::Refused(batch) => {
                        shared.full(batch);
                        return Ok(());
                    }
                }
                shared.entered(datagrams);
            }
        }
        Ok(())
    }

    async fn send_when_room(
        &self,
        batches: &ArrayQueue<PacketBatch>,
        batch: PacketBatch,
    ) -> Result<(), QueueClosed> {
        let mut waiting = Waiting {
            shared: &self.shared,
            batches,
            batch: Some(batch),
        };
        loop {
            if let Some(end) = waiting.attempt() {
                return end;
            }
            let mut room = pin!(self.shared.room.notified());
            room.as_mut().enable();
            if let Some(end) = waiting.attempt() {
                return end;
            }
            room.await;
        }
    }

    /// Are all receivers gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.receivers.load(Ordering::Relaxed) == 0
    }

    /// Reads the queue's counters while it is in use, and after it is gone.
    #[must_use]
    pub fn monitor(&self) -> QueueMonitor {
        QueueMonitor::new(Arc::clone(&self.shared.counters))
    }
}

/// A batch that waits for room; counted if the waiting ends otherwise.
struct Waiting<'a> {
    shared: &'a Shared,
    batches: &'a ArrayQueue<PacketBatch>,
    batch: Option<PacketBatch>,
}

impl Waiting<'_> {
    /// Ends the waiting, if there is room or nobody to make any.
    fn attempt(&mut self) -> Option<Result<(), QueueClosed>> {
        if self.shared.receivers.load(Ordering::SeqCst) == 0 {
            // The batch is counted when `self` is dropped.
            return Some(Err(QueueClosed));
        }
        let batch = self.batch.take()?;
        self.batch = self.shared.try_push(self.batches, batch).err();
        self.batch.is_none().then_some(Ok(()))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.shared.refuse(batch);
        }
    }
}

impl Clone for QueueSender {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for QueueSender {
    fn drop(&mut self) {
        // Release: whoever sees the zero sees what was pushed before.
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.items.notify_waiters();
        }
    }
}

/// The consumers' end of a [`queue`] or [`priority_queue`], or of one of several
/// [`flow_queues`](super::flow_queues). Clones take from the same queue, each batch goes to one of
/// them; once the last is dropped, what is queued is dropped and counted as `closed`.
#[derive(Debug)]
pub struct QueueReceiver {
    shared: Arc<Shared>,
}

impl QueueReceiver {
    /// The next batch, once there is one; `None` when all senders are gone and the queue is empty.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    pub async fn recv(&self) -> Option<PacketBatch> {
        // A consumer that never has to wait lets others run nevertheless.
        tokio::task::consume_budget().await;
        let shared = &*self.shared;
        loop {
            if let Some(batch) = shared.pop() {
                return Some(batch);
            }
            let mut item = pin!(shared.items.notified());
            item.as_mut().enable();
            // Before the second look: batches that came before the last sender's end are there.
            let ended = shared.senders.load(Ordering::Acquire) == 0;
            if let Some(batch) = shared.pop() {
                return Some(batch);
            }
            if ended {
                return None;
            }
            item.await;
        }
    }

    /// Appends up to `limit` batches to `out`, at least one once there is one, and returns how
    /// many; 0 when all senders are gone and the queue is empty, or if `limit` is 0.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    pub async fn recv_many(&self, out: &mut Vec<PacketBatch>, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        let Some(first) = self.recv().await else {
            return 0;
        };
        out.push(first);
        let mut count = 1;
        while count < limit {
            let Some(batch) = self.shared.pop() else {
                break;
            };
            out.push(batch);
            count += 1;
        }
        count
    }

    /// The next batch if there is one right now.
    #[must_use]
    pub fn try_recv(&self) -> Option<PacketBatch> {
        self.shared.pop()
    }

    /// Reads the queue's counters while it is in use, and after it is gone.
    #[must_use]
    pub fn monitor(&self) -> QueueMonitor {
        QueueMonitor::new(Arc::clone(&self.shared.counters))
    }
}

impl Clone for QueueReceiver {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for QueueReceiver {
    fn drop(&mut self) {
        if self.shared.receivers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.shared.abandon();
            self.shared.room.notify_waiters();
        }
    }
}
