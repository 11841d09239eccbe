//! Random programs of threads that come and go, over nearly the whole interface at once, on pools of a few
//! slabs: exhaustion, rebalance and waits happen all the time. In each mode, hardened or not. What holds:
//!
//! - A chunk has one owner. Each leaves its mark in the chunk, by plain stores, and in a table of marks, by
//!   relaxed ones: what orders one owner before the next is the pool's alone, for the sanitizer and Miri too.
//! - Nothing is lost: in the end all of the cap can be allocated, in every class.
//! - A snapshot shows no more chunks in use than there are; what is counted never falls; and where somebody
//!   waits, there is no free chunk.
//! - Nobody waits in vain, which would be a test without end; and who is served is woken exactly once.
//!
//! - Values of a typed slab are dropped once each, and vectors in an allocator keep their elements.
//!
//! `world` has what the threads share and check, `actor` what each does; `values` are those of the typed slab,
//! and `lines`, with the feature `allocator-api2`, the vectors.
//!
//! `SLAB_SEED` and `SLAB_PROGRAMS` choose other programs: a failure names its seed, but threads that run at
//! once need not do the same again.
#![cfg(feature = "std")]

mod actor;
#[cfg(feature = "allocator-api2")]
mod lines;
mod values;
mod world;

use actor::Actor;
use slab_core::{AllocError, Chunk, Mode, SizeClasses, SlabPool, SlabPoolBuilder};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use values::Values;
use world::{End, Marks, World};

/// Threads at the same time, and how many come one after the other in each place.
const PLACES: usize = 3;
const LIVES: usize = if cfg!(miri) { 2 } else { 4 };

/// splitmix64
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True once in `n` times.
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Debug, Clone, Copy)]
struct Config {
    mode: Mode,
    hardened: bool,
    zero_on_alloc: bool,
    zero_on_free: bool,
    record_sizes: bool,
    sizes: &'static [usize],
    slabs: usize,
}

impl Config {
    fn of(random: &mut Random) -> Self {
        let modes = [
            Mode::ThreadCached,
            Mode::DepotOnly,
            Mode::Ring,
            Mode::Locked,
        ];
        let (sizes, slabs): (&[usize], usize) = match random.below(if cfg!(miri) { 2 } else { 4 }) {
            0 => (&[16384], 2),
            1 => (&[2048, 16384], 2),
            2 => (&[4096, 8192, 16384], 3),
            _ => (&[192, 2048, 65536], 4),
        };
        Self {
            mode: modes[random.below(4)],
            // Looks at each byte, for which Miri takes too long.
            hardened: random.one_in(3) && !cfg!(miri),
            zero_on_alloc: random.one_in(4),
            zero_on_free: random.one_in(4),
            record_sizes: random.one_in(4),
            sizes,
            slabs,
        }
    }

    fn builder(&self) -> SlabPoolBuilder {
        let classes = SizeClasses::explicit(self.sizes).unwrap();
        // Four chunks of the largest class a slab.
        let slab_bytes = 4 * classes.largest();
        let builder = SlabPool::builder()
            .size_classes(classes)
            .mode(self.mode)
            .hardened(self.hardened)
            .zero_on_alloc(self.zero_on_alloc)
            .zero_on_free(self.zero_on_free)
            .record_sizes(self.record_sizes)
            .max_oversize_memory(400_000)
            .max_memory(self.slabs * slab_bytes);
        #[cfg(feature = "leak-tracking")]
        let builder = builder.track_leaks(2);
        builder
    }
}

