//! The numbers of size classes, by which handles and threads find what belongs to a class.
//!
//! Each class of each pool in the process has a number, which is part of every handle to one of its chunks. With it
//!
//! - a handle finds its pool, the pool's memory and its reference counts, here: so it takes 8 bytes and not 16, which
//!   is half the cache lines when handles go from core to core (`ARCHITECTURE.md` says what that gained);
//! - a thread finds its magazine of the class, in a rack of its own (see `local`).
//!
//! A pool takes its numbers when it is built and gives them back when its last chunk is freed, so a chunk always
//! finds its own pool, and in the threads' racks a magazine of its own class, or one that is shut.
//!
//! There are [`NUMBERS`] in a process. While those of [`OWN`] last, a pool with magazines gets one for each of its
//! classes, all in a row. All classes of a further pool, and of one without magazines, [share](is_shared) one, with which
//! a thread's rack has no magazine: threads find theirs on the slow paths. `PoolStats::slow_classes` counts them.

mod numbers;

use crate::class::place::Place;
use crate::class::{CHUNK_ALIGN, MAX_CLASSES};
use crate::directory::numbers::{Numbers, PER_WORD};
use crate::error::ConfigError;
use crate::pool::inner::Inner;
use crate::sync::{AtomicU32, MODELLED};
use core::cell::UnsafeCell;
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;

/// Words of numbers: those that a class may have for itself, and all. The others are for pools that are left without,
/// one each.
const WORDS: [usize; 2] = if cfg!(not(feature = "std")) {
    [0, 2]
} else if MODELLED {
    [1, 2]
} else if cfg!(miri) {
    [4, 8]
} else {
    [8, 16]
};
const OWN: Range<usize> = 0..WORDS[0];
const SHARED: Range<usize> = WORDS[0]..WORDS[1];
/// Numbers in a process, with zero, which no class has. Each thread has address space for as many magazines.
pub(crate) const NUMBERS: usize = PER_WORD * WORDS[1];
const NOBODYS: u64 = 1;

/// Do all classes of the pool have this number? If so, no thread's rack has their magazines.
// Without thread-locals nobody asks.
#[cfg_attr(not(feature = "std"), allow(dead_code))]
pub(crate) fn is_shared(number: u16) -> bool {
    usize::from(number) >= PER_WORD * WORDS[0]
}

const _: () = assert!(NUMBERS <= Place::NUMBERS);

#[cfg(not(loom))]
static TAKEN: Numbers<{ WORDS[1] }> = Numbers::new(NOBODYS);

// Anew in each execution of a model.
#[cfg(loom)]
loom::lazy_static! {
    static ref TAKEN: Numbers<{ WORDS[1] }> = Numbers::new(NOBODYS);
}

/// A column of the directory, indexed by number: written once by the pool that has the number, before it has chunks,
/// and read by those only who have a chunk of it, and so got it later. Not atomic, so that the compiler sees that what
/// it reads is what it has read before. Columns rather than rows: so a place's offset is that of all its entries.
struct Column<T>([UnsafeCell<T>; NUMBERS]);

// SAFETY: an entry is written by the owner of its number only, while nobody reads it (`set`), and copied by those only
// for whom it was written before (`get`). What it points to, a pool and its memory, any thread may use.
unsafe impl<T: Copy> Sync for Column<T> {}

/// All zero while there are no pools, so that it takes no place in a program's file.
struct Directory {
    pools: Column<Option<NonNull<Inner>>>,
    /// Where the pool's arena begins.
    bases: Column<Option<NonNull<u8>>>,
    /// The same as a number.
    addresses: Column<usize>,
    /// The pool's table of reference counts.
    counts: Column<Option<NonNull<AtomicU32>>>,
    /// The place in it that belongs to the arena's first unit.
    counts_from: Column<usize>,
}

impl Directory {
    const fn new() -> Self {
        Self {
            pools: Column([const { UnsafeCell::new(None) }; NUMBERS]),
            bases: Column([const { UnsafeCell::new(None) }; NUMBERS]),
            addresses: Column([const { UnsafeCell::new(0) }; NUMBERS]),
            counts: Column([const { UnsafeCell::new(None) }; NUMBERS]),
            counts_from: Column([const { UnsafeCell::new(0) }; NUMBERS]),
        }
    }
}

