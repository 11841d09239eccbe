//! The slow paths emit events with the pool's name; the fast ones emit none. A subscriber that panics does no harm to
//! the pool, and one may use it.
#![cfg(feature = "std")]

mod on_event;

use on_event::{Events, OnEvent, panicking, with_subscriber};
use slab_core::{Chunk, Mode, SizeClasses, SlabPool, SlabPoolBuilder};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;
use tracing::{Event, Level};

#[test]
fn reclaim_emits_events_and_the_fast_path_none() {
    let events = Events::default();
    with_subscriber(events.subscriber(Level::TRACE), || {
        let pool = SlabPool::builder()
            .name("rx")
            .size_classes(SizeClasses::explicit(&[1536]).unwrap())
            .max_memory(256 << 10)
            .build()
            .unwrap();
        drop(pool.try_alloc(1500).unwrap());
        let before = events.heard();
        for _ in 0..1000 {
            drop(pool.try_alloc(1500).unwrap());
        }
        assert_eq!(events.heard(), before);
        let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1500).ok()).collect();
        drop(all);
        pool.trim();
    });
    let heard = events.heard();
    assert!(events.count("pool swept pool=rx") > 0, "{heard:?}");
    assert_eq!(
        events.count("pool trimmed pool=rx bytes=262144"),
        1,
        "{heard:?}"
    );
}

#[test]
fn a_raid_names_the_class_that_ran_out() {
    let events = Events::default();
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
    let idle = thread::spawn(move || {
        drop(one);
        freed.send(()).unwrap();
        wait.recv().unwrap_err();
    });
    seen.recv().unwrap();
    with_subscriber(events.subscriber(Level::TRACE), || {
        assert!(pool.try_alloc(1500).is_ok(), "taken from the idle thread");
    });
    drop(done);
    idle.join().unwrap();
    let raid = "magazines raided pool=tx chunk_bytes=1536";
    assert_eq!(events.heard(), [raid], "and no sweep");
}

#[test]
fn sweep_event_has_the_number_of_freed_slabs() {
    let events = Events::default();
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
    with_subscriber(events.subscriber(Level::TRACE), || {
        pool.trim();
    });
    drop(all);
    let heard = events.heard();
    assert_eq!(events.count("pool swept pool=sw slabs=5"), 1, "{heard:?}");
}

