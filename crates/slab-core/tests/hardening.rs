//! What a hardened pool catches. Each test does what safe code cannot.
// AddressSanitizer would catch it first.
#![cfg(not(any(loom, slab_asan)))]

mod common;

use common::MODES;
use slab_core::{SizeClasses, Slab, SlabPool, SlabPoolBuilder};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::task::{Context, Waker};

/// Every byte of a free chunk is checked.
const LARGE: usize = if cfg!(miri) { 1024 } else { 16384 };

fn builder() -> SlabPoolBuilder {
    let classes = SizeClasses::explicit(&[192, LARGE]).unwrap();
    let pool = SlabPool::builder().size_classes(classes);
    pool.max_memory(256 << 10).hardened(true)
}

fn panic_message(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it should have panicked");
    panic
        .downcast_ref::<String>()
        .expect("a formatted message")
        .clone()
}

/// Allocates a chunk and frees it; the pointer is stale.
fn stale(pool: &SlabPool, len: usize) -> NonNull<u8> {
    let at = pool.alloc_raw(len).unwrap();
    // SAFETY: just allocated.
    unsafe { at.write_bytes(0x11, len) };
    // SAFETY: just allocated.
    unsafe { pool.free_raw(at) }.unwrap();
    at
}

#[test]
#[cfg_attr(
    miri,
    ignore = "a chunk that was tampered with is lost, and its pool stays"
)]
fn write_after_free_panics_at_the_next_allocation() {
    for (len, offset, byte) in [
        (192, 0, 1),
        (192, 191, 0),
        (LARGE, LARGE / 3, 0x11),
        (LARGE, LARGE - 1, 9),
    ] {
        let pool = builder().build().unwrap();
        let at = stale(&pool, len);
        drop(pool.try_alloc(len).unwrap());
        // SAFETY: within the chunk, whose memory is mapped; it belongs to nobody, which is the
        // error that is to be found.
        let there = unsafe { at.add(offset) };
        // SAFETY: as above.
        unsafe { there.write(byte) };
        let message = panic_message(|| drop(pool.try_alloc(len)));
        assert!(message.contains("written to at byte"), "{message}");
        assert!(message.contains(&format!("{at:?}")), "{message}");
    }
}

/// A free chunk is checked in each mode, by each call that can get it.
#[test]
#[cfg_attr(
    miri,
    ignore = "a chunk that was tampered with is lost, and its pool stays"
)]
fn every_way_to_a_chunk_checks_it() {
    let ways: [fn(&SlabPool); 6] = [
        |pool| drop(pool.try_alloc(LARGE)),
        |pool| drop(pool.try_alloc_zeroed(LARGE)),
        |pool| drop(pool.try_alloc_spare(LARGE)),
        |pool| {
            let _ = pool.alloc_raw(LARGE);
        },
        |pool| {
            let _ = pool.chunk_batch(LARGE).unwrap().fill(1);
        },
        |pool| {
            let mut cx = Context::from_waker(Waker::noop());
            let _ = Box::pin(pool.alloc(LARGE)).as_mut().poll(&mut cx);
        },
    ];
    for (way, mode) in (0..ways.len()).flat_map(|way| MODES.map(|mode| (way, mode))) {
        for zero in [false, true] {
            let pool = builder().mode(mode).zero_on_free(zero).build().unwrap();
            // All there are, so that whichever comes next was written to.
            let all: Vec<_> = std::iter::from_fn(|| pool.alloc_raw(LARGE).ok()).collect();
            for &at in &all {
                // SAFETY: allocated above.
                unsafe { pool.free_raw(at) }.unwrap();
                // SAFETY: the memory is mapped; it belongs to nobody, which is the error.
                unsafe { at.write_bytes(if zero { 0xF5 } else { 1 }, 64) };
            }
            let message = panic_message(|| ways[way](&pool));
            assert!(message.contains("written to"), "{way} {mode:?}: {message}");
        }
    }
}

/// The waiter gets a chunk that was freed, and then written to, while it waited.
#[test]
#[cfg_attr(
    miri,
    ignore = "a chunk that was tampered with is lost, and its pool stays"
)]
fn a_waiters_chunk_is_checked() {
    let pool = builder().build().unwrap();
    let all: Vec<_> = std::iter::from_fn(|| pool.alloc_raw(LARGE).ok()).collect();
    let mut cx = Context::from_waker(Waker::noop());
    let mut wait = Box::pin(pool.alloc(LARGE));
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    // SAFETY: allocated above.
    unsafe { pool.free_raw(all[0]) }.unwrap();
    // SAFETY: the memory is mapped; it belongs to nobody, which is the error.
    unsafe { all[0].write(1) };
    let message = panic_message(|| drop(wait.as_mut().poll(&mut cx)));
    assert!(message.contains("written to"), "{message}");
}

