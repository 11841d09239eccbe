//! Memory that moves: between size classes, and back to the system.

mod common;

use common::fill;
use slab_core::{Chunk, SizeClasses, SlabPool};
#[cfg(feature = "std")]
use std::sync::Barrier;
use std::thread;

/// Miri interprets; it gets a smaller version of the same program.
const CAP: usize = if cfg!(miri) { 256 << 10 } else { 16 << 20 };

fn pool() -> SlabPool {
    let sizes: &[usize] = if cfg!(miri) {
        &[2048, 16384]
    } else {
        &[64, 2048, 65536]
    };
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(sizes).unwrap())
        .max_memory(CAP)
        .build()
        .unwrap()
}

fn sizes(pool: &SlabPool) -> (usize, usize) {
    let sizes = pool.size_classes().sizes();
    (sizes[0], sizes[sizes.len() - 1])
}

/// A fixed permutation: no randomness, so that a failure repeats.
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for at in (1..items.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        items.swap(at, (state >> 33) as usize % (at + 1));
    }
}

/// Asserts that all of the cap less one slab a class can be allocated as chunks of `len` bytes.
fn assert_whole_cap(pool: &SlabPool, len: usize) -> Vec<Chunk> {
    let stats = pool.stats();
    let slabs = stats.max_memory / stats.slab_bytes - stats.classes().len();
    let chunks = fill(pool, len);
    let want = slabs * (stats.slab_bytes / len);
    assert!(chunks.len() >= want, "{} of {want} chunks", chunks.len());
    chunks
}

#[test]
fn freed_slabs_serve_the_other_class() {
    let pool = pool();
    let (small, large) = sizes(&pool);
    for _ in 0..2 {
        drop(assert_whole_cap(&pool, small));
        drop(assert_whole_cap(&pool, large));
    }
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    assert!(
        stats
            .classes()
            .iter()
            .any(|class| class.slab_rebalances > 0)
    );
}

#[test]
fn shuffled_frees_do_not_pin_slabs() {
    let pool = pool();
    let (small, large) = sizes(&pool);
    for (from, to) in [(small, large), (large, small)] {
        let mut chunks = fill(&pool, from);
        shuffle(&mut chunks);
        drop(chunks);
        drop(assert_whole_cap(&pool, to));
    }
}

#[test]
#[cfg(feature = "std")]
fn full_magazines_of_idle_threads_do_not_pin_slabs() {
    let pool = pool();
    let (small, large) = sizes(&pool);
    for (from, to) in [(small, large), (large, small)] {
        idle_threads_do_not_pin(&pool, from, to);
    }
}

#[cfg(feature = "std")]
fn idle_threads_do_not_pin(pool: &SlabPool, from: usize, to: usize) {
    let mut chunks = fill(pool, from);
    shuffle(&mut chunks);
    let threads = 4;
    let (freed, done) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    thread::scope(|scope| {
        let share = chunks.len().div_ceil(threads);
        while !chunks.is_empty() {
            let part = chunks.split_off(chunks.len().saturating_sub(share));
            let (freed, done) = (&freed, &done);
            scope.spawn(move || {
                drop(part);
                freed.wait();
                done.wait(); // Idle, with full magazines.
            });
        }
        freed.wait();
        let class = pool.class_for(from).unwrap();
        let kept = pool.stats().classes()[class].in_magazines;
        assert!(kept >= threads as u64, "{kept} chunks of {from} bytes");
        drop(assert_whole_cap(pool, to));
        done.wait();
    });
}

#[test]
#[cfg(feature = "std")]
fn a_chunk_in_an_idle_threads_magazine_is_found_at_the_cap() {
    let pool = pool();
    let (_, large) = sizes(&pool);
    let mut chunks = fill(&pool, large);
    let one = chunks.pop().unwrap();
    let (freed, done) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let (freed, done) = (&freed, &done);
        scope.spawn(move || {
            drop(one);
            freed.wait();
            done.wait();
        });
        freed.wait();
        let class = pool.stats().classes().len() - 1;
        assert_eq!(pool.stats().classes()[class].in_magazines, 1);
        assert!(pool.try_alloc(large).is_ok());
        done.wait();
    });
}

