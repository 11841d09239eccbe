//! What a user of `SlabPool` relies on, through the public API only.

mod common;
#[cfg(target_os = "linux")]
mod process;

use common::{MODES, fill};
use slab_core::{AllocError, Chunk, ConfigError, PoolStats, SizeClasses, SlabPool};
use std::collections::HashSet;
use std::future::Future;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

fn pool(max_memory: usize, sizes: &[usize]) -> SlabPool {
    SlabPool::builder()
        .name("test")
        .size_classes(SizeClasses::explicit(sizes).unwrap())
        .max_memory(max_memory)
        .build()
        .unwrap()
}

/// Asserts that the counts of every class balance, at any moment.
fn assert_balanced(stats: &PoolStats) {
    for class in stats.classes() {
        assert_eq!(
            class.in_use + class.in_magazines + class.in_depot + class.in_slabs,
            class.committed_chunks,
            "{class:?}"
        );
        assert!(class.in_use_peak >= class.in_use);
    }
    assert!(stats.committed_bytes <= stats.max_memory);
}

#[test]
fn a_request_gets_the_smallest_class_that_holds_it() {
    let pool = pool(1 << 20, &[64, 1536, 9216]);
    for (len, capacity) in [
        (0, 64),
        (1, 64),
        (64, 64),
        (65, 1536),
        (1536, 1536),
        (9216, 9216),
    ] {
        let chunk = pool.try_alloc(len).unwrap();
        assert_eq!(chunk.capacity(), capacity);
        assert_eq!(pool.size_classes().sizes()[chunk.class()], capacity);
        assert_eq!(chunk.as_ptr().as_ptr() as usize % slab_core::CHUNK_ALIGN, 0);
        assert!(chunk.belongs_to(&pool));
    }
    for len in [9217, usize::MAX, isize::MAX as usize + 1] {
        assert_eq!(
            pool.try_alloc(len).unwrap_err(),
            AllocError::TooLarge {
                requested: len,
                largest: 9216
            }
        );
    }
    assert!(pool.try_alloc_zeroed(9217).is_err());
    assert!(pool.alloc_raw(9217).is_err());
    assert!(pool.chunk_batch(9217).is_err());
    let mut cx = Context::from_waker(Waker::noop());
    let wait = pin!(pool.alloc(9217)).poll(&mut cx);
    assert!(matches!(
        wait,
        Poll::Ready(Err(AllocError::TooLarge { .. }))
    ));
    let stats = pool.stats();
    assert_eq!(stats.too_large, 3 + 4);
    assert_eq!(stats.in_use(), 0);
    assert_eq!(stats.classes()[0].allocs, 3);
    assert_balanced(&stats);
}

#[test]
fn bad_configurations_are_refused() {
    let built = SlabPool::builder().max_memory(1000).build();
    assert!(matches!(
        built.unwrap_err(),
        ConfigError::CapBelowOneSlab {
            max_memory: 1000,
            ..
        }
    ));
    let built = SlabPool::builder().max_memory(usize::MAX).build();
    assert!(matches!(
        built.unwrap_err(),
        ConfigError::CapTooLarge { .. }
    ));
}

#[test]
fn handles_are_small_and_optional_handles_no_larger() {
    assert_eq!(size_of::<Chunk>(), 8);
    assert_eq!(size_of::<Option<Chunk>>(), 8);
    assert_eq!(size_of::<Option<slab_core::SharedChunk>>(), 8);
    #[allow(dead_code)]
    enum Owner {
        Pool(slab_core::SharedChunk),
        Other(Box<u8>),
    }
    assert_eq!(size_of::<Owner>(), 16);
}

/// With and without `std`.
#[test]
fn handles_are_unwind_safe() {
    fn check<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    check::<SlabPool>();
    check::<Chunk>();
    check::<slab_core::SharedChunk>();
    check::<slab_core::SlabBox<u64>>();
}

