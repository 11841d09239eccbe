//! Slabs: which part of the arena serves which size class.
//!
//! A slab is either unused or cut into chunks of one class. Chunks are carved off in order, a
//! batch at a time, so a slab that was just taken costs nothing until its chunks are needed. All
//! of this happens under one mutex, far from the fast path: a thread comes here once per batch of
//! *new* chunks, never for chunks that were used before.
//!
//! Free chunks that a sweep has collected come back here, as bits of a map (`stored`). A slab whose free
//! bits number all its carved chunks serves nobody and becomes unused. Because what was stored stays
//! stored, a sweep costs time only for the chunks freed since the last one. Which pages of all these
//! may be in memory is noted by `touched`; how memory goes back to the
//! system is told in `trim`.
//!
//! Invariants, for every class `c`, whenever the mutex is free:
//! - `carved(c) - stored(c) = in use + in magazines + in depot`, all in chunks of class `c`
//! - `committed chunks(c) = slabs(c) * chunks_per_slab(c) >= carved(c) >= stored(c)`
//! - `sum over c of slabs(c) + unused = backed <= slabs of the arena`
//! - a slab has `free` bits set, `free < carved` unless it is being carved and empty, or classes
//!   have fixed shares

pub(crate) mod growth;
mod outside;
mod stored;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod touched;
mod trim;
mod unused;

use crate::arena::{Arena, CommitRefused};
use crate::class::geometry::ClassTable;
use crate::class::{CHUNK_ALIGN, MAX_CLASSES};
use crate::error::AllocError;
use crate::sync::Table;
use crate::sys::asan;
use crate::sys::room::Room;
use growth::Growth;
use outside::Outside;
use stored::StoredMap;
use touched::TouchedPages;
use unused::UnusedSlabs;

/// The slab serves no class.
const UNUSED: u8 = u8::MAX;
/// No slab is being carved for the class.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Slab {
    /// The class it serves, or [`UNUSED`].
    class: u8,
    /// The class it served last; [`UNUSED`] if none, or if its memory went back to the system.
    last_class: u8,
    /// Its memory was zero when it took its class.
    fresh: bool,
    /// Chunks handed out since it took its class.
    carved: u32,
    /// Of these, chunks that are stored here.
    free: u32,
    /// The pages of all that is stored here went back to the system.
    trimmed: bool,
    /// The rest of the slab, of which no chunk was carved since it took its class, or ever, may be in
    /// memory: the slab served before, or was backed ahead of use.
    uncarved_resident: bool,
}

/// Per class, in slabs or chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassSlabs {
    /// The slab that chunks are carved from.
    current: u32,
    pub(crate) slabs: u64,
    pub(crate) carved: u64,
    pub(crate) stored: u64,
    /// No slab of the class below this index has chunks stored.
    first_stored: u32,
    outside: Outside,
    /// How often chunks were carved since those in use were last added up.
    carves_since_peak: u32,
    pub(crate) commits: u64,
    /// Slabs that came from another class.
    pub(crate) rebalances: u64,
    /// Slabs of this class whose memory went back to the system.
    pub(crate) trims: u64,
}

#[derive(Debug)]
pub(crate) struct Slabs {
    table: Table<Slab>,
    /// Slabs below this index were backed by memory at some time and may be used at once.
    backed: usize,
    /// Slabs below `backed` that serve no class; those with memory of their own come last, so
    /// they are taken first.
    unused: UnusedSlabs,
    /// How many of `unused` have given their memory back.
    unused_released: usize,
    classes: [ClassSlabs; MAX_CLASSES],
    stored: StoredMap,
    touched: TouchedPages,
    pub(crate) commit_failures: u64,
    growth: Growth,
    /// Threads that have magazines, as last seen.
    threads: u32,
    /// The most slabs that a class takes, which it then keeps; see [`fix_shares`](Slabs::fix_shares).
    share: Option<u64>,
    /// Slabs that keep their class although all of their chunks are stored and their memory went back.
    kept_empty: usize,
}

impl Slab {
    /// Its chunks that are outside: in use, in magazines or in the depot.
    fn out(&self) -> u32 {
        self.carved - self.free
    }

