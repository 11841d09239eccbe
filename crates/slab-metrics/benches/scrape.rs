//! What a scrape of 8 pools with 11 size classes each costs: the sample alone (our code), and the
//! whole page (the sample and `metrics-exporter-prometheus`' rendering).
//!
//!     cargo bench -p slab-metrics

#![allow(clippy::print_stdout)]

use slab_core::{SizeClasses, SlabPool};
use slab_metrics::{Collector, Exporter, Sampler};
use std::hint::black_box;
use std::time::{Duration, Instant};

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
    // Some chunks everywhere, so that numbers have digits.
    let _held: Vec<_> = pools
        .iter()
        .flat_map(|pool| sizes.iter().map(move |&len| pool.try_alloc(len).unwrap()))
        .collect();

    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let mut sampler = Sampler::new(collector.clone(), recorder);
    let exporter = Exporter::new(collector);
    let series = exporter
        .scrape()
        .lines()
        .filter(|l| l.starts_with("slab_"))
        .count();

    let (mut sample, mut page) = (Vec::new(), Vec::new());
    for _ in 0..500 {
        sample.push(time(|| sampler.sample()));
        page.push(time(|| drop(black_box(exporter.scrape()))));
    }
    println!("8 pools, 11 classes, {series} series; median, 99th of 500 [us]");
    for (what, mut times) in [("sample", sample), ("page", page)] {
        times.sort();
        let us = |at: usize| times[at].as_secs_f64() * 1e6;
        println!("{what:<8} {:8.1} {:8.1}", us(250), us(495));
    }
}

fn time(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}
