//! Reclaim: how free memory gets from where it is to where it is needed.
//!
//! One slow path with three uses, one reclaimer at a time (it has the `slabs` mutex):
//!
//! - [`raid`](Inner::raid), when a class has run out: the chunks of that class that lie in the
//!   magazines of other threads, idle or not, go to the depot.
//! - [`sweep`](Inner::sweep), when that was not enough: *all* free chunks are collected, the
//!   magazines' by the guard and the depot's by one swap a class and lane, and stored in their slabs. The
//!   magazines are shut until the depot is taken, so that no chunk passes from the one to the other unseen. Slabs
//!   that have all their chunks back become unused and can serve any class. The class's next
//!   chunks come from the slabs again, in order of address, which also undoes what shuffled frees
//!   have done to locality.
//! - [`trim`](Inner::trim): a sweep, after which unused slabs and the whole pages among the stored
//!   chunks go back to the system, in pieces: threads that wait for the mutex get it in between.
//!
//! Meanwhile an allocation that finds the depot empty waits for the mutex, as does a thread that uses the pool for the
//! first time, and a free goes to the open batch. Nothing else stops.
//!
//! An allocation comes here at the cap, and also if the system refuses a slab below it: memory that is
//! free in the pool needs nothing from the system.
//!
//! A pool that is truly full comes here on every refused allocation, and a sweep empties the magazines
//! of all threads: it is made only if it may help, see
//! [`is_sweep_worth_while`](Inner::is_sweep_worth_while). So refused requests for large chunks mostly do not
//! disturb threads that allocate and free small ones. They do if some slab lacks fewer chunks than are free: where those
//! lie is known only after a sweep.
//!
//! Subscribers of `tracing` are foreign code, so they are told of all this when the mutex is free again:
//! [`Collected`].

use crate::class::MAX_CLASSES;
use crate::error::AllocError;
#[cfg(not(feature = "alloc"))]
use crate::no_events as tracing;
use crate::pool::inner::Inner;
use crate::slab::{Carved, Slabs};
use crate::sync::{MutexGuard, Ordering, heavy_barrier};
use crate::thread_cache::magazine::Magazine;
use crate::thread_cache::registry::Registry;
use crate::wait::Waiters;
use arrayvec::ArrayVec;
use core::ops::Range;

/// The slab table, the threads' caches and the waiters for memory, under one mutex.
#[derive(Debug)]
pub(crate) struct SlabLayer {
    pub(crate) slabs: Slabs,
    pub(crate) registry: Registry,
    pub(crate) waiters: Waiters,
}

impl SlabLayer {
    pub(crate) fn new(slabs: Slabs) -> Self {
        Self {
            slabs,
            registry: Registry::new(),
            waiters: Waiters::new(),
        }
    }
}

impl Inner {
    /// The last resort of an allocation that was `refused`, at the cap or by the system: a single
    /// chunk, or fresh ones in `out`. Asks the system for nothing.
    #[cold]
    pub(crate) fn alloc_by_reclaim(
        &self,
        layer: &mut MutexGuard<'_, SlabLayer>,
        class: u8,
        out: &mut [u32],
        refused: AllocError,
        collected: &mut Collected,
    ) -> Result<Reclaimed, AllocError> {
        // The thread that had the mutex before may have left something.
        if let Some(unit) = self.alloc_by_raid(layer, class, collected) {
            return Ok(Reclaimed::Single(unit));
        }
        let out = if self.under_pressure.load(Ordering::Relaxed) {
            // There is nothing left to collect, and no magazine takes more than the one that is wanted.
            &mut out[..1]
        } else {
            if !self.has_fixed_shares() && self.is_sweep_worth_while(layer, class) {
                self.sweep(layer, collected);
            }
            out
        };
        let slabs = &mut layer.slabs;
        let carved = slabs.carve_backed(&self.arena, &self.classes, class, out);
        carved.map(Reclaimed::Fresh).map_err(|_| refused)
    }

    /// A single chunk, if need be out of other threads' magazines.
    fn alloc_by_raid(
        &self,
        layer: &mut MutexGuard<'_, SlabLayer>,
        class: u8,
        collected: &mut Collected,
    ) -> Option<u32> {
        loop {
            let unit = self.alloc_single(class);
            if unit.is_some() || !self.raid(layer, class) {
                return unit;
            }
            collected.raided = Some(class);
        }
    }

    /// Moves the class's chunks from all magazines to the depot; `false` if there were none.
    fn raid(&self, layer: &mut MutexGuard<'_, SlabLayer>, class: u8) -> bool {
        let registry = &layer.registry;
        // What an owner has in its hand is waited for: most of a batch that it has just taken, for one chunk.
        if registry
            .iter()
            .all(|cache| cache.magazine(class).len_at_most() == 0)
        {
            return false;
        }
        let mut found = false;
        let _gates = self.gates.lock();
        shut_magazines(registry, &[class]);
        drain_magazines(registry, &[class], |class, units| {
            self.depot.put(class, units);
            found = true;
        });
        found
    }

    /// Brings every free chunk back to its slab: each that is free all the time, wherever it moves meanwhile.
    pub(crate) fn sweep(&self, layer: &mut SlabLayer, collected: &mut Collected) {
        // Nothing leaves a slab while the mutex is held.
        let has_chunks_outside = |&class: &u8| layer.slabs.class(class).out() > 0;
        let classes: ArrayVec<u8, MAX_CLASSES> =
            self.all_classes().filter(has_chunks_outside).collect();
        self.sweep_classes(layer, &classes, collected);
    }

