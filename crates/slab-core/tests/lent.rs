//! Pools over memory that the caller owns.
#![cfg(not(loom))]

use slab_core::{AllocError, BuildInError, ConfigError, Mode, SizeClasses, Slab, SlabPool};
use std::mem::MaybeUninit;

fn lent(bytes: usize) -> &'static mut [MaybeUninit<u8>] {
    // What was there before must not be seen.
    Box::leak(vec![MaybeUninit::new(0xAA); bytes].into_boxed_slice())
}

fn classes() -> SizeClasses {
    SizeClasses::explicit(&[1536, 4096]).unwrap()
}

/// Refuses so many bytes, from an odd address on; returns why. They come back whole, and serve another pool.
fn refused<T>(
    bytes: usize,
    build_in: impl FnOnce(&'static mut [MaybeUninit<u8>]) -> Result<T, BuildInError>,
) -> ConfigError {
    let memory = &mut lent(bytes + 1)[1..];
    let range = memory.as_ptr_range();
    let Err(refused) = build_in(memory) else {
        panic!("it must not be built");
    };
    let error = refused.error();
    let memory = refused.into_memory();
    assert_eq!(memory.as_ptr_range(), range);
    memory.fill(MaybeUninit::new(0xBB));
    if memory.len() >= (64 << 10) + 4095 {
        let classes = SizeClasses::explicit(&[1536]).unwrap();
        let pool = SlabPool::builder().size_classes(classes);
        let pool = pool.build_in(memory).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc_zeroed(1536).ok()).collect();
        assert_eq!(all.len(), pool.max_memory() / (64 << 10) * 42);
        for chunk in &all {
            // SAFETY: the chunk's bytes are zeroed, and ours while it lives.
            let bytes = unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), 1536) };
            assert_eq!(bytes, [0; 1536]);
        }
    }
    error
}

#[test]
#[cfg_attr(miri, ignore = "leaks, as memory for ever does")]
fn lent_memory_serves_aligned_zeroed_chunks_up_to_the_cap() {
    // Starts at an odd address; the first page is lost.
    let memory = &mut lent(300 << 10)[1..];
    let range = memory.as_ptr_range();
    let (from, to) = (range.start.addr(), range.end.addr());
    let pool = SlabPool::builder().size_classes(classes());
    let pool = pool.max_memory(64 << 20).build_in(memory).unwrap();
    assert_eq!(pool.max_memory(), 256 << 10);
    for (class, len) in [1536, 4096].into_iter().enumerate() {
        let mut held = Vec::new();
        let refused = loop {
            match pool.try_alloc(len) {
                Ok(chunk) => held.push(chunk),
                Err(error) => break error,
            }
        };
        assert_eq!(refused, AllocError::Exhausted { chunk_bytes: len });
        assert_eq!(held.len(), (64 << 10) / len * 4);
        for chunk in &mut held {
            let at = chunk.as_ptr();
            assert!(from <= at.addr().get() && at.addr().get() + len <= to);
            assert!(
                at.addr()
                    .get()
                    .is_multiple_of(pool.size_classes().align(class))
            );
            // SAFETY: the chunk's bytes are initialised, and ours while it lives.
            let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), len) };
            assert!(class == 1 || bytes.iter().all(|&byte| byte == 0));
            chunk.try_copy_from_slice(&[7; 1000]).unwrap();
        }
    }
    assert_eq!(pool.stats().in_use(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "leaks, as memory for ever does")]
fn lent_memory_is_neither_trimmed_nor_unmapped() {
    let memory = lent(300 << 10);
    let pool = SlabPool::builder()
        .size_classes(classes())
        .build_in(memory)
        .unwrap();
    let mut chunk = pool.try_alloc(4096).unwrap();
    let at = chunk.as_ptr();
    chunk.try_copy_from_slice(b"still here").unwrap();
    drop(pool.try_alloc(1536));
    let committed = pool.stats().committed_bytes;
    assert_eq!(pool.trim(), 0);
    assert_eq!(pool.stats().committed_bytes, committed);
    drop(pool);
    drop(chunk);
    // SAFETY: within the memory, which was leaked; the pool has written there, and is gone.
    let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), 10) };
    assert_eq!(bytes, b"still here");
}

