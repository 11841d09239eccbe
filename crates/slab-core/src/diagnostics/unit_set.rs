//! [`UnitSet`]: a set of chunks, with a bit for each unit of the arena.

use crate::class::CHUNK_ALIGN;
use crate::sync::{AtomicU32, Ordering, Table};
use crate::sys::room::Room;

/// Chunks, each by the unit that it begins with. All accesses are relaxed: the chunk itself is passed on by ways that
/// order them.
#[derive(Debug)]
pub(crate) struct UnitSet(Table<AtomicU32>);

impl UnitSet {
    /// Returns an empty set for an arena of this size.
    ///
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(crate) fn new(room: &mut Room, arena_bytes: usize) -> Result<Self, i32> {
        let units = arena_bytes / CHUNK_ALIGN;
        Table::new(room, units.div_ceil(32)).map(Self)
    }

    /// Adds a chunk; returns `true` if it was not in the set.
    pub(crate) fn insert(&self, unit: u32) -> bool {
        let (word, bit) = self.bit(unit);
        word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Takes a chunk out; returns `true` if it was in the set.
    pub(crate) fn remove(&self, unit: u32) -> bool {
        let (word, bit) = self.bit(unit);
        word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    pub(crate) fn contains(&self, unit: u32) -> bool {
        let (word, bit) = self.bit(unit);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// The word that a chunk's bit is in, and the bit.
    fn bit(&self, unit: u32) -> (&AtomicU32, u32) {
        (self.0.at((unit / 32) as usize), 1 << (unit % 32))
    }
}
