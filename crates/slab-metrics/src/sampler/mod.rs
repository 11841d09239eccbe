//! [`Sampler`]: copies a collector's statistics into one recorder.

use crate::collector::{Collector, MAX_SOURCES};
use crate::names::{Family, Kind};
use crate::series::{Label as Pair, Registered};
use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// The shortest period of [`Sampler::run`].
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// The most values that one sample records into a histogram, or a few more: a recorder keeps each of them, 24 bytes in
/// `metrics-exporter-prometheus`, until it is read.
const MAX_VALUES: u64 = 1 << 20;

/// Copies the statistics of a [`Collector`] into a recorder of the `metrics` facade.
///
/// It is for programs that already have a recorder; [`Exporter`](crate::Exporter) needs none. Call
/// [`sample`](Self::sample) just before the recorder is read or, if something else decides when that
/// is, spawn [`run`](Self::run). The sampler owns the recorder (a reference or an `Arc` will do; for the
/// program's own use [`GlobalRecorder`](crate::GlobalRecorder)) because it keeps the recorder's handles:
/// from the second sample on, a sample allocates nothing except what the recorder needs for new waits and
/// round trips, and a list of the sessions of each RUDP endpoint.
///
/// Counters are incremented by what was counted since the last sample, as recorders of statsd ignore `absolute`;
/// gauges are set to current values. Counters of the facade are whole numbers, so counters of seconds count whole
/// seconds. A histogram is fed what was counted since the last sample, each value at the upper bound of its bucket. If
/// the recorder has the bounds [`WAIT_SECONDS_BOUNDS`](crate::WAIT_SECONDS_BOUNDS) for
/// `slab_pool_wait_seconds` and `RTT_SECONDS_BOUNDS` (feature `net`) for `slab_rudp_rtt_seconds`, the
/// buckets are exact; the sum is an upper bound unless values lie above the last bound. Of more than a million new values,
/// as a source may have that was in use for days before its first sample, a sample records a million, from all buckets
/// alike, and leaves the rest to the next ones. A recorder needs one sampler for as long as it lives: another one would
/// count and record again what the first has counted and recorded.
///
/// The facade cannot remove a series: when a source is unregistered, its gauges go to 0 and its counters
/// stand still. If a source is registered under the same name again, its counters and histograms go on
/// from there; if it has counted less in any of them, it is taken for a new source and all its counts are
/// added. The sampler remembers an ended source until sources have ended [`MAX_SOURCES`] times since, or up to twice as
/// often; then it forgets it, and all counts of one of its name are added.
/// [`forgotten_series`](Self::forgotten_series) says of how many series. A recorder with an idle timeout
/// (`PrometheusBuilder::idle_timeout`, longer than the time between two samples) drops series later; a histogram
/// dropped while nobody waits reappears, from 0, with the next wait.
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
    ended: EndedSeries,
    // Kept from one sample to the next for their memory; empty in between.
    sources: Vec<(u64, Arc<Registered>)>,
    values: Vec<u64>,
}

/// The final values of ended sources' counters and histograms, of no more than twice [`MAX_SOURCES`]: a recorder
/// may forget its series, and does not say so.
#[derive(Default)]
struct EndedSeries {
    latest: HashMap<Key, Box<[u64]>>,
    /// How many sources those are of.
    sources: usize,
    /// Those of as many sources that ended before.
    before: HashMap<Key, Box<[u64]>>,
    /// How many series were forgotten, or rather their values.
    forgotten: u64,
}

impl EndedSeries {
    /// The values of one more source follow, all of them: a source is remembered as a whole.
    fn count_source(&mut self) {
        if self.sources == MAX_SOURCES {
            self.sources = 0;
            let oldest = std::mem::replace(&mut self.before, std::mem::take(&mut self.latest));
            self.forgotten += oldest.len() as u64;
            tracing::debug!(series = oldest.len(), "totals of ended sources forgotten");
        }
        self.sources += 1;
    }

