//! The queue: an array of batches, two [gates](super::gate) to wait at, and counters.
//!
//! The end of a side sets its counter to zero and then wakes all who wait at its gate; who comes
//! there later sees the zero.
//!
//! What can be done for many batches at once is: one addition to a counter, one look at who waits.
//! In the steady state nothing here allocates: a place to wait is part of the future that waits.

use super::gate::Gate;
use super::lanes::{Lanes, Priority, Pushed};
use super::rest::Rest;
use super::stats::{QueueCounters, QueueMonitor};
use crate::udp::{Amount, DropEpisode, PacketBatch};
use core::fmt;
use core::future::Future;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicUsize, Ordering};
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

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
        items: Gate::default(),
        room: Gate::default(),
        closed: Gate::default(),
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
    /// Where consumers wait for a batch or for the last sender's end.
    items: Gate,
    /// Where producers under [`Overflow::Wait`] wait for room or for the last receiver's end.
    room: Gate,
    /// Where who has nothing to send waits for the last receiver's end. Not at `room`, where it
    /// would take the places that are made for others.
    closed: Gate,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    counters: Arc<QueueCounters>,
    overflowing: DropEpisode,
}

impl Shared {
    /// Does with a batch what the policy says, and returns how much entered, if it did; gives it
    /// back if there is to be waited for room. What enters is to be [announced](Self::entered).
    #[inline]
    fn offer(&self, batch: PacketBatch) -> Result<Option<Amount>, PacketBatch> {
        let amount = batch.amount();
        match &self.store {
            Store::Fifo(batches, Overflow::Wait) => batches.push(batch)?,
            Store::Fifo(batches, Overflow::DropNewest) => match batches.push(batch) {
                Ok(()) => self.overflowing.all_well(),
                Err(batch) => {
                    self.full(batch);
                    return Ok(None);
                }
            },
            Store::Fifo(batches, Overflow::DropOldest) => match batches.force_push(batch) {
                None => self.overflowing.all_well(),
                Some(oldest) => self.evicted(oldest),
            },
            Store::Lanes(lanes) => match lanes.push(self.priority(lanes, &batch), batch) {
                Pushed::In => self.overflowing.all_well(),
                Pushed::InsteadOf(other) => self.evicted(other),
                Pushed::Refused(batch) => {
                    self.full(batch);
                    return Ok(None);
                }
            },
        }
        Ok(Some(amount))
    }

    /// What the user's function says of a batch; counts it if that panics, and takes it along.
    fn priority(&self, lanes: &Lanes, batch: &PacketBatch) -> Priority {
        struct Lost<'a>(&'a Shared, Amount);

        impl Drop for Lost<'_> {
            fn drop(&mut self) {
                self.0.counters.producers.refused.add(self.1);
            }
        }

        let lost = Lost(self, batch.amount());
        let priority = lanes.priority_of(batch);
        core::mem::forget(lost);
        priority
    }

    /// There was no room for a batch that arrived.
    fn full(&self, batch: PacketBatch) {
        let amount = batch.amount();
        self.counters.producers.full.add(amount);
        self.overflowing.dropped(amount.datagrams);
        // Last, here and elsewhere: it may wake who waits for memory, and a waker may panic.
        drop(batch);
    }

    /// A queued batch made room for another.
    fn evicted(&self, batch: PacketBatch) {
        let amount = batch.amount();
        self.counters.producers.evicted.add(amount);
        self.overflowing.dropped(amount.datagrams);
        drop(batch);
    }

    /// So many batches went in, with so much in them.
    fn entered(&self, batches: usize, amount: Amount) {
        if batches == 0 {
            return;
        }
        self.counters.producers.enqueued.add(amount);
        if self.receivers.load(Ordering::SeqCst) == 0 {
            // The last receiver emptied the queue after it had set the counter to zero. Of its
            // look at the queue and our push one came first: it has dropped our batch, or we see
            // the zero here and do.
            self.abandon();
        }
        self.items.open(batches);
    }

    /// Drops all that is queued: nobody is left to deliver it to.
    fn abandon(&self) {
        struct Queued<'a>(&'a Shared);

        impl Queued<'_> {
            fn drop_all(&self) {
                while let Some(batch) = self.0.take() {
                    self.0.counters.producers.abandoned.add(batch.amount());
                }
            }
        }

        // If one panics, the rest.
        impl Drop for Queued<'_> {
            fn drop(&mut self) {
                self.drop_all();
            }
        }

        Queued(self).drop_all();
    }

    fn take(&self) -> Option<PacketBatch> {
        match &self.store {
            Store::Fifo(batches, _) => batches.pop(),
            Store::Lanes(lanes) => lanes.pop(),
        }
    }

    fn pop(&self) -> Option<PacketBatch> {
        let batch = self.take()?;
        self.left(1, batch.amount());
        Some(batch)
    }

    /// Moves up to `limit` batches to `out`, and returns how many if there are any.
    fn pop_many(&self, out: &mut Vec<PacketBatch>, limit: usize) -> Option<usize> {
        let (mut count, mut amount) = (0, Amount::default());
        while count < limit {
            let Some(batch) = self.take() else {
                break;
            };
            amount += batch.amount();
            // Its turn comes after all the others of this turn.
            batch.prefetch();
            out.push(batch);
            count += 1;
        }
        self.left(count, amount);
        (count > 0).then_some(count)
    }

    /// So many batches are with a consumer now, with so much in them.
    fn left(&self, batches: usize, amount: Amount) {
        if batches == 0 {
            return;
        }
        self.counters.consumers.delivered.add(amount);
        if matches!(self.store, Store::Fifo(_, Overflow::Wait)) {
            self.room.open(batches);
        }
    }

    fn refuse(&self, batch: PacketBatch) -> QueueClosed {
        self.counters.producers.refused.add(batch.amount());
        QueueClosed
    }
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

