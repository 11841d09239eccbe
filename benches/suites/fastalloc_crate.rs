//! The benchmarks of the crate `fastalloc`, row by row and with its names; the crate itself is measured
//! beside ours: `cargo bench -- fastalloc/`.
//!
//! Its pools are for one thread; ours can hand the same values to any thread.

use criterion::{BenchmarkId, Criterion, criterion_group};
use fastalloc::{FixedPool, GrowingPool, GrowthStrategy, PoolConfig, Poolable};
use packet_slab::slab_core::Slab;
use std::hint::black_box;

const POOL_SIZES: [usize; 3] = [100, 1000, 10_000];

fn slab<T>(objects: usize) -> Slab<T> {
    Slab::builder()
        .name("bench")
        .max_objects(objects)
        .build()
        .expect("the configuration is valid")
}

fn growing<T: Poolable>(capacity: usize) -> GrowingPool<T> {
    let config = PoolConfig::builder()
        .capacity(capacity)
        .growth_strategy(GrowthStrategy::Exponential { factor: 2.0 })
        .build()
        .expect("the configuration is valid");
    GrowingPool::with_config(config).expect("the configuration is valid")
}

fn pool_sizes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fastalloc/i32");
    for size in POOL_SIZES {
        // Ours has a fixed limit and grows up to it, so it stands for both kinds.
        let ours = slab::<i32>(size);
        group.bench_function(BenchmarkId::new("slab-core", size), |b| {
            b.iter(|| drop(black_box(ours.try_insert(black_box(42)))));
        });
        let fixed = FixedPool::<i32>::new(size).expect("the capacity is not zero");
        group.bench_function(BenchmarkId::new("fixed_pool_allocation", size), |b| {
            b.iter(|| drop(black_box(fixed.allocate(black_box(42)))));
        });
        let growing = growing::<i32>(size);
        group.bench_function(BenchmarkId::new("growing_pool_allocation", size), |b| {
            b.iter(|| drop(black_box(growing.allocate(black_box(42)))));
        });
        group.bench_function(BenchmarkId::new("box_allocation_baseline", size), |b| {
            b.iter(|| drop(black_box(Box::new(black_box(42_i32)))));
        });
    }
    group.finish();
}

fn reuse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fastalloc/allocation_reuse");
    let ours = slab::<i32>(100);
    group.bench_function("slab-core", |b| {
        b.iter(|| {
            drop(black_box(ours.try_insert(black_box(42))));
            drop(black_box(ours.try_insert(black_box(99))));
        });
    });
    let theirs = FixedPool::<i32>::new(100).expect("the capacity is not zero");
    group.bench_function("fastalloc", |b| {
        b.iter(|| {
            drop(black_box(theirs.allocate(black_box(42))));
            drop(black_box(theirs.allocate(black_box(99))));
        });
    });
    group.finish();
}

#[derive(Clone)]
struct Large([u64; 32]);

impl Poolable for Large {}

fn type_sizes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fastalloc/allocation_by_type_size");
    macro_rules! rows {
        ($name:literal, $type:ty, $value:expr) => {
            let ours = slab::<$type>(1000);
            group.bench_function(BenchmarkId::new("slab-core", $name), |b| {
                b.iter(|| drop(black_box(ours.try_insert(black_box($value)))));
            });
            let theirs = FixedPool::<$type>::new(1000).expect("the capacity is not zero");
            group.bench_function(BenchmarkId::new("fastalloc", $name), |b| {
                b.iter(|| drop(black_box(theirs.allocate(black_box($value)))));
            });
            group.bench_function(BenchmarkId::new("box", $name), |b| {
                b.iter(|| drop(black_box(Box::new(black_box($value)))));
            });
        };
    }
    rows!("u8", u8, 42);
    rows!("u128", u128, 42);
    rows!("large_struct_256_bytes", Large, Large([0; 32]));
    group.finish();
    // Otherwise nothing would read what was stored.
    let _ = Large([0; 32]).0;
}

criterion_group! {
    name = benches;
    config = crate::common::criterion();
    targets = pool_sizes, reuse, type_sizes
}
