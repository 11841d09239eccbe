//! More pools at once than classes can have numbers of their own: those of further pools work the same, more slowly,
//! until there is none left. In a binary of its own, because the numbers are the process's.

use slab_core::{Chunk, ConfigError, SizeClasses, SlabPool};
use std::sync::Mutex;

/// Numbers that classes can have for themselves, and those for pools that are left without.
const NUMBERS: [usize; 2] = match (cfg!(feature = "std"), cfg!(miri)) {
    (true, false) => [511, 512],
    (true, true) => [255, 256],
    (false, _) => [0, 127],
};
const OWN: usize = NUMBERS[0];
/// With 16 classes each: four find their numbers in a word of 64, and three in the first, which has a number less.
const WITH_NUMBERS: usize = OWN / 16;
const POOLS: usize = WITH_NUMBERS + 5;
/// The numbers are the tests', too.
static ALONE: Mutex<()> = Mutex::new(());
/// Miri takes minutes for each.
const ROUNDS: u64 = if cfg!(miri) { 2 } else { 3 };

fn open(step: usize, classes: usize) -> SlabPool {
    let sizes: Vec<usize> = (1..=classes).map(|class| class * step).collect();
    let builder = SlabPool::builder().size_classes(SizeClasses::explicit(&sizes).unwrap());
    builder.max_memory(1 << 20).build().unwrap()
}

/// Allocates from each class of each pool on this thread, writes, and frees in another order.
fn use_all(pools: &[SlabPool]) {
    let classes = pools.iter().flat_map(|pool| {
        let sizes = pool.size_classes().sizes();
        sizes.iter().map(move |&bytes| (pool, bytes))
    });
    let chunks: Vec<Chunk> = (classes.enumerate())
        .map(|(number, (pool, bytes))| {
            let mut chunk = pool.try_alloc(bytes).unwrap();
            assert!(chunk.belongs_to(pool) && chunk.capacity() == bytes);
            chunk.try_copy_from_slice(&number.to_ne_bytes()).unwrap();
            chunk
        })
        .collect();
    for (number, chunk) in chunks.into_iter().enumerate().rev() {
        // SAFETY: the chunk's first bytes were written above, and it is ours alone.
        let bytes = unsafe { chunk.as_ptr().cast::<[u8; size_of::<usize>()]>().read() };
        assert_eq!(usize::from_ne_bytes(bytes), number);
    }
}

fn slow_classes(pools: &[SlabPool]) -> usize {
    pools.iter().map(|pool| pool.stats().slow_classes).sum()
}

#[test]
fn pools_whose_classes_have_no_numbers_of_their_own_work_the_same() {
    let _alone = ALONE.lock();
    // Without `std` no thread has magazines.
    let has_magazines = cfg!(feature = "std");
    let pools: Vec<SlabPool> = (0..POOLS).map(|_| open(64, 16)).collect();
    let slow = if has_magazines { 16 * 5 } else { 0 };
    assert_eq!(slow_classes(&pools), slow);
    for _ in 0..ROUNDS {
        use_all(&pools);
        // The end of the scope alone does not wait for the destructors of thread-locals, which keep a pool, and
        // so its numbers, for a moment.
        std::thread::scope(|scope| scope.spawn(|| use_all(&pools)).join().unwrap());
    }
    for pool in &pools {
        // Also without a number: this thread's magazine was filled once, and each of the others'.
        assert_used(pool, 2 * ROUNDS, ROUNDS - 1);
    }
    // Numbers come back, and are found between those that are not free: two pools of 8 classes have room where one of 16
    // was, and one in what the first word had left. In this thread they find the magazines of the pools before.
    let ended: Vec<bool> = (0..POOLS).map(|pool| pool % 3 > 0).collect();
    let room = 2 * ended[..WITH_NUMBERS].iter().filter(|ended| **ended).count() + 1;
    let kept = pools.into_iter().zip(ended).filter(|(_, ended)| !ended);
    let kept: Vec<SlabPool> = kept.map(|(pool, _)| pool).collect();
    let later = if has_magazines { room } else { 1 };
    let later: Vec<SlabPool> = (0..later).map(|_| open(128, 8)).collect();
    assert_eq!(slow_classes(&later), 0);
    assert_eq!(
        slow_classes(&[open(64, 16)]),
        if has_magazines { 16 } else { 0 }
    );
    for _ in 0..ROUNDS {
        use_all(&kept);
        use_all(&later);
    }
    for pool in &later {
        assert_used(pool, ROUNDS, ROUNDS - 1);
    }
    for pool in kept {
        assert_eq!(pool.stats().in_use(), 0);
    }
}