fn served<T>(result: Result<T, AllocError>) -> Option<T> {
    match result {
        Ok(served) => Some(served),
        Err(AllocError::Exhausted { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Tells the other threads if this one panics.
struct TellOfPanic<'a>(&'a AtomicBool);

impl Drop for TellOfPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Chunks for this length until the pool is exhausted.
fn fill(pool: &SlabPool, len: usize) -> Vec<Chunk> {
    std::iter::from_fn(|| served(pool.try_alloc(len))).collect()
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let config = Config::of(&mut random);
    let pool = config.builder().build().unwrap();
    let all: Vec<usize> = {
        let unused = config.builder().build().unwrap();
        let sizes = config.sizes.iter();
        sizes.map(|&size| fill(&unused, size).len()).collect()
    };
    let world = World {
        pool: &pool,
        config,
        marks: Marks::new(&pool),
        passing: Mutex::default(),
        ended: Mutex::default(),
        served: config.sizes.iter().map(|_| AtomicU64::new(0)).collect(),
        failed: AtomicBool::new(false),
        values: Values::new(&config),
        #[cfg(feature = "allocator-api2")]
        lines: lines::Lines::new(&config),
    };
    thread::scope(|scope| {
        let (world, seeds) = (&world, [(); PLACES].map(|()| random.next()));
        // The end of the scope alone does not wait for the destructors of thread-locals.
        let places = seeds.map(|seed| {
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..LIVES {
                    let seed = random.next();
                    let life = scope.spawn(move || {
                        let _tell = TellOfPanic(&world.failed);
                        Actor::run(world, seed);
                    });
                    life.join().unwrap_or_else(|cause| resume_unwind(cause));
                }
            })
        });
        for place in places {
            place.join().unwrap_or_else(|cause| resume_unwind(cause));
        }
    });
    assert!(world.passing.lock().unwrap().is_empty());
    let served = world.served.iter().map(|n| n.load(Ordering::Relaxed));
    let mut served: Vec<u64> = served.collect();
    let mut taken_back = 0;
    for (signal, class, end) in world.ended.lock().unwrap().drain(..) {
        match (end, signal.woken.load(Ordering::Relaxed)) {
            (End::Served, 1) | (End::GivenUp, 0) => {}
            // A chunk was set aside already, and went to others.
            (End::GivenUp, 1) => {
                served[class] += 1;
                taken_back += 1;
            }
            (End::Served, n) => panic!("served, and woken {n} times"),
            (End::GivenUp, n) => panic!("gave up, and was woken {n} times"),
        }
    }
    let stats = pool.stats();
    world.check_stats(&stats, None);
    for (class, served) in stats.classes().iter().zip(served) {
        assert_eq!((class.in_use, class.waiting), (0, 0), "{class:?}");
        assert_eq!((class.allocs, class.frees), (served, served), "{class:?}");
    }
    if config.record_sizes {
        let on_heap = stats.oversize_allocs + stats.oversize_refused;
        let requests = pool.size_histogram().requests();
        let allocs = stats.classes().iter().map(|class| class.allocs);
        let served = allocs.sum::<u64>() - taken_back;
        assert_eq!(requests, served + on_heap + stats.too_large);
    }
    #[cfg(feature = "leak-tracking")]
    assert!(pool.live_chunks().is_empty());
    if random.one_in(2) {
        pool.trim();
    }
    for (&size, &count) in config.sizes.iter().zip(&all) {
        let chunks = fill(&pool, size);
        assert_eq!(chunks.len(), count, "chunks of {size}: some are lost");
        chunks.iter().for_each(|chunk| world.enter(chunk));
        chunks.into_iter().for_each(|chunk| world.free(chunk));
    }
    world.finish(&mut random);
    outlive(pool, &mut random);
}

/// Chunks outlive their pool, whose handles go meanwhile.
fn outlive(pool: SlabPool, random: &mut Random) {
    let len = pool.size_classes().sizes()[0];
    let threads: Vec<_> = (0..PLACES)
        .map(|_| {
            let chunks: Vec<_> = (0..6).filter_map(|_| served(pool.try_alloc(len))).collect();
            let shared = served(pool.try_alloc(len)).map(Chunk::into_shared);
            let mut batch = pool.chunk_batch(len).unwrap();
            let _ = served(batch.fill(random.below(4)));
            let handle = random.one_in(2).then(|| pool.clone());
            thread::spawn(move || {
                let clone = shared.clone();
                drop(batch);
                drop((handle, shared));
                drop(chunks);
                clone.map(|clone| clone.into_inner().expect("the only one"))
            })
        })
        .collect();
    drop(pool);
    for thread in threads {
        drop(thread.join().unwrap_or_else(|cause| resume_unwind(cause)));
    }
}

#[test]
fn everything_at_once() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = number("SLAB_SEED").unwrap_or(0);
    let programs = number("SLAB_PROGRAMS").unwrap_or(if cfg!(miri) {
        1
    } else if cfg!(any(slab_tsan, slab_asan)) {
        50
    } else {
        100
    });
    for seed in first..first + programs {
        let failed = catch_unwind(AssertUnwindSafe(|| run(seed))).is_err();
        let config = Config::of(&mut Random(seed));
        assert!(!failed, "SLAB_SEED={seed}: {config:?}");
    }
}
