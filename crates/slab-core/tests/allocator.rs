//! Collections that live in a pool.
#![cfg(all(feature = "allocator-api2", not(loom)))]

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use core::alloc::Layout;
use hashbrown::{DefaultHashBuilder, HashMap};
use proptest::prelude::*;
use slab_core::{SizeClasses, SlabAllocator, SlabPool};

fn allocator(sizes: &[usize], max_memory: usize) -> SlabAllocator {
    let classes = SizeClasses::explicit(sizes).unwrap();
    let pool = SlabPool::builder().size_classes(classes);
    SlabAllocator::open(pool.max_memory(max_memory)).unwrap()
}

/// Chunks in use, by class.
fn in_use(alloc: &SlabAllocator) -> std::vec::Vec<u64> {
    let stats = alloc.pool().stats();
    stats.classes().iter().map(|class| class.in_use).collect()
}

#[test]
fn vec_moves_only_when_its_size_class_changes() {
    let alloc = allocator(&[64, 512, 4096], 1 << 20);
    let mut bytes = Vec::with_capacity_in(10, alloc.clone());
    bytes.extend_from_slice(b"0123456789");
    assert_eq!(in_use(&alloc), [1, 0, 0]);
    let at = bytes.as_ptr();
    // To the last byte.
    bytes.reserve_exact(54);
    assert_eq!((bytes.as_ptr(), &in_use(&alloc)[..]), (at, &[1, 0, 0][..]));
    bytes.reserve_exact(500);
    assert_eq!(in_use(&alloc), [0, 1, 0]);
    let at = bytes.as_ptr();
    bytes.shrink_to(100);
    assert_eq!((bytes.as_ptr(), &in_use(&alloc)[..]), (at, &[0, 1, 0][..]));
    bytes.reserve_exact(4000);
    assert_eq!(in_use(&alloc), [0, 0, 1]);
    bytes.shrink_to_fit();
    assert_eq!(in_use(&alloc), [1, 0, 0]);
    assert_eq!(bytes, b"0123456789");
    bytes.clear();
    bytes.shrink_to_fit();
    assert_eq!(in_use(&alloc), [0, 0, 0]);
}

#[test]
fn too_large_or_exhausted_is_an_allocation_error() {
    let alloc = allocator(&[64, 16384], 64 << 10);
    let mut large = Vec::<u8, _>::new_in(alloc.clone());
    assert!(large.try_reserve(16385).is_err());
    let mut all = std::vec::Vec::new();
    while large.try_reserve(16384).is_ok() {
        large.resize(16384, all.len() as u8);
        all.push(core::mem::replace(&mut large, Vec::new_in(alloc.clone())));
    }
    assert_eq!(all.len(), 4);
    assert!(Box::try_new_in(1_u8, alloc.clone()).is_err());
    // There is no smaller chunk: shrinking keeps the large one, and freeing it finds its class.
    let refused = |alloc: &SlabAllocator| alloc.pool().stats().classes()[0].exhausted;
    assert_eq!(refused(&alloc), 1);
    all[2].truncate(3);
    all[2].shrink_to_fit();
    assert_eq!((&all[2][..], all[2].capacity()), (&[2, 2, 2][..], 3));
    assert_eq!(in_use(&alloc), [0, 4]);
    assert_eq!(refused(&alloc), 1, "it can do without");
    drop(all);
    assert_eq!(in_use(&alloc), [0, 0]);
    assert!(large.try_reserve(16384).is_ok());
}

#[test]
fn alignment_is_honoured_or_refused() {
    let alloc = allocator(&[192, 512, 1536, 8192], 1 << 20);
    for (size, align, bytes) in [
        (1, 1, Some(192)),
        (100, 64, Some(192)),
        (100, 128, Some(512)),
        (600, 512, Some(1536)),
        (600, 1024, Some(8192)),
        (1, 4096, Some(8192)),
        (1, 8192, None),
        (8193, 1, None),
    ] {
        let layout = Layout::from_size_align(size, align).unwrap();
        let block = alloc.allocate(layout);
        assert_eq!(block.map(|block| block.len()).ok(), bytes, "{layout:?}");
        let Ok(block) = block else { continue };
        assert!(block.cast::<u8>().addr().get().is_multiple_of(align));
        // SAFETY: allocated above with this layout.
        unsafe { alloc.deallocate(block.cast(), layout) };
    }
    // A block that is large enough but not aligned enough moves, whichever way it changes.
    let small = Layout::from_size_align(100, 64).unwrap();
    let all: std::vec::Vec<_> = (0..8).map(|_| alloc.allocate(small).unwrap()).collect();
    for (block, larger) in all.into_iter().zip([true, false].into_iter().cycle()) {
        let other = Layout::from_size_align(if larger { 101 } else { 99 }, 512).unwrap();
        let moved = if larger {
            // SAFETY: allocated above with this layout, and the new one is larger.
            unsafe { alloc.grow(block.cast(), small, other) }
        } else {
            // SAFETY: allocated above with this layout, and the new one is smaller.
            unsafe { alloc.shrink(block.cast(), small, other) }
        };
        let moved = moved.unwrap();
        assert!(moved.cast::<u8>().addr().get().is_multiple_of(512));
        // SAFETY: allocated just now with this layout.
        unsafe { alloc.deallocate(moved.cast(), other) };
    }
    assert_eq!(alloc.pool().stats().in_use(), 0);
}

