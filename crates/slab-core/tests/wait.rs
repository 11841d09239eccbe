//! Waiting for memory under the cap.

mod common;
mod on_event;

use common::fill;
use on_event::{panicking, with_subscriber};
use slab_core::{Alloc, AllocError, Chunk, Mode, SizeClasses, SlabPool};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread::{self, Thread};
use tracing::Level;

/// A chunk, and a larger one; Miri interprets, and gets pools of few of them.
const LEN: usize = if cfg!(miri) { 16384 } else { 1024 };
const LARGE: usize = if cfg!(miri) { 32768 } else { 16384 };
const CAP: usize = if cfg!(miri) { 128 << 10 } else { 256 << 10 };

fn pool(sizes: &[usize]) -> SlabPool {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(sizes).unwrap())
        .max_memory(CAP)
        .build()
        .unwrap()
}

#[derive(Default)]
struct WakeCount(AtomicUsize);

impl WakeCount {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future and how often it was woken.
struct Waiter<'a> {
    future: Pin<Box<Alloc<'a>>>,
    woken: Arc<WakeCount>,
}

impl<'a> Waiter<'a> {
    fn new(pool: &'a SlabPool, len: usize) -> Self {
        let mut waiter = Self {
            future: Box::pin(pool.alloc(len)),
            woken: Arc::default(),
        };
        assert!(waiter.poll().is_none(), "the pool is full");
        waiter
    }

    fn poll(&mut self) -> Option<Result<Chunk, AllocError>> {
        let waker = Waker::from(self.woken.clone());
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn alloc_does_not_wait_if_memory_is_free() {
    let pool = pool(&[LEN]);
    let chunk = block_on(pool.alloc(LEN - 24)).unwrap();
    assert_eq!(chunk.capacity(), LEN);
    assert_eq!(pool.stats().classes()[0].waits, 0);
}

#[test]
fn too_large_request_fails_without_waiting() {
    let pool = pool(&[LEN]);
    let all = fill(&pool, LEN);
    let error = block_on(pool.alloc(LEN + 1)).unwrap_err();
    let (requested, largest) = (LEN + 1, LEN);
    assert_eq!(error, AllocError::TooLarge { requested, largest });
    drop(all);
}

#[test]
fn waiters_are_served_in_order_and_before_try_alloc() {
    let pool = pool(&[LEN]);
    let mut all = fill(&pool, LEN);
    let mut waiters: Vec<_> = (0..3).map(|_| Waiter::new(&pool, LEN)).collect();
    for served in 0..3 {
        drop(all.pop());
        // It belongs to the waiter, even before that takes it.
        assert!(matches!(
            pool.try_alloc(LEN),
            Err(AllocError::Exhausted { .. })
        ));
        let woken: Vec<usize> = waiters.iter().map(|waiter| waiter.woken.get()).collect();
        assert_eq!(woken.iter().sum::<usize>(), served + 1);
        assert_eq!(woken[served], 1);
        all.push(waiters[served].poll().unwrap().unwrap());
    }
    let stats = pool.stats();
    assert_eq!(
        (stats.classes()[0].waits, stats.classes()[0].waiting),
        (3, 0)
    );
    drop(all);
    assert_eq!(pool.stats().in_use(), 0);
}

#[test]
#[cfg(feature = "std")]
fn fast_path_reopens_when_nobody_waits() {
    let pool = pool(&[LEN]);
    let mut all = fill(&pool, LEN);
    let mut waiter = Waiter::new(&pool, LEN);
    drop(all.pop());
    assert!(waiter.poll().is_some());
    drop(all);
    assert!(pool.stats().classes()[0].in_magazines > 0);
}

/// The ring is shut while anybody waits; afterwards its order shows that it is in use again.
#[test]
fn ring_reopens_when_nobody_waits() {
    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[LEN]).unwrap())
        .max_memory(CAP)
        .mode(Mode::Ring)
        .build()
        .unwrap();
    let mut all = fill(&pool, LEN);
    let mut waiter = Waiter::new(&pool, LEN);
    drop(all.pop());
    let served = waiter.poll().unwrap().unwrap();
    let (first, second) = (served.as_ptr(), all.last().unwrap().as_ptr());
    drop(served);
    drop(all.pop());
    let taken = [(); 2].map(|()| pool.try_alloc(LEN).unwrap());
    assert_eq!(taken.each_ref().map(Chunk::as_ptr), [first, second]);
}

