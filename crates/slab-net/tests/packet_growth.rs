//! How a `PacketBuf` grows: how often its contents move, and what headroom they keep.

use bytes::{Buf, BufMut, BytesMut};
use slab_net::{PacketBuf, PacketPool, PacketPoolBuilder, SizeClasses};

/// What windows are made of, by both libraries.
trait Window: Buf + BufMut + AsRef<[u8]> {}
impl<T: Buf + BufMut + AsRef<[u8]>> Window for T {}

/// Consumes `step` bytes in front and appends as many, until `rounds` times the contents have passed. Returns how many
/// bytes moved meanwhile; checks that none is lost.
fn slide<W: Window>(
    buf: &mut W,
    step: usize,
    rounds: usize,
    mut append: impl FnMut(&mut W, &[u8]),
) -> usize {
    let len = buf.remaining();
    let all: Vec<u8> = (0..251).cycle().take(251 + len).collect();
    let bytes = |from: usize, n: usize| &all[from % 251..][..n];
    buf.advance(len);
    append(buf, bytes(0, len));
    let (mut moved, mut front) = (0, 0);
    while front < rounds * len {
        buf.advance(step);
        front += step;
        let at = buf.chunk().as_ptr();
        append(buf, bytes(front + len - step, step));
        if buf.chunk().as_ptr() != at {
            moved += len - step;
            assert_eq!(buf.as_ref(), bytes(front, len));
        }
    }
    assert_eq!(buf.as_ref(), bytes(front, len));
    moved
}

const ROUNDS: usize = if cfg!(miri) { 3 } else { 8 };

/// The most bytes that may move while `ROUNDS` windows of `len` bytes pass: each a bounded number of times, and as
/// much until the buffer has its size.
const fn bound(len: usize) -> usize {
    2 * ROUNDS * len + 2 * len
}

/// Small, because Miri tracks every byte.
fn small() -> PacketPoolBuilder {
    PacketPool::builder()
        .size_classes(SizeClasses::explicit(&[64, 256, 1024, 4096]).unwrap())
        .max_memory(4 * 65_536)
        .max_heap_memory(0)
}

fn extend(buf: &mut PacketBuf, more: &[u8]) {
    buf.extend_from_slice(more);
}

fn try_extend(buf: &mut PacketBuf, more: &[u8]) {
    buf.try_extend_from_slice(more).unwrap();
}

#[test]
fn a_window_in_a_pool_moves_each_byte_a_bounded_number_of_times() {
    for (len, step) in [(60, 3), (250, 10), (1020, 20), (1024, 20), (2200, 50)] {
        let mut theirs = BytesMut::zeroed(len);
        let theirs = slide(&mut theirs, step, ROUNDS, |buf, more| buf.put_slice(more));
        assert!(theirs <= bound(len), "the bound is too low: {theirs}");
        for (headroom, tailroom) in [(0, 0), (32, 0), (32, 16)] {
            let pool = small().headroom(headroom).tailroom(tailroom);
            let pool = pool.build().unwrap();
            for append in [extend, try_extend] {
                let mut buf = pool.zeroed(len);
                let moved = slide(&mut buf, step, ROUNDS, append);
                assert!(moved <= bound(len), "{len}, {step}, {headroom}: {moved}");
                assert!(buf.headroom() >= headroom);
                assert_eq!(pool.slab().stats().in_use(), 1);
            }
        }
    }
}

/// Among them one of whose length no class holds twice as much.
#[test]
#[cfg(not(miri))] // The same as above, with more bytes.
fn a_window_in_the_classes_for_networks_moves_as_seldom() {
    let pool = PacketPool::builder().max_memory(2 << 20).max_heap_memory(0);
    let pool = pool.build().unwrap();
    for (len, step) in [(1270, 10), (9200, 20), (16_380, 100), (40_000, 100)] {
        let mut buf = pool.zeroed(len);
        let moved = slide(&mut buf, step, ROUNDS, extend);
        assert!(moved <= bound(len), "{len}, {step}: {moved}");
    }
}

