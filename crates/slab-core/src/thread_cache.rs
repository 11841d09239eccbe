//! The magazines of one thread in one pool, and where in it a class's magazine lies.

use crate::class::MAX_CLASSES;
use crate::geometry::ClassTable;
use crate::magazine::Magazine;
use core::num::NonZeroU64;

/// A class, as what the fast paths have to know of it, which saves them some instructions and a load. It
/// is the upper half of a word whose lower half is left to a chunk's unit: bits 32..48 are the class's
/// [`count_shift`](crate::geometry::Geometry::count_shift), of which only the lowest six are used, bits
/// 48..64 the offset of its magazine from the start of a [`ThreadCache`] in bytes, which is never zero.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Place(NonZeroU64);

impl Place {
    const STRIDE: u64 = size_of::<Magazine>() as u64;

    pub(crate) fn new(class: u8, count_shift: u32) -> Self {
        // The unused bits between are free for others' marks.
        debug_assert!(count_shift < 64);
        let offset = (u64::from(class) + 1) * Self::STRIDE;
        let bits = offset << 48 | u64::from(count_shift) << 32;
        Self(NonZeroU64::new(bits).expect("no offset is zero"))
    }

    #[inline(always)]
    pub(crate) fn class(self) -> u8 {
        self.index() as u8
    }

    /// The class as an index: without a `u8` in between, subtracting one costs nothing.
    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        self.magazine_offset() / Self::STRIDE as usize - 1
    }

    #[inline(always)]
    pub(crate) fn magazine_offset(self) -> usize {
        (self.0.get() >> 48) as usize
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

/// Returns the same address, of which the compiler then knows nothing but that it lies in a register.
///
/// Otherwise the compiler addresses each word of a magazine by two registers, the cache's address and the
/// offset, and saves an addition. But what is loaded from there was stored a moment before, and Intel's
/// cores since Golden Cove forward a store to the load that follows it at once if both use one register
/// for the address, and after seven cycles if they use two: 2.8 instead of 3.8 ns for a chunk that is
/// allocated and freed.
#[inline(always)]
fn in_one_register<T>(at: *const T) -> *const T {
    at.map_addr(opaque)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn opaque(mut address: usize) -> usize {
    // SAFETY: there is no instruction in it.
    unsafe {
        core::arch::asm!(
            "# {0}",
            inout(reg) address,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    address
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn opaque(address: usize) -> usize {
    address
}

const _: () = assert!((MAX_CLASSES + 1) * size_of::<Magazine>() <= u16::MAX as usize);

/// The magazines of one thread in one pool. The pool's registry and the thread both hold it, so it
/// outlives either.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ThreadCache {
    /// The first field, so that a magazine's address is the cache's plus its [`Place`]. The first magazine
    /// has no class: no place is zero.
    magazines: [Magazine; MAX_CLASSES + 1],
    /// Its place in the pool's registry.
    pub(crate) id: usize,
}

impl ThreadCache {
    pub(crate) fn new(id: usize, classes: &ClassTable) -> Self {
        let capacity = |index: usize| match index.checked_sub(1) {
            Some(class) if class < classes.count() => {
                2 * classes.geometry(class as u8).batch as u16
            }
            _ => 0,
        };
        Self {
            magazines: core::array::from_fn(|index| Magazine::new(capacity(index))),
            id,
        }
    }

    #[inline(always)]
    pub(crate) fn magazine_at(&self, place: Place) -> &Magazine {
        debug_assert!(usize::from(place.class()) < MAX_CLASSES);
        let first: *const Magazine = self.magazines.as_ptr();
        // SAFETY: a place is one more than a class index, which is below `MAX_CLASSES`, times the
        // size of a magazine.
        let at = unsafe { first.byte_add(place.magazine_offset()) };
        // SAFETY: a magazine of `self`, which is borrowed as long.
        unsafe { &*in_one_register(at) }
    }

    pub(crate) fn magazine(&self, class: u8) -> &Magazine {
        &self.magazines[usize::from(class) + 1]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn magazines_are_the_first_field() {
        assert_eq!(core::mem::offset_of!(ThreadCache, magazines), 0);
    }

    #[test]
    fn place_encodes_its_class_and_is_never_zero() {
        for class in 0..MAX_CLASSES as u8 {
            let place = Place::new(class, 5);
            assert_eq!((place.class(), place.count_shift() % 64), (class, 5));
            assert_ne!(place.magazine_offset(), 0);
        }
    }
}