    fn insert(&mut self, key: Key, values: Box<[u64]>) {
        self.latest.insert(key, values);
    }

    /// Takes the values back: a source of the same name goes on with them.
    fn remove(&mut self, key: &Key) -> Option<Box<[u64]>> {
        let latest = self.latest.remove(key);
        latest.or_else(|| self.before.remove(key))
    }
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
        /// How many of what was read count as one: nanoseconds are counted as whole seconds.
        divisor: u64,
        /// The total of all ended sources of this name.
        ended_total: u64,
        /// The latest total of this source.
        last: u64,
    },
    Gauge(Gauge),
    /// Its handle is requested anew each time: a recorder with an idle timeout forgets a histogram that
    /// was idle for long, and records into an old handle would be lost.
    Histogram {
        key: Key,
        bounds_nanos: &'static [u64],
        /// What was recorded into the histogram so far, by bucket.
        recorded: Box<[u64]>,
    },
}

impl<R: Recorder> Sampler<R> {
    /// Creates a sampler; it registers nothing with `recorder` before the first sample.
    #[must_use]
    pub fn new(collector: Collector, recorder: R) -> Self {
        Self {
            collector,
            recorder,
            tracked: Vec::new(),
            ended: EndedSeries::default(),
            sources: Vec::new(),
            values: Vec::new(),
        }
    }