    /// True only where classes have fixed shares: others give up a slab when all of its chunks are stored.
    fn is_kept_empty(&self) -> bool {
        self.trimmed && self.out() == 0
    }
}

impl ClassSlabs {
    /// Chunks that are outside the slabs: in use, in magazines or in the depot.
    pub(crate) fn out(&self) -> u64 {
        self.carved - self.stored
    }
}

/// What [`Slabs::carve`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carved {
    pub(crate) chunks: usize,
    /// A slab was newly taken for the class.
    pub(crate) new_slab: bool,
    /// The system gave memory for it just now.
    pub(crate) grown: bool,
    /// The chunks' memory is as it came from the system: zero.
    pub(crate) fresh: bool,
    /// It is time to add up the chunks in use.
    pub(crate) peak_due: bool,
}

impl Slabs {
    /// # Errors
    /// The system's error number, if it would not give memory for the slabs or for the map of free chunks.
    pub(crate) fn new(
        room: &mut Room,
        arena: &Arena,
        classes: usize,
        growth: Growth,
    ) -> Result<Self, i32> {
        let unused = Slab {
            class: UNUSED,
            last_class: UNUSED,
            fresh: false,
            carved: 0,
            free: 0,
            trimmed: false,
            uncarved_resident: false,
        };
        Ok(Self {
            stored: StoredMap::new(room, arena, classes)?,
            touched: TouchedPages::new(room, arena)?,
            table: Table::filled(room, arena.slabs(), |_| Ok(unused))?,
            backed: 0,
            unused: UnusedSlabs::new(room, arena.slabs())?,
            unused_released: 0,
            classes: [ClassSlabs {
                current: NONE,
                slabs: 0,
                carved: 0,
                stored: 0,
                first_stored: NONE,
                outside: Outside::NONE,
                carves_since_peak: 0,
                commits: 0,
                rebalances: 0,
                trims: 0,
            }; MAX_CLASSES],
            commit_failures: 0,
            growth,
            threads: 0,
            share: None,
            kept_empty: 0,
        })
    }

    /// From now on each class has an equal share of the slabs: it takes no more, and gives none
    /// back.
    pub(crate) fn fix_shares(&mut self, classes: usize) {
        self.share = Some((self.table.len() / classes) as u64);
    }

