//! Random schedules of whole programs by shuttle: what is too large for loom.
//!
//! Run by `ci/shuttle`, or with
//! `RUSTFLAGS="--cfg shuttle" cargo test -p slab-core --lib --release schedule`.
//! `SLAB_SCHEDULES` says how many schedules a test explores, half of them random and half by PCT
//! (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs",
//! 2010); `SLAB_SEED` repeats a failure, which names its seed.
//!
//! Unlike in `model`, threads have thread-locals here, so everything runs through the public API.
//! Shuttle explores interleavings, not weak memory: that is loom's and Miri's part.

use crate::inner::ENDED;
use crate::{AllocError, Chunk, SizeClasses, SlabPool};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Runner, thread};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

/// Preemptions that PCT places.
const DEPTH: usize = 3;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn explore(test: impl Fn() + Send + Sync + Clone + 'static) {
    let half = number("SLAB_SCHEDULES").unwrap_or(1000).div_ceil(2) as usize;
    let fresh = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    let seed = number("SLAB_SEED").unwrap_or_else(fresh);
    let mut config = shuttle::Config::new();
    // A pool is built on the stack, which is 32 KiB otherwise.
    config.stack_size = 512 << 10;
    let run = |name: &str, scheduler: Box<dyn Scheduler + Send>| {
        let test = test.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            Runner::new(scheduler, config.clone()).run(test)
        }));
        if let Err(cause) = outcome {
            let what = cause
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| cause.downcast_ref::<&str>().map(|&text| text.into()));
            match what {
                Some(what) => panic!("{what}\nrepeat with SLAB_SEED={seed} ({name})"),
                None => resume_unwind(cause),
            }
        }
    };
    run(
        "random",
        Box::new(RandomScheduler::new_from_seed(seed, half)),
    );
    run(
        "pct",
        Box::new(PctScheduler::new_from_seed(seed, DEPTH, half)),
    );
}

/// Two slabs of 4 KiB: eight chunks of 1 KiB or 64 of 128 B.
fn pool() -> SlabPool {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[128, 1024]).unwrap())
        .max_memory(8 << 10)
        .build()
        .unwrap()
}

/// Addresses in use: no chunk is handed out twice.
#[derive(Clone, Default)]
struct InUse(Arc<Mutex<HashSet<usize>>>);

impl InUse {
    fn alloc(&self, pool: &SlabPool, len: usize) -> Option<Chunk> {
        match pool.try_alloc(len) {
            Ok(chunk) => {
                self.enter(&chunk);
                Some(chunk)
            }
            Err(AllocError::Exhausted { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn enter(&self, chunk: &Chunk) {
        let fresh = self.0.lock().unwrap().insert(chunk.as_ptr().addr().get());
        assert!(fresh, "handed out twice");
    }

    fn free(&self, chunk: Chunk) {
        let known = self.0.lock().unwrap().remove(&chunk.as_ptr().addr().get());
        assert!(known);
        drop(chunk);
    }
}

/// All of the pool can be had again, by either class.
fn assert_whole(pool: &SlabPool) {
    assert_eq!(pool.stats().in_use(), 0);
    for (len, count) in [(1024, 8), (128, 64), (1024, 8)] {
        let chunks: Vec<_> = (0..count).map(|_| pool.try_alloc(len).unwrap()).collect();
        assert!(pool.try_alloc(len).is_err());
        assert_eq!(pool.stats().in_use(), count);
        drop(chunks);
    }
    pool.trim();
    assert_eq!(pool.stats().committed_bytes, 0);
}

fn assert_balanced(pool: &SlabPool) {
    let stats = pool.stats();
    assert!(stats.committed_bytes <= stats.max_memory);
    for class in stats.classes() {
        let free = class.in_magazines + class.in_depot + class.in_slabs;
        assert_eq!(class.in_use + free, class.committed_chunks);
    }
}

/// More threads than the pool has caches for allocate, free, hand over, trim, flush and look.
#[test]
fn schedule_programs() {
    explore(|| {
        let (pool, in_use) = (pool(), InUse::default());
        let hands = Arc::new(Mutex::new(Vec::<Chunk>::new()));
        let threads: Vec<_> = (0..5)
            .map(|_| {
                let (pool, in_use, hands) = (pool.clone(), in_use.clone(), hands.clone());
                thread::spawn(move || {
                    let mut held = Vec::new();
                    for _ in 0..thread_rng().gen_range(1..12) {
                        match thread_rng().gen_range(0..10) {
                            0..=3 => held.extend(in_use.alloc(&pool, 1024)),
                            4 => held.extend(in_use.alloc(&pool, 128)),
                            5..=6 => held.pop().into_iter().for_each(|one| in_use.free(one)),
                            7 => hands.lock().unwrap().extend(held.pop()),
                            8 => {
                                let other = hands.lock().unwrap().pop();
                                other.into_iter().for_each(|one| in_use.free(one));
                            }
                            _ => match thread_rng().gen_range(0..3) {
                                0 => drop(pool.trim()),
                                1 => pool.flush_thread_cache(),
                                _ => assert_balanced(&pool),
                            },
                        }
                    }
                    held.into_iter().for_each(|one| in_use.free(one));
                })
            })
            .collect();
        threads.into_iter().for_each(|one| one.join().unwrap());
        let left: Vec<Chunk> = hands.lock().unwrap().drain(..).collect();
        left.into_iter().for_each(|one| in_use.free(one));
        assert_whole(&pool);
    });
}

/// More tasks wait than there are chunks; some give up at a random moment. A lost wake-up is a
/// deadlock here, and shuttle says so.
#[test]
fn schedule_waiters() {
    explore(|| {
        let (pool, in_use) = (pool(), InUse::default());
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (pool, in_use) = (pool.clone(), in_use.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let len = if number == 3 { 128 } else { 1024 };
                        // Half of the pool at a time, so that two cannot go on at once.
                        let mut held = Vec::new();
                        for _ in 0..2 {
                            if thread_rng().gen_bool(0.2) {
                                give_up(&pool, len);
                            }
                            let chunk = shuttle::future::block_on(pool.alloc(len)).unwrap();
                            in_use.enter(&chunk);
                            held.push(chunk);
                        }
                        thread::yield_now();
                        held.into_iter().for_each(|one| in_use.free(one));
                    }
                })
            })
            .collect();
        // Leaves little room: one 1024 B chunk, no free slab.
        let filler: Vec<_> = (0..7).filter_map(|_| in_use.alloc(&pool, 1024)).collect();
        thread::yield_now();
        filler.into_iter().for_each(|one| in_use.free(one));
        threads.into_iter().for_each(|one| one.join().unwrap());
        let stats = pool.stats();
        assert!(stats.classes().iter().all(|class| class.in_use == 0));
        assert_whole(&pool);
    });
}

