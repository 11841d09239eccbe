//! Where every chunk is: the sums behind the statistics and behind a pool's end.

use crate::pool::inner::Inner;
use crate::pool::stats::{ClassStats, PoolStats};
use crate::reclaim::SlabLayer;
use crate::singles::SinglesCount;
use crate::slab::ClassSlabs;
use crate::sync::Ordering;
use crate::thread_cache::magazine::Tally;
use crate::thread_cache::registry::Registry;
use arrayvec::ArrayVec;
use core::mem::MaybeUninit;

/// Writes a struct, each field as soon as its value is known. (Where it is built first, all values have to be kept
/// until the last is there, more than the processor has registers: a snapshot takes a fifth longer.)
macro_rules! write_in_place {
    ($to:ident, $type:ident { $($field:ident: $value:expr,)* }) => {{
        let to: *mut $type = $to.as_mut_ptr();
        $(
            let value = $value;
            // SAFETY: a field of what `to` points to, which the caller has for itself.
            unsafe { (&raw mut (*to).$field).write(value) };
        )*
        // Does not compile if a field is missing.
        let _ = |$($field),*| $type { $($field),* };
    }};
}

/// Chunks of a class that are not in its slabs.
struct ChunkCounts {
    in_use: u64,
    in_magazines: u64,
    in_depot: u64,
}

impl Inner {
    /// Adds up one class, of which so much is in its stack or ring.
    #[inline(always)]
    pub(crate) fn tally(&self, registry: &Registry, class: u8, singles: SinglesCount) -> Tally {
        let uncached = &self.uncached[usize::from(class)];
        let mut tally = Tally {
            frees: uncached.frees.load(Ordering::Relaxed) + singles.frees,
            from_depot: uncached.from_depot.load(Ordering::Relaxed) + singles.allocs,
            from_slab: uncached.from_slab.load(Ordering::Relaxed),
            frees_remote: uncached.ended_remote.load(Ordering::Relaxed),
            flushed: uncached.ended_flushed.load(Ordering::Relaxed),
            singles: singles.chunks,
            ..Tally::default()
        };
        for cache in registry {
            cache.magazine(class).add_to(&mut tally);
        }
        tally
    }

    /// Where the class's chunks are. Threads run on while this reads, so the parts are of
    /// slightly different moments; they are kept within what can be, and always add up. When the
    /// pool is quiet, they are exact.
    #[inline(always)]
    fn count_chunks(&self, owned: &ClassSlabs, class: u8, tally: &Tally) -> ChunkCounts {
        let out = owned.out();
        let in_depot = (self.depot.chunks(class) + tally.singles).min(out);
        let in_magazines = tally.cached.min(out - in_depot);
        ChunkCounts {
            in_use: out - in_depot - in_magazines,
            in_magazines,
            in_depot,
        }
    }

    /// Asserts that the parts of a quiet pool are exact as they are read: none has to be clamped for the
    /// remainder to be what callers hold of each class.
    #[cfg(all(test, not(any(loom, miri))))]
    pub(crate) fn assert_exact(&self, in_use: &[u64]) {
        let layer = self.slabs.lock();
        assert_eq!(in_use.len(), self.classes.count());
        for (class, &in_use) in (0..).zip(in_use) {
            let tally = self.tally(&layer.registry, class, self.count_singles(class));
            let in_depot = self.depot.chunks(class) + tally.singles;
            let out = layer.slabs.class(class).out();
            assert_eq!(
                tally.cached + in_depot + in_use,
                out,
                "class {class}: {tally:?}, {in_depot} in the depot"
            );
            assert!(tally.frees_remote <= tally.frees, "{tally:?}");
        }
    }

    /// Raises the class's high-water mark to what is in use now; returns it.
    pub(crate) fn raise_in_use_peak(
        &self,
        _slabs_locked: &SlabLayer,
        class: u8,
        in_use: u64,
    ) -> u64 {
        let mark = &self.uncached[usize::from(class)].in_use_peak;
        let before = mark.load(Ordering::Relaxed);
        if in_use > before {
            mark.store(in_use, Ordering::Relaxed);
        }
        in_use.max(before)
    }