    /// Backs all slabs at once.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn back_all(&mut self, arena: &Arena) -> Result<(), i32> {
        let committed = arena.commit(0, self.table.len());
        committed.map_err(|refused| refused.errno)?;
        arena.populate()?;
        for (index, slab) in self.table.iter_mut().enumerate() {
            slab.uncarved_resident = true;
            let start = index * arena.slab_bytes();
            self.touched.add(&(start..start + arena.usable_bytes()));
        }
        self.backed = self.table.len();
        self.unused.extend((0..self.table.len() as u32).rev());
        Ok(())
    }

    pub(crate) fn class(&self, class: u8) -> &ClassSlabs {
        &self.classes[usize::from(class)]
    }

    /// Slabs that may hold memory, whatever they serve.
    pub(crate) fn committed(&self) -> usize {
        self.backed - self.unused_released
    }

    /// As [`committed`](Self::committed), without slabs that keep their class and gave their memory back.
    pub(crate) fn held(&self) -> usize {
        self.committed() - self.kept_empty
    }

    /// Bytes of the pages that chunks have left, or that were backed at the start, and that were not given back since.
    pub(crate) fn touched_bytes(&self) -> usize {
        self.touched.bytes()
    }

    /// Slabs that were ever made usable: those at the start of the arena.
    pub(crate) fn backed(&self) -> usize {
        self.backed
    }

    /// Slabs that serve a class.
    pub(crate) fn in_classes(&self) -> usize {
        self.backed - self.unused.len()
    }

    /// Fills `out` with chunks of the class: stored ones, low addresses first, or carved ones if none
    /// is stored; fewer if fewer are at hand, at least one. Takes a new slab only when those of the class
    /// have no chunk left.
    ///
    /// # Errors
    /// Every slab of the arena serves a class, or the system would not back the next one.
    pub(crate) fn carve(
        &mut self,
        arena: &Arena,
        classes: &ClassTable,
        class: u8,
        out: &mut [u32],
    ) -> Result<Carved, AllocError> {
        match self.carve_backed(arena, classes, class, out) {
            Err(AllocError::Exhausted { .. }) if !self.has_full_share(class) => {}
            done => return done,
        }
        self.grow(arena, classes.geometry(class).bytes)?;
        let carved = self.carve_backed(arena, classes, class, out)?;
        Ok(Carved {
            grown: true,
            ..carved
        })
    }

    /// As [`carve`](Self::carve), but only out of slabs that the system has backed already.
    ///
    /// # Errors
    /// [`AllocError::Exhausted`] if those have none.
    pub(crate) fn carve_backed(
        &mut self,
        arena: &Arena,
        classes: &ClassTable,
        class: u8,
        out: &mut [u32],
    ) -> Result<Carved, AllocError> {
        let chunk_bytes = classes.geometry(class).bytes;
        let chunks = self.take_stored(class, out);
        if chunks > 0 {
            self.touch(&out[..chunks], chunk_bytes);
            return Ok(Carved {
                chunks,
                new_slab: false,
                grown: false,
                fresh: false,
                peak_due: self.is_peak_due(class, false),
            });
        }
        let geometry = classes.geometry(class);
        let new_slab = self.classes[usize::from(class)].current == NONE;
        if new_slab {
            let unused = if self.has_full_share(class) {
                None
            } else {
                self.take_unused()
            };
            let slab = unused.ok_or(AllocError::Exhausted { chunk_bytes })?;
            // SAFETY: a slab of the arena lies in it.
            let at = unsafe { arena.base().add(slab * arena.slab_bytes()) };
            asan::poison(at, arena.slab_bytes());
            arena.set_class(slab, class);
            let last_class = self.table[slab].last_class;
            self.table[slab] = Slab {
                class,
                last_class: class,
                fresh: last_class == UNUSED,
                carved: 0,
                free: 0,
                trimmed: false,
                uncarved_resident: self.table[slab].uncarved_resident,
            };
            let entry = &mut self.classes[usize::from(class)];
            entry.current = slab as u32;
            entry.slabs += 1;
            entry.commits += 1;
            entry.rebalances += u64::from(last_class != UNUSED && last_class != class);
        }
        let entry = &mut self.classes[usize::from(class)];
        let slab = &mut self.table[entry.current as usize];
        let first = entry.current * arena.slab_units();
        let chunks = out
            .len()
            .min((geometry.chunks_per_slab - slab.carved) as usize);
        for (index, unit) in (slab.carved..).zip(&mut out[..chunks]) {
            *unit = first + index * geometry.units;
        }
        if !new_slab {
            entry.outside.forget(slab.out());
        }
        slab.carved += chunks as u32;
        entry.carved += chunks as u64;
        entry.outside.note(slab.out());
        let fresh = slab.fresh;
        if slab.carved == geometry.chunks_per_slab {
            entry.current = NONE;
        }
        self.touch(&out[..chunks], chunk_bytes);
        Ok(Carved {
            chunks,
            new_slab,
            grown: false,
            fresh,
            peak_due: self.is_peak_due(class, new_slab),
        })
    }

    /// Notes the pages of chunks that leave the slabs.
    fn touch(&mut self, units: &[u32], chunk_bytes: usize) {
        // Those that lie side by side at once, as mostly all of them do.
        let mut run = 0..0;
        for &unit in units {
            let start = unit as usize * CHUNK_ALIGN;
            if run.end != start {
                if !run.is_empty() {
                    self.touched.add(&run);
                }
                run.start = start;
            }
            run.end = start + chunk_bytes;
        }
        self.touched.add(&run);
    }

    /// Is it time to add up the chunks in use? That takes time for each thread, so it is done once for as
    /// many batches as there are threads, and for each new slab.
    fn is_peak_due(&mut self, class: u8, new_slab: bool) -> bool {
        let since = &mut self.classes[usize::from(class)].carves_since_peak;
        *since += 1;
        let due = new_slab || *since >= self.threads;
        if due {
            *since = 0;
        }
        due
    }

    /// Notes how many threads have magazines.
    pub(crate) fn set_threads(&mut self, threads: usize) {
        self.threads = threads as u32;
    }

    /// Has the class all the slabs that it may have?
    fn has_full_share(&self, class: u8) -> bool {
        self.share == Some(self.classes[usize::from(class)].slabs)
    }

    fn take_unused(&mut self) -> Option<usize> {
        let slab = self.unused.pop()?;
        // Those without memory come first in the list, so this is one of them only if all are.
        self.unused_released = self.unused_released.min(self.unused.len());
        Some(slab as usize)
    }

    /// Has the system back more slabs, when there is no unused one.
    fn grow(&mut self, arena: &Arena, chunk_bytes: usize) -> Result<(), AllocError> {
        debug_assert!(self.unused.is_empty());
        let slab = self.backed;
        if slab == self.table.len() {
            return Err(AllocError::Exhausted { chunk_bytes });
        }
        let left = self.table.len() - self.backed;
        let wanted = self.growth.slabs(self.backed).clamp(1, left);
        let count = match arena.commit(slab, wanted) {
            Ok(()) => wanted,
            Err(refused) if refused.committed > 0 => refused.committed,
            // The system may still give one.
            Err(_) if wanted > 1 && arena.commit(slab, 1).is_ok() => 1,
            Err(CommitRefused { errno, .. }) => {
                self.commit_failures += 1;
                return Err(AllocError::Commit { errno });
            }
        };
        self.backed += count;
        self.unused
            .extend((slab as u32..(slab + count) as u32).rev());
        Ok(())
    }

    fn take_stored(&mut self, class: u8, out: &mut [u32]) -> usize {
        let entry = &mut self.classes[usize::from(class)];
        let mut taken = 0;
        while entry.stored > 0
            && taken < out.len()
            && let Some(index) = self.stored.next_slab(class, entry.first_stored)
        {
            entry.first_stored = index;
            let slab = &mut self.table[index as usize];
            debug_assert_eq!(slab.class, class);
            entry.outside.forget(slab.out());
            self.kept_empty -= usize::from(slab.is_kept_empty());
            let chunks = self.stored.take(index, &mut out[taken..]);
            // Or this would go on for ever.
            assert!(
                chunks > 0,
                "no chunk is where one is stored: one was freed twice"
            );
            taken += chunks;
            slab.free -= chunks as u32;
            entry.stored -= chunks as u64;
            entry.outside.note(slab.out());
            if slab.free == 0 {
                self.stored.note_empty(class, index);
            }
        }
        taken
    }

    /// Could some slab of the class have all its chunks back, if `free` of those outside are free?
    ///
    /// Looks through the slabs only if what is remembered leaves it open.
    pub(crate) fn could_be_whole(&mut self, class: u8, free: u64) -> bool {
        let outside = &mut self.classes[usize::from(class)].outside;
        let known = outside.has_at_most(free);
        known.unwrap_or_else(|| {
            let slabs = self.table[..self.backed].iter();
            let of_class = slabs.filter(|slab| slab.class == class);
            outside.find_least(of_class.map(Slab::out));
            outside.has_at_most(free) == Some(true)
        })
    }

    /// Stores free chunks of a class, which the caller has taken out of every other place. A slab
    /// that thereby has all its chunks back becomes unused.
    pub(crate) fn store(&mut self, arena: &Arena, class: u8, units: &[u32]) {
        for &unit in units {
            let index = arena.slab_of(unit);
            let slab = &mut self.table[index as usize];
            self.stored.insert(unit);
            if slab.free == 0 {
                self.stored.note_first(class, index);
            }
            debug_assert_eq!(slab.class, class);
            let entry = &mut self.classes[usize::from(class)];
            entry.outside.forget(slab.out());
            slab.free += 1;
            slab.trimmed = false;
            entry.stored += 1;
            if slab.free < slab.carved || self.share.is_some() {
                entry.first_stored = entry.first_stored.min(index);
                entry.outside.note(slab.out());
                continue;
            }
            entry.slabs -= 1;
            entry.carved -= u64::from(slab.carved);
            entry.stored -= u64::from(slab.free);
            if entry.current == index {
                entry.current = NONE;
            }
            slab.class = UNUSED;
            slab.free = 0;
            slab.uncarved_resident = true;
            self.stored.clear(class, index);
            self.unused.push(index);
        }
    }
}
