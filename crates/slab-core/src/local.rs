//! Which magazines the current thread has in which pool.
//!
//! `CURRENT` is what the fast path reads: a small direct-mapped table in a `const` thread-local
//! without a destructor, so that reading it is one access relative to the thread pointer.
//! `OWNED` holds all caches of the thread and has the destructor; it is touched when a thread
//! first uses a pool, when two of its pools collide in `CURRENT`, when magazine and depot have
//! nothing, and at thread exit.
//!
//! In `CURRENT` a pool is identified by its address. Another pool may lie there later, and the entry
//! then matches it. That is harmless, because a pool that closes raises the gates of all its magazines
//! for ever (also of those that no class uses: the other pool may have more classes), so the stale cache
//! refuses. The slow paths begin with the same look-up; if it gives nothing they go to `OWNED`, where
//! pools are identified by an id that is never used again, and put the right cache into `CURRENT`.

use crate::inner::{Handle, Inner};
use crate::sync::{thread_local, with_thread_local};
use crate::thread_cache::ThreadCache;
use core::cell::{Cell, RefCell};
use core::ptr::null;
use std::sync::{Arc, Weak};

/// The number of pools that a thread can use in turn without the slow path, if their addresses fall
/// into different entries; a power of two.
const ENTRIES: usize = 8;

/// Address bits below this do not distinguish pools, which are larger.
const ADDRESS_SHIFT: u32 = 10;
const ENTRY_SHIFT: u32 = size_of::<Entry>().trailing_zeros();

#[repr(C)]
struct Entry {
    pool: Cell<*const Inner>,
    cache: Cell<*const ThreadCache>,
}

#[expect(
    clippy::declare_interior_mutable_const,
    reason = "a value to begin with"
)]
const EMPTY: Entry = Entry {
    pool: Cell::new(null()),
    cache: Cell::new(null()),
};

struct Owned {
    pool: *const Inner,
    id: u64,
    home: Weak<Handle>,
    cache: Arc<ThreadCache>,
}

/// Flushes and gives back the caches of a thread that ends.
struct OwnedList(RefCell<Vec<Owned>>);

thread_local! {
    static CURRENT: [Entry; ENTRIES] = const {
        [EMPTY; ENTRIES]
    };
    static OWNED: OwnedList = const { OwnedList(RefCell::new(Vec::new())) };
}

const _: () = assert!(size_of::<Entry>().is_power_of_two() && ENTRIES.is_power_of_two());

#[inline(always)]
fn entry(table: &[Entry; ENTRIES], pool: *const Inner) -> &Entry {
    // The distance in bytes directly, by one shift and one mask; an index takes more instructions.
    const MASK: usize = (ENTRIES - 1) << ENTRY_SHIFT;
    let distance = (pool.addr() >> (ADDRESS_SHIFT - ENTRY_SHIFT)) & MASK;
    // SAFETY: an index below `ENTRIES` times the size of an entry, which is a power of two.
    let entry = unsafe { table.as_ptr().byte_add(distance) };
    // SAFETY: an entry of `table`, which is borrowed as long.
    unsafe { &*entry }
}

/// The fast table.
#[inline(always)]
fn current<R>(f: impl FnOnce(&[Entry; ENTRIES]) -> R) -> R {
    with_thread_local(&CURRENT, || [EMPTY; ENTRIES], f)
}

/// Runs `f` on this thread's cache in the pool, if the fast table has it.
#[inline(always)]
pub(crate) fn with_current<R>(
    pool: *const Inner,
    f: impl FnOnce(&ThreadCache) -> Option<R>,
) -> Option<R> {
    current(|table| {
        let entry = entry(table, pool);
        if entry.pool.get() != pool {
            return None;
        }
        // SAFETY: an entry with a pool's address points to a cache whose `Arc` lies in `OWNED`;
        // before that `Arc` goes, the entry is cleared, on this same thread.
        let cache = unsafe { &*entry.cache.get() };
        f(cache)
    })
}

/// This thread's cache in the pool, made by `register` if there is none yet. `None` while the
/// thread's thread-locals are being destroyed, or if `register` gives none.
pub(crate) fn attach(
    pool: &Inner,
    home: &Weak<Handle>,
    register: impl FnOnce() -> Option<Arc<ThreadCache>>,
) -> Option<Arc<ThreadCache>> {
    OWNED
        .try_with(|owned| {
            let mut list = owned.0.try_borrow_mut().ok()?;
            let cache = match list.iter().find(|known| known.id == pool.id) {
                Some(known) => Arc::clone(&known.cache),
                None => {
                    forget_closed_pools(&mut list);
                    let cache = register()?;
                    list.push(Owned {
                        pool,
                        id: pool.id,
                        home: Weak::clone(home),
                        cache: Arc::clone(&cache),
                    });
                    cache
                }
            };
            current(|table| {
                let entry = entry(table, pool);
                entry.pool.set(pool);
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

fn clear_entry(pool: *const Inner) {
    current(|table| {
        let entry = entry(table, pool);
        if entry.pool.get() == pool {
            entry.pool.set(null());
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
            // A pool whose last handle is gone has already counted what was cached here.
            if let Some(handle) = owned.home.upgrade() {
                handle.inner().detach(&owned.cache);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::OWNED;
    use crate::SlabPool;

    /// A cache takes 12 KiB, and a thread may meet any number of pools in its life.
    #[test]
    fn threads_drop_caches_of_closed_pools() {
        let open = || {
            let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
            drop(pool.try_alloc(1).unwrap());
            pool
        };
        let owned = || OWNED.with(|owned| owned.0.borrow().len());
        let before = owned();
        let living = open();
        for _ in 0..10 {
            drop(open());
            assert!(owned() <= before + 2, "{}", owned());
        }
        drop(living);
    }
}
