//! What a pool takes of the heap where its tables are not memory that the system backs when it is touched.
#![cfg(not(any(feature = "std", loom)))]

use slab_core::{Mode, SizeClasses, SlabPool};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which counts what this thread has of it.
struct CountingAllocator;

thread_local! {
    static HEAP_BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: all is left to `System`.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP_BYTES.set(HEAP_BYTES.get() + layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HEAP_BYTES.set(HEAP_BYTES.get() - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Room for what 4096 threads with magazines move took 956 KB, and here no thread has any.
#[test]
fn small_pool_in_lent_memory_takes_less_of_the_heap_than_it_has() {
    const LENT: usize = 256 << 10;
    for mode in [
        Mode::ThreadCached,
        Mode::DepotOnly,
        Mode::Ring,
        Mode::Locked,
    ] {
        let memory = Box::leak(Box::<[u8]>::new_uninit_slice(LENT));
        let before = HEAP_BYTES.get();
        let pool = SlabPool::builder()
            .mode(mode)
            .size_classes(SizeClasses::explicit(&[1536]).unwrap())
            .build_in(memory)
            .unwrap();
        let taken = HEAP_BYTES.get() - before;
        assert!(taken < LENT as isize / 2, "{mode:?}: {taken} bytes");
        drop(pool);
        assert_eq!(HEAP_BYTES.get(), before);
    }
}
