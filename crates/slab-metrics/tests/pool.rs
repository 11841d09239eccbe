//! A pool's page compared with the pool.

mod common;

use common::Page;
use slab_core::{AllocError, SizeClasses, SlabPool};
use slab_metrics::{Collector, Exporter, RegisterError, Sampler, SourceKind};
use std::sync::atomic::{AtomicBool, Ordering};

fn pool(name: &str) -> SlabPool {
    SlabPool::builder()
        .name(name)
        .size_classes(SizeClasses::explicit(&[256, 1536, 2048]).unwrap())
        .max_memory(2 << 20)
        .build()
        .unwrap()
}

fn exporter(pools: &[&SlabPool]) -> Exporter {
    let collector = Collector::new();
    for pool in pools {
        collector.register_pool(pool).unwrap();
    }
    Exporter::new(collector)
}

fn page(exporter: &Exporter) -> Page {
    Page::parse(&exporter.scrape())
}

/// The states add up to the committed chunks, class by class, and the bytes to the cap.
fn assert_adds_up(page: &Page, pool: &SlabPool) {
    let stats = pool.stats();
    let name = pool.name();
    for class in stats.classes() {
        let size_class = class.chunk_bytes.to_string();
        let labels = [("pool", name), ("size_class", &*size_class)];
        let chunks = page.sum("slab_pool_chunks", &labels);
        let committed = page.value("slab_pool_committed_bytes", &labels);
        let chunks_per_slab = stats.slab_bytes / class.chunk_bytes;
        let slabs = committed / stats.slab_bytes as f64;
        assert_eq!(
            chunks,
            slabs * chunks_per_slab as f64,
            "{name} {size_class}"
        );
        let in_use = page.sum(
            "slab_pool_chunks",
            &[labels[0], labels[1], ("state", "in_use")],
        );
        let bytes = page.value("slab_pool_in_use_bytes", &labels);
        assert_eq!(bytes, in_use * class.chunk_bytes as f64);
        assert!(in_use <= page.value("slab_pool_in_use_chunks_peak", &labels));
        for place in ["magazine", "depot"] {
            let of = |name, label| page.value(name, &[labels[0], labels[1], (label, place)]);
            let cached = of("slab_pool_chunks", "state") * class.chunk_bytes as f64;
            assert_eq!(of("slab_pool_cached_bytes", "place"), cached);
        }
        let cached = page.sum("slab_pool_cached_bytes", &labels);
        assert!(bytes + cached <= committed, "{name} {size_class}");
    }
    let pool_labels = [("pool", name)];
    let committed = page.sum("slab_pool_committed_bytes", &pool_labels)
        + page.value("slab_pool_unassigned_bytes", &pool_labels);
    let capacity = page.value("slab_pool_capacity_bytes", &pool_labels);
    assert_eq!(capacity, pool.max_memory() as f64);
    assert!(committed <= capacity, "{committed} of {capacity}");
}

#[test]
fn every_series_is_exported_as_0_before_the_first_event() {
    let rx = pool("rx");
    let page = page(&exporter(&[&rx]));
    for (name, family) in &page.families {
        for sample in &family.samples {
            let expected = match name.as_str() {
                "slab_build_info" => 1.0,
                "slab_pool_capacity_bytes" => rx.max_memory() as f64,
                // Not zero if the pools of other tests have all entries just now.
                "slab_pool_slow_classes" => rx.stats().slow_classes as f64,
                _ => 0.0,
            };
            assert_eq!(sample.value, expected, "{name}{:?}", sample.labels);
        }
    }
    let series = |name: &str| page.families[name].samples.len();
    assert_eq!(series("slab_pool_chunks"), 3 * 4);
    assert_eq!(series("slab_pool_allocs_total"), 3 * 3);
    assert_eq!(series("slab_pool_frees_total"), 3 * 2);
    assert_eq!(series("slab_pool_exhausted_total"), 3 * 3);
}

