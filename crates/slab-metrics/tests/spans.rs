//! Spans cover the slow paths, with pool and size class; a packet that does not wait has none. Also the
//! log events about packets.

#![cfg(feature = "net")]

use slab_core::SizeClasses;
use slab_net::PacketPool;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Records each new span and each warning.
#[derive(Clone, Default)]
struct Spans {
    made: Arc<Mutex<Vec<String>>>,
    last: Arc<AtomicU64>,
}

impl Spans {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.made.lock().unwrap())
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() || *metadata.level() == Level::WARN
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        self.made.lock().unwrap().push(fields.0);
        Id::from_u64(self.last.fetch_add(1, Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.made.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// On this thread, until what it returns is dropped.
fn subscribe(spans: &Spans) -> (DefaultGuard, Dispatch) {
    // With one dispatcher alone, a thread without any may disable the event for all (tracing-core).
    let second = Dispatch::new(NoSubscriber::new());
    (set_default(spans.clone()), second)
}

#[tokio::test(flavor = "current_thread")]
async fn only_allocations_that_wait_open_a_span() {
    let spans = Spans::default();
    let _default = subscribe(&spans);
    let pool = PacketPool::builder()
        .name("rx")
        .size_classes(SizeClasses::explicit(&[2048, 65536]).unwrap())
        .max_memory(1 << 20)
        .headroom(48)
        .build()
        .unwrap();
    for _ in 0..1000 {
        drop(pool.try_alloc(1500).unwrap());
        drop(pool.alloc(1500).await.unwrap());
    }
    let is_wait = |span: &String| span.starts_with("waiting");
    assert!(!spans.take().iter().any(is_wait));

    for (len, class) in [(1500, 2048), (2000, 2048), (2001, 65_536)] {
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(2000).ok()).collect();
        spans.take();
        let (waited, ()) = tokio::join!(pool.alloc(len), async { all.clear() });
        assert_eq!(waited.unwrap().capacity(), class - 48);
        let waits: Vec<_> = spans.take().into_iter().filter(is_wait).collect();
        let expected = format!("waiting for memory pool=\"rx\" size_class={class}");
        assert_eq!(waits, [expected]);
    }
}

#[test]
fn heap_fallbacks_are_logged_each_time_their_number_doubles() {
    let log = Spans::default();
    let _default = subscribe(&log);
    let pool = PacketPool::builder().name("rx").build().unwrap();
    let warnings = |buffers| {
        (0..buffers).for_each(|_| drop(pool.with_capacity(100_000)));
        log.take()
            .iter()
            .filter(|warning| warning.contains("pool=\"rx\" bytes=100000"))
            .count()
    };
    assert_eq!([1, 1, 1, 1, 4, 8].map(warnings), [1, 1, 0, 1, 1, 1]);
}
