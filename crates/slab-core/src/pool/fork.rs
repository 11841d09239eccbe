//! Keeps pools usable in the child of a `fork`, whatever other threads were doing to them.
//!
//! A fork copies the memory of all threads, but only one thread. What another thread held stays held in
//! the child for ever: a lock, or a guard whose owner is inside (snmalloc #735). So the forking thread
//! first takes every lock of every pool and waits until all owners are outside, and releases everything
//! in parent and child afterwards, as the C library does for its allocator. An owner may have come to a
//! shut gate meanwhile, and have been copied before it backed out: the child backs out in its stead. Then it
//! puts what lies in the magazines of threads that it does not have into the depot.
//!
//! Locks are taken in the order of `inner.rs`; that of the list of pools comes before all of them. Not
//! covered: a slot of a ring (`Mode::Ring`) on which another thread is between its two steps, and the
//! moment in which the very first pool is built, or a static slab opens. `SlabPool`'s documentation names them.

use crate::depot::Open;
#[cfg(feature = "leak-tracking")]
use crate::diagnostics::track::Record;
use crate::pool::inner::Inner;
use crate::reclaim::SlabLayer;
use crate::sync::{Mutex, MutexGuard, Ordering, barrier_is_asymmetric, heavy_barrier};
use crate::thread_cache::guard::SHUT;
use crate::thread_cache::local;
use crate::thread_cache::magazine::Magazine;
use crate::thread_cache::registry::magazines;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ptr::NonNull;
#[cfg(feature = "leak-tracking")]
use std::collections::BTreeMap;

/// Every pool from its start until before it is unmapped.
static POOLS: Mutex<Pools> = Mutex::new(Pools {
    watched: Vec::new(),
    has_handlers: false,
});

struct Pools {
    watched: Vec<Watched>,
    has_handlers: bool,
}

struct Watched(NonNull<Inner>);

// SAFETY: `Inner` is `Send + Sync`.
unsafe impl Send for Watched {}

std::thread_local! {
    static PAUSED: RefCell<Option<PausedPools>> = const { RefCell::new(None) };
}

/// From here on forks take the pool into account.
pub(crate) fn watch(pool: NonNull<Inner>) {
    let mut pools = POOLS.lock();
    if !pools.has_handlers {
        // Asks the system now and once: not after a fork, in two processes. Nor does a child find the clock's start
        // half made by another thread, which would be waited for in vain.
        barrier_is_asymmetric();
        crate::pool::episode::start_clock();
        // SAFETY: the handlers are functions of this library, which take no arguments and do not
        // unwind. If there is no memory for them, forks are what they are without this module.
        unsafe {
            libc::pthread_atfork(
                Some(before_fork),
                Some(after_fork_in_parent),
                Some(after_fork_in_child),
            )
        };
        pools.has_handlers = true;
    }
    pools.watched.push(Watched(pool));
}

/// The pool is about to go.
pub(crate) fn forget(pool: NonNull<Inner>) {
    let watched = &mut POOLS.lock().watched;
    if let Some(at) = watched.iter().position(|known| known.0 == pool) {
        watched.swap_remove(at);
    }
}

/// Runs in the thread that forks. If its thread-locals are gone already, nothing is held.
extern "C" fn before_fork() {
    let _ = PAUSED.try_with(|paused| paused.replace(Some(PausedPools::new())));
}

/// Runs in the same thread, after the fork.
extern "C" fn after_fork_in_parent() {
    let _ = PAUSED.try_with(RefCell::take);
}

/// Runs in the copy of that thread, the only thread of the child.
extern "C" fn after_fork_in_child() {
    let _ = PAUSED.try_with(|paused| {
        if let Some(mut pools) = paused.take() {
            pools.paused.iter().for_each(PausedPool::back_out_all);
            pools.paused.iter_mut().for_each(PausedPool::detach_others);
        }
    });
}

/// All pools, paused. The fields are dropped in this order.
struct PausedPools {
    paused: Vec<PausedPool>,
    _pools: MutexGuard<'static, Pools>,
}

impl PausedPools {
    fn new() -> Self {
        let pools = POOLS.lock();
        let paused = pools.watched.iter().map(|pool| {
            // SAFETY: a pool is unmapped only after `forget`, which waits for the lock; that is released
            // after everything made of this reference is dropped.
            PausedPool::new(unsafe { pool.0.as_ref() })
        });
        Self {
            paused: paused.collect(),
            _pools: pools,
        }
    }
}

