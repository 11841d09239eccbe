//! The same suite over every mode of a pool, and what each mode promises beyond the others. Random
//! programs over all of them are in `programs/`.

mod common;

use common::{MODES, fill};
use slab_core::{AllocError, Chunk, ConfigError, Mode, SizeClasses, Slab, SlabPool};
use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;

const CAP: usize = if cfg!(miri) { 128 << 10 } else { 512 << 10 };

fn pool(mode: Mode) -> SlabPool {
    SlabPool::builder()
        .mode(mode)
        .size_classes(SizeClasses::explicit(&[1024, 16384]).unwrap())
        .max_memory(CAP)
        .build()
        .unwrap()
}

/// How many chunks of a size a pool of one class can hand out.
fn max_chunks(mode: Mode, len: usize) -> usize {
    // Two classes, each with its share.
    CAP / len / if mode == Mode::Ring { 2 } else { 1 }
}

/// Of the smaller class: this many were allocated, and this many are held.
fn assert_counts(pool: &SlabPool, allocated: u64, held: u64) {
    let stats = pool.stats();
    assert!(stats.committed_bytes <= stats.max_memory);
    let class = &stats.classes()[0];
    assert_eq!((class.allocs, class.in_use), (allocated, held), "{class:?}");
    assert_eq!(class.frees, allocated - held);
}

#[test]
fn whole_cap_is_handed_out_again_after_a_full_free() {
    for mode in MODES {
        let pool = pool(mode);
        for round in 0..3 {
            let all = fill(&pool, 1024);
            assert_eq!(all.len(), max_chunks(mode, 1024), "{mode:?}, round {round}");
            let distinct: HashSet<_> = all.iter().map(Chunk::as_ptr).collect();
            assert_eq!(distinct.len(), all.len());
            assert!(matches!(
                pool.try_alloc(1024),
                Err(AllocError::Exhausted { chunk_bytes: 1024 })
            ));
            let count = all.len() as u64;
            assert_counts(&pool, (round + 1) * count, count);
            drop(all);
            assert_counts(&pool, (round + 1) * count, 0);
        }
        // Memory that one class had serves the other, unless each has its share.
        assert_eq!(
            fill(&pool, 16384).len(),
            max_chunks(mode, 16384),
            "{mode:?}"
        );
    }
}

#[test]
fn chunks_are_freed_on_other_threads_and_outlive_the_pool() {
    const COUNT: usize = if cfg!(miri) { 30 } else { 20_000 };
    for mode in MODES {
        let pool = pool(mode);
        let (send, receive) = mpsc::sync_channel::<Chunk>(64);
        let consumer = thread::spawn(move || receive.into_iter().for_each(drop));
        for _ in 0..COUNT {
            send.send(pool.try_alloc(1000).unwrap()).unwrap();
        }
        drop(send);
        consumer.join().unwrap();
        assert_counts(&pool, COUNT as u64, 0);
        let mut last: Vec<_> = (0..5).map(|_| pool.try_alloc(1000).unwrap()).collect();
        drop(pool);
        for chunk in &mut last {
            chunk.fill_zero().fill(7);
        }
        thread::spawn(move || drop(last)).join().unwrap();
    }
}

#[test]
fn concurrent_threads_never_share_a_chunk() {
    const ROUNDS: usize = if cfg!(miri) { 3 } else { 2_000 };
    const HELD: usize = if cfg!(miri) { 3 } else { 9 };
    for mode in MODES {
        let pool = pool(mode);
        let threads: Vec<_> = (1..=4u8)
            .map(|id| {
                let pool = pool.clone();
                thread::spawn(move || {
                    let mut allocated = 0;
                    for _ in 0..ROUNDS {
                        let mut held: Vec<_> =
                            (0..HELD).map_while(|_| pool.try_alloc(1024).ok()).collect();
                        allocated += held.len() as u64;
                        held.iter_mut().for_each(|chunk| chunk.fill_zero().fill(id));
                        for chunk in &held {
                            // SAFETY: the bytes are initialised, and ours alone.
                            let first = unsafe { chunk.as_ptr().read() };
                            assert_eq!(first, id);
                        }
                    }
                    allocated
                })
            })
            .collect();
        let allocated = threads.into_iter().map(|one| one.join().unwrap()).sum();
        assert_counts(&pool, allocated, 0);
        assert_eq!(fill(&pool, 1024).len(), max_chunks(mode, 1024));
    }
}

