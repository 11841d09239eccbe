//! Buffers that stand on the heap because their pool cannot serve them: how many may, and when they go back into it.

use bytes::{Buf, BufMut};
use slab_net::{PacketBuf, PacketPool, PacketPoolBuilder, SizeClasses};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Of a pool of one slab, so that only one of the classes can be served.
fn one_slab(sizes: &[usize]) -> PacketPoolBuilder {
    PacketPool::builder()
        .size_classes(SizeClasses::explicit(sizes).unwrap())
        .max_memory(65_536)
}

/// Allocates all remaining chunks of the class of `len`.
fn drain(pool: &PacketPool, len: usize) -> Vec<PacketBuf> {
    std::iter::from_fn(|| pool.try_alloc(len).ok()).collect()
}

fn panics<R>(f: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn infallible_methods_fall_back_to_the_heap_at_the_cap() {
    let pool = one_slab(&[64, 1024]).build().unwrap();
    let mut buf = pool.try_alloc(10).unwrap();
    buf.extend_from_slice(b"contents");
    buf.reserve(500);
    assert_eq!(buf, "contents");
    assert_eq!(buf.class(), None);
    assert_eq!(buf.pool().unwrap().slab().name(), pool.slab().name());
    let stats = pool.packet_stats();
    assert_eq!(stats.heap_fallbacks, 1);
    assert_eq!(stats.heap_bytes, 508);
    assert_eq!(pool.slab().stats().in_use(), 0, "the chunk was given back");

    // Shared with packets, split and joined, it is still freed once.
    let mut packet = buf.freeze();
    let rest = packet.split_off(4);
    let mut buf = PacketBuf::from(rest);
    assert_eq!(buf.class(), Some(0), "copied, because it was shared");
    buf.unsplit(PacketBuf::from(packet));
    assert_eq!(buf, "entscont");
    assert_eq!(pool.packet_stats().heap_bytes, 0);
    assert_eq!(pool.packet_stats().heap_fallbacks, 1);
}

#[test]
fn heap_fallback_stops_at_the_heap_limit() {
    use std::fmt::Write as _;
    let pool = one_slab(&[64]).max_heap_memory(1000).build().unwrap();
    let mut buf = pool.with_capacity(400);
    let other = pool.with_capacity(500);
    assert_eq!(pool.packet_stats().heap_bytes, 900);
    buf.extend_from_slice(b"kept");
    // The limit leaves no room for doubling, nor for moving into the rest.
    assert!(panics(|| buf.reserve(600)));
    assert!(panics(|| pool.with_capacity(101)));
    assert!(panics(|| buf.prepend_header(700).len()));
    assert!(panics(|| pool.copy_from_slice(&[0; 101])));
    assert_eq!((&buf[..], buf.capacity()), (&b"kept"[..], 400));
    drop(pool.with_capacity(100));
    assert_eq!(pool.packet_stats().heap_refused, 4);
    // Where an error can be returned there is no panic.
    assert!(write!(buf, ", {}", "x".repeat(600)).is_err());
    assert_eq!((&buf[..], buf.capacity()), (&b"kept, "[..], 400));
    buf.truncate(4);
    assert_eq!(pool.packet_stats().heap_refused, 5);
    drop(other);
    // Not doubled, because less than that is left.
    buf.reserve(500);
    assert_eq!((&buf[..], buf.capacity()), (&b"kept"[..], 600));
    drop(buf);
    let stats = pool.packet_stats();
    assert_eq!((stats.heap_bytes, stats.heap_fallbacks), (0, 4));
    // The limit does not affect the pool itself.
    assert_eq!(pool.with_capacity(64).class(), Some(0));
}

/// Its end was split off and dropped. So the limit may leave twice its capacity, and not as much as it needs, or as a
/// block takes at least.
#[test]
fn a_heap_buffer_that_makes_room_in_its_block_is_not_refused() {
    for (block, consumed, len, needed, left) in
        [(10_000, 1, 400, 10_000, 4000), (64, 30, 31, 40, 63)]
    {
        let pool = one_slab(&[64]).max_heap_memory(block + left);
        let pool = pool.build().unwrap();
        let _all = drain(&pool, 64);
        let mut buf = pool.with_capacity(block);
        buf.put_bytes(7, consumed + len);
        buf.advance(consumed);
        drop(buf.split_off(len));
        buf.reserve(needed - len);
        assert_eq!(buf, vec![7; len]);
        let stats = pool.packet_stats();
        assert_eq!((stats.heap_fallbacks, stats.heap_refused), (1, 0));
    }
}

#[test]
fn buffers_of_no_bytes_do_not_pass_the_heap_limit() {
    for limit in [0, 1000] {
        let pool = one_slab(&[64]).max_heap_memory(limit).build().unwrap();
        let all = drain(&pool, 64);
        let mut empty = Vec::new();
        while empty.len() < 100 && !panics(|| empty.push(pool.with_capacity(0))) {}
        assert_eq!(empty.len(), limit / 64);
        assert!(panics(|| drop(pool.zeroed(0))));
        drop(all);
    }
}

#[test]
fn heap_limit_zero_disables_the_heap_fallback() {
    let pool = PacketPool::builder().max_memory(1 << 20).max_heap_memory(0);
    let pool = pool.build().unwrap();
    let mut buf = pool.with_capacity(10);
    buf.put_bytes(1, 60_000);
    assert!(panics(|| buf.put_bytes(1, 60_000)));
    // Refused as a whole, though a first part would fit.
    assert!(panics(|| buf.put((&[1; 5000][..]).chain(&[1; 5000][..]))));
    assert!(panics(|| buf.extend(std::iter::repeat_n(1, 10_000))));
    assert_eq!(buf.len(), 60_000);
    assert!(buf.class().is_some());
}

#[test]
fn a_heap_buffer_grows_into_its_pool_once_that_has_memory() {
    let pool = one_slab(&[1024, 4096]).build().unwrap();
    let held = drain(&pool, 1024);
    let mut buf = pool.with_capacity(1024);
    buf.put_bytes(5, 1024);
    assert_eq!(buf.class(), None);
    drop(held);
    pool.slab().trim();
    buf.reserve(1);
    assert_eq!(buf.class(), Some(1));
    assert_eq!(buf, [5; 1024][..]);
    assert_eq!(pool.packet_stats().heap_bytes, 0);
}

#[test]
fn heap_buffers_above_the_largest_class_double() {
    let pool = one_slab(&[64]).build().unwrap();
    let mut buf = pool.with_capacity(0);
    for _ in 0..20_000 {
        buf.put_u8(1);
    }
    assert_eq!(buf.len(), 20_000);
    let moves = pool.packet_stats().heap_fallbacks;
    assert!(
        (7..=11).contains(&moves),
        "{moves} blocks on the way to 20 000 bytes"
    );
    // The headroom comes on top.
    let pool = PacketPool::builder().max_memory(1 << 20).headroom(64);
    let mut buf = pool.build().unwrap().zeroed(100_000);
    buf.reserve(65);
    assert_eq!((buf.headroom(), buf.capacity()), (64, 200_000));
}

/// Two buffers grow at once; doubling one leaves just enough for the other.
#[test]
#[cfg(not(miri))] // Needs many rounds.
fn concurrent_growth_within_the_heap_limit_is_never_refused() {
    use std::sync::atomic::{AtomicU32, Ordering};
    const ROUNDS: u32 = 20_000;
    let pool = PacketPool::builder()
        .size_classes(SizeClasses::explicit(&[1024]).unwrap())
        .max_memory(1 << 20)
        // Two of 4000 bytes, one of 8000 and one of at least 4001.
        .max_heap_memory(21_000)
        .build()
        .unwrap();
    let (here, other) = (AtomicU32::new(0), AtomicU32::new(0));
    let grow = |mine: &AtomicU32, others: &AtomicU32| {
        // Spins, so that both go on at the same time; yields, in case there is only one processor.
        let meet = |step: u32| {
            mine.store(step, Ordering::Release);
            while others.load(Ordering::Acquire) < step {
                std::thread::yield_now();
            }
        };
        let mut refused = 0;
        for round in 0..ROUNDS {
            let mut buf = pool.with_capacity(4000);
            buf.put_bytes(7, 4000);
            meet(3 * round + 1);
            refused += u32::from(panics(|| buf.reserve(1)));
            meet(3 * round + 2);
            drop(buf);
            meet(3 * round + 3);
        }
        refused
    };
    let refused: u32 = std::thread::scope(|scope| {
        let other_one = scope.spawn(|| grow(&other, &here));
        grow(&here, &other) + other_one.join().unwrap()
    });
    let stats = pool.packet_stats();
    assert_eq!((refused, stats.heap_refused, stats.heap_bytes), (0, 0, 0));
}
