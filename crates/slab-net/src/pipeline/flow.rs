//! [`flow_queues`]: one queue per consumer; each source is always assigned to the same queue.

use super::queue::{Overflow, Producer, QueueReceiver, QueueSender, fifo};
use core::num::NonZeroUsize;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

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
/// As [`queue`](super::queue()).
#[must_use]
pub fn flow_queues(
    consumers: NonZeroUsize,
    capacity: NonZeroUsize,
    overflow: Overflow,
) -> (QueueSender, Vec<QueueReceiver>) {
    let (queues, receivers): (Vec<_>, Vec<_>) = (0..consumers.get())
        .map(|_| fifo(capacity, overflow))
        .unzip();
    let flows = Flows {
        queues,
        keys: RandomState::new(),
    };
    (QueueSender::by_flow(flows), receivers)
}

/// The queues of [`flow_queues`], as their producers see them.
#[derive(Debug)]
pub(super) struct Flows {
    queues: Vec<Producer>,
    keys: RandomState,
}

impl Flows {
    pub(super) fn queues(&self) -> &[Producer] {
        &self.queues
    }

    pub(super) fn queue_of(&self, source: SocketAddr) -> &Producer {
        let hash = self.keys.hash_one(source);
        // The upper half of the product is less than the number of queues, and needs no division.
        let index = (u128::from(hash) * self.queues.len() as u128) >> 64;
        &self.queues[index as usize]
    }
}
