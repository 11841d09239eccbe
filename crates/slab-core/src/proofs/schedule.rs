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

use crate::pool::inner::ENDED;
use crate::{AllocError, Chunk, SizeClasses, SlabPool};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Runner, thread};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

/// Preemptions that PCT places.
const DEPTH: usize = 3;

fn env_number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn explore(test: impl Fn() + Send + Sync + Clone + 'static) {
    let half = env_number("SLAB_SCHEDULES").unwrap_or(1000).div_ceil(2) as usize;
    let fresh = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    let seed = env_number("SLAB_SEED").unwrap_or_else(fresh);
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
    pool_of(2)
}

fn pool_of(slabs: usize) -> SlabPool {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[128, 1024]).unwrap())
        .max_memory(slabs * (4 << 10))
        .build()
        .unwrap()
}

/// What callers have seen: the addresses in use, none of which may be handed out again, and how often
/// they were served and refused, by class.
#[derive(Clone, Default)]
struct InUse(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    held: HashSet<usize>,
    allocs: [u64; 2],
    refused: [u64; 2],
}

impl InUse {
    fn alloc(&self, pool: &SlabPool, len: usize) -> Option<Chunk> {
        match pool.try_alloc(len) {
            Ok(chunk) => {
                self.enter(&chunk);
                Some(chunk)
            }
            Err(AllocError::Exhausted { chunk_bytes }) => {
                let class = usize::from(chunk_bytes == 1024);
                self.0.lock().unwrap().refused[class] += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn enter(&self, chunk: &Chunk) {
        let mut seen = self.0.lock().unwrap();
        assert!(
            seen.held.insert(chunk.as_ptr().addr().get()),
            "handed out twice"
        );
        seen.allocs[chunk.class()] += 1;
    }

    fn free(&self, chunk: Chunk) {
        let at = chunk.as_ptr().addr().get();
        assert!(self.0.lock().unwrap().held.remove(&at));
        drop(chunk);
    }

    /// All is freed, and the pool has counted what happened. `given_up`: chunks that nobody took.
    fn assert_counted(&self, pool: &SlabPool, given_up: [u64; 2]) {
        let seen = self.0.lock().unwrap();
        assert!(seen.held.is_empty());
        pool.inner().assert_exact(&[0, 0]);
        for (class, entry) in pool.stats().classes().iter().enumerate() {
            let allocs = seen.allocs[class] + given_up[class];
            assert_eq!((entry.allocs, entry.frees), (allocs, allocs), "{entry:?}");
            assert_eq!(entry.exhausted, seen.refused[class], "{entry:?}");
        }
    }
}

/// Asserts that all of the pool can be allocated again, by either class.
fn assert_whole(pool: &SlabPool) {
    assert_eq!(pool.stats().in_use(), 0);
    for len in [1024, 128, 1024] {
        let count = (pool.max_memory() / len) as u64;
        let chunks: Vec<_> = (0..count).map(|_| pool.try_alloc(len).unwrap()).collect();
        assert!(pool.try_alloc(len).is_err());
        assert_eq!(pool.stats().in_use(), count);
        drop(chunks);
    }
    pool.trim();
    assert_eq!(pool.stats().committed_bytes, 0);
}

/// Asserts that the parts of a snapshot add up, although they are of slightly different moments.
fn assert_balanced(pool: &SlabPool) {
    let stats = pool.stats();
    assert!(stats.committed_bytes <= stats.max_memory);
    for class in stats.classes() {
        let free = class.in_magazines + class.in_depot + class.in_slabs;
        assert_eq!(class.in_use + free, class.committed_chunks);
    }
}

/// More threads than the pool has caches for allocate, free, hand over, trim, flush and take snapshots.
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
        in_use.assert_counted(&pool, [0, 0]);
        assert_whole(&pool);
    });
}

/// Three threads want half of the only slab's large chunks each, and another wants small ones, for
/// which all of the large ones have to be free; some give up at a random moment. A lost wake-up is a
/// deadlock here, and shuttle says so.
#[test]
fn schedule_waiters() {
    explore(|| {
        let (pool, in_use) = (pool_of(1), InUse::default());
        // Chunks that came to somebody who gave up, by class.
        let given_up = [Arc::<GivenUp>::default(), Arc::default()];
        // Leaves little room: one 1024 B chunk.
        let filler: Vec<_> = (0..3).filter_map(|_| in_use.alloc(&pool, 1024)).collect();
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (pool, in_use) = (pool.clone(), in_use.clone());
                let (len, class) = if number == 3 { (128, 0) } else { (1024, 1) };
                let given_up = given_up[class].clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        // While the others hold one each, there is one for somebody's second.
                        let mut held = Vec::new();
                        for _ in 0..2 {
                            if thread_rng().gen_bool(0.2) {
                                give_up(&pool, len, &given_up);
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
        thread::yield_now();
        filler.into_iter().for_each(|one| in_use.free(one));
        threads.into_iter().for_each(|one| one.join().unwrap());
        let given_up = given_up.map(|chunks| chunks.0.load(Ordering::Relaxed));
        in_use.assert_counted(&pool, given_up);
        assert_whole(&pool);
    });
}

#[derive(Default)]
struct GivenUp(AtomicU64);

impl Wake for GivenUp {
    /// A waiter that was woken has a chunk.
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Asks for memory, polls once, and gives up whether or not it came meanwhile.
fn give_up(pool: &SlabPool, len: usize, given_up: &Arc<GivenUp>) {
    let mut future = Box::pin(pool.alloc(len));
    let waker = Waker::from(given_up.clone());
    let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
    if polled.is_ready() {
        given_up.0.fetch_add(1, Ordering::Relaxed);
    }
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

/// Threads build pools while others end, whose places in the threads' racks they get: a thread still has the
/// magazines of the pool before there, with its chunks in them.
#[test]
fn schedule_pools_one_after_another() {
    explore(|| {
        ENDED.set(0);
        let first = pool();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let mut before = (first.clone(), first.try_alloc(128).unwrap());
                thread::spawn(move || {
                    for _ in 0..3 {
                        let (last, chunk) = before;
                        drop(last.try_alloc(1024));
                        drop(last);
                        if thread_rng().gen_bool(0.5) {
                            drop(chunk); // Otherwise when the next pool is there.
                        }
                        let next = pool();
                        let in_use = InUse::default();
                        let held: Vec<_> = [128, 1024, 1024]
                            .map(|len| in_use.alloc(&next, len).unwrap())
                            .into();
                        assert!(held.iter().all(|one| one.belongs_to(&next)));
                        assert_eq!(next.stats().in_use(), 3);
                        held.into_iter().for_each(|one| in_use.free(one));
                        in_use.assert_counted(&next, [0, 0]);
                        let chunk = next.try_alloc(128).unwrap();
                        before = (next, chunk);
                    }
                })
            })
            .collect();
        drop(first);
        threads.into_iter().for_each(|one| one.join().unwrap());
        assert_eq!(ENDED.replace(0), 1 + 2 * 3);
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
