//! [`Sampler`]: the way from a collector into one recorder.

use crate::collector::Collector;
use crate::names::{Family, Kind};
use crate::series::{Label as Pair, Source};
use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// The shortest period of a sampler that runs by itself.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// Brings the statistics of a [`Collector`] into a recorder of the `metrics` facade.
///
/// For programs that have a recorder already; [`Exporter`](crate::Exporter) needs none. Call
/// [`sample`](Self::sample) when the recorder is about to be read, or let it
/// [`run`](Self::run) where something else decides when that is. The recorder is owned (a
/// reference or an `Arc` of one will do; [`GlobalRecorder`](crate::GlobalRecorder) is the
/// program's), because the handles that it gave out are kept: from the second sample on, a sample
/// allocates nothing, but for what a recorder needs to take new waits and round trips.
///
/// Counters are set to totals by `absolute`, which never goes back; gauges are set to what is now.
/// A histogram is fed what was counted since the last sample, each at the upper bound of its
/// bucket: give the recorder the bounds of [`WAIT_SECONDS_BOUNDS`](crate::WAIT_SECONDS_BOUNDS) for
/// `slab_pool_wait_seconds` and of `RTT_SECONDS_BOUNDS` (feature `net`) for `slab_rudp_rtt_seconds`,
/// and its buckets are exact and its sum is an upper bound. Counters of a facade are whole numbers:
/// those of seconds count whole seconds.
/// A facade cannot take a series away: when a source is unregistered, its gauges go to 0 and its
/// counters stand still. If it is registered again, its counters and histograms go on from where they
/// were; what one of its name counts that has counted less is taken for a new one's, and added. A
/// recorder with an idle timeout (`PrometheusBuilder::idle_timeout`, longer than the time between two
/// samples) drops series later; a histogram that it drops while nobody waits is there again, from 0,
/// with the next wait.
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
    tracked: Vec<Tracked>,
    /// What counters and histograms of ended sources have come to: as many as the recorder was given
    /// such series.
    ended: HashMap<Key, Box<[u64]>>,
    // Kept from one sample to the next for their memory; empty in between.
    sources: Vec<(u64, Arc<dyn Source>)>,
    values: Vec<u64>,
}

/// The handles of one source.
struct Tracked {
    serial: u64,
    handles: Vec<Handle>,
}

enum Handle {
    Counter {
        counter: Counter,
        key: Key,
        /// So many of what was read are one: nanoseconds are counted as whole seconds.
        divisor: u64,
        /// What sources of this name that have ended counted, in all.
        before: u64,
        /// What this one counted so far.
        last: u64,
    },
    Gauge(Gauge),
    /// Its handle is asked for each time: a recorder with an idle timeout forgets a histogram that
    /// nothing was recorded in for long, and what went to a handle from before would be lost.
    Histogram {
        key: Key,
        bounds_nanos: &'static [u64],
        /// What it was fed so far, by bucket.
        fed: Box<[u64]>,
    },
}