    /// Splits the frees since the last snapshot between local and remote; returns how many are remote of
    /// all. What was sure to be remote once stays so, though the bound falls when a thread that has freed
    /// for others allocates; and what counted as local was, so that neither falls.
    #[inline(always)]
    fn frees_remote(&self, _slabs_locked: &SlabLayer, class: u8, tally: &Tally) -> u64 {
        let uncached = &self.uncached[usize::from(class)];
        let local = uncached.frees_local.load(Ordering::Relaxed);
        let before = uncached.frees_remote.load(Ordering::Relaxed);
        let remote = before.max(tally.frees_remote.min(tally.frees.saturating_sub(local)));
        uncached.frees_remote.store(remote, Ordering::Relaxed);
        let local = tally.frees.saturating_sub(remote);
        uncached.frees_local.store(local, Ordering::Relaxed);
        remote
    }

    /// Returns how many of the allocations magazines served. A batch on its way between a magazine and the depot counts
    /// as in use, and so as allocated: a later snapshot would tell less.
    #[inline(always)]
    fn allocs_from_magazine(
        &self,
        _slabs_locked: &SlabLayer,
        class: u8,
        allocs: u64,
        tally: &Tally,
    ) -> u64 {
        let mark = &self.uncached[usize::from(class)].from_magazine;
        let now = allocs.saturating_sub(tally.from_depot + tally.from_slab);
        let before = mark.load(Ordering::Relaxed);
        if now > before {
            mark.store(now, Ordering::Relaxed);
        }
        now.max(before)
    }

    pub(crate) fn update_in_use_peak(&self, class: u8) {
        let mut layer = self.slabs.lock();
        let layer = &mut *layer;
        layer.slabs.set_threads(layer.registry.len());
        let tally = self.tally(&layer.registry, class, self.count_singles(class));
        let counts = self.count_chunks(layer.slabs.class(class), class, &tally);
        self.raise_in_use_peak(layer, class, counts.in_use);
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let mut stats = MaybeUninit::uninit();
        self.fill_stats(&mut stats);
        // SAFETY: `fill_stats` begins with writing all of it.
        unsafe { stats.assume_init() }
    }

    // Writes in place, because the snapshot is 4 KiB long: one that a function builds and then returns is
    // copied on its way.
    #[inline(never)]
    fn fill_stats(&self, to: &mut MaybeUninit<PoolStats>) {
        let stats = to.write(PoolStats {
            max_memory: self.arena.bytes(),
            committed_bytes: 0,
            touched_bytes: 0,
            slab_bytes: self.arena.slab_bytes(),
            thread_caches: 0,
            slow_classes: if self.has_magazines() {
                self.classes.numbers().sharing()
            } else {
                0
            },
            too_large: self.too_large.load(Ordering::Relaxed),
            oversize_bytes: 0,
            oversize_allocs: 0,
            oversize_refused: 0,
            commit_failures: 0,
            classes: ArrayVec::new(),
            batch_bytes: if self.has_magazines() {
                self.classes.batch_bytes()
            } else {
                0
            },
        });
        #[cfg(feature = "alloc")]
        if let Some(oversize) = &self.oversize {
            stats.oversize_bytes = oversize.bytes();
            stats.oversize_allocs = oversize.allocs();
            stats.oversize_refused = oversize.refused();
        }
        let layer = self.slabs.lock();
        stats.committed_bytes = layer.slabs.committed() * self.arena.slab_bytes();
        stats.touched_bytes = layer.slabs.touched_bytes();
        stats.commit_failures = layer.slabs.commit_failures;
        stats.thread_caches = layer.registry.len();
        let count = self.classes.count();
        let rows = stats.classes.as_mut_ptr().cast::<MaybeUninit<ClassStats>>();
        // SAFETY: there are at most as many classes as it has room for.
        let rows = unsafe { core::slice::from_raw_parts_mut(rows, count) };
        // Asked once: to ask for each class takes a twentieth of a snapshot (measured on a Zen 4).
        if self.has_magazines() {
            for (class, row) in (0..).zip(rows) {
                self.write_class_stats::<true>(row, &layer, class);
            }
        } else {
            for (class, row) in (0..).zip(rows) {
                self.write_class_stats::<false>(row, &layer, class);
            }
        }
        // SAFETY: as many were written.
        unsafe { stats.classes.set_len(count) };
    }

