//! Which size classes would waste least: a histogram of requests, and the best list for it.
//!
//! Choosing at most `k` class sizes for requests of known sizes is a shortest path: with the
//! distinct sizes in ascending order, the cheapest way to serve the first `j` of them with `t`
//! classes, the last of which is size `j`, is the cheapest way to serve the first `i < j` with
//! `t - 1`, plus a chunk of size `j` for each request between. A class is never better placed
//! between two requested sizes than on the lower of them, so this is exact. The best `i` never
//! falls as `j` rises (the cost obeys the quadrangle inequality), so each of the `k` rounds is done
//! by divide and conquer, in `n log n` steps.

use crate::class::{CHUNK_ALIGN, MAX_CHUNK_BYTES, MAX_CLASSES, SizeClasses};
use crate::error::ConfigError;
use alloc::collections::BTreeMap;
use alloc::{vec, vec::Vec};

/// A histogram of the sizes that were asked for.
///
/// A plain value. A pool that was told to [`record_sizes`](crate::SlabPoolBuilder::record_sizes) has
/// [one](crate::SlabPool::size_histogram). Or record into it where requests are made, each of them or a sample (one in a
/// hundred), which costs the pool nothing, and [`merge`](Self::merge) the histograms of several threads.
///
/// Sizes are distinguished in steps of [`CHUNK_ALIGN`] bytes, as those of classes are, so the choice of
/// classes loses nothing. Each distinct size takes memory, all together at most some 20 MB.
///
/// ```
/// use slab_core::{SizeClasses, SizeHistogram};
///
/// let mut seen = SizeHistogram::new();
/// seen.record(60, 500_000); // acknowledgements
/// seen.record(1350, 1_000_000); // QUIC packets
/// seen.record(8950, 40_000); // jumbo frames
///
/// let before = seen.waste(&SizeClasses::general());
/// let advice = seen.advise(3)?;
/// assert_eq!(advice.classes.sizes(), &[64, 1408, 8960]);
/// assert!(before.fraction() > 0.35);
/// assert!(advice.waste.fraction() < 0.04);
/// # Ok::<(), slab_core::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SizeHistogram {
    /// Requests by their size rounded up, in units of [`CHUNK_ALIGN`].
    sizes: BTreeMap<u32, Requests>,
    too_large: u64,
}

/// Requests of about one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Requests {
    count: u64,
    /// The sum of what was asked for.
    bytes: u128,
}

impl Requests {
    /// Adds `count` requests, at least one, or as many of them as can be counted and their share of the
    /// bytes.
    fn add(&mut self, count: u64, bytes: u128) {
        let added = count.min(u64::MAX - self.count);
        self.count += added;
        self.bytes += if added == count {
            bytes
        } else {
            bytes / u128::from(count) * u128::from(added)
        };
    }
}

impl SizeHistogram {
    /// Returns an empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records `count` requests for `len` bytes. Requests above [`MAX_CHUNK_BYTES`], which no class
    /// can serve, are only counted. At most `u64::MAX` are recorded of each size.
    pub fn record(&mut self, len: usize, count: u64) {
        if len > MAX_CHUNK_BYTES {
            self.add_too_large(count);
        } else {
            self.add(Self::units(len), count, len as u128 * u128::from(count));
        }
    }

    /// The size by which a length of at most [`MAX_CHUNK_BYTES`] is known, in units of [`CHUNK_ALIGN`].
    pub(crate) fn units(len: usize) -> u32 {
        len.max(1).div_ceil(CHUNK_ALIGN) as u32
    }

    /// Adds requests of one size, if there are any.
    pub(crate) fn add(&mut self, units: u32, count: u64, bytes: u128) {
        if count > 0 {
            self.sizes.entry(units).or_default().add(count, bytes);
        }
    }

    pub(crate) fn add_too_large(&mut self, count: u64) {
        self.too_large = self.too_large.saturating_add(count);
    }

