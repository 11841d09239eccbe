//! Models of whole pools: how they end, sweep, move slabs between classes, and serve waiters.

use super::{BOUND, model};
use crate::class::SizeClasses;
use crate::pool::builder::{Mode, SlabPoolBuilder};
use crate::pool::handle::Handle;
use crate::pool::inner::{ENDED, Inner};
use crate::reclaim::Collected;
use crate::sync::Ordering;
use crate::sys::room::Room;
use crate::thread_cache::{Rack, ThreadCache};
use crate::wait::{Afterwards, Answer, Turn};
use loom::thread;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Wake, Waker};

/// A pool of two slabs of four chunks.
fn pool() -> Arc<Handle> {
    let options = SlabPoolBuilder::default().name("model").max_memory(8 << 10);
    Inner::open(&options.size_classes(super::sizes())).unwrap()
}

/// A cache as a thread's that meets the pool: in a rack of its own, which reaches as far as it has to.
fn register(pool: &Inner) -> Arc<ThreadCache> {
    let magazines = usize::from(pool.classes.place(0).number()) + pool.classes.count();
    pool.register(&Arc::new(
        Rack::new(&mut Room::system(), magazines).unwrap(),
    ))
    .unwrap()
}

/// The chunk is freed through the magazine of its thread while the last handle goes: either the
/// closer or the free ends the pool.
#[test]
fn model_pool_closes_while_the_last_chunk_is_freed_through_a_magazine() {
    model(Some(BOUND), || {
        let handle = pool();
        let inner = handle.as_ptr();
        let cache = register(handle.inner());
        let unit = handle.inner().alloc_with(Some(&cache), 0).unwrap();
        let inner = Sendable(inner);
        let free = thread::spawn(move || {
            let inner = inner;
            // SAFETY: gives up the chunk allocated above.
            unsafe { Inner::free_with(inner.0, Some(&cache), 0, unit) };
        });
        drop(handle);
        free.join().unwrap();
        assert_eq!(ENDED.replace(0), 1, "the pool ends once");
    });
}

/// As before, by two threads without caches.
#[test]
fn model_pool_closes_while_the_last_chunks_are_freed_without_a_magazine() {
    model(Some(BOUND), || {
        let handle = pool();
        let inner = handle.as_ptr();
        let units: Vec<u32> = (0..2)
            .map(|_| handle.inner().alloc_with(None, 0).unwrap())
            .collect();
        let frees: Vec<_> = units
            .into_iter()
            .map(|unit| {
                let inner = Sendable(inner);
                thread::spawn(move || {
                    let inner = inner;
                    // SAFETY: gives up a chunk allocated above.
                    unsafe { Inner::free_with(inner.0, None, 0, unit) };
                })
            })
            .collect();
        drop(handle);
        for free in frees {
            free.join().unwrap();
        }
        assert_eq!(ENDED.replace(0), 1, "the pool ends once");
    });
}

