//! [`Place`]: a size class, as what the fast paths have to know of it.

use core::num::NonZeroU64;

/// A class of a pool in one word, which saves the fast paths some instructions and a load. Its lower half is
/// left to a chunk's unit; in the upper half are
///
/// | bits | what |
/// |---|---|
/// | 32..38 | the class's [`count_shift`](crate::geometry::Geometry::count_shift) |
/// | 38..46 | the class |
/// | 46 | one: no place is zero |
/// | 47 | free for others' marks |
/// | 48..64 | the class's [entry](crate::entries) in each thread's table of magazines, in bytes from its start |
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Place(NonZeroU64);

impl Place {
    const CLASS_SHIFT: u32 = 38;
    const NOT_ZERO: u64 = 1 << 46;

    pub(crate) fn new(class: u8, count_shift: u32, entry_offset: u16) -> Self {
        debug_assert!(count_shift < 64);
        let bits = u64::from(entry_offset) << 48
            | Self::NOT_ZERO
            | u64::from(class) << Self::CLASS_SHIFT
            | u64::from(count_shift) << 32;
        Self(NonZeroU64::new(bits).expect("one bit is always set"))
    }

    #[inline(always)]
    pub(crate) fn class(self) -> u8 {
        (self.0.get() >> Self::CLASS_SHIFT) as u8
    }

    /// Of no place it is zero, the entry that stays empty. By one shift: both are zero bits.
    // Without thread-locals nobody asks.
    #[cfg_attr(not(feature = "std"), allow(dead_code))]
    #[inline(always)]
    pub(crate) fn entry_offset(place: Option<Self>) -> usize {
        (place.map_or(0, |place| place.0.get()) >> 48) as usize
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
    fn place_holds_its_class_its_shift_and_its_entry() {
        for class in [0, 1, 23, u8::MAX] {
            for (count_shift, entry_offset) in [(0, 0), (5, 8), (63, 2040), (1, u16::MAX)] {
                let place = Place::new(class, count_shift, entry_offset);
                assert_eq!(place.class(), class);
                assert_eq!(place.count_shift() % 64, count_shift);
                assert_eq!(Place::entry_offset(Some(place)), entry_offset.into());
                assert_eq!(place.bits().get() as u32, 0, "the unit's half");
                assert_eq!(place.bits().get() & 1 << 47, 0, "the mark's bit");
            }
        }
        assert_eq!(Place::entry_offset(None), 0);
    }
}