    /// The number of counters and histograms of ended sources whose values this has forgotten.
    ///
    /// ```
    /// # use slab_core::{SizeClasses, SlabPool};
    /// # use slab_metrics::{Collector, MAX_SOURCES, Sampler, SourceKind};
    /// # let collector = Collector::new();
    /// # let mut sampler = Sampler::new(collector.clone(), metrics::NoopRecorder);
    /// // A pool for each tenant, while it is there: more names than a sampler remembers.
    /// for tenant in 0..=2 * MAX_SOURCES {
    /// #   let builder = SlabPool::builder().size_classes(SizeClasses::explicit(&[64])?);
    ///     let pool = builder.name(format!("tenant {tenant}")).max_memory(64 << 10).build()?;
    ///     collector.register_pool(&pool)?;
    ///     sampler.sample();
    ///     collector.unregister(SourceKind::Pool, pool.name());
    /// }
    /// sampler.sample();
    /// assert_ne!(sampler.forgotten_series(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn forgotten_series(&self) -> u64 {
        self.ended.forgotten
    }

    /// Reads every source and sets its series.
    pub fn sample(&mut self) {
        let mut sources = std::mem::take(&mut self.sources);
        self.collector.copy_sources(&mut sources);
        // Ended sources first: a new source of the same name has the same series.
        self.tracked.retain_mut(|tracked| {
            let known = sources.binary_search_by_key(&tracked.serial, |&(serial, _)| serial);
            if known.is_err() {
                self.ended.count_source();
                let handles = tracked.handles.drain(..);
                handles.for_each(|handle| handle.end(&mut self.ended));
            }
            known.is_ok()
        });
        // Serial numbers ascend: new sources follow the known ones.
        for (serial, registered) in &sources[self.tracked.len()..] {
            let mut handles = Vec::new();
            registered.source.describe(&mut |family, labels| {
                handles.push(Handle::new(&self.recorder, family, labels, &mut self.ended));
            });
            self.tracked.push(Tracked {
                serial: *serial,
                handles,
            });
        }
        for (tracked, (_, registered)) in self.tracked.iter_mut().zip(&sources) {
            self.values.clear();
            registered.read(&mut self.values);
            // Totals of one source do not fall, so if one has, this is a new source with the name of an ended
            // one, also where it has counted more already.
            let mut values = &*self.values;
            let mut is_new = false;
            for handle in &tracked.handles {
                let (fell, rest) = handle.fell(values);
                is_new |= fell;
                values = rest;
            }
            if is_new {
                tracked.handles.iter_mut().for_each(Handle::restart);
            }
            let mut values = &*self.values;
            for handle in &mut tracked.handles {
                values = handle.set(&self.recorder, values);
            }
        }
        // These may be the last handles to sources that were unregistered meanwhile.
        sources.clear();
        self.sources = sources;
    }

    /// Samples at once and then once per `period`, until the future is dropped.
    ///
    /// For a recorder that something else reads at its own times, such as the HTTP listener or the push
    /// gateway of `metrics-exporter-prometheus`; values are then up to a period old. A period below 10 ms
    /// is taken as 10 ms. A late sample delays the following ones.
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
    /// Registers a series at 0: `rate()` needs to see it before its first event.
    fn new(
        recorder: &impl Recorder,
        family: &Family,
        labels: &[Pair],
        ended: &mut EndedSeries,
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
                    ended_total: ended.as_ref().map_or(0, |ended| ended[0]),
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
                let recorded = ended.remove(&key);
                Self::Histogram {
                    key,
                    bounds_nanos,
                    recorded: recorded.unwrap_or_else(|| vec![0; bounds_nanos.len() + 1].into()),
                }
            }
        }
    }

    /// Returns whether any of its totals is less than at the last sample, and the other series' values.
    fn fell<'a>(&self, values: &'a [u64]) -> (bool, &'a [u64]) {
        match self {
            Self::Counter { last, .. } => (values[0] < *last, &values[1..]),
            Self::Gauge(_) => (false, &values[1..]),
            Self::Histogram { recorded, .. } => {
                let (counts, rest) = values.split_at(recorded.len());
                let fell = counts.iter().zip(recorded).any(|(now, last)| now < last);
                (fell, &rest[1..])
            }
        }
    }

    /// What follows was counted by a new source, from 0 on.
    fn restart(&mut self) {
        match self {
            Self::Counter {
                ended_total, last, ..
            } => *ended_total += std::mem::take(last),
            Self::Gauge(_) => {}
            Self::Histogram { recorded, .. } => recorded.fill(0),
        }
    }

    /// Sets the series from the first values; returns the rest.
    fn set<'a>(&mut self, recorder: &impl Recorder, values: &'a [u64]) -> &'a [u64] {
        match self {
            Self::Counter {
                counter,
                divisor,
                ended_total,
                last,
                ..
            } => {
                let count = |last| (*ended_total + last) / *divisor;
                counter.increment(count(values[0]) - count(*last));
                *last = values[0];
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
                recorded,
            } => {
                let (counts, rest) = values.split_at(recorded.len());
                // The last bucket has no bound: feed some value above the one before.
                let beyond = bounds_nanos.last().map_or(0, |last| 2 * last);
                let at = bounds_nanos.iter().copied().chain([beyond]);
                if *counts == **recorded {
                    return &rest[1..];
                }
                let histogram = recorder.register_histogram(key, &METADATA);
                let new = counts.iter().zip(&**recorded);
                let all: u64 = new.map(|(count, recorded)| count - recorded).sum();
                let most = all.min(MAX_VALUES);
                for ((count, recorded), nanos) in counts.iter().zip(recorded).zip(at) {
                    let new = count - *recorded;
                    if new > 0 {
                        // Rounded up, so that no bucket with anything in it waits for its turn.
                        let share =
                            (u128::from(new) * u128::from(most)).div_ceil(all.into()) as u64;
                        histogram.record_many(nanos as f64 / 1e9, share as usize);
                        *recorded += share;
                    }
                }
                // The facade computes the sum itself.
                &rest[1..]
            }
        }
    }

    fn end(self, ended: &mut EndedSeries) {
        match self {
            Self::Gauge(gauge) => gauge.set(0.0),
            Self::Histogram { key, recorded, .. } => ended.insert(key, recorded),
            Self::Counter {
                key,
                ended_total,
                last,
                ..
            } => ended.insert(key, [ended_total, last].into()),
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

#[cfg(test)]
mod tests;