/// What one owner wrote into a chunk is seen by the next, who gets it from a stack, a ring or an open
/// batch. (Magazines have this from their guard, batches from their stack.)
#[test]
fn model_hand_over_without_magazines() {
    std::thread_local!(static MET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    for mode in [Mode::DepotOnly, Mode::Ring, Mode::Locked] {
        model(Some(BOUND), move || {
            let options = SlabPoolBuilder::default().max_memory(8 << 10).mode(mode);
            let handle = Inner::open(&options.size_classes(super::sizes())).unwrap();
            let pool = handle.inner();
            let unit = pool.alloc_with(None, 0).unwrap();
            let bytes = Arc::new(loom::cell::UnsafeCell::new(0));
            // The next owner is not the thread that loom runs first: it has to find the chunk.
            let next = {
                let (inner, bytes) = (Sendable(handle.as_ptr()), bytes.clone());
                thread::spawn(move || {
                    let inner = inner;
                    // SAFETY: the pool's handle outlives this thread, which is joined before it is
                    // dropped.
                    let next = unsafe { inner.0.as_ref() }.alloc_with(None, 0).unwrap();
                    if next == unit {
                        // SAFETY: the chunk's next owner.
                        bytes.with(|bytes| assert_eq!(unsafe { *bytes }, 7));
                    }
                    next == unit
                })
            };
            // SAFETY: the chunk's owner, which stands for its bytes.
            bytes.with_mut(|bytes| unsafe { *bytes = 7 });
            // SAFETY: gives up the chunk allocated above.
            unsafe { Inner::free_with(handle.as_ptr(), None, 0, unit) };
            if next.join().unwrap() {
                MET.set(true);
            }
        });
        assert!(MET.replace(false), "{mode:?}: the chunk was met again");
    }
}

/// Trap: double flush at thread exit. A thread that ends flushes its magazine while another sweeps
/// and then needs every chunk, once.
#[test]
fn model_thread_ends_while_another_sweeps() {
    model(Some(BOUND), || {
        let handle = pool();
        let inner = Sendable(handle.as_ptr());
        let cache = register(handle.inner());
        let unit = handle.inner().alloc_with(Some(&cache), 0).unwrap();
        let ends = thread::spawn(move || {
            let inner = inner;
            // SAFETY: gives up the chunk allocated above.
            unsafe { Inner::free_with(inner.0, Some(&cache), 0, unit) };
            // SAFETY: the pool's handle outlives this thread, which is joined before it is dropped.
            unsafe { inner.0.as_ref() }.detach(&cache);
        });
        handle.inner().trim(0);
        ends.join().unwrap();
        let mut units: Vec<u32> = (0..8)
            .map(|_| handle.inner().alloc_with(None, 0).unwrap())
            .collect();
        units.sort_unstable();
        units.dedup();
        assert_eq!(units.len(), 8, "each chunk once");
    });
}

/// A thread allocates and frees with its magazine while another sweeps; every chunk can be allocated
/// afterwards.
#[test]
fn model_sweep_races_with_allocation_and_free() {
    model(Some(2), || {
        let handle = pool();
        let inner = Sendable(handle.as_ptr());
        let cache = register(handle.inner());
        let unit = handle.inner().alloc_with(Some(&cache), 0).unwrap();
        let worker = thread::spawn(move || {
            let inner = inner;
            // SAFETY: the pool's handle outlives this thread, which is joined before it is dropped.
            let pool = unsafe { inner.0.as_ref() };
            // SAFETY: gives up the chunk allocated above.
            unsafe { Inner::free_with(inner.0, Some(&cache), 0, unit) };
            let unit = pool.alloc_with(Some(&cache), 0).unwrap();
            // SAFETY: gives up the chunk just allocated.
            unsafe { Inner::free_with(inner.0, Some(&cache), 0, unit) };
        });
        // The second one meets an owner that has just learned of the first.
        handle.inner().trim(0);
        handle.inner().trim(0);
        worker.join().unwrap();
        let mut units: Vec<u32> = (0..8)
            .map(|_| handle.inner().alloc_with(None, 0).unwrap())
            .collect();
        assert!(handle.inner().alloc_with(None, 0).is_err());
        units.sort_unstable();
        units.dedup();
        assert_eq!(units.len(), 8, "each chunk once");
    });
}

/// One class needs a slab of which all chunks of another class are free, while a thread pops one of them:
/// either gets what it wants, never both. Afterwards the first class can take the slab again.
#[test]
fn model_rebalance_races_with_pop() {
    model(Some(2), || {
        let sizes = SizeClasses::explicit(&[512, 1024]).unwrap();
        let options = SlabPoolBuilder::default().max_memory(8 << 10);
        let handle = Inner::open(&options.size_classes(sizes)).unwrap();
        let pool = handle.inner();
        let free = |inner, class, unit| {
            // SAFETY: gives up a chunk that this model has allocated and not freed yet.
            unsafe { Inner::free_with(inner, None, class, unit) };
        };
        let cache = register(pool);
        let unit = pool.alloc_with(Some(&cache), 0).unwrap();
        // The other slab, all of it.
        let held: Vec<u32> = (0..4).map(|_| pool.alloc_with(None, 1).unwrap()).collect();
        // SAFETY: gives up the chunk allocated above.
        unsafe { Inner::free_with(handle.as_ptr(), Some(&cache), 0, unit) };
        let pops = {
            let inner = Sendable(handle.as_ptr());
            thread::spawn(move || {
                let inner = inner;
                // SAFETY: the pool's handle outlives this thread, which is joined before it is
                // dropped.
                unsafe { inner.0.as_ref() }.alloc_with(Some(&cache), 0)
            })
        };
        let large = pool.alloc_with(None, 1);
        let small = pops.join().unwrap();
        assert_ne!(large.is_ok(), small.is_ok(), "one slab, for one of them");
        for unit in large.into_iter().chain(held) {
            free(handle.as_ptr(), 1, unit);
        }
        small
            .into_iter()
            .for_each(|unit| free(handle.as_ptr(), 0, unit));
        let mut all: Vec<u32> = (0..16).map(|_| pool.alloc_with(None, 0).unwrap()).collect();
        assert!(pool.alloc_with(None, 0).is_err());
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 16, "each chunk once");
    });
}

