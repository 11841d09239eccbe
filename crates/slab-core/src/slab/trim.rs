//! Giving memory back to the system: slabs that serve no class, and the whole pages of the others that lie
//! among free chunks or in the rest, of which no chunk has been carved yet, where that may be in memory.
//!
//! Memory goes back in pieces. All of it at once under the mutex would block threads that need a slab for
//! as long: a tenth of a second a GiB. Between two pieces every invariant of the slab table holds, so
//! whatever happens there, a trim in pieces is a sequence of short trims.
//!
//! Memory is not given back twice: an unused slab without memory is among the `unused_released` ones, and a
//! slab whose free pages are gone is marked until a chunk is stored in it. Chunks carved later from the rest
//! are stored some day, as all chunks are. Memory that the system brings back by itself, in a huge page for a
//! slab in use, goes back once more with that slab.

use super::touched::TouchedPages;
use super::{Slabs, UNUSED};
use crate::arena::Arena;
use crate::class::CHUNK_ALIGN;
use crate::class::geometry::ClassTable;
use crate::sync::MODELLED;
use crate::sys::{RELEASE_MAX, page_size};
use arrayvec::ArrayVec;
use core::ops::Range;

/// A trim releases the mutex at the latest after giving back this many bytes, for which a system takes a
/// millisecond or less. A slab is given back at once, whatever its size.
const PIECE_BYTES: usize = if MODELLED { 1 } else { 4 << 20 };
/// And at the latest after looking at this many slabs.
const PIECE_SLABS: usize = 1024;
/// And at the latest with the slab with which it has looked at this many stored chunks, which takes a few hundred
/// microseconds.
const PIECE_CHUNKS: u32 = 1 << 16;

/// A trim in progress. The state in which it began bounds it: what becomes free meanwhile is for the next.
#[derive(Debug)]
pub(crate) struct Trim {
    /// Whole slabs are given back only while the slabs that hold memory have more bytes than this.
    target: usize,
    /// Unused slabs to give back, at most.
    unused: usize,
    /// Slabs whose free pages are to be given back.
    slabs: Range<usize>,
}

/// The system does not take memory back.
#[derive(Debug)]
struct ReleaseRefused;

impl Slabs {
    pub(crate) fn begin_trim(&self, target: usize) -> Trim {
        Trim {
            target,
            unused: self.unused.len() - self.unused_released,
            slabs: 0..self.backed,
        }
    }

    /// Gives back the next few megabytes: the memory of unused slabs first, then the whole pages among
    /// stored chunks. Returns how many bytes that were; `None` at the end.
    pub(crate) fn trim_piece(
        &mut self,
        arena: &Arena,
        classes: &ClassTable,
        trim: &mut Trim,
    ) -> Option<usize> {
        if trim.unused == 0 && trim.slabs.is_empty() {
            return None;
        }
        let mut bytes = 0;
        if self
            .trim_up_to_piece(arena, classes, trim, &mut bytes)
            .is_err()
        {
            // Nor will it take the rest.
            trim.unused = 0;
            trim.slabs = 0..0;
        }
        Some(bytes)
    }

    fn trim_up_to_piece(
        &mut self,
        arena: &Arena,
        classes: &ClassTable,
        trim: &mut Trim,
        bytes: &mut usize,
    ) -> Result<(), ReleaseRefused> {
        while trim.unused > 0 && *bytes < PIECE_BYTES {
            trim.unused -= 1;
            if !self.trim_unused(arena, trim.target, bytes)? {
                trim.unused = 0;
            }
        }
        let mut chunks = 0;
        for _ in 0..PIECE_SLABS {
            if *bytes >= PIECE_BYTES || chunks >= PIECE_CHUNKS {
                break;
            }
            // From the end: the slabs at the start are used next.
            let Some(slab) = trim.slabs.next_back() else {
                break;
            };
            chunks += self.trim_stored(arena, classes, slab, trim.target, bytes)?;
        }
        Ok(())
    }

