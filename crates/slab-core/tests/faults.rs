//! What goes wrong around a pool: no address space, threads that die, processes that fork.
//! (That the system refuses memory at the n-th request is tested in `src/proofs/faults.rs`.)
#![cfg(all(target_os = "linux", not(miri)))]

mod common;
#[cfg(not(slab_tsan))]
mod on_event;

use common::fill;
#[cfg(not(slab_tsan))]
use on_event::{OnEvent, with_subscriber};
#[cfg(not(slab_tsan))]
use slab_core::Mode;
use slab_core::{Chunk, ClassStats, SizeClasses, SlabPool};
#[cfg(not(slab_tsan))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
#[cfg(not(slab_tsan))]
use std::sync::{Arc, Barrier};
use std::thread;

fn pool(max_memory: usize) -> SlabPool {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[64, 1024, 16384]).unwrap())
        .max_memory(max_memory)
        .build()
        .unwrap()
}

/// Asserts that nothing is held and all of the pool can be allocated.
fn assert_whole(pool: &SlabPool) {
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    let all = fill(pool, 16384);
    assert_eq!(all.len() * 16384, stats.max_memory);
}

/// Runs the test of this name in a process with so much address space; `false` in that process.
#[cfg(not(any(slab_asan, slab_tsan)))] // The sanitizers reserve more than any limit.
fn run_with_address_space(bytes: u64, test: &str) -> bool {
    const INSIDE: &str = "SLAB_FAULTS_LIMITED";
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let limited = format!("ulimit -v {} && exec \"$0\" \"$@\"", bytes >> 10);
    let status = std::process::Command::new("sh")
        .args(["-c", &limited])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success());
    true
}

/// Building fails with its reason and leaves nothing behind, and pools that fit work.
#[test]
#[cfg(not(any(slab_asan, slab_tsan)))]
fn an_address_space_limit_is_an_error_and_not_a_crash() {
    use slab_core::ConfigError;

    if run_with_address_space(
        1 << 30,
        "an_address_space_limit_is_an_error_and_not_a_crash",
    ) {
        return;
    }
    let huge = SlabPool::builder().max_memory(4 << 30).build();
    assert!(matches!(huge.unwrap_err(), ConfigError::Reserve { .. }));
    for round in 0..3 {
        let mut pools = Vec::new();
        let error = loop {
            match SlabPool::builder().max_memory(100 << 20).build() {
                Ok(pool) => pools.push(pool),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ConfigError::Reserve { .. }), "{error}");
        assert!(pools.len() >= 3, "round {round}: {}", pools.len());
        for pool in &pools {
            drop(pool.try_alloc(2000).unwrap());
        }
    }
}

/// Where there is room for one, another that is built beside it would be refused.
#[test]
#[cfg(all(feature = "std", not(any(slab_asan, slab_tsan))))]
fn threads_that_open_a_static_slab_at_once_build_one() {
    use slab_core::StaticSlab;

    const THREADS: usize = 4;
    let test = "threads_that_open_a_static_slab_at_once_build_one";
    if run_with_address_space(96 << 30, test) {
        return;
    }
    for round in 0..20 {
        // Of 64 GiB, none of which is touched.
        let slab = StaticSlab::<[u8; 16 << 20]>::new("large", 4096);
        let start = Barrier::new(THREADS);
        let open = || {
            start.wait();
            slab.get().map(|_| ())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(open)).collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), Ok(()), "round {round}");
            }
        });
    }
}

#[test]
fn a_thread_that_panics_leaves_nothing_behind() {
    let pool = pool(1 << 20);
    let (send, receive) = mpsc::channel();
    for _ in 0..3 {
        let (pool, send) = (pool.clone(), send.clone());
        let died = thread::Builder::new()
            .name("dies on purpose".into())
            .spawn(move || {
                let mut chunks: Vec<_> = (0..400).map(|_| pool.try_alloc(64).unwrap()).collect();
                chunks.truncate(100);
                send.send(chunks.split_off(50)).unwrap();
                std::panic::resume_unwind(Box::new(chunks.len()));
            })
            .unwrap()
            .join();
        assert_eq!(*died.unwrap_err().downcast::<usize>().unwrap(), 50);
    }
    assert_eq!(pool.stats().in_use(), 150, "what it gave away is alive");
    assert_eq!(pool.stats().thread_caches, 0);
    drop((send, receive.into_iter().take(3).collect::<Vec<_>>()));
    assert_whole(&pool);
}