    /// Adds what another histogram has recorded.
    ///
    /// ```
    /// # use slab_core::{MAX_CHUNK_BYTES, SizeHistogram};
    /// let work = |packets: Vec<usize>| {
    ///     let mut seen = SizeHistogram::new();
    ///     packets.into_iter().for_each(|len| seen.record(len, 1));
    ///     seen
    /// };
    /// let other = std::thread::spawn(move || work(vec![1350, MAX_CHUNK_BYTES + 1]));
    /// let mut seen = work(vec![60, 1350]);
    /// seen.merge(&other.join().unwrap());
    /// assert!(seen.iter().eq([(64, 1), (1408, 2)]));
    /// assert_eq!((seen.requests(), seen.too_large()), (3, 1));
    /// ```
    pub fn merge(&mut self, other: &Self) {
        for (&units, theirs) in &other.sizes {
            self.add(units, theirs.count, theirs.bytes);
        }
        self.add_too_large(other.too_large);
    }

    /// Returns how many requests were recorded, without those that are [too large](Self::too_large).
    #[must_use]
    pub fn requests(&self) -> u64 {
        let counts = self.sizes.values().map(|requests| requests.count);
        counts.fold(0, u64::saturating_add)
    }

    /// Returns the sizes that were requested, in ascending order, each with how often: to print them, or to save them and
    /// [`record`](Self::record) them again. A size is a multiple of [`CHUNK_ALIGN`], to which the requests were rounded
    /// up: [`waste`](Self::waste) of such a copy is too low, the list that it advises is as good. Those that were [too
    /// large](Self::too_large) are not among them.
    ///
    /// ```
    /// # use slab_core::SizeHistogram;
    /// let mut seen = SizeHistogram::new();
    /// seen.record(1350, 2);
    /// seen.record(60, 5);
    /// seen.record(1400, 1);
    /// assert!(seen.iter().eq([(64, 5), (1408, 3)]));
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        let size = |units: u32| units as usize * CHUNK_ALIGN;
        let sizes = self.sizes.iter();
        sizes.map(move |(&units, requests)| (size(units), requests.count))
    }

    /// Returns how many requests were above [`MAX_CHUNK_BYTES`].
    #[must_use]
    pub fn too_large(&self) -> u64 {
        self.too_large
    }

    /// Returns what the recorded requests waste with a list of classes. Requests above its largest class
    /// are left out of the bytes and counted.
    #[must_use]
    pub fn waste(&self, classes: &SizeClasses) -> Waste {
        let mut waste = Waste::default();
        for (&units, requests) in &self.sizes {
            match classes.round_up(units as usize * CHUNK_ALIGN) {
                Some(chunk) => {
                    waste.requested_bytes += requests.bytes;
                    waste.chunk_bytes += chunk as u128 * u128::from(requests.count);
                }
                None => waste.unserved = waste.unserved.saturating_add(requests.count),
            }
        }
        waste
    }

    /// Returns the list of at most `max_classes` classes that serves all recorded requests with the
    /// least waste; no other list has less.
    ///
    /// # Errors
    /// [`ConfigError::NoClasses`] if nothing was recorded or `max_classes` is zero,
    /// [`ConfigError::TooManyClasses`] if it is above [`MAX_CLASSES`].
    pub fn advise(&self, max_classes: usize) -> Result<Advice, ConfigError> {
        if max_classes > MAX_CLASSES {
            return Err(ConfigError::TooManyClasses { count: max_classes });
        }
        let mut sizes = Vec::with_capacity(self.sizes.len());
        let mut served = vec![0];
        for (&units, requests) in &self.sizes {
            sizes.push(units as usize * CHUNK_ALIGN);
            served.push(served[served.len() - 1] + u128::from(requests.count));
        }
        let classes = best_classes(&sizes, &served, max_classes);
        let classes = SizeClasses::explicit(&classes)?;
        Ok(Advice {
            waste: self.waste(&classes),
            classes,
        })
    }
}

/// What [`SizeHistogram::advise`] proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// The list, for [`SlabPoolBuilder::size_classes`](crate::SlabPoolBuilder::size_classes).
    pub classes: SizeClasses,
    /// What the recorded requests waste with it; compare with [`SizeHistogram::waste`] of the list
    /// in use.
    pub waste: Waste,
}

/// What recorded requests take with a list of classes. The few bytes that remain at the end of a
/// slab are not included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waste {
    /// Bytes asked for.
    pub requested_bytes: u128,
    /// Bytes of the chunks that served them.
    pub chunk_bytes: u128,
    /// Requests above the largest of these classes, which are in neither sum; without those
    /// [too large](SizeHistogram::too_large) for any.
    pub unserved: u64,
}

