//! The benchmarks of the C++ typed slab allocator: `cargo bench -- cpp_slab/`.
//!
//! Like the original, with 10 million objects of 64 bytes, in bursts. Footprint is `versus alloc --only
//! typed-footprint` and resident memory under churn `--only churn`: times say nothing about them.

use criterion::{Criterion, Throughput, criterion_group};
use packet_slab::slab_core::{Slab, SlabPool};
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Objects per burst.
const OBJECTS: usize = 10_000_000;
/// Packets of a churn.
const PACKETS: usize = 100_000;

type Object = [u8; 64];

/// Two threads at once; each allocates its objects, then frees them, last first.
fn two_threads_local<B: Send>(alloc: impl Fn() -> B + Sync) -> Duration {
    let started = Barrier::new(2);
    let run = || {
        let mut held = Vec::with_capacity(OBJECTS);
        started.wait();
        let start = Instant::now();
        held.extend((0..OBJECTS).map(|_| alloc()));
        while held.pop().is_some() {}
        start.elapsed()
    };
    thread::scope(|scope| {
        let other = scope.spawn(run);
        let own = run();
        (own + other.join().expect("the other thread does not panic")) / 2
    })
}

/// One thread allocates, another frees.
fn cross_thread<B: Send>(alloc: impl Fn() -> B + Sync) -> Duration {
    let mut held = Vec::with_capacity(OBJECTS);
    let start = Instant::now();
    held.extend((0..OBJECTS).map(|_| alloc()));
    let allocated = start.elapsed();
    let freed = thread::scope(|scope| {
        let freeing = scope.spawn(move || {
            let start = Instant::now();
            held.into_iter().for_each(drop);
            start.elapsed()
        });
        freeing.join().expect("the freeing thread does not panic")
    });
    allocated + freed
}

fn slab() -> Slab<Object> {
    Slab::builder()
        .name("bench")
        .max_objects(2 * OBJECTS)
        .build()
        .expect("the configuration is valid")
}

/// As in the original, the objects' bytes are not written.
fn threads(criterion: &mut Criterion) {
    let slab = slab();
    let ours = || slab.try_uninit().expect("the slab has room");
    let heap = || black_box(Box::<Object>::new_uninit());
    let mut group = criterion.benchmark_group("cpp_slab/local_2_threads");
    group.throughput(Throughput::Elements(2 * OBJECTS as u64));
    group.bench_function("slab-core", |b| {
        b.iter_custom(|bursts| (0..bursts).map(|_| two_threads_local(ours)).sum());
    });
    group.bench_function("heap", |b| {
        b.iter_custom(|bursts| (0..bursts).map(|_| two_threads_local(heap)).sum());
    });
    group.finish();
    let mut group = criterion.benchmark_group("cpp_slab/cross_thread");
    group.throughput(Throughput::Elements(OBJECTS as u64));
    group.bench_function("slab-core", |b| {
        b.iter_custom(|bursts| (0..bursts).map(|_| cross_thread(ours)).sum());
    });
    group.bench_function("heap", |b| {
        b.iter_custom(|bursts| (0..bursts).map(|_| cross_thread(heap)).sum());
    });
    group.finish();
}

/// Fills up to [`PACKETS`] and frees nine tenths at random.
fn churn(criterion: &mut Criterion) {
    const LEN: usize = 2048;
    let pool = SlabPool::builder()
        .name("bench")
        .max_memory(2 * PACKETS * LEN)
        .build()
        .expect("the configuration is valid");
    let mut group = criterion.benchmark_group("cpp_slab/churn");
    group.throughput(Throughput::Elements(PACKETS as u64 / 10 * 9));
    group.bench_function("slab-core", |b| {
        let mut held = Vec::with_capacity(PACKETS);
        b.iter_custom(|rounds| {
            let alloc = || pool.try_alloc(LEN).expect("the pool has room");
            (0..rounds).map(|_| churned(&mut held, alloc)).sum()
        });
    });
    group.bench_function("heap", |b| {
        let mut held = Vec::with_capacity(PACKETS);
        b.iter_custom(|rounds| {
            let alloc = || black_box(Vec::<u8>::with_capacity(LEN));
            (0..rounds).map(|_| churned(&mut held, alloc)).sum()
        });
    });
    group.finish();
}

fn churned<B>(held: &mut Vec<B>, alloc: impl Fn() -> B) -> Duration {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let start = Instant::now();
    held.extend((held.len()..PACKETS).map(|_| alloc()));
    for _ in 0..PACKETS / 10 * 9 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        drop(held.swap_remove(random as usize % held.len()));
    }
    start.elapsed()
}

criterion_group! {
    name = benches;
    config = crate::common::criterion().sample_size(10);
    targets = threads, churn
}
