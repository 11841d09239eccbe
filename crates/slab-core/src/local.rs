//! Which magazines the current thread has in which pool.
//!
//! `CURRENT` is what the fast path reads: a table of pointers to magazines in a `const` thread-local without
//! a destructor, so that reading it is one access relative to the thread pointer. It is indexed by the
//! classes' [numbers](crate::directory).
//! `OWNED` holds all caches of the thread and has the destructor; it is touched when a thread
//! first uses a pool, when magazine and depot have nothing, and at thread exit.
//!
//! When a pool has ended, its numbers go to other pools, and threads may still have its magazines there. That
//! is harmless, because a pool that closes raises the gates of all its magazines for ever, so the stale
//! magazine refuses. (It closes before its numbers go to another, and whoever has a handle or a chunk of
//! that other pool got it later.) The slow paths begin with the same look-up; if it gives nothing they go to
//! `OWNED`, where pools are identified by an id that is never used again, and put the right magazines into
//! `CURRENT`. Classes that share their number are always looked for in `OWNED`.

use crate::directory::NUMBERS;
use crate::inner::{Handle, Inner};
use crate::magazine::Magazine;
use crate::place::{ENTRY_BYTES, Place};
use crate::sync::{thread_local, with_thread_local};
use crate::thread_cache::ThreadCache;
use core::cell::{Cell, RefCell};
use core::ptr::null;
use std::sync::{Arc, Weak};
use std::vec::Vec;

type Entry = Cell<*const Magazine>;

const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);

#[expect(
    clippy::declare_interior_mutable_const,
    reason = "a value to begin with"
)]
const EMPTY: Entry = Cell::new(null());

struct Owned {
    id: u64,
    home: Weak<Handle>,
    cache: Arc<ThreadCache>,
}

/// Flushes and gives back the caches of a thread that ends.
struct OwnedList(RefCell<Vec<Owned>>);

thread_local! {
    static CURRENT: [Entry; NUMBERS] = const {
        [EMPTY; NUMBERS]
    };
    static OWNED: OwnedList = const { OwnedList(RefCell::new(Vec::new())) };
}

/// The entry of a class; the first one, which is empty, of none.
#[inline(always)]
fn entry(table: &[Entry; NUMBERS], place: Option<Place>) -> &Entry {
    // SAFETY: the offset of a number's entry, and numbers are below `NUMBERS`.
    let entry = unsafe { table.as_ptr().byte_add(Place::entry_offset(place)) };
    // SAFETY: an entry of `table`, which is borrowed as long.
    unsafe { &*entry }
}

/// The fast table.
#[inline(always)]
fn current<R>(f: impl FnOnce(&[Entry; NUMBERS]) -> R) -> R {
    with_thread_local(&CURRENT, || [EMPTY; NUMBERS], f)
}

/// Runs `f` on this thread's magazine of the class, if the fast table has it. Never without a class.
#[inline(always)]
pub(crate) fn with_magazine<R>(
    place: Option<Place>,
    f: impl FnOnce(&Magazine) -> Option<R>,
) -> Option<R> {
    current(|table| {
        let magazine = entry(table, place).get();
        if magazine.is_null() {
            return None;
        }
        // SAFETY: a magazine of a cache whose `Arc` lies in `OWNED`; before that `Arc` goes, the entry is
        // cleared, on this same thread.
        f(unsafe { &*magazine })
    })
}

/// As [`with_magazine`], for the slow paths: also finds the magazine of a class that shares its number. `f` runs no
/// foreign code. The pool is known by its id: when `f` gives up a chunk, the pool may be gone before this returns,
/// but a reference argument would have to stay valid until then.
pub(crate) fn with_owned_magazine<R>(
    pool_id: u64,
    place: Place,
    f: impl FnOnce(&Magazine) -> Option<R>,
) -> Option<R> {
    if !place.shares_number() {
        return with_magazine(Some(place), f);
    }
    let run = |owned: &OwnedList| {
        let mut list = owned.0.try_borrow_mut().ok()?;
        let found = list.iter().position(|known| known.id == pool_id)?;
        // To the front: it is probably the next to be looked for.
        list.swap(0, found);
        f(list[0].cache.magazine(place.class()))
    };
    OWNED.try_with(run).ok().flatten()
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
                        id: pool.id,
                        home: Weak::clone(home),
                        cache: Arc::clone(&cache),
                    });
                    cache
                }
            };
            current(|table| {
                for (class, magazine) in (0..).zip(cache.magazines()) {
                    let place = pool.classes.place(class);
                    if !place.shares_number() {
                        entry(table, Some(place)).set(magazine);
                    }
                }
            });
            Some(cache)
        })
        .ok()
        .flatten()
}