/// A block that happens to be aligned to more than its class promises.
#[test]
fn shrinking_never_moves_a_block_to_a_larger_class() {
    let alloc = allocator(&[1536, 2048], 1 << 20);
    let old = Layout::from_size_align(1500, 512).unwrap();
    let new = Layout::from_size_align(1400, 1024).unwrap();
    let blocks = [(); 2].map(|()| alloc.allocate(old).unwrap().cast::<u8>());
    let is_aligned = |at: &core::ptr::NonNull<u8>| at.addr().get().is_multiple_of(1024);
    assert_eq!(blocks.iter().filter(|at| is_aligned(at)).count(), 1);
    for at in blocks {
        let is_aligned = is_aligned(&at);
        // SAFETY: allocated above with this layout, and the new one is smaller.
        let kept = unsafe { alloc.shrink(at, old, new) }.unwrap().cast::<u8>();
        assert_eq!(kept == at, is_aligned);
        let moved = u64::from(!is_aligned);
        assert_eq!(alloc.pool().stats().classes()[1].in_use, moved);
        // SAFETY: allocated just now with this layout.
        unsafe { alloc.deallocate(kept, new) };
    }
    assert_eq!(in_use(&alloc), [0, 0]);
}

/// No class promises that alignment.
#[test]
fn shrinking_keeps_a_block_that_happens_to_be_aligned() {
    let alloc = allocator(&[512, 1536], 1 << 20);
    let old = Layout::from_size_align(1500, 512).unwrap();
    let new = Layout::from_size_align(100, 1024).unwrap();
    let blocks = [(); 2].map(|()| alloc.allocate(old).unwrap().cast::<u8>());
    let mut kept = 0;
    for at in blocks {
        let is_aligned = at.addr().get().is_multiple_of(1024);
        // SAFETY: allocated above with this layout, and the new one is smaller.
        let shrunk = unsafe { alloc.shrink(at, old, new) };
        assert_eq!(shrunk.ok().map(|to| to.cast()), is_aligned.then_some(at));
        kept += u32::from(is_aligned);
        // SAFETY: allocated with the old layout, whose class is that of a block that was kept.
        unsafe { alloc.deallocate(at, old) };
    }
    assert_eq!(kept, 1);
    assert_eq!(in_use(&alloc), [0, 0]);
}

/// As `Allocator` says of an error: the block still belongs to the caller, unchanged.
#[test]
fn failed_grow_or_shrink_leaves_the_block_unchanged() {
    // The smaller class has the only slab.
    let alloc = allocator(&[192, 8192], 64 << 10);
    let old = Layout::from_size_align(100, 64).unwrap();
    let blocks = [(); 2].map(|()| alloc.allocate(old).unwrap().cast::<u8>());
    let is_aligned = |at: &&core::ptr::NonNull<u8>| at.addr().get().is_multiple_of(4096);
    let at = *blocks.iter().find(|at| !is_aligned(at)).unwrap();
    // SAFETY: the block has more bytes.
    unsafe { at.write_bytes(7, 100) };
    let other = |size| Layout::from_size_align(size, 4096).unwrap();
    // SAFETY: allocated above with this layout, and the new one is larger.
    assert!(unsafe { alloc.grow(at, old, other(101)) }.is_err());
    // SAFETY: as above.
    assert!(unsafe { alloc.grow_zeroed(at, old, other(101)) }.is_err());
    // SAFETY: allocated above with this layout, and the new one is smaller.
    assert!(unsafe { alloc.shrink(at, old, other(99)) }.is_err());
    assert_eq!(in_use(&alloc), [2, 0]);
    // SAFETY: written above.
    assert_eq!(unsafe { at.cast::<[u8; 100]>().read() }, [7; 100]);
    for at in blocks {
        // SAFETY: allocated above with this layout.
        unsafe { alloc.deallocate(at, old) };
    }
    assert_eq!(in_use(&alloc), [0, 0]);
}