    /// As [`sweep`](Self::sweep). All owners of these classes' magazines are outside once, and see what was written to the
    /// gates before.
    pub(crate) fn sweep_classes(
        &self,
        layer: &mut SlabLayer,
        classes: &[u8],
        collected: &mut Collected,
    ) {
        let SlabLayer {
            slabs, registry, ..
        } = layer;
        let before = slabs.in_classes();
        let mut store = |class, units: &[u32]| slabs.store(&self.arena, class, units);
        let mut stacks = ArrayVec::<_, MAX_CLASSES>::new();
        {
            // All magazines at once, and shut only for as long as it takes to empty them.
            let _gates = self.gates.lock();
            shut_magazines(registry, classes);
            // Before any is open again: its owner would take a whole batch for one chunk, behind this sweep's back.
            for &class in classes {
                stacks.push(self.depot.detach(class, |units| store(class, units)));
            }
            drain_magazines(registry, classes, &mut store);
        }
        for (&class, detached) in classes.iter().zip(stacks) {
            self.depot
                .take_detached(class, detached, |units| store(class, units));
            // Under pressure none may come in from here on.
            let shut = self.under_pressure.load(Ordering::Relaxed);
            self.take_singles(class, shut, |unit| store(class, &[unit]));
        }
        collected.swept = Some(before - slabs.in_classes());
    }

    pub(crate) fn all_classes(&self) -> Range<u8> {
        0..self.classes.count() as u8
    }

    /// Gives memory back to the system until at most `target` bytes are committed, or nothing
    /// more can be given; returns how many bytes went.
    pub(crate) fn trim(&self, target: usize) -> usize {
        if !self.arena.can_release() {
            return 0;
        }
        let mut layer = self.slabs.lock();
        let mut collected = Collected::default();
        self.sweep(&mut layer, &mut collected);
        let mut bytes = 0;
        let mut trim = layer.slabs.begin_trim(target);
        while let Some(piece) = layer
            .slabs
            .trim_piece(&self.arena, &self.classes, &mut trim)
        {
            bytes += piece;
            layer = self.slabs.hand_over(layer);
        }
        drop(layer);
        collected.report(self);
        tracing::debug!(pool = %self.name, bytes, "pool trimmed");
        bytes
    }

    /// May a sweep find a chunk of the class, or all chunks of some slab?
    ///
    /// A slab becomes whole only if as many chunks of its class are free outside as it lacks, and counting
    /// those disturbs nobody.
    fn is_sweep_worth_while(&self, layer: &mut SlabLayer, class: u8) -> bool {
        self.all_classes().any(|other| {
            // To ask each thread's magazines takes time.
            if layer.slabs.class(other).out() == 0 {
                return false;
            }
            let free = self.free_outside_slabs(&layer.registry, other);
            free > 0 && (other == class || layer.slabs.could_be_whole(other, free))
        })
    }

    /// Free chunks of the class in magazines and in the depot; rather too many than too few. (Too few if a batch
    /// moves to and fro while both are looked at.)
    fn free_outside_slabs(&self, registry: &Registry, class: u8) -> u64 {
        let in_depot = || self.depot.chunks(class) + self.singles_at_most(class);
        // Read twice, so that a batch that moves either way meanwhile is seen.
        let before = in_depot();
        let magazines = registry.iter().map(|cache| cache.magazine(class));
        let in_magazines: usize = magazines.map(Magazine::len_at_most).sum();
        before.max(in_depot()) + in_magazines as u64
    }
}

/// What a raid or a sweep did, to be [reported](Self::report) when no lock is held any more: a subscriber may panic, take
/// any lock, and use the pool.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Collected {
    /// The class for which magazines were raided.
    raided: Option<u8>,
    /// How many slabs a sweep made unused.
    swept: Option<usize>,
}

impl Collected {
    /// Calls foreign code. What the caller has in hand has to have an owner that outlives a panic.
    pub(crate) fn report(self, pool: &Inner) {
        if let Some(class) = self.raided {
            let chunk_bytes = pool.classes.geometry(class).bytes;
            tracing::debug!(pool = %pool.name, chunk_bytes, "magazines raided");
        }
        if let Some(slabs) = self.swept {
            tracing::debug!(pool = %pool.name, slabs, "pool swept");
        }
    }
}

/// What [`Inner::alloc_by_reclaim`] found.
pub(crate) enum Reclaimed {
    /// One chunk, already counted as allocated.
    Single(u32),
    /// Fresh chunks in the caller's buffer.
    Fresh(Carved),
}

/// Keeps the owners of some classes' magazines outside, until these are [drained](drain_magazines). The lock of the gates
/// keeps caches from being flushed meanwhile, that of the slab layer from being attached and detached.
fn shut_magazines(registry: &Registry, classes: &[u8]) {
    for (_, magazine) in magazines_of(registry, classes) {
        magazine.shut();
    }
    heavy_barrier();
    for (_, magazine) in magazines_of(registry, classes) {
        magazine.guard.wait_idle();
    }
}

/// Empties magazines that were shut, and opens them.
fn drain_magazines(registry: &Registry, classes: &[u8], mut sink: impl FnMut(u8, &[u32])) {
    for (class, magazine) in magazines_of(registry, classes) {
        magazine.take(|units| sink(class, units));
    }
}

fn magazines_of<'a>(
    registry: &'a Registry,
    classes: &'a [u8],
) -> impl Iterator<Item = (u8, &'a Magazine)> {
    registry.iter().flat_map(move |cache| {
        let classes = classes.iter();
        classes.map(|&class| (class, cache.magazine(class)))
    })
}
