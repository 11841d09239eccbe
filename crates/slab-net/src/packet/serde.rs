//! `Serialize` and `Deserialize` as byte arrays. Deserializing allocates from the process-wide pool,
//! and returns an error if that pool and its share of the heap are used up. Panics only if
//! [`PacketPool::default_pool`](super::pool::PacketPool::default_pool) does.

use super::buf::PacketBuf;
use super::frozen::Packet;
use ::serde::de::{Error, SeqAccess, Visitor};
use ::serde::{Deserialize, Deserializer, Serialize, Serializer};
use bytes::BufMut;
use core::fmt;

/// The most bytes that a sequence's own length hint can make us reserve.
const MAX_HINT: usize = 4096;

struct BufVisitor;

impl<'de> Visitor<'de> for BufVisitor {
    type Value = PacketBuf;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("byte array")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<PacketBuf, E> {
        let mut buf = PacketBuf::new();
        buf.reserve_or_refuse(bytes.len()).map_err(E::custom)?;
        buf.extend_from_slice(bytes);
        Ok(buf)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PacketBuf, E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PacketBuf, A::Error> {
        let mut buf = PacketBuf::new();
        // Only a hint: if there is no room for that much, there may be room for what actually follows.
        let _ = buf.try_reserve(seq.size_hint().unwrap_or(0).min(MAX_HINT));
        while let Some(byte) = seq.next_element()? {
            // Byte by byte into the pool, without gathering on the heap first: so the input takes no
            // more memory than allowed, and deserialization stops at the first refusal.
            buf.reserve_or_refuse(1).map_err(Error::custom)?;
            buf.put_u8(byte);
        }
        Ok(buf)
    }
}

impl Serialize for PacketBuf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl Serialize for Packet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for PacketBuf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BufVisitor)
    }
}

impl<'de> Deserialize<'de> for Packet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PacketBuf::deserialize(deserializer).map(PacketBuf::freeze)
    }
}
