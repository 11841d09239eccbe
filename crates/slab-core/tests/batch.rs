//! Batches of chunks, and chunks as pointers.

mod common;

use common::MODES;
use slab_core::{AllocError, Chunk, ChunkBatch, SizeClasses, SlabPool};
use std::collections::HashSet;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;

fn pool() -> SlabPool {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[192, 1024]).unwrap())
        .max_memory(256 << 10)
        .build()
        .unwrap()
}

fn filled(pool: &SlabPool, len: usize, count: usize) -> ChunkBatch {
    let mut batch = pool.chunk_batch(len).unwrap();
    assert_eq!(batch.fill(count).unwrap(), batch.len());
    batch
}

#[test]
fn a_batch_holds_different_chunks_of_the_size_asked() {
    let pool = pool();
    let mut seen = HashSet::new();
    let mut batches = Vec::new();
    for count in [0, 1, 32, 64] {
        let batch = filled(&pool, 1000, count);
        assert_eq!(batch.len(), count);
        seen.extend(batch.as_ptrs());
        batches.push(batch);
    }
    assert_eq!(seen.len(), 97);
    assert_eq!(pool.stats().classes()[1].in_use, 97);
    thread::spawn(move || drop(batches)).join().unwrap();
    assert_eq!(pool.stats().in_use(), 0);
}

#[test]
fn fill_stops_at_max_and_at_what_the_pool_has_left() {
    let pool = pool();
    let mut small = filled(&pool, 1, 1000);
    assert_eq!(small.len(), ChunkBatch::MAX);
    assert_eq!(small.fill(3), Ok(ChunkBatch::MAX), "takes nothing away");
    let mut all: Vec<ChunkBatch> = Vec::new();
    let error = loop {
        let mut batch = pool.chunk_batch(1024).unwrap();
        match batch.fill(60) {
            Ok(_) => all.push(batch),
            Err(error) => break error,
        }
    };
    assert_eq!(error, AllocError::Exhausted { chunk_bytes: 1024 });
    let total: usize = all.iter().map(ChunkBatch::len).sum();
    assert_eq!(total as u64, pool.stats().classes()[1].committed_chunks);
    assert_ne!(all.last().unwrap().len(), 60, "the last got the rest");
    assert_eq!(
        pool.stats().classes()[1].exhausted,
        1,
        "that got the rest was served"
    );
    let too_large = pool.chunk_batch(1025).unwrap_err();
    assert!(matches!(too_large, AllocError::TooLarge { .. }));
}

#[test]
fn chunks_are_popped_and_pushed_one_by_one() {
    let (pool, other) = (pool(), self::pool());
    let mut batch = filled(&pool, 1024, 3);
    let mut one = batch.pop().unwrap();
    assert_eq!(one.try_copy_from_slice(b"mine").unwrap(), b"mine");
    batch.push(one).unwrap();
    assert!(batch.push(pool.try_alloc(100).unwrap()).is_err(), "class");
    assert!(batch.push(other.try_alloc(1024).unwrap()).is_err(), "pool");
    while batch.len() < ChunkBatch::MAX {
        batch.push(pool.try_alloc(1024).unwrap()).unwrap();
    }
    assert!(batch.push(pool.try_alloc(1024).unwrap()).is_err(), "full");
    let chunks: Vec<Chunk> = batch.into_iter().collect();
    assert_eq!(chunks.len(), ChunkBatch::MAX);
    drop(chunks);
    assert_eq!((pool.stats().in_use(), other.stats().in_use()), (0, 0));
}

#[test]
fn a_batch_outlives_its_pool() {
    let pool = pool();
    let mut batch = filled(&pool, 1024, 5);
    drop(pool);
    let mut chunk = batch.pop().unwrap();
    assert!(chunk.fill_zero().iter().all(|&byte| byte == 0));
    drop(batch);
    drop(chunk);
}

#[test]
fn from_raw_finds_the_chunk_of_a_pointer() {
    let pool = pool();
    let (small, large) = (pool.alloc_raw(1).unwrap(), pool.alloc_raw(1024).unwrap());
    // SAFETY: just allocated from this pool, and taken back once.
    let small = unsafe { pool.chunk_from_raw(small) }.unwrap();
    // SAFETY: as above.
    let large = unsafe { pool.chunk_from_raw(large) }.unwrap();
    assert_eq!((small.capacity(), large.capacity()), (192, 1024));
    assert_eq!(pool.stats().in_use(), 2);
    let at = large.into_raw();
    // SAFETY: as above.
    unsafe { pool.free_raw(at) }.unwrap();
    assert_eq!(pool.stats().in_use(), 1);
    drop(small);
    assert_eq!(pool.stats().in_use(), 0);
}

#[test]
fn pointers_that_are_no_chunks_are_refused() {
    let (pool, other) = (pool(), self::pool());
    // The first of its slab.
    let mut all: Vec<_> = (0..60).map(|_| pool.try_alloc(192).unwrap()).collect();
    all.sort_by_key(Chunk::as_ptr);
    all.truncate(1);
    let at = all[0].as_ptr();
    let mut byte = 0u8;
    let wrong = [
        NonNull::from(&mut byte),
        at.map_addr(|addr| addr.checked_add(64).unwrap()),
        at.map_addr(|addr| addr.checked_add(1).unwrap()),
        // A slab that has served no class so far.
        at.map_addr(|addr| addr.checked_add(128 << 10).unwrap()),
        // The rest of the slab behind its last chunk.
        at.map_addr(|addr| addr.checked_add((64 << 10) - 64).unwrap()),
        at.map_addr(|addr| addr.checked_add(usize::MAX / 2).unwrap()),
    ];
    for at in wrong {
        // SAFETY: none of these starts a chunk.
        let error = unsafe { pool.free_raw(at) }.unwrap_err();
        assert!(error.to_string().contains("not the start of a chunk"));
    }
    // SAFETY: a chunk, but not of this pool.
    assert!(unsafe { other.free_raw(at) }.is_err());
    assert_eq!(pool.stats().in_use(), 1);
}

/// A free wakes a task that waits for memory, and its waker is foreign code.
#[test]
fn panicking_waker_leaks_no_chunk_of_a_batch() {
    struct PanickingWaker;

    impl Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            panic!("by a waker");
        }
    }

    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[1024]).unwrap())
        .max_memory(64 << 10)
        .build()
        .unwrap();
    let batch = filled(&pool, 1024, 64);
    let waker = Waker::from(Arc::new(PanickingWaker));
    let mut waits = Box::pin(pool.alloc(1024));
    let mut cx = Context::from_waker(&waker);
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    catch_unwind(AssertUnwindSafe(|| drop(batch))).unwrap_err();
    drop(waits);
    assert_eq!(pool.stats().in_use(), 0);
}

/// In every mode: who can do without is told, and nobody else is.
#[test]
fn a_spare_chunk_that_there_is_not_is_no_refusal() {
    for mode in MODES {
        let classes = SizeClasses::explicit(&[16384]).unwrap();
        let pool = SlabPool::builder().size_classes(classes).mode(mode);
        let pool = pool.max_memory(64 << 10).build().unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc_spare(10_000)).collect();
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|chunk| chunk.capacity() == 16384));
        assert!(pool.try_alloc_spare(16385).is_none());
        let stats = pool.stats();
        assert_eq!((stats.classes()[0].exhausted, stats.too_large), (0, 0));
        assert_eq!((stats.in_use(), stats.classes()[0].allocs), (4, 4));
        assert!(pool.try_alloc(1).is_err());
        assert_eq!(pool.stats().classes()[0].exhausted, 1);
    }
}
