//! Tells AddressSanitizer which parts of an arena nobody may touch, under `--cfg slab_asan`: it
//! knows `mmap` but not what a pool hands out of one mapping. Otherwise does nothing, at no cost.
//!
//! A chunk that is free is poisoned, so any read or write through a stale pointer stops the
//! program with the place of the access. See `ci/asan`.

use core::ptr::NonNull;

#[cfg(slab_asan)]
mod runtime {
    use core::ffi::{c_int, c_void};

    // Part of the sanitizer's runtime library, which `-Zsanitizer=address` links.
    unsafe extern "C" {
        pub(super) fn __asan_poison_memory_region(at: *const c_void, bytes: usize);
        pub(super) fn __asan_unpoison_memory_region(at: *const c_void, bytes: usize);
        pub(super) fn __asan_address_is_poisoned(at: *const c_void) -> c_int;
    }
}

/// From now on each access to the range is an error.
#[inline(always)]
pub(crate) fn poison(_at: NonNull<u8>, _bytes: usize) {
    #[cfg(slab_asan)]
    // SAFETY: marks shadow memory; the range is part of an arena.
    unsafe {
        runtime::__asan_poison_memory_region(_at.as_ptr().cast(), _bytes)
    };
}

/// From now on the range may be accessed.
#[inline(always)]
pub(crate) fn unpoison(_at: NonNull<u8>, _bytes: usize) {
    #[cfg(slab_asan)]
    // SAFETY: marks shadow memory; the range is part of an arena.
    unsafe {
        runtime::__asan_unpoison_memory_region(_at.as_ptr().cast(), _bytes)
    };
}

/// Poisons a chunk that is being freed, which must not be free already.
#[inline(always)]
pub(crate) fn poison_freed(at: NonNull<u8>, bytes: usize) {
    assert_not_poisoned(at);
    poison(at, bytes);
}

/// Asserts that a chunk that somebody claims to own is not free.
#[inline(always)]
pub(crate) fn assert_not_poisoned(_at: NonNull<u8>) {
    #[cfg(slab_asan)]
    {
        // SAFETY: reads shadow memory; any address will do.
        let poisoned = unsafe { runtime::__asan_address_is_poisoned(_at.as_ptr().cast()) };
        assert_eq!(poisoned, 0, "the chunk at {_at:?} is freed twice");
    }
}
