//! The heap allocations of packets: none in the steady state, and the documented number per conversion.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use slab_net::{Packet, PacketBuf, PacketChain, PacketPool, SizeClasses};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Freed blocks of [`SECRETS`] bytes, and secrets found in them.
    static FREED: Cell<(u32, usize)> = const { Cell::new((0, 0)) };
}

/// A length that no other allocation has.
const SECRETS: usize = 77_777;
const SECRET: u8 = 0x5E;

/// The system's allocator; counts the allocations of each thread and looks for secrets.
struct Counting;

// SAFETY: everything is delegated to `System`; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if layout.size() == SECRETS {
            // SAFETY: every block of this length in this program has been written completely when it is
            // freed.
            let bytes = unsafe { std::slice::from_raw_parts(ptr, SECRETS) };
            let seen = bytes.iter().filter(|&&byte| byte == SECRET).count();
            FREED.set((FREED.get().0 + 1, FREED.get().1 + seen));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns how many allocations `f` makes on this thread.
fn allocations<R>(f: impl FnOnce() -> R) -> (u64, R) {
    let before = ALLOCATIONS.get();
    let result = f();
    (ALLOCATIONS.get() - before, result)
}

fn pool() -> PacketPool {
    let pool = PacketPool::builder().max_memory(8 << 20).headroom(32);
    pool.build().unwrap()
}

#[test]
fn the_allocation_counter_works() {
    assert_eq!(allocations(|| Box::new(1)).0, 1);
    assert_eq!(allocations(|| BytesMut::with_capacity(64)).0, 1);
    // The allocations of `bytes` for a packet that does not fill its buffer.
    let frozen = || {
        let mut buf = BytesMut::with_capacity(2048);
        buf.put_u8(1);
        buf.freeze()
    };
    assert_eq!(allocations(frozen).0, 2);
}

const ROUNDS: usize = if cfg!(miri) { 20 } else { 2000 };

/// One packet's life, with nearly everything that a server does to it.
fn round(pool: &PacketPool, chain: &mut PacketChain, n: usize) {
    let mut buf = pool.try_alloc(1200).unwrap();
    buf.put_u32(n as u32);
    buf.put_bytes(1, 1000);
    buf.prepend(b"header");
    buf.reserve(3000);
    buf.extend_from_slice(&[2; 500]);
    let mut head = buf.split_to(10);
    head.try_reserve(100).unwrap();
    head.unsplit(buf.split_to(5));
    let tail = buf.split_off(buf.len() - 5);
    buf.unsplit(tail);

    let mut packet = buf.freeze();
    let clone = packet.clone();
    let slice = packet.slice(3..20);
    let front = packet.split_to(100);
    let other = slice.slice_ref(&slice[2..4]);
    drop((clone, slice, other));
    let mut again = PacketBuf::from(front);
    again.put_u64(7);
    let again = pool.compact(again.freeze().slice(..4));

    chain.push_back(packet).unwrap();
    chain.push_front(again).unwrap();
    chain.push_front(head.freeze()).unwrap();
    chain.advance(50);
    while chain.has_remaining() {
        let n = chain.chunk().len();
        chain.advance(n);
    }
}

#[test]
fn the_steady_state_makes_no_heap_allocation() {
    let pool = pool();
    let mut chain = PacketChain::new();
    round(&pool, &mut chain, 0);
    let (count, ()) = allocations(|| {
        for n in 0..ROUNDS {
            round(&pool, &mut chain, n);
        }
    });
    assert_eq!(count, 0);
    assert_eq!(pool.slab().stats().in_use(), 0);
    assert_eq!(pool.packet_stats().heap_fallbacks, 0);
}

#[test]
fn the_default_pool_makes_no_heap_allocation_either() {
    let rounds = || {
        for n in 0..ROUNDS / 4 {
            let mut buf = PacketBuf::with_capacity(100 + n);
            buf.put_slice(&[3; 300]);
            let packet = Packet::copy_from_slice(&buf);
            let buf = PacketBuf::from(packet);
            drop((buf.clone(), PacketBuf::zeroed(64), PacketBuf::new()));
        }
    };
    rounds();
    assert_eq!(allocations(rounds).0, 0);
}

