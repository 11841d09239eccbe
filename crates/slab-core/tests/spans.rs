//! The slow paths are spans with the pool's name; the fast ones are none.
#![cfg(feature = "std")]

use slab_core::{SizeClasses, SlabPool};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// Keeps what it hears of spans: name and fields.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn reclaim_is_a_span_and_a_packet_is_none() {
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || {
        let pool = SlabPool::builder()
            .name("rx")
            .size_classes(SizeClasses::explicit(&[1536]).unwrap())
            .max_memory(256 << 10)
            .build()
            .unwrap();
        for _ in 0..1000 {
            drop(pool.try_alloc(1500).unwrap());
        }
        assert_eq!(*spans.0.lock().unwrap(), [""; 0]);
        let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1500).ok()).collect();
        drop(all);
        pool.trim();
    });
    let spans = spans.0.lock().unwrap();
    assert!(spans.contains(&"sweep pool=rx".to_owned()), "{spans:?}");
}

#[test]
fn a_raid_names_the_class_that_ran_out() {
    let spans = Spans::default();
    let pool = SlabPool::builder()
        .name("tx")
        .size_classes(SizeClasses::explicit(&[1536]).unwrap())
        .max_memory(256 << 10)
        .build()
        .unwrap();
    let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1500).ok()).collect();
    let one = all.pop().unwrap();
    let (freed, seen) = std::sync::mpsc::channel();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let idle = std::thread::spawn(move || {
        drop(one);
        freed.send(()).unwrap();
        wait.recv().unwrap_err();
    });
    seen.recv().unwrap();
    tracing::subscriber::with_default(spans.clone(), || {
        assert!(pool.try_alloc(1500).is_ok(), "taken from the idle thread");
    });
    drop(done);
    idle.join().unwrap();
    let spans = spans.0.lock().unwrap();
    assert_eq!(spans[0], "raid pool=tx chunk_bytes=1536");
}
