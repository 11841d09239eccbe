use super::*;
use crate::error::SourceKind;
#[cfg(feature = "net")]
use crate::names::RUDP_MEMORY_BLOCKED_SECONDS_TOTAL;
use crate::names::{HTTP_ENDED_CONNECTIONS_TOTAL, HTTP_REQUESTS_TOTAL, POOL_WAIT_SECONDS};
use crate::series::{Describe, Source};
use metrics::{CounterFn, Histogram, HistogramFn, KeyName, NoopRecorder, SharedString, Unit};
use metrics_exporter_prometheus::PrometheusBuilder;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Has counted so many requests, and as many ends of connections.
struct Counted(String, u64);

impl Source for Counted {
    fn describe(&self, to: &mut Describe<'_>) {
        let name = || self.0.clone().into();
        to(&HTTP_REQUESTS_TOTAL, &[("status", name())]);
        to(&HTTP_ENDED_CONNECTIONS_TOTAL, &[("reason", name())]);
    }

    fn read(&self, values: &mut Vec<u64>) {
        values.extend([self.1; 2]);
    }
}

/// These numbers are the values of one series.
struct Values(&'static Family, Vec<u64>);

impl Source for Values {
    fn describe(&self, to: &mut Describe<'_>) {
        to(self.0, &[]);
    }

    fn read(&self, values: &mut Vec<u64>) {
        values.extend(&self.1);
    }
}

/// Samples one source after the other, of the same name; returns the recorder's page.
fn page_after(sources: impl IntoIterator<Item = Values>) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    let collector = Collector::new();
    let mut sampler = Sampler::new(collector.clone(), &recorder);
    for source in sources {
        let kind = SourceKind::Pool;
        collector.register(kind, "rx", Arc::new(source)).unwrap();
        sampler.sample();
        assert!(collector.unregister(kind, "rx"));
    }
    recorder.handle().render()
}

#[test]
#[cfg(feature = "net")]
fn parts_of_a_second_add_up_over_sources_of_one_name() {
    let blocked = |nanos| Values(&RUDP_MEMORY_BLOCKED_SECONDS_TOTAL, vec![nanos]);
    let page = page_after([700_000_000, 600_000_000].map(blocked));
    let line = "\nslab_rudp_memory_blocked_seconds_total 1\n";
    assert!(page.contains(line), "{page}");
}

#[test]
fn a_histogram_is_a_new_one_if_any_of_its_buckets_has_fallen() {
    let waits = |short, long| {
        let mut values = vec![0; POOL_WAIT_SECONDS.width()];
        (values[0], values[3]) = (short, long);
        Values(&POOL_WAIT_SECONDS, values)
    };
    let page = page_after([waits(2, 0), waits(1, 4)]);
    assert!(
        page.contains("\nslab_pool_wait_seconds_count 7\n"),
        "{page}"
    );
}

/// How often each value was recorded, in nanoseconds, whatever the histogram; and the sum of all counters.
#[derive(Default)]
struct Recorded(Mutex<BTreeMap<u64, u64>>, AtomicU64);

/// As in `metrics-exporter-statsd`: there, a server adds up what it is sent.
impl CounterFn for Recorded {
    fn increment(&self, value: u64) {
        self.1.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, _: u64) {}
}

impl HistogramFn for Recorded {
    fn record(&self, seconds: f64) {
        self.record_many(seconds, 1);
    }

    fn record_many(&self, seconds: f64, count: usize) {
        let mut all = self.0.lock().unwrap();
        *all.entry((seconds * 1e9).round() as u64).or_default() += count as u64;
    }
}

/// All histograms and counters are this one.
struct ToOne(Arc<Recorded>);

impl Recorder for ToOne {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(&self.0))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::clone(&self.0))
    }
}

