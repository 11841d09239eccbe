//! Magazines: a thread's stock of free chunks, one stack of chunk indices per size class
//! (Bonwick and Adams, "Magazines and Vmem", USENIX 2001).
//!
//! A magazine is an array of indices, not a list through the chunks: taking or returning a chunk
//! never touches the chunk's own memory. All words are atomics that only their owner writes, with
//! plain loads and stores, inside the [`Guard`]; others read the counters at any time and
//! the slots only after they have shut the owner out.
//!
//! Invariant, at any moment outside the guard:
//! `len <= capacity`, and `slots[..len]` are distinct free chunks of this class that are in no
//! other magazine, no batch and no caller's hand.

use crate::class::{BATCH_MAX, ClassTable, MAX_CLASSES};
use crate::guard::Guard;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const SLOTS: usize = 2 * BATCH_MAX;

/// Adds without a read-modify-write: there is one writer.
#[inline(always)]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

/// One class's stock and its counters; the words of the fast path share its first cache line.
///
/// There is no counter of allocations: a chunk that is in no slab, not in the depot and in no
/// magazine is in a caller's hand, so `allocations = frees + chunks in callers' hands`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Magazine {
    pub(crate) guard: Guard,
    len: AtomicU32,
    capacity: u32,
    /// On the allocating thread, on another.
    frees: [AtomicU64; 2],
    from_depot: AtomicU64,
    from_slab: AtomicU64,
    slots: [AtomicU32; SLOTS],
}

/// The counters of a magazine, or the sum of several.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) frees_local: u64,
    pub(crate) frees_remote: u64,
    pub(crate) from_depot: u64,
    pub(crate) from_slab: u64,
    pub(crate) cached: u64,
}

impl Tally {
    pub(crate) fn frees(&self) -> u64 {
        self.frees_local + self.frees_remote
    }
}

/// Where a refill came from, for the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Depot,
    Slab,
}

impl Magazine {
    fn new(capacity: u32) -> Self {
        debug_assert!(capacity as usize <= SLOTS);
        Self {
            guard: Guard::new(),
            len: AtomicU32::new(0),
            capacity,
            frees: [AtomicU64::new(0), AtomicU64::new(0)],
            from_depot: AtomicU64::new(0),
            from_slab: AtomicU64::new(0),
            slots: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> &AtomicU32 {
        debug_assert!(index < self.capacity);
        // SAFETY: every caller passes an index below `capacity`, which is at most `SLOTS`.
        unsafe { self.slots.get_unchecked(index as usize) }
    }

    /// Chunks inside; only a hint for whoever is not the owner.
    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// The allocation fast path: takes a chunk, unless the magazine is empty or shut.
    #[inline(always)]
    pub(crate) fn try_pop(&self) -> Option<u32> {
        if !self.guard.enter() {
            return None;
        }
        let unit = self.pop();
        self.guard.leave();
        unit
    }

    /// The free fast path: returns a chunk; `false` if the magazine is full or shut.
    #[inline(always)]
    pub(crate) fn try_push(&self, unit: u32, remote: bool) -> bool {
        if !self.guard.enter() {
            return false;
        }
        let pushed = self.push(unit, remote);
        self.guard.leave();
        pushed
    }

    /// Takes a chunk. Inside the guard only.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<u32> {
        let len = self.len.load(Ordering::Relaxed).checked_sub(1)?;
        let unit = self.slot(len).load(Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        Some(unit)
    }

    /// Returns a chunk; `false` if the magazine is full. Inside the guard only.
    #[inline(always)]
    pub(crate) fn push(&self, unit: u32, remote: bool) -> bool {
        let len = self.len.load(Ordering::Relaxed);
        if len >= self.capacity {
            return false;
        }
        self.slot(len).store(unit, Ordering::Relaxed);
        self.len.store(len + 1, Ordering::Relaxed);
        bump(&self.frees[usize::from(remote)], 1);
        true
    }

    /// Puts chunks on top that were not freed here, as many as fit; says how many did.
    pub(crate) fn refill(&self, units: &[u32]) -> usize {
        let len = self.len.load(Ordering::Relaxed);
        let fit = units.len().min((self.capacity - len) as usize);
        for (index, &unit) in (len..).zip(&units[..fit]) {
            self.slot(index).store(unit, Ordering::Relaxed);
        }
        self.len.store(len + fit as u32, Ordering::Relaxed);
        fit
    }

    /// Says which tier served the allocation that `pop` is about to answer.
    pub(crate) fn count_source(&self, source: Source) {
        match source {
            Source::Depot => bump(&self.from_depot, 1),
            Source::Slab => bump(&self.from_slab, 1),
        }
    }

    /// Takes chunks out from the bottom, where the longest unused ones lie, as many as `out`
    /// holds; says how many. The warm top stays.
    pub(crate) fn take_bottom(&self, out: &mut [u32]) -> usize {
        let len = self.len.load(Ordering::Relaxed);
        let taken = out.len().min(len as usize);
        for (index, unit) in (0..).zip(&mut out[..taken]) {
            *unit = self.slot(index).load(Ordering::Relaxed);
        }
        for index in taken as u32..len {
            let unit = self.slot(index).load(Ordering::Relaxed);
            self.slot(index - taken as u32)
                .store(unit, Ordering::Relaxed);
        }
        self.len.store(len - taken as u32, Ordering::Relaxed);
        taken
    }

    /// Adds this magazine's counters to `tally`.
    pub(crate) fn add_to(&self, tally: &mut Tally) {
        tally.frees_local += self.frees[0].load(Ordering::Relaxed);
        tally.frees_remote += self.frees[1].load(Ordering::Relaxed);
        tally.from_depot += self.from_depot.load(Ordering::Relaxed);
        tally.from_slab += self.from_slab.load(Ordering::Relaxed);
        tally.cached += u64::from(self.len());
    }
}

/// The magazines of one thread in one pool. Outlives both: held by the pool's registry and by the
/// thread.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ThreadCache {
    /// Above 0, unique in the pool among attached caches; 0 stands for "no cache".
    pub(crate) id: u16,
    magazines: [Magazine; MAX_CLASSES],
}

impl ThreadCache {
    pub(crate) fn new(id: u16, classes: &ClassTable) -> Self {
        Self {
            id,
            magazines: core::array::from_fn(|class| {
                let batch = if class < classes.count() {
                    classes.geometry(class as u8).batch
                } else {
                    0
                };
                Magazine::new(2 * batch)
            }),
        }
    }

