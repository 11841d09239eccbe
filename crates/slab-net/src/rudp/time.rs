//! [`Time`]: the caller's clock, as a number.

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

/// A moment, in microseconds since an origin that the caller chooses. A [`Session`] has no clock: it is told the
/// time with each call.
///
/// A clock that goes backwards is treated as standing still.
///
/// ```
/// use slab_net::rudp::Time;
/// use std::time::Duration;
///
/// let later = Time::ZERO + Duration::from_millis(3);
/// assert_eq!(later.as_micros(), 3000);
/// assert_eq!(Time::ZERO.since(later), Duration::ZERO);
///
/// let begin = std::time::Instant::now();
/// let now = || Time::from_micros(begin.elapsed().as_micros() as u64);
/// assert!(now() >= Time::ZERO);
/// # assert_eq!(Time::from_micros(3000), later);
/// ```
///
/// [`Session`]: super::Session
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
// The number is one more than the microseconds, so that an `Option<Time>` is no larger.
pub struct Time(NonZeroU64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self::from_micros(0);

    /// Returns the moment this many microseconds after the origin; saturates.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        match NonZeroU64::MIN.checked_add(micros) {
            Some(time) => Self(time),
            None => Self(NonZeroU64::MAX),
        }
    }

    /// Returns the microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0.get() - 1
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// As [`since`](Self::since), in microseconds; saturates. For what is asked at each segment: a `Duration` is made
    /// and taken apart by divisions.
    pub(super) fn micros_since(self, earlier: Self) -> u32 {
        let micros = self.0.get().saturating_sub(earlier.0.get());
        u32::try_from(micros).unwrap_or(u32::MAX)
    }
}

impl core::ops::Add<Duration> for Time {
    type Output = Self;

    /// Saturates at the last moment that there is.
    fn add(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Time").field(&self.as_micros()).finish()
    }
}