/// A recorder takes memory for each value until it is read.
#[test]
fn a_sample_records_a_million_values_at_most_and_the_next_ones_record_the_rest() {
    let Kind::Histogram(bounds) = POOL_WAIT_SECONDS.kind else {
        unreachable!()
    };
    let recorded = Arc::<Recorded>::default();
    let collector = Collector::new();
    let recorder = ToOne(Arc::clone(&recorded));
    let mut sampler = Sampler::new(collector.clone(), recorder);
    let mut values = vec![0; POOL_WAIT_SECONDS.width()];
    (values[0], values[3], values[5]) = (3 << 20, 1 << 20, 1);
    let source = Arc::new(Values(&POOL_WAIT_SECONDS, values));
    collector.register(SourceKind::Pool, "rx", source).unwrap();
    let mut sample = || {
        sampler.sample();
        let all = recorded.0.lock().unwrap();
        assert!(all.len() <= 3, "{all:?}");
        [0, 3, 5].map(|at| all.get(&bounds[at]).copied().unwrap_or(0))
    };
    let [first, second, third] = sample();
    assert_eq!(third, 1);
    assert!(first.abs_diff(MAX_VALUES / 4 * 3) <= 1 && second.abs_diff(MAX_VALUES / 4) <= 1);
    let samples = [(); 5].map(|()| sample());
    assert_eq!(samples[4], [3 << 20, 1 << 20, 1]);
    assert!(samples[1] < samples[4], "{samples:?}");
}

#[test]
fn a_recorder_that_knows_no_totals_gets_the_counts() {
    let recorded = Arc::<Recorded>::default();
    let collector = Collector::new();
    let mut sampler = Sampler::new(collector.clone(), ToOne(Arc::clone(&recorded)));
    let kind = SourceKind::Server;
    // The one that has counted less is a new one; each has two series.
    for (count, sum) in [(7, 2 * 7), (9, 2 * 9), (2, 2 * (9 + 2))] {
        let source = Counted("a".into(), count);
        collector.register(kind, "a", Arc::new(source)).unwrap();
        for _ in 0..2 {
            sampler.sample();
            assert_eq!(recorded.1.load(Ordering::Relaxed), sum);
        }
        assert!(collector.remove(kind, "a"));
    }
}

#[test]
fn a_source_that_comes_back_late_goes_on_with_its_counts() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let collector = Collector::new();
    let mut sampler = Sampler::new(collector.clone(), &recorder);
    let kind = SourceKind::Server;
    let mut comes_and_goes = |name: &str, count| {
        let source = Counted(name.into(), count);
        collector.register(kind, name, Arc::new(source)).unwrap();
        sampler.sample();
        assert!(format!("{sampler:?}").contains("sources: 2, .."));
        assert!(collector.remove(kind, name));
    };
    comes_and_goes("a", 7);
    for other in 0..MAX_SOURCES + MAX_SOURCES / 2 {
        comes_and_goes(&other.to_string(), 1);
    }
    comes_and_goes("a", 2);
    let page = recorder.handle().render();
    let line = "\nslab_metrics_requests_total{status=\"a\"} 9\n";
    assert!(page.contains(line));
}

/// A program may name its sources after peers that come and go.
#[test]
fn the_last_sources_that_ended_are_remembered_and_no_more() {
    let collector = Collector::new();
    let mut sampler = Sampler::new(collector.clone(), NoopRecorder);
    let kind = SourceKind::Server;
    let comes_and_goes = |sampler: &mut Sampler<_>, name: usize| {
        let name = name.to_string();
        let source = Counted(name.clone(), 7);
        collector.register(kind, &name, Arc::new(source)).unwrap();
        sampler.sample();
        assert!(collector.remove(kind, &name));
    };
    const ALL: usize = 4 * MAX_SOURCES;
    for name in 0..ALL {
        comes_and_goes(&mut sampler, name);
        // Two series of each source.
        let remembered = sampler.ended.latest.len() + sampler.ended.before.len();
        assert!(remembered <= 2 * 2 * MAX_SOURCES);
    }
    sampler.sample();
    assert_eq!(sampler.forgotten_series(), 2 * 2 * MAX_SOURCES as u64);
    let keys = sampler
        .ended
        .latest
        .keys()
        .chain(sampler.ended.before.keys());
    let names: Vec<_> = keys.flat_map(Key::labels).map(Label::value).collect();
    for name in ALL - MAX_SOURCES..ALL {
        assert!(names.contains(&&*name.to_string()), "{name}");
    }
}
