//! Arithmetic on sequence numbers, which wrap.

/// How far `a` is after `b`; negative if it is before.
#[inline]
pub(super) fn diff(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

/// Is `a` before `b`?
#[inline]
pub(super) fn before(a: u32, b: u32) -> bool {
    diff(a, b) < 0
}

/// A ring of slots indexed by sequence number. Their number is a power of two; [`grow`](Ring::grow) raises it.
#[derive(Debug)]
pub(super) struct Ring<T> {
    slots: Box<[T]>,
}

impl<T: Default> Ring<T> {
    pub(super) fn new(slots: u32) -> Self {
        let slots = slots.next_power_of_two();
        Self {
            slots: (0..slots).map(|_| T::default()).collect(),
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    #[inline]
    fn index(&self, sn: u32) -> usize {
        sn as usize & (self.slots.len() - 1)
    }

    #[inline]
    pub(super) fn at(&self, sn: u32) -> &T {
        &self.slots[self.index(sn)]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, sn: u32) -> &mut T {
        let index = self.index(sn);
        &mut self.slots[index]
    }

    /// Makes it a ring of at least `slots` slots, more than now, and moves the contents of `first..first + count`.
    #[cold]
    #[inline(never)]
    pub(super) fn grow(&mut self, slots: u32, first: u32, count: u32) {
        debug_assert!(slots > self.capacity());
        let mut larger = Self::new(slots);
        for sn in (0..count).map(|n| first.wrapping_add(n)) {
            *larger.at_mut(sn) = core::mem::take(self.at_mut(sn));
        }
        *self = larger;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        assert!(before(u32::MAX, 0));
        assert!(before(u32::MAX - 5, 5));
        assert!(!before(5, u32::MAX - 5));
        assert_eq!(diff(2, u32::MAX), 3);
    }

    #[test]
    fn a_ring_keeps_its_contents_when_it_grows_across_the_wrap() {
        let mut ring = Ring::<Option<u32>>::new(8);
        let first = u32::MAX - 3;
        for n in 0..8 {
            *ring.at_mut(first.wrapping_add(n)) = Some(n);
        }
        ring.grow(9, first, 8);
        assert_eq!(ring.capacity(), 16);
        for n in 0..8 {
            assert_eq!(*ring.at(first.wrapping_add(n)), Some(n));
        }
        assert_eq!(*ring.at(first.wrapping_add(8)), None);
    }
}
