//! From the second time on, a sample allocates nothing and a page allocates only its own string, however
//! many pools and classes there are.

use metrics_exporter_prometheus::PrometheusBuilder;
use slab_core::SlabPool;
use slab_metrics::{Collector, Exporter, MetricsServer, Sampler, SourceKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// What this thread has allocated less what it has freed.
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to `System` with its arguments unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get() + layout.size().cast_signed());
        // SAFETY: the caller keeps `System`'s contract, which is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get() - layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns how often this thread allocates while `of` runs, and its result.
fn allocations<R>(of: impl FnOnce() -> R) -> (u64, R) {
    let before = ALLOCATIONS.get();
    let result = of();
    (ALLOCATIONS.get() - before, result)
}

fn collector_of(pools: &[SlabPool]) -> Collector {
    let collector = Collector::new();
    for pool in pools {
        collector.register_pool(pool).unwrap();
    }
    collector
}

fn pools(count: usize) -> Vec<SlabPool> {
    let pool = |name: usize| SlabPool::builder().name(name.to_string()).build().unwrap();
    (0..count).map(pool).collect()
}

#[test]
fn samples_after_the_first_allocate_nothing() {
    let pools = pools(8);
    let recorder = PrometheusBuilder::new().build_recorder();
    let mut sampler = Sampler::new(collector_of(&pools), &recorder);
    let (first, ()) = allocations(|| sampler.sample());
    // The counter works: the first sample makes handles.
    assert!(first > 100, "{first}");
    for pool in &pools {
        drop(pool.try_alloc(1500).unwrap());
    }
    let ten = || (0..10).for_each(|_| sampler.sample());
    assert_eq!(allocations(ten).0, 0);
    // And it did sample.
    let page = recorder.handle().render();
    assert!(page.contains(",state=\"in_use\"} 0\n"));
    assert!(page.contains("source=\"slab\"} 1\n"), "{page}");
}

#[test]
fn pages_after_the_first_allocate_only_their_own_text() {
    let pools = pools(8);
    let exporter = Exporter::new(collector_of(&pools));
    let (first, page) = allocations(|| exporter.scrape());
    assert!(first > 100, "{first}");
    assert!(page.lines().count() > 8 * pools[0].size_classes().sizes().len() * 20);
    for pool in &pools {
        drop(pool.try_alloc(1500).unwrap());
    }
    for _ in 0..10 {
        let (count, page) = allocations(|| exporter.scrape());
        assert_eq!(count, 1);
        assert!(page.contains("source=\"slab\"} 1\n"), "{page}");
        assert_eq!(allocations(|| exporter.scrape_openmetrics()).0, 1);
    }
    // One more pool is laid out once.
    let one_more = SlabPool::builder().name("one more").build().unwrap();
    exporter.collector().register_pool(&one_more).unwrap();
    let (count, page) = allocations(|| exporter.scrape());
    assert!(count > 1 && page.contains("one more"));
    assert_eq!(allocations(|| exporter.scrape()).0, 1);
}

/// A scrape returns a string of its own, and the server holds it until the client has read it.
#[test]
fn a_page_takes_no_more_memory_than_its_sources_need_whatever_there_was_before() {
    let all = pools(20);
    let exporter = Exporter::new(collector_of(&all));
    let large = exporter.scrape().len();
    for pool in &all[1..] {
        assert!(
            exporter
                .collector()
                .unregister(SourceKind::Pool, pool.name())
        );
    }
    for _ in 0..3 {
        let page = exporter.scrape();
        assert!(page.len() < large / 10);
        assert!(page.capacity() <= 2 * page.len(), "{}", page.capacity());
    }
}

/// The only test of this process that sets the global recorder.
#[test]
fn upkeep_frees_the_samples_of_histograms() {
    let exporter = Exporter::new(Collector::new());
    exporter.install_global_recorder().unwrap();
    let seconds = metrics::histogram!("app_seconds");
    let record = |samples| {
        for _ in 0..samples {
            seconds.record(0.5);
        }
    };
    let before = LIVE_BYTES.get();
    for _ in 0..100 {
        record(1000);
        exporter.upkeep();
    }
    let kept = LIVE_BYTES.get() - before;
    assert!(kept < 200_000, "{kept} bytes for 100 000 samples");
    // A server does the same, without a scrape.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = MetricsServer::builder(exporter.clone()).address(([127, 0, 0, 1], 0).into());
        let serving = tokio::spawn(server.bind().await.unwrap().serve(std::future::pending()));
        let before = LIVE_BYTES.get();
        for _ in 0..100 {
            record(1000);
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        let kept = LIVE_BYTES.get() - before;
        assert!(kept < 200_000, "{kept} bytes for 100 000 samples");
        serving.abort();
    });
    record(100_000);
    let piled_up = LIVE_BYTES.get() - before;
    assert!(piled_up > 500_000, "{piled_up}: upkeep is not needed");
    assert!(exporter.scrape().contains("app_seconds_count 300000\n"));
}
