//! What a pool that zeroes on free leaves behind: heap blocks that go back, and memory that was lent to it.

use slab_core::{AnyChunk, SizeClasses, Slab, SlabBox, SlabPool};
use std::alloc::{GlobalAlloc, Layout, System};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
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

/// Memory for ever, so that it can be looked at when its pool is gone.
fn lent() -> &'static mut [MaybeUninit<u8>] {
    Box::leak(vec![MaybeUninit::new(0); 300 << 10].into_boxed_slice())
}

/// Secrets in the `len` bytes that begin there, of lent memory, which a pool hands out or not.
fn secret_bytes(at: NonNull<u8>, len: usize) -> usize {
    let is_secret = |&offset: &usize| {
        // SAFETY: within the memory.
        let byte = unsafe { at.add(offset) };
        // SAFETY: all of it is initialised, and nobody writes to it meanwhile.
        unsafe { byte.read_volatile() == SECRET }
    };
    (0..len).filter(is_secret).count()
}

#[test]
#[cfg_attr(
    any(miri, slab_asan),
    ignore = "looks at free chunks, of memory that leaks"
)]
fn zero_on_free_wipes_lent_memory() {
    let classes = SizeClasses::explicit(&[1024, 4096]).unwrap();
    let zeroing = SlabPool::builder().size_classes(classes).zero_on_free(true);
    let pool = zeroing.build_in(lent()).unwrap();
    let secret = || {
        let mut chunk = pool.try_alloc(1024).unwrap();
        chunk.fill_zero().fill(SECRET);
        (chunk.as_ptr(), chunk)
    };
    let (at, chunk) = secret();
    assert_eq!(secret_bytes(at, 1024), 1024);
    drop(chunk);
    assert_eq!(secret_bytes(at, 1024), 0);
    // The pool is gone by then.
    let (at, chunk) = secret();
    drop(pool);
    assert_eq!(secret_bytes(at, 1024), 1024);
    drop(chunk);
    assert_eq!(secret_bytes(at, 1024), 0);
}

#[test]
#[cfg_attr(
    any(miri, slab_asan),
    ignore = "looks at free chunks, of memory that leaks"
)]
fn zero_on_free_wipes_typed_values() {
    let zeroing = Slab::<[u8; 1000]>::builder().pool(|pool| pool.zero_on_free(true));
    let slab = zeroing.build_in(lent()).unwrap();
    // Where the values will be, by a pointer that is not a value's.
    let at = slab.alloc_raw().unwrap();
    // SAFETY: just allocated.
    unsafe { slab.free_raw(at) }.unwrap();
    let secret = || {
        let value = slab.try_insert([SECRET; 1000]).unwrap();
        assert_eq!(value.as_ptr().addr(), at.addr().get());
        value
    };
    let secrets = || secret_bytes(at.cast(), 1000);
    let value = secret();
    assert_eq!(secrets(), 1000);
    drop(value);
    assert_eq!(secrets(), 0);
    let value = secret();
    assert_eq!(secrets(), 1000);
    assert_eq!(SlabBox::into_inner(value), [SECRET; 1000]);
    assert_eq!(secrets(), 0);
}