/// Also those that this thread does not find by a number.
#[test]
#[cfg(feature = "std")]
fn caches_of_all_pools_are_flushed_on_request_and_at_a_threads_end() {
    let _alone = ALONE.lock();
    let pools: Vec<SlabPool> = (0..POOLS).map(|_| open(64, 16)).collect();
    assert!(pools.last().unwrap().stats().slow_classes > 0);
    let in_magazines = |pool: &SlabPool| -> u64 {
        let stats = pool.stats();
        stats.classes().iter().map(|class| class.in_magazines).sum()
    };
    let cached = || pools.iter().map(in_magazines).sum::<u64>();
    let caches = || -> usize { pools.iter().map(|pool| pool.stats().thread_caches).sum() };
    use_all(&pools);
    assert!(cached() >= POOLS as u64);
    pools.iter().for_each(SlabPool::flush_thread_cache);
    assert_eq!((caches(), cached()), (POOLS, 0));
    std::thread::scope(|scope| scope.spawn(|| use_all(&pools)).join().unwrap());
    assert_eq!((caches(), cached()), (POOLS, 0));
}

/// So many allocations and frees of each class, and so many of the allocations out of a magazine, if there are any.
fn assert_used(pool: &SlabPool, uses: u64, hits: u64) {
    let hits = if cfg!(feature = "std") { hits } else { 0 };
    for class in pool.stats().classes() {
        assert_eq!((class.allocs, class.frees, class.in_use), (uses, uses, 0));
        assert_eq!(class.allocs_from_magazine, hits);
    }
}

#[test]
#[cfg_attr(miri, ignore = "a pool takes Miri half a second")]
fn a_pool_too_many_is_refused_until_another_ends() {
    let _alone = ALONE.lock();
    let open = || {
        let classes = SizeClasses::explicit(&[64]).unwrap();
        let builder = SlabPool::builder().size_classes(classes);
        builder.max_memory(64 << 10).build()
    };
    let mut pools = Vec::new();
    let refused = loop {
        match open() {
            Ok(pool) => pools.push(pool),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, ConfigError::TooManyPools);
    assert_eq!(pools.len(), OWN + NUMBERS[1]);
    use_all(&pools);
    let memory = Box::leak(Box::<[u8]>::new_uninit_slice(128 << 10));
    let (at, len) = (memory.as_ptr(), memory.len());
    let build_in = |memory| {
        let classes = SizeClasses::explicit(&[64]).unwrap();
        SlabPool::builder().size_classes(classes).build_in(memory)
    };
    let refused = build_in(memory).unwrap_err();
    assert_eq!(refused.error(), ConfigError::TooManyPools);
    let memory = refused.into_memory();
    assert_eq!((memory.as_ptr(), memory.len()), (at, len));
    let last = pools.pop().unwrap();
    let chunk = last.try_alloc(1).unwrap();
    drop(last);
    assert_eq!(
        open().unwrap_err(),
        ConfigError::TooManyPools,
        "its chunk lives"
    );
    assert!(chunk.pool().is_none());
    drop(chunk);
    pools.push(build_in(memory).unwrap());
    use_all(&pools);
}
