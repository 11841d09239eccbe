//! `Serialize` and `Deserialize` as byte arrays; what is read goes into the process-wide pool.

use super::buf::PacketBuf;
use super::frozen::Packet;
use ::serde::de::{Error, SeqAccess, Visitor};
use ::serde::{Deserialize, Deserializer, Serialize, Serializer};
use bytes::BufMut;
use core::fmt;

/// How much a sequence may make us reserve by its own account of its length, in bytes.
const MAX_HINT: usize = 4096;

struct BufVisitor;

impl<'de> Visitor<'de> for BufVisitor {
    type Value = PacketBuf;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("byte array")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<PacketBuf, E> {
        Ok(PacketBuf::from(bytes))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PacketBuf, E> {
        Ok(PacketBuf::from(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PacketBuf, A::Error> {
        let mut buf = PacketBuf::with_capacity(seq.size_hint().unwrap_or(0).min(MAX_HINT));
        while let Some(byte) = seq.next_element()? {
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