impl Waste {
    /// Returns how many bytes of chunks nobody had asked for.
    #[must_use]
    pub fn bytes(&self) -> u128 {
        self.chunk_bytes.saturating_sub(self.requested_bytes)
    }

    /// Returns the part of all chunk bytes that nobody had asked for, from 0 to 1.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        if self.chunk_bytes == 0 {
            return 0.0;
        }
        self.bytes() as f64 / self.chunk_bytes as f64
    }
}

/// Chooses at most `max` of `sizes`, so that rounding all requests up to them costs least;
/// `requests[j]` is how many requests the first `j` sizes have. The last size is always chosen.
fn best_classes(sizes: &[usize], requests: &[u128], max: usize) -> Vec<usize> {
    // More classes never cost more, so as many are used as may be.
    let rounds = max.min(sizes.len());
    if rounds == 0 {
        return Vec::new();
    }
    let mut round = Round {
        sizes,
        requests,
        // Without a class, only the first 0 sizes are served.
        before: vec![u128::MAX; sizes.len() + 1],
        after: vec![u128::MAX; sizes.len() + 1],
        from: vec![0; sizes.len() + 1],
    };
    round.before[0] = 0;
    let mut choices = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        round.after.fill(u128::MAX);
        round.solve(1, sizes.len(), 0, sizes.len() - 1);
        choices.push(round.from.clone());
        core::mem::swap(&mut round.before, &mut round.after);
    }
    let mut classes = Vec::with_capacity(rounds);
    let mut served = sizes.len();
    for from in choices.iter().rev() {
        classes.push(sizes[served - 1]);
        served = from[served] as usize;
    }
    debug_assert_eq!(served, 0);
    classes.reverse();
    classes
}

/// One round: adds one more class.
struct Round<'a> {
    sizes: &'a [usize],
    requests: &'a [u128],
    /// Least chunk bytes for the first `j` sizes without the class, and with it.
    before: Vec<u128>,
    after: Vec<u128>,
    /// How many sizes the other classes serve then.
    from: Vec<u32>,
}

