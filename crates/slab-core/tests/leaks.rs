//! Leak tracking: which call site has which chunk.
#![cfg(all(feature = "leak-tracking", not(loom)))]

mod common;
mod on_event;

#[cfg(all(target_os = "linux", not(miri)))]
use common::MODES;
use on_event::panicking;
use on_event::{Events, with_subscriber};
use slab_core::{SizeClasses, Slab, SlabPool, SlabPoolBuilder};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
#[cfg(not(miri))]
use std::time::Instant;
use tracing::Level;

fn builder() -> SlabPoolBuilder {
    let classes = SizeClasses::explicit(&[192, 16384]).unwrap();
    let pool = SlabPool::builder().name("tracked").size_classes(classes);
    pool.max_memory(256 << 10)
}

/// The lines of the places of all live chunks, ascending.
fn lines(pool: &SlabPool) -> Vec<u32> {
    let live = pool.live_chunks();
    assert!(live.iter().all(|chunk| chunk.place.file() == file!()));
    let mut lines: Vec<_> = live.iter().map(|chunk| chunk.place.line()).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn every_allocating_call_records_its_call_site() {
    let pool = builder().track_leaks(1).build().unwrap();
    let first = line!() + 1;
    let plain = pool.try_alloc(100).unwrap();
    let zeroed = pool.try_alloc_zeroed(100).unwrap();
    let raw = pool.alloc_raw(100).unwrap();
    let any = pool.try_alloc_any(100).unwrap();
    let spare = pool.try_alloc_spare(100).unwrap();
    assert_eq!(
        lines(&pool),
        [first, first + 1, first + 2, first + 3, first + 4]
    );
    drop(spare);
    // Whatever becomes of its handle, it is the same chunk.
    let shared = plain.into_shared();
    let other = shared.clone();
    drop(shared);
    // SAFETY: just allocated.
    let raw = unsafe { pool.chunk_from_raw(raw) }.unwrap();
    std::thread::spawn(move || drop((other, raw)))
        .join()
        .unwrap();
    assert_eq!(lines(&pool), [first + 1, first + 3]);
    drop((zeroed, any));
    let mut batch = pool.chunk_batch(16000).unwrap();
    let line = line!() + 1;
    assert_eq!(batch.fill(3), Ok(3));
    let one = batch.pop();
    assert_eq!(lines(&pool), [line; 3]);
    drop(batch);
    assert_eq!(lines(&pool), [line]);
    assert_eq!(pool.live_chunks()[0].chunk_bytes, 16384);
    drop(one);
    assert!(pool.live_chunks().is_empty());
}

#[test]
fn typed_slab_lists_who_has_its_values() {
    let slab = Slab::<[u64; 3]>::builder().pool(|pool| pool.track_leaks(1));
    let slab = slab.build().unwrap();
    let first = line!() + 1;
    let inserted = slab.try_insert([1; 3]).unwrap();
    let made = slab.try_insert_with(|| [2; 3]).unwrap();
    let uninit = slab.try_uninit().unwrap();
    let raw = slab.alloc_raw().unwrap();
    let mut live = slab.pool().live_chunks();
    live.sort_by_key(|chunk| chunk.place.line());
    let places = live
        .iter()
        .map(|chunk| (chunk.place.file(), chunk.place.line()));
    assert!(places.eq((first..first + 4).map(|line| (file!(), line))));
    assert_eq!(live[3].address, raw.addr().get());
    drop((inserted, made, uninit));
    assert_eq!(slab.pool().live_chunks().len(), 1);
    // SAFETY: allocated above, and not used any more.
    unsafe { slab.free_raw(raw) }.unwrap();
    assert!(slab.pool().live_chunks().is_empty());
}

#[test]
#[cfg(not(miri))]
fn waited_chunk_records_where_alloc_was_called() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let pool = builder().track_leaks(1).build().unwrap();
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(16384).ok()).collect();
        let line = line!() + 1;
        let waits = pool.alloc(16384);
        let (chunk, freed) = tokio::join!(waits, async {
            std::thread::sleep(Duration::from_millis(2));
            let freed = Instant::now();
            drop(all.pop());
            freed
        });
        drop(all);
        assert_eq!(lines(&pool), [line]);
        assert!(pool.live_chunks()[0].age <= freed.elapsed(), "not the wait");
        drop(chunk);
        assert!(pool.live_chunks().is_empty());
    });
}

#[test]
fn one_in_n_is_recorded_and_untracked_pools_record_nothing() {
    let pool = builder().track_leaks(10).build().unwrap();
    let chunks: Vec<_> = (0..200).map(|_| pool.try_alloc(1).unwrap()).collect();
    assert_eq!(pool.live_chunks().len(), 20);
    drop(chunks);
    assert!(pool.live_chunks().is_empty());
    for &mode in &MODES[1..] {
        let pool = builder().mode(mode).track_leaks(1).build().unwrap();
        let _chunk = pool.try_alloc(1).unwrap();
        assert_eq!(pool.live_chunks().len(), 1, "{mode:?}");
    }
    // A rate of 0 takes back what was asked for before.
    for untracked in [builder(), builder().track_leaks(1).track_leaks(0)] {
        let pool = untracked.build().unwrap();
        let _chunk = pool.try_alloc(1).unwrap();
        assert!(pool.live_chunks().is_empty());
    }
}