/// A wait is not counted as served by a magazine, which to the statistics is what neither the depot nor a
/// slab served.
#[test]
fn served_waits_count_as_allocations_from_slabs() {
    const WAITS: u64 = if cfg!(miri) { 2 } else { 5 };
    for mode in [Mode::ThreadCached, Mode::DepotOnly] {
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[LEN]).unwrap())
            .max_memory(CAP)
            .mode(mode)
            .build()
            .unwrap();
        let mut all = fill(&pool, LEN);
        let before = pool.stats().classes()[0];
        for _ in 0..WAITS {
            let mut waiter = Waiter::new(&pool, LEN);
            drop(Waiter::new(&pool, LEN));
            drop(all.pop());
            all.push(waiter.poll().unwrap().unwrap());
        }
        let after = pool.stats().classes()[0];
        assert_eq!(after.allocs - before.allocs, WAITS);
        assert_eq!(after.allocs_from_slab - before.allocs_from_slab, WAITS);
        assert_eq!(after.allocs_from_magazine, before.allocs_from_magazine);
    }
}

#[test]
fn dropped_waiter_passes_its_chunk_on() {
    let pool = pool(&[LEN]);
    let mut all = fill(&pool, LEN);
    let early = Waiter::new(&pool, LEN);
    let granted = Waiter::new(&pool, LEN);
    let mut last = Waiter::new(&pool, LEN);
    drop(early);
    drop(all.pop());
    assert_eq!((granted.woken.get(), last.woken.get()), (1, 0));
    // It was woken, but is dropped before it is polled: the next gets the chunk.
    drop(granted);
    assert_eq!(last.woken.get(), 1);
    assert!(last.poll().unwrap().is_ok());
    drop(last);
    let count = all.len();
    drop(all);
    assert_eq!(pool.stats().in_use(), 0);
    assert_eq!(fill(&pool, LEN).len(), count + 1);
}

#[test]
fn only_the_latest_waker_is_called() {
    let pool = pool(&[LEN]);
    let mut all = fill(&pool, LEN);
    let mut waiter = Waiter::new(&pool, LEN);
    let first = std::mem::take(&mut waiter.woken);
    assert!(waiter.poll().is_none());
    drop(all.pop());
    assert_eq!((first.get(), waiter.woken.get()), (0, 1));
}

#[test]
fn panicking_waker_does_not_prevent_other_wakeups() {
    struct PanickingWaker;
    impl Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            panic!("by a waker");
        }
    }
    let pool = pool(&[1024, 16384]);
    let all = fill(&pool, 16384);
    let mut first = pin!(pool.alloc(1024));
    let waker = Waker::from(Arc::new(PanickingWaker));
    assert!(
        first
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let mut second = Waiter::new(&pool, 1024);
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(all)));
    assert!(dropped.is_err(), "the panic is its caller's");
    assert_eq!(second.woken.get(), 1);
    assert!(second.poll().expect("a chunk was granted").is_ok());
    assert!(first.poll(&mut Context::from_waker(&waker)).is_ready());
}

/// A subscriber to the pool's events is foreign code, as a waker is.
#[test]
fn panicking_subscriber_leaves_no_waiter_behind() {
    let pool = pool(&[LEN]);
    // As many as there are, not until the pool refuses, which would emit an event already.
    let mut all: Vec<_> = (0..pool.max_memory() / LEN)
        .map(|_| pool.try_alloc(LEN).unwrap())
        .collect();
    with_subscriber(panicking(0, Level::WARN).0, || {
        let mut waits = pin!(pool.alloc(LEN));
        let mut cx = Context::from_waker(Waker::noop());
        let poll = AssertUnwindSafe(|| waits.as_mut().poll(&mut cx).is_pending());
        assert!(catch_unwind(poll).is_err(), "the panic is its caller's");
    });
    assert_eq!(pool.stats().classes()[0].waiting, 0);
    drop(all.pop());
    assert!(pool.try_alloc(LEN).is_ok(), "not for who is gone");
}

#[test]
fn small_chunks_freed_in_any_order_serve_a_large_request() {
    const SMALL: usize = LEN / 4;
    let pool = pool(&[SMALL, LARGE]);
    let mut small = fill(&pool, SMALL);
    let mut waiter = Waiter::new(&pool, LARGE);
    // Every second one first: no slab is whole before the rest is freed.
    let mut keep = false;
    small.retain(|_| {
        keep = !keep;
        keep
    });
    assert!(waiter.poll().is_none());
    thread::scope(|scope| {
        scope.spawn(|| drop(small));
    });
    assert_eq!(waiter.woken.get(), 1);
    assert!(waiter.poll().unwrap().is_ok());
}

/// Of two classes, too: the waiter that came first gets the slab, whose other chunks the second may use.
#[test]
fn whole_slab_serves_the_longest_waiting_request() {
    const SMALL: usize = LEN / 4;
    for (first, second) in [(SMALL, LARGE), (LARGE, SMALL)] {
        let pool = pool(&[SMALL, LEN, LARGE]);
        let mut all = fill(&pool, LEN);
        all.sort_by_key(Chunk::as_ptr);
        let [first, second, _last] = [first, second, first].map(|len| Waiter::new(&pool, len));
        all.drain(..pool.stats().slab_bytes / LEN);
        assert_eq!((first.woken.get(), second.woken.get()), (1, 0));
    }
}

