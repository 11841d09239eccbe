//! `Packet` beyond what random programs cover: what keeps memory alive, what is copied, threads.

use bytes::{Buf, Bytes};
use slab_net::{Packet, PacketBuf, PacketPool, SizeClasses};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Once, mpsc};

fn pool() -> PacketPool {
    static ONCE: Once = Once::new();
    let small = || PacketPool::builder().max_memory(1 << 20);
    ONCE.call_once(|| drop(small().name("process").install_default().unwrap()));
    small().build().unwrap()
}

fn packet(pool: &PacketPool, data: &[u8]) -> Packet {
    pool.try_copy_from_slice(data).unwrap()
}

fn panics<R>(f: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn a_chunk_is_freed_with_its_last_packet() {
    let pool = pool();
    let mut whole = packet(&pool, b"hello world");
    let clone = whole.clone();
    let slice = whole.slice(2..5);
    let front = whole.split_to(5);
    for packet in [whole, front, clone] {
        drop(packet);
        assert_eq!(pool.slab().stats().in_use(), 1);
    }
    assert_eq!(slice, "llo");
    drop(slice);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[test]
fn an_empty_slice_keeps_nothing_alive() {
    let pool = pool();
    let mut packet = packet(&pool, b"hello");
    let empties = [
        packet.slice(2..2),
        packet.slice_ref(&[]),
        packet.split_to(0),
        packet.split_off(5),
    ];
    assert!(packet.is_unique());
    drop(packet);
    assert_eq!(pool.slab().stats().in_use(), 0);
    assert!(empties.iter().all(Packet::is_empty));
}

/// The same as `Bytes` since 1.12.2.
#[test]
fn clear_and_truncate_to_zero_release_the_memory() {
    let pool = pool();
    for cut in [Packet::clear, |packet: &mut Packet| packet.truncate(0)] {
        let whole = packet(&pool, b"hello");
        let mut part = whole.slice(1..);
        let at = part.as_ptr();
        cut(&mut part);
        assert!(part.is_empty() && part.as_ptr() == at);
        assert!(whole.is_unique() && !part.is_unique());
        drop(whole);
        assert_eq!(pool.slab().stats().in_use(), 0);
        assert!(part.try_into_mut().is_err());
    }
}

#[test]
fn splitting_off_everything_moves_the_reference() {
    let pool = pool();
    let mut packet = packet(&pool, b"hello");
    let at = packet.as_ptr();
    let all = packet.split_off(0);
    assert!(all.is_unique() && packet.is_empty());
    assert_eq!((packet.as_ptr(), all.as_ptr()), (at, at));
    let mut packet = all;
    assert_eq!(packet.split_to(0).as_ptr(), at);
    let all = packet.split_to(5);
    assert!(all.is_unique() && packet.is_empty());
}

#[test]
fn is_unique_counts_handles_to_the_whole_chunk() {
    let pool = pool();
    let mut buf = pool.try_alloc(100).unwrap();
    buf.extend_from_slice(b"hello world");
    let front = buf.split_to(6).freeze();
    assert!(!front.is_unique(), "a buffer shares the chunk");
    let front = front.try_into_mut().unwrap_err();
    drop(buf);
    let at = front.as_ptr();
    let mut front = front.try_into_mut().unwrap();
    assert_eq!((front.as_ptr(), front.capacity()), (at, 128));
    front.extend_from_slice(b"there");
    assert_eq!(front, "hello there");
    // A clone prevents it; without one the buffer comes back with its headroom.
    let mut packet = front.freeze();
    packet.advance(6);
    let clone = packet.clone();
    let packet = packet.try_into_mut().unwrap_err();
    drop(clone);
    let mut buf = packet.try_into_mut().unwrap();
    assert_eq!(buf.headroom(), 6);
    buf.prepend(b"over ");
    assert_eq!(buf, "over there");
}

#[test]
fn static_and_foreign_bytes_are_never_unique() {
    assert!(!Packet::from_static(b"static").is_unique());
    assert!(!Packet::from_owner([1, 2, 3]).is_unique());
    assert!(!Packet::from(Bytes::from(vec![1, 2, 3])).is_unique());
    assert!(!Packet::new().is_unique());
    let (of_vec, pool) = (Packet::from(vec![1, 2, 3]), pool());
    assert!(of_vec.is_unique());
    let at = of_vec.as_ptr();
    let mut buf = of_vec.try_into_mut().unwrap();
    assert_eq!(buf.as_ptr(), at);
    buf.extend_from_slice(&[4; 100]);
    assert_eq!(
        buf.class(),
        Some(1),
        "a vector's buffer grows into the process-wide pool"
    );
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[test]
fn an_owner_is_dropped_once_with_its_last_packet() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Owner(Vec<u8>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            DROPS.fetch_add(1, SeqCst);
        }
    }
    let packet = Packet::from_owner(Owner(b"owned bytes".to_vec()));
    let part = packet.slice(6..);
    let bytes = Bytes::from(packet.clone());
    drop(packet);
    drop(part);
    assert_eq!((DROPS.load(SeqCst), &bytes[..]), (0, &b"owned bytes"[..]));
    drop(bytes);
    assert_eq!(DROPS.load(SeqCst), 1);
    let empty = Packet::from_owner(Owner(Vec::new()));
    assert_eq!(DROPS.load(SeqCst), 1);
    drop(empty);
    assert_eq!(DROPS.load(SeqCst), 2);
}

#[test]
fn bytes_and_packets_convert_without_copying() {
    let pool = pool();
    let packet = packet(&pool, b"hello world");
    let at = packet.as_ptr();
    let bytes = Bytes::from(packet);
    assert_eq!(bytes.as_ptr(), at);
    let part = bytes.slice(6..);
    drop(bytes);
    assert_eq!(pool.slab().stats().in_use(), 1);
    // There and back again: the very same `Bytes`.
    let back = Packet::from(part).slice(1..);
    assert_eq!(
        (back.as_ptr(), &back[..]),
        (at.wrapping_add(7), &b"orld"[..])
    );
    let bytes = Bytes::from(back);
    assert_eq!(
        (bytes.as_ptr(), &bytes[..]),
        (at.wrapping_add(7), &b"orld"[..])
    );
    drop(bytes);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[test]
fn buf_trait_copy_to_bytes_shares_memory() {
    fn generic(mut buf: impl Buf) -> Bytes {
        buf.copy_to_bytes(5)
    }
    let pool = pool();
    let packet = packet(&pool, b"hello world");
    let at = packet.as_ptr();
    assert_eq!(generic(packet).as_ptr(), at);
    let mut buf = pool.try_alloc(11).unwrap();
    buf.extend_from_slice(b"hello world");
    let at = buf.as_ptr();
    assert_eq!(generic(buf).as_ptr(), at);
}

#[test]
fn compact_copies_only_packets_that_pin_too_much() {
    let pool = pool();
    let big = packet(&pool, &[7; 60_000]);
    let small = big.slice(100..1300);
    drop(big);
    assert_eq!(small.pinned_bytes(), 65_536 - 1200);
    let small = pool.compact(small);
    assert_eq!((small.len(), small.pinned_bytes()), (1200, 80));
    assert_eq!(small, vec![7; 1200]);
    let at = small.as_ptr();
    let small = pool.compact(small);
    assert_eq!(small.as_ptr(), at, "1200 of 1280 bytes are well used");
    // Half of a chunk is within the default ratio of 2.
    let half = packet(&pool, &[1; 2048]).slice(..1024);
    let at = half.as_ptr();
    assert_eq!(pool.compact(half).as_ptr(), at);
    let less = packet(&pool, &[1; 2048]).slice(..1023);
    assert_eq!(pool.compact(less).pinned_bytes(), 1);
    // No smaller class, or no known gain.
    let tiny = packet(&pool, b"x");
    assert_eq!(pool.compact(tiny).pinned_bytes(), 63);
    let fixed = Packet::from_static(b"static");
    assert_eq!(pool.compact(fixed).as_ptr(), b"static".as_ptr());
    // Of foreign bytes, those that the owner shows are known, and released.
    let foreign = Packet::from(Bytes::from(vec![3; 5000])).slice(..100);
    assert_eq!(foreign.pinned_bytes(), 4900);
    let foreign = pool.compact(foreign);
    assert_eq!((foreign.class(), foreign.pinned_bytes()), (Some(1), 28));
    let mut none = packet(&pool, b"x");
    none.advance(1);
    assert_eq!(pool.compact(none).pinned_bytes(), 0);
    let stats = pool.packet_stats();
    assert_eq!((stats.compacted, stats.compact_refused), (3, 0));
    let gained = (65_536 - 1280) + (2048 - 1024) + (5000 - 128);
    assert_eq!(stats.compacted_bytes, gained);
    assert_eq!(stats.compact_refused_bytes, 0);
}

/// As a parser returns it that takes any `Buf`, such as that of the crate `rtp`: with its payload as `Bytes`.
#[test]
fn compact_and_hold_know_their_pool_s_memory_behind_bytes() {
    fn parse(mut datagram: impl Buf) -> Bytes {
        datagram.advance(12);
        datagram.copy_to_bytes(1200)
    }
    let pool = pool();
    let payload = || Packet::from(parse(packet(&pool, &[7; 60_000])));
    let held = pool.hold(payload());
    assert_eq!(
        (held.class(), held.len()),
        (pool.slab().class_for(1200), 1200)
    );
    assert_eq!(*held, vec![7; 1200]);
    assert_eq!(pool.slab().stats().in_use_bytes(), 1280);
    assert_eq!(pool.packet_stats().compacted_bytes, 65_536 - 1280);
    // Another pool sees no more than the bytes; and what is not copied is counted all the same.
    let other = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    assert_eq!(other.hold(payload()).class(), None);
    let kept = PacketPool::builder().max_memory(1 << 20).compact_ratio(100);
    let kept = kept.build().unwrap();
    let held = kept.hold(Packet::from(parse(packet(&kept, &[7; 60_000]))));
    assert_eq!(kept.packet_stats().pinned_bytes, 65_536 - 1200);
    drop(held);
    assert_eq!(
        (
            kept.packet_stats().pinned_bytes,
            kept.slab().stats().in_use()
        ),
        (0, 0)
    );
}

#[test]
fn compact_uses_the_configured_ratio() {
    // The copy has no headroom, and so needs no room for it.
    let pool = PacketPool::builder().max_memory(1 << 20).compact_ratio(50);
    let pool = pool.headroom(300).build().unwrap();
    let packet = packet(&pool, &[1; 60_000]).slice(..1400);
    assert_eq!(packet.clone().compact().as_ptr(), packet.as_ptr());
    let packet = packet.slice(..1300);
    let copy = packet.compact();
    assert_eq!(copy.pinned_bytes(), 236);
    assert_eq!(copy.try_into_mut().unwrap().headroom(), 0);
}

#[test]
fn compact_of_an_exhausted_pool_takes_heap_within_its_limit() {
    let builder = || {
        PacketPool::builder()
            .size_classes(SizeClasses::explicit(&[64, 4096]).unwrap())
            .max_memory(65_536)
            .headroom(32)
    };
    let pool = builder().max_heap_memory(64 + 63).build().unwrap();
    let whole = pool.try_alloc(4000).unwrap();
    let [first, second] = [10, 20].map(|len| {
        let mut buf = pool.try_alloc(4000).unwrap();
        buf.resize(4000, len);
        buf.freeze().slice(..usize::from(len))
    });
    let copy = pool.compact(first);
    assert_eq!((&copy[..], copy.pinned_bytes()), (&[10; 10][..], 54));
    assert_eq!(pool.slab().stats().in_use(), 2, "its chunk is free");
    // The copy takes the least that a block counts as, and has no headroom, as one in the pool.
    assert_eq!(pool.packet_stats().heap_bytes, 64);
    let at = second.as_ptr();
    let kept = pool.compact(second);
    assert_eq!(kept.as_ptr(), at);
    let stats = pool.packet_stats();
    assert_eq!((stats.compacted, stats.compact_refused), (1, 1));
    assert_eq!(stats.compacted_bytes, 4096 - 64);
    assert_eq!(stats.compact_refused_bytes, 4096 - 64);
    assert_eq!((stats.heap_fallbacks, stats.heap_refused), (1, 0));
    let copy = copy.try_into_mut().unwrap();
    assert_eq!(copy.headroom(), 0);
    drop(copy);
    assert_eq!(pool.packet_stats().heap_bytes, 0);
    assert_eq!(pool.compact(kept).pinned_bytes(), 44);
    drop(whole);

    let without = builder().max_heap_memory(0).build().unwrap();
    let packet = packet(&without, &[1; 4000]).slice(..10);
    let at = packet.as_ptr();
    assert_eq!(without.hold(packet).as_ptr(), at);
    let stats = without.packet_stats();
    assert_eq!((stats.compacted, stats.compact_refused), (0, 1));
    assert_eq!((stats.heap_fallbacks, stats.heap_refused), (0, 0));
}

/// A chunk would be larger.
#[test]
fn a_copy_on_the_heap_is_counted_as_what_it_is() {
    let classes = SizeClasses::explicit(&[64, 32_768, 65_536]).unwrap();
    let pool = PacketPool::builder().size_classes(classes);
    let pool = pool.max_memory(256 << 10).build().unwrap();
    let all: Vec<_> = std::iter::from_fn(|| pool.try_zeroed(65_536).ok()).collect();
    let copies = all
        .into_iter()
        .map(|buf| pool.compact(buf.freeze().slice(..100)));
    let first = { copies }.next().unwrap();
    assert_eq!(first.pinned_bytes(), 0);
    assert_eq!(pool.packet_stats().compacted_bytes, 65_536 - 100);
}

/// They would fill it for good if what is newer pushes out what is older: nothing newer could be received.
#[test]
fn packets_kept_of_a_burst_leave_the_pool_to_what_comes_next() {
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    let mut burst = Vec::new();
    while let Ok(mut buf) = pool.try_alloc(65_536) {
        buf.resize(65_536, burst.len() as u8);
        burst.push(buf.freeze());
    }
    assert_eq!(burst.len(), 16);
    let kept: Vec<_> = burst
        .drain(..)
        .map(|packet| pool.hold(packet.slice(..1200)))
        .collect();
    for (number, packet) in (0..).zip(&kept) {
        assert_eq!(packet[..], [number; 1200]);
    }
    let stats = pool.packet_stats();
    assert_eq!((stats.held_bytes, stats.compact_refused), (16 * 1200, 0));
    assert!(stats.pinned_bytes <= 16 * 80, "{stats:?}");
    assert!(pool.try_alloc(65_536).is_ok());
    drop(kept);
    assert_eq!(pool.packet_stats().heap_bytes, 0);
}

#[test]
fn held_packets_are_compact_and_counted() {
    let pool = pool();
    let held = |stats: slab_net::PacketPoolStats| {
        (stats.held_packets, stats.held_bytes, stats.pinned_bytes)
    };
    let big = packet(&pool, &[7; 60_000]);
    let first = pool.hold(big.slice(..1200));
    let second = pool.hold(packet(&pool, b"x"));
    let fixed = pool.hold(Packet::from_static(b"static"));
    drop(big);
    assert_eq!(pool.slab().stats().in_use(), 2, "the large chunk is free");
    assert_eq!(held(pool.packet_stats()), (3, 1207, 80 + 63));
    assert_eq!((&first[..3], fixed.as_ref()), (&[7; 3][..], &b"static"[..]));
    // A released packet is no longer counted; those still held are.
    let part = first.slice(5..7);
    let first = first.into_packet();
    assert_eq!(held(pool.packet_stats()), (2, 7, 63));
    assert_eq!((first.len(), part), (1200, Packet::from_static(&[7; 2])));
    assert_eq!(format!("{second:?}"), "b\"x\"");
    drop((second, fixed));
    assert_eq!(held(pool.packet_stats()), (0, 0, 0));
    drop(first);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[test]
fn documented_panics() {
    let packet = || Packet::from_static(b"hello");
    assert!(panics(|| packet().split_to(6)));
    assert!(panics(|| packet().split_off(6)));
    assert!(panics(|| packet().copy_to_bytes(6)));
    assert!(panics(|| packet().advance(6)));
    assert!(panics(|| packet().slice(2..7)));
    assert!(panics(|| packet().slice(..=usize::MAX)));
    #[expect(clippy::reversed_empty_ranges)]
    let backwards = 3..2;
    assert!(panics(|| packet().slice(backwards)));
    let text = b"hello there";
    let front = Packet::from_static(&text[..5]);
    assert!(panics(|| front.slice_ref(&text[3..7])));
    let back = Packet::from_static(&text[6..]);
    assert!(panics(|| back.slice_ref(&text[3..7])));
}

#[test]
fn hash_maps_find_packets_by_slice() {
    let pool = pool();
    let map: HashMap<Packet, u32> = [(packet(&pool, b"one"), 1), (packet(&pool, b"two"), 2)].into();
    assert_eq!(
        (map.get(&b"one"[..]), map.get(&b"six"[..])),
        (Some(&1), None)
    );
    let hash = |value: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        value(&mut hasher);
        hasher.finish()
    };
    let buf = PacketBuf::from("hash");
    let expected = hash(&|h| Bytes::from_static(b"hash").hash(h));
    assert_eq!(hash(&|h| buf.hash(h)), expected);
    assert_eq!(hash(&|h| buf.clone().freeze().hash(h)), expected);
}

#[test]
fn packets_print_as_bytes_do() {
    let all: Vec<u8> = (0..=255).collect();
    let (ours, theirs) = (Packet::from(all.clone()), Bytes::from(all));
    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    assert_eq!(format!("{ours:x}"), format!("{theirs:x}"));
    assert_eq!(format!("{ours:X}"), format!("{theirs:X}"));
    let ours = PacketBuf::from(ours);
    assert_eq!(
        format!("{ours:?} {ours:x} {ours:X}"),
        format!("{theirs:?} {theirs:x} {theirs:X}")
    );
}

/// Many threads clone, slice, check and drop packets and turn them back into buffers, while chunks are
/// reused at once. Any mix-up of references shows as wrong contents or a chunk in use.
#[test]
fn packets_shared_by_threads_keep_their_contents() {
    let rounds: u32 = if cfg!(miri) { 20 } else { 20_000 };
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| mpsc::sync_channel::<(u32, Packet)>(64))
            .unzip();
        let start = |receiver: mpsc::Receiver<(u32, Packet)>| {
            let written = Arc::clone(&written);
            scope.spawn(move || {
                for (round, packet) in receiver {
                    let byte = round as u8;
                    assert!(packet.iter().all(|&b| b == byte), "round {round}");
                    let part = packet.slice(1..packet.len() / 2);
                    drop(packet);
                    if let Ok(mut buf) = part.try_into_mut() {
                        buf.fill(!byte);
                        buf.extend_from_slice(&[!byte; 9]);
                        assert!(buf.iter().all(|&b| b == !byte));
                        written.fetch_add(1, SeqCst);
                    }
                }
            })
        };
        let threads: Vec<_> = receivers.into_iter().map(start).collect();
        for round in 0..rounds {
            // The pool counts references to a chunk, an `Arc` those to a vector.
            let mut buf = match round % 2 {
                0 => pool.with_capacity(100),
                _ => PacketBuf::from(Packet::from(vec![0; 100])),
            };
            buf.clear();
            buf.resize(40 + round as usize % 50, round as u8);
            let packet = buf.freeze();
            for sender in &senders {
                sender.send((round, packet.clone())).unwrap();
            }
            assert!(packet.iter().all(|&b| b == round as u8));
        }
        drop(senders);
        // The end of the scope alone does not wait for destructors of thread-locals.
        threads.into_iter().for_each(|one| one.join().unwrap());
    });
    assert_eq!(pool.slab().stats().in_use(), 0);
    assert_eq!(pool.packet_stats().heap_bytes, 0);
    assert!(written.load(SeqCst) > 0, "no thread ever was the last one");
}
