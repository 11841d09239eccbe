//! What a pool takes of the heap where that is all there is, and when.
#![cfg(not(any(feature = "std", loom)))]

mod common;

use common::MODES;
use slab_core::{ConfigError, MAX_CHUNK_ALIGN, Mode, SizeClasses, SlabPool};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which counts what this thread has of it. Large blocks are as some systems give
/// them: backed when they are touched.
struct CountingAllocator;

thread_local! {
    static HEAP_BYTES: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// What this thread may have of it.
    static MOST_BYTES: Cell<isize> = const { Cell::new(isize::MAX) };
}

#[cfg(all(target_os = "linux", not(miri)))]
fn is_mapped(layout: Layout) -> bool {
    layout.size() >= 1 << 20 && layout.align() == 4096
}

// SAFETY: all is left to `System`, but for large blocks, which are mappings.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if HEAP_BYTES.get() + layout.size() as isize > MOST_BYTES.get() {
            return std::ptr::null_mut();
        }
        HEAP_BYTES.set(HEAP_BYTES.get() + layout.size() as isize);
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        #[cfg(all(target_os = "linux", not(miri)))]
        if is_mapped(layout) {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping, at an address of the system's choice.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    layout.size(),
                    protection,
                    flags,
                    -1,
                    0,
                )
            };
            assert_ne!(at, libc::MAP_FAILED);
            return at.cast();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let at = unsafe { self.alloc(layout) };
        #[cfg(all(target_os = "linux", not(miri)))]
        if is_mapped(layout) {
            return at;
        }
        if !at.is_null() {
            // SAFETY: the block just allocated.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HEAP_BYTES.set(HEAP_BYTES.get() - layout.size() as isize);
        #[cfg(all(target_os = "linux", not(miri)))]
        if is_mapped(layout) {
            // SAFETY: a mapping of `alloc`, which nobody uses any more.
            assert_eq!(unsafe { libc::munmap(at.cast(), layout.size()) }, 0);
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn builder() -> slab_core::SlabPoolBuilder {
    SlabPool::builder().size_classes(SizeClasses::explicit(&[1536]).unwrap())
}

/// As `SlabPoolBuilder::max_memory` says: of 256 KiB, so many hundredths. Room for what 4096 threads with magazines move
/// took 956 KB, and here no thread has any; with the short batches of small magazines, chunks of 64 bytes
/// took 57 %.
#[test]
fn small_pool_in_lent_memory_takes_what_the_documentation_says() {
    const CAP: usize = 256 << 10;
    for mode in MODES {
        for (chunk_bytes, hundredths) in [
            (64, if mode == Mode::Ring { 43 } else { 30 }),
            (1536, if mode == Mode::Ring { 13 } else { 12 }),
        ] {
            // Wherever its first page begins, all slabs of the cap fit.
            let memory = Box::leak(Box::<[u8]>::new_uninit_slice(CAP + MAX_CHUNK_ALIGN - 1));
            let classes = SizeClasses::explicit(&[chunk_bytes]).unwrap();
            let before = HEAP_BYTES.get();
            let builder = SlabPool::builder().mode(mode).size_classes(classes);
            let pool = builder.build_in(memory).unwrap();
            let taken = HEAP_BYTES.get() - before;
            assert_eq!(pool.max_memory(), CAP);
            let allowed = (CAP * hundredths / 100) as isize;
            assert!(
                taken <= allowed && taken > allowed - CAP as isize / 50,
                "{mode:?}, chunks of {chunk_bytes}: {taken} bytes"
            );
            drop(pool);
            assert!(HEAP_BYTES.get() <= before);
        }
    }
}

/// As where it has none for a table. In a program that has no system it would be the end of it.
#[test]
fn heap_without_room_for_the_pool_itself_is_an_error_and_the_memory_comes_back() {
    let mut memory = Box::leak(Box::<[u8]>::new_uninit_slice(256 << 10));
    for mode in MODES {
        let address = memory.as_ptr();
        let other = Box::leak(Box::<[u8]>::new_uninit_slice(256 << 10));
        let before = HEAP_BYTES.get();
        let pool = builder().mode(mode).build_in(other).unwrap();
        let needed = HEAP_BYTES.get() - before;
        drop(pool);
        // Of this, the pool itself is 30 KiB.
        MOST_BYTES.set(before + needed - (15 << 10));
        let refused = builder().mode(mode).build_in(memory);
        MOST_BYTES.set(isize::MAX);
        let refused = refused.unwrap_err();
        assert!(matches!(refused.error(), ConfigError::Reserve { .. }));
        memory = refused.into_memory();
        assert_eq!((memory.as_ptr(), memory.len()), (address, 256 << 10));
        assert_eq!(HEAP_BYTES.get(), before, "{mode:?}");
    }
}

/// Of its slabs there are tables as long as it is large.
#[test]
#[cfg(not(miri))]
fn heap_without_room_for_the_slabs_of_a_large_pool_is_an_error() {
    const CAP: usize = 64 << 20;
    let mut memory = Box::leak(Box::<[u8]>::new_uninit_slice(CAP));
    for mode in MODES {
        let other = Box::leak(Box::<[u8]>::new_uninit_slice(CAP));
        let before = HEAP_BYTES.get();
        let pool = builder().mode(mode).build_in(other).unwrap();
        let needed = HEAP_BYTES.get() - before;
        drop(pool);
        // From what the pool itself takes to what the map of free chunks takes.
        for missing in (1..48).map(|kib| kib << 10) {
            MOST_BYTES.set(before + needed - missing);
            let refused = builder().mode(mode).build_in(memory);
            MOST_BYTES.set(isize::MAX);
            memory = refused.unwrap_err().into_memory();
            assert_eq!(HEAP_BYTES.get(), before, "{mode:?}");
        }
    }
}

/// As the system says of the page of each chunk.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn prefaulted_pool_is_resident_where_its_memory_is_the_heaps() {
    use slab_core::Backing;
    let resident = |backing| {
        let pool = builder().max_memory(1 << 20).backing(backing).build();
        let pool = pool.unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1536).ok()).collect();
        let is_resident = |at: usize| {
            let mut state = 0_u8;
            let page = std::ptr::without_provenance_mut(at / 4096 * 4096);
            // SAFETY: a page of the pool, and `state` has a byte for it.
            assert_eq!(unsafe { libc::mincore(page, 4096, &mut state) }, 0);
            state & 1 == 1
        };
        let chunks = all.iter().map(|chunk| chunk.as_ptr().addr().get());
        (chunks.filter(|&at| is_resident(at)).count(), all.len())
    };
    assert_eq!(resident(Backing::OnDemand).0, 0);
    let (there, all) = resident(Backing::Prefault);
    assert_eq!(there, all);
}

