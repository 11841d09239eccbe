//! From a source of statistics to series: how they are named and read.
//!
//! A source describes its series once and then returns their values as plain numbers, in the same order.
//! There are two outputs: [`text`](crate::text) writes the values on a page, [`sampler`](crate::sampler)
//! sets the handles of a recorder.

use crate::json::Json;
use crate::names::{Family, Kind};
use metrics::SharedString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A label's name and value.
pub(crate) type Label = (&'static str, SharedString);

/// Receives each series of a source: its family and its labels.
pub(crate) type Describe<'a> = dyn FnMut(&'static Family, &[Label]) + 'a;

/// Something registered with a collector: the handle by which its statistics are read.
pub(crate) trait Source: Send + Sync {
    /// Describes every series, with each combination of labels; always the same ones.
    fn describe(&self, to: &mut Describe<'_>);

    /// Appends the values of these series in that order, [`Family::width`] numbers each. Runs at each
    /// scrape and must not allocate beyond that; only an RUDP endpoint makes a list of its sessions.
    fn read(&self, values: &mut Vec<u64>);

    /// Writes the statistics as members of an object that already has a `name`, if they are of the program's memory
    /// or traffic.
    fn write_json(&self, _json: &mut Json) {}

    /// Is what it reads gone for good? Then the collector drops it. Called under the collector's lock.
    fn is_gone(&self) -> bool {
        false
    }
}

/// One series: its family, a label in addition to those of its source, if any, and how to read its value.
pub(crate) struct Row<S: 'static>(
    pub(crate) &'static Family,
    pub(crate) &'static [(&'static str, &'static str)],
    pub(crate) fn(&S) -> u64,
);

/// A table of series: a name for the statistics, and then `FAMILY label="value": how to read it;` for each.
macro_rules! rows {
    (|$stats:ident| $($family:ident $($label:ident = $value:literal)?: $read:expr;)*) => {
        &[$(Row(&$family, &[$((stringify!($label), $value))?], |$stats| $read)),*]
    };
}

pub(crate) use rows;

/// Describes the series of a table.
pub(crate) fn describe_rows<S>(rows: &[Row<S>], labels: &[Label], to: &mut Describe<'_>) {
    let mut all = labels.to_vec();
    for Row(family, label, _) in rows {
        all.truncate(labels.len());
        all.extend(label.iter().map(|&(name, value)| (name, value.into())));
        to(family, &all);
    }
}

/// Appends the values of a table.
pub(crate) fn read_rows<S>(rows: &[Row<S>], stats: &S, values: &mut Vec<u64>) {
    values.extend(rows.iter().map(|Row(_, _, read)| read(stats)));
}

/// Returns a time as the value of a series whose unit is seconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A source in a collector, whose counters never fall.
///
/// The parts of a snapshot are of slightly different moments: a session or thread that ends can be in
/// neither of two sums. A counter on a page must not fall: Prometheus would take that for a restart and
/// count everything before it a second time.
pub(crate) struct Registered {
    pub(crate) source: Arc<dyn Source>,
    /// For each value, whether it can only rise.
    is_counter: Box<[bool]>,
    /// The latest values.
    last: Mutex<Box<[u64]>>,
}

impl Registered {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        let mut is_counter = Vec::new();
        source.describe(&mut |family, _| {
            let counter = !matches!(family.kind, Kind::Gauge);
            is_counter.resize(is_counter.len() + family.width(), counter);
        });
        Self {
            source,
            last: Mutex::new(vec![0; is_counter.len()].into()),
            is_counter: is_counter.into(),
        }
    }

    /// [Reads](Source::read) the source, with counters that are at least what they were.
    pub(crate) fn read(&self, values: &mut Vec<u64>) {
        let first = values.len();
        // Not locked: what the source reads may end with that, and a pool's end calls a subscriber of `tracing`, which
        // may want a page.
        self.source.read(values);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(values.len() - first, self.is_counter.len());
        let values = values[first..].iter_mut();
        for ((value, last), &is_counter) in values.zip(&mut *last).zip(&self.is_counter) {
            if is_counter {
                *value = (*value).max(*last);
                *last = *value;
            }
        }
    }
}

/// Returns the series of a table that are not zero for these statistics.
#[cfg(test)]
pub(crate) fn nonzero_series<S>(rows: &[Row<S>], stats: &S) -> Vec<String> {
    let shows = rows.iter().filter(|Row(_, _, read)| read(stats) > 0);
    shows
        .map(|Row(family, label, _)| match label {
            [(label, value)] => format!("{} {label}={value}", family.name),
            _ => family.name.to_owned(),
        })
        .collect()
}

/// Asserts that each field, set alone, shows in the named series alone, and that every series is named.
#[cfg(test)]
macro_rules! assert_each_field_has_its_series {
    ($rows:expr, $nothing:expr; $($($field:ident).+ = $value:expr => $($series:literal),+;)*) => {
        let mut all = 0;
        $(
            let mut stats = $nothing;
            stats.$($field).+ = $value;
            let series = [$($series),+];
            assert_eq!(crate::series::nonzero_series($rows, &stats), series);
            all += series.len();
        )*
        assert_eq!(all, $rows.len());
    };
}