/// Ten thousand threads, up to fifty at a time: each frees what others allocated, allocates, and
/// gives away.
#[test]
fn thousands_of_threads_come_and_go() {
    let pool = pool(4 << 20);
    let mut passed: Vec<Vec<Chunk>> = Vec::new();
    let rounds = if cfg!(any(slab_asan, slab_tsan)) {
        10
    } else {
        200
    };
    for _ in 0..rounds {
        let threads: Vec<_> = (0..50)
            .map(|_| {
                let (pool, received) = (pool.clone(), passed.pop());
                thread::spawn(move || {
                    let mut own: Vec<_> = (0..20).map(|_| pool.try_alloc(1000).unwrap()).collect();
                    drop(received);
                    own.truncate(10);
                    own
                })
            })
            .collect();
        passed.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    }
    let stats = pool.stats();
    assert_eq!(stats.in_use(), passed.len() as u64 * 10);
    assert_eq!(stats.thread_caches, 0);
    drop(passed);
    // More threads than there can be caches have ended, and a cache is free. Without `std` there are
    // none.
    let expected_caches = usize::from(cfg!(feature = "std"));
    assert_eq!(pool.stats().thread_caches, expected_caches);
    assert_whole(&pool);
}

#[test]
fn a_pool_is_dropped_with_a_million_chunks_alive() {
    let pool = pool(64 << 20);
    let mut chunks = fill(&pool, 64);
    assert_eq!(chunks.len(), 1 << 20);
    chunks[0].try_copy_from_slice(b"first").unwrap();
    // Chunks are not handed out in the order in which they lie.
    let start = chunks.iter().map(|chunk| chunk.as_ptr().addr().get()).min();
    let start = start.expect("a million");
    // Some free ones in this thread's magazine and in the depot.
    chunks.truncate((1 << 20) - 10_000);
    drop(pool);
    // Half of them are freed on another thread.
    let half = chunks.split_off(chunks.len() / 2);
    thread::spawn(move || drop(half)).join().unwrap();
    // SAFETY: written above; the arena lives as long as a chunk does.
    let bytes = unsafe { std::slice::from_raw_parts(chunks[0].as_ptr().as_ptr(), 5) };
    assert_eq!(bytes, b"first");
    assert!(is_mapped(start));
    drop(chunks);
    assert!(!is_mapped(start), "the last chunk took the arena with it");
}

/// Does the address belong to a mapping of this process? Pools of other tests may take the place
/// of a pool that ended, but not with a mapping that begins before it and is as large.
fn is_mapped(at: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let from = usize::from_str_radix(from, 16).unwrap();
        let to = usize::from_str_radix(to, 16).unwrap();
        (from..to).contains(&at) && to - at >= 64 << 20
    })
}

/// The child of a process may use the pools it inherits: memory is private, so those of parent and child
/// are independent.
#[test]
#[cfg(not(slab_tsan))] // The sanitizer does not support what a forked child does here.
fn the_child_of_a_fork_has_a_pool_of_its_own() {
    let pool = pool(1 << 20);
    let mut inherited = pool.try_alloc(1024).unwrap();
    inherited.try_copy_from_slice(b"parent").unwrap();
    let mut chunks = vec![inherited, pool.try_alloc(1024).unwrap()];
    let status = fork(|| {
        chunks[0].try_copy_from_slice(b"child!").unwrap();
        chunks.pop();
        // Sweeps, which needs the process-wide barrier in the child too.
        pool.trim();
        let all = fill(&pool, 1024);
        assert!(all.len() > 500);
        drop(all);
        drop(fill(&pool, 16384));
        chunks.clear();
        assert_eq!(pool.stats().in_use(), 0);
    });
    assert_eq!(status, 0, "the child failed");
    // SAFETY: written above.
    let bytes = unsafe { std::slice::from_raw_parts(chunks[0].as_ptr().as_ptr(), 6) };
    assert_eq!(bytes, b"parent");
    assert_eq!(pool.stats().in_use(), 2);
    drop(chunks);
    assert_whole(&pool);
}

/// The other threads of the parent are none of the child's: it does not count them, and what lies in their magazines
/// is in its depot.
#[test]
#[cfg(not(slab_tsan))] // As above.
#[cfg_attr(not(feature = "std"), ignore = "no thread has magazines")]
fn child_of_a_fork_has_the_caches_of_its_own_threads_alone() {
    let pool = pool(1 << 20);
    drop(pool.try_alloc(1024).unwrap());
    let (cached, over) = (Barrier::new(4), Barrier::new(4));
    let status = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                drop(pool.try_alloc(1024).unwrap());
                cached.wait();
                over.wait();
            });
        }
        cached.wait();
        let parents = pool.stats();
        assert_eq!(parents.thread_caches, 4);
        let status = fork(|| {
            let stats = pool.stats();
            assert_eq!(stats.thread_caches, 1);
            let (before, now) = (parents.classes()[1], stats.classes()[1]);
            let counts = |class: &ClassStats| (class.allocs, class.frees, class.in_use);
            assert_eq!(counts(&before), counts(&now));
            assert_eq!(now.in_magazines + now.in_depot, before.in_magazines);
            assert!(now.in_magazines < before.in_magazines / 2, "{now:?}");
            let one = thread::scope(|scope| {
                let new = scope.spawn(|| {
                    let one = pool.try_alloc(1024).unwrap();
                    let stats = pool.stats();
                    assert_eq!(stats.thread_caches, 2);
                    let from_slab = stats.classes()[1].allocs_from_slab;
                    assert_eq!(from_slab, now.allocs_from_slab, "there were some");
                    one
                });
                new.join().unwrap()
            });
            drop(one);
            assert_whole(&pool);
        });
        over.wait();
        status
    });
    assert_eq!(status, 0, "the child failed");
    assert_whole(&pool);
}

