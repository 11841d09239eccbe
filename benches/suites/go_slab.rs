//! The sixteen benchmarks of the Go slab allocator (package `allocator`, a table of `sync.Pool`s), row by
//! row and with its names: `cargo bench -- go_slab/`.
//!
//! The original zeroes each buffer that it hands out; `zeroed` is the comparable row, `slab-core` the cost
//! without zeroing. `heap` is Rust's, on the system's allocator.

use crate::common::{Rotation, heap_pair, heap_pair_zeroed, pair, pair_zeroed, pool};
use criterion::{Criterion, Throughput, criterion_group};
use packet_slab::slab_core::{SizeClasses, SlabPool};
use std::hint::black_box;

const BASIC: &[usize] = &[1024, 4096, 16_384, 65_536];
const LARGE: &[usize] = &[65_536, 131_072, 262_144, 524_288];
const POWERS: &[usize] = &[
    64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536,
];

/// One row: the pool is asked for each of `lens` in turn, and so is the heap.
fn row(criterion: &mut Criterion, name: &str, classes: &[usize], lens: &[usize]) {
    rows_of(criterion, name, &pool(classes), lens);
}

fn rows_of(criterion: &mut Criterion, name: &str, pool: &SlabPool, lens: &[usize]) {
    let mut group = criterion.benchmark_group(format!("go_slab/{name}"));
    let mut turn = Rotation::new(lens);
    group.bench_function("slab-core", |b| b.iter(|| pair(pool, turn.next())));
    group.bench_function("zeroed", |b| b.iter(|| pair_zeroed(pool, turn.next())));
    group.bench_function("heap", |b| b.iter(|| heap_pair(turn.next())));
    group.bench_function("heap-zeroed", |b| {
        b.iter(|| heap_pair_zeroed(turn.next()));
    });
    group.finish();
}

fn sizes(criterion: &mut Criterion) {
    row(criterion, "BasicAllocation", BASIC, BASIC);
    direct_allocation(criterion);
    let small = &[64, 128, 256, 512];
    row(criterion, "SmallBuffers", small, small);
    row(criterion, "LargeBuffers", LARGE, LARGE);
    row(criterion, "ExactSizeMatch", BASIC, BASIC);
    row(
        criterion,
        "InexactSizeMatch",
        BASIC,
        &[512, 2048, 8192, 32_768],
    );
    row(criterion, "HighFrequency", &[1024], &[1024]);
    // Half small, three tenths medium, two tenths large, in the order of the original.
    row(
        criterion,
        "MixedSizes",
        &[64, 256, 1024, 4096, 16_384, 65_536],
        &[64, 256, 64, 256, 64, 4096, 1024, 4096, 16_384, 65_536],
    );
}

/// What a program without a pool does.
fn direct_allocation(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("go_slab/DirectAllocation");
    let mut turn = Rotation::new(BASIC);
    group.bench_function("heap", |b| b.iter(|| heap_pair(turn.next())));
    group.bench_function("heap-zeroed", |b| {
        b.iter(|| heap_pair_zeroed(turn.next()));
    });
    group.finish();
}

fn oversized(criterion: &mut Criterion) {
    let pool = SlabPool::builder()
        .name("bench")
        .size_classes(SizeClasses::explicit(BASIC).expect("the classes are valid"))
        .max_oversize_memory(64 << 20)
        .build()
        .expect("the configuration is valid");
    let lens = [131_072, 262_144, 524_288, 1 << 20];
    let mut turn = Rotation::new(&lens);
    let mut group = criterion.benchmark_group("go_slab/OversizedAllocation");
    group.bench_function("slab-core", |b| {
        b.iter(|| drop(black_box(pool.try_alloc_any(turn.next()))));
    });
    group.bench_function("heap", |b| b.iter(|| heap_pair(turn.next())));
    group.bench_function("heap-zeroed", |b| {
        b.iter(|| heap_pair_zeroed(turn.next()));
    });
    group.finish();
}

/// A hundred buffers, one byte written in each, all given back. One iteration is all hundred.
fn batch_reuse(criterion: &mut Criterion) {
    let pool = pool(&[1024, 4096]);
    let mut group = criterion.benchmark_group("go_slab/BatchReuse");
    let lens = [4096, 1024];
    let mut turn = Rotation::new(&lens);
    group.bench_function("slab-core", |b| {
        let mut held = Vec::with_capacity(100);
        b.iter(|| {
            held.extend((0..100).map(|_| pool.try_alloc(turn.next()).expect("has room")));
            for chunk in &mut held {
                // SAFETY: we own the chunk, and so its first byte.
                unsafe { chunk.as_ptr().write(1) };
            }
            held.clear();
        });
    });
    group.bench_function("heap", |b| {
        let mut held: Vec<Vec<u8>> = Vec::with_capacity(100);
        b.iter(|| {
            held.extend((0..100).map(|_| Vec::with_capacity(turn.next())));
            held.iter_mut().for_each(|bytes| bytes.push(1));
            black_box(&mut held).clear();
        });
    });
    group.finish();
}

