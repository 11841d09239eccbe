//! Subscribers of `tracing`: one that is a function, and two made of it.
// No test uses all of them.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::subscriber::{NoSubscriber, with_default};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, span};

/// Calls `f` with this subscriber, on this thread.
pub(crate) fn with_subscriber<R>(
    subscriber: impl Subscriber + Send + Sync + 'static,
    f: impl FnOnce() -> R,
) -> R {
    // With one dispatcher alone, a thread without any may disable the event for all (tracing-core).
    let _second = Dispatch::new(NoSubscriber::new());
    with_default(subscriber, f)
}

/// Calls the function with each event of this level and those above it.
pub(crate) struct OnEvent<F>(pub(crate) Level, pub(crate) F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Subscriber for OnEvent<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.0
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        unreachable!("slab-core has none");
    }

    fn event(&self, event: &Event<'_>) {
        self.1(event);
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// What a subscriber has heard: messages and fields.
#[derive(Default)]
pub(crate) struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    pub(crate) fn subscriber(&self, level: Level) -> impl Subscriber + Send + Sync + 'static {
        let heard = Arc::clone(&self.0);
        OnEvent(level, move |event: &Event<'_>| {
            heard.lock().unwrap().push(text(event));
        })
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// How many begin with this.
    pub(crate) fn count(&self, what: &str) -> usize {
        let heard = self.heard();
        heard.iter().filter(|event| event.starts_with(what)).count()
    }
}

fn text(event: &Event<'_>) -> String {
    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0 += &match field.name() {
                "message" => format!("{value:?}"),
                name => format!(" {name}={value:?}"),
            };
        }
    }

    let mut text = Text(String::new());
    event.record(&mut text);
    text.0
}

/// A subscriber that panics at one event, after `before` others: it is foreign code, as a waker is. And how many it has
/// heard, that one included.
pub(crate) fn panicking(
    before: u32,
    level: Level,
) -> (impl Subscriber + Send + Sync + 'static, Arc<AtomicU32>) {
    let heard = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&heard);
    let subscriber = OnEvent(level, move |_: &Event<'_>| {
        let earlier = counter.fetch_add(1, Ordering::Relaxed);
        assert_ne!(earlier, before, "by a subscriber");
    });
    (subscriber, heard)
}