#[test]
fn the_page_counts_what_the_callers_did() {
    let rx = pool("rx");
    let exporter = exporter(&[&rx]);
    let class = [("pool", "rx"), ("size_class", "1536")];
    let held: Vec<_> = (0..100).map(|_| rx.try_alloc(1500).unwrap()).collect();
    let now = page(&exporter);
    assert_adds_up(&now, &rx);
    let in_use = [class[0], class[1], ("state", "in_use")];
    assert_eq!(now.value("slab_pool_chunks", &in_use), 100.0);
    assert_eq!(now.sum("slab_pool_allocs_total", &class), 100.0);
    assert_eq!(now.sum("slab_pool_frees_total", &class), 0.0);
    assert!(now.value("slab_pool_slab_commits_total", &class) >= 1.0);
    let touched = now.value("slab_pool_touched_bytes", &class[..1]);
    assert!(touched > 0.0 && touched == rx.stats().touched_bytes as f64);
    if let Some(resident) = rx.resident_bytes() {
        let exported = now.value("slab_pool_resident_bytes", &class[..1]);
        assert_eq!(exported, resident as f64);
    }

    let (here, there) = held
        .into_iter()
        .enumerate()
        .partition::<Vec<_>, _>(|(i, _)| *i < 30);
    drop(here);
    std::thread::spawn(move || drop(there)).join().unwrap();
    let now = page(&exporter);
    assert_adds_up(&now, &rx);
    assert_eq!(now.value("slab_pool_chunks", &in_use), 0.0);
    assert_eq!(now.value("slab_pool_in_use_chunks_peak", &class), 100.0);
    let frees = |path| {
        now.value(
            "slab_pool_frees_total",
            &[class[0], class[1], ("path", path)],
        )
    };
    assert_eq!((frees("local"), frees("remote")), (30.0, 70.0));

    assert!(matches!(
        rx.try_alloc(4096),
        Err(AllocError::TooLarge { .. })
    ));
    let all: Vec<_> = std::iter::from_fn(|| rx.try_alloc(2048).ok()).collect();
    let now = page(&exporter);
    assert_adds_up(&now, &rx);
    assert_eq!(
        now.value("slab_pool_too_large_total", &[("pool", "rx")]),
        1.0
    );
    let rejected = [
        ("pool", "rx"),
        ("size_class", "2048"),
        ("outcome", "rejected"),
    ];
    assert_eq!(now.value("slab_pool_exhausted_total", &rejected), 1.0);
    drop(all);
    rx.trim();
    let now = page(&exporter);
    assert_adds_up(&now, &rx);
    let class = [("pool", "rx"), ("size_class", "2048")];
    assert!(now.value("slab_pool_slab_trims_total", &class) >= 1.0);
    assert_eq!(now.sum("slab_pool_committed_bytes", &[("pool", "rx")]), 0.0);
}

#[test]
fn what_the_heap_served_within_the_oversize_limit_was_not_refused() {
    let rx = SlabPool::builder()
        .name("rx")
        .max_oversize_memory(1 << 20)
        .build()
        .unwrap();
    let served = rx.try_alloc_any(100_000).unwrap();
    let page = page(&exporter(&[&rx]));
    let value = |name| page.value(name, &[("pool", "rx")]);
    assert_eq!(value("slab_pool_oversize_allocs_total"), 1.0);
    assert_eq!(value("slab_pool_too_large_total"), 0.0);
    // So it does not count all requests that were above the largest class.
    assert!(
        page.families["slab_pool_too_large_total"]
            .help
            .contains("refused")
    );
    drop(served);
}

#[test]
fn states_add_up_and_counters_never_fall_while_threads_run() {
    let rx = pool("rx");
    let exporter = exporter(&[&rx]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let start = |len| {
            let (rx, done) = (&rx, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let chunks: Vec<_> = (0..80).filter_map(|_| rx.try_alloc(len).ok()).collect();
                    scope.spawn(move || drop(chunks)).join().unwrap();
                }
            })
        };
        let threads = [100, 1500, 2000].map(start);
        let mut before = page(&exporter);
        for _ in 0..100 {
            let now = page(&exporter);
            assert_adds_up(&now, &rx);
            for (name, family) in &now.families {
                if family.kind != "counter" {
                    continue;
                }
                for sample in &family.samples {
                    let labels: Vec<_> = sample
                        .labels
                        .iter()
                        .map(|(k, v)| (k.as_str(), v.as_str()))
                        .collect();
                    let earlier = before.value(name, &labels);
                    assert!(sample.value >= earlier, "{name}{labels:?} fell");
                }
            }
            before = now;
        }
        done.store(true, Ordering::Relaxed);
        // The end of the scope alone does not wait for the destructors of thread-locals.
        threads.into_iter().for_each(|one| one.join().unwrap());
    });
    let now = page(&exporter);
    let class = [("pool", "rx")];
    let in_use = [("pool", "rx"), ("state", "in_use")];
    assert_eq!(now.sum("slab_pool_chunks", &in_use), 0.0);
    assert!(now.sum("slab_pool_frees_total", &class) > 0.0);
}

