//! What is logged.

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

struct OnEvent<F>(Level, F);

impl<F: Fn(&Event<'_>) + 'static> Subscriber for OnEvent<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == self.0
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        (self.1)(event);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Calls `f` at each warning on this thread, until what it returns is dropped.
pub(crate) fn on_warning(
    f: impl Fn(&Event<'_>) + Send + Sync + 'static,
) -> (DefaultGuard, Dispatch) {
    on_event(Level::WARN, f)
}

/// The same at each event of this level.
pub(crate) fn on_event(
    level: Level,
    f: impl Fn(&Event<'_>) + Send + Sync + 'static,
) -> (DefaultGuard, Dispatch) {
    // With only one dispatcher, a thread without any may disable the event for all threads (tracing-core).
    let second = Dispatch::new(NoSubscriber::new());
    (set_default(OnEvent(level, f)), second)
}

/// The value of a field.
pub(crate) fn field(event: &Event<'_>, name: &'static str) -> Option<String> {
    struct Find(&'static str, Option<String>);

    impl Visit for Find {
        fn record_str(&mut self, field: &Field, value: &str) {
            if field.name() == self.0 {
                self.1 = Some(value.to_owned());
            }
        }
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if field.name() == self.0 {
                self.1 = Some(format!("{value:?}"));
            }
        }
    }

    let mut find = Find(name, None);
    event.record(&mut find);
    find.1
}