/// Is the cache surely not this thread's? `false` while the thread's list is in use or gone: then nobody knows.
#[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
pub(crate) fn is_known_to_be_anothers(cache: &Arc<ThreadCache>) -> bool {
    let is_in = |list: &[Owned]| list.iter().any(|known| Arc::ptr_eq(&known.cache, cache));
    let look = |owned: &OwnedList| owned.0.try_borrow().is_ok_and(|list| !is_in(&list));
    OWNED.try_with(look).unwrap_or(false)
}

/// Keeps the list as short as the number of living pools.
fn forget_closed_pools(list: &mut Vec<Owned>) {
    list.retain(|known| {
        let alive = known.home.strong_count() > 0;
        if !alive {
            clear_entries(&known.cache);
        }
        alive
    });
}

/// Another pool's magazines may be where the cache's once were; those stay.
fn clear_entries(cache: &ThreadCache) {
    let magazines = cache.magazines().as_ptr_range();
    current(|table| {
        for entry in table {
            if magazines.contains(&entry.get()) {
                entry.set(null());
            }
        }
    });
}

impl Drop for OwnedList {
    fn drop(&mut self) {
        for owned in self.0.get_mut().drain(..) {
            // From here on the thread frees into the pool without a cache, also from destructors
            // of other thread-locals that run later: `attach` gives `None` by now.
            clear_entries(&owned.cache);
            // A pool whose last handle is gone has already counted what was cached here.
            if let Some(handle) = owned.home.upgrade() {
                handle.inner().detach(&owned.cache);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{OWNED, current, with_owned_magazine};
    use crate::{SizeClasses, SlabPool};
    use core::mem::ManuallyDrop;

    /// What `with_magazine` relies on.
    fn assert_entries_lead_to_owned_caches() {
        let assert_all = |list: &[super::Owned]| {
            current(|table| {
                assert!(table[0].get().is_null());
                for entry in table.iter().filter(|entry| !entry.get().is_null()) {
                    let in_cache = |known: &super::Owned| {
                        let magazines = known.cache.magazines().as_ptr_range();
                        magazines.contains(&entry.get())
                    };
                    assert!(list.iter().any(in_cache), "{entry:?}");
                }
            });
        };
        OWNED.with(|owned| assert_all(&owned.0.borrow()));
    }

    /// A cache takes 512 bytes a class, and a thread may meet any number of pools in its life.
    #[test]
    fn threads_drop_caches_of_closed_pools() {
        let open_with = |classes| {
            let builder = SlabPool::builder().size_classes(classes);
            let pool = builder.max_memory(1 << 20).build().unwrap();
            drop(pool.try_alloc(1).unwrap());
            pool
        };
        let open = || open_with(SizeClasses::network());
        let owned = || OWNED.with(|owned| owned.0.borrow().len());
        let before = owned();
        let living = open();
        // Miri takes seconds for each.
        for _ in 0..if cfg!(miri) { 2 } else { 10 } {
            drop(open());
            assert!(owned() <= before + 2, "{}", owned());
            // Has fewer entries, so it leaves others as the pool before left them.
            drop(open_with(SizeClasses::explicit(&[64]).unwrap()));
            assert_entries_lead_to_owned_caches();
        }
        drop(living);
    }

    /// A chunk that is in a magazine keeps no pool alive: another thread may end the pool while the look-up in
    /// which it was freed returns. Only Miri sees a reference that lasts too long.
    #[test]
    fn pool_may_end_before_the_look_up_of_a_magazine_returns() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let chunk = ManuallyDrop::new(pool.try_alloc(1).unwrap());
        let (id, place) = (pool.inner().id, pool.inner().classes.place(0));
        let found = with_owned_magazine(id, place, |magazine| {
            let pushed = magazine.try_push(chunk.unit());
            drop(pool);
            Some(pushed)
        });
        assert_eq!(found, Some(true));
    }
}
