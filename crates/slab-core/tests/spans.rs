//! The slow paths emit spans with the pool's name; the fast ones emit none. And a subscriber that panics does
//! no harm to the pool.
#![cfg(feature = "std")]

mod panicking_subscriber;

use panicking_subscriber::PanickingSubscriber;
use slab_core::{Chunk, Mode, SizeClasses, SlabPool, SlabPoolBuilder};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use tracing::field::{Field, Visit};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, span};

/// Keeps what it hears of spans, name and fields, and of events, message and fields.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<String>>>);

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

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.1.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn reclaim_emits_spans_and_the_fast_path_none() {
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
    let (freed, seen) = channel();
    let (done, wait) = channel::<()>();
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
    assert_eq!(*spans, ["raid pool=tx chunk_bytes=1536"], "and no sweep");
}

/// How many spans begin with this.
fn count_spans(spans: &Spans, what: &str) -> usize {
    let spans = spans.0.lock().unwrap();
    spans.iter().filter(|heard| heard.starts_with(what)).count()
}

#[test]
fn sweep_event_has_the_number_of_freed_slabs() {
    let spans = Spans::default();
    let pool = SlabPool::builder()
        .name("sw")
        .size_classes(SizeClasses::explicit(&[16384]).unwrap())
        .max_memory(512 << 10)
        .build()
        .unwrap();
    let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(16384).ok()).collect();
    let per_slab = pool.stats().slab_bytes / 16384;
    all.sort_by_key(slab_core::Chunk::as_ptr);
    // Of eight slabs three stay whole, and one of them loses a chunk.
    all.truncate(3 * per_slab - 1);
    tracing::subscriber::with_default(spans.clone(), || {
        pool.trim();
    });
    drop(all);
    let events = spans.1.lock().unwrap();
    let swept = " message=pool swept pool=sw slabs=5".to_owned();
    assert!(events.contains(&swept), "{events:?}");
}

/// One event however often the pool refuses, and one at the first success after a second without refusal.
#[test]
fn exhaustion_and_its_end_are_logged_once_each() {
    let spans = Spans::default();
    let logged = |what: &str| {
        let events = spans.1.lock().unwrap();
        let of = events.iter().filter(|event| event.contains(what));
        of.map(|event| event.contains("pool=out chunk_bytes=1024"))
            .collect::<Vec<_>>()
    };
    // With one dispatcher alone, a thread without any may disable the event for all (tracing-core).
    let _second = Dispatch::new(NoSubscriber::new());
    tracing::subscriber::with_default(spans.clone(), || {
        let pool = SlabPool::builder()
            .name("out")
            .size_classes(SizeClasses::explicit(&[1024, 4096]).unwrap())
            .max_memory(128 << 10)
            .build()
            .unwrap();
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1024).ok()).collect();
        for _ in 0..10 {
            assert!(pool.try_alloc(1024).is_err());
        }
        assert_eq!(logged("pool exhausted"), [true]);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(logged("no longer exhausted"), [false; 0]);
        all.clear();
        pool.flush_thread_cache();
        drop([(); 100].map(|()| pool.try_alloc(1024).unwrap()));
        assert_eq!(logged("no longer exhausted"), [true]);
        assert_eq!(logged("pool exhausted"), [true]);
    });
}

/// A pool that refuses sweeps once, and again only when as much was freed since as some slab lacks;
/// while anybody waits, or with fixed shares, never.
#[test]
fn pool_sweeps_only_if_a_slab_could_become_whole() {
    let builder = |mode| {
        let classes = SizeClasses::explicit(&[1024, 16384]).unwrap();
        let pool = SlabPool::builder().name("full").size_classes(classes);
        pool.max_memory(256 << 10).mode(mode).build().unwrap()
    };
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || {
        let pool = builder(Mode::ThreadCached);
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1024).ok()).collect();
        // In every slab some chunks are free, in none all.
        all.sort_by_key(slab_core::Chunk::as_ptr);
        let mut place = 0;
        all.retain(|_| {
            place += 1;
            place % 2 == 0
        });
        let before = count_spans(&spans, "sweep");
        for _ in 0..10 {
            assert!(pool.try_alloc(16384).is_err());
        }
        assert_eq!(count_spans(&spans, "sweep"), before + 1);
        all.pop();
        assert!(pool.try_alloc(16384).is_err());
        assert_eq!(count_spans(&spans, "sweep"), before + 1);
        // The other half of the last slab.
        let in_slab = pool.stats().slab_bytes / 1024;
        all.truncate(all.len() + 1 - in_slab / 2);
        let _slab: Vec<_> = std::iter::from_fn(|| pool.try_alloc(16384).ok()).collect();
        assert_eq!(count_spans(&spans, "sweep"), before + 2);
        // There is nothing to raid either: no magazine holds chunks of that size.
        assert_eq!(count_spans(&spans, "raid pool=full chunk_bytes=16384"), 0);
        // The waiter has swept; what is freed from then on goes to its slab at once.
        let mut waits = pin!(pool.alloc(16384));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        let before = count_spans(&spans, "sweep");
        all.pop();
        assert!(pool.try_alloc(16384).is_err());
        assert_eq!(count_spans(&spans, "sweep"), before);

        let pool = builder(Mode::Ring);
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(16384).ok()).collect();
        all.pop();
        let before = count_spans(&spans, "sweep");
        let small: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1024).ok()).collect();
        assert!(!small.is_empty());
        assert_eq!(count_spans(&spans, "sweep"), before);
    });
}