/// The producers' end of a [`queue`] or [`priority_queue`]. Clones put into the same queue; once the last
/// is dropped, consumers drain the queue and then get `None`.
#[derive(Debug)]
pub struct QueueSender {
    shared: Arc<Shared>,
}

impl QueueSender {
    /// Puts a batch into the queue, or does what the overflow policy says. Waits only under
    /// [`Overflow::Wait`].
    ///
    /// A batch in a future that is dropped before its end, or was never polled, is counted as `closed`.
    ///
    /// # Errors
    /// All receivers are gone.
    // Not an `async fn`, whose arguments would be dropped uncounted if it is never polled.
    pub fn send(&self, batch: PacketBatch) -> impl Future<Output = Result<(), QueueClosed>> {
        let mut sending = Sending::new(&self.shared, batch);
        async move {
            if let Some(done) = sending.attempt() {
                return done;
            }
            let room = &sending.shared.room;
            room.pass(|| sending.attempt()).await
        }
    }

    /// Puts many batches into the queue in their order, as [`send`](Self::send) does each, and wakes
    /// consumers once for all of them.
    ///
    /// Batches in a future that is dropped before its end, or was never polled, are counted as `closed`,
    /// with those that the iterator has not yielded yet.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::pipeline::{Overflow, queue};
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let (sender, receiver) = queue(64.try_into()?, Overflow::DropNewest);
    /// # let hello = Transmit::new(b"hello", socket.local_addr());
    /// # socket.sender().send(&hello).await?;
    /// let mut batches = Vec::new();
    /// socket.recv_batches(&mut batches).await?;
    /// sender.send_many(batches.drain(..)).await?;
    /// assert_eq!(receiver.recv().await.unwrap().contents(), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// All receivers are gone; what was not delivered is counted as `closed`.
    // As `send`.
    pub fn send_many(
        &self,
        batches: impl IntoIterator<Item = PacketBatch>,
    ) -> impl Future<Output = Result<(), QueueClosed>> {
        let rest = Rest::new(batches, |batch| self.give_up(batch));
        self.send_rest(rest)
    }

    async fn send_rest<I: Iterator<Item = PacketBatch>>(
        &self,
        mut rest: Rest<I, impl FnMut(PacketBatch)>,
    ) -> Result<(), QueueClosed> {
        let shared = &*self.shared;
        if shared.receivers.load(Ordering::Relaxed) == 0 {
            return Err(QueueClosed);
        }
        loop {
            let mut entered = Entered {
                shared,
                batches: 0,
                amount: Amount::default(),
            };
            let mut no_room = None;
            while let Some(batch) = rest.next() {
                match shared.offer(batch) {
                    Ok(None) => {}
                    Ok(Some(amount)) => {
                        entered.batches += 1;
                        entered.amount += amount;
                    }
                    Err(batch) => {
                        no_room = Some(batch);
                        break;
                    }
                }
            }
            drop(entered);
            match no_room {
                None => return Ok(()),
                Some(batch) => {
                    let mut sending = Sending::new(shared, batch);
                    shared.room.pass(|| sending.attempt()).await?;
                }
            }
        }
    }

