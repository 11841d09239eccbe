//! [`Sampler`]: the way from a collector into one recorder.

use crate::collector::Collector;
use crate::series::{Registrar, Series, Source};
use metrics::{Gauge, Recorder};
use std::fmt;
use std::sync::Arc;

/// Brings the statistics of a [`Collector`] into a recorder of the `metrics` facade.
///
/// For programs that have a recorder already; [`Exporter`](crate::Exporter) brings its own. Call
/// [`sample`](Self::sample) when the recorder is about to be read. The recorder is owned (a
/// reference or an `Arc` of one will do), because the handles that it gave out are kept: from the
/// second sample on, a sample allocates nothing.
///
/// Counters are set to totals by `absolute`, which never goes back; gauges are set to what is now.
/// A facade cannot take a series away: when a source is unregistered, its gauges go to 0 and its
/// counters stand still. A recorder with an idle timeout
/// (`PrometheusBuilder::idle_timeout`) drops them later.
///
/// ```
/// use metrics_exporter_prometheus::PrometheusBuilder;
/// use slab_core::SlabPool;
/// use slab_metrics::{Collector, Sampler};
///
/// let recorder = PrometheusBuilder::new().build_recorder();
/// let page = recorder.handle();
///
/// let collector = Collector::new();
/// collector.register_pool(&SlabPool::builder().name("rx").build()?)?;
/// let mut sampler = Sampler::new(collector, &recorder);
/// sampler.sample();
/// assert!(page.render().contains("slab_pool_capacity_bytes{pool=\"rx\"}"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sampler<R> {
    collector: Collector,
    recorder: R,
    next_serial: u64,
    tracked: Vec<Tracked>,
}

struct Tracked {
    series: Box<dyn Series>,
    gauges: Vec<Gauge>,
}

impl<R: Recorder> Sampler<R> {
    /// A sampler that has not registered anything with `recorder` yet.
    pub fn new(collector: Collector, recorder: R) -> Self {
        Self {
            collector,
            recorder,
            next_serial: 0,
            tracked: Vec::new(),
        }
    }

    /// Reads every source now and sets its series.
    pub fn sample(&mut self) {
        self.sample_and_count_ended();
    }

    /// As [`sample`](Self::sample); returns how many sources had been unregistered since the last.
    pub(crate) fn sample_and_count_ended(&mut self) -> usize {
        let before = self.tracked.len();
        // Those that ended come first: a new source of the same name has the same series.
        self.tracked.retain(|tracked| {
            let registered = tracked.series.update();
            if !registered {
                tracked.gauges.iter().for_each(|gauge| gauge.set(0.0));
            }
            registered
        });
        let ended = before - self.tracked.len();
        for source in self.take_new() {
            let mut registrar = Registrar::new(&self.recorder);
            let series = source.register(&mut registrar);
            series.update();
            self.tracked.push(Tracked {
                series,
                gauges: registrar.into_gauges(),
            });
        }
        ended
    }

    fn take_new(&mut self) -> Vec<Arc<dyn Source>> {
        let sources = self.collector.lock();
        let (new, next) = sources.since(self.next_serial);
        self.next_serial = next;
        // An empty one allocates nothing.
        new.cloned().collect()
    }
}

impl<R> fmt::Debug for Sampler<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler")
            .field("collector", &self.collector)
            .field("sources", &self.tracked.len())
            .finish_non_exhaustive()
    }
}
