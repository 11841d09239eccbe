//! [`Place`]: a size class, as what the fast paths have to know of it.

use crate::class::MAX_CLASSES;
use core::num::NonZeroU64;

/// A class of a pool in one word, which saves the fast paths some instructions and a load: where a class's entries
/// are in the directory, and where its magazine is among a thread's, is one shift away. Its lower half is left to a
/// chunk's unit; in the upper half are
///
/// | bits | what |
/// |---|---|
/// | 32..38 | the class's [`count_shift`](crate::class::geometry::Geometry::count_shift) |
/// | 38..43 | the class |
/// | 43 | free for others' marks |
/// | 44 | one |
/// | 45..54 | zero, so that a shift also multiplies |
/// | 54..64 | the class's [number](crate::directory), not zero |
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Place(NonZeroU64);

const _: () = assert!(MAX_CLASSES as u64 <= Place::CLASSES);

impl Place {
    const CLASS_SHIFT: u32 = 38;
    const CLASSES: u64 = 1 << 5;
    /// A bit that a place does not use.
    pub(crate) const MARK: u64 = 1 << 43;
    /// The bit that is set in every place.
    pub(crate) const SET_BIT: u32 = 44;
    const NUMBER_SHIFT: u32 = 54;
    /// How many numbers there is room for.
    pub(crate) const NUMBERS: usize = 1 << (64 - Self::NUMBER_SHIFT);

    pub(crate) fn new(class: u8, count_shift: u32, number: u16) -> Self {
        debug_assert!(count_shift < 64 && u64::from(class) < Self::CLASSES);
        debug_assert!(usize::from(number) < Self::NUMBERS);
        let bits = u64::from(number) << Self::NUMBER_SHIFT
            | u64::from(class) << Self::CLASS_SHIFT
            | u64::from(count_shift) << 32
            | 1 << Self::SET_BIT;
        Self(NonZeroU64::new(bits).expect("one bit is always set"))
    }

    #[inline(always)]
    pub(crate) fn class(self) -> u8 {
        (self.0.get() >> Self::CLASS_SHIFT & (Self::CLASSES - 1)) as u8
    }

    /// Where the class's `T` is in a table that is indexed by number, in bytes from its start. Of no place it is zero,
    /// that of the number that no class has. By one shift, if `T` has one of the sizes that the fast paths meet: both
    /// are zero bits.
    #[inline(always)]
    pub(crate) fn offset_of<T>(place: Option<Self>) -> usize {
        const {
            assert!(
                Self::SET_BIT < Self::NUMBER_SHIFT - 9,
                "not part of an offset"
            )
        };
        let bits = place.map_or(0, |place| place.0.get());
        match size_of::<T>() {
            8 => (bits >> (Self::NUMBER_SHIFT - 3)) as usize,
            512 => (bits >> (Self::NUMBER_SHIFT - 9)) as usize,
            size => (bits >> Self::NUMBER_SHIFT) as usize * size,
        }
    }

    /// The class's [number](crate::directory).
    // Without thread-locals nobody asks.
    #[cfg_attr(not(feature = "std"), allow(dead_code))]
    pub(crate) fn number(self) -> u16 {
        (self.0.get() >> Self::NUMBER_SHIFT) as u16
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
    /// The upper half of `bits` is that of a place's [`bits`](Self::bits). Unless the lower half is zero, the place is
    /// for reading only: no chunk's id is made of it.
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
            for (count_shift, number) in [(0, 1), (5, 8), (63, Place::NUMBERS as u16 - 1)] {
                let place = Place::new(class, count_shift, number);
                assert_eq!(place.class(), class);
                assert_eq!(place.count_shift() % 64, count_shift);
                assert_eq!(place.number(), number);
                let at = usize::from(number);
                assert_eq!(Place::offset_of::<u64>(Some(place)), at * 8);
                assert_eq!(Place::offset_of::<[u64; 64]>(Some(place)), at * 512);
                assert_eq!(Place::offset_of::<[u64; 3]>(Some(place)), at * 24);
                assert_eq!(place.bits().get() as u32, 0, "the unit's half");
                assert_eq!(place.bits().get() & Place::MARK, 0, "the mark's bit");
            }
        }
        assert_eq!(Place::offset_of::<u64>(None), 0);
        assert_eq!(Place::offset_of::<[u64; 64]>(None), 0);
    }
}