#[test]
fn the_cap_is_reached_and_never_passed_and_chunks_do_not_overlap() {
    const CAP: usize = if cfg!(miri) { 64 << 10 } else { 1 << 20 };
    let pool = pool(CAP, &[192, 1536]);
    let mut chunks = fill(&pool, 1536);
    let slab = pool.stats().slab_bytes;
    assert_eq!(chunks.len(), CAP / slab * (slab / 1536));
    let mut starts = HashSet::new();
    for (index, chunk) in chunks.iter_mut().enumerate() {
        assert!(starts.insert(chunk.as_ptr().as_ptr() as usize));
        let bytes = vec![index as u8; 1536];
        assert_eq!(chunk.try_copy_from_slice(&bytes).unwrap(), &bytes[..]);
    }
    for (index, chunk) in chunks.iter().enumerate() {
        // SAFETY: all bytes of the chunk were written above, and nobody writes now.
        let bytes = unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), 1536) };
        assert!(bytes.iter().all(|&byte| byte == index as u8));
    }
    assert!(pool.try_alloc_zeroed(1536).is_err());
    assert!(pool.alloc_raw(1536).is_err());
    assert!(pool.chunk_batch(1536).unwrap().fill(1).is_err());
    let stats = pool.stats();
    assert_eq!(stats.classes()[1].in_use, chunks.len() as u64);
    assert_eq!(stats.classes()[1].exhausted, 1 + 3);
    assert_eq!(stats.committed_bytes, stats.max_memory);
    assert_balanced(&stats);

    let count = chunks.len();
    chunks.clear();
    assert_eq!(pool.stats().in_use(), 0);
    assert_eq!(fill(&pool, 1536).len(), count, "all of it can be had again");
}

#[test]
fn zeroed_and_copied_bytes_show_nothing_of_the_former_owner() {
    let pool = pool(64 << 10, &[1024]);
    let mut first = pool.try_alloc(1024).unwrap();
    first.try_copy_from_slice(&[0xEE; 1024]).unwrap();
    let at = first.as_ptr();
    drop(first);
    let mut second = pool.try_alloc(1024).unwrap();
    assert_eq!(second.as_ptr(), at, "the warm chunk comes back first");
    assert!(second.try_copy_from_slice(&[0; 1025]).is_none());
    assert_eq!(second.try_copy_from_slice(b"abc").unwrap(), b"abc");
    assert_eq!(second.fill_zero(), &[0; 1024]);
}

#[test]
fn an_uninitialised_view_covers_the_whole_chunk() {
    let pool = pool(64 << 10, &[1024]);
    let mut chunk = pool.try_alloc(1000).unwrap();
    let bytes = chunk.as_uninit_mut();
    assert_eq!(bytes.len(), 1024);
    bytes.fill(MaybeUninit::new(7));
    let at = chunk.as_ptr().as_ptr();
    // SAFETY: all of it was just written, and is the chunk's alone.
    assert_eq!(unsafe { std::slice::from_raw_parts(at, 1024) }, [7; 1024]);
}

#[test]
#[cfg(feature = "std")]
fn a_producer_and_a_consumer_on_two_threads_balance_exactly() {
    const PACKETS: u64 = if cfg!(miri) { 30 } else { 200_000 };
    let pool = pool(1 << 20, &[2048]);
    let (send, receive) = std::sync::mpsc::sync_channel::<Chunk>(64);
    let consumer = thread::spawn(move || {
        let mut seen = 0u64;
        for (expected, chunk) in (0u64..).zip(receive) {
            // SAFETY: the producer wrote eight bytes and sent the chunk.
            let stamp = unsafe { chunk.as_ptr().cast::<u64>().read() };
            assert_eq!(stamp, expected);
            seen += 1;
        }
        seen
    });
    for number in 0..PACKETS {
        let mut chunk = loop {
            match pool.try_alloc(2048) {
                Ok(chunk) => break chunk,
                Err(_) => thread::yield_now(),
            }
        };
        chunk.try_copy_from_slice(&number.to_ne_bytes()).unwrap();
        send.send(chunk).unwrap();
    }
    drop(send);
    assert_eq!(consumer.join().unwrap(), PACKETS);
    let stats = pool.stats();
    assert_balanced(&stats);
    let class = &stats.classes()[0];
    assert_eq!((class.in_use, class.allocs), (0, PACKETS));
    assert_eq!((class.frees, class.frees_remote), (PACKETS, PACKETS));
    assert!(class.allocs_from_depot > 0, "batches came back: {class:?}");
}

