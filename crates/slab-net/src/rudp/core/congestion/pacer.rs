//! A token bucket, filled at the rate of the congestion window.
//!
//! A whole window sent at once overflows the first short queue on its way, and the losses look like congestion. So
//! at most [`BURST`] segments go at once, or what the rate gives in two ticks of a coarse timer if that is more.

use super::super::super::time::Time;
use core::time::Duration;

/// Segments that may go at once, whatever the rate (RFC 9002, 7.7).
const BURST: f64 = 10.0;
/// The assumed resolution of timers: the bucket holds what the rate gives in twice this time.
const TICK_MICROS: f64 = 1000.0;

#[derive(Debug)]
pub(in super::super) struct Pacer {
    tokens: f64,
    filled_at: Time,
}

impl Pacer {
    pub(in super::super) fn new(now: Time) -> Self {
        Self {
            tokens: BURST,
            filled_at: now,
        }
    }

    /// Adds what `rate`, in segments a microsecond, has given since the last call.
    pub(in super::super) fn fill(&mut self, now: Time, rate: f64) {
        let micros = now.since(self.filled_at).as_secs_f64() * 1e6;
        let most = (2.0 * TICK_MICROS * rate).max(BURST);
        self.tokens = (self.tokens + micros * rate).min(most);
        self.filled_at = now;
    }

    /// May a segment go?
    pub(in super::super) fn allows(&self) -> bool {
        self.tokens >= 1.0
    }

    /// A segment goes.
    pub(in super::super) fn take(&mut self) {
        self.tokens -= 1.0;
    }

    /// When the next segment may go, together with as many more as the rate gives in a tick.
    pub(in super::super) fn next(&self, rate: f64) -> Time {
        let wanted = (TICK_MICROS * rate).clamp(1.0, BURST);
        let micros = ((wanted - self.tokens) / rate).max(1.0);
        self.filled_at + Duration::from_micros(micros.ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_the_rate() {
        let rate = 0.002; // 2 a millisecond
        let mut pacer = Pacer::new(Time::ZERO);
        let (mut now, mut sent, mut largest) = (Time::ZERO, 0, 0);
        while now < Time::from_micros(100_000) {
            pacer.fill(now, rate);
            let mut at_once = 0;
            while pacer.allows() {
                pacer.take();
                at_once += 1;
            }
            (sent, largest) = (sent + at_once, largest.max(at_once));
            let next = pacer.next(rate);
            assert!(next > now);
            now = next;
        }
        assert_eq!(largest, 10);
        assert!((205..=212).contains(&sent), "{sent}");
    }

    #[test]
    fn a_long_pause_gives_no_more_than_a_burst() {
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.fill(Time::from_micros(60_000_000), 0.001);
        let at_once = std::iter::from_fn(|| pacer.allows().then(|| pacer.take())).count();
        assert_eq!(at_once, 10);
    }
}
