//! Packets.

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