/// `None` if the subscriber panicked.
fn attempt<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}

const SMALL: usize = 512;
const LARGE: usize = 16384;
const SLABS: usize = 4;
const LARGE_PER_SLAB: usize = 4;

fn builder() -> SlabPoolBuilder {
    let classes = SizeClasses::explicit(&[SMALL, LARGE]).unwrap();
    let slab_bytes = LARGE * LARGE_PER_SLAB;
    SlabPool::builder()
        .size_classes(classes)
        .max_memory(SLABS * slab_bytes)
}

/// Chunks until the pool refuses.
fn fill(pool: &SlabPool, len: usize) -> Vec<Chunk> {
    let mut all = Vec::new();
    loop {
        match attempt(|| pool.try_alloc(len)) {
            Some(Ok(chunk)) => all.push(chunk),
            Some(Err(_)) => return all,
            None => {}
        }
    }
}

/// Commits slabs, refuses, waits, raids, sweeps and trims.
fn program(pool: &SlabPool) {
    // All of the first slab's.
    let mut small = Vec::new();
    while small.len() < LARGE * LARGE_PER_SLAB / SMALL {
        small.extend(attempt(|| pool.try_alloc(SMALL).unwrap()));
    }
    let mut large = fill(pool, LARGE);
    assert_eq!(large.len(), (SLABS - 1) * LARGE_PER_SLAB);
    small.truncate(small.len() - 3);
    {
        let mut waits = pin!(pool.alloc(LARGE));
        let mut cx = Context::from_waker(Waker::noop());
        let pending = attempt(|| waits.as_mut().poll(&mut cx).is_pending());
        assert_ne!(pending, Some(false));
    }
    // Nobody waits: what is free can be had, and magazines are in use.
    small.push(pool.try_alloc(SMALL).unwrap());
    assert_ne!(pool.stats().classes()[0].in_magazines, 0);
    let one = large.pop();
    let (freed, seen) = channel();
    let (done, wait) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            drop(one);
            freed.send(()).unwrap();
            wait.recv().unwrap_err();
        });
        seen.recv().unwrap();
        // Out of the other thread's magazine.
        large.extend(fill(pool, LARGE));
        drop(done);
    });
    assert_eq!(large.len(), (SLABS - 1) * LARGE_PER_SLAB);
    drop(large);
    attempt(|| pool.trim());
    drop(small);
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    assert!(stats.classes().iter().all(|class| class.waiting == 0));
    assert_eq!(fill(pool, LARGE).len(), SLABS * LARGE_PER_SLAB);
}

#[test]
fn pool_stays_whole_at_whichever_call_a_subscriber_panics() {
    // With one dispatcher alone, a thread without any may disable the event for all (tracing-core).
    let _second = Dispatch::new(NoSubscriber::new());
    for calls in 0.. {
        let subscriber = PanickingSubscriber::new(calls, Level::TRACE);
        let pool = builder().build().unwrap();
        tracing::subscriber::with_default(subscriber.clone(), || program(&pool));
        if !subscriber.has_panicked() {
            assert!(calls > 10, "{calls} calls");
            return;
        }
    }
}

/// The event comes when the chunk has been taken already.
#[test]
fn panic_at_the_end_of_an_exhaustion_leaks_no_chunk() {
    let _second = Dispatch::new(NoSubscriber::new());
    // Where the next chunk comes from: the depot, a stack of single chunks, a slab, another thread's magazine.
    let modes = [Mode::ThreadCached, Mode::DepotOnly];
    let pools =
        [modes[0], modes[1], modes[0], modes[0]].map(|mode| builder().mode(mode).build().unwrap());
    for pool in &pools[..3] {
        drop(fill(pool, LARGE));
        pool.flush_thread_cache();
    }
    pools[2].trim();
    let mut held = fill(&pools[3], LARGE);
    let (one, (done, wait)) = (held.pop(), channel::<()>());
    let (freed, seen) = channel();
    let idle = std::thread::spawn(move || {
        drop(one);
        freed.send(()).unwrap();
        wait.recv().unwrap_err();
    });
    seen.recv().unwrap();
    // Longer than an exhaustion lasts after the last refusal.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    for pool in pools {
        let subscriber = PanickingSubscriber::new(0, Level::INFO);
        let before = pool.stats().in_use();
        tracing::subscriber::with_default(subscriber, || {
            assert!(attempt(|| pool.try_alloc(LARGE)).is_none(), "no event");
            assert_eq!(pool.stats().in_use(), before);
            assert!(pool.try_alloc(LARGE).is_ok());
        });
    }
    drop(done);
    idle.join().unwrap();
}