/// Asks for memory, looks once, and gives up whether or not it came meanwhile.
fn give_up(pool: &SlabPool, len: usize) {
    let mut future = Box::pin(pool.alloc(len));
    let waker = std::task::Waker::noop();
    let polled = future
        .as_mut()
        .poll(&mut std::task::Context::from_waker(waker));
    thread::yield_now();
    drop((polled, future));
}

/// Handles and chunks go at random moments on several threads, which end meanwhile: the pool ends
/// once, with the last of them.
#[test]
fn schedule_end_of_the_pool() {
    explore(|| {
        ENDED.set(0);
        let pool = pool();
        let mut chunks: Vec<Chunk> = (0..6).map(|_| pool.try_alloc(1024).unwrap()).collect();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let chunks = chunks.split_off(chunks.len() - 2);
                let handle = thread_rng().gen_bool(0.5).then(|| pool.clone());
                thread::spawn(move || {
                    let handle = handle;
                    if let Some(pool) = &handle {
                        drop(pool.try_alloc(128));
                    }
                    let mut chunks = chunks.into_iter();
                    drop(chunks.next());
                    drop(handle);
                    let last = chunks.next().unwrap();
                    if let Some(pool) = last.pool() {
                        assert!(last.belongs_to(&pool));
                    }
                    drop(last);
                })
            })
            .collect();
        drop(pool);
        threads.into_iter().for_each(|one| one.join().unwrap());
        assert_eq!(ENDED.replace(0), 1);
    });
}

/// A thread ends, with full magazines and a chunk in a thread-local, while another needs every
/// chunk there is.
#[test]
fn schedule_end_of_a_thread_at_the_cap() {
    shuttle::thread_local! {
        static LATE: std::cell::RefCell<Vec<Chunk>> = std::cell::RefCell::new(Vec::new());
    }
    explore(|| {
        let pool = pool();
        let thread = {
            let pool = pool.clone();
            thread::spawn(move || {
                let early = thread_rng().gen_bool(0.5);
                if early {
                    LATE.with(|_| ());
                }
                let chunks: Vec<_> = (0..8).map_while(|_| pool.try_alloc(1024).ok()).collect();
                LATE.with(|late| late.borrow_mut().extend(chunks.into_iter().skip(6)));
            })
        };
        let mut held: Vec<_> = (0..8).filter_map(|_| pool.try_alloc(1024).ok()).collect();
        if thread_rng().gen_bool(0.5) {
            held.clear();
        }
        thread.join().unwrap();
        drop(held);
        assert_whole(&pool);
    });
}
