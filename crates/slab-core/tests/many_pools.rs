//! More pools at once than classes can have numbers of their own: those of further pools work the same, more slowly,
//! until there is none left. In a binary of its own, because the numbers are the process's.

use slab_core::{Chunk, ConfigError, SizeClasses, SlabPool};
use std::sync::Mutex;

/// Numbers that classes can have for themselves, and those for pools that are left without.
const NUMBERS: [usize; 2] = match (cfg!(feature = "std"), cfg!(miri)) {
    (true, false) => [511, 1024],
    (true, true) => [255, 256],
    (false, _) => [63, 64],
};
const OWN: usize = NUMBERS[0];
/// Of 16 classes each: one has numbers for 15 of them, and some for none.
const POOLS: usize = OWN / 16 + 5;
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
            chunk.copy_from_slice(&number.to_ne_bytes()).unwrap();
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
    let slow = if has_magazines { 16 * POOLS - OWN } else { 0 };
    assert_eq!(slow_classes(&pools), slow);
    for _ in 0..ROUNDS {
        use_all(&pools);
        // The end of the scope alone does not wait for the destructors of thread-locals, which keep a pool, and
        // so its numbers, for a moment.
        std::thread::scope(|scope| scope.spawn(|| use_all(&pools)).join().unwrap());
    }
    for pool in &pools {
        for class in pool.stats().classes() {
            let used = 2 * ROUNDS;
            assert_eq!((class.allocs, class.frees, class.in_use), (used, used, 0));
            // Also without a number: this thread's magazine was filled once, and each of the others'.
            let hits = if has_magazines { ROUNDS - 1 } else { 0 };
            assert_eq!(class.allocs_from_magazine(), hits);
        }
    }
    // Numbers come back: just as many as pools of other classes need, among those that are left. These have
    // all of theirs, but one that has 15, and one that has none.
    let left: Vec<SlabPool> = pools.into_iter().skip(OWN / 16 % 3).step_by(3).collect();
    let free = OWN - (16 * left.len() - 1 - 16);
    let later: Vec<SlabPool> = (0..free / 8).map(|_| open(128, 8)).collect();
    assert_eq!(slow_classes(&later), 0);
    let none = [open(64, 1)];
    assert_eq!(slow_classes(&none), usize::from(has_magazines));
    for _ in 0..ROUNDS {
        use_all(&left);
        use_all(&later);
    }
    for pool in left.iter().chain(&later) {
        assert_eq!(pool.stats().in_use(), 0);
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
    pools.push(open().unwrap());
    use_all(&pools);
}