    #[inline(always)]
    fn write_class_stats<const MAGAZINES: bool>(
        &self,
        to: &mut MaybeUninit<ClassStats>,
        layer: &SlabLayer,
        class: u8,
    ) {
        let geometry = self.classes.geometry(class);
        let owned = layer.slabs.class(class);
        let uncached = &self.uncached[usize::from(class)];
        let singles = if MAGAZINES {
            SinglesCount::default()
        } else {
            self.count_singles(class)
        };
        // Only computed when it is written, as above: known from here on, it makes a snapshot take 4 % longer.
        let committed = || owned.slabs * u64::from(geometry.chunks_per_slab);
        let tally = self.tally(&layer.registry, class, singles);
        let counts = self.count_chunks(owned, class, &tally);
        // Without magazines each one was counted where it was served. Derived, one whose free is under way
        // would be taken for two, the second from a magazine.
        let allocs = if MAGAZINES {
            tally.frees + counts.in_use
        } else {
            tally.from_depot + tally.from_slab
        };
        write_in_place!(
            to,
            ClassStats {
                frees: tally.frees,
                allocs_from_depot: tally.from_depot,
                allocs_from_slab: tally.from_slab,
                chunks_flushed: tally.flushed,
                frees_remote: self.frees_remote(layer, class, &tally),
                in_use: counts.in_use,
                in_magazines: counts.in_magazines,
                in_depot: counts.in_depot,
                in_use_peak: self.raise_in_use_peak(layer, class, counts.in_use),
                allocs: allocs,
                allocs_from_magazine: self.allocs_from_magazine(layer, class, allocs, &tally),
                chunk_bytes: geometry.bytes,
                committed_bytes: owned.slabs as usize * self.arena.slab_bytes(),
                committed_chunks: committed(),
                in_slabs: committed() - owned.out(),
                slab_commits: owned.commits,
                slab_rebalances: owned.rebalances,
                slab_trims: owned.trims,
                exhausted: uncached.exhausted.load(Ordering::Relaxed),
                waits: uncached.waits.load(Ordering::Relaxed),
                waiting: layer.waiters.waiting(class) as u64,
                waiters_refused: uncached.waiters_refused.load(Ordering::Relaxed),
            }
        );
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use crate::handle::chunk::Chunk;
    use crate::{Mode, SlabPool};
    use core::mem::ManuallyDrop;

    /// What only magazines serve is 0 where there are none, whatever else goes on.
    #[test]
    fn snapshot_within_a_free_shows_no_allocation_from_a_magazine() {
        let builder = SlabPool::builder().max_memory(1 << 20);
        let pool = builder.mode(Mode::Locked).build().unwrap();
        let inner = pool.inner();
        let unit = Chunk::unit(&ManuallyDrop::new(pool.try_alloc(64).unwrap()));
        let mut open = inner.depot.open[0].lock();
        inner.count_frees(0, 1);
        // As another thread sees a free that has been counted, and whose chunk is not in the batch yet.
        let class = pool.stats().classes[0];
        assert_eq!((class.frees, class.allocs), (1, 1));
        assert_eq!(class.allocs_from_magazine, 0);
        inner.depot.put_in(0, &mut open, unit);
        inner.depot.note_open(0, &open);
    }

    /// As Prometheus would take it for a restart.
    #[test]
    fn allocations_from_magazines_do_not_fall_after_a_batch_on_its_way_was_counted() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let chunks: Vec<_> = (0..200).map(|_| pool.try_alloc(64).unwrap()).collect();
        drop(chunks);
        let (inner, shown) = (pool.inner(), || {
            let class = pool.stats().classes[0];
            (class.in_use, class.allocs, class.allocs_from_magazine)
        });
        let (_, allocs, from_magazine) = shown();
        let mut during = None;
        let taken = inner.depot.pop_batch(0, 0, |units| {
            during = Some(shown());
            inner.depot.push_batch(0, 0, units);
        }) as u64;
        assert!(taken > 1);
        let more = from_magazine + taken;
        assert_eq!(during, Some((taken, allocs + taken, more)));
        assert_eq!(shown(), (0, allocs, more));
    }
}