    /// Counts a batch that is not sent after all, because somebody gave up.
    pub(super) fn give_up(&self, batch: PacketBatch) {
        self.shared.refuse(batch);
    }

    /// Are all receivers gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.receivers.load(Ordering::Relaxed) == 0
    }

    /// Completes when all receivers are gone, of which there never will be new ones then.
    ///
    /// Cancel-safe.
    ///
    /// ```
    /// # use slab_net::pipeline::{Overflow, queue};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (sender, receiver) = queue(64.try_into()?, Overflow::DropNewest);
    /// let consumer = tokio::spawn(async move { receiver.recv().await });
    /// consumer.abort();
    /// sender.closed().await;
    /// assert!(sender.is_closed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn closed(&self) {
        let look = || self.is_closed().then_some(());
        if look().is_none() {
            self.shared.closed.pass(look).await;
        }
    }

    /// Reads the queue's counters while it is in use, and after it is gone.
    #[must_use]
    pub fn monitor(&self) -> QueueMonitor {
        QueueMonitor::new(Arc::clone(&self.shared.counters))
    }
}

/// Batches that have entered the queue: counted, and consumers woken, whatever comes after them. Foreign
/// code yields them and says how urgent they are, and may panic.
struct Entered<'a> {
    shared: &'a Shared,
    batches: usize,
    amount: Amount,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.shared.entered(self.batches, self.amount);
    }
}

/// A batch on its way in, which may wait for room; counted if it does not come in.
struct Sending<'a> {
    shared: &'a Shared,
    batch: Option<PacketBatch>,
}

impl<'a> Sending<'a> {
    fn new(shared: &'a Shared, batch: PacketBatch) -> Self {
        Self {
            shared,
            batch: Some(batch),
        }
    }

    /// Ends it, if there is room or nobody to make any.
    fn attempt(&mut self) -> Option<Result<(), QueueClosed>> {
        if self.shared.receivers.load(Ordering::SeqCst) == 0 {
            // The batch is counted when `self` is dropped.
            return Some(Err(QueueClosed));
        }
        match self.shared.offer(self.batch.take()?) {
            Ok(entered) => {
                if let Some(amount) = entered {
                    self.shared.entered(1, amount);
                }
                Some(Ok(()))
            }
            Err(batch) => {
                self.batch = Some(batch);
                None
            }
        }
    }
}

impl Drop for Sending<'_> {
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
            self.shared.items.open_for_all();
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
        self.look(Shared::pop).await
    }

    /// Appends up to `limit` batches to `out`, at least one once there is one, and returns how
    /// many; 0 when all senders are gone and the queue is empty, or if `limit` is 0.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    pub async fn recv_many(&self, out: &mut Vec<PacketBatch>, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        let look = |shared: &Shared| shared.pop_many(out, limit);
        self.look(look).await.unwrap_or(0)
    }

    /// Waits until something is found, or all senders are gone and nothing was.
    async fn look<T>(&self, mut look: impl FnMut(&Shared) -> Option<T>) -> Option<T> {
        // A consumer that never has to wait lets others run nevertheless.
        tokio::task::consume_budget().await;
        let shared = &*self.shared;
        if let Some(found) = look(shared) {
            return Some(found);
        }
        let find_or_end = || {
            // Before the look: batches that came before the last sender's end are there.
            let ended = shared.senders.load(Ordering::Acquire) == 0;
            let found = look(shared);
            (ended || found.is_some()).then_some(found)
        };
        shared.items.pass(find_or_end).await
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
        struct Ended<'a>(&'a Shared);

        // Whoever waits for the end finds all of it counted, and does not wait for ever if a drop panics.
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.room.open_for_all();
                self.0.closed.open_for_all();
            }
        }

        if self.shared.receivers.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ended = Ended(&self.shared);
            self.shared.abandon();
        }
    }
}
