//! Packets.

mod packet;
pub mod pipeline;
pub mod udp;

pub use udp::Datagram;
pub use packet::{
    Packet, PacketBuf, PacketPool, PacketPoolBuilder, PacketPoolError, PacketPoolStats,
};
pub use slab_core::{AllocError, ConfigError, SizeClasses};
