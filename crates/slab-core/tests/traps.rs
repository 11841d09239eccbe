//! Traps that other allocators fell into, each by its name. Tests that need a model checker or access to
//! private items are in `src`; `TESTING.md` has the list (`grep -rn "Trap: "`).
#![cfg(feature = "std")]

mod common;

use common::{MODES, fill};
use slab_core::{AllocError, Chunk, ConfigError, Mode, SizeClasses, SlabPool, SlabPoolBuilder};
use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

/// Miri goes through a hardened chunk byte by byte.
const LARGE: usize = if cfg!(miri) { 4096 } else { 16384 };
const CAP: usize = if cfg!(miri) { 128 << 10 } else { 256 << 10 };

fn builder() -> SlabPoolBuilder {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[1024, LARGE]).unwrap())
        .max_memory(CAP)
}

/// Asserts that each chunk can be allocated, and once.
fn assert_whole(pool: &SlabPool) {
    assert_eq!(pool.stats().in_use(), 0);
    let all = fill(pool, LARGE);
    assert_eq!(all.len() * LARGE, pool.max_memory());
    let different: HashSet<_> = all.iter().map(Chunk::as_ptr).collect();
    assert_eq!(different.len(), all.len());
}

/// Runs a function when its thread ends.
struct AtExit(Option<Box<dyn FnOnce()>>);