/// Trap: fork while another thread holds a lock (snmalloc #735). Other threads are inside two
/// pools all the time: in their magazines, the depot, the slabs and the list of caches. Each child can
/// use both nevertheless; one that hangs is killed, and the test fails.
#[test]
#[cfg(not(slab_tsan))] // As above.
#[cfg_attr(not(feature = "std"), ignore = "without std nobody is told of a fork")]
fn fork_while_another_thread_holds_a_lock() {
    // The sanitizer's shadow is copied each time.
    let forks = if cfg!(slab_asan) { 2 } else { 8 };
    for mode in [Mode::ThreadCached, Mode::DepotOnly, Mode::Locked] {
        let pools = [0, 1].map(|_| {
            SlabPool::builder()
                .size_classes(SizeClasses::explicit(&[1024, 16384]).unwrap())
                .max_memory(1 << 20)
                .mode(mode)
                .build()
                .unwrap()
        });
        let mut inherited = pools[0].try_alloc(1024).unwrap();
        inherited.try_copy_from_slice(b"parent").unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..3 {
                let (pools, done) = (&pools, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        use_every_lock(&pools[number % 2], number);
                    }
                });
            }
            let failed = (0..forks).map(|_| {
                thread::yield_now();
                fork(|| {
                    for pool in &pools {
                        pool.trim();
                        // The threads of the parent hold at most a small part.
                        let mut all = fill(pool, 1024);
                        assert!(all.len() > 100, "{mode:?}: {}", all.len());
                        for chunk in &mut all {
                            chunk.try_copy_from_slice(&[0xA5; 1024]).unwrap();
                        }
                        drop(all);
                        // A pool built, used and closed beside them.
                        drop(fill(&self::pool(1 << 20), 1024));
                        pool.flush_thread_cache();
                        assert!(pool.stats().in_use() < 500);
                    }
                })
            });
            let failed = failed.filter(|&status| status != 0).take(1).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(failed, 0, "{mode:?}: a child failed or hung");
        });
        // SAFETY: written above, and nobody but this test has the chunk.
        let bytes = unsafe { std::slice::from_raw_parts(inherited.as_ptr().as_ptr(), 6) };
        assert_eq!(bytes, b"parent");
        drop(inherited);
        pools.iter().for_each(assert_whole);
    }
}

/// A subscriber may start a program at each event. Here, the child uses the pool.
#[test]
#[cfg(not(slab_tsan))] // As above.
#[cfg_attr(not(feature = "std"), ignore = "without std nobody is told of a fork")]
fn fork_in_an_event_of_a_pool() {
    let pool = pool(256 << 10);
    let forks = Arc::new(AtomicUsize::new(0));
    let forking = {
        let (pool, forks) = (pool.clone(), Arc::clone(&forks));
        OnEvent(tracing::Level::TRACE, move |_: &tracing::Event<'_>| {
            let status = fork(|| {
                drop(fill(&pool, 1024));
                pool.trim();
            });
            assert_eq!(status, 0, "the child failed or hung");
            forks.fetch_add(1, Ordering::Relaxed);
        })
    };
    with_subscriber(forking, || {
        let mut all = fill(&pool, 1024);
        all.truncate(1);
        drop(fill(&pool, 1024));
        pool.trim();
    });
    // Slabs committed, exhaustion, a sweep, a trim.
    assert!(forks.load(Ordering::Relaxed) >= 4, "{forks:?} events");
    assert_whole(&pool);
}

/// One thread is nearly always inside its magazine; the others go through every lock of a pool, with
/// threads of their own that come and go.
#[cfg(not(slab_tsan))]
fn use_every_lock(pool: &SlabPool, number: usize) {
    for _ in 0..1000 {
        drop(pool.try_alloc(1024));
    }
    if number == 0 {
        return;
    }
    let chunks: Vec<_> = (0..100).map_while(|_| pool.try_alloc(1024).ok()).collect();
    drop(chunks);
    pool.trim();
    assert!(pool.stats().max_memory > 0);
    pool.flush_thread_cache();
    if number == 2 {
        let pool = pool.clone();
        let thread = thread::spawn(move || drop(pool.try_alloc(16384)));
        thread.join().unwrap();
    }
}

/// Runs `f` in a child; returns what `waitpid` says of it.
#[cfg(not(slab_tsan))]
fn fork(f: impl FnOnce()) -> i32 {
    // SAFETY: the child only runs code below and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // SAFETY: takes a number only. A child that hangs dies of it.
        unsafe { libc::alarm(30) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        // SAFETY: ends the child at once, without the parent's destructors.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made; `status` is a valid place.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status
}
