//! `PacketBuf` beyond what random programs cover: sizes, addresses, panics, the pool at its cap.

use bytes::{Buf, BufMut};
use slab_net::{AllocError, Packet, PacketBuf, PacketPool, SizeClasses};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// A small process-wide pool, because Miri tracks every byte.
fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let classes = SizeClasses::explicit(&[64, 256, 1024, 4096]).unwrap();
        let pool = PacketPool::builder().size_classes(classes);
        pool.max_memory(4 * 65_536).install_default().unwrap();
    });
}

/// Returns a buffer from the process-wide pool.
fn text(text: &str) -> PacketBuf {
    setup();
    PacketBuf::from(text)
}

/// A pool of one slab, so that only one of the classes can be served.
fn one_slab(sizes: &[usize]) -> PacketPool {
    setup();
    PacketPool::builder()
        .size_classes(SizeClasses::explicit(sizes).unwrap())
        .max_memory(65_536)
        .build()
        .unwrap()
}

fn pool() -> PacketPool {
    setup();
    PacketPool::builder().max_memory(2 << 20).build().unwrap()
}

/// Allocates all remaining chunks of the class of `len`.
fn drain(pool: &PacketPool, len: usize) -> Vec<PacketBuf> {
    std::iter::from_fn(|| pool.try_alloc(len).ok()).collect()
}