#[test]
fn pointer_to_a_chunk_not_in_use_is_refused() {
    let pool = builder().build().unwrap();
    let at = stale(&pool, 192);
    // SAFETY: not in use, so nothing is promised.
    assert!(unsafe { pool.free_raw(at) }.is_err());
    // SAFETY: as above.
    assert!(unsafe { pool.chunk_from_raw(at) }.is_err());
    let neighbour = at.map_addr(|at| at.checked_add(192).unwrap());
    // SAFETY: never in use, so nothing is promised.
    assert!(unsafe { pool.free_raw(neighbour) }.is_err());
    assert_eq!(pool.stats().in_use(), 0);
    // Without hardening, the neighbour would be accepted.
    let held = pool.alloc_raw(192).unwrap();
    // SAFETY: in use, and not used again.
    unsafe { pool.free_raw(held) }.unwrap();
    assert_eq!(pool.stats().classes()[0].frees, 2);
}

#[test]
fn a_chunk_with_two_owners_is_freed_once() {
    for mode in MODES {
        free_twice(&builder().mode(mode).build().unwrap());
    }
}

fn free_twice(pool: &SlabPool) {
    let at = pool.alloc_raw(192).unwrap();
    // SAFETY: the promise is kept here.
    let one = unsafe { pool.chunk_from_raw(at) }.unwrap();
    // SAFETY: it is broken here, which is the error that is to be found.
    let other = unsafe { pool.chunk_from_raw(at) }.unwrap();
    drop(one);
    let message = panic_message(|| drop(other));
    assert!(message.contains("freed twice"), "{message}");
    assert_eq!(pool.stats().in_use(), 0);
    assert_eq!(pool.stats().classes()[0].frees, 1);
}

#[test]
#[cfg_attr(
    miri,
    ignore = "a chunk that was tampered with is lost, and its pool stays"
)]
fn a_typed_slab_can_be_hardened() {
    let slab = Slab::<[u32; 40]>::builder()
        .pool(|pool| pool.hardened(true))
        .build()
        .unwrap();
    let value = slab.alloc_raw().unwrap();
    // SAFETY: just allocated.
    unsafe { slab.free_raw(value) }.unwrap();
    // SAFETY: an element of the value.
    let at = unsafe { value.cast::<u32>().add(7) };
    // SAFETY: the memory is mapped; it belongs to nobody, which is the error.
    unsafe { at.write(4) };
    assert!(panic_message(|| drop(slab.try_insert([3; 40]))).contains("byte 28"));
}

#[test]
fn correct_use_raises_no_alarm() {
    let rounds = if cfg!(miri) { 3 } else { 300 };
    for zero in [false, true] {
        let pool = builder().zero_on_free(zero).build().unwrap();
        std::thread::scope(|scope| {
            let (to, from) = std::sync::mpsc::sync_channel(40);
            let mine = &pool;
            let sender = scope.spawn(move || {
                for round in 0..rounds {
                    let len = [100, LARGE - 300][round % 2];
                    let mut batch = mine.chunk_batch(len).unwrap();
                    let _ = batch.fill(1 + round % 9);
                    for mut chunk in batch {
                        chunk.try_copy_from_slice(&[round as u8 | 1; 90]).unwrap();
                        to.send(chunk.into_shared()).unwrap();
                    }
                    if let Ok(chunk) = mine.try_alloc_zeroed(len) {
                        // SAFETY: the bytes are initialised and ours.
                        let bytes =
                            unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), len) };
                        assert!(bytes == vec![0; len]);
                    }
                }
            });
            for (i, chunk) in from.into_iter().enumerate() {
                drop((chunk.clone(), chunk));
                if i % 50 == 0 {
                    pool.trim();
                }
            }
            // The end of the scope alone does not wait for the destructors of thread-locals.
            sender.join().unwrap();
        });
        assert_eq!(pool.stats().in_use(), 0);
        assert!(pool.stats().classes().iter().all(|class| class.frees > 0));
    }
}

#[test]
#[cfg(not(miri))]
fn chunks_of_waiters_are_checked_too() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let pool = builder().build().unwrap();
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(LARGE).ok()).collect();
        let (chunk, ()) = tokio::join!(pool.alloc(LARGE), async { drop(all.pop()) });
        drop(chunk.unwrap());
        // Granted, and never taken.
        let mut waits = Box::pin(pool.alloc(LARGE));
        let one = pool.try_alloc(LARGE).unwrap();
        std::future::poll_fn(|cx| {
            assert!(waits.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(one);
        drop(waits);
        drop(all);
        assert_eq!(pool.stats().in_use(), 0);
    });
}