    /// Gives back the memory of one unused slab; `false` if there is none, or no more than `target`
    /// bytes are held.
    fn trim_unused(
        &mut self,
        arena: &Arena,
        target: usize,
        bytes: &mut usize,
    ) -> Result<bool, ReleaseRefused> {
        if self.unused_released == self.unused.len() || self.held() * arena.slab_bytes() <= target {
            return Ok(false);
        }
        let index = self.unused[self.unused_released] as usize;
        let slabs = self.with_released_neighbours(arena, index);
        // Slabs with a guard between them have no such neighbours.
        let guard = arena.slab_bytes() - arena.usable_bytes();
        let part = slabs.start * arena.slab_bytes()..slabs.end * arena.slab_bytes() - guard;
        // SAFETY: the slabs are backed and serve no class, so nobody has any part of them, and nobody
        // can get them while the caller has the mutex that guards `self`.
        let released = unsafe { arena.release(core::slice::from_ref(&part)) };
        if !released {
            return Err(ReleaseRefused);
        }
        self.touched.remove(&part);
        let slab = &mut self.table[index];
        if slab.last_class != UNUSED {
            self.classes[usize::from(slab.last_class)].trims += 1;
            slab.last_class = UNUSED;
        }
        slab.uncarved_resident = false;
        self.unused_released += 1;
        *bytes += arena.slab_bytes();
        Ok(true)
    }

    /// An unused slab and its neighbours that count as without memory: a huge page that backs the one
    /// backs the others as well, and nobody would look at them again.
    fn with_released_neighbours(&self, arena: &Arena, index: usize) -> Range<usize> {
        let near = arena.slabs_sharing_huge_pages(index);
        let is_empty = |&slab: &usize| {
            let slab = &self.table[slab];
            slab.class == UNUSED && slab.last_class == UNUSED && !slab.uncarved_resident
        };
        let before = (near.start..index).rev().take_while(is_empty).count();
        let behind = (index + 1..near.end.min(self.backed)).take_while(is_empty);
        index - before..index + 1 + behind.count()
    }

    /// Gives back the whole pages among a slab's stored chunks and of its rest. If all of its chunks are
    /// stored (and it keeps its class), only while more than `target` bytes are held. Returns how many stored chunks it
    /// has looked at.
    fn trim_stored(
        &mut self,
        arena: &Arena,
        classes: &ClassTable,
        index: usize,
        target: usize,
        bytes: &mut usize,
    ) -> Result<u32, ReleaseRefused> {
        let is_enough = self.held() * arena.slab_bytes() <= target;
        let slab = &mut self.table[index];
        let stored = slab.free > 0 && !slab.trimmed;
        if slab.class == UNUSED
            || !(stored || slab.uncarved_resident)
            || (slab.out() == 0 && is_enough)
        {
            return Ok(0);
        }
        let chunk_bytes = classes.geometry(slab.class).bytes;
        let mut free = FreePages::new(arena, &mut self.touched, bytes);
        let mut run = 0..0;
        for (first, mut rest) in self.stored.words(index as u32) {
            while rest != 0 {
                let start = (first + rest.trailing_zeros()) as usize * CHUNK_ALIGN;
                rest &= rest - 1;
                if run.end != start {
                    free.add(&run)?;
                    run.start = start;
                }
                run.end = start + chunk_bytes;
            }
        }
        if slab.uncarved_resident {
            let start = index * arena.slab_bytes();
            let rest = start + slab.carved as usize * chunk_bytes..start + arena.usable_bytes();
            if run.end != rest.start {
                free.add(&run)?;
                run.start = rest.start;
            }
            run.end = rest.end;
        }
        free.add(&run)?;
        free.release()?;
        slab.trimmed = true;
        slab.uncarved_resident = false;
        self.kept_empty += usize::from(slab.is_kept_empty());
        Ok(slab.free)
    }
}