#[test]
fn lent_memory_below_one_slab_is_an_error() {
    for bytes in [0, 1, 4096, 64 << 10] {
        // One byte less than a slab and the way to the next page.
        let build_in = |memory| SlabPool::builder().size_classes(classes()).build_in(memory);
        let error = match bytes {
            0 => build_in(&mut []).unwrap_err().error(),
            _ if cfg!(miri) => return, // Leaks.
            bytes => refused(bytes, build_in),
        };
        assert!(
            matches!(
                error,
                ConfigError::CapBelowOneSlab {
                    slab_bytes: 65536,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "leaks, as memory for ever does")]
fn memory_that_was_lent_in_vain_comes_back() {
    #[repr(align(8192))]
    struct Unaligned;
    let ring = SlabPool::builder().mode(Mode::Ring).size_classes(classes());
    // One slab, and a page less a byte.
    let few = refused((64 << 10) + 8190, |memory| ring.build_in(memory));
    let slabs_and_classes = ConfigError::CapBelowClasses {
        slabs: 1,
        classes: 2,
    };
    assert_eq!(few, slabs_and_classes);
    let align = refused(200 << 10, |memory| {
        Slab::<Unaligned>::builder().build_in(memory)
    });
    assert_eq!(align, ConfigError::BadAlignment { align: 8192 });
    // Within the pool that the slab builds.
    let few = refused(64 << 10, |memory| {
        Slab::<[u8; 16384]>::builder().build_in(memory)
    });
    assert!(matches!(few, ConfigError::CapBelowOneSlab { .. }), "{few}");
}

/// Under Miri: it is the only one, and no pool was built from it.
#[test]
fn memory_that_comes_back_is_the_lenders_alone() {
    let memory = lent((64 << 10) + 4095);
    let ring = SlabPool::builder().mode(Mode::Ring).size_classes(classes());
    let refused = ring.build_in(memory).unwrap_err();
    assert!(matches!(
        refused.error(),
        ConfigError::CapBelowClasses { .. }
    ));
    let memory = refused.into_memory();
    memory.fill(MaybeUninit::new(1));
    // SAFETY: leaked from a box by `lent`, and nobody else refers to it.
    drop(unsafe { Box::from_raw(memory) });
}

/// Whatever the type's alignment, and wherever the memory begins.
#[test]
#[cfg_attr(miri, ignore = "leaks, as memory for ever does")]
fn lent_memory_holds_typed_values_up_to_its_end() {
    #[repr(align(4096))]
    struct Page(u8);
    let memory = &mut lent(300 << 10)[1..];
    let range = memory.as_ptr_range();
    let slab = Slab::<Page>::builder().max_objects(1).build_in(memory);
    let slab = slab.unwrap();
    assert_eq!(slab.capacity(), (256 << 10) / 4096);
    let held: Vec<_> = (0..slab.capacity())
        .map(|i| slab.try_insert(Page(i as u8)).unwrap_or_else(|_| panic!()))
        .collect();
    assert!(slab.try_insert(Page(0)).is_err());
    for (i, page) in held.iter().enumerate() {
        let at: *const Page = &**page;
        assert!(range.contains(&at.cast()) && at.is_aligned());
        assert_eq!(page.0, i as u8);
    }
    drop(slab);
    drop(held);
    let refused = Slab::<Page>::builder().build_in(&mut []).unwrap_err();
    assert!(matches!(
        refused.error(),
        ConfigError::CapBelowOneSlab { .. }
    ));
}

/// A timer that trims would otherwise send all threads to the slow path each time, for nothing.
#[test]
#[cfg(feature = "std")]
#[cfg_attr(miri, ignore = "leaks, as memory for ever does")]
fn trim_of_lent_memory_leaves_magazines_alone() {
    let pool = SlabPool::builder().size_classes(classes());
    let pool = pool.build_in(lent(300 << 10)).unwrap();
    drop(pool.try_alloc(4096).unwrap());
    let cached = |pool: &SlabPool| pool.stats().classes()[1].in_magazines;
    let before = cached(&pool);
    assert_ne!(before, 0);
    assert_eq!((pool.trim(), pool.trim_above(0, 0)), (0, 0));
    assert_eq!(cached(&pool), before);
}

/// Of lent memory the cap is what was lent, and 1/128 of it what a magazine holds.
#[test]
#[cfg(feature = "std")]
#[cfg_attr(miri, ignore = "leaks, as memory for ever does")]
fn magazines_are_bounded_by_what_was_lent() {
    let classes = SizeClasses::explicit(&[256]).unwrap();
    let pool = SlabPool::builder().size_classes(classes);
    let pool = pool.build_in(lent(1 << 20)).unwrap();
    drop(
        (0..300)
            .map(|_| pool.try_alloc(1).unwrap())
            .collect::<Vec<_>>(),
    );
    let in_magazines = pool.stats().classes()[0].in_magazines;
    assert!((1..=32).contains(&in_magazines), "{in_magazines}");
}