#[test]
fn zero_sized_layouts_take_no_chunk() {
    let alloc = allocator(&[64], 1 << 20);
    let none: Box<(), _> = Box::new_in((), alloc.clone());
    let layout = Layout::from_size_align(0, 1024).unwrap();
    let block = alloc.allocate_zeroed(layout).unwrap();
    assert!(block.cast::<u8>().addr().get().is_multiple_of(1024));
    assert_eq!(alloc.pool().stats().in_use(), 0);
    let larger = Layout::new::<[u64; 8]>();
    // SAFETY: allocated above with this layout; the new one is larger.
    let block = unsafe { alloc.grow(block.cast(), layout, larger) }.unwrap();
    assert_eq!(alloc.pool().stats().in_use(), 1);
    // SAFETY: allocated just now with this layout; the new one is smaller.
    let block = unsafe { alloc.shrink(block.cast(), larger, layout) }.unwrap();
    // SAFETY: allocated just now with this layout.
    unsafe { alloc.deallocate(block.cast(), layout) };
    drop(none);
    assert_eq!(alloc.pool().stats().in_use(), 0);
    assert_eq!(alloc.pool().stats().classes()[0].allocs, 1);
}

#[test]
fn zeroed_blocks_are_zero_when_memory_is_reused() {
    for zero_on_free in [false, true] {
        reuse_zeroed(zero_on_free);
    }
}

fn reuse_zeroed(zero_on_free: bool) {
    let classes = SizeClasses::explicit(&[256, 1024]).unwrap();
    let pool = SlabPool::builder().size_classes(classes);
    let pool = pool.max_memory(128 << 10).zero_on_free(zero_on_free);
    let alloc = SlabAllocator::open(pool).unwrap();
    for _ in 0..3 {
        let layout = Layout::new::<[u8; 200]>();
        let block = alloc.allocate_zeroed(layout).unwrap();
        // SAFETY: allocated just now, zeroed.
        let bytes = unsafe { block.as_ref() };
        assert!(bytes.len() == 256 && bytes.iter().all(|&byte| byte == 0));
        // SAFETY: the block is 256 bytes long.
        unsafe { block.cast::<u8>().write_bytes(0xFF, 256) };
        for size in [220, 1000] {
            let larger = Layout::from_size_align(size, 1).unwrap();
            // SAFETY: allocated with this layout, which is smaller.
            let block = unsafe { alloc.grow_zeroed(block.cast(), layout, larger) }.unwrap();
            assert_eq!(block.len(), larger.size(), "zeroing costs time");
            // SAFETY: allocated just now, and initialised.
            let bytes = unsafe { block.as_ref() };
            assert!(bytes[..200].iter().all(|&byte| byte == 0xFF));
            assert!(bytes[200..].iter().all(|&byte| byte == 0), "{size}");
            if size == 1000 {
                // SAFETY: the block is 1024 bytes long.
                unsafe { block.cast::<u8>().write_bytes(0xFF, 1024) };
                // SAFETY: allocated just now with this layout.
                unsafe { alloc.deallocate(block.cast(), larger) };
                let block = alloc.allocate_zeroed(larger).unwrap();
                // SAFETY: allocated just now, zeroed.
                assert!(unsafe { block.as_ref() }.iter().all(|&byte| byte == 0));
                // SAFETY: allocated just now with this layout.
                unsafe { alloc.deallocate(block.cast(), larger) };
            }
        }
    }
    assert_eq!(alloc.pool().stats().in_use(), 0);
}

#[test]
fn collections_cross_threads_and_outlive_the_allocator() {
    let alloc = allocator(&[64, 1024, 65536], 1 << 20);
    let mut lines: Vec<Vec<u8, _>, _> = Vec::new_in(alloc.clone());
    for i in 0..100 {
        let mut line = Vec::new_in(alloc.clone());
        line.extend_from_slice(format!("line {i}").as_bytes());
        lines.push(line);
    }
    assert_eq!(alloc.pool().stats().in_use(), 101);
    drop(alloc);
    std::thread::spawn(move || assert_eq!(lines[42], b"line 42"))
        .join()
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 64 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A map in the pool equals the map on the heap, whatever is done to both.
    #[test]
    fn hash_map_in_the_pool_equals_one_on_the_heap(
        steps in proptest::collection::vec((any::<u8>(), any::<u16>(), 0..4_u8), 0..400),
    ) {
        let classes = SizeClasses::general();
        let alloc = SlabAllocator::open(SlabPool::builder().size_classes(classes)).unwrap();
        let mut ours: HashMap<u8, Box<u16, SlabAllocator>, DefaultHashBuilder, SlabAllocator> =
            HashMap::new_in(alloc.clone());
        let mut theirs = std::collections::HashMap::new();
        for (key, value, what) in steps {
            match what {
                0 => prop_assert_eq!(ours.remove(&key).map(|old| *old), theirs.remove(&key)),
                1 => ours.shrink_to_fit(),
                _ => {
                    let old = ours.insert(key, Box::new_in(value, alloc.clone()));
                    prop_assert_eq!(old.map(|old| *old), theirs.insert(key, value));
                }
            }
            prop_assert_eq!(ours.len(), theirs.len());
        }
        prop_assert!(ours.iter().all(|(key, value)| theirs[key] == **value));
        let tables = u64::from(ours.capacity() > 0);
        prop_assert_eq!(alloc.pool().stats().in_use(), ours.len() as u64 + tables);
        drop(ours);
        prop_assert_eq!(alloc.pool().stats().in_use(), 0);
    }
}
