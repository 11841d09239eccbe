//! How many segments the network is trusted with.
//!
//! | module | what |
//! |---|---|
//! | `reno` | KCP's own (`nc` = 0), which is Reno's: RFC 5681 |
//! | `cubic` | CUBIC: RFC 9438 |
//! | `pacer` | spreads over a round trip what the window allows |

mod cubic;
mod pacer;
mod reno;

pub(super) use pacer::Pacer;

use super::super::config::Congestion;
use super::super::time::Time;
use core::time::Duration;
use cubic::Cubic;
use reno::Reno;

/// RFC 6928.
const WINDOW_INITIAL: u32 = 10;
const THRESHOLD_MIN: u32 = 2;

/// What was acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Segments that were not acknowledged before.
    pub(super) segments: u32,
    /// Segments outstanding until then.
    pub(super) outstanding: u32,
    /// What the windows of both ends allow: a congestion window grows no further. It does not shrink with
    /// them, as a reader that is behind says nothing of the network.
    pub(super) limit: u32,
    pub(super) now: Time,
    /// The smoothed round-trip time.
    pub(super) rtt: Duration,
}

impl Progress {
    /// Was the congestion window what limited the session? One that is not used is not to grow
    /// (RFC 7661).
    fn fills(&self, window: u32) -> bool {
        self.outstanding.saturating_mul(2) > window
    }
}

/// What a congestion control is told, and what it answers.
pub(super) trait CongestionControl: core::fmt::Debug {
    /// The most segments outstanding.
    fn window(&self) -> u32;
    /// Does the window double each round trip?
    fn is_starting(&self) -> bool;
    /// Segments were acknowledged.
    fn acknowledged(&mut self, progress: &Progress);
    /// Segments were lost, and later ones arrived; told once a round trip.
    fn lost(&mut self, outstanding: u32);
    /// No acknowledgement came in time; told once, until one does.
    fn timed_out(&mut self);
}

/// The control of a session.
#[derive(Debug)]
pub(super) enum Control {
    Off,
    Reno(Reno),
    /// Apart, as it is large and seldom asked for.
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

    /// What a [`Pacer`] lets go of: segments a microsecond, a little more than the window a round
    /// trip, so that the window stays the limit. `None` if nothing is paced.
    pub(super) fn rate(&self, rtt: Option<Duration>) -> Option<f64> {
        let control = self.get()?;
        let micros = rtt?.as_secs_f64() * 1e6;
        // The factors of Linux.
        let ahead = if control.is_starting() { 2.0 } else { 1.2 };
        Some(f64::from(control.window()) * ahead / micros.max(1.0))
    }
}

impl CongestionControl for Control {
    fn window(&self) -> u32 {
        self.get().map_or(u32::MAX, CongestionControl::window)
    }

    fn is_starting(&self) -> bool {
        self.get().is_some_and(CongestionControl::is_starting)
    }

    fn acknowledged(&mut self, progress: &Progress) {
        if let Some(control) = self.get_mut() {
            control.acknowledged(progress);
        }
    }

    fn lost(&mut self, outstanding: u32) {
        if let Some(control) = self.get_mut() {
            control.lost(outstanding);
        }
    }

    fn timed_out(&mut self) {
        if let Some(control) = self.get_mut() {
            control.timed_out();
        }
    }
}
