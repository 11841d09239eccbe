//! The magazines of one thread in one pool, and where in it a class's magazine lies.

use crate::class::{ClassTable, MAX_CLASSES};
use crate::magazine::Magazine;

/// A class as its magazine's distance from the start of a [`ThreadCache`] in bytes: what the fast
/// paths have to know, some instructions sooner. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Place(u16);

impl Place {
    const STRIDE: u16 = size_of::<Magazine>() as u16;

    #[inline(always)]
    pub(crate) const fn of(class: u8) -> Self {
        Self((class as u16 + 1) * Self::STRIDE)
    }

    #[inline(always)]
    pub(crate) fn class(self) -> u8 {
        (self.0 / Self::STRIDE) as u8 - 1
    }

    #[inline(always)]
    pub(crate) fn bytes(self) -> u16 {
        self.0
    }

    /// # Safety
    /// `bytes` is what [`bytes`](Self::bytes) of a place returned.
    #[inline(always)]
    pub(crate) unsafe fn from_bytes(bytes: u16) -> Self {
        Self(bytes)
    }
}

const _: () = assert!((MAX_CLASSES + 1) * size_of::<Magazine>() <= u16::MAX as usize);

/// The magazines of one thread in one pool. Outlives both: held by the pool's registry and by the
/// thread.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ThreadCache {
    /// First, so that a magazine's address is the cache's plus its [`Place`]. The very first has no
    /// class: no place is zero.
    magazines: [Magazine; MAX_CLASSES + 1],
    /// Its place in the pool's registry.
    pub(crate) id: usize,
}

impl ThreadCache {
    pub(crate) fn new(id: usize, classes: &ClassTable) -> Self {
        let capacity = |index: usize| match index.checked_sub(1) {
            Some(class) if class < classes.count() => 2 * classes.geometry(class as u8).batch,
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
        let at = unsafe { first.byte_add(usize::from(place.0)) };
        // SAFETY: a magazine of `self`, which is borrowed as long.
        unsafe { &*at }
    }

    #[inline(always)]
    pub(crate) fn magazine(&self, class: u8) -> &Magazine {
        self.magazine_at(Place::of(class))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn magazines_come_first() {
        assert_eq!(core::mem::offset_of!(ThreadCache, magazines), 0);
    }

    #[test]
    fn places_are_classes_and_never_zero() {
        for class in 0..MAX_CLASSES as u8 {
            let place = Place::of(class);
            assert_eq!(place.class(), class);
            assert_ne!(place.bytes(), 0);
        }
    }
}
