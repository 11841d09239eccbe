//! A sampler with a recorder of the program's own: run periodically, with histograms, and with pools that
//! are not `SlabPool`s.

mod common;

use common::Page;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use slab_core::{Slab, SlabPool};
use slab_metrics::{Collector, GlobalRecorder, Sampler, SourceKind, WAIT_SECONDS_BOUNDS};
use std::time::Duration;

fn page(of: &PrometheusHandle) -> Page {
    Page::parse(&of.render())
}

/// The one test with the global recorder: a process sets it once.
#[tokio::test(start_paused = true)]
async fn a_running_sampler_feeds_the_global_recorder_once_a_period() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).unwrap();
    let pool = SlabPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    collector.register_pool(&pool).unwrap();
    let running =
        tokio::spawn(Sampler::new(collector, GlobalRecorder).run(Duration::from_secs(10)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let in_use = || page(&handle).sum("slab_pool_in_use_bytes", &[("pool", "rx")]);
    assert_eq!(in_use(), 0.0);

    let chunk = pool.try_alloc(1500).unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(in_use(), 0.0, "before the period is over");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(in_use(), chunk.capacity() as f64);
    let text = handle.render();
    for described in [
        "slab_pool_in_use_bytes",
        "slab_pool_allocs_total",
        "slab_pool_wait_seconds",
    ] {
        assert!(text.contains(&format!("# HELP {described} ")), "{text}");
    }
    // A histogram is there before its first value.
    let waits = page(&handle).value("slab_pool_wait_seconds_count", &[("pool", "rx")]);
    assert_eq!(waits, 0.0);

    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    drop(chunk);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_ne!(in_use(), 0.0, "nothing samples any more");
}

#[tokio::test]
async fn a_recorder_gets_waits_in_their_buckets() {
    let waits = Matcher::Full("slab_pool_wait_seconds".into());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(waits, WAIT_SECONDS_BOUNDS)
        .unwrap()
        .build_recorder();
    let pool = SlabPool::builder()
        .name("rx")
        .max_memory(1 << 20)
        .build()
        .unwrap();
    let collector = Collector::new();
    collector.register_pool(&pool).unwrap();
    let mut sampler = Sampler::new(collector, &recorder);
    for round in 1..=3 {
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
        let (waited, _) = tokio::join!(pool.alloc(65536), async { drop(all.pop()) });
        drop(waited.unwrap());
        sampler.sample();
        // A second sample counts nothing twice.
        sampler.sample();
        let page = page(&recorder.handle());
        let rx = ("pool", "rx");
        let count = page.value("slab_pool_wait_seconds_count", &[rx]);
        assert_eq!(count, f64::from(round));
        let times = (0..pool.size_classes().sizes().len()).map(|class| pool.wait_times(class));
        let mut counts = [0; WAIT_SECONDS_BOUNDS.len() + 1];
        for times in times {
            for (sum, count) in counts.iter_mut().zip(times.unwrap().counts()) {
                *sum += count;
            }
        }
        let mut below = 0;
        for (bound, count) in WAIT_SECONDS_BOUNDS.iter().zip(counts) {
            below += count;
            let bound = bound.to_string();
            let bucket = page.value("slab_pool_wait_seconds_bucket", &[rx, ("le", &bound)]);
            assert_eq!(bucket, below as f64, "{bound}");
        }
    }
}

#[tokio::test]
async fn registering_a_pool_again_counts_nothing_twice() {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(
            Matcher::Full("slab_pool_wait_seconds".into()),
            WAIT_SECONDS_BOUNDS,
        )
        .unwrap()
        .build_recorder();
    let collector = Collector::new();
    let mut sampler = Sampler::new(collector.clone(), &recorder);
    let new = || {
        SlabPool::builder()
            .name("rx")
            .max_memory(1 << 20)
            .build()
            .unwrap()
    };
    let wait = async |pool: &SlabPool| {
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
        let (waited, _) = tokio::join!(pool.alloc(65536), async { drop(all.pop()) });
        drop(waited.unwrap());
    };
    let (first, second) = (new(), new());
    for _ in 0..2 {
        wait(&first).await;
    }
    // Waits of the pool from one to the next; what the recorder has after each sample.
    let mut expected = 0.0;
    for (pool, waits, counted) in [
        (&first, 0, 2.0),
        (&first, 0, 0.0),
        (&first, 1, 1.0),
        (&second, 1, 1.0),
        (&second, 0, 0.0),
    ] {
        for _ in 0..waits {
            wait(pool).await;
        }
        collector.register_pool(pool).unwrap();
        for _ in 0..2 {
            sampler.sample();
        }
        expected += counted;
        let count =
            page(&recorder.handle()).value("slab_pool_wait_seconds_count", &[("pool", "rx")]);
        assert_eq!(count, expected);
        assert!(collector.unregister(SourceKind::Pool, "rx"));
    }
}

#[test]
fn counters_continue_when_a_new_pool_takes_an_old_name() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let collector = Collector::new();
    let mut sampler = Sampler::new(collector.clone(), &recorder);
    let new = || SlabPool::builder().name("rx").build().unwrap();
    let (first, second) = (new(), new());
    // Too large requests of the pool from one sample to the next.
    let mut expected = 0.0;
    for (pool, refused) in [
        (&first, 5),
        (&first, 0),
        (&first, 1),
        (&second, 2),
        (&second, 3),
    ] {
        for _ in 0..refused {
            pool.try_alloc(1 << 20).unwrap_err();
        }
        collector.register_pool(pool).unwrap();
        for _ in 0..2 {
            sampler.sample();
        }
        expected += f64::from(refused);
        let count = page(&recorder.handle()).value("slab_pool_too_large_total", &[("pool", "rx")]);
        assert_eq!(count, expected);
        assert!(collector.unregister(SourceKind::Pool, "rx"));
    }
}

