//! Which magazines the current thread has in which pool.
//!
//! All that a thread may have lie in one [`Rack`], each where its class's [number](crate::directory) says. `RACK` is what
//! the fast path reads: where that begins, in a `const` thread-local without a destructor, so that reading it is one
//! access relative to the thread pointer. The fast path asks nothing else. Where a thread has no magazine, its rack has
//! zeros, which refuse as an empty magazine does that has no capacity; and a thread that has no rack, because it uses
//! no pool yet or ends, has one of zeros in common with all others, `NO_RACK`. (mimalloc's threads begin with an empty
//! heap that all have in common: Leijen, Zorn and de Moura, "Mimalloc: Free List Sharding in Action", 2019.)
//!
//! `OWNED` holds all caches of the thread, and its rack, and has the destructor; it is touched when a thread
//! first uses a pool, when magazine and depot have nothing, and at thread exit.
//!
//! When a pool has ended, its numbers go to other pools, and threads may still have its magazines there. That
//! is harmless, because a pool that closes raises the gates of all its magazines for ever, so the stale
//! magazine refuses. (It closes before its numbers go to another, and whoever has a handle or a chunk of
//! that other pool got it later.) The slow paths begin with the same look-up, and may acknowledge there that a stale
//! magazine was emptied, which is nobody's business any more; if it gives nothing they go to
//! `OWNED`, where pools are identified by an id that is never used again. A thread that meets the other pool there
//! opens its magazines in the place of the stale ones. Nobody else can have those: the registry of their pool ended
//! with it, and before it gave back its numbers.
//! Classes that share their number have their magazines elsewhere, and are always looked for in `OWNED`.

use crate::class::place::Place;
use crate::directory::{NUMBERS, is_shared};
use crate::pool::handle::Home;
use crate::pool::inner::Inner;
use crate::sync::{MODELLED, thread_local, with_thread_local};
use crate::sys::room::Room;
use crate::thread_cache::magazine::Magazine;
use crate::thread_cache::{Rack, ThreadCache};
use core::cell::{Cell, RefCell};
use std::sync::Arc;
use std::vec::Vec;

/// The rack of all threads that have none of their own. Zeros, so it takes no place in a program's file.
#[cfg(not(any(loom, shuttle)))]
static NO_RACK: [Magazine; NUMBERS] = {
    // SAFETY: zero is a value of a magazine: `Magazine: Zeroable`.
    unsafe { core::mem::zeroed() }
};

#[cfg(not(any(loom, shuttle)))]
const NONE: *const Magazine = (&raw const NO_RACK).cast();
/// Atomics of a model checker are no constants: there, the fast path does ask.
#[cfg(any(loom, shuttle))]
const NONE: *const Magazine = core::ptr::null();

struct Owned {
    id: u64,
    home: Home,
    cache: Arc<ThreadCache>,
}

struct List {
    rack: Option<Arc<Rack>>,
    /// There was no memory for one.
    rack_refused: bool,
    caches: Vec<Owned>,
}

/// Flushes and gives back the caches of a thread that ends.
struct OwnedList(RefCell<List>);

thread_local! {
    static RACK: Cell<*const Magazine> = const { Cell::new(NONE) };
    static OWNED: OwnedList = const {
        OwnedList(RefCell::new(List { rack: None, rack_refused: false, caches: Vec::new() }))
    };
}

#[inline(always)]
fn rack<R>(f: impl FnOnce(&Cell<*const Magazine>) -> R) -> R {
    with_thread_local(&RACK, || Cell::new(NONE), f)
}

/// Runs `f` on what lies in this thread's rack for the class: its magazine, or one that refuses. (Or not, if there is
/// none.)
#[inline(always)]
pub(crate) fn with_magazine<R>(
    place: Option<Place>,
    f: impl FnOnce(&Magazine) -> Option<R>,
) -> Option<R> {
    let rack = rack(Cell::get);
    if MODELLED && rack.is_null() {
        return None;
    }
    // SAFETY: the offset of a number's magazine, and a rack has one for each number.
    let magazine = unsafe { rack.byte_add(Place::offset_of::<Magazine>(place)) };
    let magazine = in_one_register(magazine);
    // SAFETY: in `NO_RACK`, or in the rack that lies in `OWNED`; before that goes, `RACK` no longer leads to it, on this
    // same thread.
    f(unsafe { &*magazine })
}

