//! Packets.

pub mod pipeline;
pub mod udp;
