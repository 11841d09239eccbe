//! A subscriber of `tracing` that panics: it is foreign code, as a waker is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Panics at one of its calls: at the beginning or end of a span, or at an event.
#[derive(Clone)]
pub(crate) struct PanickingSubscriber {
    /// How many calls pass before.
    calls_left: Arc<AtomicU32>,
    max_level: Level,
}

impl PanickingSubscriber {
    pub(crate) fn new(calls: u32, max_level: Level) -> Self {
        Self {
            calls_left: Arc::new(AtomicU32::new(calls)),
            max_level,
        }
    }

    // Not every test asks.
    #[allow(dead_code)]
    pub(crate) fn has_panicked(&self) -> bool {
        self.calls_left.load(Ordering::Relaxed) > u32::MAX / 2
    }

    fn call(&self) {
        let left = self.calls_left.fetch_sub(1, Ordering::Relaxed);
        assert_ne!(left, 0, "by a subscriber");
    }
}

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.max_level
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        self.call();
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {
        self.call();
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {
        self.call();
    }
}
