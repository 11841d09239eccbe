//! The map of stored chunks: a bit for each 64 bytes of arena, set where a free chunk begins that its slab has
//! back.
//!
//! Chunks come out in order of address, under the pool's lock, and while somebody waits each chunk that is
//! freed goes in and each that is allocated comes out. So a search must not look at all that is empty, or
//! another class's: above the map lies one with a bit a word, and each class has one with a bit a slab.

use crate::arena::Arena;
use crate::sync::Table;
use crate::sys::room::Room;
use core::ops::Range;

const WORD_BITS: usize = u64::BITS as usize;

#[derive(Debug)]
pub(super) struct StoredMap {
    /// A bit per unit.
    bits: Table<u64>,
    /// A bit per word of `bits`: it is not zero.
    words: Table<u64>,
    /// A slab has at least 64 units, so these are whole words.
    words_per_slab: usize,
    /// Per class, a bit per slab: chunks of this class are stored in it.
    slabs: Table<u64>,
    /// Words of `slabs` that a class has.
    row_words: usize,
}

impl StoredMap {
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(super) fn new(room: &mut Room, arena: &Arena, classes: usize) -> Result<Self, i32> {
        let slab_units = arena.slab_units() as usize;
        debug_assert!(slab_units.is_multiple_of(WORD_BITS));
        let words_per_slab = slab_units / WORD_BITS;
        let words = arena.slabs() * words_per_slab;
        let row_words = arena.slabs().div_ceil(WORD_BITS);
        Ok(Self {
            bits: Table::new(room, words)?,
            words: Table::new(room, words.div_ceil(WORD_BITS))?,
            words_per_slab,
            slabs: Table::new(room, classes * row_words)?,
            row_words,
        })
    }

    /// Adds a chunk. Who adds a slab's first one then says so: [`note_first`](Self::note_first).
    pub(super) fn insert(&mut self, unit: u32) {
        let at = unit as usize / WORD_BITS;
        let bit = 1 << (unit as usize % WORD_BITS);
        let before = self.bits[at];
        debug_assert_eq!(before & bit, 0, "a chunk was freed twice");
        self.bits[at] = before | bit;
        set(&mut self.words, at);
    }

    /// The slab has chunks here from now on.
    pub(super) fn note_first(&mut self, class: u8, slab: u32) {
        set(self.row(class), slab as usize);
    }

    /// Takes the slab's first chunks, as many as there are and `out` has room for; returns how many. Who takes the
    /// last one then says so: [`note_empty`](Self::note_empty).
    pub(super) fn take(&mut self, slab: u32, out: &mut [u32]) -> usize {
        let span = self.span(slab);
        let mut taken = 0;
        // A slab's words are a part of one word of `words`, or several whole ones.
        let last = (span.end - 1) / WORD_BITS;
        for above in span.start / WORD_BITS..=last {
            let mut rest = self.words[above] & mask(above, &span);
            while rest != 0 {
                if taken == out.len() {
                    return taken;
                }
                let at = above * WORD_BITS + rest.trailing_zeros() as usize;
                let mut word = self.bits[at];
                while word != 0 && taken < out.len() {
                    out[taken] = (at * WORD_BITS) as u32 + word.trailing_zeros();
                    word &= word - 1;
                    taken += 1;
                }
                self.bits[at] = word;
                if word == 0 {
                    unset(&mut self.words, at);
                }
                rest &= rest - 1;
            }
        }
        taken
    }

    /// The slab has no chunk here any more.
    pub(super) fn note_empty(&mut self, class: u8, slab: u32) {
        unset(self.row(class), slab as usize);
    }

    /// Removes all chunks of the slab.
    pub(super) fn clear(&mut self, class: u8, slab: u32) {
        let span = self.span(slab);
        for above in span.start / WORD_BITS..=(span.end - 1) / WORD_BITS {
            self.words[above] &= !mask(above, &span);
        }
        self.bits[span].fill(0);
        self.note_empty(class, slab);
    }

    /// The slab's part of the map, in words, each with the unit that its lowest bit is of.
    pub(super) fn words(&self, slab: u32) -> impl Iterator<Item = (u32, u64)> {
        let span = self.span(slab);
        let first = (span.start * WORD_BITS) as u32;
        let units = (first..).step_by(WORD_BITS);
        units.zip(self.bits[span].iter().copied())
    }

    /// The first slab that has a chunk of the class here, from this one on.
    pub(super) fn next_slab(&mut self, class: u8, from: u32) -> Option<u32> {
        let slabs = from as usize..self.row_words * WORD_BITS;
        next_set(self.row(class), slabs).map(|slab| slab as u32)
    }

    fn row(&mut self, class: u8) -> &mut [u64] {
        let words = self.row_words;
        &mut self.slabs[usize::from(class) * words..][..words]
    }

    fn span(&self, slab: u32) -> Range<usize> {
        let words = self.words_per_slab;
        slab as usize * words..(slab as usize + 1) * words
    }
}

fn set(words: &mut [u64], index: usize) {
    words[index / WORD_BITS] |= 1 << (index % WORD_BITS);
}

