//! Tests: the system refuses memory at the n-th request, for each n that a program meets, with each
//! option that asks the system for memory in a way of its own.

use crate::sys::fault_injection::refuse_requests;
use crate::{
    AllocError, Backing, Chunk, ConfigError, Growth, Mode, SizeClasses, Slab, SlabBox, SlabPool,
    SlabPoolBuilder,
};
use core::future::Future;
use core::task::{Context, Poll, Waker};

const ENOMEM: i32 = 12;

/// A pool, and what a program has to know of it.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    configure: fn(SlabPoolBuilder) -> SlabPoolBuilder,
    /// Chunks of 1 KiB and of 16 KiB that a slab holds.
    chunks_per_slab: [usize; 2],
    /// Each class has half of the slabs and keeps them.
    fixed_shares: bool,
    /// None of its memory goes back.
    never_released: bool,
    /// The fewest slabs that are not backed if each request is refused once.
    min_commit_failures: u64,
}

fn cases() -> Vec<Case> {
    const SLAB: usize = 64 << 10;
    // None where a page is as large as the slab.
    let guard = SlabPool::builder().guard_pages(true).guard_bytes(SLAB);
    let plain = Case {
        name: "default",
        configure: |pool| pool,
        chunks_per_slab: [64, 4],
        fixed_shares: false,
        never_released: false,
        min_commit_failures: 4,
    };
    vec![
        plain,
        Case {
            name: "hardened",
            configure: |pool| pool.hardened(true),
            ..plain
        },
        Case {
            name: "ring",
            configure: |pool| pool.mode(Mode::Ring),
            fixed_shares: true,
            ..plain
        },
        Case {
            name: "depot only",
            configure: |pool| pool.mode(Mode::DepotOnly),
            ..plain
        },
        Case {
            name: "guard pages",
            configure: |pool| pool.guard_pages(true),
            chunks_per_slab: [1024, 16384].map(|bytes| (SLAB - guard) / bytes),
            ..plain
        },
        // A refused commit of several slabs is tried again with one.
        Case {
            name: "doubling",
            configure: |pool| pool.growth(Growth::Double),
            min_commit_failures: 2,
            ..plain
        },
        Case {
            name: "prefault",
            configure: |pool| pool.backing(Backing::Prefault),
            min_commit_failures: 0,
            ..plain
        },
        #[cfg(all(feature = "std", target_os = "linux"))]
        Case {
            name: "locked",
            configure: |pool| pool.backing(lockable_backing()),
            never_released: lockable_backing() == Backing::Locked,
            min_commit_failures: 0,
            ..plain
        },
        #[cfg(feature = "leak-tracking")]
        Case {
            name: "leak tracking",
            configure: |pool| pool.track_leaks(1),
            ..plain
        },
    ]
}

/// The system limits how much memory a process may lock.
#[cfg(all(feature = "std", target_os = "linux"))]
fn lockable_backing() -> Backing {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    assert_eq!(failed, 0);
    // Enough for this test and others that run beside it.
    if limit.rlim_cur >= 4 << 20 {
        Backing::Locked
    } else {
        Backing::Prefault
    }
}

/// Counts what the program was refused, and checks that it was refused properly.
#[derive(Default)]
struct Refusals {
    builds: u32,
    commits: u64,
    trims: u32,
}