#[test]
fn reclaim_races_with_threads_that_allocate_and_free() {
    let pool = pool();
    let (small, large) = sizes(&pool);
    let (rounds, max_held) = if cfg!(miri) { (4, 12) } else { (300, 64) };
    thread::scope(|scope| {
        let start = |worker: usize| {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..rounds {
                    let len = if (round + worker).is_multiple_of(2) {
                        small
                    } else {
                        large
                    };
                    let mut held: Vec<Chunk> = (0..max_held)
                        .map_while(|_| pool.try_alloc(len).ok())
                        .collect();
                    for (stamp, chunk) in held.iter_mut().enumerate() {
                        chunk
                            .try_copy_from_slice(&[worker as u8, stamp as u8])
                            .unwrap();
                    }
                    for (stamp, chunk) in held.iter().enumerate() {
                        // SAFETY: two bytes were written above, by this thread.
                        let bytes = unsafe { chunk.as_ptr().cast::<[u8; 2]>().read() };
                        assert_eq!(bytes, [worker as u8, stamp as u8], "someone else's chunk");
                    }
                }
            })
        };
        let threads = [0, 1, 2].map(start);
        for _ in 0..rounds.div_ceil(10) {
            pool.trim();
            thread::yield_now();
        }
        // The end of the scope alone does not wait for the destructors of thread-locals.
        threads.into_iter().for_each(|one| one.join().unwrap());
    });
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    pool.trim();
    assert_eq!(pool.stats().committed_bytes, 0);
    drop(assert_whole_cap(&pool, large));
}

/// That it does not sweep each time is in `events.rs`.
#[test]
fn repeated_refusals_leave_free_chunks_to_their_class() {
    let pool = pool();
    let (small, large) = sizes(&pool);
    let mut chunks = fill(&pool, small);
    // Free every second chunk: many free chunks, no free slab.
    let mut keep = false;
    chunks.retain(|_| {
        keep = !keep;
        keep
    });
    for _ in 0..if cfg!(miri) { 10 } else { 1000 } {
        assert!(pool.try_alloc(large).is_err());
    }
    // The free ones are still there for their own class.
    assert!(pool.try_alloc(small).is_ok());
    drop(chunks);
    drop(assert_whole_cap(&pool, large));
}

/// Requests that are refused again and again leave the magazines of other threads alone as long as what
/// is free in them is too little for a slab, and find it as soon as it is enough.
#[test]
#[cfg(feature = "std")]
fn refusals_under_churn_do_not_sweep_the_magazines() {
    let pool = pool();
    let (small, large) = sizes(&pool);
    let in_magazines = || pool.stats().classes()[0].in_magazines;
    let mut held = fill(&pool, small);
    for _ in 0..if cfg!(miri) { 3 } else { 1000 } {
        drop(held.pop());
        let cached = in_magazines();
        assert!(cached > 0);
        assert!(pool.try_alloc(large).is_err());
        assert_eq!(in_magazines(), cached, "not swept");
        held.push(pool.try_alloc(small).unwrap());
    }
    // The chunks of one slab, freed by another thread, the last of them by itself.
    held.sort_by_key(Chunk::as_ptr);
    let in_slab = pool.stats().slab_bytes / small;
    let last = held.pop();
    let slab = held.split_off(held.len() + 1 - in_slab);
    thread::spawn(move || drop(slab)).join().unwrap();
    assert!(pool.try_alloc(large).is_err());
    drop(last);
    let full = fill(&pool, large);
    assert_eq!(pool.stats().in_use() as usize, held.len() + full.len());
    // Of the next slab all but three, and three of another: as many as a slab, but no slab.
    let kept = held.split_off(held.len() - 3);
    held.truncate(held.len() + 3 - in_slab - 3);
    assert!(pool.try_alloc(large).is_err());
    assert_eq!(in_magazines(), 0, "swept");
    drop(kept);
    assert!(pool.try_alloc(large).is_ok());
}

#[test]
fn trim_releases_everything_and_trim_to_keeps_its_target() {
    let pool = pool();
    let (small, large) = sizes(&pool);
    let chunks = fill(&pool, small);
    assert_eq!(pool.trim(), 0, "all in use");
    drop(chunks);
    let stats = pool.stats();
    let keep = 2 * stats.slab_bytes;
    pool.trim_to(keep);
    assert_eq!(pool.stats().committed_bytes, keep);
    pool.trim();
    let stats = pool.stats();
    assert_eq!(stats.committed_bytes, 0);
    assert!(stats.classes()[0].slab_trims > 0);
    // Each slab that held chunks, once.
    assert_eq!(stats.slab_trims(), (CAP / stats.slab_bytes) as u64);
    drop(assert_whole_cap(&pool, large));
}

/// Among chunks in use, whole pages of free ones go back, and trim says exactly how many bytes.
#[test]
#[cfg(all(unix, feature = "std", not(miri)))]
fn trim_counts_the_pages_between_chunks_in_use() {
    /// The largest that a system may have.
    const PAGE: usize = 64 << 10;
    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[PAGE]).unwrap())
        .max_memory(16 * PAGE)
        .build()
        .unwrap();
    let mut chunks = fill(&pool, PAGE);
    chunks.sort_by_key(Chunk::as_ptr);
    let in_slab = pool.stats().slab_bytes / PAGE;
    assert_eq!(in_slab, 4, "a run of one, one in use, a run of two");
    let mut place = 0;
    chunks.retain(|_| {
        place += 1;
        place % in_slab == 2
    });
    let free = pool.max_memory() - chunks.len() * PAGE;
    assert_eq!(pool.trim(), free);
    assert_eq!(pool.trim(), 0, "it is gone already");
    // Memory used since goes back again: the first slab's three free chunks.
    drop(pool.try_alloc(PAGE).unwrap());
    assert_eq!(pool.trim(), 3 * PAGE);
    assert_eq!(pool.trim_above(0, 0), 0);
    drop(chunks);
}