#[test]
fn a_window_on_the_heap_moves_each_byte_a_bounded_number_of_times() {
    let (len, step) = if cfg!(miri) {
        (5000, 100)
    } else {
        (200_000, 1000)
    };
    for headroom in [0, 64] {
        let pool = small().max_heap_memory(usize::MAX).headroom(headroom);
        let pool = pool.build().unwrap();
        let mut buf = pool.zeroed(len);
        let moved = slide(&mut buf, step, ROUNDS, extend);
        assert!(moved <= bound(len), "{moved}");
        assert!(buf.headroom() >= headroom);
        // It is used on as soon as it holds twice the contents.
        let stats = pool.packet_stats();
        assert!(stats.heap_fallbacks <= 4, "{}", stats.heap_fallbacks);
        assert!(stats.heap_bytes <= 2 * (len + headroom) as u64);
    }
}

/// Also a window that the heap limit leaves no larger block: it moves in the one that it has, and nothing is refused.
#[test]
fn a_window_on_the_heap_stays_within_the_heap_limit() {
    const LEN: usize = 5000;
    for headroom in [0, 64] {
        let block = LEN + headroom;
        let twice = 2 * (LEN - 100) + headroom;
        // Of a block of as many bytes: one twice as large beside it, just not, none at all.
        for (limit, blocks) in [(block + twice, 2), (block + twice - 1, 1), (block, 1)] {
            let pool = small().headroom(headroom).max_heap_memory(limit);
            let pool = pool.build().unwrap();
            let mut buf = pool.zeroed(LEN);
            let at = buf.as_ptr();
            slide(&mut buf, 100, 1, extend);
            let stats = pool.packet_stats();
            assert_eq!((stats.heap_fallbacks, stats.heap_refused), (blocks, 0));
            assert!(stats.heap_bytes <= limit as u64);
            assert_eq!(buf.as_ptr() == at, blocks == 1);
        }
    }
}

#[test]
fn a_window_at_the_cap_stays_in_its_chunk() {
    // All but one slab is of the window's class, and that one of another.
    let pool = small().max_memory(2 * 65_536).max_heap_memory(usize::MAX);
    let pool = pool.build().unwrap();
    let _other = pool.try_alloc(64).unwrap();
    for append in [extend, try_extend] {
        let mut buf = pool.zeroed(1000);
        let at = buf.as_ptr();
        // 24 bytes are free behind it, then none, while there are free chunks of its class.
        slide(&mut buf, 20, 1, append);
        assert!((at..at.wrapping_add(1024)).contains(&buf.as_ptr()));
        assert_eq!(buf.class(), Some(2));
    }
    assert_eq!(pool.packet_stats().heap_fallbacks, 0);
    // Nothing was refused.
    let stats = pool.slab().stats();
    assert!(stats.classes().iter().all(|class| class.exhausted == 0));
}

#[test]
fn a_window_of_more_than_half_the_largest_class_gets_that_class() {
    let classes = SizeClasses::explicit(&[3072, 4096]).unwrap();
    for (headroom, len) in [(0, 3060), (64, 3000)] {
        let pool = small().size_classes(classes.clone()).headroom(headroom);
        let pool = pool.build().unwrap();
        let mut buf = pool.zeroed(len);
        assert_eq!(buf.class(), Some(0));
        slide(&mut buf, 10, 1, try_extend);
        assert_eq!(buf.class(), Some(1));
    }
}

/// Of 1024 bytes, the next class, too few would be left.
#[test]
fn a_window_gets_a_class_with_twice_its_length_behind_the_headroom() {
    let pool = small().headroom(32).build().unwrap();
    let mut buf = pool.zeroed(520);
    assert_eq!(buf.class(), Some(2));
    slide(&mut buf, 10, 1, try_extend);
    assert_eq!(buf.class(), Some(3));
}