impl Refusals {
    fn built<T>(&mut self, built: Result<T, ConfigError>) -> Option<T> {
        match built {
            Ok(pool) => Some(pool),
            Err(
                ConfigError::Reserve { errno: ENOMEM, .. }
                | ConfigError::Back { errno: ENOMEM, .. },
            ) => {
                self.builds += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn build(&mut self, case: &Case) -> Option<SlabPool> {
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[1024, 16384]).unwrap())
            .max_memory(256 << 10);
        self.built((case.configure)(pool).build())
    }

    /// Fills the pool; goes on where the system refused.
    fn fill<T>(&mut self, mut next: impl FnMut() -> Result<T, AllocError>) -> Vec<T> {
        let mut all = Vec::new();
        loop {
            match next() {
                Ok(one) => all.push(one),
                Err(AllocError::Commit { errno: ENOMEM }) => self.commits += 1,
                Err(AllocError::Exhausted { .. }) => return all,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Fills the pool with chunks of `len` bytes.
    fn fill_pool(&mut self, pool: &SlabPool, len: usize) -> Vec<Chunk> {
        self.fill(|| {
            let mut chunk = pool.try_alloc(len)?;
            chunk.try_copy_from_slice(&[0xA5; 1024]).unwrap();
            Ok(chunk)
        })
    }
}

/// Meets every kind of request: build, commit, lock, give back, come back, wait.
fn program(case: &Case) -> Refusals {
    let mut refused = Refusals::default();
    let Some(pool) = refused.build(case) else {
        return refused;
    };
    let slabs = pool.max_memory() / pool.stats().slab_bytes;
    let slabs = if case.fixed_shares { slabs / 2 } else { slabs };
    let small = refused.fill_pool(&pool, 1024);
    let all = small.len();
    assert_eq!(
        all,
        slabs * case.chunks_per_slab[0],
        "all of the cap in spite of it"
    );
    drop(small);
    if !case.fixed_shares && !case.never_released {
        let committed = pool.stats().committed_bytes;
        let mut given = pool.trim();
        while pool.stats().committed_bytes > 0 {
            assert_eq!(given, committed - pool.stats().committed_bytes);
            refused.trims += 1;
            given += pool.trim();
        }
        assert_eq!(given, committed);
    }
    let mut large = refused.fill_pool(&pool, 16384);
    assert_eq!(large.len(), slabs * case.chunks_per_slab[1]);
    let allocated = [all, large.len() + 1];
    {
        let mut waits = core::pin::pin!(pool.alloc(16384));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        large.pop();
        assert!(matches!(waits.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
    }
    drop(large);
    let stats = pool.stats();
    assert_eq!(stats.commit_failures, refused.commits);
    for (class, allocated) in stats.classes().iter().zip(allocated) {
        assert_eq!(
            (class.allocs, class.frees),
            (allocated as u64, allocated as u64)
        );
    }
    pool.inner().assert_exact(&[0, 0]);
    refused
}

/// The same of a typed slab.
fn typed_program(case: &Case) -> Refusals {
    let mut refused = Refusals::default();
    let slab = Slab::<[u64; 128]>::builder().max_objects(4 * case.chunks_per_slab[0]);
    let Some(slab) = refused.built(slab.pool(case.configure).build()) else {
        return refused;
    };
    for round in 0..2 {
        let all: Vec<SlabBox<_>> = refused.fill(|| slab.try_insert_with(|| [round; 128]));
        assert_eq!(all.len(), slab.capacity());
        assert!(all.iter().all(|value| **value == [round; 128]));
        drop(all);
        slab.pool().trim();
    }
    let stats = slab.pool().stats();
    assert_eq!(stats.commit_failures, refused.commits);
    let allocated = 2 * slab.capacity() as u64;
    let class = &stats.classes()[0];
    assert_eq!((class.allocs, class.frees), (allocated, allocated));
    refused
}

/// Runs both programs of each case once for each request that they make, and refuses that one and those
/// after it, `length` in all.
fn refuse_each_request(length: u32, mut check: impl FnMut(&Case, u32, Refusals)) {
    for case in &cases() {
        for program in [program, typed_program] {
            let requests_made = refuse_requests(0..0, || {
                let refused = program(case);
                assert_eq!((refused.builds, refused.commits), (0, 0), "{}", case.name);
            });
            let mut sum = Refusals::default();
            for number in 0..requests_made {
                refuse_requests(number..number + length, || {
                    let refused = program(case);
                    sum.builds += refused.builds;
                    sum.commits += refused.commits;
                    sum.trims += refused.trims;
                });
            }
            check(case, requests_made, sum);
        }
    }
}

#[test]
fn the_system_refuses_memory_at_each_request_in_turn() {
    refuse_each_request(1, |case, requests_made, refused| {
        let Refusals {
            builds,
            commits,
            trims,
        } = refused;
        assert!(builds >= 2, "{}: {builds}", case.name);
        assert!(
            commits >= case.min_commit_failures,
            "{}: {commits}",
            case.name
        );
        // A refusal without any effect is one to take memory back.
        let seen = u64::from(builds) + commits + u64::from(trims);
        assert!(seen <= requests_made.into(), "{}", case.name);
    });
}

#[test]
fn the_system_refuses_three_requests_in_a_row() {
    refuse_each_request(3, |case, _, refused| {
        let commits = refused.commits;
        assert!(
            commits >= 3 * case.min_commit_failures,
            "{}: {commits}",
            case.name
        );
    });
}

/// Its bookkeeping is the system's.
#[test]
#[cfg(all(unix, feature = "std"))] // Elsewhere nothing can be refused.
fn memory_that_was_lent_comes_back_whichever_request_is_refused() {
    use core::mem::MaybeUninit;
    let mut memory: &'static mut [MaybeUninit<u8>] =
        Box::leak(Box::<[u8]>::new_uninit_slice(300 << 10));
    let lent = (memory.as_ptr(), memory.len());
    for case in &cases() {
        let classes = SizeClasses::explicit(&[1024, 16384]).unwrap();
        let builder = (case.configure)(SlabPool::builder().size_classes(classes));
        let elsewhere = Box::leak(Box::<[u8]>::new_uninit_slice(300 << 10));
        let requests = refuse_requests(0..0, || drop(builder.clone().build_in(elsewhere).unwrap()));
        assert_ne!(requests, 0);
        for number in 0..requests {
            let mut back = None;
            refuse_requests(number..number + 1, || {
                let refused = builder.clone().build_in(memory).unwrap_err();
                let error = refused.error();
                assert!(
                    matches!(error, ConfigError::Reserve { errno: ENOMEM, .. }),
                    "{error}"
                );
                back = Some(refused.into_memory());
            });
            memory = back.unwrap();
            assert_eq!((memory.as_ptr(), memory.len()), lent);
            memory.fill(MaybeUninit::new(0xAA));
        }
    }
}

/// Below the cap only the system is in the way, and it does not tell when it has memory again.
#[test]
#[cfg(all(unix, feature = "std"))]
fn a_wait_ends_at_once_with_the_systems_refusal() {
    let pool = two_sizes();
    let _held = pool.try_alloc(1024).unwrap();
    refuse_requests(0..u32::MAX, || {
        let mut cx = Context::from_waker(Waker::noop());
        let poll = core::pin::pin!(pool.alloc(16384)).poll(&mut cx);
        let refused = matches!(
            poll,
            Poll::Ready(Err(AllocError::Commit { errno: ENOMEM, .. }))
        );
        assert!(refused, "{poll:?}");
    });
    assert!(pool.try_alloc(16384).is_ok());
}

#[test]
#[cfg(feature = "std")]
fn a_static_slab_is_built_by_a_later_call_if_the_system_refused_the_first() {
    static SLAB: crate::StaticSlab<[u8; 4096]> = crate::StaticSlab::new("retried", 1 << 20);
    refuse_requests(0..u32::MAX, || {
        assert!(matches!(SLAB.get(), Err(ConfigError::Reserve { .. })));
    });
    assert!(SLAB.get().is_ok());
}

/// To make it usable, and to back it or lock it.
#[test]
#[cfg(all(feature = "std", target_os = "linux"))]
fn memory_from_the_start_is_two_more_requests() {
    let requests = |backing| {
        refuse_requests(0..0, || {
            let pool = SlabPool::builder().max_memory(256 << 10).backing(backing);
            drop(pool.build().unwrap());
        })
    };
    let on_demand = requests(Backing::OnDemand);
    assert_eq!(requests(Backing::Prefault), on_demand + 2);
    assert_eq!(requests(lockable_backing()), on_demand + 2);
}

/// Memory that the system does not take back, as if all of the process were locked (`mlockall`), counts
/// as what it is: there, and used.
#[test]
#[cfg(all(unix, feature = "std"))] // Elsewhere nothing can be refused.
fn refused_trim_leaves_memory_committed_and_usable() {
    let pool = Refusals::default().build(&cases()[0]).unwrap();
    let mut chunks = Refusals::default().fill_pool(&pool, 16384);
    chunks.sort_by_key(Chunk::as_ptr);
    // A part of the second slab stays in use.
    let held = chunks.swap_remove(4);
    drop(chunks);
    let before = pool.stats();
    let committed = before.committed_bytes;
    // Whole slabs first, and then, where these stay, what is free in the second.
    for target in [0, usize::MAX] {
        refuse_requests(0..u32::MAX, || assert_eq!(pool.trim_to(target), 0));
        let after = pool.stats();
        assert_eq!(after.committed_bytes, committed);
        assert_eq!(after.touched_bytes, before.touched_bytes, "all is there");
    }
    let zeroed: Vec<Chunk> = (0..)
        .map_while(|_| pool.try_alloc_zeroed(16384).ok())
        .collect();
    assert_eq!(zeroed.len(), 15);
    for chunk in &zeroed {
        // SAFETY: the bytes are zeroed, and nobody writes them meanwhile.
        let bytes = unsafe { core::slice::from_raw_parts(chunk.as_ptr().as_ptr(), 16384) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
    drop(zeroed);
    let in_use = crate::sys::page_size().max(16384);
    assert_eq!(pool.trim(), committed - in_use, "all but the one in use");
    assert_eq!(pool.stats().touched_bytes, in_use);
    drop(held);
}

/// Without memory for its magazines a thread goes without, to the depot, and asks again the next time.
#[test]
#[cfg(feature = "std")]
fn thread_whose_magazines_are_refused_allocates_without() {
    let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
    // So that the slab is there.
    let held = pool.try_alloc(64).unwrap();
    let caches = || pool.stats().thread_caches;
    let first_use = || {
        let requests = refuse_requests(0..u32::MAX, || {
            drop(pool.try_alloc(64).unwrap());
            assert_eq!(caches(), 1, "the other thread's");
        });
        assert_eq!(requests, 2, "by the allocation, and by the free");
        drop(pool.try_alloc(64).unwrap());
        assert_eq!(caches(), 2);
    };
    std::thread::scope(|scope| scope.spawn(first_use).join().unwrap());
    assert_eq!(pool.stats().in_use(), 1);
    drop(held);
}

/// Where all that a thread's own rack spares is cache lines that others write, a refusal is taken for an answer: in such a
/// pool each allocation and each free would ask again.
#[test]
#[cfg(feature = "std")]
fn thread_without_magazines_asks_for_a_rack_once() {
    let builder = SlabPool::builder().max_memory(1 << 20);
    let pool = builder.mode(crate::Mode::DepotOnly).build().unwrap();
    let held = pool.try_alloc(64).unwrap();
    let use_it = || {
        refuse_requests(0..u32::MAX, || {
            (0..3).for_each(|_| drop(pool.try_alloc(64).unwrap()));
        })
    };
    let requests = std::thread::scope(|scope| scope.spawn(use_it).join().unwrap());
    assert_eq!(requests, 1);
    drop(held);
}

/// A request to the system for each step of growth, and no more.
#[test]
fn each_growth_step_makes_one_system_request() {
    // One that this thread needs, whatever it allocates from.
    drop(SlabPool::builder().build().unwrap().try_alloc(1));
    for (growth, requests) in [(Growth::Slab, 8), (Growth::Double, 4)] {
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[1024, 16384]).unwrap())
            .max_memory(512 << 10)
            .growth(growth)
            .build()
            .unwrap();
        let requests_made = refuse_requests(0..0, || {
            assert_eq!(Refusals::default().fill_pool(&pool, 16384).len(), 32);
        });
        assert_eq!(requests_made, requests, "{growth:?}: 1, 1, 2 and 4 slabs");
    }
}

/// With guard pages each slab is a mapping of its own: what the system gave before it refused one is used, and not
/// asked for again.
#[test]
#[cfg(all(unix, feature = "std"))]
fn growth_that_is_refused_midway_keeps_its_first_slabs() {
    /// The largest page that a system may have.
    const LARGE: usize = 64 << 10;
    drop(SlabPool::builder().build().unwrap().try_alloc(1));
    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[1024, LARGE]).unwrap())
        .max_memory(4 << 20)
        .growth(Growth::Custom(|_| 8))
        .guard_pages(true)
        .build()
        .unwrap();
    let slabs = || pool.stats().committed_bytes / pool.stats().slab_bytes;
    let mut held = Vec::new();
    // The fourth of eight; then the fifth of eight is the last that is given.
    refuse_requests(3..4, || held.push(pool.try_alloc(1024).unwrap()));
    assert_eq!(slabs(), 3);
    let requests = refuse_requests(5..u32::MAX, || {
        held.extend(core::iter::from_fn(|| pool.try_alloc(1024).ok()));
    });
    assert_eq!(slabs(), 8);
    // Of the last step none was given, nor one by itself.
    assert_eq!((requests, pool.stats().commit_failures), (8, 1));
}

#[cfg(all(unix, feature = "std"))]
fn two_sizes() -> SlabPool {
    Refusals::default().build(&cases()[0]).unwrap()
}

/// All chunks of a slab lie in this thread's magazine, and another class is asked for.
#[test]
#[cfg(all(unix, feature = "std"))]
fn refused_commit_is_served_by_a_slab_of_another_class() {
    let pool = two_sizes();
    drop(pool.try_alloc(1024).unwrap());
    refuse_requests(0..u32::MAX, || {
        let large = pool.try_alloc(16384).unwrap();
        drop(large);
        // A request that would wait is served, too.
        drop(pool.try_alloc(1024).unwrap());
        let mut waits = core::pin::pin!(pool.alloc(16384));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(waits.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
    });
    let stats = pool.stats();
    assert_eq!(stats.commit_failures, 3, "asked for once an allocation");
    assert_eq!((stats.slab_rebalances(), stats.in_use()), (3, 0));
    pool.inner().assert_exact(&[0, 0]);
}

#[test]
#[cfg(all(unix, feature = "std"))]
fn refused_commit_is_served_by_an_idle_threads_magazine() {
    let pool = two_sizes();
    let mut chunks: Vec<_> = (0..64).map(|_| pool.try_alloc(1024).unwrap()).collect();
    assert_eq!(pool.stats().committed_bytes, pool.stats().slab_bytes);
    let one = chunks.pop();
    let [freed, over] = [(); 2].map(|()| std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(one);
            freed.wait();
            over.wait();
        });
        freed.wait();
        assert_eq!(pool.stats().classes()[0].in_magazines, 1);
        let mut served = Vec::new();
        refuse_requests(0..u32::MAX, || {
            served.extend((0..2).map(|_| pool.try_alloc(1024)));
        });
        over.wait();
        assert!(served[0].is_ok(), "{served:?}");
        let refused = AllocError::Commit { errno: ENOMEM };
        assert_eq!(served[1].as_ref().unwrap_err(), &refused);
    });
    drop(chunks);
}

/// Counts the events of at least level `info`.
#[cfg(all(unix, feature = "std"))]
struct Events(std::sync::Arc<core::sync::atomic::AtomicU32>);

#[cfg(all(unix, feature = "std"))]
impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
#[cfg(all(unix, feature = "std"))]
fn commit_refusals_and_their_end_are_logged_once_each() {
    let pool = two_sizes();
    let count = std::sync::Arc::default();
    let events = Events(std::sync::Arc::clone(&count));
    let logged = || count.load(core::sync::atomic::Ordering::Relaxed);
    let _held = pool.try_alloc(1024).unwrap();
    // With one dispatcher alone, a thread without any may disable the event for all (tracing-core).
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    tracing::subscriber::with_default(events, || {
        refuse_requests(0..u32::MAX, || {
            for _ in 0..1000 {
                pool.try_alloc(16384).unwrap_err();
            }
        });
        assert_eq!(logged(), 1);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        // Of the slab that is there: that the system gave nothing is no news.
        let _rest = [(); 63].map(|()| pool.try_alloc(1024).unwrap());
        assert_eq!(logged(), 1);
        drop(pool.try_alloc(16384).unwrap());
    });
    assert_eq!(logged(), 2);
    assert_eq!(pool.stats().commit_failures, 1000);
}