    #[inline(always)]
    pub(crate) fn magazine(&self, class: u8) -> &Magazine {
        debug_assert!(usize::from(class) < MAX_CLASSES);
        // SAFETY: a class index comes from `ClassTable`, which has at most `MAX_CLASSES`.
        unsafe { self.magazines.get_unchecked(usize::from(class)) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::class::SizeClasses;

    fn cache() -> ThreadCache {
        ThreadCache::new(1, &ClassTable::new(SizeClasses::network(), 64 << 20))
    }

    #[test]
    fn hot_words_share_one_cache_line() {
        assert_eq!(core::mem::offset_of!(Magazine, guard), 0);
        assert!(core::mem::offset_of!(Magazine, slots) <= 64);
        assert_eq!(size_of::<Magazine>(), 512, "a class's offset is a shift");
        assert_eq!(align_of::<ThreadCache>(), 128);
        assert_eq!(core::mem::offset_of!(ThreadCache, magazines) % 64, 0);
    }

    #[test]
    fn bottom_leaves_first_and_the_top_stays_warm() {
        let cache = cache();
        let magazine = cache.magazine(0);
        for unit in 0..magazine.capacity {
            assert!(magazine.push(unit, false));
        }
        assert!(!magazine.push(99, false), "full");
        let mut out = [0; 10];
        assert_eq!(magazine.take_bottom(&mut out), 10);
        assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(magazine.pop(), Some(magazine.capacity - 1));
        let mut rest = [0; SLOTS];
        let left = magazine.capacity - 11;
        assert_eq!(magazine.take_bottom(&mut rest) as u32, left);
        assert_eq!(rest[0], 10);
        assert_eq!(magazine.take_bottom(&mut rest), 0);
    }

    #[test]
    fn refill_takes_what_fits() {
        let cache = cache();
        let magazine = cache.magazine(0);
        let units: Vec<u32> = (0..200).collect();
        assert_eq!(magazine.refill(&units), SLOTS);
        assert_eq!(magazine.refill(&units), 0);
        let mut tally = Tally::default();
        magazine.add_to(&mut tally);
        assert_eq!((tally.cached, tally.frees()), (SLOTS as u64, 0));
    }
}