/// The whole pages among a slab's stored chunks and in its rest. They go back many at a time, which is faster, and in the
/// end have all gone back before another thread can get them.
struct FreePages<'a> {
    arena: &'a Arena,
    touched: &'a mut TouchedPages,
    /// What has gone back.
    bytes: &'a mut usize,
    /// What is about to, by its offsets in the arena.
    parts: ArrayVec<Range<usize>, RELEASE_MAX>,
}

impl<'a> FreePages<'a> {
    fn new(arena: &'a Arena, touched: &'a mut TouchedPages, bytes: &'a mut usize) -> Self {
        Self {
            arena,
            touched,
            bytes,
            parts: ArrayVec::new(),
        }
    }

    /// Adds what is whole pages of a run of stored chunks, or of what is not carved.
    fn add(&mut self, run: &Range<usize>) -> Result<(), ReleaseRefused> {
        let pages = whole_pages(run, page_size());
        if pages.is_empty() {
            return Ok(());
        }
        if self.parts.is_full() {
            self.release()?;
        }
        self.parts.push(pages);
        Ok(())
    }

    fn release(&mut self) -> Result<(), ReleaseRefused> {
        if self.parts.is_empty() {
            return Ok(());
        }
        // SAFETY: the pages lie in chunks that are stored or not carved, so nobody has them, and nobody can
        // get them while the caller has the mutex that guards the slab table. They are whole pages of the
        // system's size; it would round up a part of one.
        let released = unsafe { self.arena.release(&self.parts) };
        if !released {
            return Err(ReleaseRefused);
        }
        for pages in self.parts.drain(..) {
            *self.bytes += pages.len();
            self.touched.remove(&pages);
        }
        Ok(())
    }
}