#[test]
fn a_thread_that_ends_leaves_its_magazines_to_the_others() {
    const LEN: usize = if cfg!(miri) { 32768 } else { 256 };
    let pool = pool(256 << 10, &[LEN]);
    let all = fill(&pool, LEN).len();
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let chunks = fill(&pool, LEN);
            drop(chunks);
        });
        // The end of the scope alone does not wait for the destructors of thread-locals.
        worker.join().unwrap();
    });
    pool.flush_thread_cache();
    let stats = pool.stats();
    let class = &stats.classes()[0];
    // Filling up ends in a reclaim, which may sweep the depot into the slabs.
    assert_eq!(class.in_depot + class.in_slabs, class.committed_chunks);
    assert_eq!(class.in_magazines, 0);
    assert_eq!(fill(&pool, LEN).len(), all);
}

/// Chunks that a thread has flushed come back by whole batches, and slabs are left alone.
#[test]
#[cfg(feature = "std")]
fn freed_chunks_come_back_from_the_depot_by_the_batch() {
    const COUNT: usize = if cfg!(miri) { 48 } else { 336 };
    // The longest batch, and one that the cap shortens.
    for (max_memory, batch) in [(16 << 20, 84), (1 << 20, 16)] {
        let batch = if cfg!(miri) { 12 } else { batch };
        let pool = pool(max_memory, &[256]);
        let allocate =
            || -> Vec<Chunk> { (0..COUNT).map(|_| pool.try_alloc(256).unwrap()).collect() };
        drop(allocate());
        pool.flush_thread_cache();
        let stats = pool.stats();
        let before = stats.classes()[0];
        assert!(before.in_depot >= COUNT as u64, "{before:?}");
        assert_eq!(before.chunks_flushed, before.in_depot);
        assert_eq!(stats.depot_exchanges(&before), before.in_depot / batch);
        assert!(before.allocs_from_slab > 0);
        let held = allocate();
        let stats = pool.stats();
        let after = stats.classes()[0];
        assert_eq!(after.allocs_from_slab, before.allocs_from_slab);
        let batches = after.allocs_from_depot - before.allocs_from_depot;
        assert_eq!(batches, COUNT as u64 / batch);
        assert_eq!(
            stats.depot_exchanges(&after) - stats.depot_exchanges(&before),
            batches
        );
        assert_eq!(
            after.in_depot + COUNT as u64 + after.in_magazines,
            before.in_depot
        );
        drop(held);
    }
}

#[test]
#[cfg(feature = "std")]
fn neither_remote_nor_local_frees_fall_when_the_freeing_thread_allocates() {
    let pool = pool(256 << 10, &[256]);
    let take = || -> Vec<_> { (0..50).map(|_| pool.try_alloc(256).unwrap()).collect() };
    let frees = || {
        let class = pool.stats().classes()[0];
        (class.frees - class.frees_remote, class.frees_remote)
    };
    let held = take();
    thread::scope(|scope| {
        let elsewhere = || {
            drop(held);
            assert_eq!(frees(), (0, 50));
            // Now this thread has freed no more than it has allocated.
            let held = take();
            assert_eq!(frees(), (0, 50));
            held
        };
        drop(scope.spawn(elsewhere).join().unwrap());
        assert_eq!(frees(), (50, 50));
    });
}

#[test]
#[cfg(feature = "std")]
fn counts_of_threads_that_come_and_go_stay() {
    let pool = pool(256 << 10, &[256]);
    let threads = if cfg!(miri) { 3 } else { 2000 };
    for _ in 0..threads {
        let chunk = pool.try_alloc(256).unwrap();
        thread::spawn(move || drop(chunk)).join().unwrap();
    }
    let stats = pool.stats();
    assert_eq!(stats.thread_caches, 1, "this thread's");
    assert_eq!(stats.classes()[0].frees_remote, threads);
    assert_balanced(&stats);
}