#[test]
fn waiters_are_exported_and_not_counted_as_rejected() {
    use std::task::{Context, Poll, Waker};
    let rx = pool("rx");
    let exporter = exporter(&[&rx]);
    let mut held: Vec<_> = std::iter::from_fn(|| rx.try_alloc(2048).ok()).collect();
    let mut waiting = std::pin::pin!(rx.alloc(2048));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    let class = [("pool", "rx"), ("size_class", "2048")];
    let exhausted = |page: &Page, outcome| {
        let labels = [class[0], class[1], ("outcome", outcome)];
        page.value("slab_pool_exhausted_total", &labels)
    };
    let now = page(&exporter);
    assert_adds_up(&now, &rx);
    assert_eq!(now.value("slab_pool_waiters", &class), 1.0);
    assert_eq!(exhausted(&now, "waited"), 1.0);
    // A wait is not in the histogram before it has ended.
    assert_eq!(now.value("slab_pool_wait_seconds_count", &class[..1]), 0.0);
    // The allocation that ended the loop above.
    assert_eq!(exhausted(&now, "rejected"), 1.0);
    held.pop();
    assert!(matches!(
        waiting.as_mut().poll(&mut context),
        Poll::Ready(Ok(_))
    ));
    let now = page(&exporter);
    assert_adds_up(&now, &rx);
    assert_eq!(now.value("slab_pool_waiters", &class), 0.0);
    assert_eq!(exhausted(&now, "waited"), 1.0);
    assert_eq!(now.value("slab_pool_wait_seconds_count", &class[..1]), 1.0);
    assert!(now.value("slab_pool_wait_seconds_sum", &class[..1]) > 0.0);
    let buckets = now.families["slab_pool_wait_seconds"].samples.iter();
    let counts: Vec<f64> = buckets
        .filter(|s| s.name == "slab_pool_wait_seconds_bucket")
        .map(|s| s.value)
        .collect();
    assert_eq!(counts.len(), slab_metrics::WAIT_SECONDS_BOUNDS.len() + 1);
    assert!(
        counts.is_sorted() && counts.last() == Some(&1.0),
        "{counts:?}"
    );
    assert_eq!(exhausted(&now, "too_many_waiters"), 0.0);

    // The histogram is of all classes.
    held.extend(std::iter::from_fn(|| rx.try_alloc(2048).ok()));
    let mut given_up = Box::pin(rx.alloc(1));
    assert!(given_up.as_mut().poll(&mut context).is_pending());
    drop(given_up);
    let now = page(&exporter);
    assert_eq!(now.value("slab_pool_wait_seconds_count", &class[..1]), 2.0);
}

#[test]
fn chunks_in_magazines_of_idle_threads_are_counted_exactly() {
    const THREADS: usize = 6;
    let rx = pool("rx");
    let exporter = exporter(&[&rx]);
    let here = std::sync::Barrier::new(THREADS + 1);
    let state = |page: &Page, state| {
        page.value(
            "slab_pool_chunks",
            &[("pool", "rx"), ("size_class", "1536"), ("state", state)],
        )
    };
    std::thread::scope(|scope| {
        let idle = || {
            let held: Vec<_> = (0..3).map(|_| rx.try_alloc(1500).unwrap()).collect();
            here.wait();
            here.wait();
            drop(held);
            here.wait();
            here.wait();
        };
        let threads = [(); THREADS].map(|()| scope.spawn(idle));
        here.wait();
        // All threads are idle and hold three chunks.
        let first = page(&exporter);
        assert_adds_up(&first, &rx);
        assert_eq!(state(&first, "in_use"), 3.0 * THREADS as f64);
        here.wait();
        here.wait();
        // Now these are in their magazines, beside what was there before.
        let second = page(&exporter);
        assert_adds_up(&second, &rx);
        assert_eq!(state(&second, "in_use"), 0.0);
        let moved = state(&second, "magazine") - state(&first, "magazine");
        assert_eq!(moved, 3.0 * THREADS as f64);
        let caches = second.value("slab_pool_thread_caches", &[("pool", "rx")]);
        assert_eq!(caches, THREADS as f64);
        here.wait();
        // The end of the scope alone does not wait for the destructors of thread-locals.
        threads.into_iter().for_each(|one| one.join().unwrap());
    });
    // The threads have ended, and any thread can now find their chunks.
    let last = page(&exporter);
    assert_adds_up(&last, &rx);
    assert_eq!(state(&last, "magazine"), 0.0);
    assert_eq!(
        last.value("slab_pool_thread_caches", &[("pool", "rx")]),
        0.0
    );
}