/// The documented costs.
#[test]
fn conversions_allocate_as_documented() {
    let pool = pool();
    let packet = || pool.try_copy_from_slice(b"some bytes").unwrap();
    drop(packet());

    let (count, bytes) = allocations(|| Bytes::from(packet()));
    assert_eq!(count, 1, "what Bytes::from_owner takes");
    let shared = allocations(|| (bytes.clone(), bytes.slice(2..), bytes.slice(..4)));
    assert_eq!(shared.0, 0, "paid once for all that is cut from it");
    let (count, back) = allocations(|| Packet::from(bytes));
    assert_eq!(count, 1);
    assert_eq!(
        allocations(|| Bytes::from(back)).0,
        0,
        "the original `Bytes` is unwrapped"
    );

    let vec = vec![1; 100];
    assert_eq!(allocations(|| Packet::from(vec)).0, 1);
    let full = BytesMut::from(&[1; 100][..]);
    assert_eq!(allocations(|| Packet::from(full)).0, 1);
    let mut spacious = BytesMut::with_capacity(100);
    spacious.put_slice(&[1; 50]);
    let part = spacious.split_to(25);
    assert_eq!(allocations(|| Packet::from(part)).0, 1);
    let mut spacious = BytesMut::with_capacity(100);
    spacious.put_slice(&[1; 50]);
    assert_eq!(
        allocations(|| Packet::from(spacious)).0,
        2,
        "one to freeze it"
    );
    assert_eq!(allocations(|| Packet::from_owner([1; 100])).0, 2);
    assert_eq!(allocations(|| Packet::from_static(b"static")).0, 0);
    assert_eq!(allocations(|| Bytes::from(Packet::new())).0, 0);
    assert_eq!(allocations(|| Packet::from(Vec::new())).0, 0);
    assert_eq!(allocations(|| Packet::from(Bytes::new())).0, 0);
}

/// The packet's buffer when it is freed, and a buffer that it outgrows.
#[test]
fn heap_fallback_buffers_of_a_zeroing_pool_are_wiped() {
    for (zero, seen) in [(true, 0), (false, SECRETS)] {
        let pool = PacketPool::builder()
            .size_classes(SizeClasses::explicit(&[1024]).unwrap())
            .max_memory(1 << 20)
            .slab(|slab| slab.zero_on_free(zero))
            .build()
            .unwrap();
        let secrets = vec![SECRET; SECRETS];
        for grows in [false, true] {
            let mut buf = pool.with_capacity(SECRETS);
            buf.extend_from_slice(&secrets);
            if grows {
                buf.reserve(1);
            }
            let packet = buf.freeze();
            drop((packet.clone(), packet));
            assert_eq!(FREED.replace((0, 0)), (1, seen), "{grows}");
        }
        assert_eq!(pool.packet_stats().heap_bytes, 0);
        // A vector of the caller's does not belong to the pool.
        drop(Packet::from(secrets));
        assert_eq!(FREED.replace((0, 0)), (1, SECRETS));
    }
}

/// A subscriber of `tracing` is foreign code.
#[test]
fn a_subscriber_that_panics_takes_nothing_of_the_heap_limit() {
    use tracing::subscriber::{NoSubscriber, with_default};
    use tracing::{Dispatch, Event, Level, Metadata, Subscriber, span};

    struct PanickingSubscriber;

    impl Subscriber for PanickingSubscriber {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::WARN
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &Event<'_>) {
            panic!("by a subscriber");
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    let builder = PacketPool::builder().max_memory(8 << 20);
    let pool = builder.max_heap_memory(100_000).build().unwrap();
    // With one dispatcher alone, a thread without any may disable the event for all (tracing-core).
    let _second = Dispatch::new(NoSubscriber::new());
    let logged = with_default(PanickingSubscriber, || {
        let alloc = || catch_unwind(AssertUnwindSafe(|| pool.with_capacity(100_000)));
        // The panic is its caller's.
        (1..=10).filter(|_| alloc().is_err()).collect::<Vec<_>>()
    });
    assert_eq!(logged, [1, 2, 4, 8], "whenever the number has doubled");
    assert_eq!(pool.packet_stats().heap_bytes, 0);
    assert!(pool.with_capacity(100_000).capacity() >= 100_000);
}