/// Two chunks are left, and two threads want one each. The one with a magazine takes both from the slab at
/// once: the other gets the second even before that lies in the magazine.
#[test]
fn model_the_last_batch_is_not_for_one_alone() {
    model(Some(BOUND), || {
        let handle = pool();
        let pool = handle.inner();
        let mut units: Vec<u32> = (0..6).map(|_| pool.alloc_with(None, 0).unwrap()).collect();
        let cache = register(pool);
        let other = {
            let inner = Sendable(handle.as_ptr());
            thread::spawn(move || {
                let inner = inner;
                // SAFETY: the pool's handle outlives this thread, which is joined before it is dropped.
                unsafe { inner.0.as_ref() }.alloc_with(Some(&cache), 0)
            })
        };
        units.push(pool.alloc_with(None, 0).unwrap());
        units.push(other.join().unwrap().unwrap());
        assert!(pool.alloc_with(None, 0).is_err());
        units.sort_unstable();
        units.dedup();
        assert_eq!(units.len(), 8, "each chunk once");
    });
}

/// The same while somebody begins to wait for another class, which brings the two chunks to their slabs.
#[test]
fn model_the_last_batch_is_not_for_one_alone_under_pressure() {
    model(Some(BOUND), || {
        let sizes = SizeClasses::explicit(&[1024, 4096]).unwrap();
        let options = SlabPoolBuilder::default().max_memory(16 << 10);
        let handle = Inner::open(&options.size_classes(sizes)).unwrap();
        let pool = handle.inner();
        let caches = [(); 2].map(|()| register(pool));
        let units: Vec<u32> = (0..16).map(|_| pool.alloc_with(None, 0).unwrap()).collect();
        for &unit in &units[..2] {
            // SAFETY: gives up a chunk allocated above.
            unsafe { Inner::free_with(handle.as_ptr(), Some(&caches[0]), 0, unit) };
        }
        // Loom runs this thread first: the other has to begin to wait in the midst of it.
        let other = {
            let inner = Sendable(handle.as_ptr());
            thread::spawn(move || {
                let inner = inner;
                // SAFETY: the pool's handle outlives this thread, which is joined before it is dropped.
                let pool = unsafe { inner.0.as_ref() };
                let Answer::Later(ticket) =
                    pool.alloc_or_wait(None, 1, Waker::noop(), &mut Afterwards::default())
                else {
                    panic!("no slab is whole");
                };
                let unit = pool.alloc_with(None, 0).unwrap();
                assert_eq!(pool.cancel(&Turn::new(1, ticket)), None);
                unit
            })
        };
        let unit = pool.alloc_with(Some(&caches[1]), 0).unwrap();
        assert_ne!(unit, other.join().unwrap());
    });
}

