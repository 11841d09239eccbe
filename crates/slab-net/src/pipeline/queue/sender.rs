//! [`QueueSender`]: the producers' end of a queue, or of several.

use super::super::flow::Flows;
use super::super::unsent::UnsentBatches;
use super::producer::Producer;
use super::{QueueClosed, QueueSendError};
use crate::udp::PacketBatch;
use core::future::Future;
use core::slice;
use std::sync::Arc;

/// The producers' end of a [`queue`](super::queue) or [`priority_queue`](super::priority_queue), or of all
/// [`flow_queues`](super::super::flow_queues), each batch to that of its source. Clones send to the same queues;
/// once the last one is dropped, consumers drain their queue and then get `None`.
#[derive(Debug, Clone)]
pub struct QueueSender {
    to: Destination,
}

#[derive(Debug, Clone)]
enum Destination {
    One(Producer),
    ByFlow(Arc<Flows>),
}

impl QueueSender {
    pub(super) fn to_one(queue: Producer) -> Self {
        Self {
            to: Destination::One(queue),
        }
    }

    pub(in super::super) fn by_flow(flows: Flows) -> Self {
        Self {
            to: Destination::ByFlow(Arc::new(flows)),
        }
    }

    /// Puts a batch into its queue, or applies the overflow policy. Waits for room only under
    /// [`Overflow::Wait`](super::Overflow::Wait), and then in that queue. Counts against tokio's cooperative budget.
    ///
    /// If the future is dropped before it completes, or never polled, its batch is counted as `closed`.
    ///
    /// # Errors
    /// All receivers of that queue are gone; other queues may still have receivers. The error gives the batch back.
    // Not an `async fn`: if that were never polled, its arguments would be dropped uncounted.
    pub fn send(&self, batch: PacketBatch) -> impl Future<Output = Result<(), QueueSendError>> {
        let sending = self.queue_of(&batch).send(batch);
        async {
            // A producer that never has to wait must let consumers run too.
            tokio::task::consume_budget().await;
            sending.await
        }
    }

    /// Puts a batch into its queue, or applies the overflow policy, as [`send`](Self::send) does, but
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
    /// There is no room in that queue, or all of its receivers are gone; the error gives the batch back.
    #[expect(
        clippy::result_large_err,
        reason = "the batch, which must not cost an allocation where there is no room for it"
    )]
    pub fn try_send(&self, batch: PacketBatch) -> Result<(), QueueSendError> {
        self.queue_of(&batch).try_send(batch)
    }

    /// Puts many batches into their queues in order, each as [`send`](Self::send) does, and if there is one queue wakes
    /// its consumers once for all of them. Batches that have a consumer are delivered even if others have none. They
    /// count as one against tokio's cooperative budget.
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
    /// All receivers of one of the queues are gone; other queues may still have receivers. Batches that were not
    /// delivered are counted as `closed`.
    // Not an `async fn`, as `send`.
    pub fn send_many(
        &self,
        batches: impl IntoIterator<Item = PacketBatch>,
    ) -> impl Future<Output = Result<(), QueueClosed>> {
        let drop_unsent = |batch: PacketBatch| self.queue_of(&batch).shared.drop_unsent(batch);
        let mut unsent = UnsentBatches::new(batches, drop_unsent);
        async move {
            tokio::task::consume_budget().await;
            if let Destination::One(queue) = &self.to {
                return queue.send_all(&mut unsent).await;
            }
            let mut result = Ok(());
            while let Some(batch) = unsent.next() {
                let sent = self.queue_of(&batch).send(batch).await;
                result = sent.map_err(|_| QueueClosed).and(result);
            }
            result
        }
    }

    fn queue_of(&self, batch: &PacketBatch) -> &Producer {
        match &self.to {
            Destination::One(queue) => queue,
            Destination::ByFlow(flows) => flows.queue_of(batch.source()),
        }
    }

    fn queues(&self) -> &[Producer] {
        match &self.to {
            Destination::One(queue) => slice::from_ref(queue),
            Destination::ByFlow(flows) => flows.queues(),
        }
    }

    /// Half of a queue's places, but at least one.
    pub(in super::super) fn half(&self) -> usize {
        // They are all alike.
        self.queues()[0].shared.half()
    }

    /// Returns `true` if at least one queue is half full.
    pub(in super::super) fn is_half_full(&self) -> bool {
        self.queues()
            .iter()
            .any(|queue| queue.shared.is_half_full())
    }

    /// Returns `true` if the receivers of all queues are gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queues().iter().all(Producer::is_closed)
    }

    /// Completes when the receivers of all queues are gone, and the batches that they left are dropped and counted.
    /// There can be no new receivers then.
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
        // In any order: a closed queue stays closed.
        for queue in self.queues() {
            queue.closed().await;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::super::flow::flow_queues;
    use super::super::super::priority_lanes::Priority;
    use super::super::{Overflow, QueueReceiver, priority_queue, queue};
    use super::*;
    use crate::packet::PacketPool;
    use std::net::SocketAddr;

    fn batch(pool: &PacketPool, source: SocketAddr) -> PacketBatch {
        PacketBatch::try_copy_from_slice(pool, b"x", 0, source).unwrap()
    }

    #[test]
    fn a_queue_is_half_full_once_half_of_its_places_are_taken() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let source = "192.0.2.1:9".parse().unwrap();
        for (places, half, is_half_full) in [
            (1, 1, &[false, true][..]),
            (2, 1, &[false, true, true]),
            (3, 1, &[false, false, true, true]),
            (4, 2, &[false, false, true, true, true]),
            (5, 2, &[false, false, false, true, true, true]),
        ] {
            let places = places.try_into().unwrap();
            for (sender, _receiver) in [
                queue(places, Overflow::Wait),
                priority_queue(places, |_| Priority::Normal),
            ] {
                assert_eq!(sender.half(), half);
                let mut found = vec![sender.is_half_full()];
                for _ in 0..places.get() {
                    sender.try_send(batch(&pool, source)).unwrap();
                    found.push(sender.is_half_full());
                }
                assert_eq!(found, is_half_full);
            }
        }
    }

    /// Its consumer needs the thread, however little there is for the others.
    #[test]
    fn of_several_queues_one_that_is_half_full_is_enough() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let four = 4.try_into().unwrap();
        let (sender, receivers) = flow_queues(four, four, Overflow::Wait);
        assert_eq!(sender.half(), 2);
        // One source has one queue.
        let source = "192.0.2.1:9".parse().unwrap();
        for is_half_full in [false, true, true, true] {
            sender.try_send(batch(&pool, source)).unwrap();
            assert_eq!(sender.is_half_full(), is_half_full);
        }
        let taken = receivers.iter().filter_map(QueueReceiver::try_recv).count();
        assert_eq!(taken, 1);
    }
}
