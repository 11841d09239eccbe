//! A program without std that allocates, frees, refuses and reclaims. Exits with 0 if all is well.
#![no_std]
#![no_main]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_int, c_void};
use slab_core::{AllocError, SizeClasses, Slab, SlabAllocator, SlabPool};

#[link(name = "c")]
unsafe extern "C" {
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void;
    fn free(at: *mut c_void);
    fn abort() -> !;
}

struct LibC;

// SAFETY: the C library's functions do what is asked of an allocator.
unsafe impl GlobalAlloc for LibC {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a power of two, and a size that is a multiple of it.
        unsafe { aligned_alloc(layout.align(), layout.pad_to_align().size()) }.cast()
    }

    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: it came from `alloc`.
        unsafe { free(at.cast()) };
    }
}

#[global_allocator]
static LIBC: LibC = LibC;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: `abort` may always be called.
    unsafe { abort() }
}

/// The shipped `alloc` was compiled for unwinding and names it; this program aborts instead.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[unsafe(no_mangle)]
extern "C" fn main() -> c_int {
    let classes = SizeClasses::explicit(&[64, 1536, 16384]).unwrap();
    let pool = SlabPool::builder().size_classes(classes);
    let pool = pool.max_memory(1 << 20).build().unwrap();
    for len in [64, 16384, 1500] {
        let mut held = alloc::vec::Vec::new();
        let refused = loop {
            match pool.try_alloc(len) {
                Ok(mut chunk) => {
                    chunk.try_copy_from_slice(b"no std").unwrap();
                    held.push(chunk);
                }
                Err(error) => break error,
            }
        };
        // The whole cap, whatever the class before took of it.
        assert!(matches!(refused, AllocError::Exhausted { .. }));
        assert!(held.len() * pool.size_classes().round_up(len).unwrap() > 900 << 10);
        assert_eq!(pool.stats().in_use(), held.len() as u64);
    }
    assert_eq!(pool.stats().in_use(), 0);
    assert_eq!(pool.stats().thread_caches, 0);

    let slab = Slab::<[u64; 4]>::builder().max_objects(10).build().unwrap();
    assert_eq!(*slab.try_insert([7; 4]).unwrap(), [7; 4]);

    let alloc = SlabAllocator::open(SlabPool::builder()).unwrap();
    let mut bytes = allocator_api2::vec::Vec::new_in(alloc.clone());
    bytes.resize(1000, 1_u8);
    assert_eq!(alloc.pool().stats().in_use(), 1);
    0
}