/// Trap: frees during and after thread-local teardown (as in `traps.rs`).
#[test]
fn frees_from_destructors_of_thread_locals_arrive() {
    struct Late(Option<Chunk>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.0.take();
        }
    }
    thread_local!(static LATE: std::cell::RefCell<Late> = const { std::cell::RefCell::new(Late(None)) });

    let pool = pool(256 << 10, &[256]);
    // On one thread the destructor runs before the caches', on the other after.
    for early in [true, false] {
        let pool = pool.clone();
        thread::spawn(move || {
            if early {
                LATE.with(|_| ());
            }
            let chunk = pool.try_alloc(256).unwrap();
            LATE.with(|late| late.borrow_mut().0 = Some(chunk));
        })
        .join()
        .unwrap();
    }
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    assert_eq!(stats.thread_caches, 0);
    assert_balanced(&stats);
}

#[test]
fn many_pools_on_one_thread_do_not_mix() {
    let pools: Vec<SlabPool> = (0..if cfg!(miri) { 9 } else { 20 })
        .map(|_| pool(64 << 10, &[1024]))
        .collect();
    for round in 0..3 {
        for pool in &pools {
            let chunk = pool.try_alloc(1).unwrap();
            assert!(chunk.belongs_to(pool));
            drop(chunk);
            assert_eq!(pool.stats().classes()[0].allocs, round + 1);
        }
    }
    for pool in &pools {
        assert_eq!(pool.stats().in_use(), 0);
        assert_eq!(
            pool.stats().thread_caches,
            usize::from(cfg!(feature = "std"))
        );
    }
    let others = pools.clone();
    for (i, pool) in pools.iter().enumerate() {
        let same = others.iter().map(|other| pool.same_pool(other));
        assert!(same.eq((0..pools.len()).map(|j| j == i)));
    }
}

/// Address space of this process, in bytes. Other tests run beside it: a few gigabytes are nothing.
#[cfg(target_os = "linux")]
fn address_space() -> usize {
    process::size("VmSize")
}

/// Is a pool's arena a mapping of its own, which goes when the pool ends and can be counted?
const COUNTED: bool = cfg!(all(
    target_os = "linux",
    feature = "std",
    not(any(miri, slab_asan, slab_tsan))
));

#[test]
fn chunks_outlive_their_pool() {
    const CAP: usize = if COUNTED { 16 << 30 } else { 256 << 10 };
    let pool = pool(CAP, &[256]);
    let mut here = pool.try_alloc(256).unwrap();
    let there = pool.try_alloc(256).unwrap();
    let shared = pool.try_alloc(256).unwrap().into_shared();
    drop(pool);
    assert!(here.pool().is_none());
    here.try_copy_from_slice(&[7; 256]).unwrap();
    let clone = shared.clone();
    drop(shared);
    thread::spawn(move || drop(there)).join().unwrap();
    drop(here);
    assert!(clone.is_unique());
    // Miri and the sanitizers see that the arena is there until now, and Miri that it then goes.
    #[cfg(target_os = "linux")]
    let with_it = address_space();
    drop(clone);
    #[cfg(target_os = "linux")]
    assert!(!COUNTED || with_it - address_space() > CAP / 2, "unmapped");
}

#[test]
fn last_handle_and_last_chunk_may_drop_concurrently() {
    const CAP: usize = if COUNTED { 64 << 20 } else { 64 << 10 };
    let rounds = if cfg!(miri) { 4 } else { 2000 };
    #[cfg(target_os = "linux")]
    let before = address_space();
    for round in 0..rounds {
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[1024]).unwrap())
            .max_memory(CAP)
            .mode(MODES[round % MODES.len()])
            .build()
            .unwrap();
        let chunk = pool.try_alloc(1).unwrap();
        let other = pool.try_alloc(1).unwrap();
        let threads = [
            thread::spawn(move || drop(pool)),
            thread::spawn(move || drop(chunk)),
        ];
        drop(other);
        for thread in threads {
            thread.join().unwrap();
        }
    }
    // Whichever was last, all of them are gone.
    #[cfg(target_os = "linux")]
    assert!(!COUNTED || address_space().saturating_sub(before) < rounds / 2 * CAP);
}