/// So an allocator that only hands out, from a region of its own, is enough for a program without a heap.
#[test]
fn a_pool_in_lent_memory_takes_nothing_of_the_heap_once_it_is_built() {
    for mode in MODES {
        let memory = Box::leak(Box::<[u8]>::new_uninit_slice(512 << 10));
        let classes = SizeClasses::explicit(&[64, 1536, 16384]).unwrap();
        let pool = SlabPool::builder().size_classes(classes).mode(mode);
        let pool = pool.build_in(memory).unwrap();
        let mut held = Vec::with_capacity(8192);
        let before = ALLOCATIONS.get();
        for _ in 0..3 {
            for len in [64, 1500, 16384] {
                let mut batch = pool.chunk_batch(len).unwrap();
                held.extend(std::iter::from_fn(|| pool.try_alloc(len).ok()));
                assert!(held.len() >= 4, "{mode:?}");
                held.truncate(held.len() / 2);
                batch.fill(2).unwrap();
                let shared = pool.try_alloc_zeroed(len).unwrap().into_shared();
                drop((shared.clone(), shared));
                assert!(pool.stats().in_use() > 0);
                pool.trim();
                held.clear();
            }
        }
        assert_eq!(ALLOCATIONS.get(), before, "{mode:?}");
    }
}
