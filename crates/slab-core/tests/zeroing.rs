//! Whose zeros a caller gets: those of a pool that zeroes on allocation or on free, and of calls that ask for them.

mod common;

use common::{MODES, fill};
#[cfg(feature = "std")]
use slab_core::Mode;
use slab_core::{Chunk, SizeClasses, SlabPool, SlabPoolBuilder};
use std::future::Future;
use std::pin::pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

fn builder() -> SlabPoolBuilder {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[1024, 16384]).unwrap())
        .max_memory(512 << 10)
}

fn bytes(chunk: &Chunk) -> &[u8] {
    // SAFETY: memory is zero at first and tests write initialised bytes only; nobody writes these while the
    // borrow lives.
    unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), chunk.capacity()) }
}

/// Compared at once, because Miri takes a step per byte otherwise.
fn is_zero(at: NonNull<u8>, len: usize) -> bool {
    const ZEROS: &[u8] = &[0; 16384];
    // SAFETY: as above, of a chunk that the caller holds.
    unsafe { std::slice::from_raw_parts(at.as_ptr(), len) == &ZEROS[..len] }
}

/// Leaves no byte of the pool's memory as it was: a bug has zeros to miss.
fn use_all(pool: &SlabPool, len: usize) {
    for chunk in &mut fill(pool, len) {
        chunk.fill_zero().fill(0x5E);
    }
}

/// Of free chunks in a magazine, in the depot and in slabs, and whatever call gets them.
#[test]
fn zero_on_alloc_zeroes_used_chunks_for_every_call() {
    for mode in MODES {
        for hardened in [false, true] {
            // Looks at each byte, for which Miri takes too long.
            if hardened && cfg!(miri) {
                continue;
            }
            let builder = builder().mode(mode).hardened(hardened);
            let pool = builder.zero_on_alloc(true).build().unwrap();
            for len in [1024, 16384] {
                use_all(&pool, len);
                // Now free chunks are wherever the mode keeps them.
                let one = pool.try_alloc(len - 7).unwrap();
                assert!(is_zero(one.as_ptr(), len), "{mode:?}");
                let spare = pool.try_alloc_spare(len).unwrap();
                assert!(is_zero(spare.as_ptr(), len), "{mode:?}");
                let asked = pool.try_alloc_zeroed(len).unwrap();
                assert!(is_zero(asked.as_ptr(), len), "{mode:?}");
                let raw = pool.alloc_raw(len).unwrap();
                assert!(is_zero(raw, len), "{mode:?}");
                let mut batch = pool.chunk_batch(len).unwrap();
                assert_eq!(batch.fill(3).unwrap(), 3);
                assert!(batch.as_ptrs().all(|at| is_zero(at, len)), "{mode:?}");
                let Poll::Ready(Ok(waited)) =
                    pin!(pool.alloc(len)).poll(&mut Context::from_waker(Waker::noop()))
                else {
                    panic!("the pool has more");
                };
                assert!(is_zero(waited.as_ptr(), len), "{mode:?}");
                let rest = fill(&pool, len);
                assert!(rest.iter().all(|chunk| is_zero(chunk.as_ptr(), len)));
                // SAFETY: allocated above, and not used again.
                unsafe { pool.free_raw(raw) }.unwrap();
                drop((one, spare, asked, batch, waited, rest));
            }
        }
    }
}

/// A chunk that was set aside for a waiter comes straight from whoever freed it.
#[test]
fn zero_on_alloc_zeroes_what_a_waiter_gets() {
    for mode in MODES {
        let pool = builder().mode(mode).zero_on_alloc(true).build().unwrap();
        let mut all = fill(&pool, 16384);
        all.iter_mut().for_each(|chunk| chunk.fill_zero().fill(7));
        let mut wait = pin!(pool.alloc(16384));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        drop(all.pop());
        let Poll::Ready(Ok(chunk)) = wait.as_mut().poll(&mut cx) else {
            panic!("{mode:?}: one was freed");
        };
        assert!(is_zero(chunk.as_ptr(), 16384), "{mode:?}");
    }
}

