//! Which entry of the threads' tables of magazines (`local`) belongs to which class of which pool.
//!
//! Every thread has such a table, so that its magazine of a class is one load away: a class that is to have
//! magazines gets an entry of its own, in all tables the same, for as long as its pool exists. That is until
//! the last chunk is freed, so a chunk always finds a magazine of its own class there, or one that is shut
//! for ever (see `local`), or none.
//!
//! There are [`TABLE_LEN`] entries in a process. Classes of further pools share the first one, which stays
//! empty: their threads find their magazines on the slow paths. `PoolStats::slow_classes` counts them.

use crate::class::MAX_CLASSES;
// Plain atomics for shuttle, which knows no weak memory and whose schedules do not depend on the entries.
#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

/// Entries of a table, the one that stays empty included.
pub(crate) const TABLE_LEN: usize = 256;
/// The size of an entry, which is a pointer; all pointers have 64 bits here.
pub(crate) const ENTRY_BYTES: u16 = 8;
const WORDS: usize = TABLE_LEN / u64::BITS as usize;
/// The bit of the first entry.
const STAYS_EMPTY: u64 = 1;

const _: () = assert!(TABLE_LEN * ENTRY_BYTES as usize <= u16::MAX as usize + 1);

/// One bit an entry, set while a class has it. Without a lock, which would have to be held across a `fork`.
#[cfg(not(loom))]
static TAKEN: [AtomicU64; WORDS] = {
    let mut words = [const { AtomicU64::new(0) }; WORDS];
    words[0] = AtomicU64::new(STAYS_EMPTY);
    words
};

// Anew in each execution of a model.
#[cfg(loom)]
loom::lazy_static! {
    static ref TAKEN: [AtomicU64; WORDS] =
        core::array::from_fn(|word| AtomicU64::new(if word == 0 { STAYS_EMPTY } else { 0 }));
}

/// The entries of one pool's classes; dropping them gives them back.
#[derive(Debug)]
pub(crate) struct Entries([u16; MAX_CLASSES]);

impl Entries {
    /// For a pool without magazines.
    pub(crate) const NONE: Self = Self([0; MAX_CLASSES]);

    /// Takes an entry for each of so many classes, as long as there are any.
    pub(crate) fn take(classes: usize) -> Self {
        let mut entries = Self::NONE;
        for entry in &mut entries.0[..classes] {
            match take_one() {
                Some(taken) => *entry = taken,
                None => break,
            }
        }
        entries
    }

    /// How many of so many classes have none of their own.
    pub(crate) fn missing(&self, classes: usize) -> usize {
        self.0[..classes]
            .iter()
            .filter(|&&entry| entry == 0)
            .count()
    }

    /// Where the class's entry is in a table, in bytes; 0 if it has none of its own.
    pub(crate) fn offset(&self, class: u8) -> u16 {
        self.0[usize::from(class)] * ENTRY_BYTES
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        for entry in self.0.into_iter().filter(|&entry| entry != 0) {
            let (word, bit) = (entry / 64, 1 << (entry % 64));
            // Release: whoever has the next pool that gets the entry finds this one's magazines shut.
            TAKEN[usize::from(word)].fetch_and(!bit, Ordering::Release);
        }
    }
}

fn take_one() -> Option<u16> {
    (0..).zip(TAKEN.iter()).find_map(|(word, taken)| {
        let mut before = taken.load(Ordering::Relaxed);
        while before != u64::MAX {
            let free = before.trailing_ones() as u16;
            let after = before | 1 << free;
            // Acquire: pairs with the release of the former owner, also if others changed the word since.
            match taken.compare_exchange_weak(before, after, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(word * 64 + free),
                Err(now) => before = now,
            }
        }
        None
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Other tests have pools meanwhile, so how many entries are free is not known.
    #[test]
    fn entries_are_distinct_and_come_back() {
        let first = Entries::take(3);
        let second = Entries::take(2);
        let mut taken = [first.0, second.0].concat();
        taken.retain(|&entry| entry != 0);
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 5, "{first:?} {second:?}");
        for &entry in &taken {
            let bit = TAKEN[usize::from(entry / 64)].load(Ordering::Relaxed) >> (entry % 64) & 1;
            assert_eq!(bit, 1, "{entry}");
        }
        assert_eq!(first.offset(1), first.0[1] * ENTRY_BYTES);
        assert_eq!(first.offset(3), 0, "it has three classes");
        assert_eq!((first.missing(3), first.missing(5)), (0, 2));
    }
}
