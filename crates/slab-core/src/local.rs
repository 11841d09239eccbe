//! Which magazines the current thread has in which pool.
//!
//! `CURRENT` is what the fast path reads: a small direct-mapped table in a `const` thread-local
//! without a destructor, so that reading it is one access relative to the thread pointer.
//! `OWNED` holds all caches of the thread and has the destructor; it is touched when a thread
//! first meets a pool, when two of its pools collide in `CURRENT`, and at thread exit.
//!
//! Pools are named by an id that is never used again, so an entry that outlives its pool never
//! matches another one.

use crate::inner::Handle;
use crate::magazine::ThreadCache;
use core::cell::{Cell, RefCell};
use core::ptr::null;
use std::sync::{Arc, Weak};

/// Pools that a thread can use in turn without meeting the slow path, if their ids differ modulo
/// this number; a power of two.
const ENTRIES: usize = 8;

/// A pool's name for the threads that use it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolId {
    /// Unique in the process for ever; 0 is never a pool's.
    unique: u64,
    /// Its place in `CURRENT`.
    entry: usize,
}

impl PoolId {
    pub(crate) fn next() -> Self {
        // Plain std: loom models have no global state.
        static NEXT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(1);
        let unique = NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        Self {
            unique,
            entry: unique as usize % ENTRIES,
        }
    }

    #[inline(always)]
    fn entry(self, table: &[Entry; ENTRIES]) -> &Entry {
        debug_assert!(self.entry < ENTRIES);
        // SAFETY: `next` took it modulo the table's length.
        unsafe { table.get_unchecked(self.entry) }
    }
}

const NO_POOL: u64 = 0;

struct Entry {
    pool: Cell<u64>,
    cache: Cell<*const ThreadCache>,
}

struct Owned {
    pool: PoolId,
    home: Weak<Handle>,
    cache: Arc<ThreadCache>,
}

/// Flushes and gives back the caches of a thread that ends.
struct OwnedList(RefCell<Vec<Owned>>);

thread_local! {
    static CURRENT: [Entry; ENTRIES] = const {
        [const { Entry { pool: Cell::new(NO_POOL), cache: Cell::new(null()) } }; ENTRIES]
    };
    static OWNED: OwnedList = const { OwnedList(RefCell::new(Vec::new())) };
}

/// Runs `f` on this thread's cache in the pool, if the fast table has it.
#[inline(always)]
pub(crate) fn with_current<R>(
    pool: PoolId,
    f: impl FnOnce(&ThreadCache) -> Option<R>,
) -> Option<R> {
    CURRENT.with(|table| {
        let entry = pool.entry(table);
        if entry.pool.get() != pool.unique {
            return None;
        }
        // SAFETY: an entry with a pool's id points to a cache whose `Arc` lies in `OWNED`; before
        // that `Arc` goes, the entry is cleared, on this same thread.
        let cache = unsafe { &*entry.cache.get() };
        f(cache)
    })
}

/// This thread's cache in the pool, made by `register` if there is none yet. `None` while the
/// thread's thread-locals are being destroyed, or if `register` gives none.
pub(crate) fn attach(
    pool: PoolId,
    home: &Weak<Handle>,
    register: impl FnOnce() -> Option<Arc<ThreadCache>>,
) -> Option<Arc<ThreadCache>> {
    OWNED
        .try_with(|owned| {
            let mut list = owned.0.try_borrow_mut().ok()?;
            let cache = match list.iter().find(|known| known.pool.unique == pool.unique) {
                Some(known) => Arc::clone(&known.cache),
                None => {
                    forget_closed_pools(&mut list);
                    let cache = register()?;
                    list.push(Owned {
                        pool,
                        home: Weak::clone(home),
                        cache: Arc::clone(&cache),
                    });
                    cache
                }
            };
            CURRENT.with(|table| {
                let entry = pool.entry(table);
                entry.pool.set(pool.unique);
                entry.cache.set(Arc::as_ptr(&cache));
            });
            Some(cache)
        })
        .ok()
        .flatten()
}

/// Keeps the list as short as the number of living pools.
fn forget_closed_pools(list: &mut Vec<Owned>) {
    list.retain(|known| {
        let alive = known.home.strong_count() > 0;
        if !alive {
            clear_entry(known.pool);
        }
        alive
    });
}

fn clear_entry(pool: PoolId) {
    CURRENT.with(|table| {
        let entry = pool.entry(table);
        if entry.pool.get() == pool.unique {
            entry.pool.set(NO_POOL);
            entry.cache.set(null());
        }
    });
}

impl Drop for OwnedList {
    fn drop(&mut self) {
        for owned in self.0.get_mut().drain(..) {
            // From here on the thread frees into the pool without a cache, also from destructors
            // of other thread-locals that run later: `attach` gives `None` by now.
            clear_entry(owned.pool);
            // A pool whose last handle is gone has taken what was cached here already.
            if let Some(handle) = owned.home.upgrade() {
                handle.inner().detach(&owned.cache);
            }
        }
    }
}