/// Has the compiler add up the address once, where it would give two registers to each load: some processors then forward
/// the owner's last store late (`ARCHITECTURE.md`, "The rack of magazines").
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read")]
fn in_one_register(magazine: *const Magazine) -> *const Magazine {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let magazine = {
        let sum;
        // SAFETY: no instruction at all.
        unsafe {
            core::arch::asm!("/* {0} */", inout(reg) magazine => sum, options(pure, nomem, nostack, preserves_flags));
        }
        sum
    };
    magazine
}

/// As [`with_magazine`], for the slow paths: never a magazine of nobody's, but also that of a class that shares its
/// number. `f` runs no foreign code. The pool is known by its id: when `f` gives up a chunk, the pool may be gone before
/// this returns, but a reference argument would have to stay valid until then.
pub(crate) fn with_owned_magazine<R>(
    pool_id: u64,
    place: Place,
    f: impl FnOnce(&Magazine) -> Option<R>,
) -> Option<R> {
    if !is_shared(place.number()) {
        return with_magazine(Some(place), |magazine| {
            if magazine.is_somebodys() {
                f(magazine)
            } else {
                None
            }
        });
    }
    with_list(|list| {
        let found = list.caches.iter().position(|known| known.id == pool_id)?;
        // To the front: it is probably the next to be looked for.
        list.caches.swap(0, found);
        f(list.caches[0].cache.magazine(place.class()))
    })
}

/// `None` while the list is in use, and while the thread's thread-locals are being destroyed.
fn with_list<R>(f: impl FnOnce(&mut List) -> Option<R>) -> Option<R> {
    OWNED
        .try_with(|owned| f(&mut *owned.0.try_borrow_mut().ok()?))
        .ok()
        .flatten()
}

/// This thread's cache in the pool, if it has one.
pub(crate) fn cache_in(pool_id: u64) -> Option<Arc<ThreadCache>> {
    with_list(|list| {
        let known = list.caches.iter().find(|known| known.id == pool_id)?;
        Some(Arc::clone(&known.cache))
    })
}

/// This thread's cache in the pool, registered if there is none yet. `None` while the thread's thread-locals are being
/// destroyed, if the pool gives none, or if there is no memory for it.
pub(crate) fn attach(pool: &Inner) -> Option<Arc<ThreadCache>> {
    cache_in(pool.id).or_else(|| {
        // Until it has closed, the registry may have a cache of this thread that was forgotten below, and another
        // would be opened in the same place. As long as there are handles, none was.
        if pool.home.strong_count() == 0 {
            have_rack();
            return None;
        }
        with_list(|list| {
            // Keeps the list as short as the number of living pools.
            (list.caches).retain(|known| known.home.strong_count() > 0);
            let cache = pool.register(own_rack(list)?)?;
            list.caches.push(Owned {
                id: pool.id,
                home: Home::clone(&pool.home),
                cache: Arc::clone(&cache),
            });
            Some(cache)
        })
    })
}

/// For a thread that has no magazines in the pool at hand: as long as it has no rack, it says in one that it has in common
/// with other threads what it is about to do, and they wait for each other's cache lines. Asks the system once: it may
/// come here at each allocation and free.
pub(crate) fn have_rack() {
    if !MODELLED && rack(Cell::get) == NONE {
        with_list(|list| {
            if !list.rack_refused {
                list.rack_refused = own_rack(list).is_none();
            }
            Some(())
        });
    }
}

#[cold]
fn own_rack(list: &mut List) -> Option<&Arc<Rack>> {
    if list.rack.is_none() {
        let new = Arc::new(Rack::new(&mut Room::system(), NUMBERS).ok()?);
        rack(|rack| rack.set(new.first().as_ptr()));
        list.rack = Some(new);
    }
    list.rack.as_ref()
}

/// Is the cache surely not this thread's? `false` while the thread's list is in use or gone: then nobody knows. (Of a pool
/// without handles this thread may have forgotten its own, and will not use it again.)
#[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
pub(crate) fn is_known_to_be_anothers(cache: &Arc<ThreadCache>) -> bool {
    let is_in = |list: &List| (list.caches.iter()).any(|known| Arc::ptr_eq(&known.cache, cache));
    with_list(|list| Some(!is_in(list))).unwrap_or(false)
}

