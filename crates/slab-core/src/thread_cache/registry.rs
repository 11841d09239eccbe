//! The threads that have caches in the pool: they register on first use, and give back what they hold
//! when they end. What they counted stays; a cache that stayed would have to be looked at by every snapshot
//! and every reclaim, for ever.

#[cfg(feature = "std")]
use crate::directory::is_shared;
use crate::pool::inner::Inner;
#[cfg(feature = "std")]
use crate::reclaim::SlabLayer;
#[cfg(feature = "std")]
use crate::sync::Ordering;
use crate::sync::Shared;
#[cfg(feature = "std")]
use crate::thread_cache::Rack;
use crate::thread_cache::ThreadCache;
#[cfg(feature = "std")]
use crate::thread_cache::guard::{PRESSURE, SCRUB};
use crate::thread_cache::local;
use crate::thread_cache::magazine::Magazine;
#[cfg(feature = "std")]
use crate::thread_cache::magazine::Tally;

/// The caches of a pool, one for each thread that has one.
#[cfg(feature = "std")]
pub(crate) type Registry = alloc::vec::Vec<Shared<ThreadCache>>;
/// None has one.
#[cfg(not(feature = "std"))]
pub(crate) type Registry = arrayvec::ArrayVec<Shared<ThreadCache>, 0>;

/// All magazines of a pool.
pub(crate) fn magazines(registry: &Registry) -> impl Iterator<Item = &Magazine> {
    registry.iter().flat_map(|cache| cache.magazines())
}

impl Inner {
    /// Do threads have magazines in this pool? If not, none has to be looked for.
    pub(crate) fn has_magazines(&self) -> bool {
        self.max_thread_caches != 0
    }

    pub(crate) fn attach(&self) -> Option<Shared<ThreadCache>> {
        if !self.has_magazines() {
            local::have_rack();
            return None;
        }
        local::attach(self)
    }

    /// A cache for the current thread, whose rack that is. The thread has none in the pool yet: it would be opened anew
    /// while others may be at it.
    #[cfg(feature = "std")]
    pub(crate) fn register(&self, rack: &Shared<Rack>) -> Option<Shared<ThreadCache>> {
        if self.no_cache_left.load(Ordering::Relaxed) {
            return None;
        }
        let mut layer = self.slabs.lock();
        let registry = &mut layer.registry;
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        if registry.len() == self.max_thread_caches {
            self.no_cache_left.store(true, Ordering::Relaxed);
            return None;
        }
        let taken = registry.iter().map(|cache| cache.lane);
        let lane = self.depot.open_lane(taken);
        let mut gates = 0;
        if self.under_pressure.load(Ordering::Relaxed) {
            gates |= PRESSURE;
        }
        if self.attends() {
            gates |= SCRUB;
        }
        let first = self.classes.place(0).number();
        let cache = if is_shared(first) {
            ThreadCache::apart(&self.classes, lane, gates)?
        } else {
            ThreadCache::open(
                Shared::clone(rack),
                first.into(),
                &self.classes,
                lane,
                gates,
            )
        };
        let cache = Shared::new(cache);
        let is_new =
            |known: &Shared<ThreadCache>| !core::ptr::eq(known.magazine(0), cache.magazine(0));
        debug_assert!(registry.iter().all(is_new), "a thread has one");
        registry.push(Shared::clone(&cache));
        Some(cache)
    }

    /// The owner's way into its magazine on the slow paths, with no lock held; `false` if the
    /// magazine is shut.
    pub(crate) fn enter(&self, magazine: &Magazine) -> bool {
        if magazine.guard.enter_slow() {
            return true;
        }
        if !magazine.was_taken() {
            return false;
        }
        let gates = self.gates.lock();
        magazine.acknowledge();
        drop(gates);
        magazine.guard.enter_slow()
    }

    /// Takes the cache of a thread that ends off the registry; its counters stay part of the statistics.
    #[cfg(feature = "std")]
    pub(crate) fn detach(&self, cache: &Shared<ThreadCache>) {
        let mut layer = self.slabs.lock();
        let SlabLayer {
            slabs, registry, ..
        } = &mut *layer;
        self.flush(cache);
        self.take_over_counters(cache);
        let at = registry
            .iter()
            .position(|known| Shared::ptr_eq(known, cache));
        registry.swap_remove(at.expect("it was registered"));
        slabs.set_threads(registry.len());
        self.no_cache_left.store(false, Ordering::Relaxed);
    }