impl Drop for AtExit {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

thread_local!(static AT_EXIT: RefCell<AtExit> = const { RefCell::new(AtExit(None)) });

/// Trap: double flush at thread exit. A thread flushes by hand, ends, and flushes and frees again
/// when its caches are gone already.
#[test]
fn double_flush_at_thread_exit() {
    for late in [true, false] {
        let pool = builder().build().unwrap();
        let in_thread = pool.clone();
        thread::spawn(move || {
            let pool = in_thread;
            if late {
                // Thread-locals go in the reverse order of their first use.
                AT_EXIT.with(|_| ());
            }
            drop(
                (0..30)
                    .map(|_| pool.try_alloc(1024).unwrap())
                    .collect::<Vec<_>>(),
            );
            pool.flush_thread_cache();
            let held: Vec<_> = (0..30).map(|_| pool.try_alloc(1024).unwrap()).collect();
            let last = pool.try_alloc(1024).unwrap();
            drop(held);
            AT_EXIT.with_borrow_mut(|at_exit| {
                at_exit.0 = Some(Box::new(move || {
                    pool.flush_thread_cache();
                    drop(last);
                    drop(pool.try_alloc(1024).unwrap());
                    pool.flush_thread_cache();
                }));
            });
        })
        .join()
        .unwrap();
        let stats = pool.stats();
        assert_eq!(stats.thread_caches, 0);
        assert_eq!(stats.classes()[0].in_magazines, 0);
        assert_whole(&pool);
    }
}

/// Trap: frees during and after thread-local teardown (mimalloc #1289, #1177 and #221, snmalloc #161).
/// When a thread has given its cache back, what it still frees must not go there: nor to another's magazine, which would
/// have two owners.
#[test]
fn ended_thread_does_not_touch_its_former_cache() {
    let pool = builder().build().unwrap();
    let steps = Arc::new(Barrier::new(2));
    let first = {
        let (pool, steps) = (pool.clone(), steps.clone());
        thread::spawn(move || {
            AT_EXIT.with(|_| ());
            let last = pool.try_alloc(1024).unwrap();
            AT_EXIT.with_borrow_mut(|at_exit| {
                at_exit.0 = Some(Box::new(move || {
                    steps.wait(); // This thread's caches are gone.
                    steps.wait(); // The other thread has one.
                    drop(last);
                    steps.wait();
                }));
            });
        })
    };
    steps.wait();
    assert_eq!(pool.stats().thread_caches, 0);
    let mine = pool.try_alloc(1024).unwrap();
    let at = mine.as_ptr();
    drop(mine);
    let cached = pool.stats().classes()[0].in_magazines;
    steps.wait();
    steps.wait();
    assert_eq!(pool.stats().classes()[0].in_magazines, cached);
    // Last in, first out: this thread's own.
    let again = pool.try_alloc(1024).unwrap();
    assert_eq!(
        again.as_ptr(),
        at,
        "somebody else pushed onto this thread's magazine"
    );
    drop(again);
    first.join().unwrap();
    assert_whole(&pool);
}

/// Trap: remote free after the owner died. Chunks whose thread is gone, when there are other threads by now, and then whose
/// pool is gone too.
#[test]
fn remote_free_after_the_owner_died() {
    for mode in MODES {
        let pool = builder().mode(mode).build().unwrap();
        let allocate = |count: usize| {
            let pool = pool.clone();
            thread::spawn(move || {
                (0..count)
                    .map(|_| pool.try_alloc(1024).unwrap())
                    .collect::<Vec<_>>()
            })
            .join()
            .unwrap()
        };
        let count = if cfg!(miri) { 10 } else { 40 };
        let (first, second) = (allocate(count), allocate(count));
        thread::spawn(move || drop(first)).join().unwrap();
        let stats = pool.stats();
        let count = count as u64;
        assert_eq!(
            (stats.in_use(), stats.thread_caches),
            (count, 0),
            "{mode:?}"
        );
        assert_eq!(stats.classes()[0].frees, count);
        // The pool stays mapped for the last of them, also on a thread that never met it.
        drop(pool);
        thread::spawn(move || {
            for mut chunk in second {
                chunk.fill_zero().fill(1);
            }
        })
        .join()
        .unwrap();
    }
}

/// Trap: integer overflow in size rounding. At every entrance that takes a size, a request that cannot
/// be met is an error, and one that is met gets enough.
#[test]
fn integer_overflow_in_size_rounding() {
    let half = isize::MAX as usize;
    let huge = [
        usize::MAX,
        usize::MAX - 63,
        usize::MAX - 4095,
        half + 2,
        half + 1,
        half,
        half - 63,
        u32::MAX as usize + 2,
        u32::MAX as usize + 1,
    ];
    let pool = builder().max_oversize_memory(1 << 20).build().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    for len in huge {
        let too_large =
            |error| matches!(error, AllocError::TooLarge { requested, .. } if requested == len);
        assert!(too_large(pool.try_alloc(len).unwrap_err()), "{len:x}");
        assert!(too_large(pool.try_alloc_zeroed(len).unwrap_err()));
        assert!(too_large(pool.chunk_batch(len).unwrap_err()));
        let waits = std::pin::pin!(pool.alloc(len)).poll(&mut cx);
        assert!(matches!(waits, Poll::Ready(Err(error)) if too_large(error)));
        assert!(
            pool.try_alloc_any(len).is_err(),
            "beyond the cap of what has no class"
        );
        let classes = pool.size_classes();
        assert_eq!(classes.class_for(len), None);
        assert_eq!(classes.round_up(len), None);
        assert_eq!(classes.exact(len), None);
        assert_eq!(classes.class_for_aligned(len, 64), None);
        assert_eq!(
            classes.class_for_aligned(64, len.next_power_of_two_or_top()),
            None
        );
        // Configurations: refused, or rounded in the direction that the documentation says.
        assert!(SizeClasses::explicit(&[len]).is_err());
        assert!(SizeClasses::explicit(&[64, len]).is_err());
        assert!(SizeClasses::geometric(64, len, 2.0).is_err());
        assert!(SizeClasses::geometric(len, len, 2.0).is_err());
        match builder().max_memory(len).build() {
            Ok(pool) => assert!(pool.max_memory() <= len),
            Err(ConfigError::CapTooLarge { .. } | ConfigError::Reserve { .. }) => {}
            Err(other) => panic!("{len:x}: {other}"),
        }
    }
    let mut batch = pool.chunk_batch(1024).unwrap();
    assert!(
        batch
            .fill(usize::MAX)
            .is_ok_and(|got| got <= pool.max_memory() / 1024)
    );
    drop(batch);
    assert_eq!(pool.stats().in_use(), 0);
    assert!(pool.stats().too_large > 0);
}

trait TopPowerOfTwo {
    fn next_power_of_two_or_top(self) -> usize;
}

impl TopPowerOfTwo for usize {
    fn next_power_of_two_or_top(self) -> usize {
        self.checked_next_power_of_two()
            .unwrap_or(1 << (usize::BITS - 1))
    }
}

/// Trap: stale data readable through a safe API, with every policy of zeroing, in every mode, after all
/// that can happen to memory: reused, moved to another class, trimmed.
#[test]
fn stale_data_with_every_zeroing_policy() {
    type Set = fn(SlabPoolBuilder) -> SlabPoolBuilder;
    let options: [Set; 6] = [
        |builder| builder,
        |builder| builder.hardened(true),
        |builder| builder.zero_on_free(true),
        |builder| builder.zero_on_free(true).hardened(true),
        |builder| builder.zero_on_alloc(true),
        |builder| builder.zero_on_alloc(true).hardened(true),
    ];
    for (nth, mode) in MODES.into_iter().enumerate() {
        for (of, set) in options.into_iter().enumerate() {
            // Each option in one mode, and each mode.
            if cfg!(miri) && nth != of % MODES.len() {
                continue;
            }
            let pool = set(builder().mode(mode)).build().unwrap();
            let rounds = if cfg!(miri) { 1 } else { 4 };
            for round in 0..rounds {
                for len in [1024, LARGE] {
                    let mut all = fill(&pool, len);
                    assert!(!all.is_empty());
                    all.iter_mut()
                        .for_each(|chunk| chunk.fill_zero().fill(0xA5));
                    // Some stay, so that slabs are trimmed in part.
                    all.retain(|chunk| chunk.as_ptr().addr().get() / 1024 % 5 == round % 5);
                    if round % 2 == 1 || rounds == 1 {
                        pool.trim();
                    }
                    assert_shows_nothing(&pool, len);
                    drop(all);
                    // Slabs that this class has used change to the other one.
                    assert_shows_nothing(&pool, 1024 + LARGE - len);
                }
                if round % 3 == 2 {
                    pool.trim();
                }
            }
        }
    }
}

fn assert_shows_nothing(pool: &SlabPool, len: usize) {
    let (zeros, too_long) = (vec![0; len], vec![1; len + 1]);
    let held: Vec<_> = (0..)
        .map_while(|turn| {
            let mut chunk = if turn % 3 == 0 {
                let mut chunk = pool.try_alloc(len).ok()?;
                chunk.fill_zero();
                chunk
            } else {
                pool.try_alloc_zeroed(len).ok()?
            };
            let at = chunk.as_ptr().as_ptr();
            // SAFETY: the bytes were just zeroed, and are ours alone.
            let bytes = unsafe { std::slice::from_raw_parts(at, chunk.capacity()) };
            assert!(bytes == zeros, "{len} in turn {turn}");
            // Only the bytes that are copied in are shown.
            assert_eq!(chunk.try_copy_from_slice(b"mine").unwrap(), b"mine");
            assert!(chunk.try_copy_from_slice(&too_long).is_none());
            Some(chunk)
        })
        .collect();
    drop(held);
}

#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Trap: wake-up of a cancelled waiter. A task that waits three times is dropped at each of its
/// awaits, in each state of that await: never polled, waiting, polled again with another waker, with a
/// chunk set aside. What it had goes to the waiter behind it.
#[test]
fn cancel_at_every_await_of_the_waiting_path() {
    for mode in MODES {
        // One chunk is freed before each poll whose number's bit is set.
        for frees in (0..1_u32 << 5).step_by(if cfg!(miri) { 7 } else { 1 }) {
            for cancel_at in 0..=5 {
                cancel(mode, frees, cancel_at);
            }
        }
        if cfg!(miri) {
            break;
        }
    }
}

fn cancel(mode: Mode, frees: u32, cancel_at: usize) {
    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[16384]).unwrap())
        .max_memory(128 << 10)
        .mode(mode)
        .build()
        .unwrap();
    let mut all = fill(&pool, 16384);
    let total = all.len();
    let mut task = Box::pin(async {
        let first = pool.alloc(16384).await.unwrap();
        let second = pool.alloc(16384).await.unwrap();
        let third = pool.alloc(16384).await.unwrap();
        (first, second, third)
    });
    let wakers: [Arc<WakeCount>; 2] = Default::default();
    let mut done = None;
    for poll in 0..cancel_at {
        if frees & 1 << poll != 0 {
            all.pop();
        }
        let waker = Waker::from(wakers[poll % 2].clone());
        if let Poll::Ready(chunks) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            done = Some(chunks);
            break;
        }
    }
    let behind = Arc::new(WakeCount::default());
    let waker = Waker::from(behind.clone());
    let mut next = Box::pin(pool.alloc(16384));
    let mut looked = next.as_mut().poll(&mut Context::from_waker(&waker));
    // Set aside for the task, or free.
    if frees & 1 << cancel_at.min(4) != 0 {
        all.pop();
    }
    drop((task, done));
    let given = total - all.len();
    if looked.is_pending() {
        // Woken if and only if there was something for it, and once.
        assert_eq!(behind.0.load(Ordering::Relaxed), usize::from(given > 0));
        looked = next.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(
            looked.is_ready(),
            given > 0,
            "{mode:?} {frees:b} {cancel_at}"
        );
    }
    drop((next, looked));
    let stats = pool.stats();
    assert_eq!(stats.classes()[0].waiting, 0);
    assert_eq!(stats.in_use(), all.len() as u64);
    drop(all);
    assert_eq!(fill(&pool, 16384).len(), total);
}