#[test]
fn trim_gives_memory_back_and_it_can_be_used_again() {
    for mode in MODES {
        let pool = pool(mode);
        let all = fill(&pool, 16384);
        drop(all);
        assert_ne!(pool.trim(), 0, "{mode:?}");
        let class = pool.stats().classes()[1];
        assert_eq!(class.in_magazines + class.in_depot, 0);
        assert_eq!(fill(&pool, 16384).len(), max_chunks(mode, 16384));
    }
}

/// Whether or not slabs keep their class, trim goes down to what it is told to keep, and no further.
#[test]
#[cfg(all(feature = "std", target_os = "linux"))]
#[cfg_attr(miri, ignore = "its memory is the heap's")]
fn trim_stops_at_its_target() {
    for mode in MODES {
        let pool = pool(mode);
        for _ in 0..2 {
            let mut all = fill(&pool, 16384);
            all.iter_mut().for_each(|chunk| chunk.fill_zero().fill(1));
            drop(all);
            let mut held = 16384 * max_chunks(mode, 16384);
            assert_eq!(pool.resident_bytes(), Some(held), "{mode:?}");
            while held > 0 {
                assert_eq!(pool.trim_above(held, 0), 0, "{mode:?}: no more than {held}");
                let keep = held - pool.stats().slab_bytes;
                assert_eq!(pool.trim_above(keep, keep), held - keep, "{mode:?}");
                assert_eq!(pool.resident_bytes(), Some(keep), "{mode:?}");
                if keep > 0 {
                    // The memory that was kept is used next.
                    drop(pool.try_alloc(16384).unwrap());
                    assert_eq!(pool.trim_to(keep), 0, "{mode:?}");
                }
                held = keep;
            }
        }
    }
}

#[test]
fn frees_on_another_thread_serve_waiters_in_order() {
    for mode in MODES {
        let pool = pool(mode);
        let mut all = fill(&pool, 1024);
        let mut first = pin!(pool.alloc(1024));
        let mut second = pin!(pool.alloc(1024));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        let one = all.pop();
        thread::spawn(move || drop(one)).join().unwrap();
        assert!(second.as_mut().poll(&mut cx).is_pending(), "{mode:?}");
        assert!(pool.try_alloc(1024).is_err(), "it is set aside");
        let Poll::Ready(Ok(chunk)) = first.as_mut().poll(&mut cx) else {
            panic!("{mode:?}: served in turn");
        };
        drop(chunk);
        assert!(second.as_mut().poll(&mut cx).is_ready());
        // Nobody waits any more: frees and allocations go the usual way again.
        drop(all);
        assert_eq!(fill(&pool, 1024).len(), max_chunks(mode, 1024));
        // All of it twice, and the chunks of the two waiters.
        assert_counts(&pool, 2 * max_chunks(mode, 1024) as u64 + 2, 0);
    }
}

#[test]
fn typed_slabs_run_in_every_mode() {
    for mode in MODES {
        let slab = Slab::<String>::builder()
            .max_objects(100)
            .pool(|pool| pool.mode(mode))
            .build()
            .unwrap();
        let all: Vec<_> = (0..slab.capacity())
            .map(|n| slab.try_insert(n.to_string()).unwrap())
            .collect();
        assert!(slab.try_insert(String::new()).is_err());
        assert!(
            all.iter()
                .enumerate()
                .all(|(n, text)| **text == n.to_string())
        );
        drop(all);
        assert_eq!(slab.pool().stats().in_use(), 0);
    }
}

