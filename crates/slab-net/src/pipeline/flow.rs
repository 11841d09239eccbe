//! [`flow_queues`]: a queue for each consumer, each source always to the same one.

use super::queue::{Overflow, QueueClosed, QueueReceiver, QueueSender, queue};
use super::rest::Rest;
use super::stats::QueueMonitor;
use crate::udp::PacketBatch;
use core::future::Future;
use core::num::NonZeroUsize;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// As many queues as there are to be consumers, each of this capacity. A batch goes to a queue by
/// a hash of its source, so that one consumer gets all that one peer sends, in its order.
///
/// The hash is keyed at random: no peer can know which sources share its queue.
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

/// The producers' end of [`flow_queues`]. Clones put into the same queues; once the last is
/// dropped, consumers drain theirs and then get `None`.
#[derive(Debug, Clone)]
pub struct FlowSender {
    queues: Arc<[QueueSender]>,
    keys: RandomState,
}

impl FlowSender {
    /// Puts a batch into its source's queue, or does what the overflow policy says. Waits only
    /// under [`Overflow::Wait`], and then for that queue.
    ///
    /// A batch in a future that is dropped before its end, or was never polled, is counted as `closed`.
    ///
    /// # Errors
    /// That queue's receivers are gone; others may not be.
    // Not an `async fn`, as in `QueueSender`.
    pub fn send(&self, batch: PacketBatch) -> impl Future<Output = Result<(), QueueClosed>> {
        self.queue_of(&batch).send(batch)
    }

    /// Puts many batches into their sources' queues, as [`send`](Self::send) does each. Those that
    /// have a consumer are delivered even if others have none.
    ///
    /// Batches in a future that is dropped before its end, or was never polled, are counted as `closed`,
    /// with those that the iterator has not yielded yet.
    ///
    /// # Errors
    /// The receivers of one of the queues are gone; others may not be.
    pub fn send_many(
        &self,
        batches: impl IntoIterator<Item = PacketBatch>,
    ) -> impl Future<Output = Result<(), QueueClosed>> {
        let mut rest = Rest::new(batches, |batch| self.queue_of(&batch).give_up(batch));
        async move {
            let mut result = Ok(());
            while let Some(batch) = rest.next() {
                result = self.queue_of(&batch).send(batch).await.and(result);
            }
            result
        }
    }

    /// Is one of the queues?
    pub(super) fn is_half_full(&self) -> bool {
        self.queues.iter().any(QueueSender::is_half_full)
    }

    /// Are the receivers of all queues gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queues.iter().all(QueueSender::is_closed)
    }

    /// Completes when the receivers of all queues are gone. Cancel-safe.
    pub async fn closed(&self) {
        // In any order: who is gone does not come back.
        for queue in &*self.queues {
            queue.closed().await;
        }
    }

    /// Read the queues' counters, in the order of their receivers.
    #[must_use]
    pub fn monitors(&self) -> Vec<QueueMonitor> {
        self.queues.iter().map(QueueSender::monitor).collect()
    }

    fn queue_of(&self, batch: &PacketBatch) -> &QueueSender {
        let hash = self.keys.hash_one(batch.source());
        // The upper half of a product is below the number of queues, and needs no division.
        let index = (u128::from(hash) * self.queues.len() as u128) >> 64;
        &self.queues[index as usize]
    }
}