#[test]
fn a_new_pool_is_added_to_an_old_one_of_its_name_in_all_counters_or_in_none() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let collector = Collector::new();
    let mut sampler = Sampler::new(collector.clone(), &recorder);
    // The second has refused less than the first, and handed out more.
    for (refused, handed_out) in [(2, 1), (1, 5)] {
        let pool = SlabPool::builder().name("rx").build().unwrap();
        for _ in 0..refused {
            pool.try_alloc(1 << 20).unwrap_err();
        }
        for _ in 0..handed_out {
            drop(pool.try_alloc(100).unwrap());
        }
        collector.register_pool(&pool).unwrap();
        sampler.sample();
        assert!(collector.unregister(SourceKind::Pool, "rx"));
    }
    let page = page(&recorder.handle());
    let sum = |name: &str| page.sum(name, &[("pool", "rx")]);
    assert_eq!(sum("slab_pool_too_large_total"), 3.0);
    assert_eq!(sum("slab_pool_allocs_total"), 6.0);
    assert_eq!(sum("slab_pool_frees_total"), 6.0);
}

#[test]
fn a_pool_registered_again_shows_no_free_twice() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let pool = SlabPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    let mut sampler = Sampler::new(collector.clone(), &recorder);
    let exporter = slab_metrics::Exporter::new(collector.clone());
    let mut frees = || {
        sampler.sample();
        let of = |page: Page| {
            ["local", "remote"]
                .map(|path| page.sum("slab_pool_frees_total", &[("pool", "rx"), ("path", path)]))
        };
        let recorded = of(page(&recorder.handle()));
        assert_eq!(of(Page::parse(&exporter.scrape())), recorded);
        recorded
    };
    let held: Vec<_> = (0..50).map(|_| pool.try_alloc(100).unwrap()).collect();
    std::thread::scope(|scope| {
        let elsewhere = || {
            collector.register_pool(&pool).unwrap();
            drop(held);
            assert_eq!(frees(), [0.0, 50.0]);
            assert!(collector.unregister(SourceKind::Pool, "rx"));
            // Now this thread has freed no more than it has allocated.
            let _held: Vec<_> = (0..50).map(|_| pool.try_alloc(100).unwrap()).collect();
            collector.register_pool(&pool).unwrap();
            assert_eq!(frees(), [0.0, 50.0]);
        };
        scope.spawn(elsewhere).join().unwrap();
    });
    assert_eq!(frees(), [50.0, 50.0]);
}