    /// The counters of an empty cache that is about to go, under the mutex of the slab layer.
    #[cfg(feature = "std")]
    pub(crate) fn take_over_counters(&self, cache: &ThreadCache) {
        for (magazine, counters) in cache.magazines().zip(&self.uncached) {
            let mut ended = Tally::default();
            magazine.add_to(&mut ended);
            counters.take_over(&ended);
        }
    }

    /// Moves all that lies in the current thread's magazines to the depot. The lock of the gates
    /// keeps reclaimers out, which would otherwise shut the magazines meanwhile.
    fn flush(&self, cache: &ThreadCache) {
        let _gates = self.gates.lock();
        for class in 0..self.classes.count() as u8 {
            let magazine = cache.magazine(class);
            magazine.acknowledge();
            if !magazine.guard.enter_slow() {
                continue; // Under pressure it is empty; a closed pool has counted it all.
            }
            magazine.take_bottom(usize::MAX, |units| self.depot.put(class, units));
            magazine.guard.leave_slow();
        }
    }

    pub(crate) fn flush_current(&self) {
        // A thread that has no cache needs none for this.
        if let Some(cache) = local::cache_in(self.id) {
            self.flush(&cache);
        }
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::SlabPool;
    use crate::directory::NUMBERS;
    use crate::sys::room::Room;
    use std::sync::Arc;

    /// It takes no part in the registry, whose mutex is held here: otherwise this would not end.
    #[test]
    #[cfg_attr(miri, ignore = "4096 caches")]
    fn thread_without_a_cache_does_not_look_for_one_in_vain() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let inner = pool.inner();
        let one_more =
            || inner.register(&Arc::new(Rack::new(&mut Room::system(), NUMBERS).unwrap()));
        let caches: Vec<_> = core::iter::from_fn(one_more).collect();
        assert_eq!(caches.len(), inner.max_thread_caches);
        let first = pool.try_alloc(64).unwrap();
        let layer = inner.slabs.lock();
        drop(first);
        drop(pool.try_alloc(64).unwrap());
        drop(layer);
        assert_eq!(pool.stats().classes()[0].in_magazines, 0);
        // One that comes free has a thread again.
        inner.detach(&caches[7]);
        drop(pool.try_alloc(64).unwrap());
        assert_eq!(pool.stats().thread_caches, caches.len());
        assert_ne!(pool.stats().classes()[0].in_magazines, 0);
    }

    /// Otherwise each snapshot, and each look for free chunks, takes as long as if all threads that there ever
    /// were at the same time were still there.
    #[test]
    fn threads_that_have_ended_leave_no_cache_behind() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let held = pool.try_alloc(64).unwrap();
        let threads = if cfg!(miri) { 3 } else { 50 };
        let before = pool.stats().classes()[0];
        let all_at_once = std::sync::Barrier::new(threads);
        std::thread::scope(|scope| {
            let use_pool = || {
                drop(pool.try_alloc(64).unwrap());
                all_at_once.wait();
            };
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(use_pool)).collect();
            // Until their thread-locals are gone, too.
            all.into_iter().for_each(|one| one.join().unwrap());
        });
        assert_eq!(pool.inner().slabs.lock().registry.len(), 1);
        let after = pool.stats().classes()[0];
        let counts = [after.allocs - before.allocs, after.frees - before.frees];
        assert_eq!(counts, [threads as u64; 2]);
        assert!(after.chunks_flushed >= threads as u64, "{after:?}");
        drop(held);
    }

    /// Threads of a runtime flush whenever they park, whether they use the pool or not.
    #[test]
    fn thread_that_only_flushes_has_no_cache() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        pool.flush_thread_cache();
        assert_eq!(pool.stats().thread_caches, 0);
        drop(pool.try_alloc(64).unwrap());
        assert_ne!(pool.stats().classes()[0].in_magazines, 0);
        pool.flush_thread_cache();
        let stats = pool.stats();
        assert_eq!(
            (stats.thread_caches, stats.classes()[0].in_magazines),
            (1, 0)
        );
    }
}
