//! A scrape of 8 pools with 11 size classes each: ours writes the page straight from the statistics; the
//! peer makes the same page with a recorder of `metrics-exporter-prometheus`.

use super::{OURS, Size};
use crate::cpu::{Cpus, ThreadClock, pin};
use crate::heap;
use flate2::{Compression, write::GzEncoder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use slab_core::{Chunk, SizeClasses, SlabPool};
use slab_metrics::{Collector, Exporter, Sampler};
use std::hint::black_box;
use std::io::Write;

/// The scrapes that are counted, after the first, which allocates what later ones reuse.
const COUNTED: u64 = 100;

/// Pools with some chunks in every state, so that numbers have digits.
struct Pools {
    collector: Collector,
    _held: Vec<Chunk>,
}

impl Pools {
    fn eight() -> Self {
        let sizes: Vec<usize> = (6..=16).map(|log2| 1 << log2).collect();
        Self::new(8, &sizes)
    }

    fn new(pools: usize, sizes: &[usize]) -> Self {
        let collector = Collector::new();
        let mut held = Vec::new();
        for number in 0..pools {
            let pool = SlabPool::builder()
                .name(format!("pool{number}"))
                .size_classes(SizeClasses::explicit(sizes).expect("they ascend"))
                .max_memory(64 << 20)
                .build()
                .expect("the configuration is valid");
            collector.register_pool(&pool).expect("names differ");
            let largest = sizes[sizes.len() - 1];
            let most: Vec<_> = (0..256).map(|_| pool.try_alloc(largest)).collect();
            drop(most);
            held.extend(sizes.iter().filter_map(|&len| pool.try_alloc(len).ok()));
        }
        Self {
            collector,
            _held: held,
        }
    }

    fn exporter(&self) -> Exporter {
        Exporter::new(self.collector.clone())
    }
}

struct Recorder {
    sampler: Sampler<PrometheusRecorder>,
    handle: PrometheusHandle,
}

impl Recorder {
    fn new(pools: &Pools) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        Self {
            sampler: Sampler::new(pools.collector.clone(), recorder),
            handle,
        }
    }

    fn page(&mut self) -> String {
        self.sampler.sample();
        self.handle.render()
    }
}

/// In Prometheus' text format.
pub(super) fn page(size: &Size) -> Result<Vec<(f64, f64)>, String> {
    rounds(size, Exporter::scrape, |page| drop(black_box(page)))
}

/// As Prometheus requests it: in OpenMetrics, compressed as the server does it.
pub(super) fn compressed(size: &Size) -> Result<Vec<(f64, f64)>, String> {
    let gzip = |page: String| {
        let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
        // Writing to a vector does not fail.
        let _ = encoder.write_all(page.as_bytes());
        drop(black_box(encoder.finish()));
    };
    rounds(size, Exporter::scrape_openmetrics, gzip)
}

fn rounds(
    size: &Size,
    scrape: fn(&Exporter) -> String,
    then: impl Fn(String),
) -> Result<Vec<(f64, f64)>, String> {
    let cpus = Cpus::choose();
    pin(cpus.main);
    let pools = Pools::eight();
    let (exporter, mut recorder) = (pools.exporter(), Recorder::new(&pools));
    then(scrape(&exporter));
    then(recorder.page());
    let each = |work: &mut dyn FnMut()| {
        let clock = ThreadClock::start();
        (0..size.scrapes).for_each(|_| work());
        clock.elapsed_ns() / 1e3 / f64::from(size.scrapes)
    };
    let rounds = (0..size.rounds).map(|_| {
        let ours = each(&mut || then(scrape(&exporter)));
        (ours, each(&mut || then(recorder.page())))
    });
    let rounds = rounds.collect();
    cpus.unpin();
    Ok(rounds)
}

/// Heap allocations per scrape after the first, in a process that counts them.
pub(super) fn allocations(side: &str) -> Option<f64> {
    let pools = match side {
        "one-class" => Pools::new(1, &[2048]),
        _ => Pools::eight(),
    };
    let (exporter, mut recorder) = (pools.exporter(), Recorder::new(&pools));
    let mut scrape: Box<dyn FnMut() -> String> = match side {
        OURS | "one-class" => Box::new(|| exporter.scrape()),
        "recorder" => Box::new(|| recorder.page()),
        _ => return None,
    };
    drop(black_box(scrape()));
    let before = heap::allocations();
    (0..COUNTED).for_each(|_| drop(black_box(scrape())));
    let counted = heap::allocations() - before;
    heap::is_counted().then_some(counted as f64 / COUNTED as f64)
}