/// Lengths in random order, which the branch predictor cannot know.
fn lengths(above: usize, up_to: usize) -> Vec<usize> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize
    };
    (0..1024)
        .map(|_| above + 1 + next() % (up_to - above))
        .collect()
}

/// The original has a row each for its search and its map; here there is one look-up, in the pool's table.
/// `turning` is the loop alone, which each row here includes. The rows of 1024 look up so many lengths per
/// iteration and have no such loop: up to 64 KiB in one table, above that in the other.
fn find_size_class(criterion: &mut Criterion) {
    let pool = pool(POWERS);
    let sizes = pool.size_classes().sizes();
    let mut group = criterion.benchmark_group("go_slab");
    let lens = [
        32, 100, 300, 700, 1500, 3000, 6000, 12_000, 25_000, 50_000, 100_000,
    ];
    let mut turn = Rotation::new(&lens);
    group.bench_function("FindSizeClass", |b| {
        b.iter(|| pool.class_for(black_box(turn.next())));
    });
    let mut turn = Rotation::new(POWERS);
    group.bench_function("FindSizeClassExact", |b| {
        b.iter(|| {
            let len = black_box(turn.next());
            pool.class_for(len).filter(|&class| sizes[class] == len)
        });
    });
    let mut turn = Rotation::new(POWERS);
    group.bench_function("FindSizeClass-turning", |b| {
        b.iter(|| black_box(turn.next()));
    });
    let general = SlabPool::builder()
        .size_classes(SizeClasses::general())
        .build()
        .expect("the configuration is valid");
    group.throughput(Throughput::Elements(1024));
    for (name, lens) in [
        ("FindSizeClass-1024", lengths(0, 65_536)),
        ("FindSizeClass-1024-large", lengths(65_536, 1 << 20)),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| {
                let lens = black_box(lens.as_slice()).iter();
                lens.filter_map(|&len| general.class_for(len))
                    .sum::<usize>()
            });
        });
    }
    group.finish();
}

fn default_config(criterion: &mut Criterion) {
    let pool = SlabPool::builder()
        .name("bench")
        .size_classes(SizeClasses::general())
        .build()
        .expect("the configuration is valid");
    let lens = [64, 256, 1024, 4096, 8192, 16_384, 65_536, 262_144];
    rows_of(criterion, "DefaultConfig", &pool, &lens);
}

fn get_stats(criterion: &mut Criterion) {
    let pool = pool(BASIC);
    let held: Vec<_> = (0..100).map(|n| pool.try_alloc(1024 << (n % 4))).collect();
    criterion.bench_function("go_slab/GetStats", |b| b.iter(|| pool.stats()));
    drop(held);
}

/// Fifty buffers, half of them given back, then the rest. The original's garbage collection every hundredth
/// time has no counterpart. One iteration is all fifty.
fn memory_pressure(criterion: &mut Criterion) {
    let pool = pool(&[1024, 4096, 16_384]);
    let mut group = criterion.benchmark_group("go_slab/MemoryPressure");
    let lens = [1024, 2048, 4096];
    let mut turn = Rotation::new(&lens);
    group.bench_function("slab-core", |b| {
        let mut held = Vec::with_capacity(50);
        b.iter(|| {
            held.extend((0..50).map(|_| pool.try_alloc(turn.next()).expect("has room")));
            for chunk in &mut held {
                // SAFETY: we own the chunk, and so its first byte.
                unsafe { chunk.as_ptr().write(1) };
            }
            held.drain(..25);
            held.clear();
        });
    });
    group.bench_function("heap", |b| {
        let mut held: Vec<Vec<u8>> = Vec::with_capacity(50);
        b.iter(|| {
            held.extend((0..50).map(|_| Vec::with_capacity(turn.next())));
            held.iter_mut().for_each(|bytes| bytes.push(1));
            black_box(&mut held).drain(..25);
            held.clear();
        });
    });
    group.finish();
}

/// Rust's standard library has no pool; many programs write one themselves, of boxes behind a mutex.
/// Zeroed, like the original.
fn comparison(criterion: &mut Criterion) {
    use std::sync::Mutex;
    let mut group = criterion.benchmark_group("go_slab/Comparison_SyncPool");
    let lens = [1024, 4096];
    let pool = pool(&lens);
    let mut turn = Rotation::new(&lens);
    group.bench_function("zeroed", |b| b.iter(|| pair_zeroed(&pool, turn.next())));
    let pools = lens.map(|len| Mutex::new(vec![vec![0_u8; len]]));
    let mut which = Rotation::new(&[0, 1]);
    group.bench_function("mutex-of-boxes-zeroed", |b| {
        b.iter(|| {
            let pool = &pools[which.next()];
            let mut bytes = pool.lock().ok().and_then(|mut free| free.pop());
            if let Some(bytes) = &mut bytes {
                black_box(bytes).fill(0);
            }
            if let (Ok(mut free), Some(bytes)) = (pool.lock(), bytes) {
                free.push(bytes);
            }
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = crate::common::criterion();
    targets = sizes, oversized, batch_reuse, find_size_class, default_config, get_stats,
        memory_pressure, comparison
}
