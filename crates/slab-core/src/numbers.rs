//! Small numbers of which a process has only so many: each is handed out once at a time, and comes back.

use core::ops::Range;
// Plain atomics for shuttle, which knows no weak memory and whose schedules do not depend on the numbers.
#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

/// Numbers below `64 * WORDS`: one bit each, set while somebody has it. Without a lock, which would have to be held
/// across a `fork`.
#[derive(Debug)]
pub(crate) struct Numbers<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Numbers<WORDS> {
    /// All are free but those that `taken` says of the first 64.
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

    /// Takes the lowest of these words that is free: word 0 has the numbers 0 to 63, and so on.
    pub(crate) fn take(&self, words: Range<usize>) -> Option<u16> {
        let first = words.start as u16;
        (first..).zip(&self.0[words]).find_map(|(word, taken)| {
            let mut before = taken.load(Ordering::Relaxed);
            while before != u64::MAX {
                let free = before.trailing_ones() as u16;
                let after = before | 1 << free;
                // Acquire: pairs with the release of the former owner, also if others changed the word since.
                match taken.compare_exchange_weak(
                    before,
                    after,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Some(word * 64 + free),
                    Err(now) => before = now,
                }
            }
            None
        })
    }

    /// Gives back a number that was taken; what its owner did happens before what the next one does.
    pub(crate) fn give_back(&self, number: u16) {
        let (word, bit) = (number / 64, 1 << (number % 64));
        self.0[usize::from(word)].fetch_and(!bit, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_handed_out_once_and_comes_back() {
        let numbers = Numbers::<3>::new(0b101);
        let take_all = |words| {
            let taken = core::iter::from_fn(|| numbers.take(Range::clone(&words)));
            taken.collect::<Vec<_>>()
        };
        assert_eq!(take_all(1..2), (64..128).collect::<Vec<_>>());
        assert_eq!(numbers.take(0..3), Some(1));
        assert_eq!(take_all(0..1), (3..64).collect::<Vec<_>>());
        for number in [100, 7, 64] {
            numbers.give_back(number);
        }
        assert_eq!(take_all(0..2), [7, 64, 100]);
        assert_eq!(take_all(0..3), (128..192).collect::<Vec<_>>());
    }
}
