//! Small numbers of which a process has only so many: each is handed out once at a time, and comes back.

use crate::sync::MODELLED;
use core::ops::Range;
// Plain atomics for shuttle, which knows no weak memory and whose schedules do not depend on the numbers.
#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

/// How many numbers there are in a word; fewer where each has atomics of a model checker.
pub(crate) const PER_WORD: usize = if MODELLED { 16 } else { 64 };

/// Numbers below `PER_WORD * WORDS`: one bit each, set while somebody has it. Without a lock, which would have to be held
/// across a `fork`.
#[derive(Debug)]
pub(crate) struct Numbers<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Numbers<WORDS> {
    /// All are free but those that `taken` says of the first word.
    #[cfg(not(loom))]
    pub(crate) const fn new(taken: u64) -> Self {
        let mut words = [const { AtomicU64::new(0) }; WORDS];
        words[0] = AtomicU64::new(taken);
        Self(words)
    }

    #[cfg(loom)]
    pub(crate) fn new(taken: u64) -> Self {
        Self(core::array::from_fn(|word| {
            AtomicU64::new(if word == 0 { taken } else { 0 })
        }))
    }

    /// Takes `count` numbers in a row that are free, all in one of these words: word 0 has the first [`PER_WORD`], and so
    /// on. Returns the first of them, the lowest that there is. None if `count` is zero.
    pub(crate) fn take(&self, words: Range<usize>, count: usize) -> Option<u16> {
        let first = words.start;
        (first..).zip(&self.0[words]).find_map(|(word, taken)| {
            let mut before = taken.load(Ordering::Relaxed);
            while let Some(at) = first_free(before, count) {
                // Acquire: pairs with the release of the former owner, also if others changed the word since.
                match taken.compare_exchange_weak(
                    before,
                    before | row(at, count),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Some((word * PER_WORD + at) as u16),
                    Err(now) => before = now,
                }
            }
            None
        })
    }

    /// Gives back numbers that were taken together; what their owner did happens before what the next one does.
    pub(crate) fn give_back(&self, first: u16, count: usize) {
        let (word, at) = (usize::from(first) / PER_WORD, usize::from(first) % PER_WORD);
        self.0[word].fetch_and(!row(at, count), Ordering::Release);
    }
}

/// So many bits in a row, from this one on.
fn row(at: usize, count: usize) -> u64 {
    debug_assert!(count > 0 && at + count <= PER_WORD);
    u64::MAX >> (64 - count) << at
}

/// The lowest bit from which on so many are zero.
fn first_free(taken: u64, count: usize) -> Option<usize> {
    let last = PER_WORD.checked_sub(count)?;
    (0..=last).find(|&at| count > 0 && taken & row(at, count) == 0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_handed_out_once_and_comes_back() {
        let numbers = Numbers::<3>::new(0b101);
        let take_all = |words| {
            let taken = core::iter::from_fn(|| numbers.take(Range::clone(&words), 1));
            taken.collect::<Vec<_>>()
        };
        assert_eq!(take_all(1..2), (64..128).collect::<Vec<_>>());
        assert_eq!(numbers.take(0..3, 1), Some(1));
        assert_eq!(take_all(0..1), (3..64).collect::<Vec<_>>());
        for number in [100, 7, 64] {
            numbers.give_back(number, 1);
        }
        assert_eq!(take_all(0..2), [7, 64, 100]);
        assert_eq!(take_all(0..3), (128..192).collect::<Vec<_>>());
    }

    #[test]
    fn rows_of_numbers_lie_in_one_word_and_do_not_overlap() {
        let numbers = Numbers::<2>::new(1);
        assert_eq!(numbers.take(0..2, 0), None, "none asked for");
        assert_eq!(numbers.take(0..2, 65), None, "more than a word has");
        assert_eq!(numbers.take(0..2, 64), Some(64), "the first word has 63");
        assert_eq!(numbers.take(0..2, 30), Some(1));
        assert_eq!(numbers.take(0..2, 30), Some(31));
        assert_eq!(numbers.take(0..2, 4), None, "three are left");
        numbers.give_back(1, 30);
        assert_eq!(numbers.take(0..2, 31), None, "thirty and three, but apart");
        assert_eq!(numbers.take(0..2, 29), Some(1));
        assert_eq!(numbers.take(0..2, 2), Some(61), "beside the one at 30");
        assert_eq!(numbers.take(0..2, 1), Some(30));
        numbers.give_back(64, 64);
        assert_eq!(numbers.take(0..2, 64), Some(64));
    }
}
