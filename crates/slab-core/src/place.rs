//! [`Place`]: a size class, as what the fast paths have to know of it.

use crate::class::MAX_CLASSES;
use core::num::NonZeroU64;

/// The size of an entry in a table that is indexed by number, which is a pointer; all pointers have 64 bits here.
pub(crate) const ENTRY_BYTES: usize = 8;

/// A class of a pool in one word, which saves the fast paths some instructions and a load. Its lower half is
/// left to a chunk's unit; in the upper half are
///
/// | bits | what |
/// |---|---|
/// | 32..38 | the class's [`count_shift`](crate::geometry::Geometry::count_shift) |
/// | 38..43 | the class |
/// | 43 | free for others' marks |
/// | 44 | set if other classes of the pool have the same number |
/// | 45 | one |
/// | 50..64 | the class's [number](crate::directory), not zero, times [`ENTRY_BYTES`]: where its entries are |
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Place(NonZeroU64);

const _: () = assert!(MAX_CLASSES as u64 <= Place::CLASSES);

impl Place {
    const CLASS_SHIFT: u32 = 38;
    const CLASSES: u64 = 1 << 5;
    /// A bit that a place does not use.
    pub(crate) const MARK: u64 = 1 << 43;
    const SHARES_NUMBER: u64 = 1 << 44;
    /// The bit that is set in every place.
    pub(crate) const SET_BIT: u32 = 45;
    const OFFSET_SHIFT: u32 = 50;
    /// How many numbers there is room for.
    pub(crate) const NUMBERS: usize = (1 << (64 - Self::OFFSET_SHIFT)) / ENTRY_BYTES;

    pub(crate) fn new(class: u8, count_shift: u32, (number, shared): (u16, bool)) -> Self {
        debug_assert!(count_shift < 64 && u64::from(class) < Self::CLASSES);
        debug_assert!(usize::from(number) < Self::NUMBERS);
        let offset = u64::from(number) * ENTRY_BYTES as u64;
        let mut bits = offset << Self::OFFSET_SHIFT
            | u64::from(class) << Self::CLASS_SHIFT
            | u64::from(count_shift) << 32
            | 1 << Self::SET_BIT;
        if shared {
            bits |= Self::SHARES_NUMBER;
        }
        Self(NonZeroU64::new(bits).expect("one bit is always set"))
    }

    #[inline(always)]
    pub(crate) fn class(self) -> u8 {
        (self.0.get() >> Self::CLASS_SHIFT & (Self::CLASSES - 1)) as u8
    }

    /// Where the class's entry is in a table that is indexed by number, in bytes from its start. Of no place it is zero,
    /// the entry of the number that no class has. By one shift: both are zero bits.
    #[inline(always)]
    pub(crate) fn entry_offset(place: Option<Self>) -> usize {
        (place.map_or(0, |place| place.0.get()) >> Self::OFFSET_SHIFT) as usize
    }

    /// Do other classes of the pool have the same number? If so, no thread's table leads to their magazines.
    // Without thread-locals nobody asks.
    #[cfg_attr(not(feature = "std"), allow(dead_code))]
    pub(crate) fn shares_number(self) -> bool {
        self.0.get() & Self::SHARES_NUMBER != 0
    }

    /// For `wrapping_shr`, which uses the lowest bits only: those above may not be zero, and masking them
    /// would cost an instruction.
    #[inline(always)]
    pub(crate) fn count_shift(self) -> u32 {
        (self.0.get() >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn bits(self) -> NonZeroU64 {
        self.0
    }

    /// # Safety
    /// The upper half of `bits` is that of a place's [`bits`](Self::bits).
    #[inline(always)]
    pub(crate) unsafe fn from_bits(bits: NonZeroU64) -> Self {
        Self(bits)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn place_holds_its_class_its_shift_and_its_number() {
        for class in [0, 1, MAX_CLASSES as u8 - 1] {
            for shared in [false, true] {
                for (count_shift, number) in [(0, 1), (5, 8), (63, Place::NUMBERS as u16 - 1)] {
                    let place = Place::new(class, count_shift, (number, shared));
                    assert_eq!(place.class(), class);
                    assert_eq!(place.count_shift() % 64, count_shift);
                    assert_eq!(Place::entry_offset(Some(place)), usize::from(number) * 8);
                    assert_eq!(place.shares_number(), shared);
                    assert_eq!(place.bits().get() as u32, 0, "the unit's half");
                    assert_eq!(place.bits().get() & Place::MARK, 0, "the mark's bit");
                }
            }
        }
        assert_eq!(Place::entry_offset(None), 0);
    }
}