#[cfg(not(loom))]
#[inline(always)]
fn directory() -> &'static Directory {
    static DIRECTORY: Directory = Directory::new();
    &DIRECTORY
}

/// A model has its own numbers, and runs on one system thread.
#[cfg(loom)]
fn directory() -> &'static Directory {
    std::thread_local!(static DIRECTORY: &'static Directory =
        alloc::boxed::Box::leak(alloc::boxed::Box::new(Directory::new())));
    DIRECTORY.with(|directory| *directory)
}

impl<T: Copy> Column<T> {
    /// # Safety
    /// The pool that the place is of lives.
    #[inline(always)]
    unsafe fn get(&self, place: Place) -> T {
        const { assert!(size_of::<T>() == 8, "places find such entries by one shift") };
        let offset = Place::offset_of::<T>(Some(place));
        // SAFETY: the offset of a number's entry, and numbers are below `NUMBERS`.
        let entry = unsafe { self.0.as_ptr().byte_add(offset) };
        // SAFETY: one of the entries.
        let value = unsafe { (*entry).get() };
        // SAFETY: written before the pool had chunks, and not again while it lives.
        unsafe { *value }
    }

    /// # Safety
    /// The number is the caller's, and nobody has a chunk of a class with it.
    unsafe fn set(&self, number: u16, value: T) {
        // SAFETY: the caller's promise.
        unsafe { *self.0[usize::from(number)].get() = value };
    }
}

/// # Safety
/// The pool that the place is of lives.
#[inline(always)]
pub(crate) unsafe fn pool(place: Place) -> NonNull<Inner> {
    // SAFETY: the caller's promise.
    let pool = unsafe { directory().pools.get(place) };
    // SAFETY: a pool that lives has entered itself.
    unsafe { pool.unwrap_unchecked() }
}

/// The first byte of the chunk with this unit.
///
/// # Safety
/// The pool that the place is of lives, and the unit is one of its arena's.
#[inline(always)]
pub(crate) unsafe fn address(place: Place, unit: u32) -> NonNull<u8> {
    // SAFETY: the caller's promise.
    let base = unsafe { directory().bases.get(place) };
    // SAFETY: a pool that lives has entered itself.
    let base = unsafe { base.unwrap_unchecked() };
    // SAFETY: the caller's promise.
    let from = unsafe { directory().addresses.get(place) };
    let address = from + unit as usize * CHUNK_ALIGN;
    // SAFETY: within the arena, so not zero.
    let address = unsafe { NonZeroUsize::new_unchecked(address) };
    // Only says by which right: optimised, nothing is left of the pointer, not even its load.
    base.with_addr(address)
}

/// Tells the compiler what the pool's entry says, where its memory begins at `base`. It then adds up the chunk's address
/// from the pool's own field, which after an allocation is nearer at hand than this entry. (Of two equal numbers LLVM
/// takes the one that it has, of two equal pointers it does not: hence the column of numbers.)
///
/// # Safety
/// The pool that the place is of lives, and its arena begins there.
#[inline(always)]
pub(crate) unsafe fn assume_base(place: Place, base: NonNull<u8>) {
    let address = base.addr().get();
    // SAFETY: the caller's promise.
    let entered = unsafe { directory().addresses.get(place) };
    // SAFETY: the caller's promise: a pool enters where its arena begins for each of its numbers, and that never moves.
    unsafe { core::hint::assert_unchecked(address == entered) };
}

/// The word that counts the references to a chunk beyond the first.
///
/// # Safety
/// The pool that the place is of lives for `'a`, and the unit is that of a chunk of its class.
#[inline(always)]
pub(crate) unsafe fn count<'a>(place: Place, unit: u32) -> &'a AtomicU32 {
    // SAFETY: the caller's promise.
    let counts = unsafe { directory().counts.get(place) };
    // SAFETY: as above.
    let from = unsafe { directory().counts_from.get(place) };
    let at = (from + unit as usize).wrapping_shr(place.count_shift());
    // SAFETY: a pool that lives has entered itself.
    let counts = unsafe { counts.unwrap_unchecked() };
    // SAFETY: a unit is one of the arena's, and the table has as many entries as `from` and those units, shifted by the
    // least shift of all classes; they are whole slabs, so no part of an entry is lost by that.
    let count = unsafe { counts.add(at) };
    // SAFETY: the table lives as long as the pool.
    unsafe { count.as_ref() }
}