/// The pages that lie wholly in `run`.
fn whole_pages(run: &Range<usize>, page_bytes: usize) -> Range<usize> {
    run.start.next_multiple_of(page_bytes)..run.end / page_bytes * page_bytes
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::tests::{carve_all, fixture};
    use super::*;
    #[cfg(not(miri))]
    use crate::class::SizeClasses;
    use crate::class::geometry::slab_bytes_for;
    use crate::slab::growth::Growth;
    use crate::sys::room::Room;

    #[test]
    fn whole_pages_leaves_out_partly_covered_pages() {
        for page in [4096, 16384, 65536] {
            for (start, end, pages) in [
                (0, page, 0..1),
                (64, page, 1..1),
                (page - 64, 2 * page + 64, 1..2),
                (page, 2 * page - 64, 1..1),
                (3 * page, 5 * page, 3..5),
            ] {
                let whole = whole_pages(&(start..end), page);
                assert_eq!(whole, pages.start * page..pages.end * page);
            }
            // Of one chunk of 4096 bytes, nothing where pages are larger.
            let chunk = whole_pages(&(2 * page..2 * page + 4096), page);
            assert_eq!(chunk.is_empty(), page > 4096);
        }
    }

    /// All pieces of a trim; returns their bytes.
    fn trim(slabs: &mut Slabs, arena: &Arena, classes: &ClassTable, target: usize) -> usize {
        let mut trim = slabs.begin_trim(target);
        std::iter::from_fn(|| slabs.trim_piece(arena, classes, &mut trim)).sum()
    }

    /// A pool of one class, and all its chunks.
    #[cfg(not(miri))]
    fn all_of_16_mib(chunk_bytes: usize) -> (Arena, ClassTable, Slabs, Vec<u32>) {
        let list = SizeClasses::explicit(&[chunk_bytes]).unwrap();
        let slab_bytes = slab_bytes_for(list.largest());
        let classes = ClassTable::new(list, 16 << 20);
        let arena = Arena::reserve(&mut Room::system(), 16 << 20, slab_bytes).unwrap();
        let mut slabs =
            Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
        let units = carve_all(&mut slabs, &arena, &classes, 0);
        (arena, classes, slabs, units)
    }

    #[test]
    fn trim_stops_at_its_target_and_trimmed_slabs_come_back() {
        let (arena, classes) = fixture();
        let mut slabs =
            Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
        let units = carve_all(&mut slabs, &arena, &classes, 0);
        slabs.store(&arena, 0, &units);
        assert_eq!(trim(&mut slabs, &arena, &classes, 64 << 10), 192 << 10);
        assert_eq!(slabs.committed(), 1);
        assert_eq!(trim(&mut slabs, &arena, &classes, 64 << 10), 0);
        assert_eq!(slabs.class(0).trims, 3);
        assert!(!carve_all(&mut slabs, &arena, &classes, 1).is_empty());
        assert_eq!(slabs.committed(), arena.slabs());
    }

    /// Pages that went back stay away until a chunk among them was used.
    #[test]
    fn stored_pages_are_released_once() {
        let (arena, classes) = fixture();
        let mut slabs =
            Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
        let units = carve_all(&mut slabs, &arena, &classes, 1);
        let per_slab = classes.geometry(1).chunks_per_slab as usize;
        // All but the first chunk of each slab.
        let stored = units
            .chunks(per_slab)
            .flat_map(|slab| slab[1..].iter().copied());
        slabs.store(&arena, 1, &stored.collect::<Vec<_>>());
        // Those that lie wholly in the others: from the second page to the last whole one of 42 chunks.
        let pages = arena.slabs() * whole_pages(&(1536..42 * 1536), page_size()).len();
        assert_eq!(trim(&mut slabs, &arena, &classes, 0), pages);
        assert_eq!(trim(&mut slabs, &arena, &classes, 0), 0, "nothing was used");
        // One chunk of the first slab comes out and goes in again.
        let mut out = [0];
        slabs.carve(&arena, &classes, 1, &mut out).unwrap();
        assert_eq!(trim(&mut slabs, &arena, &classes, 0), 0, "less is stored");
        slabs.store(&arena, 1, &out);
        assert_eq!(
            trim(&mut slabs, &arena, &classes, 0),
            pages / arena.slabs(),
            "that slab alone"
        );
    }

    /// The rest of which no chunk was carved goes back once if it may be in memory, up to the page that
    /// it shares with a chunk in use.
    #[test]
    fn uncarved_rest_is_released_once_if_it_may_be_resident() {
        let served = |slabs: &mut Slabs, arena: &Arena, classes: &ClassTable| {
            let units = carve_all(slabs, arena, classes, 0);
            slabs.store(arena, 0, &units);
        };
        let fresh = |_: &mut Slabs, _: &Arena, _: &ClassTable| ();
        let backed = |slabs: &mut Slabs, arena: &Arena, _: &ClassTable| {
            slabs.back_all(arena).unwrap();
        };
        type Before<'a> = &'a dyn Fn(&mut Slabs, &Arena, &ClassTable);
        let all: [(Before<'_>, bool); 3] = [(&served, true), (&fresh, false), (&backed, true)];
        for (before, held) in all {
            // Of three chunks the last `stored` are free.
            for stored in [0, 1] {
                let (arena, classes) = fixture();
                let mut slabs =
                    Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
                before(&mut slabs, &arena, &classes);
                let mut out = [0; 3];
                slabs.carve(&arena, &classes, 1, &mut out).unwrap();
                slabs.store(&arena, 1, &out[3 - stored..]);
                // Whole slabs stay.
                let free = (3 - stored) * 1536..arena.slab_bytes();
                let pages = if held {
                    whole_pages(&free, page_size()).len()
                } else {
                    0
                };
                assert_eq!(trim(&mut slabs, &arena, &classes, usize::MAX), pages);
                assert_eq!(trim(&mut slabs, &arena, &classes, usize::MAX), 0);
                // A slab that went as a whole has no such rest when it is taken again.
                slabs.store(&arena, 1, &out[..3 - stored]);
                trim(&mut slabs, &arena, &classes, 0);
                assert_eq!(slabs.committed(), 0);
                slabs.carve(&arena, &classes, 1, &mut out).unwrap();
                assert_eq!(trim(&mut slabs, &arena, &classes, 0), 0);
            }
        }
    }

    /// A trim releases the mutex every 4 MiB, and ignores what is taken and given back meanwhile.
    #[test]
    #[cfg(not(miri))] // Writes 16 MiB in turn.
    fn trim_keeps_chunks_taken_between_two_of_its_pieces() {
        let (arena, classes, mut slabs, units) = all_of_16_mib(65536);
        assert_eq!(units.len(), 256);
        slabs.store(&arena, 0, &units);
        let mut trimming = slabs.begin_trim(0);
        let mut piece = |slabs: &mut Slabs| slabs.trim_piece(&arena, &classes, &mut trimming);
        assert_eq!(piece(&mut slabs), Some(PIECE_BYTES));
        let mut taken = [0; 6];
        for unit in &mut taken {
            let carved = slabs
                .carve(&arena, &classes, 0, core::slice::from_mut(unit))
                .unwrap();
            assert!(!carved.fresh, "those with memory come first");
        }
        // Two slabs are in use, one of them in part; a chunk of the other comes back.
        slabs.store(&arena, 0, &taken[..1]);
        let two = 2 * arena.slab_bytes();
        assert_eq!(piece(&mut slabs), Some(PIECE_BYTES));
        assert_eq!(piece(&mut slabs), Some(PIECE_BYTES));
        // Of the slab in part, half was carved since it came back.
        let half = arena.slab_bytes() / 2;
        assert_eq!(piece(&mut slabs), Some(PIECE_BYTES - two + 65536 + half));
        assert_eq!(piece(&mut slabs), None);
        assert_eq!(slabs.committed() * arena.slab_bytes(), two);
        assert_eq!(slabs.class(0).out(), 5);
    }

    /// Magazines get a batch at a time, whose chunks need not lie side by side.
    #[test]
    #[cfg(not(miri))] // Many chunks.
    fn the_pages_of_each_chunk_of_a_batch_are_touched_and_no_others() {
        let (arena, classes, mut slabs, units) = all_of_16_mib(65536);
        // Every third, and all of the second slab, which then serves nobody.
        let is_free = |at: &usize| at.is_multiple_of(3) || (4..8).contains(at);
        let free: Vec<_> = (0..units.len())
            .filter(is_free)
            .map(|at| units[at])
            .collect();
        slabs.store(&arena, 0, &free);
        trim(&mut slabs, &arena, &classes, 0);
        let mut touched = (units.len() - free.len()) * 65536;
        assert_eq!(slabs.touched_bytes(), touched);
        let mut out = [0; 20];
        for _ in 0..2 {
            let carved = slabs.carve(&arena, &classes, 0, &mut out).unwrap();
            assert_eq!(carved.chunks, out.len());
            touched += out.len() * 65536;
            assert_eq!(slabs.touched_bytes(), touched);
        }
    }

    /// Or those that need a slab would wait for a look at each chunk of many gigabytes.
    #[test]
    #[cfg(not(miri))] // Many chunks.
    fn a_piece_is_short_also_where_nothing_can_be_given_back() {
        let (arena, classes, mut slabs, units) = all_of_16_mib(64);
        let every_second: Vec<_> = units.iter().copied().step_by(2).collect();
        slabs.store(&arena, 0, &every_second);
        let mut trim = slabs.begin_trim(0);
        let pieces = std::iter::from_fn(|| slabs.trim_piece(&arena, &classes, &mut trim));
        let pieces: Vec<_> = pieces.collect();
        assert_eq!(pieces, vec![0; every_second.len() / PIECE_CHUNKS as usize]);
        assert!(pieces.len() > 1);
    }
}