/// Trap: two pools on one thread, one after the other with the same numbers, by which a
/// thread finds its magazines. It may still have those of the pool before, made for other classes; a pool
/// without magazines never replaces them.
#[test]
fn pool_with_a_closed_pools_numbers_ignores_stale_magazines() {
    let mut held = Vec::new();
    // With less memory no ring of four classes fits in.
    let (rounds, memory) = if cfg!(miri) {
        (4, 64 << 10)
    } else {
        (48, 256 << 10)
    };
    for round in 0..rounds {
        // Every other pool leaves magazines behind, and every other finds some.
        let (mode, sizes): (_, &[usize]) = if round % 2 == 0 {
            (Mode::ThreadCached, &[1024])
        } else {
            (MODES[round / 2 % MODES.len()], &[512, 1024, 2048, 4096])
        };
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(sizes).unwrap())
            .max_memory(memory)
            .mode(mode)
            .build()
            .unwrap();
        let mut allocated = vec![0; sizes.len()];
        for (class, &len) in sizes.iter().enumerate().rev() {
            for _ in 0..2 {
                let all = fill(&pool, len);
                allocated[class] += all.len() as u64;
                assert_eq!(pool.stats().in_use(), all.len() as u64);
                if mode != Mode::Ring {
                    assert_eq!(all.len() * len, pool.max_memory(), "{mode:?} in {round}");
                }
            }
        }
        let stats = pool.stats();
        assert_eq!(stats.in_use(), 0);
        for (class, allocated) in stats.classes().iter().zip(allocated) {
            assert_eq!(
                (class.allocs, class.frees),
                (allocated, allocated),
                "{mode:?}, {round}"
            );
        }
        // Some pools outlive their handle, so that the numbers change.
        if round % 8 == 0 {
            held.extend(pool.try_alloc(1));
        }
        held.truncate(3);
    }
}