/// The numbers of one pool's classes; dropping them gives them back.
#[derive(Debug)]
pub(crate) struct ClassNumbers {
    /// That of the first class, and of all others if they share it; zero of no pool's.
    first: u16,
    /// How many: the others' follow the first.
    count: u8,
    /// How many classes share one.
    sharing: u8,
}

const _: () = assert!(MAX_CLASSES <= PER_WORD, "a row for each pool");

impl ClassNumbers {
    /// Of classes that are no pool's.
    pub(crate) const NONE: Self = Self {
        first: 0,
        count: 0,
        sharing: 0,
    };

    /// For so many classes of a new pool.
    ///
    /// # Errors
    /// [`ConfigError::TooManyPools`].
    pub(crate) fn take(classes: usize, has_magazines: bool) -> Result<Self, ConfigError> {
        let count = classes as u8;
        if has_magazines && let Some(first) = TAKEN.take(OWN, classes) {
            return Ok(Self {
                first,
                count,
                sharing: 0,
            });
        }
        let shared = TAKEN.take(SHARED, 1);
        Ok(Self {
            first: shared.ok_or(ConfigError::TooManyPools)?,
            count: 1,
            sharing: count,
        })
    }

    /// The class's number.
    pub(crate) fn of(&self, class: u8) -> u16 {
        if self.sharing == 0 {
            self.first + u16::from(class)
        } else {
            self.first
        }
    }

    /// How many classes have none of their own.
    pub(crate) fn sharing(&self) -> usize {
        self.sharing.into()
    }

    /// Makes the pool known, before it has chunks.
    pub(crate) fn enter(
        &self,
        pool: NonNull<Inner>,
        base: NonNull<u8>,
        counts: &[AtomicU32],
        counts_from: usize,
    ) {
        let directory = directory();
        let counts = Some(NonNull::from(counts).cast());
        for number in self.taken() {
            // SAFETY: this pool's number. It has no chunks yet, and the pool before it has none left.
            unsafe { directory.pools.set(number, Some(pool)) };
            // SAFETY: as above.
            unsafe { directory.bases.set(number, Some(base)) };
            // SAFETY: as above.
            unsafe { directory.addresses.set(number, base.addr().get()) };
            // SAFETY: as above.
            unsafe { directory.counts.set(number, counts) };
            // SAFETY: as above.
            unsafe { directory.counts_from.set(number, counts_from) };
        }
    }

    fn taken(&self) -> Range<u16> {
        self.first..self.first + u16::from(self.count)
    }
}

impl Drop for ClassNumbers {
    fn drop(&mut self) {
        if self.count > 0 {
            // By which whoever has the next pool that gets a number finds this one's magazines shut, and nobody at them.
            TAKEN.give_back(self.first, self.count.into());
        }
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Other tests have pools meanwhile, so how many numbers are free is not known.
    #[test]
    fn numbers_are_distinct_and_shared_where_nobody_has_magazines() {
        let first = ClassNumbers::take(3, true).unwrap();
        let second = ClassNumbers::take(2, true).unwrap();
        let third = ClassNumbers::take(2, false).unwrap();
        let mut taken: Vec<_> = [&first, &second, &third]
            .into_iter()
            .flat_map(ClassNumbers::taken)
            .collect();
        assert_eq!(taken.len(), 6, "{first:?} {second:?} {third:?}");
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 6);
        assert_eq!(first.of(2), first.of(0) + 2);
        assert_eq!(first.sharing(), 0);
        assert!(!is_shared(first.of(2)) && is_shared(third.of(0)));
        assert_eq!(third.of(0), third.of(1));
        assert_eq!(third.sharing(), 2);
    }
}
