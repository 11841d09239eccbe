//! What a pool that zeroes on free leaves behind: heap blocks that go back, and memory that was lent to it.

use slab_core::{AnyChunk, SizeClasses, Slab, SlabBox, SlabPool, SlabPoolBuilder};
use std::alloc::{GlobalAlloc, Layout, System};
use std::mem::MaybeUninit;
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

/// Memory that was lent, and can be looked at when nobody has a chunk of it.
struct Lent(&'static [MaybeUninit<u8>]);

impl Lent {
    /// Calls `build_in` with the memory.
    fn to<T>(build_in: impl FnOnce(&'static mut [MaybeUninit<u8>]) -> T) -> (T, Self) {
        let memory = Box::leak(vec![MaybeUninit::new(0); 300 << 10].into_boxed_slice());
        let (at, len) = (memory.as_ptr(), memory.len());
        let pool = build_in(memory);
        // SAFETY: it is never freed, and looked at only while nobody writes to it.
        (pool, Self(unsafe { std::slice::from_raw_parts(at, len) }))
    }

    fn secret_bytes(&self) -> usize {
        let bytes = self.0.iter();
        // SAFETY: it was zeroed, and what is written to it is initialised.
        bytes
            .filter(|byte| unsafe { byte.assume_init() } == SECRET)
            .count()
    }
}

fn zeroing() -> SlabPoolBuilder {
    let classes = SizeClasses::explicit(&[1024, 4096]).unwrap();
    SlabPool::builder().size_classes(classes).zero_on_free(true)
}

#[test]
#[cfg_attr(any(miri, slab_asan), ignore = "looks at memory that is a pool's")]
fn zero_on_free_wipes_lent_memory() {
    let (pool, lent) = Lent::to(|memory| zeroing().build_in(memory).unwrap());
    let secret = || {
        let mut chunk = pool.try_alloc(1024).unwrap();
        chunk.fill_zero().fill(SECRET);
        chunk
    };
    let chunk = secret();
    assert_eq!(lent.secret_bytes(), 1024);
    drop(chunk);
    assert_eq!(lent.secret_bytes(), 0);
    // The pool is gone by then.
    let chunk = secret();
    drop(pool);
    assert_eq!(lent.secret_bytes(), 1024);
    drop(chunk);
    assert_eq!(lent.secret_bytes(), 0);
}

#[test]
#[cfg_attr(any(miri, slab_asan), ignore = "looks at memory that is a pool's")]
fn zero_on_free_wipes_typed_values() {
    let zeroing = Slab::<[u8; 1000]>::builder().pool(|pool| pool.zero_on_free(true));
    let (slab, lent) = Lent::to(|memory| zeroing.build_in(memory).unwrap());
    let value = slab.try_insert([SECRET; 1000]).unwrap();
    assert_eq!(lent.secret_bytes(), 1000);
    drop(value);
    assert_eq!(lent.secret_bytes(), 0);
    let value = slab.try_insert([SECRET; 1000]).unwrap();
    assert_eq!(SlabBox::into_inner(value), [SECRET; 1000]);
    assert_eq!(lent.secret_bytes(), 0);
}