/// The same on many threads at once: each builds pools of different classes and passes some of their chunks on,
/// which outlive the pool's handle; so numbers go from one thread's pool to another's all the time.
#[test]
fn pools_that_come_and_go_on_many_threads_do_not_mix() {
    const THREADS: usize = 3;
    const SIZES: [usize; 4] = [512, 1024, 2048, 4096];
    type Marked = (Chunk, u64);
    let rounds = if cfg!(miri) { 4 } else { 400 };
    let free = |(chunk, mark): Marked| {
        // SAFETY: its owner wrote the mark there, and passed it on together with the chunk.
        assert_eq!(unsafe { chunk.as_ptr().cast::<u64>().read() }, mark);
    };
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..THREADS)
        .map(|_| std::sync::mpsc::channel::<Vec<Marked>>())
        .unzip();
    thread::scope(|scope| {
        for (number, inbox) in inboxes.into_iter().enumerate() {
            let next = senders[(number + 1) % THREADS].clone();
            scope.spawn(move || {
                let mut mark = (number as u64) << 32;
                for round in 0..rounds {
                    let sizes = &SIZES[..(number + round) % SIZES.len() + 1];
                    let pool = SlabPool::builder()
                        .size_classes(SizeClasses::explicit(sizes).unwrap())
                        .max_memory(256 << 10)
                        .build()
                        .unwrap();
                    let mut chunks: Vec<Marked> = Vec::new();
                    for &len in sizes.iter().cycle().take(3 * sizes.len()) {
                        let chunk = pool.try_alloc(len).unwrap();
                        assert!(chunk.belongs_to(&pool) && chunk.capacity() == len);
                        mark += 1;
                        // SAFETY: the chunk is ours alone, and large enough.
                        unsafe { chunk.as_ptr().cast::<u64>().write(mark) };
                        chunks.push((chunk, mark));
                        if mark.is_multiple_of(3) {
                            free(chunks.swap_remove(0));
                        }
                    }
                    let in_use = chunks.len() as u64;
                    assert_eq!(pool.stats().in_use(), in_use);
                    // Every other pool ends with its handle, the others with the last chunk.
                    if round % 2 == 0 {
                        next.send(chunks.split_off(chunks.len() / 2)).unwrap();
                        drop(pool);
                        chunks.into_iter().for_each(free);
                    } else {
                        chunks.into_iter().for_each(free);
                        drop(pool);
                    }
                    inbox.try_iter().flatten().for_each(free);
                }
                drop(next);
                inbox.into_iter().flatten().for_each(free);
            });
        }
        drop(senders);
    });
}