/// Only a window gets twice what it needs.
#[test]
fn what_is_appended_takes_the_class_that_fits() {
    let classes = SizeClasses::explicit(&[128, 1024, 1280, 4096]).unwrap();
    for (headroom, tailroom) in [(0, 0), (64, 0), (64, 32)] {
        let pool = small().size_classes(classes.clone());
        let pool = pool.headroom(headroom).tailroom(tailroom).build().unwrap();
        let (most, full) = (1024 - headroom - tailroom, 1024 - headroom);
        // To the last byte of a class.
        for (more, class) in [(most, 1), (most + 1, 2)] {
            let mut buf = pool.try_alloc(0).unwrap();
            buf.reserve(more);
            assert_eq!(buf.class(), Some(class));
        }
        let mut buf = pool.try_alloc(most).unwrap();
        buf.put_slice(b"ate kept");
        buf.advance(3);
        buf.reserve(most - 5);
        assert_eq!((&buf[..], buf.class()), (&b" kept"[..], Some(1)));
        let mut buf = pool.try_alloc(most).unwrap();
        buf.put_bytes(7, full);
        assert_eq!((buf.tailroom(), buf.class()), (0, Some(1)));
        buf.put_u8(7);
        assert_eq!((buf.len(), buf.class()), (full + 1, Some(2)));
    }
}

#[test]
fn appending_keeps_the_headroom() {
    let pool = small().headroom(64).build().unwrap();
    for append in [extend, try_extend] {
        let mut buf = pool.try_alloc(0).unwrap();
        for n in 1..100 {
            append(&mut buf, &[7; 10]);
            assert_eq!((buf.len(), buf.headroom()), (10 * n, 64));
        }
    }
    // Also if the chunk, but for the headroom, is just large enough.
    let mut buf = pool.try_alloc(900).unwrap();
    buf.put_bytes(7, 40);
    buf.reserve(984);
    assert_eq!((buf.headroom(), buf.class()), (64, Some(3)));
    // At the cost of more headroom than the pool's, a buffer stays where it is.
    let mut buf = pool.try_alloc(960).unwrap();
    buf.put_bytes(7, 960);
    buf.advance(900);
    buf.reserve(900);
    assert_eq!((buf.headroom(), buf.class()), (64, Some(2)));
}

#[test]
fn appending_on_the_heap_keeps_the_headroom() {
    let pool = small().headroom(64).max_heap_memory(usize::MAX);
    let mut buf = pool.build().unwrap().with_capacity(5000);
    buf.put_bytes(7, 40);
    buf.advance(20);
    assert!(!buf.try_reclaim(5020));
    buf.reserve(5020);
    assert_eq!((&buf[..], buf.headroom()), (&[7; 20][..], 64));
    assert!(buf.capacity() >= 5040);
}

/// Where its pool has no other memory, the headroom is the price, even if the heap has.
#[test]
fn the_headroom_is_given_up_before_a_request_is_refused() {
    for heap in [0, usize::MAX] {
        let pool = small().headroom(64).max_heap_memory(heap).build().unwrap();
        for reserve in [
            |buf: &mut PacketBuf, n| buf.try_reserve(n).unwrap(),
            PacketBuf::reserve,
        ] {
            let mut buf = pool.try_alloc(4000).unwrap();
            buf.put_slice(b"kept");
            assert!(!buf.try_reclaim(4090));
            assert_eq!((buf.headroom(), buf.capacity()), (64, 4096 - 64));
            reserve(&mut buf, 4090);
            assert_eq!((buf.headroom(), buf.tailroom()), (2, 4090));
            assert_eq!(buf, "kept");
        }
    }
}

/// As without headroom, the same as `BytesMut`, to the byte.
#[test]
fn try_reclaim_counts_the_consumed_bytes_from_the_headroom() {
    let pool = small().headroom(64).build().unwrap();
    for (consumed, more, moves) in [
        (479, 1, false),
        (479, 480, false),
        (480, 480, true),
        (480, 481, false),
        (960, 960, true),
        (960, 961, false),
    ] {
        let mut buf = pool.try_alloc(960).unwrap();
        let mut theirs = BytesMut::with_capacity(960);
        buf.put_bytes(1, 960);
        theirs.put_bytes(1, 960);
        buf.advance(consumed);
        theirs.advance(consumed);
        assert_eq!(
            (buf.try_reclaim(more), theirs.try_reclaim(more)),
            (moves, moves)
        );
        assert_eq!((&buf[..], buf.class()), (&theirs[..], Some(2)));
        assert_eq!(buf.headroom(), if moves { 64 } else { 64 + consumed });
    }
}