#[test]
fn only_thread_cached_pools_have_magazines() {
    for mode in MODES {
        let pool = pool(mode);
        drop(
            (0..7)
                .map(|_| pool.try_alloc(1024).unwrap())
                .collect::<Vec<_>>(),
        );
        let stats = pool.stats();
        let class = stats.classes()[0];
        let cached = mode == Mode::ThreadCached && cfg!(feature = "std");
        assert_eq!(stats.thread_caches, usize::from(cached), "{mode:?}");
        assert_eq!(class.in_magazines > 0, cached);
        if !cached {
            // No chunk was taken from a slab before it was needed.
            assert_eq!((class.in_depot, class.allocs_from_slab), (7, 7), "{mode:?}");
            drop(pool.try_alloc(1024));
            let stats = pool.stats();
            let class = stats.classes()[0];
            assert_eq!(class.allocs_from_depot, 1, "{mode:?}");
            assert_eq!(class.allocs_from_magazine, 0, "{mode:?}");
            assert_eq!(stats.depot_exchanges(&class), 0, "{mode:?}");
        }
    }
}

#[test]
fn without_magazines_the_peak_is_exact() {
    let peak = |pool: &SlabPool| pool.stats().classes()[0].in_use_peak;
    for &mode in &MODES[1..] {
        let pool = pool(mode);
        drop([(); 20].map(|()| pool.try_alloc(1024).unwrap()));
        assert_eq!(peak(&pool), 20, "{mode:?}");
    }
    // Chunks that waiters got.
    for mode in [Mode::DepotOnly, Mode::Locked] {
        let pool = pool(mode);
        let all = fill(&pool, 16384);
        let mut cx = Context::from_waker(Waker::noop());
        let mut waits: Vec<_> = (0..20).map(|_| Box::pin(pool.alloc(1024))).collect();
        for wait in &mut waits {
            assert!(wait.as_mut().poll(&mut cx).is_pending());
        }
        drop(all);
        let got = waits.iter_mut().map(|wait| wait.as_mut().poll(&mut cx));
        let got = got.filter(|poll| matches!(poll, Poll::Ready(Ok(_))));
        assert_eq!(got.count(), 20);
        assert_eq!(peak(&pool), 20, "{mode:?}");
    }
}

#[test]
fn depot_only_is_lifo_and_ring_is_fifo() {
    for (mode, expected) in [(Mode::DepotOnly, 2), (Mode::Ring, 0)] {
        let pool = pool(mode);
        let three: Vec<_> = (0..3).map(|_| pool.try_alloc(1024).unwrap()).collect();
        let at: Vec<_> = three.iter().map(Chunk::as_ptr).collect();
        drop(three);
        assert_eq!(pool.try_alloc(1024).unwrap().as_ptr(), at[expected]);
    }
}

#[test]
fn ring_gives_each_class_a_fixed_share() {
    let pool = pool(Mode::Ring);
    let large = fill(&pool, 16384);
    assert_eq!(large.len(), max_chunks(Mode::Ring, 16384));
    // The other class has its share all the same, and does not get more when this one's is free.
    assert_eq!(fill(&pool, 1024).len(), max_chunks(Mode::Ring, 1024));
    drop(large);
    pool.trim();
    assert_eq!(fill(&pool, 1024).len(), max_chunks(Mode::Ring, 1024));
    let rebalances: u64 = pool
        .stats()
        .classes()
        .iter()
        .map(|c| c.slab_rebalances)
        .sum();
    assert_eq!(rebalances, 0);
    let small = SlabPool::builder().mode(Mode::Ring).max_memory(1 << 20);
    assert!(matches!(
        small.build(),
        Err(ConfigError::CapBelowClasses { slabs: 4, .. })
    ));
}