fn panics<R>(f: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn handles_are_three_words() {
    assert_eq!(size_of::<PacketBuf>(), 24);
    assert_eq!(size_of::<Option<PacketBuf>>(), 24);
    assert_eq!(size_of::<Packet>(), 24);
    assert_eq!(size_of::<Option<Packet>>(), 24);
}

#[test]
fn handles_are_send_and_sync() {
    fn check<T: Send + Sync + Unpin + std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    check::<PacketBuf>();
    check::<Packet>();
    check::<PacketPool>();
}

#[test]
fn new_buffers_have_the_configured_headroom_and_tailroom() {
    let pool = PacketPool::builder()
        .max_memory(1 << 20)
        .headroom(64)
        .tailroom(32)
        .build()
        .unwrap();
    let mut buf = pool.try_alloc(1440).unwrap();
    assert_eq!((buf.headroom(), buf.capacity()), (64, 1472));
    assert_eq!(buf.class(), pool.slab().size_classes().class_for(1536));
    buf.put_bytes(1, 1440);
    assert_eq!(buf.tailroom(), 32);
    let at = buf.as_ptr();
    buf.prepend(&[2; 64]);
    buf.put_bytes(3, 32);
    assert_eq!(buf.as_ptr(), at.wrapping_sub(64), "nothing moved");
    assert_eq!((buf.headroom(), buf.tailroom()), (0, 0));
    assert_eq!(buf.len(), 1536);
}

#[test]
fn growth_keeps_the_headroom() {
    let pool = PacketPool::builder().max_memory(2 << 20);
    let pool = pool.headroom(64).build().unwrap();
    let mut buf = pool.try_alloc(100).unwrap();
    buf.put_bytes(7, 100);
    buf.reserve(3000);
    assert_eq!(buf.headroom(), 64);
    buf.advance(100);
    buf.put_bytes(8, 50);
    let room = buf.tailroom();
    assert!(buf.try_reclaim(room + 60));
    assert_eq!(buf.headroom(), 64);
    assert_eq!(buf, [8; 50][..]);
}

#[test]
fn headroom_is_zero_while_another_handle_exists() {
    let mut buf = pool().try_alloc(100).unwrap();
    buf.extend_from_slice(b"front back");
    let front = buf.split_to(6);
    assert_eq!(buf.headroom(), 0);
    buf.prepend(b"new ");
    assert_eq!((&front[..], &buf[..]), (&b"front "[..], &b"new back"[..]));

    let mut buf = pool().try_alloc(100).unwrap();
    buf.extend_from_slice(b"front back");
    drop(buf.split_to(6).freeze());
    assert_eq!(buf.headroom(), 6);
    let at = buf.as_ptr();
    buf.prepend(b"free: ");
    assert_eq!(
        (&buf[..], buf.as_ptr()),
        (&b"free: back"[..], at.wrapping_sub(6))
    );
}

#[test]
fn prepend_shifts_within_the_chunk_before_reallocating() {
    let pool = pool();
    let mut buf = pool.try_alloc(128).unwrap();
    buf.extend_from_slice(b"body");
    buf.prepend(&[1; 100]);
    assert_eq!(buf.capacity(), 128);
    assert_eq!(pool.slab().stats().in_use(), 1);
    assert_eq!((&buf[..100], &buf[100..]), (&[1; 100][..], &b"body"[..]));
    // To its last byte.
    let start = buf.as_ptr();
    buf.prepend(&[3; 24]);
    assert_eq!((buf.as_ptr(), buf.len()), (start, 128));
    buf.prepend(&[2; 100]);
    assert_eq!(pool.slab().stats().in_use(), 1);
    assert_eq!(buf.len(), 228);
    assert_eq!((&buf[..100], &buf[224..]), (&[2; 100][..], &b"body"[..]));
}

#[test]
fn unsplit_joins_adjacent_halves_and_copies_other_buffers() {
    let pool = one_slab(&[1024]);
    let mut buf = pool.try_alloc(1024).unwrap();
    buf.put_bytes(1, 1024);
    let tail = buf.split_off(40);
    assert_eq!(pool.slab().stats().in_use(), 1);
    buf.try_unsplit(tail).unwrap();
    assert_eq!((buf.len(), buf.capacity()), (1024, 1024));
    // An empty one is replaced, so nothing is copied.
    let at = buf.as_ptr();
    let mut empty = pool.try_alloc(1024).unwrap();
    empty.unsplit(buf);
    let mut buf = empty;
    assert_eq!((buf.as_ptr(), buf.len()), (at, 1024));

    // A full chunk and the chunk right behind it are adjacent only by address.
    let mut all = drain(&pool, 1024);
    let end = buf.as_ptr().wrapping_add(1024);
    let next = all.iter().position(|other| other.as_ptr() == end);
    let mut next = all.swap_remove(next.expect("chunks of a slab lie side by side"));
    next.extend_from_slice(b"stranger");
    let next = buf.try_unsplit(next).unwrap_err();
    assert_eq!((buf.len(), next), (1024, text("stranger")));
}

#[test]
fn halves_with_a_gap_between_are_not_joined() {
    let mut buf = text("aaabbbccc");
    let tail = buf.split_off(6);
    buf.truncate(5);
    let tail = buf.try_unsplit(tail).unwrap_err();
    buf.unsplit(tail);
    assert_eq!(buf, "aaabbccc");
}

#[test]
fn reserve_after_split_allocates_a_chunk_of_the_same_size() {
    let pool = pool();
    let mut buf = pool.try_alloc(65_536).unwrap();
    buf.put_bytes(1, 65_000);
    let mut held = buf.split();
    buf.reserve(2000);
    assert_eq!(buf.capacity(), 65_536);
    // The front, however small, does not request as much when it grows.
    let mut small = held.split_to(10);
    small.reserve(100);
    assert_eq!(small.capacity(), 128);

    let roomy = PacketPool::builder().max_memory(2 << 20);
    let roomy = roomy.headroom(64).tailroom(32).build().unwrap();
    let mut buf = roomy.try_alloc(65_536 - 96).unwrap();
    buf.put_bytes(1, 65_000);
    let _held = buf.split();
    buf.reserve(2000);
    assert_eq!((buf.headroom(), buf.capacity()), (64, 65_536 - 64));

    // Where there is none of that size, one that suffices is taken before the heap's memory.
    let two = PacketPool::builder().size_classes(SizeClasses::explicit(&[1024, 4096]).unwrap());
    let two = two.max_memory(2 * 65_536).max_heap_memory(0).build();
    let two = two.unwrap();
    let _small = two.try_alloc(1024).unwrap();
    let mut all = drain(&two, 4096);
    let mut buf = all.pop().unwrap();
    buf.put_bytes(1, 4000);
    let _held = buf.split();
    buf.reserve(500);
    assert_eq!(buf.capacity(), 1024);
}

#[test]
fn fallible_methods_fail_at_the_cap_and_change_nothing() {
    let pool = one_slab(&[64, 1024]);
    let mut buf = pool.try_alloc(10).unwrap();
    buf.extend_from_slice(b"unchanged");
    let at = buf.as_ptr();
    let exhausted = AllocError::Exhausted { chunk_bytes: 1024 };
    assert_eq!(buf.try_reserve(500), Err(exhausted));
    assert_eq!(buf.try_prepend(&[0; 500]), Err(exhausted));
    assert_eq!(buf.try_extend_from_slice(&[0; 500]), Err(exhausted));
    assert_eq!(buf.try_resize(509, 0), Err(exhausted));
    assert_eq!(pool.try_alloc(500).unwrap_err(), exhausted);
    assert_eq!(pool.try_copy_from_slice(&[0; 500]).unwrap_err(), exhausted);
    assert_eq!(
        pool.slab().stats().classes()[1].exhausted,
        6,
        "each asked once"
    );
    let too_large = AllocError::TooLarge {
        requested: 2009,
        largest: 1024,
    };
    assert_eq!(buf.try_reserve(2000), Err(too_large));
    assert_eq!((buf.as_ptr(), &buf[..]), (at, &b"unchanged"[..]));
    assert_eq!(pool.packet_stats(), Default::default());
    buf.try_extend_from_slice(b", but room").unwrap();
    assert_eq!((buf.as_ptr(), &buf[..]), (at, &b"unchanged, but room"[..]));
    buf.try_prepend(b"in front: ").unwrap();
    assert_eq!(buf, "in front: unchanged, but room");
    buf.try_resize(8, 0).unwrap();
    buf.try_resize(10, b'!').unwrap();
    assert_eq!(buf, "in front!!");
}

/// The same as `BytesMut`, to the byte.
#[test]
fn try_reclaim_moves_no_more_bytes_than_were_consumed() {
    let pool = one_slab(&[1024]);
    for (filled, consumed, moves) in [(1024, 511, false), (1023, 511, false), (1024, 512, true)] {
        let mut buf = pool.try_alloc(1024).unwrap();
        let mut theirs = bytes::BytesMut::with_capacity(1024);
        buf.put_bytes(1, filled);
        theirs.put_bytes(1, filled);
        buf.advance(consumed);
        theirs.advance(consumed);
        assert_eq!((buf.try_reclaim(2), theirs.try_reclaim(2)), (moves, moves));
        assert_eq!((&buf[..], buf.class()), (&theirs[..], Some(0)));
    }
    // None, if the rest of the chunk is just large enough.
    let mut buf = pool.try_alloc(1024).unwrap();
    buf.put_bytes(1, 100);
    drop(buf.split_off(100));
    buf.advance(50);
    let start = buf.as_ptr();
    assert!(buf.try_reclaim(1024 - 100));
    assert_eq!((buf.as_ptr(), buf.capacity()), (start, 1024 - 50));
    // So it is with `reserve`, also where the pool has other chunks.
    drop(buf.split_off(100));
    buf.reserve(1024 - 100);
    assert_eq!(buf.as_ptr(), start);
}

#[test]
fn at_the_cap_growth_reuses_consumed_space_in_the_own_chunk() {
    let pool = PacketPool::builder()
        .size_classes(SizeClasses::explicit(&[1024]).unwrap())
        .max_memory(65_536)
        .max_heap_memory(0)
        .build();
    let pool = pool.unwrap();
    let mut buf = pool.try_alloc(1024).unwrap();
    buf.extend(0..=255);
    buf.put_bytes(7, 768);
    let others = drain(&pool, 1024);
    buf.advance(1);
    assert!(!buf.try_reclaim(1), "that would be no bounded cost");
    assert!(buf.try_reserve(2).is_err());
    buf.try_reserve(1).unwrap();
    assert_eq!((buf.len(), buf.capacity()), (1023, 1024));
    buf.put_u8(1);
    assert_eq!((buf[0], buf[254], buf[255], buf[1023]), (1, 255, 7, 1));

    // The same for methods that return no error, which would otherwise panic here.
    buf.advance(3);
    buf.put_slice(b"end");
    assert_eq!((buf[0], &buf[1021..]), (4, &b"end"[..]));
    assert!(panics(|| buf.put_u8(2)));

    // Not while another handle may be reading the bytes in front.
    let front = buf.split_to(4);
    assert!(buf.try_reserve(1).is_err());
    drop(front);
    buf.try_reserve(4).unwrap();
    assert_eq!((buf[0], &buf[1017..]), (8, &b"end"[..]));
    drop(others);
}

/// The same as `BytesMut`, to the byte.
#[test]
fn a_buffer_with_any_room_is_not_moved() {
    setup();
    let mut buf = PacketBuf::new();
    assert_eq!(buf.chunk_mut().len(), 64);
    buf.put_bytes(1, 60);
    assert_eq!(buf.chunk_mut().len(), 4);
    buf.extend_from_within(56..);
    assert_eq!((buf.len(), buf.capacity()), (64, 64));
}

/// Whether the system promises so much memory, which it backs only where that is written.
#[cfg(all(target_pointer_width = "64", not(miri)))]
fn is_promised(bytes: usize) -> bool {
    use std::io::Write as _;
    let is_promised = Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    if !is_promised {
        // Not `eprintln!`, whose output the test harness captures.
        let _ = writeln!(std::io::stderr(), "skipped: no {bytes} bytes are promised");
    }
    is_promised
}

#[test]
#[cfg(all(target_pointer_width = "64", not(miri)))]
fn heap_buffers_of_more_than_2_gib_still_double() {
    const LONGEST: usize = u32::MAX as usize;
    if !is_promised(2 * LONGEST) {
        return;
    }
    let mut buf = one_slab(&[64]).with_capacity(3 << 30);
    buf.put_u8(1);
    buf.reserve(3 << 30);
    assert_eq!((&buf[..], buf.capacity()), (&[1][..], LONGEST));
    assert_eq!(PacketBuf::with_capacity(LONGEST).capacity(), LONGEST);
}

#[test]
fn documented_panics() {
    let buf = || text("hello");
    assert!(panics(|| buf().split_to(6)));
    assert!(panics(|| buf().split_off(65)));
    assert!(!panics(|| buf().split_off(64)), "up to the capacity it may");
    assert!(panics(|| buf().copy_to_bytes(6)));
    assert!(panics(|| buf().advance(6)));
    assert!(panics(|| buf().extend_from_within(3..7)));
    #[expect(clippy::reversed_empty_ranges)]
    let backwards = 3..2;
    assert!(panics(|| buf().extend_from_within(backwards)));
    assert!(panics(|| buf().extend_from_within(..=usize::MAX)));
    assert!(panics(|| buf().get_u64()));
    // SAFETY: it panics before any byte becomes readable.
    assert!(panics(|| unsafe { buf().advance_mut(60) }));
    assert!(panics(|| PacketBuf::with_capacity(u32::MAX as usize + 1)));
    assert!(panics(|| PacketBuf::zeroed(usize::MAX)));
    assert!(panics(|| buf().resize(usize::MAX, 0)));
    assert!(panics(|| buf().put_bytes(0, usize::MAX)));
    assert!(panics(|| buf().prepend_header(usize::MAX).len()));
    assert!(panics(|| buf().prepend_header(u32::MAX as usize).len()));
}

/// Trap: RUSTSEC-2026-0007. In `bytes` before 1.11.1, `reserve` on a split buffer could overflow the new
/// capacity, and later writes went out of bounds.
#[test]
fn reserve_of_nearly_usize_max_panics_and_keeps_the_buffer_intact() {
    // Each panic takes Miri half a second.
    let (offsets, shorts): (&[_], &[_]) = if cfg!(miri) {
        (&[6], &[0, 6, 64])
    } else {
        (&[0, 1, 6], &[0, 1, 6, 7, 63, 64, 65, 4096])
    };
    for &offset in offsets {
        for &short in shorts {
            for share in [true, false] {
                let mut buf = text("hello world");
                let mut tail = buf.split_off(offset);
                let front = share.then_some(buf);
                assert!(panics(|| tail.reserve(usize::MAX - short)));
                assert!(!tail.try_reclaim(usize::MAX - short));
                assert!(tail.try_reserve(usize::MAX - short).is_err());
                assert_eq!(tail, "hello world"[offset..]);
                assert!(tail.capacity() <= 64);
                tail.put_bytes(b'!', 100);
                assert_eq!(
                    front.as_deref().unwrap_or_default().len(),
                    front.map_or(0, |_| offset)
                );
            }
        }
    }
}

/// With the longest contents that a buffer can have: zeros, which the system backs only where they are
/// written.
#[test]
#[cfg(all(target_pointer_width = "64", not(miri)))]
fn lengths_above_u32_max_are_refused_not_truncated() {
    use std::fmt::Write as _;
    const LONGEST: usize = u32::MAX as usize;
    setup();
    if !is_promised(LONGEST + 20) {
        return;
    }
    let longer = Packet::from(vec![0; LONGEST + 20]);
    let mut packet = longer.try_into_mut().expect_err("too long by 20");
    assert_eq!(packet.len(), LONGEST + 20);
    drop(packet.split_to(10));
    packet.truncate(LONGEST);
    let mut buf = packet.try_into_mut().unwrap();
    let at = buf.as_ptr();
    assert_eq!((buf.headroom(), buf.tailroom()), (10, 0));
    assert_eq!(buf.remaining_mut(), 0);
    assert!(!buf.try_reclaim(1));
    assert!(buf.try_reserve(1).is_err() && buf.try_prepend(b"x").is_err());
    assert!(write!(buf, "x").is_err());
    assert!(panics(|| buf.reserve(1)));
    assert!(panics(|| buf.put_u8(1)));
    assert!(panics(|| buf.chunk_mut().len()));
    assert!(panics(|| buf.prepend(b"x")));
    assert_eq!((buf.as_ptr(), buf.len()), (at, LONGEST));
    // Bytes released at one end can be used at the other.
    buf.truncate(LONGEST - 4);
    buf.prepend(b"head");
    assert_eq!((buf.len(), buf.as_ptr()), (LONGEST, at.wrapping_sub(4)));
    assert_eq!((&buf[..5], buf.tailroom()), (&b"head\0"[..], 0));
    drop(buf);
    // The last one is found without asking for more.
    let mut buf = PacketBuf::from(Packet::from(vec![0; LONGEST]));
    drop(buf.split_off(LONGEST - 1));
    assert_eq!(buf.chunk_mut().len(), 1);
}

#[test]
fn unwritten_bytes_are_never_readable() {
    let pool = one_slab(&[1024]);
    let mut held = drain(&pool, 1024);
    for buf in &mut held {
        buf.put_bytes(0xaa, 1024);
    }
    drop(held);
    let mut zeroed: Vec<_> = (0..32).map(|_| pool.zeroed(1024)).collect();
    zeroed.extend((0..32).map(|_| pool.try_zeroed(1024).unwrap()));
    assert!(zeroed.iter().all(|buf| *buf == [0; 1024][..]));
    assert!(pool.try_zeroed(1).is_err());
    assert_eq!(pool.zeroed(3), [0; 3][..], "by the heap");
    for buf in &mut zeroed {
        buf.fill(0xaa);
    }
    drop(zeroed);
    for mut buf in drain(&pool, 1024) {
        assert!(buf.is_empty());
        buf.resize(64, 0);
        assert_eq!(buf, [0; 64][..]);
        buf.clear();
        assert!(buf.prepend_header(10).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn live_buffers_never_overlap() {
    let pool = one_slab(&[1024, 4096]);
    let bufs = drain(&pool, 1024);
    assert_eq!(bufs.len(), 64);
    let starts: HashSet<_> = bufs.iter().map(|buf| buf.as_ptr() as usize).collect();
    assert_eq!(starts.len(), 64);
    assert!(starts.iter().all(|at| at % 1024 == 0));
}

/// Every operation on empty buffers, and with empty arguments.
#[test]
fn operations_accept_empty_buffers_and_arguments() {
    setup();
    let pool = pool();
    let with_memory = || pool.try_alloc(0).unwrap();
    for make in [&PacketBuf::new as &dyn Fn() -> PacketBuf, &with_memory] {
        let mut buf = make();
        let (at, capacity) = (buf.as_ptr(), buf.capacity());
        buf.reserve(0);
        buf.try_reserve(0).unwrap();
        assert!(buf.try_reclaim(0));
        buf.extend_from_slice(b"");
        buf.try_extend_from_slice(b"").unwrap();
        buf.extend_from_within(..);
        buf.prepend(b"");
        buf.try_prepend(b"").unwrap();
        assert!(buf.prepend_header(0).is_empty());
        buf.put_bytes(1, 0);
        buf.put(&b""[..]);
        buf.resize(0, 1);
        buf.truncate(0);
        buf.clear();
        buf.advance(0);
        assert_eq!((buf.as_ptr(), buf.capacity(), buf.len()), (at, capacity, 0));
        assert_eq!(buf.spare_capacity_mut().len(), capacity);

        let (front, back) = (buf.split_to(0), buf.split_off(0));
        buf.unsplit(front);
        buf.unsplit(back);
        buf.unsplit(PacketBuf::new());
        assert!(buf.split().is_empty() && buf.clone().is_empty());

        let mut packet = buf.freeze();
        assert!(packet.slice(..).is_empty() && packet.slice(0..0).is_empty());
        assert!(packet.split_to(0).is_empty() && packet.split_off(0).is_empty());
        assert!(packet.copy_to_bytes(0).is_empty());
        packet.advance(0);
        assert_eq!((packet.chunk(), packet.remaining()), (&b""[..], 0));
        assert_eq!(bytes::Bytes::from(packet.clone()), "");
        assert_eq!(Packet::from(bytes::Bytes::new()), packet);
        assert!(PacketBuf::from(packet.compact()).is_empty());
    }
    assert_eq!(pool.try_copy_from_slice(b"").unwrap().class(), None);
    assert_eq!(pool.copy_from_slice(b"").class(), None);
    assert_eq!(pool.slab().stats().in_use(), 0);
}
