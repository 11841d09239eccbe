//! [`GlobalRecorder`]: the program's recorder, as a value that a sampler can own.

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit, with_recorder,
};

/// Forwards to the global recorder that the program has installed, so that a
/// [`Sampler`](crate::Sampler) can feed it.
///
/// Install the recorder before the first sample: series that a sampler registers without one are lost
/// for good.
#[derive(Debug, Clone, Copy, Default)]
pub struct GlobalRecorder;

impl Recorder for GlobalRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        with_recorder(|recorder| recorder.describe_counter(name, unit, help));
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        with_recorder(|recorder| recorder.describe_gauge(name, unit, help));
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        with_recorder(|recorder| recorder.describe_histogram(name, unit, help));
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        with_recorder(|recorder| recorder.register_counter(key, metadata))
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        with_recorder(|recorder| recorder.register_gauge(key, metadata))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        with_recorder(|recorder| recorder.register_histogram(key, metadata))
    }
}
