//! Heap blocks of a pool that zeroes on free go back as zeros.

use slab_core::{AnyChunk, SizeClasses, SlabPool};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A length that nothing else has, and not a number of whole words.
const LEN: usize = 77_777;
const SECRET: u8 = 0x5E;
static FREED: AtomicUsize = AtomicUsize::new(0);
static SECRET_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which checks the blocks that come back to it.
struct CheckingAllocator;

// SAFETY: all is left to `System`.
unsafe impl GlobalAlloc for CheckingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if layout.size() == LEN {
            // SAFETY: a block that nobody else has; it was written, or came zeroed.
            let bytes = unsafe { std::slice::from_raw_parts(at, LEN) };
            let secrets = bytes.iter().filter(|&&byte| byte == SECRET).count();
            FREED.fetch_add(1, Ordering::Relaxed);
            SECRET_BYTES.fetch_add(secrets, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CheckingAllocator = CheckingAllocator;

#[test]
fn zero_on_free_wipes_heap_chunks() {
    for (zero, seen) in [(true, 0), (false, LEN)] {
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[1024]).unwrap())
            .max_memory(1 << 20)
            .max_oversize_memory(1 << 20)
            .zero_on_free(zero)
            .build()
            .unwrap();
        assert_eq!(pool.zeroes_on_free(), zero);
        let mut chunk = pool.try_alloc_any(LEN).unwrap();
        assert!(matches!(chunk, AnyChunk::Heap(_)));
        chunk.fill_zero().fill(SECRET);
        // The pool may be gone by then.
        drop(pool);
        drop(chunk);
        assert_eq!(FREED.swap(0, Ordering::Relaxed), 1);
        assert_eq!(SECRET_BYTES.swap(0, Ordering::Relaxed), seen);
    }
}
