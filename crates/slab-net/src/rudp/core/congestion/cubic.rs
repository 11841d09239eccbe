//! CUBIC, RFC 9438, in segments.
//!
//! After a reduction the window follows `C (t - K)^3 + W_max`: fast back towards where the loss was, slowly past
//! it, then fast again. Where Reno's window would be larger, which is where round trips are short, Reno's is used.
//! Section numbers are those of the RFC.

use super::{CongestionControl, Progress, THRESHOLD_MIN, WINDOW_INITIAL};
use crate::rudp::Time;
use core::time::Duration;

/// How steep the curve is, in segments a second cubed (5.1).
const C: f64 = 0.4;
/// What is left of the window after a loss (4.6).
const BETA: f64 = 0.7;
/// What Reno would have to add a window to be as fast with that factor (4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

#[derive(Debug)]
pub(in super::super) struct Cubic {
    /// `cwnd`.
    window: f64,
    /// `ssthresh`.
    threshold: f64,
    /// The window before the last reduction, or less with fast convergence (4.7).
    w_max: f64,
    /// The window just before the last reduction.
    cwnd_prior: f64,
    /// `W_est`: the window that Reno would have.
    w_est: f64,
    /// The start of congestion avoidance, and `K` in seconds.
    epoch: Option<(Time, f64)>,
    /// When something was last acknowledged, to leave idle time out of the epoch (5.8).
    last: Option<Time>,
    /// `cwnd`, `ssthresh`, `w_max` and `cwnd_prior` before the last reduction.
    before: [f64; 4],
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: WINDOW_INITIAL.into(),
            threshold: f64::INFINITY,
            w_max: 0.0,
            cwnd_prior: 0.0,
            w_est: 0.0,
            epoch: None,
            last: None,
            before: [WINDOW_INITIAL.into(), f64::INFINITY, 0.0, 0.0],
        }
    }
}

impl Cubic {
    fn keep(&mut self) {
        self.before = [self.window, self.threshold, self.w_max, self.cwnd_prior];
    }

    /// Congestion avoidance (4.2 to 4.5), for the segments acknowledged.
    fn congestion_avoidance(&mut self, progress: &Progress) {
        let segments = f64::from(progress.segments);
        let (start, k) = *self.epoch.get_or_insert_with(|| {
            // There was no reduction, or a time-out: the curve begins here (4.8).
            self.w_max = self.w_max.max(self.window);
            self.w_est = self.window;
            let k = ((self.w_max - self.window) / C).cbrt();
            (progress.now, k)
        });
        let elapsed = progress.now.since(start).as_secs_f64();
        let curve = |t: f64| C * (t - k).powi(3) + self.w_max;
        let alpha = if self.w_est < self.cwnd_prior {
            ALPHA
        } else {
            1.0
        };
        self.w_est += alpha * segments / self.window;
        if curve(elapsed) < self.w_est {
            self.window = self.window.max(self.w_est);
        } else {
            let target = curve(elapsed + progress.rtt.as_secs_f64());
            let target = target.clamp(self.window, 1.5 * self.window);
            self.window += (target - self.window) / self.window * segments;
        }
    }
}

impl CongestionControl for Cubic {
    fn window(&self) -> u32 {
        (self.window as u32).max(1)
    }

    fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    fn acknowledged(&mut self, progress: &Progress) {
        let (before, last) = (self.window, self.last.replace(progress.now));
        let is_limited = progress.is_window_limited(self.window());
        if let (Some((start, _)), Some(last)) = (&mut self.epoch, last) {
            // What is sent behind a pause is acknowledged a round trip later, and round trips vary.
            let busy = match is_limited {
                true => 2 * progress.rtt,
                false => Duration::ZERO,
            };
            let idle = progress.now.since(last).saturating_sub(busy);
            *start = (*start + idle).min(progress.now);
        }
        if is_limited && self.in_slow_start() {
            self.window = (self.window + f64::from(progress.segments)).min(self.threshold);
        } else if is_limited {
            self.congestion_avoidance(progress);
        }
        self.window = self.window.min(f64::from(progress.limit).max(before));
    }

