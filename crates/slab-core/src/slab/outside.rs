//! [`Outside`]: which slab of a class lacks fewest chunks?

/// Numbers of up to 32 bits have so many magnitudes: 0, 1, 2 to 3, 4 to 7, and so on.
const MAGNITUDES: usize = u32::BITS as usize + 1;

/// How many chunks the slabs of a class have outside: a slab can become whole only if it lacks no more than are free.
///
/// How many slabs are of each magnitude is always known, and mostly tells enough. The least itself is remembered only
/// for as long as slabs are known to have it, and [found anew](Self::find_least) if all depends on it: to keep track of
/// it would take a search each time that such a slab gives out a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outside {
    /// Slabs by the magnitude of what they have outside.
    slabs: [u32; MAGNITUDES],
    /// Each slab has at least so many outside.
    least: u32,
    /// At least so many slabs have exactly as many; zero if none is known to.
    with_least: u32,
}

const fn magnitude(out: u32) -> usize {
    (u32::BITS - out.leading_zeros()) as usize
}

impl Outside {
    pub(super) const NONE: Self = Self {
        slabs: [0; MAGNITUDES],
        least: u32::MAX,
        with_least: 0,
    };

    /// A slab of the class has so many chunks outside now.
    pub(super) fn note(&mut self, out: u32) {
        self.slabs[magnitude(out)] += 1;
        self.note_least(out);
    }

    fn note_least(&mut self, out: u32) {
        if out < self.least {
            (self.least, self.with_least) = (out, 0);
        }
        self.with_least += u32::from(out == self.least);
    }

    /// A slab of the class had so many, and has no longer.
    pub(super) fn forget(&mut self, out: u32) {
        self.slabs[magnitude(out)] -= 1;
        if out == self.least {
            self.with_least = self.with_least.saturating_sub(1);
        }
    }

    /// Does a slab have at most this many outside? `None` if that is known only when the [least is
    /// found](Self::find_least).
    pub(super) fn has_at_most(&self, count: u64) -> Option<bool> {
        let Some(lowest) = self.slabs.iter().position(|&slabs| slabs > 0) else {
            return Some(false);
        };
        let (from, below) = ((1 << lowest) >> 1, 1_u64 << lowest);
        if count >= below - 1 {
            Some(true)
        } else if count < from || count < self.least.into() {
            Some(false)
        } else if self.with_least > 0 {
            Some(true)
        } else {
            None
        }
    }

    /// Finds the least, given what each of the slabs has outside.
    pub(super) fn find_least(&mut self, slabs: impl Iterator<Item = u32>) {
        (self.least, self.with_least) = (u32::MAX, 0);
        slabs.for_each(|out| self.note_least(out));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// What is said of the slabs is true whatever was noted, and is found out anew only if it is not known.
    #[test]
    fn what_is_known_is_true() {
        let mut slabs = [0_u32; 20];
        let mut outside = Outside::NONE;
        slabs.iter().for_each(|&out| outside.note(out));
        let mut seed = 1_u64;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            ((seed >> 33) % u64::from(below)) as u32
        };
        let mut found = 0;
        let rounds = if cfg!(miri) { 500 } else { 50_000 };
        for round in 0..rounds {
            let slab = &mut slabs[random(20) as usize];
            outside.forget(*slab);
            // Up to 100 at first, then around 50: of one magnitude.
            *slab = random(if round < rounds / 2 { 100 } else { 20 }) + 40 * (round * 2 / rounds);
            outside.note(*slab);
            let least = slabs.iter().min().copied().unwrap();
            let free = random(100);
            let known = outside.has_at_most(free.into()).unwrap_or_else(|| {
                found += 1;
                outside.find_least(slabs.iter().copied());
                let known = outside.has_at_most(free.into());
                known.expect("it was found")
            });
            assert_eq!(known, least <= free);
        }
        assert!((1..rounds / 10).contains(&found), "{found}");
    }

    /// Or each slab that becomes whole would have the next refusal look at all others.
    #[test]
    fn a_slab_that_becomes_whole_leaves_no_question() {
        let mut outside = Outside::NONE;
        (0..1000).for_each(|_| outside.note(4096));
        for out in (0..4096).rev() {
            outside.forget(out + 1);
            outside.note(out);
        }
        outside.forget(0);
        let known: Vec<_> = [0, 63, 4095, 8191]
            .map(|free| outside.has_at_most(free))
            .into();
        assert_eq!(known, [Some(false), Some(false), Some(false), Some(true)]);
    }

    /// Or a pool in which many slabs are as full would look through all of them each time one gives out a chunk.
    #[test]
    fn the_least_stays_known_while_a_slab_has_it() {
        let mut outside = Outside::NONE;
        for out in [40, 40, 40, 42, 42] {
            outside.note(out);
        }
        for _ in 0..3 {
            assert_eq!(outside.has_at_most(41), Some(true));
            outside.forget(40);
            outside.note(41);
        }
        assert_eq!(outside.has_at_most(39), Some(false));
        assert_eq!(outside.has_at_most(41), None);
        outside.find_least([41, 41, 41, 42, 42].into_iter());
        assert_eq!(outside.has_at_most(40), Some(false));
        assert_eq!(outside.has_at_most(41), Some(true));
    }

    #[test]
    fn no_slab_has_anything_outside() {
        assert_eq!(Outside::NONE.has_at_most(u64::MAX / 2), Some(false));
        let mut outside = Outside::NONE;
        outside.note(u32::MAX);
        assert_eq!(outside.has_at_most(u32::MAX.into()), Some(true));
        assert_eq!(outside.has_at_most(u64::from(u32::MAX) - 1), Some(false));
    }
}