#[test]
fn remote_frees_never_fall_when_the_freeing_thread_allocates() {
    let rx = pool("rx");
    let exporter = exporter(&[&rx, &pool("gone")]);
    let held: Vec<_> = (0..50).map(|_| rx.try_alloc(1500).unwrap()).collect();
    let frees = |page: &Page, path| {
        page.sum(
            "slab_pool_frees_total",
            &[("pool", "rx"), ("size_class", "1536"), ("path", path)],
        )
    };
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                drop(held);
                let before = page(&exporter);
                assert_eq!(
                    (frees(&before, "local"), frees(&before, "remote")),
                    (0.0, 50.0)
                );
                // Now this thread has freed no more than it has allocated.
                let _held: Vec<_> = (0..50).map(|_| rx.try_alloc(1500).unwrap()).collect();
                let after = page(&exporter);
                assert_eq!(
                    (frees(&after, "local"), frees(&after, "remote")),
                    (0.0, 50.0)
                );
                // The recorder ends here; the next one continues the totals.
                exporter.collector().unregister(SourceKind::Pool, "gone");
                let after = page(&exporter);
                assert_eq!(
                    (frees(&after, "local"), frees(&after, "remote")),
                    (0.0, 50.0)
                );
            })
            .join()
            .unwrap();
    });
    let now = page(&exporter);
    assert_eq!((frees(&now, "local"), frees(&now, "remote")), (50.0, 50.0));
}

#[test]
fn pools_can_be_registered_and_removed_during_scrapes() {
    let rx = pool("rx");
    let exporter = exporter(&[&rx]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut before = 0.0;
                    while !done.load(Ordering::Relaxed) {
                        let now = page(&exporter);
                        assert_adds_up(&now, &rx);
                        let allocs = now.sum("slab_pool_allocs_total", &[("pool", "rx")]);
                        assert!(allocs >= before, "{allocs} after {before}");
                        before = allocs;
                        // All series of a pool, or none.
                        let guests = |name: &str| {
                            let samples = &now.families[name].samples;
                            samples
                                .iter()
                                .filter(|s| s.labels["pool"] == "guest")
                                .count()
                        };
                        assert_eq!(
                            guests("slab_pool_chunks"),
                            12 * guests("slab_pool_capacity_bytes")
                        );
                    }
                })
            })
            .collect();
        for _ in 0..50 {
            let guest = pool("guest");
            exporter.collector().register_pool(&guest).unwrap();
            let _ = exporter.scrape();
            drop(guest.try_alloc(100).unwrap());
            drop(rx.try_alloc(100).unwrap());
            assert!(exporter.collector().unregister(SourceKind::Pool, "guest"));
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|r| r.join().unwrap());
    });
    let now = page(&exporter);
    assert_eq!(now.sum("slab_pool_allocs_total", &[("pool", "rx")]), 50.0);
    assert!(now.families["slab_pool_capacity_bytes"].samples.len() == 1);
}

#[test]
fn unregistering_a_pool_drops_its_handle_and_ends_its_series() {
    let (rx, tx) = (pool("rx"), pool("tx"));
    let exporter = exporter(&[&rx, &tx]);
    drop(rx.try_alloc(100).unwrap());
    drop(tx.try_alloc(100).unwrap());
    let before = page(&exporter);
    assert_eq!(before.sum("slab_pool_allocs_total", &[("pool", "rx")]), 1.0);

    assert!(exporter.collector().unregister(SourceKind::Pool, "rx"));
    assert!(!exporter.collector().unregister(SourceKind::Pool, "rx"));
    assert!(format!("{rx:?}").contains("handles: 1 }"), "{rx:?}");
    let after = page(&exporter);
    for (name, family) in &after.families {
        let of_tx = family
            .samples
            .iter()
            .all(|s| s.labels.get("pool").is_some_and(|p| p == "tx"));
        assert!(of_tx || name == "slab_build_info", "{name}");
    }
    // The other pool's totals go on.
    assert_eq!(after.sum("slab_pool_allocs_total", &[("pool", "tx")]), 1.0);

    // The name is free again, and the new pool starts at 0.
    drop(rx);
    exporter.collector().register_pool(&pool("rx")).unwrap();
    let again = page(&exporter);
    assert_eq!(again.sum("slab_pool_allocs_total", &[("pool", "rx")]), 0.0);
}

