//! More classes at once than threads have entries for in their tables of magazines: those of further pools
//! work the same, more slowly. In a binary of its own, because the entries are the process's.

use slab_core::{Chunk, SizeClasses, SlabPool};

/// A thread's table has so many entries for the classes of a process.
const ENTRIES: usize = 255;
/// Of 16 classes each: one has entries for 15 of them, and some for none.
const POOLS: usize = 20;
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
fn pools_beyond_the_table_of_magazines_work_the_same() {
    // Without `std` no thread has magazines.
    let has_magazines = cfg!(feature = "std");
    let pools: Vec<SlabPool> = (0..POOLS).map(|_| open(64, 16)).collect();
    let slow = if has_magazines {
        16 * POOLS - ENTRIES
    } else {
        0
    };
    assert_eq!(slow_classes(&pools), slow);
    for _ in 0..ROUNDS {
        use_all(&pools);
        // The end of the scope alone does not wait for the destructors of thread-locals, which keep a pool, and
        // so its entries, for a moment.
        std::thread::scope(|scope| scope.spawn(|| use_all(&pools)).join().unwrap());
    }
    for pool in &pools {
        for class in pool.stats().classes() {
            let used = 2 * ROUNDS;
            assert_eq!((class.allocs, class.frees, class.in_use), (used, used, 0));
            // Also without an entry: this thread's magazine was filled once, and each of the others'.
            let hits = if has_magazines { ROUNDS - 1 } else { 0 };
            assert_eq!(class.allocs_from_magazine(), hits);
        }
    }
    // Entries come back: just as many as pools of other classes need, among those that are left. These have
    // all of theirs, but one that has 15, and one that has none.
    let left: Vec<SlabPool> = pools.into_iter().step_by(3).collect();
    let free = ENTRIES - (16 * left.len() - 1 - 16);
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