impl Round<'_> {
    /// Fills `after[first..=last]`, whose best choices are known to lie in `low..=high`.
    fn solve(&mut self, first: usize, last: usize, low: usize, high: usize) {
        let middle = first.midpoint(last);
        let bytes = self.sizes[middle - 1] as u128;
        let mut best = low;
        for from in low..=high.min(middle - 1) {
            if self.before[from] == u128::MAX {
                continue;
            }
            let cost = self.before[from] + bytes * (self.requests[middle] - self.requests[from]);
            if cost < self.after[middle] {
                self.after[middle] = cost;
                best = from;
            }
        }
        self.from[middle] = best as u32;
        if first < middle {
            self.solve(first, middle - 1, low, best);
        }
        if middle < last {
            self.solve(middle + 1, last, best, high);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every list of at most `max` multiples of [`CHUNK_ALIGN`] that serves all; the least waste.
    fn brute_force(seen: &SizeHistogram, max: usize) -> u128 {
        let largest = *seen.sizes.keys().last().unwrap();
        (0..1_u32 << (largest - 1))
            .map(|mask| mask | 1 << (largest - 1))
            .filter(|mask| mask.count_ones() as usize <= max)
            .map(|mask| {
                let chosen = (0..largest).filter(|bit| mask >> bit & 1 == 1);
                let sizes: Vec<_> = chosen.map(|bit| (bit as usize + 1) * CHUNK_ALIGN).collect();
                let waste = seen.waste(&SizeClasses::explicit(&sizes).unwrap());
                assert_eq!(waste.unserved, 0);
                waste.bytes()
            })
            .min()
            .unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 2 } else { 200 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn advice_wastes_as_little_as_brute_force(
            requests in proptest::collection::vec((0..=11 * CHUNK_ALIGN, 1..1000_u64), 1..30),
            max in 1..6_usize,
        ) {
            let mut seen = SizeHistogram::new();
            for (len, count) in requests {
                seen.record(len, count);
            }
            let advice = seen.advise(max).unwrap();
            prop_assert!(advice.classes.sizes().len() <= max);
            prop_assert_eq!(advice.waste.unserved, 0);
            prop_assert_eq!(advice.waste.bytes(), brute_force(&seen, max));
        }
    }

    #[test]
    fn enough_classes_leave_only_the_rounding() {
        let mut seen = SizeHistogram::new();
        for len in [100, 1500, 9000] {
            seen.record(len, 10);
        }
        let advice = seen.advise(MAX_CLASSES).unwrap();
        assert_eq!(advice.classes.sizes(), &[128, 1536, 9024]);
        assert_eq!(advice.waste.bytes(), 10 * (28 + 36 + 24));
    }

    #[test]
    fn one_class_is_the_largest_request() {
        let mut seen = SizeHistogram::new();
        seen.record(0, 1);
        seen.record(MAX_CHUNK_BYTES, 1);
        seen.record(MAX_CHUNK_BYTES + 1, 7);
        assert_eq!((seen.requests(), seen.too_large()), (2, 7));
        let advice = seen.advise(1).unwrap();
        assert_eq!(advice.classes.sizes(), &[MAX_CHUNK_BYTES]);
        assert_eq!(advice.waste.bytes(), MAX_CHUNK_BYTES as u128);
    }

    #[test]
    fn counts_saturate_and_leave_out_the_excess() {
        let mut seen = SizeHistogram::new();
        seen.record(60, u64::MAX - 1);
        seen.record(50, 3);
        seen.record(200, 5);
        seen.record(MAX_CHUNK_BYTES + 1, u64::MAX);
        seen.record(MAX_CHUNK_BYTES + 1, 1);
        let twice = seen.clone();
        seen.merge(&twice);
        assert_eq!((seen.requests(), seen.too_large()), (u64::MAX, u64::MAX));
        let classes = SizeClasses::explicit(&[64, 256]).unwrap();
        let bytes = u128::from(u64::MAX - 1) * 4 + 14 + 10 * 56;
        assert_eq!(seen.waste(&classes).bytes(), bytes);
        assert_eq!(seen.advise(2).unwrap().classes.sizes(), &[64, 256]);
    }

    #[test]
    fn advise_without_requests_or_classes_is_an_error() {
        let mut seen = SizeHistogram::new();
        assert_eq!(seen.advise(3), Err(ConfigError::NoClasses));
        seen.record(1, 0);
        assert_eq!(seen.advise(3), Err(ConfigError::NoClasses));
        seen.record(1, 1);
        assert_eq!(seen.advise(0), Err(ConfigError::NoClasses));
        let count = MAX_CLASSES + 1;
        assert_eq!(
            seen.advise(count),
            Err(ConfigError::TooManyClasses { count })
        );
    }

    #[test]
    fn merge_equals_recording_into_one_histogram() {
        let (mut one, mut other, mut both) =
            <(SizeHistogram, SizeHistogram, SizeHistogram)>::default();
        for i in 0..if cfg!(miri) { 20 } else { 100 } {
            let (len, count) = (i * 997 % 5000, i as u64 % 7);
            if i % 2 == 0 { &mut one } else { &mut other }.record(len, count);
            both.record(len, count);
        }
        other.record(usize::MAX, 1);
        both.record(usize::MAX, 1);
        one.merge(&other);
        assert_eq!(one, both);
    }

    #[test]
    fn requests_above_the_largest_class_count_as_unserved() {
        let mut seen = SizeHistogram::new();
        seen.record(64, 3);
        seen.record(6390, 2);
        let waste = seen.waste(&SizeClasses::explicit(&[128]).unwrap());
        assert_eq!((waste.unserved, waste.bytes()), (2, 3 * 64));
        assert_eq!(waste.fraction(), 0.5);
    }

    #[test]
    #[cfg_attr(miri, ignore = "a million steps")]
    fn advise_is_fast_for_twenty_thousand_sizes() {
        let mut seen = SizeHistogram::new();
        for units in 1..20_000_usize {
            seen.record(units * CHUNK_ALIGN, 1 + units as u64 % 13);
        }
        let few = seen.advise(4).unwrap();
        let more = seen.advise(12).unwrap();
        assert_eq!(more.classes.sizes().len(), 12);
        assert!(more.waste.bytes() * 2 < few.waste.bytes());
    }
}