/// A thread whose magazine was emptied goes on with it.
#[test]
#[cfg(all(feature = "std", not(miri)))] // Minutes.
fn a_magazine_is_used_again_after_a_sweep() {
    let pool = pool();
    let (small, _) = sizes(&pool);
    for round in 0..3 {
        drop(pool.try_alloc(small).unwrap());
        assert!(pool.stats().classes()[0].in_magazines > 0, "{round}");
        pool.trim();
        assert_eq!(pool.stats().classes()[0].in_magazines, 0);
    }
}

#[test]
#[cfg(not(miri))] // Minutes.
fn slab_commits_and_rebalances_are_counted() {
    let pool = pool();
    let (small, large) = sizes(&pool);
    let slabs = (pool.max_memory() / pool.stats().slab_bytes) as u64;
    drop(assert_whole_cap(&pool, small));
    drop(assert_whole_cap(&pool, large));
    drop(assert_whole_cap(&pool, small));
    let stats = pool.stats();
    let counts = [small, large].map(|bytes| {
        let class = stats
            .classes()
            .iter()
            .find(|class| class.chunk_bytes == bytes);
        class.map(|class| (class.slab_commits, class.slab_rebalances))
    });
    assert_eq!(counts, [Some((2 * slabs, slabs)), Some((slabs, slabs))]);
    assert_eq!(stats.slab_rebalances(), 2 * slabs);
}

/// A peak of large chunks, after which a small one in each slab keeps it; or slabs backed ahead of use.
#[test]
#[cfg(all(feature = "std", target_os = "linux", not(miri)))]
fn pages_without_chunks_are_not_resident_after_a_trim() {
    use slab_core::Backing;

    const CAP: usize = 32 << 20;
    for backing in [Backing::OnDemand, Backing::Prefault] {
        let sizes = [64, 512, 4096, 65536, 1 << 20];
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&sizes).unwrap())
            .max_memory(CAP)
            .backing(backing)
            .build()
            .unwrap();
        if backing == Backing::OnDemand {
            let mut peak: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1 << 20).ok()).collect();
            for chunk in &mut peak {
                chunk.fill_zero().fill(1);
            }
        }
        assert_eq!(pool.resident_bytes(), Some(CAP));
        let mut kept: Vec<_> = sizes.map(|len| pool.try_alloc(len).unwrap()).into();
        for chunk in &mut kept {
            chunk.fill_zero().fill(2);
        }
        let used = pool.stats().in_use_bytes();
        let given = pool.trim();
        let resident = pool.resident_bytes().unwrap();
        // A chunk lies in up to one page more than it fills, of up to 64 KiB.
        assert!(
            resident <= used + sizes.len() * 65536,
            "{backing:?}: {resident}"
        );
        assert!(given >= CAP - resident, "{backing:?}: {given}");
        for chunk in &mut kept {
            // SAFETY: all of the chunk was written.
            let bytes =
                unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), chunk.capacity()) };
            assert!(bytes.iter().all(|&byte| byte == 2));
        }
        // Chunks carved from the rest are zero, and the counts are as before.
        let fresh = pool.try_alloc_zeroed(65536).unwrap();
        assert_eq!(pool.stats().in_use(), sizes.len() as u64 + 1);
        drop(fresh);
        assert_eq!(pool.stats().in_use_bytes(), used);
    }
}

/// A huge page comes as a whole: it also backs neighbours of the slab in use whose memory went back
/// before. Where the system gives none, there is nothing to see.
#[test]
#[cfg(all(feature = "std", target_os = "linux", not(miri)))]
fn trim_releases_memory_that_a_huge_page_brought_back() {
    use slab_core::Growth;

    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[16384]).unwrap())
        .max_memory(CAP)
        .growth(Growth::Custom(|_| usize::MAX))
        .huge_pages(true)
        .build()
        .unwrap();
    drop(pool.try_alloc(1).unwrap());
    assert_eq!(pool.trim(), CAP);
    for slabs in 1..40 {
        let used = slabs * pool.stats().slab_bytes;
        let mut chunks: Vec<_> = (0..used / 16384)
            .map(|_| pool.try_alloc(16384).unwrap())
            .collect();
        for chunk in &mut chunks {
            chunk.fill_zero().fill(1);
        }
        drop(chunks);
        assert_eq!(pool.trim(), used, "counted once");
        assert_eq!(pool.stats().committed_bytes, 0);
        assert_eq!(pool.resident_bytes(), Some(0), "{slabs}");
    }
}
