//! General-purpose allocators, called as C programs call them. On free they are given the length again if
//! they have a faster call for that.

use super::{Heap, Peer};
use core::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
#[cfg(feature = "jemalloc")]
use std::ptr::null_mut;

/// The two functions of a C allocator.
///
/// # Safety
/// `malloc` returns null or `len` bytes that nobody else has until they go back to `free`, which may be
/// called on any thread.
pub(crate) unsafe trait CHeapFunctions: 'static {
    fn malloc(len: usize) -> *mut c_void;

    /// # Safety
    /// `block` came from `malloc(len)` of the same allocator and is not used any more.
    unsafe fn free(block: *mut c_void, len: usize);

    /// Gives free memory back to the system; `false` if there is no call for it.
    fn release_free_memory() -> bool;
}

pub(crate) struct CHeap<F> {
    /// The alignment of every block.
    len: usize,
    functions: PhantomData<fn() -> F>,
}

/// A block of `F`'s memory. Without `Drop`: `CHeap::free` gives it back, as in C.
pub(crate) struct CBlock<F> {
    at: NonNull<c_void>,
    functions: PhantomData<fn() -> F>,
}

// SAFETY: exclusive ownership of plain bytes, which the allocator accepts back on any thread.
unsafe impl<F> Send for CBlock<F> {}

impl<F: CHeapFunctions> Peer for CHeap<F> {
    type Block<'p> = CBlock<F>;

    fn open(len: usize, _: usize) -> Self {
        Self {
            len,
            functions: PhantomData,
        }
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> CBlock<F> {
        let Some(at) = NonNull::new(F::malloc(len)) else {
            out_of_memory();
        };
        CBlock {
            at,
            functions: PhantomData,
        }
    }

    #[inline(always)]
    fn address(&self, block: &mut CBlock<F>) -> *mut u8 {
        block.at.as_ptr().cast()
    }

    #[inline(always)]
    fn free(&self, block: CBlock<F>) {
        // SAFETY: blocks are made only by `alloc`, to which every caller gives the length that the heap was
        // opened with; the block is consumed here.
        unsafe { F::free(block.at.as_ptr(), self.len) };
    }
}

// SAFETY: the address is what `malloc` returned for the requested length.
unsafe impl<F: CHeapFunctions> Heap for CHeap<F> {
    fn release_free_memory(&self) -> bool {
        F::release_free_memory()
    }
}

/// The same allocator for blocks of many lengths: a block carries its own length.
pub(crate) struct CHeapOfLengths<F> {
    functions: PhantomData<fn() -> F>,
}

pub(crate) struct CBlockOfLength<F> {
    block: CBlock<F>,
    len: usize,
}

impl<F: CHeapFunctions> Peer for CHeapOfLengths<F> {
    type Block<'p> = CBlockOfLength<F>;

    fn open(_: usize, _: usize) -> Self {
        Self {
            functions: PhantomData,
        }
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> CBlockOfLength<F> {
        let block = CHeap::open(len, 1).alloc(len);
        CBlockOfLength { block, len }
    }

    #[inline(always)]
    fn address(&self, block: &mut CBlockOfLength<F>) -> *mut u8 {
        block.block.at.as_ptr().cast()
    }

    #[inline(always)]
    fn free(&self, block: CBlockOfLength<F>) {
        CHeap::open(block.len, 1).free(block.block);
    }
}

#[cold]
fn out_of_memory() -> ! {
    panic!("a peer is out of memory");
}

pub(crate) enum Glibc {}

// SAFETY: these are malloc and free themselves.
unsafe impl CHeapFunctions for Glibc {
    #[inline(always)]
    fn malloc(len: usize) -> *mut c_void {
        // SAFETY: any length may be requested.
        unsafe { libc::malloc(len) }
    }

    #[inline(always)]
    unsafe fn free(block: *mut c_void, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { libc::free(block) };
    }

    fn release_free_memory() -> bool {
        // SAFETY: any thread may call it at any time.
        unsafe { libc::malloc_trim(0) };
        true
    }
}

#[cfg(feature = "mimalloc")]
pub(crate) enum Mimalloc {}

#[cfg(feature = "mimalloc")]
// SAFETY: malloc and free by other names.
unsafe impl CHeapFunctions for Mimalloc {
    #[inline(always)]
    fn malloc(len: usize) -> *mut c_void {
        // SAFETY: any length may be requested.
        unsafe { libmimalloc_sys::mi_malloc(len) }
    }

    #[inline(always)]
    unsafe fn free(block: *mut c_void, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { libmimalloc_sys::mi_free(block) };
    }

    fn release_free_memory() -> bool {
        // SAFETY: any thread may call it at any time.
        unsafe { libmimalloc_sys::mi_collect(true) };
        true
    }
}

#[cfg(feature = "jemalloc")]
pub(crate) enum Jemalloc {}

#[cfg(feature = "jemalloc")]
// SAFETY: malloc by another name; `sdallocx` accepts what `malloc` returned.
unsafe impl CHeapFunctions for Jemalloc {
    #[inline(always)]
    fn malloc(len: usize) -> *mut c_void {
        // SAFETY: any length may be requested.
        unsafe { tikv_jemalloc_sys::malloc(len) }
    }

    #[inline(always)]
    unsafe fn free(block: *mut c_void, len: usize) {
        // SAFETY: the caller's promise, which includes the length.
        unsafe { tikv_jemalloc_sys::sdallocx(block, len, 0) };
    }

    /// Flushes the thread's cache first, then purges the unused pages of all arenas (4096 is jemalloc's
    /// `MALLCTL_ARENAS_ALL`).
    fn release_free_memory() -> bool {
        [c"thread.tcache.flush", c"arena.4096.purge"]
            .iter()
            .all(|name| {
                // SAFETY: the names are strings that end with zero; neither call reads or writes a value,
                // as the null pointers tell it.
                let error = unsafe {
                    tikv_jemalloc_sys::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0)
                };
                error == 0
            })
    }
}

#[cfg(feature = "snmalloc")]
pub(crate) enum Snmalloc {}

/// The alignment that malloc guarantees.
#[cfg(feature = "snmalloc")]
const ALIGN: usize = 16;

#[cfg(feature = "snmalloc")]
// SAFETY: malloc by another name, always with the same alignment.
unsafe impl CHeapFunctions for Snmalloc {
    #[inline(always)]
    fn malloc(len: usize) -> *mut c_void {
        // SAFETY: any length may be requested.
        unsafe { snmalloc_sys::sn_rust_alloc(ALIGN, len).cast() }
    }

    #[inline(always)]
    unsafe fn free(block: *mut c_void, len: usize) {
        // SAFETY: the caller's promise, which includes the length.
        unsafe { snmalloc_sys::sn_rust_dealloc(block.cast(), ALIGN, len) };
    }

    fn release_free_memory() -> bool {
        false
    }
}
