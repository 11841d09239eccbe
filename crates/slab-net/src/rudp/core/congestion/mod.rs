//! How many segments the network is trusted with.
//!
//! | module | what |
//! |---|---|
//! | `reno` | KCP's own (`nc` = 0), which is Reno's: RFC 5681 |
//! | `cubic` | CUBIC: RFC 9438 |
//! | `pacer` | spreads a window over a round trip |

mod cubic;
mod pacer;
mod reno;

pub(super) use pacer::Pacer;

use super::super::config::Congestion;
use super::super::time::Time;
use core::time::Duration;
use cubic::Cubic;
use reno::Reno;

/// The initial window of RFC 6928, in segments.
const WINDOW_INITIAL: u32 = 10;
const THRESHOLD_MIN: u32 = 2;

/// What a datagram acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Segments that were not acknowledged before.
    pub(super) segments: u32,
    /// Segments outstanding before that.
    pub(super) outstanding: u32,
    /// The segments that the windows of both ends allow: a congestion window grows no further. It does not shrink
    /// with them, because a slow reader says nothing about the network.
    pub(super) limit: u32,
    pub(super) now: Time,
    /// The smoothed round-trip time.
    pub(super) rtt: Duration,
}

impl Progress {
    /// Did the congestion window limit the session? A window that is not used must not grow (RFC 7661).
    fn is_window_limited(&self, window: u32) -> bool {
        self.outstanding.saturating_mul(2) > window
    }
}

/// A congestion control: what it is told, and what it answers.
trait CongestionControl: core::fmt::Debug {
    /// The most segments outstanding.
    fn window(&self) -> u32;
    /// Does the window double each round trip?
    fn in_slow_start(&self) -> bool;
    /// Segments were acknowledged.
    fn acknowledged(&mut self, progress: &Progress);
    /// Segments were lost, and later ones arrived. Called at most once a round trip.
    fn lost(&mut self, outstanding: u32);
    /// No acknowledgement came in time. Called once until an acknowledgement comes.
    fn timed_out(&mut self);
    /// The last of these two was needless: the window is again what it was, or what it has become if that is more.
    fn undo(&mut self);
}

/// The control of a session.
#[derive(Debug)]
pub(super) enum Control {
    Off,
    Reno(Reno),
    /// Boxed, as it is large and seldom used.
    Cubic(Box<Cubic>),
}

impl Control {
    pub(super) fn new(kind: Congestion) -> Self {
        match kind {
            Congestion::Off => Self::Off,
            Congestion::Reno => Self::Reno(Reno::default()),
            Congestion::Cubic => Self::Cubic(Box::default()),
        }
    }

    fn get(&self) -> Option<&dyn CongestionControl> {
        match self {
            Self::Off => None,
            Self::Reno(reno) => Some(reno),
            Self::Cubic(cubic) => Some(&**cubic),
        }
    }

    fn get_mut(&mut self) -> Option<&mut dyn CongestionControl> {
        match self {
            Self::Off => None,
            Self::Reno(reno) => Some(reno),
            Self::Cubic(cubic) => Some(&mut **cubic),
        }
    }

    /// The rate at which a [`Pacer`] is filled, in segments a microsecond: a little more than a window a round
    /// trip, so that the window stays the limit. `None` if nothing is paced.
    pub(super) fn rate(&self, rtt: Option<Duration>) -> Option<f64> {
        let control = self.get()?;
        let micros = rtt?.as_secs_f64() * 1e6;
        // The factors that Linux uses.
        let ahead = if control.in_slow_start() { 2.0 } else { 1.2 };
        Some(f64::from(control.window()) * ahead / micros.max(1.0))
    }

    pub(super) fn window(&self) -> u32 {
        self.get().map_or(u32::MAX, CongestionControl::window)
    }

    pub(super) fn acknowledged(&mut self, progress: &Progress) {
        if let Some(control) = self.get_mut() {
            control.acknowledged(progress);
        }
    }

    pub(super) fn lost(&mut self, outstanding: u32) {
        if let Some(control) = self.get_mut() {
            control.lost(outstanding);
        }
    }

    pub(super) fn timed_out(&mut self) {
        if let Some(control) = self.get_mut() {
            control.timed_out();
        }
    }

    pub(super) fn undo(&mut self) {
        if let Some(control) = self.get_mut() {
            control.undo();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In slow start twice the window a round trip, then a fifth more than it.
    #[test]
    fn the_rate_follows_the_window() {
        let round_trip = Some(Duration::from_millis(10));
        for kind in [Congestion::Reno, Congestion::Cubic] {
            let mut control = Control::new(kind);
            assert_eq!(control.rate(None), None);
            assert_eq!(control.rate(round_trip), Some(20.0 / 10_000.0));
            control.lost(10);
            let window = f64::from(control.window());
            assert_eq!(control.rate(round_trip), Some(window * 1.2 / 10_000.0));
        }
        assert_eq!(Control::Off.rate(round_trip), None);
    }
}
