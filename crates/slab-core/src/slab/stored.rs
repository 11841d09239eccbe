//! The map of stored chunks: a bit for each 64 bytes of arena, set where a free chunk begins that its slab has
//! back.
//!
//! Chunks come out of a slab in order of address, at times one by one, under the pool's lock. If each search began at
//! the slab's first word, or the pool's first slab, taking all of them would need quadratic time; so the map remembers,
//! of each slab, up to where there is none, and, of all, which slabs have any.

use crate::arena::Arena;
use crate::sync::Table;
use alloc::{vec, vec::Vec};
use core::ops::Range;

const WORD_BITS: u32 = u64::BITS;

#[derive(Debug)]
pub(super) struct StoredMap {
    /// A bit per unit.
    bits: Table<u64>,
    /// A power of two: a slab has at least 64 units, and their number is one.
    words_per_slab: u32,
    /// Per slab: none of its words before this one, counted from its first, has a bit set.
    first_words: Vec<u32>,
    /// A bit per slab: some of its chunks are stored.
    slabs: Vec<u64>,
}

impl StoredMap {
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(super) fn new(arena: &Arena) -> Result<Self, i32> {
        let words_per_slab = arena.slab_units() / WORD_BITS;
        debug_assert!(words_per_slab.is_power_of_two());
        let slabs = arena.slabs();
        Ok(Self {
            bits: Table::new(slabs * words_per_slab as usize)?,
            words_per_slab,
            first_words: vec![0; slabs],
            slabs: vec![0; slabs.div_ceil(WORD_BITS as usize)],
        })
    }

    /// Adds a chunk of this slab.
    pub(super) fn insert(&mut self, slab: u32, unit: u32) {
        let word = unit / WORD_BITS;
        let bit = 1 << (unit % WORD_BITS);
        let bits = &mut self.bits[word as usize];
        debug_assert_eq!(*bits & bit, 0, "a chunk was freed twice");
        *bits |= bit;
        let first = &mut self.first_words[slab as usize];
        *first = (*first).min(word & (self.words_per_slab - 1));
        self.slabs[(slab / WORD_BITS) as usize] |= 1 << (slab % WORD_BITS);
    }

    /// Takes the slab's first chunks, as many as there are and `out` has room for; returns how many. Who takes the
    /// last one then says so: [`note_empty`](Self::note_empty).
    pub(super) fn take(&mut self, slab: u32, out: &mut [u32]) -> usize {
        let words = self.span(slab);
        let first_word = &mut self.first_words[slab as usize];
        let mut taken = 0;
        for at in words.start + *first_word as usize..words.end {
            let word = &mut self.bits[at];
            while *word != 0 && taken < out.len() {
                out[taken] = at as u32 * WORD_BITS + word.trailing_zeros();
                *word &= *word - 1;
                taken += 1;
            }
            if taken == out.len() {
                *first_word = (at - words.start) as u32;
                break;
            }
        }
        taken
    }

    /// The slab has no chunk here any more.
    pub(super) fn note_empty(&mut self, slab: u32) {
        self.slabs[(slab / WORD_BITS) as usize] &= !(1 << (slab % WORD_BITS));
    }

    /// Removes all chunks of the slab.
    pub(super) fn clear(&mut self, slab: u32) {
        let words = self.span(slab);
        self.bits[words].fill(0);
        self.first_words[slab as usize] = 0;
        self.note_empty(slab);
    }

    /// The slab's part of the map, in words, each with the unit that its lowest bit is of.
    pub(super) fn words(&self, slab: u32) -> impl Iterator<Item = (u32, u64)> {
        let span = self.span(slab);
        let first = span.start as u32 * WORD_BITS;
        let units = (first..).step_by(WORD_BITS as usize);
        units.zip(self.bits[span].iter().copied())
    }

    /// The first slab that has a chunk here, from this one on; there is one.
    pub(super) fn next_slab(&self, from: u32) -> u32 {
        let mut at = (from / WORD_BITS) as usize;
        let mut word = self.slabs[at] & (u64::MAX << (from % WORD_BITS));
        while word == 0 {
            at += 1;
            word = self.slabs[at];
        }
        at as u32 * WORD_BITS + word.trailing_zeros()
    }

    fn span(&self, slab: u32) -> Range<usize> {
        let words = self.words_per_slab as usize;
        slab as usize * words..(slab as usize + 1) * words
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const SLAB_BYTES: usize = 64 << 10;
    const SLAB_UNITS: u32 = (SLAB_BYTES / 64) as u32;

    fn map(slabs: usize) -> StoredMap {
        let arena = Arena::reserve(slabs * SLAB_BYTES, SLAB_BYTES).unwrap();
        StoredMap::new(&arena).unwrap()
    }

    /// Against a sorted set, for chunks of one unit stored and taken at random.
    #[test]
    fn chunks_come_out_in_order_of_address_whatever_went_in_when() {
        let mut map = map(3);
        let mut model = std::collections::BTreeSet::new();
        let mut seed = 1_u64;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            ((seed >> 33) % u64::from(below)) as u32
        };
        for _ in 0..if cfg!(miri) { 300 } else { 20_000 } {
            let slab = random(3);
            let span = slab * SLAB_UNITS..(slab + 1) * SLAB_UNITS;
            match random(20) {
                0..16 => {
                    let unit = span.start + random(SLAB_UNITS);
                    if model.insert(unit) {
                        map.insert(slab, unit);
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
                        map.note_empty(slab);
                    }
                }
                _ if random(20) == 0 => {
                    map.clear(slab);
                    model.retain(|unit| !span.contains(unit));
                }
                _ => {}
            }
            let stored = map.words(slab).flat_map(|(first, word)| {
                let bits = (0..WORD_BITS).filter(move |bit| word >> bit & 1 != 0);
                bits.map(move |bit| first + bit)
            });
            assert!(stored.eq(model.range(span).copied()));
            let from = random(3);
            if let Some(&unit) = model.range(from * SLAB_UNITS..).next() {
                assert_eq!(map.next_slab(from), unit / SLAB_UNITS);
            }
        }
    }

    #[test]
    fn a_search_begins_where_the_last_one_found_something() {
        let mut map = map(70);
        let units: Vec<u32> = (1..SLAB_UNITS).collect();
        for &unit in &units {
            map.insert(0, unit);
        }
        for &unit in &units {
            let mut out = [0];
            assert_eq!((map.take(0, &mut out), out), (1, [unit]));
            assert_eq!(map.first_words[0], unit / WORD_BITS);
        }
        map.note_empty(0);
        // What is stored before it moves it back.
        map.insert(0, 70);
        assert_eq!(map.first_words[0], 1);
        map.clear(0);
        assert_eq!(map.first_words[0], 0);
        // Slabs without chunks are passed 64 at a time.
        map.insert(69, 69 * SLAB_UNITS);
        assert_eq!(map.slabs, [0, 1 << 5]);
        assert_eq!(map.next_slab(1), 69);
    }
}
