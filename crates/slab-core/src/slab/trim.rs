//! Giving memory back to the system: slabs that serve no class, and the whole pages among the free
//! chunks of the others.
//!
//! What went back once is not given back again: an unused slab without memory is among the `empty`
//! ones, and a slab whose free pages are gone is marked until a chunk is stored in it.

use super::{Slabs, UNUSED, WORD_BITS, slab_words};
use crate::arena::Arena;
use crate::class::CHUNK_ALIGN;
use crate::geometry::ClassTable;
use core::ops::Range;

/// Memory goes back to the system in pages; where they are larger, less of it does.
const PAGE: usize = 4096;

impl Slabs {
    /// Gives the whole pages among the stored chunks back to the system; returns how many bytes
    /// that were.
    pub(crate) fn trim_stored(&mut self, arena: &Arena, classes: &ClassTable) -> usize {
        let mut bytes = 0;
        for (index, slab) in (0..).zip(&mut self.table[..self.backed]) {
            if slab.class == UNUSED || slab.free == 0 || slab.trimmed {
                continue;
            }
            let chunk_bytes = classes.geometry(slab.class).bytes;
            let span = slab_words(arena, index);
            let first = span.start as u32 * WORD_BITS;
            let mut run = 0..0;
            for (&word, at) in self.bits[span].iter().zip((first..).step_by(64)) {
                let mut rest = word;
                while rest != 0 {
                    let start = (at + rest.trailing_zeros()) as usize * CHUNK_ALIGN;
                    rest &= rest - 1;
                    if run.end != start {
                        let Some(went) = release_pages(arena, &run) else {
                            return bytes;
                        };
                        bytes += went;
                        run.start = start;
                    }
                    run.end = start + chunk_bytes;
                }
            }
            let Some(went) = release_pages(arena, &run) else {
                return bytes;
            };
            bytes += went;
            slab.trimmed = true;
        }
        bytes
    }

    /// Gives the memory of unused slabs back to the system until at most `target` bytes are
    /// committed; returns how many bytes that were.
    pub(crate) fn trim_unused(&mut self, arena: &Arena, target: usize) -> usize {
        let mut bytes = 0;
        while self.empty < self.unused.len() && self.committed() * arena.slab_bytes() > target {
            let index = self.unused[self.empty] as usize;
            // SAFETY: the slab is backed and serves no class, so nobody has any part of it, and
            // nobody can get it while the caller has the mutex that guards `self`.
            let went = unsafe { arena.release(index * arena.slab_bytes(), arena.slab_bytes()) };
            if !went {
                break;
            }
            let slab = &mut self.table[index];
            if slab.before != UNUSED {
                self.classes[usize::from(slab.before)].trims += 1;
                slab.before = UNUSED;
            }
            self.empty += 1;
            bytes += arena.slab_bytes();
        }
        bytes
    }
}

/// Gives back the whole pages in a run of stored chunks, by their offsets in the arena; returns how
/// many bytes they are, `None` if the system does not take them.
fn release_pages(arena: &Arena, run: &Range<usize>) -> Option<usize> {
    let from = run.start.next_multiple_of(PAGE);
    let to = run.end / PAGE * PAGE;
    if from >= to {
        return Some(0);
    }
    // SAFETY: the pages lie in chunks that are stored, so nobody has them, and nobody can get
    // them while the caller has the mutex that guards the slab table.
    let went = unsafe { arena.release(from, to - from) };
    went.then_some(to - from)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::tests::{carve_all, fixture};
    use super::*;
    use crate::builder::Growth;

    #[test]
    fn trim_stops_at_its_target_and_trimmed_slabs_come_back() {
        let (arena, classes) = fixture();
        let mut slabs = Slabs::new(&arena, Growth::Slab).unwrap();
        let units = carve_all(&mut slabs, &arena, &classes, 0);
        slabs.store(&arena, 0, &units);
        assert_eq!(slabs.trim_unused(&arena, 64 << 10), 192 << 10);
        assert_eq!(slabs.committed(), 1);
        assert_eq!(slabs.trim_unused(&arena, 64 << 10), 0);
        assert_eq!(slabs.class(0).trims, 3);
        assert!(!carve_all(&mut slabs, &arena, &classes, 1).is_empty());
        assert_eq!(slabs.committed(), arena.slabs());
    }

    /// Pages that went back stay away until a chunk among them was used.
    #[test]
    fn stored_pages_go_back_once() {
        let (arena, classes) = fixture();
        let mut slabs = Slabs::new(&arena, Growth::Slab).unwrap();
        let units = carve_all(&mut slabs, &arena, &classes, 1);
        let per_slab = classes.geometry(1).chunks_per_slab as usize;
        // All but the first chunk of each slab.
        let stored = units
            .chunks(per_slab)
            .flat_map(|slab| slab[1..].iter().copied());
        slabs.store(&arena, 1, &stored.collect::<Vec<_>>());
        // From the second page to the last whole one of 42 chunks.
        let pages = arena.slabs() * (56 << 10);
        assert_eq!(slabs.trim_stored(&arena, &classes), pages);
        assert_eq!(slabs.trim_stored(&arena, &classes), 0, "nothing was used");
        // One chunk of the first slab comes out and goes in again.
        let mut out = [0];
        slabs.carve(&arena, &classes, 1, &mut out).unwrap();
        assert_eq!(slabs.trim_stored(&arena, &classes), 0, "less is stored");
        slabs.store(&arena, 1, &out);
        assert_eq!(
            slabs.trim_stored(&arena, &classes),
            pages / arena.slabs(),
            "that slab alone"
        );
    }
}
