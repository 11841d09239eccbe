//! The global allocator of this process, chosen by the environment variable [`VARIABLE`] before it starts:
//! there is no other way to put `bytes` on an allocator.
//!
//! The choice costs one load and one predictable branch before calls that cost ten times as much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Names one of [`Choice::ALL`]; any other value, or none, means glibc's.
pub(crate) const VARIABLE: &str = "VERSUS_HEAP";
const VARIABLE_FOR_C: &std::ffi::CStr = c"VERSUS_HEAP";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Choice {
    Glibc = 1,
    /// glibc's, with each allocation counted.
    Counting = 2,
    Mimalloc = 3,
    Jemalloc = 4,
}

impl Choice {
    pub(crate) const ALL: [Self; 4] = [Self::Glibc, Self::Mimalloc, Self::Jemalloc, Self::Counting];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Glibc => "glibc",
            Self::Counting => "counting",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
        }
    }

    pub(crate) fn is_built_in(self) -> bool {
        match self {
            Self::Glibc | Self::Counting => true,
            Self::Mimalloc => cfg!(feature = "mimalloc"),
            Self::Jemalloc => cfg!(feature = "jemalloc"),
        }
    }

    /// Returns the choice of this process.
    pub(crate) fn current() -> Self {
        match CHOICE.load(Ordering::Relaxed) {
            COUNTING => Self::Counting,
            MIMALLOC => Self::Mimalloc,
            JEMALLOC => Self::Jemalloc,
            _ => Self::Glibc,
        }
    }
}

const COUNTING: u8 = Choice::Counting as u8;
const MIMALLOC: u8 = Choice::Mimalloc as u8;
const JEMALLOC: u8 = Choice::Jemalloc as u8;

/// A [`Choice`], or 0 before the first allocation.
static CHOICE: AtomicU8 = AtomicU8::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Allocations of this process so far, if they are counted.
pub(crate) fn allocations() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Returns whether allocations are counted.
pub(crate) fn is_counted() -> bool {
    CHOICE.load(Ordering::Relaxed) == COUNTING
}

/// Reads the environment, without allocating. The first allocation comes before any thread.
#[cold]
fn choose() -> u8 {
    // SAFETY: the name is a C string, and nobody changes the environment this early.
    let value = unsafe { libc::getenv(VARIABLE_FOR_C.as_ptr()) };
    let choice = if value.is_null() {
        Choice::Glibc
    } else {
        // SAFETY: not null, so it is a C string of the environment.
        let value = unsafe { std::ffi::CStr::from_ptr(value) };
        let named = |choice: &Choice| choice.name().as_bytes() == value.to_bytes();
        let known = Choice::ALL.into_iter().find(named);
        known
            .filter(|choice| choice.is_built_in())
            .unwrap_or(Choice::Glibc)
    };
    CHOICE.store(choice as u8, Ordering::Relaxed);
    choice as u8
}

#[inline(always)]
fn choice() -> u8 {
    match CHOICE.load(Ordering::Relaxed) {
        0 => choose(),
        known => known,
    }
}

pub(crate) struct ChosenHeap;

/// The alignment that malloc guarantees anyway.
#[cfg(feature = "jemalloc")]
const MALLOC_ALIGN: usize = 16;

// SAFETY: each allocation is forwarded to one allocator, the same for the whole life of the process,
// with the length and alignment that were asked for.
unsafe impl GlobalAlloc for ChosenHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match choice() {
            #[cfg(feature = "mimalloc")]
            MIMALLOC => {
                // SAFETY: any length and any power of two may be requested.
                unsafe { libmimalloc_sys::mi_malloc_aligned(layout.size(), layout.align()).cast() }
            }
            #[cfg(feature = "jemalloc")]
            JEMALLOC if layout.align() <= MALLOC_ALIGN => {
                // SAFETY: any length may be requested.
                unsafe { tikv_jemalloc_sys::malloc(layout.size()).cast() }
            }
            #[cfg(feature = "jemalloc")]
            JEMALLOC => {
                // SAFETY: the length is not zero, as the caller promises.
                unsafe { tikv_jemalloc_sys::mallocx(layout.size(), flags(layout)).cast() }
            }
            choice => {
                if choice == COUNTING {
                    COUNT.fetch_add(1, Ordering::Relaxed);
                }
                // SAFETY: the caller's promise.
                unsafe { System.alloc(layout) }
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match choice() {
            #[cfg(feature = "mimalloc")]
            MIMALLOC => {
                // SAFETY: the block came from `mi_malloc_aligned`, like every block of this process.
                unsafe { libmimalloc_sys::mi_free(block.cast()) };
            }
            #[cfg(feature = "jemalloc")]
            JEMALLOC => {
                // SAFETY: the block came from `malloc` or `mallocx` with these arguments.
                unsafe {
                    tikv_jemalloc_sys::sdallocx(block.cast(), layout.size(), flags(layout));
                };
            }
            _ => {
                // SAFETY: the block came from `System`, like every block of this process; the rest is the
                // caller's promise.
                unsafe { System.dealloc(block, layout) };
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        match choice() {
            #[cfg(feature = "mimalloc")]
            MIMALLOC => {
                let align = layout.align();
                // SAFETY: the block came from `mi_malloc_aligned` with this alignment.
                unsafe { libmimalloc_sys::mi_realloc_aligned(block.cast(), len, align).cast() }
            }
            #[cfg(feature = "jemalloc")]
            JEMALLOC => {
                // SAFETY: the block came from `malloc` or `mallocx` with this alignment; the new length is
                // not zero, as the caller promises.
                unsafe { tikv_jemalloc_sys::rallocx(block.cast(), len, flags(layout)).cast() }
            }
            choice => {
                if choice == COUNTING {
                    COUNT.fetch_add(1, Ordering::Relaxed);
                }
                // SAFETY: the block came from `System`; the rest is the caller's promise.
                unsafe { System.realloc(block, layout, len) }
            }
        }
    }
}

/// Encodes an alignment for jemalloc: zero for what it always guarantees, else its base-2 logarithm.
#[cfg(feature = "jemalloc")]
fn flags(layout: Layout) -> i32 {
    if layout.align() <= MALLOC_ALIGN {
        0
    } else {
        layout.align().trailing_zeros() as i32
    }
}
