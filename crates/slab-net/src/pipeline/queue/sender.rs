//! [`QueueSender`]: the producers' end of a queue.

use super::super::stats::QueueMonitor;
use super::super::unsent::UnsentBatches;
use super::shared::{EnqueuedBatches, Shared};
use super::{QueueClosed, TrySendError};
use crate::atomics::Ordering;
use crate::udp::PacketBatch;
use core::future::Future;
use std::sync::Arc;

/// The producers' end of a [`queue`](super::queue) or [`priority_queue`](super::priority_queue). Clones
/// send to the same queue; once the last one is dropped, consumers drain the queue and then get `None`.
#[derive(Debug)]
pub struct QueueSender {
    shared: Arc<Shared>,
}

impl QueueSender {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Puts a batch into the queue, or applies the overflow policy. Waits for room only under
    /// [`Overflow::Wait`](super::Overflow::Wait). Counts against tokio's cooperative budget.
    ///
    /// If the future is dropped before it completes, or never polled, its batch is counted as `closed`.
    ///
    /// # Errors
    /// All receivers are gone.
    // Not an `async fn`: if that were never polled, its arguments would be dropped uncounted.
    pub fn send(&self, batch: PacketBatch) -> impl Future<Output = Result<(), QueueClosed>> {
        let sending = self.send_one_of_many(batch);
        async {
            // A producer that never has to wait must let consumers run too.
            tokio::task::consume_budget().await;
            sending.await
        }
    }

    /// As [`send`](Self::send), but not counted against tokio's budget.
    pub(in super::super) fn send_one_of_many(
        &self,
        batch: PacketBatch,
    ) -> impl Future<Output = Result<(), QueueClosed>> {
        let mut sending = Sending::new(&self.shared, batch);
        async move {
            if let Some(done) = sending.attempt() {
                return done;
            }
            let room = &sending.shared.room;
            room.wait_for(|| sending.attempt()).await
        }
    }

    /// Puts a batch into the queue, or applies the overflow policy, as [`send`](Self::send) does, but
    /// never waits. So a batch comes back only if the queue is full under
    /// [`Overflow::Wait`](super::Overflow::Wait), or closed; what another policy drops is counted, and
    /// no error.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::pipeline::{Overflow, queue};
    /// # use slab_net::udp::PacketBatch;
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let batch = || PacketBatch::try_copy_from_slice(&pool, b"x", 0, "192.0.2.1:53".parse().unwrap());
    /// let (sender, receiver) = queue(1.try_into()?, Overflow::Wait);
    /// sender.try_send(batch()?)?;
    /// let full = sender.try_send(batch()?).unwrap_err();
    /// assert!(!full.is_closed());
    /// assert!(receiver.try_recv().is_some());
    /// sender.try_send(full.into_batch())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no room, or all receivers are gone; the error gives the batch back.
    #[expect(
        clippy::result_large_err,
        reason = "the batch, which must not cost an allocation where there is no room for it"
    )]
    pub fn try_send(&self, batch: PacketBatch) -> Result<(), TrySendError> {
        let mut sending = Sending::new(&self.shared, batch);
        let is_closed = sending.attempt().is_some();
        match sending.batch.take() {
            None => Ok(()),
            Some(batch) => Err(TrySendError::new(&self.shared, batch, is_closed)),
        }
    }

    /// Puts many batches into the queue in order, each as [`send`](Self::send) does, and wakes
    /// consumers once for all of them. They count as one against tokio's cooperative budget.
    ///
    /// If the future is dropped before it completes, or never polled, its remaining batches are counted
    /// as `closed`, including those that the iterator has not yielded yet.
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
    /// All receivers are gone; batches that were not delivered are counted as `closed`.
    // Not an `async fn`, as `send`.
    pub fn send_many(
        &self,
        batches: impl IntoIterator<Item = PacketBatch>,
    ) -> impl Future<Output = Result<(), QueueClosed>> {
        let unsent = UnsentBatches::new(batches, |batch| self.drop_unsent(batch));
        self.send_unsent(unsent)
    }

    async fn send_unsent<I: Iterator<Item = PacketBatch>>(
        &self,
        mut unsent: UnsentBatches<I, impl FnMut(PacketBatch)>,
    ) -> Result<(), QueueClosed> {
        tokio::task::consume_budget().await;
        let shared = &*self.shared;
        if shared.receivers.load(Ordering::Relaxed) == 0 {
            return Err(QueueClosed);
        }
        loop {
            let mut enqueued = EnqueuedBatches::none(shared);
            let mut no_room = None;
            while let Some(batch) = unsent.next() {
                // The last one may have gone while the iterator ran.
                if shared.receivers.load(Ordering::Relaxed) == 0 {
                    self.drop_unsent(batch);
                    return Err(QueueClosed);
                }
                if let Err(batch) = shared.offer(batch, &mut enqueued) {
                    no_room = Some(batch);
                    break;
                }
            }
            drop(enqueued);
            match no_room {
                None => return Ok(()),
                Some(batch) => {
                    let mut sending = Sending::new(shared, batch);
                    shared.room.wait_for(|| sending.attempt()).await?;
                }
            }
        }
    }

    /// Counts a batch that will not be sent after all.
    pub(in super::super) fn drop_unsent(&self, batch: PacketBatch) {
        self.shared.drop_unsent(batch);
    }

    pub(in super::super) fn half(&self) -> usize {
        self.shared.half()
    }

    pub(in super::super) fn is_half_full(&self) -> bool {
        self.shared.is_half_full()
    }

    /// Returns `true` if all receivers are gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.receivers.load(Ordering::Relaxed) == 0
    }

    /// Completes when all receivers are gone, and the batches that they left in the queue are dropped
    /// and counted. There can be no new receivers then.
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
        let shared = &*self.shared;
        let look = || shared.is_abandoned.load(Ordering::Acquire).then_some(());
        if look().is_none() {
            shared.closed.wait_for(look).await;
        }
    }

    /// Returns a handle that reads the queue's counters, even after both ends are gone.
    #[must_use]
    pub fn monitor(&self) -> QueueMonitor {
        QueueMonitor::new(Arc::clone(&self.shared.counters))
    }
}

/// A batch being sent, which may wait for room; counted if it does not enter the queue.
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

    /// Completes the send, if there is room or no receiver is left to make any.
    fn attempt(&mut self) -> Option<Result<(), QueueClosed>> {
        if self.shared.receivers.load(Ordering::Relaxed) == 0 {
            // The batch is counted when `self` is dropped.
            return Some(Err(QueueClosed));
        }
        let mut enqueued = EnqueuedBatches::none(self.shared);
        match self.shared.offer(self.batch.take()?, &mut enqueued) {
            Ok(()) => Some(Ok(())),
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
            self.shared.drop_unsent(batch);
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
        // Release: whoever sees the zero also sees everything pushed before.
        if self.shared.senders.fetch_sub(1, Ordering::Release) == 1 {
            self.shared.items.notify_all();
        }
    }
}
