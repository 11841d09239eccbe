//! What a scrape of 8 pools with 11 size classes each costs, in CPU time of the thread that does it:
//! reading the statistics, writing the page, compressing it for those who accept that; and the same
//! page by way of a recorder of `metrics-exporter-prometheus`.
//!
//!     cargo bench -p slab-metrics --bench scrape

#![allow(clippy::print_stdout)]

use flate2::{Compression, write::GzEncoder};
use metrics::NoopRecorder;
use metrics_exporter_prometheus::PrometheusBuilder;
use rustix::time::{ClockId, clock_gettime};
use slab_core::{SizeClasses, SlabPool};
use slab_metrics::{Collector, Exporter, Sampler};
use std::hint::black_box;
use std::io::Write;

const ROUNDS: usize = 500;

fn main() {
    let sizes: Vec<usize> = (6..17).map(|log2| 1 << log2).collect();
    assert_eq!(sizes.len(), 11);
    let collector = Collector::new();
    let pools: Vec<SlabPool> = (0..8)
        .map(|name| {
            let pool = SlabPool::builder()
                .name(format!("pool{name}"))
                .size_classes(SizeClasses::explicit(&sizes).unwrap())
                .max_memory(64 << 20)
                .build()
                .unwrap();
            collector.register_pool(&pool).unwrap();
            pool
        })
        .collect();
    // Half of each pool committed, and some chunks everywhere, so that numbers have digits.
    for pool in &pools {
        let most: Vec<_> = (0..512).map(|_| pool.try_alloc(65536).unwrap()).collect();
        drop(most);
    }
    let _held: Vec<_> = pools
        .iter()
        .flat_map(|pool| sizes.iter().map(move |&len| pool.try_alloc(len).unwrap()))
        .collect();

    let exporter = Exporter::new(collector.clone());
    let page = exporter.scrape();
    let series = page.lines().filter(|l| l.starts_with("slab_")).count();
    let mut read = Sampler::new(collector.clone(), NoopRecorder);
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let mut through = Sampler::new(collector, recorder);

    type Row<'a> = (&'static str, Box<dyn FnMut() + 'a>);
    let mut rows: [Row<'_>; 6] = [
        ("read the statistics", Box::new(|| read.sample())),
        ("page", Box::new(|| drop(black_box(exporter.scrape())))),
        (
            "page in OpenMetrics",
            Box::new(|| drop(black_box(exporter.scrape_openmetrics()))),
        ),
        ("gzip of a page", Box::new(|| drop(black_box(gzip(&page))))),
        (
            "page in OpenMetrics with gzip",
            Box::new(|| drop(black_box(gzip(&exporter.scrape_openmetrics())))),
        ),
        (
            "page through a recorder",
            Box::new(|| {
                through.sample();
                drop(black_box(handle.render()));
            }),
        ),
    ];
    let mut times = [const { Vec::new() }; 6];
    for _ in 0..ROUNDS {
        for ((_, run), times) in rows.iter_mut().zip(&mut times) {
            let start = cpu_us();
            run();
            times.push(cpu_us() - start);
        }
    }
    println!(
        "8 pools, 11 classes, {series} series, {} bytes, {} compressed",
        page.len(),
        gzip(&page).len()
    );
    println!("us of CPU, {ROUNDS} rounds          median     99th");
    for ((what, _), mut times) in rows.into_iter().zip(times) {
        times.sort_by(f64::total_cmp);
        let of = |hundredth: usize| times[ROUNDS * hundredth / 100];
        println!("{what:<30} {:8.1} {:8.1}", of(50), of(99));
    }
}

/// As the server does it.
fn gzip(page: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    encoder.write_all(page.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// The CPU time of this thread.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