#[test]
fn live_chunks_are_listed_oldest_first() {
    let pool = builder().track_leaks(1).build().unwrap();
    let old = pool.try_alloc(1).unwrap();
    std::thread::sleep(Duration::from_millis(2));
    let _young = pool.try_alloc(1).unwrap();
    let live = pool.live_chunks();
    assert_eq!(live[0].address, old.as_ptr().addr().get());
    assert!(live[0].age >= live[1].age + Duration::from_millis(2));
    let text = live[0].to_string();
    assert!(
        text.contains("leaks.rs:") && text.contains("192 bytes"),
        "{text}"
    );
}

#[test]
fn closing_a_pool_reports_live_chunks_once_per_call_site() {
    let warnings = Events::default();
    let line = with_subscriber(warnings.subscriber(Level::WARN), || {
        let quiet = builder().track_leaks(1).build().unwrap();
        drop(quiet.try_alloc(1).unwrap());
        drop(quiet);
        let slab = Slab::<[u8; 150]>::builder()
            .name("leaky")
            .pool(|pool| pool.track_leaks(1))
            .build()
            .unwrap();
        let values: Vec<_> = (0..5).map(|_| slab.try_insert([0; 150]).unwrap()).collect();
        let line = line!() - 1;
        let _other = slab.try_insert_with(|| [0; 150]).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let waits = slab.insert_with(|| [0; 150]);
        let Poll::Ready(Ok(_waited)) = pin!(waits).poll(&mut cx) else {
            panic!("there is room");
        };
        let Poll::Ready(Ok(_moved)) = pin!(slab.insert([0; 150])).poll(&mut cx) else {
            panic!("there is room");
        };
        drop(slab);
        drop(values);
        line
    });
    let warnings = warnings.heard();
    assert_eq!(warnings.len(), 4, "{warnings:?}");
    assert!(warnings[0].contains("pool=leaky"), "{}", warnings[0]);
    assert!(
        warnings[0].contains(&format!("leaks.rs:{line}:")),
        "{}",
        warnings[0]
    );
    assert!(
        warnings[0].contains("chunks=5 bytes=960 "),
        "{}",
        warnings[0]
    );
    for line in [line + 2, line + 4, line + 8] {
        let place = format!("leaks.rs:{line}:");
        let here = |other: &String| other.contains("chunks=1 ") && other.contains(&place);
        assert!(warnings[1..].iter().any(here), "{place} in {warnings:?}");
    }
}

#[test]
fn closing_a_pool_reports_also_what_was_sampled() {
    let warnings = Events::default();
    with_subscriber(warnings.subscriber(Level::WARN), || {
        let pool = builder().track_leaks(10).build().unwrap();
        let _live: Vec<_> = (0..20).map(|_| pool.try_alloc(1).unwrap()).collect();
        drop(pool);
    });
    let heard = warnings.heard();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert!(heard[0].contains("chunks=2 "), "{heard:?}");
}

#[test]
fn report_lists_the_sixteen_largest_places_and_counts_the_rest() {
    let warnings = Events::default();
    with_subscriber(warnings.subscriber(Level::WARN), || {
        let pool = builder().track_leaks(1).build().unwrap();
        let live = [
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(1),
            pool.try_alloc(16000),
        ];
        assert!(live.iter().all(Result::is_ok));
        drop(pool);
    });
    let warnings = warnings.heard();
    assert_eq!(warnings.len(), 17, "{warnings:?}");
    assert!(warnings[0].contains("bytes=16384 "), "{}", warnings[0]);
    assert!(warnings[16].ends_with(" places=2"), "{}", warnings[16]);
}

/// What is mapped for the pool goes with its last chunk all the same.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn subscriber_that_panics_at_the_report_leaks_no_pool() {
    // So large that nothing else is mapped there.
    let pool = builder()
        .max_memory(1 << 28)
        .track_leaks(1)
        .build()
        .unwrap();
    let chunk = pool.try_alloc(1).unwrap();
    let at = chunk.as_ptr().addr().get() + (1 << 27);
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let bound = |text| usize::from_str_radix(text, 16).unwrap();
            (bound(from)..bound(to)).contains(&at)
        })
    };
    assert!(is_mapped());
    with_subscriber(panicking(0, Level::WARN).0, || {
        let drop_pool = std::panic::AssertUnwindSafe(|| drop(pool));
        assert!(std::panic::catch_unwind(drop_pool).is_err(), "reported");
    });
    assert!(is_mapped(), "the chunk lives");
    drop(chunk);
    assert!(!is_mapped());
}
