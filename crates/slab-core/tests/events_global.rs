//! A subscriber that hears of everything, as that of most programs does: also of the events that it causes itself.
#![cfg(all(feature = "std", not(loom)))]

mod common;
mod on_event;

use common::fill;
use on_event::OnEvent;
use slab_core::{SizeClasses, SlabPool};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tracing::{Event, Level};

const SMALL: usize = 512;
const LARGE: usize = 16384;

#[test]
fn a_global_subscriber_may_use_the_pool_too() {
    let the_pool = Arc::new(OnceLock::<SlabPool>::new());
    let events = Arc::new(AtomicUsize::new(0));
    let user = {
        let (the_pool, events) = (Arc::clone(&the_pool), Arc::clone(&events));
        OnEvent(Level::TRACE, move |_: &Event<'_>| {
            assert!(events.fetch_add(1, Ordering::Relaxed) < 10_000, "no end");
            let pool = the_pool.get().unwrap();
            for len in [SMALL, LARGE] {
                drop(pool.try_alloc(len));
            }
            pool.flush_thread_cache();
            assert!(pool.stats().max_memory > 0);
        })
    };
    tracing::subscriber::set_global_default(user).unwrap();
    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[SMALL, LARGE]).unwrap())
        .max_memory(256 << 10)
        .build()
        .unwrap();
    the_pool.set(pool.clone()).unwrap();
    let mut small = fill(&pool, SMALL);
    assert!(pool.try_alloc(LARGE).is_err());
    small.truncate(5);
    let large = fill(&pool, LARGE);
    assert_eq!(large.len(), 12, "three of four slabs");
    drop(small);
    assert_eq!(fill(&pool, LARGE).len(), 4);
    drop(large);
    pool.trim();
    assert_eq!(pool.stats().in_use(), 0);
    assert_eq!(fill(&pool, LARGE).len(), 16);
    assert!(events.load(Ordering::Relaxed) > 5, "{events:?}");
}
