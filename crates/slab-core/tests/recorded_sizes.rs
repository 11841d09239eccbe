//! A pool that records the sizes of its requests.
#![cfg(not(loom))]

mod common;

use common::{MODES, fill};
use slab_core::{
    AllocError, MAX_CHUNK_BYTES, SizeClasses, SizeHistogram, SlabPool, SlabPoolBuilder,
};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;

fn builder() -> SlabPoolBuilder {
    let classes = SizeClasses::explicit(&[2048, 16384]).unwrap();
    let pool = SlabPool::builder().size_classes(classes);
    pool.max_memory(256 << 10).record_sizes(true)
}

fn histogram(lens: impl IntoIterator<Item = usize>) -> SizeHistogram {
    let mut histogram = SizeHistogram::new();
    lens.into_iter().for_each(|len| histogram.record(len, 1));
    histogram
}

#[test]
fn every_way_to_allocate_is_recorded_with_the_length_that_was_asked_for() {
    for mode in MODES {
        // So large that magazines have chunks that the slow path would not have to find.
        let pool = builder().max_memory(8 << 20).mode(mode).build().unwrap();
        assert_eq!(pool.size_histogram(), SizeHistogram::new());
        let plain = pool.try_alloc(100).unwrap();
        let again = pool.try_alloc(101).unwrap();
        let zeroed = pool.try_alloc_zeroed(200).unwrap();
        let zeroed_page = pool.try_alloc_zeroed(5000).unwrap();
        let raw = pool.alloc_raw(300).unwrap();
        let any = pool.try_alloc_any(0).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(waited)) = pin!(pool.alloc(2048)).poll(&mut context) else {
            panic!("there are chunks");
        };
        let mut batch = pool.chunk_batch(1500).unwrap();
        assert_eq!(batch.fill(3), Ok(3));
        // What comes from another chunk or goes elsewhere is no request.
        let shared = plain.into_shared();
        let clone = shared.clone();
        batch.push(again).unwrap();
        // SAFETY: just allocated, and taken back once.
        drop(unsafe { pool.chunk_from_raw(raw) }.unwrap());
        drop((shared, clone, zeroed, zeroed_page, any, waited, batch));
        let lens = [100, 101, 200, 5000, 300, 0, 2048, 1500, 1500, 1500];
        assert_eq!(pool.size_histogram(), histogram(lens), "{mode:?}");
    }
}

// Looks at a quarter of a million sizes.
#[cfg_attr(miri, ignore)]
#[test]
fn what_no_class_serves_is_recorded_and_what_found_no_memory_is_not() {
    let pool = builder().max_oversize_memory(20_000).build().unwrap();
    let lens = [16385, 20_000, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1];
    assert!(matches!(
        pool.try_alloc(lens[0]),
        Err(AllocError::TooLarge { .. })
    ));
    let heap = pool.try_alloc_any(lens[1]).unwrap();
    for len in &lens[2..] {
        // Refused: the heap's share is used up.
        pool.try_alloc_any(*len).unwrap_err();
    }
    drop(heap);
    let mut expected = histogram(lens);
    assert_eq!(expected.too_large(), 1);
    assert_eq!(pool.size_histogram(), expected);
    // All requests that no class could serve, and one that found the pool full.
    let held = fill(&pool, 16000);
    assert!(pool.try_alloc(16001).is_err());
    expected.record(16000, held.len() as u64);
    assert_eq!(pool.size_histogram(), expected);
}

#[test]
fn a_request_that_waits_is_recorded_once_when_it_is_served() {
    let pool = builder().build().unwrap();
    let mut held = fill(&pool, 16384);
    let mut expected = histogram(held.iter().map(|_| 16384));
    let mut context = Context::from_waker(Waker::noop());
    let mut waits = pin!(pool.alloc(9000));
    for _ in 0..3 {
        assert!(waits.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(pool.size_histogram(), expected);
    drop(held.pop());
    assert!(waits.as_mut().poll(&mut context).is_ready());
    expected.record(9000, 1);
    assert_eq!(pool.size_histogram(), expected);
}

#[test]
fn a_request_that_is_given_up_when_a_chunk_is_set_aside_for_it_is_not_recorded() {
    for mode in MODES {
        let pool = builder().mode(mode).hardened(true).build().unwrap();
        let mut held = fill(&pool, 16384);
        let expected = histogram(held.iter().map(|_| 16384));
        let mut waits = Box::pin(pool.alloc(9000));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(held.pop());
        drop(waits);
        assert_eq!(pool.size_histogram(), expected, "{mode:?}");
        let again = pool.try_alloc(16384).expect("it came back");
        drop((again, held));
        let stats = pool.stats();
        let class = &stats.classes()[1];
        assert_eq!((class.in_use, class.allocs), (0, class.frees), "{mode:?}");
    }
}

#[test]
fn requests_of_many_threads_add_up() {
    let pool = builder().build().unwrap();
    let (threads, rounds) = if cfg!(miri) { (2, 10) } else { (4, 5000) };
    thread::scope(|scope| {
        for thread in 0..threads {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..rounds {
                    drop(pool.try_alloc(1 + thread * 64 + round % 64).unwrap());
                }
            });
        }
    });
    let lens =
        (0..threads).flat_map(|thread| (0..rounds).map(move |round| 1 + thread * 64 + round % 64));
    assert_eq!(pool.size_histogram(), histogram(lens));
}

#[test]
fn chunks_are_never_shorter_than_what_is_asked_of_them_meanwhile() {
    let pool = builder().build().unwrap();
    let classes = SizeClasses::explicit(&[64]).unwrap();
    let looks = if cfg!(miri) { 20 } else { 100_000 };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    drop(pool.try_alloc(64).unwrap());
                }
            });
        }
        let ok = (0..looks).all(|_| {
            let waste = pool.size_histogram().waste(&classes);
            waste.requested_bytes <= waste.chunk_bytes
        });
        done.store(true, Ordering::Relaxed);
        assert!(ok, "more bytes than chunks for them");
    });
}

#[test]
fn a_pool_that_was_not_told_to_records_nothing() {
    let pool = builder().record_sizes(false).build().unwrap();
    drop(pool.try_alloc(100).unwrap());
    assert!(pool.try_alloc(1 << 20).is_err());
    assert_eq!(pool.size_histogram(), SizeHistogram::new());
}

/// Its requests are made by code that the program's author does not see.
#[cfg(feature = "allocator-api2")]
#[test]
fn what_collections_ask_for_is_recorded() {
    let alloc = slab_core::SlabAllocator::open(builder()).unwrap();
    let mut bytes = allocator_api2::vec::Vec::with_capacity_in(1000, alloc.clone());
    bytes.push(1_u8);
    bytes.reserve_exact(9000);
    let seen = alloc.pool().size_histogram();
    assert_eq!(seen, histogram([1000, 9001]));
    assert_eq!(seen.advise(2).unwrap().classes.sizes(), [1024, 9024]);
}