#[cfg(test)]
pub(crate) use assert_each_field_has_its_series;

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "net")]
    use crate::names::RUDP_MEMORY_BLOCKED_SECONDS_TOTAL;
    use crate::names::{POOL_THREAD_CACHES, POOL_TOO_LARGE_TOTAL, POOL_WAIT_SECONDS};
    use crate::{Collector, Exporter, Sampler, SourceKind, WAIT_SECONDS_BOUNDS};
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    struct FallingSource(AtomicU64);

    impl FallingSource {
        /// How many of its numbers are not gauges: those of a histogram and counters, also of seconds.
        fn counters() -> usize {
            1 + POOL_WAIT_SECONDS.width() + usize::from(cfg!(feature = "net"))
        }
    }

    impl Source for FallingSource {
        fn describe(&self, to: &mut Describe<'_>) {
            to(&POOL_THREAD_CACHES, &[]);
            to(&POOL_TOO_LARGE_TOTAL, &[]);
            to(&POOL_WAIT_SECONDS, &[]);
            #[cfg(feature = "net")]
            to(&RUDP_MEMORY_BLOCKED_SECONDS_TOTAL, &[]);
        }

        fn read(&self, values: &mut Vec<u64>) {
            let now = self.0.fetch_sub(1, Relaxed);
            values.extend(vec![now; 1 + Self::counters()]);
        }
    }

    #[test]
    fn gauges_may_fall_and_counters_may_not() {
        let source = Registered::new(Arc::new(FallingSource(AtomicU64::new(9))));
        let mut values = vec![77];
        source.read(&mut values);
        source.read(&mut values);
        let counters = &*vec![9; FallingSource::counters()];
        assert_eq!(values, [&[77, 9], counters, &[8], counters].concat());

        // The same holds for every registered source.
        let collector = Collector::new();
        let falling = FallingSource(AtomicU64::new(9));
        collector
            .register(SourceKind::Pool, "", Arc::new(falling))
            .unwrap();
        let exporter = Exporter::new(collector);
        for gauge in [9, 8, 7] {
            let page = exporter.scrape();
            assert!(
                page.contains(&format!("\nslab_pool_thread_caches {gauge}\n")),
                "{page}"
            );
            assert!(page.contains("\nslab_pool_too_large_total 9\n"), "{page}");
        }
    }

    /// One wait above all bounds, and 3.9 seconds.
    struct LongTimes;

    impl Source for LongTimes {
        fn describe(&self, to: &mut Describe<'_>) {
            to(&POOL_WAIT_SECONDS, &[]);
            #[cfg(feature = "net")]
            to(&RUDP_MEMORY_BLOCKED_SECONDS_TOTAL, &[]);
        }

        fn read(&self, values: &mut Vec<u64>) {
            values.extend(WAIT_SECONDS_BOUNDS.iter().map(|_| 0));
            values.extend([1, 20_000_000_000]);
            #[cfg(feature = "net")]
            values.push(3_900_000_000);
        }
    }

    #[test]
    fn long_times_are_exported_in_seconds() {
        let waits = Matcher::Full(POOL_WAIT_SECONDS.name.into());
        let recorder = PrometheusBuilder::new();
        let recorder = recorder.set_buckets_for_metric(waits, WAIT_SECONDS_BOUNDS);
        let recorder = recorder.unwrap().build_recorder();
        let collector = Collector::new();
        collector
            .register(SourceKind::Pool, "", Arc::new(LongTimes))
            .unwrap();
        Sampler::new(collector.clone(), &recorder).sample();
        let page = recorder.handle().render();
        for line in [
            "slab_pool_wait_seconds_bucket{le=\"10\"} 0",
            "slab_pool_wait_seconds_bucket{le=\"+Inf\"} 1",
            #[cfg(feature = "net")]
            "slab_rudp_memory_blocked_seconds_total 3",
        ] {
            assert!(page.lines().any(|other| other == line), "{line}: {page}");
        }
        let page = Exporter::new(collector).scrape();
        assert!(page.contains("\nslab_pool_wait_seconds_sum 20\n"), "{page}");
        assert!(page.contains("\nslab_pool_wait_seconds_count 1\n"));
    }

    /// Panics when it is read for the second time.
    struct Panics(AtomicU64);

    impl Source for Panics {
        fn describe(&self, to: &mut Describe<'_>) {
            to(&POOL_TOO_LARGE_TOTAL, &[]);
        }

        fn read(&self, values: &mut Vec<u64>) {
            let before = self.0.fetch_add(1, Relaxed);
            assert_ne!(before, 1, "the second time");
            values.push(before);
        }
    }

    #[test]
    fn a_scrape_that_panicked_harms_no_later_one() {
        let collector = Collector::new();
        let source = Arc::new(Panics(AtomicU64::new(0)));
        collector.register(SourceKind::Pool, "", source).unwrap();
        let exporter = Exporter::new(collector);
        let first = exporter.scrape();
        assert!(first.contains("\nslab_pool_too_large_total 0\n"));
        let scrape = std::panic::AssertUnwindSafe(|| exporter.scrape());
        assert!(std::panic::catch_unwind(scrape).is_err());
        let later = exporter.scrape();
        assert_eq!(later, first.replace("_large_total 0\n", "_large_total 2\n"));
    }
}
