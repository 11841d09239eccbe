//! From the second sample on, a sample allocates nothing, however many pools there are.

use metrics_exporter_prometheus::PrometheusBuilder;
use slab_core::SlabPool;
use slab_metrics::{Collector, Sampler};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: as `System`, to which every call goes with its arguments unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps `System`'s contract, which is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_sample_allocates_nothing_after_the_first() {
    let collector = Collector::new();
    let pools: Vec<_> = (0..8)
        .map(|name| {
            let pool = SlabPool::builder().name(name.to_string()).build().unwrap();
            collector.register_pool(&pool).unwrap();
            pool
        })
        .collect();
    let recorder = PrometheusBuilder::new().build_recorder();
    let mut sampler = Sampler::new(collector, &recorder);
    let before = ALLOCATIONS.get();
    sampler.sample();
    let first = ALLOCATIONS.get() - before;
    // The counter counts: handles are made in the first sample.
    assert!(first > 100, "{first}");
    for pool in &pools {
        drop(pool.try_alloc(1500).unwrap());
    }
    let before = ALLOCATIONS.get();
    for _ in 0..10 {
        sampler.sample();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    // And it did sample.
    let page = recorder.handle().render();
    assert!(page.contains(",state=\"in_use\"} 0\n"));
    assert!(page.contains("source=\"slab\"} 1\n"), "{page}");
}