/// One event however often the pool refuses, and one at the first success after a second without refusal.
#[test]
fn exhaustion_and_its_end_are_logged_once_each() {
    let events = Events::default();
    let logged = |what: &str| {
        let heard = events.heard();
        let of = heard.iter().filter(|event| event.contains(what));
        of.map(|event| event.contains("pool=out chunk_bytes=1024"))
            .collect::<Vec<_>>()
    };
    with_subscriber(events.subscriber(Level::TRACE), || {
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
        thread::sleep(Duration::from_millis(1100));
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
    let events = Events::default();
    with_subscriber(events.subscriber(Level::TRACE), || {
        let pool = builder(Mode::ThreadCached);
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1024).ok()).collect();
        // In every slab some chunks are free, in none all.
        all.sort_by_key(slab_core::Chunk::as_ptr);
        let mut place = 0;
        all.retain(|_| {
            place += 1;
            place % 2 == 0
        });
        let before = events.count("pool swept");
        for _ in 0..10 {
            assert!(pool.try_alloc(16384).is_err());
        }
        assert_eq!(events.count("pool swept"), before + 1);
        all.pop();
        assert!(pool.try_alloc(16384).is_err());
        assert_eq!(events.count("pool swept"), before + 1);
        // The other half of the last slab.
        let in_slab = pool.stats().slab_bytes / 1024;
        all.truncate(all.len() + 1 - in_slab / 2);
        let _slab: Vec<_> = std::iter::from_fn(|| pool.try_alloc(16384).ok()).collect();
        assert_eq!(events.count("pool swept"), before + 2);
        // There is nothing to raid either: no magazine holds chunks of that size.
        assert_eq!(
            events.count("magazines raided pool=full chunk_bytes=16384"),
            0
        );
        // The waiter has swept; what is freed from then on goes to its slab at once.
        let mut waits = pin!(pool.alloc(16384));
        let mut cx = Context::from_waker(Waker::noop());
        let before = events.count("pool swept");
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        assert_eq!(events.count("pool swept"), before + 1);
        let before = before + 1;
        all.pop();
        assert!(pool.try_alloc(16384).is_err());
        assert_eq!(events.count("pool swept"), before);

        let pool = builder(Mode::Ring);
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(16384).ok()).collect();
        all.pop();
        let before = events.count("pool swept");
        let small: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1024).ok()).collect();
        assert!(!small.is_empty());
        assert_eq!(events.count("pool swept"), before);
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
    let in_magazines = || pool.stats().classes()[0].in_magazines;
    small.extend(attempt(|| pool.try_alloc(SMALL).unwrap()));
    if in_magazines() == 0 {
        // The exhaustion was over, on a slow machine, and at that event the subscriber flushed them.
        small.extend(attempt(|| pool.try_alloc(SMALL).unwrap()));
    }
    assert_ne!(in_magazines(), 0);
    let one = large.pop();
    let (freed, seen) = channel();
    let (done, wait) = channel::<()>();
    thread::scope(|scope| {
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
    // As many are free as a slab has, but of each slab every second one: refused, after a sweep.
    let mut small = fill(pool, SMALL);
    small.sort_by_key(Chunk::as_ptr);
    let mut place = 0;
    small.retain(|_| {
        place += 1;
        place % 2 == 0
    });
    assert_ne!(attempt(|| pool.try_alloc(LARGE).is_err()), Some(false));
    drop(small);
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    assert!(stats.classes().iter().all(|class| class.waiting == 0));
    assert_eq!(fill(pool, LARGE).len(), SLABS * LARGE_PER_SLAB);
}

#[test]
fn pool_stays_whole_at_whichever_call_a_subscriber_panics() {
    // Every eighth under Miri, for which all of them take over twenty minutes.
    for before in (0..).step_by(if cfg!(miri) { 8 } else { 1 }) {
        let (subscriber, heard) = panicking(before, Level::TRACE);
        let pool = builder().build().unwrap();
        with_subscriber(subscriber, || program(&pool));
        if heard.load(Ordering::Relaxed) <= before {
            assert!(before > 10, "{before} events");
            return;
        }
    }
}

/// At each event the pool is used, on this thread and on another: neither waits for a lock that this one has.
#[test]
fn a_subscriber_may_use_the_pool_that_an_event_comes_from() {
    let pool = builder().build().unwrap();
    let events = Arc::new(AtomicUsize::new(0));
    let user = {
        let (pool, events) = (pool.clone(), Arc::clone(&events));
        OnEvent(Level::TRACE, move |_: &Event<'_>| {
            let use_pool = || {
                for len in [SMALL, LARGE] {
                    drop(pool.try_alloc(len));
                }
                pool.flush_thread_cache();
                assert!(pool.stats().max_memory > 0);
            };
            use_pool();
            thread::scope(|scope| scope.spawn(use_pool).join().unwrap());
            pool.trim();
            events.fetch_add(1, Ordering::Relaxed);
        })
    };
    let (done, is_done) = channel();
    let program = thread::spawn(move || {
        with_subscriber(user, || program(&pool));
        done.send(()).unwrap();
    });
    // It would wait for itself for ever.
    if let Err(RecvTimeoutError::Timeout) =
        is_done.recv_timeout(Duration::from_secs(if cfg!(miri) { 3600 } else { 60 }))
    {
        panic!("hangs after {} events", events.load(Ordering::Relaxed));
    }
    program.join().unwrap();
    assert!(events.load(Ordering::Relaxed) > 10);
}

/// The event comes when the chunk has been taken already.
#[test]
fn panic_at_the_end_of_an_exhaustion_leaks_no_chunk() {
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
    let idle = thread::spawn(move || {
        drop(one);
        freed.send(()).unwrap();
        wait.recv().unwrap_err();
    });
    seen.recv().unwrap();
    // Longer than an exhaustion lasts after the last refusal.
    thread::sleep(Duration::from_millis(1100));
    for pool in pools {
        let (subscriber, _) = panicking(0, Level::INFO);
        let before = pool.stats().in_use();
        with_subscriber(subscriber, || {
            assert!(attempt(|| pool.try_alloc(LARGE)).is_none(), "no event");
            assert_eq!(pool.stats().in_use(), before);
            assert!(pool.try_alloc(LARGE).is_ok());
        });
    }
    drop(done);
    idle.join().unwrap();
}