fn unset(words: &mut [u64], index: usize) {
    words[index / WORD_BITS] &= !(1 << (index % WORD_BITS));
}

/// Those bits of the word with this index that are among these.
fn mask(word: usize, bits: &Range<usize>) -> u64 {
    let first = word * WORD_BITS;
    let from = bits.start.saturating_sub(first);
    let to = (bits.end - first).min(WORD_BITS);
    (u64::MAX << from) & (u64::MAX >> (WORD_BITS - to))
}

/// The first bit that is set, of these.
fn next_set(words: &[u64], bits: Range<usize>) -> Option<usize> {
    if bits.is_empty() {
        return None;
    }
    let mut at = bits.start / WORD_BITS;
    let mut word = words[at] & (u64::MAX << (bits.start % WORD_BITS));
    while word == 0 {
        at += 1;
        if at * WORD_BITS >= bits.end {
            return None;
        }
        word = words[at];
    }
    let found = at * WORD_BITS + word.trailing_zeros() as usize;
    (found < bits.end).then_some(found)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const SLAB_BYTES: usize = 64 << 10;
    const SLAB_UNITS: u32 = (SLAB_BYTES / 64) as u32;

    /// For two classes.
    fn map(slabs: usize) -> StoredMap {
        let arena = Arena::reserve(&mut Room::system(), slabs * SLAB_BYTES, SLAB_BYTES).unwrap();
        StoredMap::new(&mut Room::system(), &arena, 2).unwrap()
    }

    /// Against a sorted set, for chunks of one unit stored and taken at random, in slabs of which each second one is of
    /// the other class.
    #[test]
    fn chunks_come_out_in_order_of_address_whatever_went_in_when() {
        // Four have their words in one word of the map above.
        let mut map = map(6);
        let mut model = std::collections::BTreeSet::new();
        let mut seed = 1_u64;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            ((seed >> 33) % u64::from(below)) as u32
        };
        for _ in 0..if cfg!(miri) { 300 } else { 4_000 } {
            let slab = random(6);
            let class = (slab % 2) as u8;
            let span = slab * SLAB_UNITS..(slab + 1) * SLAB_UNITS;
            match random(20) {
                0..16 => {
                    let unit = span.start + random(SLAB_UNITS);
                    if model.range(span.clone()).next().is_none() {
                        map.note_first(class, slab);
                    }
                    if model.insert(unit) {
                        map.insert(unit);
                    }
                }
                16..19 => {
                    let mut out = [0; 7];
                    let room = random(8) as usize;
                    let taken = map.take(slab, &mut out[..room]);
                    let first: Vec<_> = model.range(span.clone()).copied().take(room).collect();
                    assert_eq!(out[..taken], first);
                    model.retain(|unit| !first.contains(unit));
                    if model.range(span.clone()).next().is_none() {
                        map.note_empty(class, slab);
                    }
                }
                _ if random(20) == 0 => {
                    map.clear(class, slab);
                    model.retain(|unit| !span.contains(unit));
                }
                _ => {}
            }
            let stored = map.words(slab).flat_map(|(first, word)| {
                let bits = (0..u64::BITS).filter(move |bit| word >> bit & 1 != 0);
                bits.map(move |bit| first + bit)
            });
            assert!(stored.eq(model.range(span).copied()));
            // What the map above says of each word is true.
            let mut words = 0..6 * SLAB_UNITS as usize / WORD_BITS;
            let above = |at: usize| map.words[at / WORD_BITS] >> (at % WORD_BITS) & 1 != 0;
            assert!(words.all(|at| above(at) == (map.bits[at] != 0)));
            let from = random(6);
            let mut slabs = model
                .range(from * SLAB_UNITS..)
                .map(|unit| unit / SLAB_UNITS);
            let next = slabs.find(|slab| slab % 2 == u32::from(class));
            assert_eq!(map.next_slab(class, from), next);
        }
    }

    /// Each search would otherwise be as long as the slab, or as the pool.
    #[test]
    fn a_search_passes_64_empty_words_or_slabs_at_a_time() {
        let mut map = map(70);
        for unit in [63, 64, 1000] {
            map.insert(unit);
        }
        map.note_first(0, 0);
        assert_eq!(map.words[0], 1 | 1 << 1 | 1 << (1000 / 64));
        let mut out = [0; 2];
        assert_eq!((map.take(0, &mut out), out), (2, [63, 64]));
        assert_eq!(map.words[0], 1 << (1000 / 64));
        // Another class's slabs are not in the way.
        map.insert(69 * SLAB_UNITS);
        map.note_first(1, 69);
        assert_eq!(*map.slabs, [1, 0, 0, 1 << 5]);
        map.clear(0, 0);
        assert_eq!((map.words[0], map.slabs[0]), (0, 0));
    }

    #[test]
    fn a_search_ends_where_it_was_told_to() {
        let words = [1, 0, 1 << 5];
        for (bits, found) in [
            (0..1, Some(0)),
            (0..0, None),
            (1..133, None),
            (1..134, Some(133)),
            (133..192, Some(133)),
            (134..192, None),
        ] {
            assert_eq!(next_set(&words, bits.clone()), found, "{bits:?}");
        }
    }
}
