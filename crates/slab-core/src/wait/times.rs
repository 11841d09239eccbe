//! [`WaitTimes`]: how long callers waited for memory.
//!
//! Kept under the mutex that every wait takes anyway: it costs the fast path nothing, and a wait two
//! looks at the clock, one when it begins and one when it ends.

use core::time::Duration;
use std::time::Instant;

/// How long the waits for one size class took: a histogram with fixed bounds.
///
/// Counts every wait that has ended since the pool was built, whether its caller got a chunk or gave up
/// (dropped the future): a caller that gives up after a second has waited a second.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use slab_core::{SizeClasses, SlabPool};
/// let classes = SizeClasses::explicit(&[65536])?;
/// let pool = SlabPool::builder().size_classes(classes).max_memory(256 << 10).build()?;
/// let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
/// let (chunk, ()) = tokio::join!(pool.alloc(65536), async { drop(all.pop()) });
/// let times = pool.wait_times(0).expect("there is a class");
/// assert_eq!(times.count(), 1);
/// assert_eq!(times.counts().iter().sum::<u64>(), 1);
/// assert!(!times.sum().is_zero());
/// # drop(chunk);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitTimes {
    counts: [u64; Self::BOUNDS_NANOS.len() + 1],
    sum_nanos: u64,
}

impl WaitTimes {
    /// The upper bounds of the buckets in nanoseconds, inclusive, from 10 microseconds to 10 seconds. The
    /// last bucket has no bound.
    ///
    /// A slice, as [`counts`](Self::counts) is: later versions may have more buckets.
    pub const BOUNDS_NANOS: &'static [u64] = &[
        10_000,
        50_000,
        100_000,
        500_000,
        1_000_000,
        5_000_000,
        10_000_000,
        50_000_000,
        100_000_000,
        500_000_000,
        1_000_000_000,
        5_000_000_000,
        10_000_000_000,
    ];

    /// Returns how many waits lie in each bucket; not cumulative. The last counts those above all bounds.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns how many waits there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all waits; saturates at 584 years.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    pub(crate) fn add(&mut self, nanos: u64) {
        let bucket = Self::BOUNDS_NANOS.partition_point(|&bound| bound < nanos);
        self.counts[bucket] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(nanos);
    }
}

/// When a wait began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitStart(Instant);

impl WaitStart {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Counts the wait, which ends now.
    pub(crate) fn record_in(self, times: &mut WaitTimes) {
        times.add(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn waits_fall_into_the_bucket_of_their_upper_bound() {
        let mut times = WaitTimes::default();
        let &[first, .., last] = WaitTimes::BOUNDS_NANOS else {
            panic!("there are several");
        };
        for nanos in [0, first, first + 1, last, last + 1, u64::MAX] {
            times.add(nanos);
        }
        let counts = times.counts();
        assert_eq!((counts[0], counts[1]), (2, 1));
        assert_eq!((counts[12], counts[13]), (1, 2));
        let most = Duration::from_nanos(u64::MAX);
        assert_eq!((times.count(), times.sum()), (6, most));
        assert!(WaitTimes::BOUNDS_NANOS.is_sorted());
    }
}