/// Nothing stays where the next of the class would find it.
#[test]
fn a_class_that_had_no_slab_when_the_wait_began_passes_its_slab_on() {
    const SMALL: usize = LEN / 4;
    for mode in [Mode::ThreadCached, Mode::DepotOnly, Mode::Locked] {
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[SMALL, LEN, LARGE]).unwrap())
            .max_memory(CAP)
            .mode(mode)
            .build()
            .unwrap();
        let mut all = fill(&pool, LEN);
        all.sort_by_key(Chunk::as_ptr);
        let [mut first, second] = [SMALL, LARGE].map(|len| Waiter::new(&pool, len));
        all.drain(..pool.stats().slab_bytes / LEN);
        let small = first.poll().expect("it has the slab").unwrap();
        assert_eq!(second.woken.get(), 0);
        drop(small);
        assert_eq!(second.woken.get(), 1, "{mode:?}");
    }
}

/// Chunks set aside for waiters were in use, whether or not anybody took a snapshot meanwhile.
#[test]
fn chunks_granted_to_waiters_raise_the_high_water_mark() {
    let pool = pool(&[LEN, LARGE]);
    let all = fill(&pool, LARGE);
    let count = pool.max_memory() / LEN;
    let mut waiters: Vec<_> = (0..count).map(|_| Waiter::new(&pool, LEN)).collect();
    drop(all);
    let chunks: Vec<_> = waiters.iter_mut().map(|one| one.poll().unwrap()).collect();
    assert!(chunks.iter().all(Result::is_ok));
    drop(chunks);
    assert_eq!(pool.stats().classes()[0].in_use_peak, count as u64);
}

/// To clone, to call and to drop a waker is to run foreign code.
#[test]
fn wakers_may_use_the_pool() {
    fn use_pool(pool: *const ()) {
        // SAFETY: the pool of this test, which outlives its wakers.
        let pool = unsafe { &*pool.cast::<SlabPool>() };
        assert_ne!(pool.stats().in_use(), 0);
    }
    fn clone(pool: *const ()) -> RawWaker {
        use_pool(pool);
        RawWaker::new(pool, &VTABLE)
    }
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, use_pool, use_pool, use_pool);

    let pool = pool(&[LEN]);
    let mut all = fill(&pool, LEN);
    // SAFETY: the functions keep a waker's rules; the pool is there for as long as any of them.
    let waker = unsafe { Waker::new((&raw const pool).cast(), &VTABLE) };
    let mut cx = Context::from_waker(&waker);
    let mut served = pin!(pool.alloc(LEN));
    let mut given_up = Box::pin(pool.alloc(LEN));
    for _ in 0..2 {
        assert!(served.as_mut().poll(&mut cx).is_pending());
        assert!(given_up.as_mut().poll(&mut cx).is_pending());
    }
    drop(given_up);
    drop(all.pop());
    assert!(served.as_mut().poll(&mut cx).is_ready());
}

thread_local! {
    /// Freed by the next clone of the waker below.
    static FREED_BY_CLONE: RefCell<Option<Chunk>> = const { RefCell::new(None) };
    /// Does the next drop of such a waker panic?
    static PANIC_IN_DROP: Cell<bool> = const { Cell::new(false) };
}

#[test]
fn waker_that_panics_when_dropped_loses_no_chunk() {
    fn clone(_: *const ()) -> RawWaker {
        drop(FREED_BY_CLONE.take());
        RawWaker::new(std::ptr::null(), &VTABLE)
    }
    fn drop_one(_: *const ()) {
        assert!(!PANIC_IN_DROP.replace(false), "by a waker");
    }
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| (), |_| (), drop_one);
    // SAFETY: the functions do not use the pointer.
    let waker = unsafe { Waker::new(std::ptr::null(), &VTABLE) };
    let pool = pool(&[LEN]);
    let mut all = fill(&pool, LEN);
    let count = all.len();
    let poll_and_panic = |future: &mut Alloc<'_>| {
        PANIC_IN_DROP.set(true);
        let poll = || Pin::new(future).poll(&mut Context::from_waker(&waker));
        catch_unwind(AssertUnwindSafe(poll)).expect_err("its waker panics");
    };

    // Memory becomes free just before the request would wait.
    FREED_BY_CLONE.set(all.pop());
    poll_and_panic(&mut pool.alloc(LEN));
    #[cfg(feature = "std")]
    assert_ne!(pool.stats().classes()[0].in_magazines, 0, "nobody waits");
    let one = pool.try_alloc(LEN).expect("the chunk that nobody got");
    all.push(one);

    // The request waits, and is served.
    let mut waiter = Waiter::new(&pool, LEN);
    drop(all.pop());
    poll_and_panic(&mut waiter.future);
    drop(waiter);
    drop(all);
    assert_eq!(fill(&pool, LEN).len(), count);
}

