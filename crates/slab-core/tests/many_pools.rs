//! More classes at once than threads have entries for in their tables of magazines: those of further pools
//! work the same, more slowly. In a binary of its own, because the entries are the process's.

use slab_core::{Chunk, SizeClasses, SlabPool};

/// A thread's table has 255 entries for the classes of a process.
const POOLS: usize = if cfg!(miri) { 258 } else { 300 };

fn open() -> SlabPool {
    let classes = SizeClasses::explicit(&[64]).unwrap();
    let builder = SlabPool::builder().size_classes(classes);
    builder.max_memory(64 << 10).build().unwrap()
}

/// Allocates from each pool on this thread, writes, and frees in another order.
fn use_all(pools: &[SlabPool]) {
    let chunks: Vec<Chunk> = (pools.iter().enumerate())
        .map(|(number, pool)| {
            let mut chunk = pool.try_alloc(64).unwrap();
            assert!(chunk.belongs_to(pool));
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

fn magazine_hits(pool: &SlabPool) -> u64 {
    let class = pool.stats().classes()[0];
    class.allocs - class.allocs_from_depot - class.allocs_from_slab
}

#[test]
fn pools_beyond_the_table_of_magazines_work_the_same() {
    let pools: Vec<SlabPool> = (0..POOLS).map(|_| open()).collect();
    for _ in 0..3 {
        use_all(&pools);
        std::thread::scope(|scope| {
            scope.spawn(|| use_all(&pools));
        });
    }
    for pool in &pools {
        let stats = pool.stats();
        let class = &stats.classes()[0];
        assert_eq!((class.allocs, class.frees, class.in_use), (6, 6, 0));
        // Also without an entry: this thread's magazine was filled once, and each of the others'.
        assert_eq!(magazine_hits(pool), 2);
    }
    // Entries come back: pools of a later time, of other classes, among those that are left.
    let left: Vec<SlabPool> = pools.into_iter().step_by(3).collect();
    let later: Vec<SlabPool> = (0..POOLS / 2).map(|_| open()).collect();
    for _ in 0..3 {
        use_all(&left);
        use_all(&later);
    }
    for pool in left.iter().chain(&later) {
        assert_eq!(pool.stats().in_use(), 0);
    }
}