    fn lost(&mut self, outstanding: u32) {
        self.keep();
        self.cwnd_prior = self.window;
        // Fast convergence: the path has less room than before (4.7).
        self.w_max = if self.window < self.w_max {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        let flight = f64::from(outstanding).min(self.window);
        self.threshold = (flight * BETA).max(THRESHOLD_MIN.into());
        self.window = self.threshold;
        self.epoch = None;
    }

    fn timed_out(&mut self) {
        self.keep();
        self.cwnd_prior = self.window;
        self.threshold = (self.window * BETA).max(THRESHOLD_MIN.into());
        self.window = 1.0;
        self.w_max = 0.0;
        self.epoch = None;
    }

    fn undo(&mut self) {
        let window;
        [window, self.threshold, self.w_max, self.cwnd_prior] = self.before;
        self.window = self.window.max(window);
        self.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// Runs round trips of full windows; returns the window after each.
    fn run(cubic: &mut Cubic, now: &mut Time, rounds: u32) -> Vec<u32> {
        let round = |_| {
            *now = *now + RTT;
            let window = cubic.window();
            for _ in 0..window {
                cubic.acknowledged(&Progress {
                    segments: 1,
                    outstanding: window,
                    limit: 100_000,
                    now: *now,
                    rtt: RTT,
                });
            }
            cubic.window()
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn slow_start_doubles_and_a_loss_leaves_seven_tenths() {
        let (mut cubic, mut now) = (Cubic::default(), Time::ZERO);
        assert_eq!(run(&mut cubic, &mut now, 3), [20, 40, 80]);
        assert!(cubic.in_slow_start());
        cubic.lost(80);
        assert_eq!(cubic.window(), 56);
        assert!(!cubic.in_slow_start());
    }

    #[test]
    fn what_was_needless_is_taken_back() {
        let (mut cubic, mut now) = (Cubic::default(), Time::ZERO);
        run(&mut cubic, &mut now, 3);
        cubic.lost(80);
        run(&mut cubic, &mut now, 3);
        let kept = |cubic: &Cubic| [cubic.window, cubic.threshold, cubic.w_max, cubic.cwnd_prior];
        let mut before = [0.0; 4];
        for reduce in [|cubic: &mut Cubic| cubic.lost(60), Cubic::timed_out] {
            run(&mut cubic, &mut now, 1);
            before = kept(&cubic);
            reduce(&mut cubic);
            assert!(cubic.window < before[0]);
            cubic.undo();
            assert_eq!(kept(&cubic), before);
        }
        cubic.timed_out();
        run(&mut cubic, &mut now, 60);
        let grown = cubic.window;
        assert!(grown > before[0]);
        cubic.undo();
        assert_eq!(cubic.window, grown, "no smaller");
    }

    /// On the RFC's curve, the window is `K` seconds after a loss where it was at the loss.
    #[test]
    fn the_window_is_back_at_w_max_after_k() {
        let (mut cubic, mut now) = (Cubic::default(), Time::ZERO);
        cubic.window = 1000.0;
        cubic.lost(1000);
        let k = (1000.0_f64 * (1.0 - BETA) / C).cbrt();
        let rounds = (k / RTT.as_secs_f64()) as u32;
        let windows = run(&mut cubic, &mut now, rounds);
        // Concave: most of the way in the first half.
        assert!(windows[rounds as usize / 2] > 950, "{windows:?}");
        let last = windows[rounds as usize - 1];
        assert!((980..=1005).contains(&last), "{last} after {k} seconds");
        // Past it, faster and faster.
        let more = run(&mut cubic, &mut now, rounds);
        assert!(more[rounds as usize - 1] > 1250, "{more:?}");
    }

    #[test]
    fn small_windows_grow_no_slower_than_renos() {
        let (mut cubic, mut now) = (Cubic::default(), Time::ZERO);
        cubic.window = 10.0;
        cubic.lost(10);
        // Half a segment a round trip up to the window of before, then one.
        let windows = run(&mut cubic, &mut now, 9);
        assert_eq!(windows, [7, 7, 8, 8, 9, 9, 10, 11, 12]);
    }

    #[test]
    fn a_second_loss_below_w_max_triggers_fast_convergence() {
        let mut cubic = Cubic {
            window: 100.0,
            ..Cubic::default()
        };
        cubic.lost(100);
        assert_eq!(cubic.w_max, 100.0);
        cubic.lost(70);
        assert!((cubic.w_max - 59.5).abs() < 1e-9, "{}", cubic.w_max);
        cubic.timed_out();
        assert_eq!((cubic.window(), cubic.threshold as u32), (1, 34));
    }

    /// Not where the window was before (4.8).
    #[test]
    fn after_a_time_out_the_curve_begins_where_slow_start_ends() {
        let (mut cubic, mut now) = (Cubic::default(), Time::ZERO);
        cubic.window = 100.0;
        cubic.lost(100);
        cubic.timed_out();
        assert_eq!(run(&mut cubic, &mut now, 6)[4..], [32, 49]);
        cubic.acknowledged(&Progress {
            segments: 1,
            outstanding: 49,
            limit: 100_000,
            now,
            rtt: RTT,
        });
        assert_eq!(cubic.w_max, 49.0);
    }

    #[test]
    fn a_closed_peer_window_does_not_reset_the_congestion_window() {
        let mut cubic = Cubic {
            window: 80.0,
            ..Cubic::default()
        };
        for limit in [40, 0] {
            cubic.acknowledged(&Progress {
                segments: 40,
                outstanding: 80,
                limit,
                now: Time::ZERO,
                rtt: RTT,
            });
        }
        assert_eq!(cubic.window(), 80);
    }

    /// Neither if little is sent behind the pause, nor if pacing has sent a whole window again by the time that the
    /// first of it is acknowledged.
    #[test]
    fn idle_time_is_not_part_of_the_curve() {
        for sends_little_first in [true, false] {
            let (mut cubic, mut now) = (Cubic::default(), Time::ZERO);
            cubic.window = 100.0;
            cubic.lost(100);
            run(&mut cubic, &mut now, 2);
            let before = cubic.window();
            now = now + Duration::from_secs(60);
            if sends_little_first {
                cubic.acknowledged(&Progress {
                    segments: 1,
                    outstanding: 1,
                    limit: 100_000,
                    now,
                    rtt: RTT,
                });
            }
            let after = run(&mut cubic, &mut now, 1)[0];
            assert!(after <= before + 10, "{before} to {after}");
        }
    }
}
