//! Bounded queues of batches between the tasks that receive and the tasks that consume.
//!
//! [`queue()`] makes the two ends, both of which can be cloned. An [`Overflow`] policy decides what a
//! full queue does, and every datagram that does not arrive is counted by reason. [`priority_queue`]
//! drops batches of the lowest priority first; [`flow_queues`] gives each consumer a queue of its own
//! and keeps each peer's packets in order. [`forward()`] is the task that fills a queue from a socket,
//! and leaves no datagram uncounted when it ends.
//!
//! ```
//! use slab_net::PacketPool;
//! use slab_net::pipeline::{Overflow, queue};
//! use slab_net::udp::{Transmit, UdpReceiver};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = PacketPool::builder().max_memory(8 << 20).build()?;
//! let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
//! let (to_consumers, batches) = queue(64.try_into()?, Overflow::DropNewest);
//!
//! let hello = Transmit::new(b"hello", socket.local_addr());
//! socket.sender().send(&hello).await?;
//! to_consumers.send(socket.recv_batch().await?).await?;
//! drop(to_consumers); // no more to come: consumers drain the queue, then get `None`
//!
//! while let Some(batch) = batches.recv().await {
//!     for packet in batch.into_packets() {
//!         assert_eq!(&packet[..], b"hello");
//!     }
//! }
//! assert_eq!(batches.monitor().stats().delivered, 1);
//! # Ok(())
//! # }
//! ```

mod event_count;
mod flow;
mod forward;
mod priority_lanes;
mod queue;
mod stats;
mod unsent;

pub use flow::flow_queues;
pub use forward::{Ended, Forwarded, forward};
pub use priority_lanes::Priority;
pub use queue::{
    Overflow, QueueClosed, QueueReceiver, QueueSendError, QueueSender, priority_queue, queue,
};
pub use stats::{QueueMonitor, QueueStats};