#[test]
fn a_pool_that_took_anothers_place_has_series_of_its_own() {
    let (rx, tx) = (pool("rx"), pool("tx"));
    let exporter = exporter(&[&rx]);
    let _held = tx.try_alloc(100).unwrap();
    let before = page(&exporter);
    assert_eq!(before.sum("slab_pool_chunks", &[("pool", "rx")]), 0.0);
    // Between two scrapes, so that there are as many sources as before.
    assert!(exporter.collector().unregister(SourceKind::Pool, "rx"));
    exporter.collector().register_pool(&tx).unwrap();
    assert_adds_up(&page(&exporter), &tx);
    assert!(!exporter.scrape().contains("\"rx\""));
}

#[test]
fn duplicate_names_are_refused() {
    let collector = Collector::new();
    collector.register_pool(&pool("rx")).unwrap();
    let twice = collector.register_pool(&pool("rx"));
    assert_eq!(
        twice,
        Err(RegisterError::DuplicateName {
            kind: SourceKind::Pool,
            name: "rx".into()
        })
    );
}

/// As queues: a process cannot have as many pools.
#[test]
#[cfg(feature = "net")]
fn too_many_sources_are_refused() {
    let collector = Collector::new();
    let (_to_consumer, batches) = slab_net::pipeline::queue(
        8.try_into().unwrap(),
        slab_net::pipeline::Overflow::DropNewest,
    );
    for number in 0..slab_metrics::MAX_SOURCES {
        let (name, monitor) = (number.to_string(), batches.monitor());
        collector.register_queue(name, monitor).unwrap();
    }
    let full = collector.register_pool(&pool("tx"));
    assert_eq!(full, Err(RegisterError::TooManySources));
    assert!(collector.unregister(SourceKind::Queue, "7"));
    collector.register_pool(&pool("tx")).unwrap();
}

#[test]
fn a_pool_name_with_quotes_and_newlines_is_escaped() {
    let name = "a\"b\\c\nd{e=\"f\"} 1";
    let odd = pool(name);
    let page = page(&exporter(&[&odd]));
    assert_adds_up(&page, &odd);
}

#[test]
fn a_sampler_feeds_any_recorder_and_zeroes_gauges_of_removed_pools() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let given: &dyn metrics::Recorder = &recorder;
    let rx = pool("rx");
    let collector = Collector::new();
    let mut sampler = Sampler::new(collector.clone(), given);
    sampler.sample();
    assert_eq!(
        handle.render().matches("slab_").count(),
        3,
        "build info alone"
    );

    collector.register_pool(&rx).unwrap();
    let chunk = rx.try_alloc(100).unwrap();
    sampler.sample();
    let page = Page::parse(&handle.render());
    assert_adds_up(&page, &rx);
    drop(chunk);

    collector.unregister(SourceKind::Pool, "rx");
    assert!(format!("{rx:?}").contains("handles: 1 }"), "{rx:?}");
    sampler.sample();
    let page = Page::parse(&handle.render());
    for (name, family) in &page.families {
        if family.kind == "gauge" && name != "slab_build_info" {
            assert!(family.samples.iter().all(|s| s.value == 0.0), "{name}");
        }
    }
    assert_eq!(page.sum("slab_pool_allocs_total", &[("pool", "rx")]), 1.0);
}

#[test]
fn a_sampler_keeps_the_gauges_of_pools_behind_a_removed_one() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let collector = Collector::new();
    let pools = ["a", "b", "c", "d"].map(pool);
    let mut held = Vec::new();
    for (before, pool) in pools.iter().enumerate() {
        collector.register_pool(pool).unwrap();
        held.extend((0..=before).map(|_| pool.try_alloc(256).unwrap()));
    }
    let mut sampler = Sampler::new(collector.clone(), &recorder);
    sampler.sample();
    collector.unregister(SourceKind::Pool, "a");
    sampler.sample();
    let page = Page::parse(&recorder.handle().render());
    let chunks = |pool| page.sum("slab_pool_in_use_bytes", &[("pool", pool)]) / 256.0;
    assert_eq!(["a", "b", "c", "d"].map(chunks), [0.0, 2.0, 3.0, 4.0]);
}