/// Two chunks are free, and while one thread has at most one more than before, another wants one: it gets it,
/// wherever the free ones are on their way to.
#[test]
fn model_a_chunk_that_moves_is_not_overlooked() {
    model(Some(BOUND), || {
        let handle = pool();
        let pool = handle.inner();
        let cache = register(pool);
        let units: Vec<u32> = (0..8).map(|_| pool.alloc_with(None, 0).unwrap()).collect();
        let free = |cache, unit| {
            // SAFETY: gives up a chunk allocated above.
            unsafe { Inner::free_with(handle.as_ptr(), cache, 0, unit) };
        };
        // Together they are a batch.
        free(None, units[0]);
        free(None, units[1]);
        let other = {
            let inner = Sendable(handle.as_ptr());
            thread::spawn(move || {
                let inner = inner;
                // SAFETY: the pool's handle outlives this thread, which is joined before it is dropped.
                unsafe { inner.0.as_ref() }.alloc_with(None, 0).unwrap()
            })
        };
        let first = pool.alloc_with(Some(&cache), 0).unwrap();
        free(Some(&cache), units[2]);
        let second = pool.alloc_with(Some(&cache), 0).unwrap();
        let mut held = [first, second, other.join().unwrap()];
        held.sort_unstable();
        assert_eq!(held, units[..3], "each chunk once");
    });
}

/// As before, but a whole batch moves: to the depot, and back when the other has emptied all magazines.
#[test]
fn model_a_batch_that_moves_is_not_overlooked() {
    model(Some(BOUND), || {
        let handle = pool();
        let pool = handle.inner();
        let cache = register(pool);
        let units: Vec<u32> = (0..8).map(|_| pool.alloc_with(None, 0).unwrap()).collect();
        // They fill the magazine.
        for &unit in &units[..3] {
            // SAFETY: gives up a chunk allocated above.
            unsafe { Inner::free_with(handle.as_ptr(), Some(&cache), 0, unit) };
        }
        let other = {
            let (inner, unit) = (Sendable(handle.as_ptr()), units[3]);
            thread::spawn(move || {
                let inner = inner;
                // SAFETY: gives up a chunk allocated above.
                unsafe { Inner::free_with(inner.0, Some(&cache), 0, unit) };
                // SAFETY: the pool's handle outlives this thread, which is joined before it is dropped.
                let pool = unsafe { inner.0.as_ref() };
                [(); 3].map(|()| pool.alloc_with(Some(&cache), 0).unwrap())
            })
        };
        let mut held = vec![pool.alloc_with(None, 0).unwrap()];
        held.extend(other.join().unwrap());
        held.sort_unstable();
        assert_eq!(held, units[..4], "each chunk once");
    });
}

/// The last two free chunks of a class that are not in their slabs are a batch, and lie in different slabs. While
/// one thread takes one of them, so that one slab or the other is free all the time, another needs a slab.
#[test]
fn model_a_free_slab_whose_chunk_moves_is_not_overlooked() {
    model(Some(BOUND), || {
        let sizes = SizeClasses::explicit(&[512, 1024]).unwrap();
        let options = SlabPoolBuilder::default().max_memory(8 << 10);
        let handle = Inner::open(&options.size_classes(sizes)).unwrap();
        let pool = handle.inner();
        let cache = register(pool);
        let mut units: Vec<u32> = (0..16).map(|_| pool.alloc_with(None, 0).unwrap()).collect();
        let batch = [units.pop().unwrap(), units.remove(0)];
        let free = |unit| {
            // SAFETY: gives up a chunk allocated above.
            unsafe { Inner::free_with(handle.as_ptr(), None, 0, unit) };
        };
        units.into_iter().for_each(free);
        pool.sweep(&mut pool.slabs.lock(), &mut Collected::default());
        batch.into_iter().for_each(free);
        let other = {
            let inner = Sendable(handle.as_ptr());
            thread::spawn(move || {
                let inner = inner;
                // SAFETY: the pool's handle outlives this thread, which is joined before it is dropped.
                unsafe { inner.0.as_ref() }.alloc_with(None, 1).unwrap()
            })
        };
        pool.alloc_with(Some(&cache), 0).unwrap();
        other.join().unwrap();
    });
}

