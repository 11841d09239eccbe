//! A global allocator that counts the heap allocations of the server's threads.
//!
//! Only threads that opt in are counted: the workers that receive and consume. The load generator, the
//! metrics page and the report run on other threads; their allocations are not part of a packet's cost.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // Constant and without a destructor, so that it can be read at any point of a thread's life
    // without allocating.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// Counts the allocations of the calling thread from here on.
pub(crate) fn count_this_thread() {
    COUNTED.set(true);
}

/// Heap allocations, reallocations included, of all counted threads so far.
pub(crate) fn allocation_count() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

fn count_allocation() {
    if COUNTED.get() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

struct Counting;

// SAFETY: every call goes to `System` with its arguments unchanged, and counting neither
// allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller keeps `System`'s contract, which is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count_allocation();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, new_size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
