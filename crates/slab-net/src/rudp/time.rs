//! [`Time`]: the caller's clock, as a number.

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

/// A moment, in microseconds since a beginning of the caller's choice. A [`Session`] has no clock:
/// it is told the time with each call.
///
/// A clock that goes backwards is taken to stand still.
///
/// ```
/// use slab_net::rudp::Time;
/// use std::time::Duration;
///
/// let later = Time::ZERO + Duration::from_millis(3);
/// assert_eq!(later.as_micros(), 3000);
/// assert_eq!(Time::ZERO.since(later), Duration::ZERO);
/// ```
///
/// [`Session`]: super::Session
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
// One more than the microseconds, so that an `Option` of it takes no more room.
pub struct Time(NonZeroU64);

impl Time {
    /// The beginning.
    pub const ZERO: Self = Self::from_micros(0);

    /// This many microseconds after the beginning.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        match NonZeroU64::MIN.checked_add(micros) {
            Some(time) => Self(time),
            None => Self(NonZeroU64::MAX),
        }
    }

    /// Microseconds since the beginning.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0.get() - 1
    }

    /// How long after `earlier` it is; zero if it is before.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl core::ops::Add<Duration> for Time {
    type Output = Self;

    /// Saturates at the end of time.
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
