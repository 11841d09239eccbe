//! The benchmarks of funny/slab (Go), row by row and with its names: `cargo bench -- funny_slab/`.
//!
//! The original runs each on all CPUs at once and divides the wall time by the number of operations; here
//! the time is one thread's (`versus alloc --only scaling-2` shows that two do not disturb each other). Its
//! four kinds of pool differ in what they share: an atomic list, a channel, a lock, `sync.Pool`. Ours is
//! one type with four modes; the alternatives beside it are written here in a few lines.

use crate::common::{heap_pair, heap_pair_zeroed, pair, pool};
use criterion::{BenchmarkId, Criterion, criterion_group};
use packet_slab::slab_core::{Mode, SizeClasses, SlabPool};
use std::hint::black_box;
use std::sync::Mutex;

const LENS: [usize; 3] = [128, 256, 512];
const CLASSES: &[usize] = &[128, 256, 512, 1024];

fn alloc_and_free(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("funny_slab");
    let cached = pool(CLASSES);
    let shared = |mode| {
        SlabPool::builder()
            .name("bench")
            .size_classes(SizeClasses::explicit(CLASSES).expect("the classes are valid"))
            .mode(mode)
            .build()
            .expect("the configuration is valid")
    };
    let (depot, ring, locked) = (
        shared(Mode::DepotOnly),
        shared(Mode::Ring),
        shared(Mode::Locked),
    );
    for len in LENS {
        // The counterpart of SyncPool, which keeps free buffers per processor.
        group.bench_function(
            BenchmarkId::new("SyncPool_AllocAndFree/slab-core", len),
            |b| {
                b.iter(|| pair(&cached, len));
            },
        );
        // The counterparts of AtomPool, ChanPool and LockPool: one place that all threads share.
        group.bench_function(
            BenchmarkId::new("AtomPool_AllocAndFree/slab-core-depot-only", len),
            |b| {
                b.iter(|| pair(&depot, len));
            },
        );
        group.bench_function(
            BenchmarkId::new("ChanPool_AllocAndFree/slab-core-ring", len),
            |b| {
                b.iter(|| pair(&ring, len));
            },
        );
        group.bench_function(
            BenchmarkId::new("LockPool_AllocAndFree/slab-core-locked", len),
            |b| {
                b.iter(|| pair(&locked, len));
            },
        );
        let (give, take) = std::sync::mpsc::sync_channel(64);
        let take = Mutex::new(take);
        give.send(Vec::<u8>::with_capacity(len)).expect("has room");
        group.bench_function(
            BenchmarkId::new("ChanPool_AllocAndFree/channel", len),
            |b| {
                b.iter(|| {
                    let free = take.lock().ok().and_then(|take| take.try_recv().ok());
                    let bytes = free.unwrap_or_else(|| Vec::with_capacity(len));
                    drop(give.try_send(black_box(bytes)));
                });
            },
        );
        let locked = Mutex::new(vec![Vec::<u8>::with_capacity(len)]);
        group.bench_function(BenchmarkId::new("LockPool_AllocAndFree/lock", len), |b| {
            b.iter(|| {
                let free = locked.lock().ok().and_then(|mut free| free.pop());
                let bytes = free.unwrap_or_else(|| Vec::with_capacity(len));
                if let Ok(mut free) = locked.lock() {
                    free.push(black_box(bytes));
                }
            });
        });
    }
    group.finish();
}

/// Buffers that do not come back, so that each is new memory. Ours are given back outside the measured
/// time, and the pool's memory returned, so that the next ones are new as well.
fn cache_miss(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("funny_slab/SyncPool_CacheMiss");
    for len in LENS {
        let pool = pool(CLASSES);
        group.bench_function(BenchmarkId::new("slab-core", len), |b| {
            b.iter_custom(|iterations| {
                const AT_ONCE: u64 = 100_000;
                let mut spent = std::time::Duration::ZERO;
                let mut left = iterations;
                let mut held = Vec::with_capacity(AT_ONCE as usize);
                while left > 0 {
                    let count = left.min(AT_ONCE);
                    left -= count;
                    let start = std::time::Instant::now();
                    held.extend((0..count).map(|_| pool.try_alloc(black_box(len))));
                    spent += start.elapsed();
                    held.clear();
                    pool.trim();
                }
                spent
            });
        });
        group.bench_function(BenchmarkId::new("heap", len), |b| {
            b.iter_with_large_drop(|| Vec::<u8>::with_capacity(black_box(len)));
        });
    }
    group.finish();
}

fn make(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("funny_slab/Make");
    for len in LENS {
        group.bench_function(BenchmarkId::new("heap", len), |b| b.iter(|| heap_pair(len)));
        group.bench_function(BenchmarkId::new("heap-zeroed", len), |b| {
            b.iter(|| heap_pair_zeroed(len));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = crate::common::criterion();
    targets = alloc_and_free, cache_miss, make
}
