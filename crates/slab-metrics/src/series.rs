//! From a source of statistics to its handles in a recorder.

use crate::json::Json;
use crate::names::{Family, Kind};
use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder, SharedString};

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// Something registered with a collector: the handle by which its statistics are read.
pub(crate) trait Source: Send + Sync {
    /// Registers every label combination, at 0, and returns what keeps them current.
    fn register(self: std::sync::Arc<Self>, registrar: &mut Registrar<'_>) -> Box<dyn Series>;

    /// Writes the statistics as members of an object that has a `name` already.
    fn write_json(&self, json: &mut Json);
}

/// The handles of one source in one recorder. It does not keep the source alive.
pub(crate) trait Series: Send {
    /// Reads the statistics and sets the handles; false if the source is no longer registered.
    /// Must not allocate: this is what runs at each scrape.
    fn update(&self) -> bool;
}

/// Takes handles out of a recorder, and remembers the gauges: they must not stand still at their
/// last value when the source goes away.
pub(crate) struct Registrar<'a> {
    recorder: &'a dyn Recorder,
    gauges: Vec<Gauge>,
}

impl<'a> Registrar<'a> {
    pub(crate) fn new(recorder: &'a dyn Recorder) -> Self {
        Self {
            recorder,
            gauges: Vec::new(),
        }
    }

    pub(crate) fn counter(
        &mut self,
        family: &Family,
        labels: &[(&'static str, SharedString)],
    ) -> Counter {
        debug_assert_eq!(family.kind, Kind::Counter);
        self.recorder
            .describe_counter(family.name.into(), None, family.help.into());
        let counter = self
            .recorder
            .register_counter(&key(family, labels), &METADATA);
        counter.absolute(0);
        counter
    }

    pub(crate) fn gauge(
        &mut self,
        family: &Family,
        labels: &[(&'static str, SharedString)],
    ) -> Gauge {
        debug_assert_eq!(family.kind, Kind::Gauge);
        self.recorder
            .describe_gauge(family.name.into(), None, family.help.into());
        let gauge = self
            .recorder
            .register_gauge(&key(family, labels), &METADATA);
        gauge.set(0.0);
        self.gauges.push(gauge.clone());
        gauge
    }

    pub(crate) fn into_gauges(self) -> Vec<Gauge> {
        self.gauges
    }
}

fn key(family: &Family, labels: &[(&'static str, SharedString)]) -> Key {
    let labels: Vec<Label> = labels
        .iter()
        .map(|(name, value)| Label::new(*name, value.clone()))
        .collect();
    Key::from_parts(family.name, labels)
}

/// A gauge is a float: exact up to 2^53, which is 8 PiB.
pub(crate) fn float(n: impl TryInto<u64>) -> f64 {
    n.try_into().unwrap_or(u64::MAX) as f64
}
