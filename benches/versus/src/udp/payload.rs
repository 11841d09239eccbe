//! What travels from a receiver to its consumer.

use bytes::Bytes;
use slab_core::Chunk;
use slab_net::Packet;
use slab_net::udp::PacketBatch;

/// An item that travels through a channel.
pub(super) trait Payload: Send + 'static {
    /// Reads a byte of each datagram, drops them, and returns how many there were.
    fn consume(self) -> usize;
}

impl Payload for Bytes {
    fn consume(self) -> usize {
        check(&self);
        1
    }
}

impl Payload for Packet {
    fn consume(self) -> usize {
        check(&self);
        1
    }
}

impl Payload for PacketBatch {
    fn consume(self) -> usize {
        self.iter().map(|datagram| check(datagram.packet)).count()
    }
}

/// A whole chunk behind one datagram.
pub(super) struct KeptChunk(pub(super) Chunk);

impl Payload for KeptChunk {
    fn consume(self) -> usize {
        std::hint::black_box(self.0.as_ptr());
        1
    }
}

pub(super) fn check(payload: &[u8]) {
    assert_eq!(payload[0], 7);
}
