//! A subscriber of `tracing` that panics: it is foreign code, as a waker is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Panics at one event.
#[derive(Clone)]
pub(crate) struct PanickingSubscriber {
    /// How many events pass before.
    events_left: Arc<AtomicU32>,
    max_level: Level,
}

impl PanickingSubscriber {
    pub(crate) fn new(events: u32, max_level: Level) -> Self {
        Self {
            events_left: Arc::new(AtomicU32::new(events)),
            max_level,
        }
    }

    // Not every test asks.
    #[allow(dead_code)]
    pub(crate) fn has_panicked(&self) -> bool {
        self.events_left.load(Ordering::Relaxed) > u32::MAX / 2
    }
}

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.max_level
    }
    fn event(&self, _: &Event<'_>) {
        let left = self.events_left.fetch_sub(1, Ordering::Relaxed);
        assert_ne!(left, 0, "by a subscriber");
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        unreachable!("slab-core has none");
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