/// As with `MetricKindMask::ALL`: series that were idle for long are forgotten.
#[tokio::test]
async fn a_histogram_dropped_by_the_recorder_returns_with_the_next_wait() {
    let recorder = PrometheusBuilder::new()
        .idle_timeout(MetricKindMask::ALL, Some(Duration::from_nanos(1)))
        .build_recorder();
    let pool = SlabPool::builder()
        .name("rx")
        .max_memory(1 << 20)
        .build()
        .unwrap();
    let collector = Collector::new();
    collector.register_pool(&pool).unwrap();
    let mut sampler = Sampler::new(collector, &recorder);
    let mut waits = || {
        sampler.sample();
        let page = recorder.handle().render();
        let count = page
            .lines()
            .find_map(|line| line.strip_prefix("slab_pool_wait_seconds_count{pool=\"rx\"} "));
        count.map(|count| count.parse::<u64>().unwrap())
    };
    while waits().is_some() {}
    let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
    let (waited, _) = tokio::join!(pool.alloc(65536), async { drop(all.pop()) });
    drop(waited.unwrap());
    assert_eq!(waits(), Some(1));
}

#[test]
fn typed_slabs_are_exported_as_pools() {
    struct Sessions;
    let slab = Slab::<[u8; 100], Sessions>::builder()
        .name("sessions")
        .max_objects(1000)
        .build()
        .unwrap();
    let collector = Collector::new();
    collector.register_pool(slab.pool()).unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    let mut sampler = Sampler::new(collector, &recorder);
    let held: Vec<_> = (0..7).map(|_| slab.try_insert([0; 100]).unwrap()).collect();
    sampler.sample();
    let in_use = [("pool", "sessions"), ("state", "in_use")];
    let first = page(&recorder.handle());
    assert_eq!(first.sum("slab_pool_chunks", &in_use), 7.0);
    if cfg!(target_os = "linux") {
        assert!(first.value("slab_pool_resident_bytes", &in_use[..1]) >= 7.0 * 100.0);
    }
    drop(held);
    sampler.sample();
    assert_eq!(
        page(&recorder.handle()).sum("slab_pool_chunks", &in_use),
        0.0
    );
}

#[tokio::test(start_paused = true)]
async fn a_period_of_zero_is_taken_as_the_shortest() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let pool = SlabPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    collector.register_pool(&pool).unwrap();
    let running = tokio::spawn(Sampler::new(collector, recorder).run(Duration::ZERO));
    let in_use = || page(&handle).sum("slab_pool_in_use_bytes", &[("pool", "rx")]);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(in_use(), 0.0);
    let chunk = pool.try_alloc(1500).unwrap();
    tokio::time::sleep(Duration::from_millis(8)).await;
    assert_eq!(in_use(), 0.0, "before the period is over");
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(in_use(), chunk.capacity() as f64);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_late_sample_delays_the_following_ones() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let pool = SlabPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    collector.register_pool(&pool).unwrap();
    let second = Duration::from_secs(1);
    let running = tokio::spawn(Sampler::new(collector, recorder).run(10 * second));
    let in_use = || page(&handle).sum("slab_pool_in_use_bytes", &[("pool", "rx")]);
    tokio::time::sleep(second).await;
    // As if the thread had been busy for so long.
    tokio::time::advance(35 * second).await;
    tokio::time::sleep(second).await;
    let chunk = pool.try_alloc(1500).unwrap();
    tokio::time::sleep(8 * second).await;
    assert_eq!(in_use(), 0.0, "missed samples are not made up for");
    tokio::time::sleep(2 * second).await;
    assert_eq!(in_use(), chunk.capacity() as f64);
    running.abort();
}
