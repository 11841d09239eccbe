//! [`flow_queues`]: one queue per consumer; each source is always assigned to the same queue.

use super::queue::{Overflow, QueueClosed, QueueReceiver, QueueSender, TrySendError, queue};
use super::stats::QueueMonitor;
use super::unsent::UnsentBatches;
use crate::udp::PacketBatch;
use core::future::Future;
use core::num::NonZeroUsize;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Makes one queue of this capacity per consumer. A batch goes to a queue by a hash of its source, so
/// one consumer gets everything that one peer sends, in order.
///
/// The hash is randomly keyed: no peer can know which sources share its queue.
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::pipeline::{Overflow, flow_queues};
/// use slab_net::udp::{Transmit, UdpReceiver, UdpSender};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
/// let (to_consumers, consumers) = flow_queues(4.try_into()?, 64.try_into()?, Overflow::DropNewest);
/// # let client = UdpSender::bind("127.0.0.1:0".parse()?)?;
/// # for n in [b"1", b"2"] {
/// #     client.send(&Transmit::new(n, socket.local_addr())).await?;
/// #     to_consumers.send(socket.recv_batch().await?).await?;
/// # }
/// # drop(to_consumers);
/// let mut tasks = Vec::new();
/// for consumer in consumers {
///     tasks.push(tokio::spawn(async move {
///         let mut payloads = Vec::new();
///         while let Some(batch) = consumer.recv().await {
///             payloads.extend_from_slice(batch.contents());
///         }
///         payloads
///     }));
/// }
/// # let mut all = Vec::new();
/// # for task in tasks { all.push(task.await?); }
/// # assert!(all.contains(&b"12".to_vec()));
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// As [`queue`].
#[must_use]
pub fn flow_queues(
    consumers: NonZeroUsize,
    capacity: NonZeroUsize,
    overflow: Overflow,
) -> (FlowSender, Vec<QueueReceiver>) {
    let (queues, receivers): (Vec<_>, Vec<_>) = (0..consumers.get())
        .map(|_| queue(capacity, overflow))
        .unzip();
    let sender = FlowSender {
        queues: queues.into(),
        keys: RandomState::new(),
    };
    (sender, receivers)
}

/// The producers' end of [`flow_queues`]. Clones send to the same queues; once the last one is dropped,
/// consumers drain their queues and then get `None`.
#[derive(Debug, Clone)]
pub struct FlowSender {
    queues: Arc<[QueueSender]>,
    keys: RandomState,
}

impl FlowSender {
    /// Puts a batch into its source's queue, or applies the overflow policy. Waits for room only under
    /// [`Overflow::Wait`], and then in that queue. Counts against tokio's cooperative budget.
    ///
    /// If the future is dropped before it completes, or never polled, its batch is counted as `closed`.
    ///
    /// # Errors
    /// All receivers of that queue are gone; other queues may still have receivers.
    // Not an `async fn`, as in `QueueSender`.
    pub fn send(&self, batch: PacketBatch) -> impl Future<Output = Result<(), QueueClosed>> {
        self.queue_of(&batch).send(batch)
    }

    /// Puts a batch into its source's queue, or applies the overflow policy, but never waits; as
    /// [`QueueSender::try_send`].
    ///
    /// # Errors
    /// There is no room in that queue, or all of its receivers are gone; the error gives the batch back.
    #[expect(clippy::result_large_err, reason = "the batch, as in `QueueSender`")]
    pub fn try_send(&self, batch: PacketBatch) -> Result<(), TrySendError> {
        self.queue_of(&batch).try_send(batch)
    }

    /// Puts many batches into their sources' queues, each as [`send`](Self::send) does. Batches that
    /// have a consumer are delivered even if others have none. They count as one against tokio's cooperative budget.
    ///
    /// If the future is dropped before it completes, or never polled, its remaining batches are counted
    /// as `closed`, including those that the iterator has not yielded yet.
    ///
    /// # Errors
    /// All receivers of one of the queues are gone; other queues may still have receivers.
    pub fn send_many(
        &self,
        batches: impl IntoIterator<Item = PacketBatch>,
    ) -> impl Future<Output = Result<(), QueueClosed>> {
        let mut unsent =
            UnsentBatches::new(batches, |batch| self.queue_of(&batch).drop_unsent(batch));
        async move {
            tokio::task::consume_budget().await;
            let mut result = Ok(());
            while let Some(batch) = unsent.next() {
                let queue = self.queue_of(&batch);
                result = queue.send_one_of_many(batch).await.and(result);
            }
            result
        }
    }

    /// Half of a queue's places, but at least one.
    pub(super) fn half(&self) -> usize {
        // They are all alike.
        self.queues[0].half()
    }

    /// Returns `true` if at least one queue is half full.
    pub(super) fn is_half_full(&self) -> bool {
        self.queues.iter().any(QueueSender::is_half_full)
    }

    /// Returns `true` if the receivers of all queues are gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queues.iter().all(QueueSender::is_closed)
    }

    /// Completes when the receivers of all queues are gone, and the batches that they left are dropped
    /// and counted. Cancel-safe.
    pub async fn closed(&self) {
        // In any order: a closed queue stays closed.
        for queue in &*self.queues {
            queue.closed().await;
        }
    }

    /// Returns handles that read the queues' counters, in the order of their receivers.
    #[must_use]
    pub fn monitors(&self) -> Vec<QueueMonitor> {
        self.queues.iter().map(QueueSender::monitor).collect()
    }

    fn queue_of(&self, batch: &PacketBatch) -> &QueueSender {
        let hash = self.keys.hash_one(batch.source());
        // The upper half of the product is less than the number of queues, and needs no division.
        let index = (u128::from(hash) * self.queues.len() as u128) >> 64;
        &self.queues[index as usize]
    }
}
