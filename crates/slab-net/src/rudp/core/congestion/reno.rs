//! RFC 5681 in segments.

use super::{CongestionControl, Progress, THRESHOLD_MIN, WINDOW_INITIAL};

/// Slow start up to a threshold, then one segment more a window. After a loss, half of what was outstanding; after
/// a time-out, one segment.
#[derive(Debug)]
pub(in super::super) struct Reno {
    window: u32,
    threshold: u32,
    /// Segments acknowledged since the window last grew, above the threshold.
    credit: u32,
    /// Window and threshold before the last reduction.
    before: (u32, u32),
}

impl Default for Reno {
    fn default() -> Self {
        Self {
            window: WINDOW_INITIAL,
            threshold: u32::MAX,
            credit: 0,
            before: (WINDOW_INITIAL, u32::MAX),
        }
    }
}

impl CongestionControl for Reno {
    fn window(&self) -> u32 {
        self.window
    }

    fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    fn acknowledged(&mut self, progress: &Progress) {
        let before = self.window;
        if progress.is_window_limited(self.window) {
            let segments = progress.segments;
            let started = self.threshold.saturating_sub(self.window).min(segments);
            self.window += started;
            self.credit += segments - started;
            while self.credit >= self.window {
                self.credit -= self.window;
                self.window += 1;
            }
        }
        self.window = self.window.min(progress.limit.max(before));
    }

    fn lost(&mut self, outstanding: u32) {
        self.before = (self.window, self.threshold);
        // More may be outstanding than the window: segments of a larger window, lost and no longer in the network.
        self.threshold = (outstanding.min(self.window) / 2).max(THRESHOLD_MIN);
        self.window = self.threshold;
        self.credit = 0;
    }

    fn timed_out(&mut self) {
        self.before = (self.window, self.threshold);
        self.threshold = (self.window / 2).max(THRESHOLD_MIN);
        self.window = 1;
        self.credit = 0;
    }

    fn undo(&mut self) {
        let (window, threshold) = self.before;
        self.window = self.window.max(window);
        self.threshold = threshold;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rudp::Time;
    use core::time::Duration;

    fn acknowledge(reno: &mut Reno, segments: u32, limit: u32) {
        reno.acknowledged(&Progress {
            segments,
            outstanding: reno.window,
            limit,
            now: Time::ZERO,
            rtt: Duration::from_millis(1),
        });
    }

    #[test]
    fn slow_start_then_one_segment_a_window_then_halving() {
        let mut reno = Reno {
            window: 1,
            threshold: 8,
            ..Reno::default()
        };
        acknowledge(&mut reno, 7, 1000);
        assert_eq!(reno.window(), 8);
        acknowledge(&mut reno, 7, 1000);
        assert_eq!(reno.window(), 8);
        acknowledge(&mut reno, 1, 1000);
        assert_eq!(reno.window(), 9);
        acknowledge(&mut reno, 1000, 20);
        assert_eq!(reno.window(), 20, "no larger than it can use");
        reno.lost(20);
        assert_eq!(reno.window(), 10);
        assert!(!reno.in_slow_start());
        reno.timed_out();
        assert_eq!((reno.window(), reno.threshold), (1, 5));
        assert!(reno.in_slow_start());
    }

    /// The outstanding segments may have been sent with an earlier, larger window, and be lost by now.
    #[test]
    fn a_loss_never_raises_the_window() {
        let mut reno = Reno {
            window: 80,
            ..Reno::default()
        };
        reno.timed_out();
        acknowledge(&mut reno, 4, 1000);
        assert_eq!(reno.window(), 5);
        reno.lost(76);
        assert_eq!((reno.window(), reno.threshold), (2, 2));
    }

    #[test]
    fn a_closed_peer_window_does_not_reset_the_congestion_window() {
        let mut reno = Reno {
            window: 80,
            threshold: 40,
            ..Reno::default()
        };
        acknowledge(&mut reno, 8, 0);
        assert_eq!(reno.window(), 80);
        acknowledge(&mut reno, 80, 100);
        assert_eq!(reno.window(), 81);
    }

    #[test]
    fn what_was_needless_is_taken_back() {
        let mut reno = Reno {
            window: 80,
            threshold: 60,
            ..Reno::default()
        };
        for reduce in [|reno: &mut Reno| reno.lost(80), Reno::timed_out] {
            reduce(&mut reno);
            assert!(reno.window() <= 40 && reno.threshold == 40);
            reno.undo();
            assert_eq!((reno.window(), reno.threshold), (80, 60));
        }
        reno.timed_out();
        acknowledge(&mut reno, 200, 1000);
        let grown = reno.window();
        reno.before = (20, 30);
        reno.undo();
        assert_eq!((reno.window(), reno.threshold), (grown, 30), "no smaller");
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut reno = Reno::default();
        reno.acknowledged(&Progress {
            segments: 2,
            outstanding: 2,
            limit: 100,
            now: Time::ZERO,
            rtt: Duration::from_millis(1),
        });
        assert_eq!(reno.window(), WINDOW_INITIAL);
    }
}