impl Drop for OwnedList {
    fn drop(&mut self) {
        // From here on the thread frees into the pools without its caches, also from destructors
        // of other thread-locals that run later: `attach` gives `None` by now.
        rack(|rack| rack.set(NONE));
        for owned in self.0.get_mut().caches.drain(..) {
            // A pool whose last handle is gone counts what is cached here when it closes, if it has not yet.
            if let Some(handle) = owned.home.upgrade() {
                handle.inner().detach(&owned.cache);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{NONE, OWNED, with_owned_magazine};
    use crate::sync::Ordering;
    use crate::thread_cache::guard::SHUT;
    use crate::{Mode, SizeClasses, SlabPool};
    use core::cell::Cell;
    use core::mem::ManuallyDrop;
    use std::sync::Arc;

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
        let owned = || OWNED.with(|owned| owned.0.borrow().caches.len());
        let before = owned();
        let living = open();
        // Miri takes seconds for each.
        for _ in 0..if cfg!(miri) { 2 } else { 10 } {
            drop(open());
            assert!(owned() <= before + 2, "{}", owned());
            // Has fewer magazines, so it leaves others as the pool before left them.
            drop(open_with(SizeClasses::explicit(&[64]).unwrap()));
        }
        drop(living);
    }

    /// In the time between, the pool's registry has the cache, and the thread may have forgotten it.
    #[test]
    fn pool_that_has_no_handle_and_has_not_closed_gives_its_thread_no_second_cache() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let chunks = [(); 2].map(|()| pool.try_alloc(1).unwrap());
        let handle = pool.inner().home.upgrade().unwrap();
        drop(pool);
        // Its drop, which closes the pool, comes later.
        let last = Arc::try_unwrap(handle).unwrap();
        let other = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        drop(other.try_alloc(1).unwrap());
        let cache = Arc::clone(&last.inner().slabs.lock().registry[0]);
        // Or the thread's look into its rack would find its magazine.
        cache.magazine(0).guard.raise(SHUT);
        let [first, second] = chunks;
        drop(first);
        cache.magazine(0).guard.lower(SHUT);
        assert_eq!(last.inner().slabs.lock().registry.len(), 1);
        let inner = last.as_ptr();
        drop(last);
        // SAFETY: the pool lives as long as its chunk.
        let inner = unsafe { inner.as_ref() };
        assert_eq!(
            inner.slabs.lock().registry.len(),
            0,
            "a closed pool keeps no rack"
        );
        assert_eq!(inner.live.load(Ordering::Relaxed), 1);
        drop(second);
    }

    /// Otherwise threads that have no use for magazines wait for each other's stores to the magazines of zeros.
    #[test]
    fn threads_have_a_rack_of_their_own_from_the_first_use_of_a_pool_until_they_end() {
        const MODES: [Mode; 2] = [Mode::ThreadCached, Mode::DepotOnly];
        for mode in MODES {
            let pool = SlabPool::builder().mode(mode).max_memory(1 << 20);
            let pool = pool.build().unwrap();
            let (id, place) = (pool.inner().id, pool.inner().classes.place(0));
            let has_any = || with_owned_magazine(id, place, |_| Some(())).is_some();
            let look = || {
                let before = (super::rack(Cell::get) == NONE, has_any());
                drop(pool.try_alloc(1).unwrap());
                let after = (super::rack(Cell::get) == NONE, has_any());
                (before, after)
            };
            let (before, after) = std::thread::scope(|scope| scope.spawn(look).join().unwrap());
            assert_eq!(before, (true, false));
            assert_eq!(after, (false, mode == Mode::ThreadCached));
            // One that only frees, into a pool that gives no thread a cache any more.
            let chunk = pool.try_alloc(1).unwrap();
            drop(pool);
            let has_none_after_free = || {
                drop(chunk);
                super::rack(Cell::get) == NONE
            };
            let has_none = std::thread::scope(|scope| scope.spawn(has_none_after_free).join());
            assert!(!has_none.unwrap(), "{mode:?}");
        }
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
