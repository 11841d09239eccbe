//! How many segments the network is trusted with.

use super::super::config::Congestion;

/// RFC 6928.
const WINDOW_INITIAL: u32 = 10;
const THRESHOLD_MIN: u32 = 2;

/// What a congestion control is told, and what it answers.
pub(super) trait CongestionControl: core::fmt::Debug {
    /// The most segments outstanding.
    fn window(&self) -> u32;
    /// Segments were acknowledged that were not before, while `limit` was what the windows allow.
    fn acknowledged(&mut self, segments: u32, limit: u32);
    /// Segments were lost, and later ones arrived.
    fn lost(&mut self, outstanding: u32);
    /// No acknowledgement came in time.
    fn timed_out(&mut self);
}

/// The control of a session.
#[derive(Debug)]
pub(super) enum Control {
    Off,
    Reno(Reno),
}

impl Control {
    pub(super) fn new(kind: Congestion) -> Self {
        match kind {
            Congestion::Off => Self::Off,
            Congestion::Reno => Self::Reno(Reno::default()),
        }
    }
}

impl CongestionControl for Control {
    fn window(&self) -> u32 {
        match self {
            Self::Off => u32::MAX,
            Self::Reno(reno) => reno.window(),
        }
    }

    fn acknowledged(&mut self, segments: u32, limit: u32) {
        if let Self::Reno(reno) = self {
            reno.acknowledged(segments, limit);
        }
    }

    fn lost(&mut self, outstanding: u32) {
        if let Self::Reno(reno) = self {
            reno.lost(outstanding);
        }
    }

    fn timed_out(&mut self) {
        if let Self::Reno(reno) = self {
            reno.timed_out();
        }
    }
}

/// RFC 5681 in segments: slow start up to a threshold, then one segment a window; half of what was
/// outstanding after a loss; one segment after a time-out.
#[derive(Debug)]
pub(super) struct Reno {
    window: u32,
    threshold: u32,
    /// Acknowledged since the window last grew, above the threshold.
    credit: u32,
}

impl Default for Reno {
    fn default() -> Self {
        Self {
            window: WINDOW_INITIAL,
            threshold: u32::MAX,
            credit: 0,
        }
    }
}

impl CongestionControl for Reno {
    fn window(&self) -> u32 {
        self.window
    }

    fn acknowledged(&mut self, segments: u32, limit: u32) {
        let started = self.threshold.saturating_sub(self.window).min(segments);
        self.window += started;
        self.credit += segments - started;
        while self.credit >= self.window {
            self.credit -= self.window;
            self.window += 1;
        }
        self.window = self.window.min(limit.max(1));
    }

    fn lost(&mut self, outstanding: u32) {
        self.threshold = (outstanding / 2).max(THRESHOLD_MIN);
        self.window = self.threshold;
        self.credit = 0;
    }

    fn timed_out(&mut self) {
        self.threshold = (self.window / 2).max(THRESHOLD_MIN);
        self.window = 1;
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reno_starts_slowly_grows_by_one_a_window_and_halves() {
        let mut reno = Reno {
            window: 1,
            threshold: 8,
            credit: 0,
        };
        reno.acknowledged(7, 1000);
        assert_eq!(reno.window(), 8);
        reno.acknowledged(7, 1000);
        assert_eq!(reno.window(), 8);
        reno.acknowledged(1, 1000);
        assert_eq!(reno.window(), 9);
        reno.acknowledged(1000, 20);
        assert_eq!(reno.window(), 20, "no larger than it can use");
        reno.lost(20);
        assert_eq!(reno.window(), 10);
        reno.timed_out();
        assert_eq!((reno.window(), reno.threshold), (1, 5));
    }
}
