//! [`QueueReceiver`]: the consumers' end of a queue.

use super::super::stats::QueueMonitor;
use super::shared::Shared;
use crate::atomics::{Ordering, fence};
use crate::finish::finish;
use crate::udp::PacketBatch;
use std::sync::Arc;

/// The consumers' end of a [`queue`](super::queue) or [`priority_queue`](super::priority_queue), or of
/// one of several [`flow_queues`](super::super::flow_queues). Clones take from the same queue, and each
/// batch goes to one of them; once the last one is dropped, queued batches are dropped and counted as
/// `closed`.
#[derive(Debug)]
pub struct QueueReceiver {
    shared: Arc<Shared>,
}

impl QueueReceiver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Waits for the next batch and returns it; `None` when all senders are gone and the queue is
    /// empty.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    ///
    /// Where a [`Stream`](futures_core::Stream) is needed, `unfold` makes one, which ends after the last
    /// batch. Drop a stream that is not polled any more, as you would a future of this method: of several
    /// consumers it may be the one that is woken for a batch, and its drop wakes the next.
    ///
    /// ```
    /// use futures_util::{StreamExt, stream};
    /// # use slab_net::PacketPool;
    /// # use slab_net::pipeline::{Overflow, queue};
    /// # use slab_net::udp::PacketBatch;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let batch = PacketBatch::try_copy_from_slice(&pool, b"hello", 0, "192.0.2.1:53".parse()?)?;
    /// let (sender, receiver) = queue(64.try_into()?, Overflow::DropNewest);
    /// sender.send(batch).await?;
    /// drop(sender);
    /// let batches = stream::unfold(receiver, async |receiver| Some((receiver.recv().await?, receiver)));
    /// let payloads: Vec<_> = batches.map(|batch| batch.contents().to_vec()).collect().await;
    /// assert_eq!(payloads, [b"hello"]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn recv(&self) -> Option<PacketBatch> {
        self.recv_with(Shared::pop).await
    }

    /// Waits for a batch, appends up to `limit` batches to `out`, and returns their number; 0 when all
    /// senders are gone and the queue is empty, or if `limit` is 0.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::pipeline::{Overflow, queue};
    /// # use slab_net::udp::PacketBatch;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let batch = || PacketBatch::try_copy_from_slice(&pool, b"x", 0, "192.0.2.1:53".parse().unwrap());
    /// let (sender, receiver) = queue(64.try_into()?, Overflow::DropNewest);
    /// # sender.send_many([batch()?, batch()?, batch()?]).await?;
    /// # drop(sender);
    /// let (mut batches, mut rounds) = (Vec::new(), Vec::new());
    /// while receiver.recv_many(&mut batches, 2).await > 0 {
    ///     // Such as a transaction for all of them. `drain` keeps the list's memory for the next.
    ///     rounds.push(batches.drain(..).map(|batch| batch.datagrams()).sum::<usize>());
    /// }
    /// assert_eq!(rounds, [2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn recv_many(&self, out: &mut Vec<PacketBatch>, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        let look = |shared: &Shared| shared.pop_many(out, limit);
        self.recv_with(look).await.unwrap_or(0)
    }

    /// Waits until `look` finds something, or until all senders are gone and it finds nothing.
    async fn recv_with<T>(&self, mut look: impl FnMut(&Shared) -> Option<T>) -> Option<T> {
        // A consumer that never has to wait must let other tasks run too.
        tokio::task::consume_budget().await;
        let shared = &*self.shared;
        if let Some(found) = look(shared) {
            return Some(found);
        }
        let find_or_end = || {
            // Read before the look: if the last sender is gone, all batches sent are already in the
            // queue.
            let ended = self.is_closed();
            let found = look(shared);
            (ended || found.is_some()).then_some(found)
        };
        shared.items.wait_for(find_or_end).await
    }

    /// Returns the next batch, if there is one now. Whether there can be more later, [`is_closed`](Self::is_closed) says.
    #[must_use]
    pub fn try_recv(&self) -> Option<PacketBatch> {
        self.shared.pop()
    }

    /// Returns `true` if all senders are gone: nothing comes to what is queued now.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::pipeline::{Overflow, queue};
    /// # use slab_net::udp::PacketBatch;
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let batch = PacketBatch::try_copy_from_slice(&pool, b"x", 0, "192.0.2.1:53".parse()?)?;
    /// let (sender, receiver) = queue(64.try_into()?, Overflow::DropNewest);
    /// sender.try_send(batch)?;
    /// drop(sender);
    /// let mut batches = 0;
    /// loop {
    ///     // Asked first, or a batch that comes in between would be missed.
    ///     let is_closed = receiver.is_closed();
    ///     match receiver.try_recv() {
    ///         Some(_) => batches += 1,
    ///         None if is_closed => break,
    ///         None => std::thread::yield_now(), // or something else to do
    ///     }
    /// }
    /// assert_eq!(batches, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Acquire: what the last sender sent is in the queue.
        self.shared.senders.load(Ordering::Acquire) == 0
    }

    /// Returns a handle that reads the queue's counters, even after both ends are gone.
    #[must_use]
    pub fn monitor(&self) -> QueueMonitor {
        QueueMonitor::new(&self.shared)
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
        if self.shared.receivers.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Before the queue is emptied: see `Shared::on_enqueued`.
            fence(Ordering::SeqCst);
            // Each also if a drop or a waker panics in one before it: those who wait find everything counted, and do not
            // wait for ever.
            let steps: [fn(&Shared); 3] = [
                Shared::drop_all_queued,
                |shared| shared.room.notify_all(),
                |shared| {
                    // Release: whoever sees this also sees the counts.
                    shared.is_abandoned.store(true, Ordering::Release);
                    shared.closed.notify_all();
                },
            ];
            let mut steps = steps.iter();
            finish(|| steps.next().map(|step| step(&self.shared)).is_some());
        }
    }
}