#[test]
fn clones_take_references_at_once_and_return_unused_ones() {
    let pool = pool(64 << 10, &[1024]);
    let first = pool.try_alloc(1).unwrap().into_shared();
    let mut clones = first.clones(10);
    assert_eq!(clones.len(), 10);
    let kept: Vec<_> = clones.by_ref().take(3).collect();
    assert!(kept.iter().all(|clone| clone.same_chunk(&first)));
    let other = self::pool(64 << 10, &[1024]);
    let other = other.try_alloc(1).unwrap().into_shared();
    assert!(
        !other.same_chunk(&first),
        "in the same place of another pool"
    );
    drop(clones);
    drop(first);
    let mut kept = kept.into_iter();
    let (a, b, c) = (
        kept.next().unwrap(),
        kept.next().unwrap(),
        kept.next().unwrap(),
    );
    drop(a);
    let b = b.try_into_unique().unwrap_err();
    drop(c);
    let chunk = b.try_into_unique().unwrap();
    drop(chunk);
    assert_eq!(pool.stats().in_use(), 0);

    let last = pool.try_alloc(1).unwrap().into_shared();
    let too_many = AssertUnwindSafe(|| last.clones((1 << 16) + 1));
    assert!(catch_unwind(too_many).is_err());
    assert!(last.is_unique(), "paid for none");
    assert_eq!(last.clones(1 << 16).len(), 1 << 16);
    let clones = last.clones(5);
    drop(last);
    assert_eq!(pool.stats().in_use(), 1);
    drop(clones);
    assert_eq!(pool.stats().in_use(), 0);
}

/// Exhausted, they hold no reference any more: the chunk is free, and its pool gone.
#[test]
fn exhausted_clones_do_not_access_the_freed_chunk() {
    let pool = pool(64 << 10, &[1024]);
    let first = pool.try_alloc(1).unwrap().into_shared();
    let mut clones = first.clones(1);
    drop((clones.next(), first, pool));
    assert_eq!(format!("{clones:?}"), "Clones { left: 0, .. }");
}

#[test]
fn statistics_balance_while_threads_run() {
    let pool = pool(1 << 20, &[64, 2048]);
    let rounds = if cfg!(miri) { 10 } else { 100_000 };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|seed| {
                let pool = &pool;
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for round in 0..rounds {
                        let len = if (round + seed) % 3 == 0 { 64 } else { 2048 };
                        held.extend(pool.try_alloc(len));
                        if held.len() > 50 {
                            held.drain(..25);
                        }
                    }
                })
            })
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            assert_balanced(&pool.stats());
            thread::yield_now();
        }
        // The end of the scope alone does not wait for the destructors of thread-locals.
        workers.into_iter().for_each(|one| one.join().unwrap());
    });
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    assert_balanced(&stats);
}

/// The peak is added up once for as many batches as there are threads: those that have ended do not count.
#[test]
#[cfg(all(feature = "std", not(miri)))]
fn peak_is_exact_to_a_batch_after_many_threads_have_ended() {
    const THREADS: usize = 100;
    // More than the threads leave behind.
    const HELD: usize = 12_000;
    let pool = SlabPool::builder().build().unwrap();
    let all_at_once = std::sync::Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                drop(pool.try_alloc(64).unwrap());
                all_at_once.wait();
            });
        }
    });
    while pool.stats().thread_caches > 0 {
        thread::yield_now();
    }
    let held: Vec<_> = (0..HELD).map(|_| pool.try_alloc(64).unwrap()).collect();
    drop(held);
    let peak = pool.stats().classes()[0].in_use_peak as usize;
    assert!((HELD - 84..=HELD).contains(&peak), "{peak}");
}
