//! Packet memory from one bounded pool, and what receives, hands on and sends it.
//!
//! | where | what |
//! |---|---|
//! | here | [`PacketPool`], [`PacketBuf`] and [`Packet`]: `BytesMut` and `Bytes` over pooled slabs |
//! | [`udp`] | from a socket into pool memory, and back |
//! | [`pipeline`] | bounded hand-over between tasks |
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
