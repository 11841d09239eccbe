//! Packet memory from one bounded pool, and the means to receive it, hand it between tasks and send it.
//!
//! | where | what |
//! |---|---|
//! | here | [`PacketPool`], [`PacketBuf`] and [`Packet`]: `BytesMut` and `Bytes` over pooled slabs |
//! | [`udp`] | batched receiving and sending between sockets and pool memory |
//! | [`pipeline`] | bounded queues between tasks |
//! | [`rudp`] | reliable sessions over datagrams |

mod packet;
pub mod pipeline;
pub mod rudp;
pub mod udp;

pub use packet::{
    HeldPacket, Packet, PacketBuf, PacketChain, PacketPool, PacketPoolBuilder, PacketPoolError,
    PacketPoolStats,
};
pub use slab_core::{AllocError, ConfigError, SizeClasses};
pub use udp::Datagram;