#[test]
fn zero_on_free_zeroes_chunks_before_reuse() {
    for mode in MODES {
        let pool = builder().zero_on_free(true).mode(mode).build().unwrap();
        let mut addresses = Vec::new();
        for _ in 0..3 {
            let mut chunk = pool.try_alloc(1024).unwrap();
            chunk.try_copy_from_slice(&[0x5E; 1024]).unwrap();
            addresses.push(chunk.as_ptr());
        }
        let mut shared = pool.try_alloc(1024).unwrap();
        shared.try_copy_from_slice(&[0x5E; 1024]).unwrap();
        let shared = shared.into_shared();
        drop((shared.clone(), shared));
        let mut batch = pool.chunk_batch(1024).unwrap();
        batch.fill(8).unwrap();
        let mut chunk = batch.pop().unwrap();
        chunk.try_copy_from_slice(&[0x5E; 1024]).unwrap();
        batch.push(chunk).unwrap();
        batch.clear();
        let all = fill(&pool, 1024);
        assert!(all.iter().all(|chunk| bytes(chunk) == [0; 1024]));
        assert!(all.iter().any(|chunk| addresses.contains(&chunk.as_ptr())));
    }
}

#[test]
fn without_zero_on_free_memory_is_reused_as_it_was() {
    let pool = builder().build().unwrap();
    let mut chunk = pool.try_alloc(1024).unwrap();
    chunk.try_copy_from_slice(&[7; 1024]).unwrap();
    drop(chunk);
    assert_eq!(
        bytes(&pool.try_alloc(1024).unwrap())[5],
        7,
        "the same chunk"
    );
    let zeroed = pool.try_alloc_zeroed(1000).unwrap();
    assert!(bytes(&zeroed).iter().all(|&byte| byte == 0));
}

/// Returns what is resident of a pool after all of it was asked for, by a call that gives zeros.
#[cfg(all(target_os = "linux", feature = "std"))]
fn resident_after(pool: &SlabPool, alloc: Alloc) -> usize {
    let all: Vec<Chunk> = std::iter::from_fn(|| alloc(pool, 16384).ok()).collect();
    assert_eq!(all.len(), (512 << 10) / 16384);
    let resident = pool.resident_bytes().expect("Linux says");
    assert!(
        all.iter()
            .all(|chunk| bytes(chunk).iter().all(|&byte| byte == 0)),
        "whether written or not"
    );
    resident
}

#[cfg(all(target_os = "linux", feature = "std"))]
type Alloc = fn(&SlabPool, usize) -> Result<Chunk, slab_core::AllocError>;

#[test]
#[cfg(all(target_os = "linux", feature = "std"))]
#[cfg_attr(miri, ignore = "its memory is the heap's")]
fn memory_fresh_from_the_system_is_not_zeroed_again() {
    let by_call: Alloc = SlabPool::try_alloc_zeroed;
    let by_pool: Alloc = SlabPool::try_alloc;
    for (alloc, zero) in [(by_call, false), (by_pool, true)] {
        for mode in [Mode::ThreadCached, Mode::DepotOnly] {
            let pool = builder().mode(mode).zero_on_alloc(zero).build().unwrap();
            assert_eq!(resident_after(&pool, alloc), 0, "{mode:?}: touched");
            // Now it was used, and the pool has to zero it.
            use_all(&pool, 16384);
            assert_eq!(resident_after(&pool, alloc), 512 << 10, "{mode:?}");
            // A slab that went to another class is not fresh, and one that was trimmed is.
            use_all(&pool, 1024);
            assert_eq!(resident_after(&pool, alloc), 512 << 10, "{mode:?}");
            assert_eq!(pool.trim(), 512 << 10);
            assert_eq!(resident_after(&pool, alloc), 0, "{mode:?}: touched");
        }
        // Of a page, and where a batch has many chunks: each is carved alone.
        let pool = SlabPool::builder().zero_on_alloc(zero).build().unwrap();
        let _all = [(); 20].map(|()| alloc(&pool, 4096).unwrap());
        assert_eq!(pool.resident_bytes(), Some(0), "touched");
    }
}