impl<R: Recorder> Sampler<R> {
    /// A sampler that has not registered anything with `recorder` yet.
    pub fn new(collector: Collector, recorder: R) -> Self {
        Self {
            collector,
            recorder,
            tracked: Vec::new(),
            ended: HashMap::new(),
            sources: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Reads every source now and sets its series.
    pub fn sample(&mut self) {
        let mut sources = std::mem::take(&mut self.sources);
        self.collector.copy_sources(&mut sources);
        // Those that ended come first: a new source of the same name has the same series.
        self.tracked.retain_mut(|tracked| {
            let known = sources.binary_search_by_key(&tracked.serial, |&(serial, _)| serial);
            if known.is_err() {
                let handles = tracked.handles.drain(..);
                handles.for_each(|handle| handle.end(&mut self.ended));
            }
            known.is_ok()
        });
        // Serial numbers ascend: what is new stands behind what is known.
        for (serial, source) in &sources[self.tracked.len()..] {
            let mut handles = Vec::new();
            source.describe(&mut |family, labels| {
                handles.push(Handle::new(&self.recorder, family, labels, &mut self.ended));
            });
            self.tracked.push(Tracked {
                serial: *serial,
                handles,
            });
        }
        for (tracked, (_, source)) in self.tracked.iter_mut().zip(&sources) {
            self.values.clear();
            source.read(&mut self.values);
            let mut values = &*self.values;
            for handle in &mut tracked.handles {
                values = handle.set(&self.recorder, values);
            }
        }
        // Perhaps the last handles to what was unregistered meanwhile.
        sources.clear();
        self.sources = sources;
    }

    /// Samples now and then once a period, until the future is dropped: for a recorder that
    /// something else reads whenever it likes, such as the HTTP listener or the push gateway of
    /// `metrics-exporter-prometheus`. What is read is then up to a period old.
    ///
    /// A period below 10 ms is taken as 10 ms. A sample that comes late delays those behind it.
    ///
    /// ```no_run
    /// use slab_core::SlabPool;
    /// use slab_metrics::{Collector, GlobalRecorder, Sampler};
    /// use std::time::Duration;
    ///
    /// # async fn example(collector: Collector) {
    /// // After `PrometheusBuilder::new().install()`, which starts a listener of its own:
    /// let sampler = Sampler::new(collector, GlobalRecorder);
    /// tokio::spawn(sampler.run(Duration::from_secs(1)));
    /// # }
    /// ```
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn run(mut self, period: Duration) -> Infallible {
        let mut ticks = interval(period.max(SHORTEST_PERIOD));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sample();
        }
    }
}

impl Handle {
    /// Registers a series, at 0: `rate()` needs to see it before its first event.
    fn new(
        recorder: &impl Recorder,
        family: &Family,
        labels: &[Pair],
        ended: &mut HashMap<Key, Box<[u64]>>,
    ) -> Self {
        let (name, help) = (family.name.into(), family.help.into());
        let labels: Vec<Label> = labels
            .iter()
            .map(|(label, value)| Label::new(*label, value.clone()))
            .collect();
        let key = Key::from_parts(family.name, labels);
        match family.kind {
            Kind::Counter | Kind::SecondsCounter => {
                recorder.describe_counter(name, None, help);
                let counter = recorder.register_counter(&key, &METADATA);
                let ended = ended.remove(&key);
                Self::Counter {
                    counter,
                    key,
                    divisor: match family.kind {
                        Kind::SecondsCounter => 1_000_000_000,
                        _ => 1,
                    },
                    before: ended.as_ref().map_or(0, |ended| ended[0]),
                    last: ended.as_ref().map_or(0, |ended| ended[1]),
                }
            }
            Kind::Gauge => {
                recorder.describe_gauge(name, None, help);
                Self::Gauge(recorder.register_gauge(&key, &METADATA))
            }
            Kind::Histogram(bounds_nanos) => {
                recorder.describe_histogram(name, None, help);
                let _at_0 = recorder.register_histogram(&key, &METADATA);
                let fed = ended.remove(&key);
                Self::Histogram {
                    key,
                    bounds_nanos,
                    fed: fed.unwrap_or_else(|| vec![0; bounds_nanos.len() + 1].into()),
                }
            }
        }
    }

    /// Takes its value from the front; returns the rest.
    fn set<'a>(&mut self, recorder: &impl Recorder, values: &'a [u64]) -> &'a [u64] {
        match self {
            Self::Counter {
                counter,
                divisor,
                before,
                last,
                ..
            } => {
                // Totals of one source do not fall: this one has the name of one that has ended.
                if values[0] < *last {
                    *before += *last;
                }
                *last = values[0];
                counter.absolute((*before + *last) / *divisor);
                &values[1..]
            }
            Self::Gauge(gauge) => {
                // Exact up to 2^53, which is 8 PiB.
                gauge.set(values[0] as f64);
                &values[1..]
            }
            Self::Histogram {
                key,
                bounds_nanos,
                fed,
            } => {
                let (counts, rest) = values.split_at(fed.len());
                // Counts of one source do not fall: this one has the name of one that has ended.
                if counts.iter().zip(&*fed).any(|(count, fed)| count < fed) {
                    fed.fill(0);
                }
                // Above the last bound there is none: some value beyond it.
                let beyond = bounds_nanos.last().map_or(0, |last| 2 * last);
                let at = bounds_nanos.iter().copied().chain([beyond]);
                if *counts == **fed {
                    return &rest[1..];
                }
                let histogram = recorder.register_histogram(key, &METADATA);
                for ((count, fed), nanos) in counts.iter().zip(fed).zip(at) {
                    let new = count - *fed;
                    if new > 0 {
                        histogram.record_many(nanos as f64 / 1e9, new as usize);
                        *fed = *count;
                    }
                }
                // A facade makes the sum by itself.
                &rest[1..]
            }
        }
    }

    fn end(self, ended: &mut HashMap<Key, Box<[u64]>>) {
        match self {
            Self::Gauge(gauge) => gauge.set(0.0),
            Self::Histogram { key, fed, .. } => _ = ended.insert(key, fed),
            Self::Counter {
                key, before, last, ..
            } => _ = ended.insert(key, [before, last].into()),
        }
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
