//! Conversions between the two packet types, and from and to `bytes`, vectors and strings.

use super::buf::PacketBuf;
use super::frozen::Packet;
use super::owner::{HeapBlock, Owner};
use super::pool::PacketPool;
use bytes::{Bytes, BytesMut};

impl From<&[u8]> for PacketBuf {
    /// Copies, into the [process-wide pool](PacketPool::default_pool), or else to the heap.
    ///
    /// # Panics
    /// The same as [`PacketBuf::with_capacity`].
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn from(src: &[u8]) -> Self {
        let mut buf = Self::with_capacity(src.len());
        buf.extend_from_slice(src);
        buf
    }
}

impl From<&str> for PacketBuf {
    /// Copies, into the [process-wide pool](PacketPool::default_pool), or else to the heap.
    ///
    /// # Panics
    /// The same as [`PacketBuf::with_capacity`].
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn from(src: &str) -> Self {
        Self::from(src.as_bytes())
    }
}

impl Clone for PacketBuf {
    /// Copies the contents, into the same pool, or else to the heap. The copy of an empty buffer takes a chunk
    /// too, because a buffer finds the pool to grow into through its memory.
    ///
    /// # Panics
    /// The same as [`PacketPool::with_capacity`].
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn clone(&self) -> Self {
        copy(self, self.pool())
    }
}

/// Copies `src` into `pool`, or into the process-wide pool if that is `None`.
#[cfg_attr(feature = "leak-tracking", track_caller)]
fn copy(src: &[u8], pool: Option<PacketPool>) -> PacketBuf {
    let Some(pool) = pool else {
        return PacketBuf::from(src);
    };
    let mut buf = pool.with_capacity(src.len());
    buf.extend_from_slice(src);
    buf
}

impl From<PacketBuf> for Packet {
    /// The same as [`PacketBuf::freeze`].
    fn from(buf: PacketBuf) -> Self {
        buf.freeze()
    }
}

impl From<Packet> for PacketBuf {
    /// [`Packet::try_into_mut`], or else a copy into the packet's pool (the [process-wide
    /// one](PacketPool::default_pool) if it has none), or else to the heap.
    ///
    /// # Panics
    /// The same as [`PacketPool::with_capacity`].
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn from(packet: Packet) -> Self {
        match packet.try_into_mut() {
            Ok(buf) => buf,
            Err(packet) => copy(&packet, packet.pool()),
        }
    }
}

impl From<&'static [u8]> for Packet {
    /// The same as [`Packet::from_static`].
    fn from(bytes: &'static [u8]) -> Self {
        Self::from_static(bytes)
    }
}

impl From<&'static str> for Packet {
    /// The same as [`Packet::from_static`].
    fn from(text: &'static str) -> Self {
        Self::from_static(text.as_bytes())
    }
}

impl From<Vec<u8>> for Packet {
    /// Takes over the vector. Copies nothing; makes one small heap allocation.
    fn from(vec: Vec<u8>) -> Self {
        if vec.is_empty() {
            return Self::new();
        }
        let len = vec.len();
        let block = HeapBlock::from_vec(vec);
        let start = block.start();
        // SAFETY: the block keeps its address when it moves into the `Arc`, and the vector's
        // contents have been written.
        unsafe { Self::from_parts(Owner::heap(block), start, len) }
    }
}

impl From<Box<[u8]>> for Packet {
    /// The same as from a vector.
    fn from(bytes: Box<[u8]>) -> Self {
        Self::from(bytes.into_vec())
    }
}

impl From<String> for Packet {
    /// The same as from a vector.
    fn from(text: String) -> Self {
        Self::from(text.into_bytes())
    }
}

impl From<Bytes> for Packet {
    /// Wraps the bytes. Copies nothing; makes one small heap allocation.
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            return Self::new();
        }
        Self::from_foreign(bytes)
    }
}

impl From<BytesMut> for Packet {
    /// Freezes and wraps the bytes; copies nothing.
    fn from(bytes: BytesMut) -> Self {
        Self::from(bytes.freeze())
    }
}

impl From<Packet> for Bytes {
    /// Copies nothing. Makes one small heap allocation, required by [`Bytes::from_owner`]; none if the
    /// packet was made from `Bytes`. The memory is freed with the last `Bytes` that shares it.
    ///
    /// `bytes` 1.12 has no public way to avoid the allocation, since its vtables are private. Parts of
    /// one packet can share it: convert the whole packet to `Bytes`, and slice that.
    ///
    /// ```
    /// # use bytes::Bytes;
    /// # use slab_net::Packet;
    /// let bytes = Bytes::from(Packet::copy_from_slice(b"hello"));
    /// assert_eq!(bytes, "hello");
    /// ```
    fn from(packet: Packet) -> Self {
        match packet.owner().as_foreign() {
            _ if packet.is_empty() => Self::new(),
            Some(bytes) => bytes.slice_ref(&packet),
            None => Self::from_owner(packet),
        }
    }
}

impl From<PacketBuf> for Bytes {
    /// The same as from the [frozen](PacketBuf::freeze) packet.
    fn from(buf: PacketBuf) -> Self {
        buf.freeze().into()
    }
}

impl From<PacketBuf> for Vec<u8> {
    /// Copies the contents.
    fn from(buf: PacketBuf) -> Self {
        buf.to_vec()
    }
}

impl From<Packet> for Vec<u8> {
    /// Copies the contents.
    fn from(packet: Packet) -> Self {
        packet.to_vec()
    }
}
