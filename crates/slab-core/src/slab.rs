//! Slabs: which part of the arena serves which size class.
//!
//! A slab is either unused or cut into chunks of one class. Chunks are carved off in order, a
//! batch at a time, so a slab that was just taken costs nothing until its chunks are needed. All
//! of this happens under one mutex, far from the fast path: a thread comes here once per batch of
//! *new* chunks, never for chunks that were used before.
//!
//! Invariants, for every class `c`, whenever the mutex is free:
//! - `carved(c) = in use + in magazines + in depot`, all in chunks of class `c`
//! - `committed chunks(c) = slabs(c) * chunks_per_slab(c) >= carved(c)`
//! - `sum over c of slabs(c) <= slabs of the arena`

use crate::arena::Arena;
use crate::class::{ClassTable, MAX_CLASSES};
use crate::error::AllocError;

/// The slab serves no class.
const UNUSED: u8 = u8::MAX;
/// No slab is being carved for the class.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Slab {
    class: u8,
    carved: u32,
}

/// Per class, in slabs or chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassSlabs {
    /// The slab that chunks are carved from.
    current: u32,
    pub(crate) slabs: u64,
    pub(crate) carved: u64,
    pub(crate) commits: u64,
}

#[derive(Debug)]
pub(crate) struct Slabs {
    table: Vec<Slab>,
    /// Slabs below this index are backed by memory.
    committed: usize,
    classes: [ClassSlabs; MAX_CLASSES],
    pub(crate) commit_failures: u64,
}

/// What [`Slabs::carve`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carved {
    pub(crate) chunks: usize,
    /// A slab was newly taken for the class.
    pub(crate) new_slab: bool,
}

impl Slabs {
    pub(crate) fn new(arena: &Arena) -> Self {
        Self {
            table: vec![
                Slab {
                    class: UNUSED,
                    carved: 0
                };
                arena.slabs()
            ],
            committed: 0,
            classes: [ClassSlabs {
                current: NONE,
                slabs: 0,
                carved: 0,
                commits: 0,
            }; MAX_CLASSES],
            commit_failures: 0,
        }
    }

    pub(crate) fn class(&self, class: usize) -> &ClassSlabs {
        &self.classes[class]
    }

    /// Slabs backed by memory, whatever they serve.
    pub(crate) fn committed(&self) -> usize {
        self.committed
    }

    /// Fills `out` with fresh chunks of the class, fewer if the slab at hand has fewer left, at
    /// least one. Takes a new slab only when none of the class has any left.
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
        let geometry = classes.geometry(class);
        let new_slab = self.classes[usize::from(class)].current == NONE;
        if new_slab {
            let slab = self.take_slab(arena, geometry.bytes)?;
            self.table[slab] = Slab { class, carved: 0 };
            let entry = &mut self.classes[usize::from(class)];
            entry.current = slab as u32;
            entry.slabs += 1;
            entry.commits += 1;
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
        slab.carved += chunks as u32;
        entry.carved += chunks as u64;
        if slab.carved == geometry.chunks_per_slab {
            entry.current = NONE;
        }
        Ok(Carved { chunks, new_slab })
    }

    fn take_slab(&mut self, arena: &Arena, chunk_bytes: usize) -> Result<usize, AllocError> {
        let slab = self.committed;
        if slab == self.table.len() {
            return Err(AllocError::Exhausted { chunk_bytes });
        }
        if let Err(errno) = arena.commit(slab) {
            self.commit_failures += 1;
            return Err(AllocError::Commit { errno });
        }
        self.committed += 1;
        Ok(slab)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::class::SizeClasses;

    #[test]
    fn carving_yields_each_chunk_once_and_ends_at_the_cap() {
        let list = SizeClasses::explicit(&[192, 1536]).unwrap();
        let classes = ClassTable::new(list, 256 << 10);
        let arena = Arena::reserve(256 << 10, classes.slab_bytes()).unwrap();
        let mut slabs = Slabs::new(&arena);
        let mut spans = Vec::new();
        let mut out = [0; 62];
        for round in 0.. {
            let class = (round % 2) as u8;
            match slabs.carve(&arena, &classes, class, &mut out) {
                Ok(carved) => {
                    assert!(carved.chunks > 0);
                    let units = classes.geometry(class).units;
                    spans.extend(
                        out[..carved.chunks]
                            .iter()
                            .map(|&unit| (unit, unit + units)),
                    );
                }
                Err(error) => {
                    let chunk_bytes = classes.geometry(class).bytes;
                    assert_eq!(error, AllocError::Exhausted { chunk_bytes });
                    break;
                }
            }
        }
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        assert!(spans.last().unwrap().1 as usize * 64 <= arena.bytes());
        assert_eq!(slabs.committed(), arena.slabs());
        let per_slab = |class: u8| u64::from(classes.geometry(class).chunks_per_slab);
        for class in 0..2u8 {
            let entry = slabs.class(usize::from(class));
            assert!(entry.carved <= entry.slabs * per_slab(class));
        }
    }
}
