//! [`TouchedPages`]: which pages of the arena may be in memory, a bit for each.
//!
//! A page is touched when a chunk that lies on it, in whole or in part, leaves the slabs, and no more when trim has given it
//! back. So the pool knows at any time what the system would have to be asked for; but for what its users have not
//! written yet, which counts, and for what the system does by itself.

use crate::arena::Arena;
use crate::sync::Table;
use crate::sys::page_size;
use crate::sys::room::Room;
use core::ops::Range;

const WORD_BITS: usize = u64::BITS as usize;

#[derive(Debug)]
pub(super) struct TouchedPages {
    bits: Table<u64>,
    page_shift: u32,
    /// How many are set.
    pages: usize,
}

impl TouchedPages {
    /// None yet.
    ///
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(super) fn new(room: &mut Room, arena: &Arena) -> Result<Self, i32> {
        let page = page_size();
        let pages = arena.bytes().div_ceil(page);
        Ok(Self {
            bits: Table::new(room, pages.div_ceil(WORD_BITS))?,
            page_shift: page.trailing_zeros(),
            pages: 0,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages << self.page_shift
    }

    /// Something on these bytes, at least one, by their offsets in the arena, goes to a user.
    pub(super) fn add(&mut self, part: &Range<usize>) {
        debug_assert!(!part.is_empty());
        let last = (part.end - 1) >> self.page_shift;
        for (at, mask) in words(part.start >> self.page_shift..last + 1) {
            let new = mask & !self.bits[at];
            // Mostly none: a page has room for several chunks, which come one batch after the other.
            if new != 0 {
                self.bits[at] |= new;
                self.pages += new.count_ones() as usize;
            }
        }
    }

    /// These whole pages were given back.
    pub(super) fn remove(&mut self, part: &Range<usize>) {
        for (at, mask) in words(part.start >> self.page_shift..part.end >> self.page_shift) {
            let gone = mask & self.bits[at];
            self.bits[at] &= !gone;
            self.pages -= gone.count_ones() as usize;
        }
    }
}

/// The words in which these bits lie, each with those that do.
fn words(mut bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    core::iter::from_fn(move || {
        let (at, first) = (bits.start / WORD_BITS, bits.start % WORD_BITS);
        let count = bits.len().min(WORD_BITS - first);
        bits.start += count;
        (count > 0).then(|| (at, u64::MAX >> (WORD_BITS - count) << first))
    })
}

#[cfg(all(test, feature = "alloc", not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_page_counts_once_until_all_of_it_is_given_back() {
        const SLAB: usize = 1 << 20;
        let page = page_size();
        let arena = Arena::reserve(&mut Room::system(), 8 * SLAB, SLAB).unwrap();
        let mut touched = TouchedPages::new(&mut Room::system(), &arena).unwrap();
        let mut model = std::collections::BTreeSet::new();
        let mut random = 1_u64;
        for _ in 0..if cfg!(miri) { 50 } else { 5000 } {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let start = random as usize % (8 * SLAB - 1);
            let len = (random >> 32) as usize % [64, 3 * page, 2 * SLAB][random as usize % 3] + 1;
            let end = (start + len).min(8 * SLAB);
            if random >> 60 < 9 {
                touched.add(&(start..end));
                model.extend(start / page..end.div_ceil(page));
            } else {
                let whole = start.div_ceil(page)..end / page;
                touched.remove(&(whole.start * page..whole.end * page));
                model.retain(|page| !whole.contains(page));
            }
            assert_eq!(touched.bytes(), model.len() * page);
        }
    }
}
