//! A subscriber of `tracing` that is a function.

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Calls the function with each event of this level and those above it.
pub(crate) struct OnEvent<F>(pub(crate) Level, pub(crate) F);

impl<F: Fn(&Event<'_>) + 'static> Subscriber for OnEvent<F>
where
    F: Send + Sync,
{
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

/// The message and the fields.
// Not every test asks.
#[allow(dead_code)]
pub(crate) fn text(event: &Event<'_>) -> String {
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