#[test]
fn waiters_are_served_from_magazines_of_idle_threads() {
    let pool = pool(&[LEN]);
    let mut all = fill(&pool, LEN);
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let (freed, seen) = std::sync::mpsc::channel();
    let chunk = all.pop();
    let idle = thread::spawn(move || {
        drop(chunk);
        freed.send(()).unwrap();
        wait.recv().unwrap_err();
    });
    seen.recv().unwrap();
    assert!(block_on(pool.alloc(LEN)).is_ok());
    drop(done);
    idle.join().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "65 536 of them")]
fn number_of_waiters_is_limited() {
    let pool = pool(&[LEN]);
    let all = fill(&pool, LEN);
    let limit = 1 << 16;
    let mut waiters: Vec<_> = (0..limit).map(|_| pool.alloc(LEN)).collect();
    let mut cx = Context::from_waker(Waker::noop());
    for waiter in &mut waiters {
        assert!(Pin::new(waiter).poll(&mut cx).is_pending());
    }
    let refused = block_on(pool.alloc(LEN)).unwrap_err();
    assert_eq!(refused, AllocError::TooManyWaiters { limit });
    let stats = pool.stats();
    assert_eq!(stats.classes()[0].waiting, limit as u64);
    assert_eq!(stats.classes()[0].waiters_refused, 1);
    drop(waiters);
    drop(all);
    if cfg!(feature = "std") {
        assert!(pool.stats().classes()[0].in_magazines > 0, "no pressure");
    }
}

#[test]
fn many_threads_share_few_chunks_by_waiting() {
    const ROUNDS: u64 = if cfg!(miri) { 5 } else { 5_000 };
    let pool = pool(&[16384]);
    let chunks = fill(&pool, 16384).len() as u64;
    let (held, most_held) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let start = |number: u64| {
            let (pool, held, most_held) = (&pool, &held, &most_held);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // Each holds up to three at a time; together they want more than there are.
                    // Waiting while holding could deadlock, so they wait for the first only.
                    let first = block_on(pool.alloc(16384)).unwrap();
                    let mut more = Vec::new();
                    for _ in 0..(number + round) % 3 {
                        more.extend(pool.try_alloc(16384).ok());
                    }
                    let now = held.fetch_add(1 + more.len() as u64, Ordering::SeqCst);
                    most_held.fetch_max(now + 1 + more.len() as u64, Ordering::SeqCst);
                    // Now and then all chunks that are held are counted at once.
                    thread::yield_now();
                    held.fetch_sub(1 + more.len() as u64, Ordering::SeqCst);
                    drop((more, first));
                }
            })
        };
        // The end of the scope alone does not wait for the destructors of thread-locals.
        let threads: Vec<_> = (0..8).map(start).collect();
        threads.into_iter().for_each(|one| one.join().unwrap());
    });
    assert!(most_held.load(Ordering::SeqCst) <= chunks);
    let stats = pool.stats();
    assert_eq!((stats.in_use(), stats.classes()[0].waiting), (0, 0));
    assert_eq!(fill(&pool, 16384).len() as u64, chunks);
}

#[test]
#[cfg(feature = "std")]
fn every_wait_that_ended_is_in_the_histogram_of_its_class() {
    let pool = pool(&[LEN, LARGE]);
    let mut all = fill(&pool, LEN);
    assert_eq!(pool.wait_times(0).unwrap().count(), 0);
    let mut served = Waiter::new(&pool, LEN);
    let given_up = Waiter::new(&pool, LEN);
    thread::sleep(std::time::Duration::from_millis(2));
    drop(all.pop());
    let times = pool.wait_times(0).unwrap();
    assert_eq!(times.count(), 0, "set aside, but not taken yet");
    let chunk = served.poll().unwrap();
    drop(given_up);
    let times = pool.wait_times(0).unwrap();
    assert_eq!(times.count(), 2);
    assert_eq!(times.count(), pool.stats().classes()[0].waits);
    // Both took at least as long as the sleep.
    assert!(times.sum() >= std::time::Duration::from_millis(4));
    assert_eq!(times.counts()[..5], [0; 5], "{times:?}");
    assert_eq!(pool.wait_times(1).unwrap().count(), 0);
    assert_eq!(pool.wait_times(2), None);
    drop((chunk, all));
    // A request that need not wait is no wait.
    assert!(block_on(pool.alloc(LEN)).is_ok());
    assert_eq!(pool.wait_times(0).unwrap().count(), 2);
}