/// Sets a flag; a thread that waits for it in vain never ends, which loom reports.
#[derive(Default)]
pub(crate) struct Flag(loom::sync::atomic::AtomicBool);

impl Flag {
    pub(crate) fn wait(&self) {
        while !self.0.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Trap: lost wake-up. The pool is full. One thread waits for a chunk while two others free one
/// each, through a magazine and without: the waiter gets one and the other can be allocated.
#[test]
fn model_wait_is_served_by_whoever_frees() {
    model(Some(2), || {
        let handle = pool();
        let pool = handle.inner();
        let units: Vec<u32> = (0..8).map(|_| pool.alloc_with(None, 0).unwrap()).collect();
        let frees: Vec<_> = [(Some(register(pool)), units[0]), (None, units[7])]
            .into_iter()
            .map(|(cache, unit)| {
                let inner = Sendable(handle.as_ptr());
                thread::spawn(move || {
                    let inner = inner;
                    // SAFETY: gives up a chunk allocated above.
                    unsafe { Inner::free_with(inner.0, cache.as_deref(), 0, unit) };
                })
            })
            .collect();
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(flag.clone());
        let first = match pool.alloc_or_wait(None, 0, &waker, &mut Afterwards::default()) {
            Answer::Now(result) => result.unwrap(),
            Answer::Later(ticket) => {
                flag.wait();
                let grant = pool.redeem(&Turn::new(0, ticket), &waker, &mut Afterwards::default());
                grant.expect("woken for a reason").unwrap()
            }
        };
        for free in frees {
            free.join().unwrap();
        }
        let second = pool.alloc_with(None, 0).unwrap();
        assert_ne!(first, second);
        assert!(pool.alloc_with(None, 0).is_err());
    });
}

/// Trap: wake-up of a cancelled waiter. Two wait, one chunk is freed, and the first waiter gives up
/// meanwhile: the second gets it.
#[test]
fn model_wait_that_is_given_up_passes_on() {
    model(Some(2), || {
        let handle = pool();
        let pool = handle.inner();
        let units: Vec<u32> = (0..8).map(|_| pool.alloc_with(None, 0).unwrap()).collect();
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(flag.clone());
        let Answer::Later(first) =
            pool.alloc_or_wait(None, 0, Waker::noop(), &mut Afterwards::default())
        else {
            panic!("the pool is full");
        };
        let Answer::Later(second) = pool.alloc_or_wait(None, 0, &waker, &mut Afterwards::default())
        else {
            panic!("the pool is full");
        };
        let free = |unit| {
            let inner = Sendable(handle.as_ptr());
            move || {
                let inner = inner;
                // SAFETY: gives up a chunk allocated above.
                unsafe { Inner::free_with(inner.0, None, 0, unit) };
            }
        };
        let freeing = thread::spawn(free(units[0]));
        if let Some(granted) = pool.cancel(&Turn::new(0, first)) {
            free(granted)();
        }
        flag.wait();
        assert_eq!(
            pool.redeem(&Turn::new(0, second), &waker, &mut Afterwards::default()),
            Some(Ok(units[0]))
        );
        freeing.join().unwrap();
    });
}

/// A pointer to a pool that the model keeps alive as its comments say.
pub(crate) struct Sendable(pub(crate) NonNull<Inner>);
// SAFETY: `Inner` is `Send + Sync`.
unsafe impl Send for Sendable {}
