//! A heap that has no memory left, by an allocator of its own.

use slab_net::PacketPool;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The size of blocks that are refused.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

struct Refusing;

// SAFETY: all is left to `System`, but for what is refused.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() == REFUSED.get() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static HEAP: Refusing = Refusing;

/// The copy need not be made, so it is no reason to end the program.
#[test]
fn compact_keeps_the_packet_if_the_heap_has_no_memory_either() {
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    let all: Vec<_> = std::iter::from_fn(|| pool.try_zeroed(65_536).ok()).collect();
    let packet = { all }.pop().unwrap().freeze();
    let _rest: Vec<_> = std::iter::from_fn(|| pool.try_zeroed(65_536).ok()).collect();
    let part = packet.slice(..1234);
    REFUSED.set(1234);
    let kept = pool.hold(part);
    REFUSED.set(0);
    assert_eq!(kept.as_ptr(), packet.as_ptr());
    let stats = pool.packet_stats();
    assert_eq!((stats.compacted, stats.compact_refused), (0, 1));
    assert_eq!((stats.heap_fallbacks, stats.heap_bytes), (0, 0));
}
