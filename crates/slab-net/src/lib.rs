//! Packet memory from one bounded pool, and the means to receive it, hand it between tasks and send it.
//!
//! | where | what |
//! |---|---|
//! | here | [`PacketPool`], [`PacketBuf`] and [`Packet`]: `BytesMut` and `Bytes` over pooled slabs |
//! | [`udp`] | batched receiving and sending between sockets and pool memory |
//! | [`pipeline`] | bounded queues between tasks |
//! | [`rudp`] | reliable sessions over datagrams |
//!
//! A server that sends every datagram back, a batch at a time:
//!
//! ```
//! use slab_net::PacketPool;
//! use slab_net::udp::UdpReceiver;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = PacketPool::builder().name("rx").max_memory(32 << 20).build()?;
//! let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
//! let replies = socket.sender();
//! # let hello = slab_net::udp::Transmit::new(b"hello", socket.local_addr());
//! # slab_net::udp::UdpSender::bind("127.0.0.1:0".parse()?)?.send(&hello).await?;
//! loop {
//!     let batch = socket.recv_batch().await?;
//!     // What cannot be sent is lost, as UDP loses it, and no reason to end.
//!     let _ = replies.send(&batch.reply()).await;
//!     # break;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | for | see |
//! |---|---|
//! | several sockets at one address, each with a thread | [`udp::UdpReceiverBuilder::bind_shards`] |
//! | tasks that consume, and what happens when they are slow | [`pipeline::forward`], [`pipeline::Overflow`] |
//! | messages that arrive, in order | [`rudp::Endpoint`], [`rudp::Connection`] |
//! | all of this in statistics | the crate `slab-metrics` |
//!
//! Events for [`tracing`] come from slow paths alone. Some may come while a session of [`rudp`] that sends or receives is
//! locked, so a subscriber must not use connections of that endpoint.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | what |
//! |---|---|
//! | `aes-gcm` | encryption of RUDP: `rudp::EndpointConfig::aes_gcm`, `rudp::crypto` |
//! | `fec` | error correction of RUDP: `rudp::EndpointConfig::fec`, `rudp::fec` |
//! | `io-uring` | receiving by io_uring: `udp::UdpReceiverBuilder::io_uring` |
//! | `leak-tracking` | where packets were asked for: `SlabPool::live_chunks` of slab-core |
//! | `quinn` | a socket for quinn 0.11: `udp::UdpReceiver::into_quinn` |
//! | `serde` | [`PacketBuf`] and [`Packet`] as bytes |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod atomics;
#[cfg(test)]
mod error_tests;
mod finish;
mod packet;
pub mod pipeline;
pub mod rudp;
pub mod udp;

pub use packet::{
    HeldPacket, Packet, PacketBuf, PacketChain, PacketPool, PacketPoolBuilder, PacketPoolError,
    PacketPoolStats,
};
pub use slab_core;
pub use slab_core::{AllocError, ConfigError, SizeClasses};
pub use udp::Datagram;
