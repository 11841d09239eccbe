//! The serialised form is the same as that of `bytes`.
#![cfg(feature = "serde")]

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};
use slab_net::{Packet, PacketBuf, PacketPool, SizeClasses};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The largest size class in bytes.
const LARGEST: usize = if cfg!(miri) { 1024 } else { 16_384 };

/// A bounded process-wide pool; for one test at a time.
fn pool() -> (MutexGuard<'static, ()>, &'static PacketPool) {
    static ONCE: Once = Once::new();
    static TURN: Mutex<()> = Mutex::new(());
    ONCE.call_once(|| {
        let classes = SizeClasses::explicit(&[64, 512, LARGEST]).unwrap();
        let pool = PacketPool::builder().size_classes(classes);
        let pool = pool.max_memory(4 * 65_536).max_heap_memory(0);
        pool.install_default().unwrap();
    });
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (turn, PacketPool::default_pool())
}

#[test]
fn packets_go_through_serde_as_byte_arrays() {
    let _pool = pool();
    let packet = Packet::from_static(b"\0\x01\xff");
    assert_eq!(serde_json::to_string(&packet).unwrap(), "[0,1,255]");
    let buf: PacketBuf = serde_json::from_str("[0,1,255]").unwrap();
    assert_eq!(buf, packet);
    let packet: Packet = serde_json::from_str("\"text\"").unwrap();
    assert_eq!(packet, "text");
    // A format whose text is not bytes.
    let text: StrDeserializer<'_, Error> = "text".into_deserializer();
    assert_eq!(Packet::deserialize(text).unwrap(), "text");
    assert_eq!(serde_json::to_string(&buf).unwrap(), "[0,1,255]");
    for refused in ["[256]", "[-1]", "{}", "1", "[\"a\"]"] {
        assert!(
            serde_json::from_str::<Packet>(refused).is_err(),
            "{refused}"
        );
    }
    let refused = serde_json::from_str::<Packet>("{}").unwrap_err();
    assert!(refused.to_string().contains("expected byte array"));
    let long = vec![7u8; LARGEST - 100];
    let text = serde_json::to_string(&long).unwrap();
    assert_eq!(serde_json::from_str::<Packet>(&text).unwrap(), long);
}

/// A format may tell a length that the input only claims.
#[test]
#[cfg(not(miri))] // Its largest chunk is smaller than the most that a claim gets.
fn a_claimed_length_gets_little_memory() {
    use serde::de::value::SeqDeserializer;

    struct Claims(usize);

    impl Iterator for Claims {
        type Item = u8;
        fn next(&mut self) -> Option<u8> {
            self.0 = self.0.checked_sub(1)?;
            Some(7)
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            (2 * LARGEST, Some(2 * LARGEST))
        }
    }

    let _pool = pool();
    let buf = PacketBuf::deserialize(SeqDeserializer::<_, Error>::new(Claims(3))).unwrap();
    // The chunk for 4096 bytes; the pool has none for the whole claim.
    assert_eq!((&buf[..], buf.capacity()), (&[7; 3][..], LARGEST));
}

#[test]
fn deserializing_beyond_the_pool_limits_is_an_error() {
    let (_turn, pool) = pool();
    let read = |text: &str| {
        let packet = serde_json::from_str::<Packet>(text);
        packet.map_err(|error| error.to_string())
    };
    let array = |len| serde_json::to_string(&vec![7u8; len]).unwrap();
    let text = |len| serde_json::to_string(&"x".repeat(len)).unwrap();
    assert_eq!(read(&array(LARGEST)).unwrap().len(), LARGEST);
    assert_eq!(read(&text(LARGEST)).unwrap().len(), LARGEST);
    for too_long in [array(LARGEST + 1), text(LARGEST + 1)] {
        // There is memory in the pool, but in no class that large.
        let refused = read(&too_long).unwrap_err();
        assert!(
            refused.contains("heap limit") && !refused.contains("cap"),
            "{refused}"
        );
    }

    let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(LARGEST).ok()).collect();
    for short in ["[1]", "[1,2]", "\"x\""] {
        assert!(read(short).unwrap_err().contains("heap limit"), "{short}");
    }
    for nothing in ["[]", "\"\""] {
        assert!(read(nothing).unwrap().is_empty());
    }
    drop(all);
    assert_eq!(read("[1]").unwrap(), [1][..]);
    assert_eq!(pool.slab().stats().in_use(), 0);
    assert_eq!(pool.packet_stats().heap_fallbacks, 0);
}