/// One pool, whose locks are all held and whose owners are all outside. The fields are dropped in this
/// order.
struct PausedPool {
    #[cfg(feature = "leak-tracking")]
    _tracked: Option<MutexGuard<'static, BTreeMap<u32, Record>>>,
    open: Vec<MutexGuard<'static, Open>>,
    _gates: MutexGuard<'static, ()>,
    layer: MutexGuard<'static, SlabLayer>,
    pool: &'static Inner,
}

impl PausedPool {
    fn new(pool: &'static Inner) -> Self {
        let layer = pool.slabs.lock();
        let gates = pool.gates.lock();
        magazines(&layer.registry).for_each(Magazine::shut);
        heavy_barrier();
        magazines(&layer.registry).for_each(|magazine| magazine.guard.wait_idle());
        Self {
            #[cfg(feature = "leak-tracking")]
            _tracked: pool.tracker.as_ref().map(|tracker| tracker.live.lock()),
            open: pool.depot.open.iter().map(Mutex::lock).collect(),
            _gates: gates,
            layer,
            pool,
        }
    }

    /// For the child, which has no other thread that could be inside: an owner that had announced itself
    /// was refused, and has changed nothing.
    fn back_out_all(&self) {
        magazines(&self.layer.registry).for_each(|magazine| magazine.guard.back_out());
    }

    /// For the child: what lies in the caches of threads that it does not have goes to the depot, as if they had
    /// ended. (A closed pool has none.)
    fn detach_others(&mut self) {
        let SlabLayer {
            slabs, registry, ..
        } = &mut *self.layer;
        registry.retain(|cache| {
            if !local::is_known_to_be_anothers(cache) {
                return true;
            }
            for ((class, magazine), open) in (0..).zip(cache.magazines()).zip(&mut self.open) {
                magazine.acknowledge();
                magazine.take_bottom(usize::MAX, |units| {
                    for &unit in units {
                        self.pool.depot.put_in(class, open, unit);
                    }
                });
                self.pool.depot.note_open(class, open);
            }
            self.pool.take_over_counters(cache);
            false
        });
        slabs.set_threads(registry.len());
        self.pool.no_cache_left.store(false, Ordering::Relaxed);
    }
}

impl Drop for PausedPool {
    fn drop(&mut self) {
        magazines(&self.layer.registry).for_each(|magazine| magazine.guard.lower(SHUT));
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::SlabPool;

    #[test]
    fn fork_child_backs_out_of_guards_of_refused_owners() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        drop(pool.try_alloc(64).unwrap());
        let inner = NonNull::from(pool.inner());
        // SAFETY: the pool outlives `paused`.
        let paused = PausedPool::new(unsafe { inner.as_ref() });
        let cache = paused.layer.registry[0].clone();
        let guard = &cache.magazine(0).guard;
        // As its owner does before it looks at the gate.
        guard.enter_to_put();
        assert!(!guard.is_idle());
        paused.back_out_all();
        drop(paused);
        let is_idle = guard.is_idle();
        // For the end of this test, whatever comes out.
        guard.back_out();
        assert!(is_idle, "a sweep would wait for ever");
    }

    #[test]
    fn pausing_a_pool_waits_until_owners_are_outside_their_guards() {
        use core::sync::atomic::{AtomicBool, Ordering};
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        drop(pool.try_alloc(64).unwrap());
        let cache = pool.inner().slabs.lock().registry[0].clone();
        let guard = &cache.magazine(0).guard;
        let (left, is_paused) = (AtomicBool::new(false), AtomicBool::new(false));
        assert!(guard.enter_slow());
        std::thread::scope(|scope| {
            let forks = scope.spawn(|| {
                let inner = NonNull::from(pool.inner());
                // SAFETY: the pool outlives what is made of this.
                let _paused = PausedPool::new(unsafe { inner.as_ref() });
                is_paused.store(true, Ordering::SeqCst);
                assert!(left.load(Ordering::SeqCst), "an owner is inside");
            });
            while !guard.is_raised(SHUT) && !is_paused.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Gives a fork that does not wait some time to show it.
            (0..1000).for_each(|_| std::thread::yield_now());
            left.store(true, Ordering::SeqCst);
            guard.leave_slow();
            forks.join().unwrap();
        });
    }
}
