//! Round-trip time, and when a segment is taken for lost.
//!
//! The time-out is KCP's, which is that of RFC 6298; with a congestion control it is restarted by progress, as there.
//! Losses are found as in RFC 8985 (RACK): every transmission has a number and a time, and once one is known to have
//! arrived, earlier transmissions are lost if they are too many transmissions or too long behind it. A retransmission
//! is a transmission like any other, so its loss is found the same way, again and again. Because an ACK echoes the
//! time of the transmission that arrived, there is no doubt which one it was.

use super::super::config::SessionConfig;
use super::super::time::Time;
use super::sn::before;
use core::time::Duration;

pub(super) const INITIAL_RTO: Duration = Duration::from_millis(200);
const MIN_RTO: Duration = Duration::from_millis(100);
const MIN_RTO_NODELAY: Duration = Duration::from_millis(30);
const MAX_RTO: Duration = Duration::from_secs(60);
/// The reordering window is no smaller than this, however short the round trip.
const MIN_REORDERING: Duration = Duration::from_millis(1);
/// The largest reordering window, in quarters of the round-trip time.
const MAX_REORDERING: u8 = 4;
/// One needless retransmission in this many transmissions is accepted.
const TRANSMISSIONS_PER_SPURIOUS: u64 = 16;
/// They are counted anew after as many transmissions as may have this many needless ones.
const SPURIOUS_COUNTED: u64 = 64;
/// After this many round trips with a loss, in a row without a needless retransmission, the path is taken to keep order
/// better again (RFC 8985 has 16 recoveries); twice as many for each step of the reordering window. Not after as many
/// losses: a large window has them in one round trip, and would find the path to reorder again and again.
const FORGET_REORDERING: u32 = 16;

#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// All durations are in microseconds, in 32 bits: there are many sessions.
    interval: u32,
    nodelay: bool,
    fast_resend: u32,
    /// Smoothed round-trip time; zero before the first sample.
    srtt: u32,
    variance: u32,
    latest: u32,
    rto: u32,
    /// Time-outs since the last new acknowledgement.
    backoff: u32,
    /// The latest transmission known to have arrived.
    arrived: u64,
    /// The reordering window in quarters of the round-trip time; 0 while the path keeps order.
    reordering: u8,
    /// Losses since the last needless retransmission, one a round trip: of transmissions after this one, in 32 bits.
    losses_since_spurious: u32,
    loss_counted_at: u32,
    /// The last transmission when needless retransmissions were last counted anew.
    reordering_raised_at: u64,
    /// Needless retransmissions after `reordering_raised_at`.
    spurious_count: u64,
}

impl Recovery {
    pub(super) fn new(config: &SessionConfig) -> Self {
        Self {
            interval: micros(config.interval),
            nodelay: config.nodelay,
            fast_resend: config.fast_resend,
            latest: micros(INITIAL_RTO),
            rto: micros(INITIAL_RTO),
            ..Self::default()
        }
    }

    /// The smoothed round-trip time, or `None` before the first sample.
    pub(super) fn srtt(&self) -> Option<Duration> {
        (self.srtt > 0).then_some(duration(self.srtt))
    }

    /// How long after its transmission a segment is overdue, backoff included.
    pub(super) fn timeout(&self) -> Duration {
        if self.backoff == 0 {
            return self.first_timeout();
        }
        let factor = if self.nodelay { 1.5_f64 } else { 2.0 };
        // 2^30 is far beyond the maximum already.
        let backoff = i32::try_from(self.backoff.min(30)).unwrap_or(30);
        let timeout = self.first_timeout().mul_f64(factor.powi(backoff));
        timeout.min(MAX_RTO)
    }

    /// The same without backoff: by then an acknowledgement would have come.
    pub(super) fn first_timeout(&self) -> Duration {
        duration(self.rto)
    }

    /// Takes a sample: a transmission made this long ago is known to have arrived.
    pub(super) fn sample(&mut self, rtt: Duration) {
        // A `ts` has 32 bits of microseconds, so an echo is no more than about an hour old.
        let rtt = micros(rtt).clamp(1, u32::MAX / 8);
        self.latest = rtt;
        if self.srtt == 0 {
            self.srtt = rtt;
            self.variance = rtt / 2;
        } else {
            let delta = self.srtt.abs_diff(rtt);
            self.variance = (3 * self.variance + delta) / 4;
            self.srtt = (7 * self.srtt + rtt) / 8;
        }
        let min = match self.nodelay {
            true => MIN_RTO_NODELAY,
            false => MIN_RTO,
        };
        let rto = self.srtt + self.interval.max(4 * self.variance);
        self.rto = rto.clamp(micros(min), micros(MAX_RTO));
    }

    /// This transmission has arrived.
    pub(super) fn arrived(&mut self, serial: u64) {
        self.arrived = self.arrived.max(serial);
    }

    /// Something new was acknowledged.
    pub(super) fn progress(&mut self) {
        self.backoff = 0;
    }

    /// Has there been a time-out since the last new acknowledgement?
    pub(super) fn is_backing_off(&self) -> bool {
        self.backoff > 0
    }

    /// There was a time-out.
    pub(super) fn timed_out(&mut self) {
        self.backoff += 1;
    }

    /// A segment was sent again as transmission `serial`, but an earlier transmission of it has arrived: sending it
    /// again was not needed. `latest` is the number of the last of all transmissions.
    ///
    /// A few of those cost less than waiting longer before each retransmission. Once more than one in
    /// [`TRANSMISSIONS_PER_SPURIOUS`] transmissions was needless, the reordering window is raised, at most once a
    /// round trip. If it was sent twice at once, so were others behind a full window, and a few say nothing of
    /// their share: only as many do as are counted.
    pub(super) fn spurious(&mut self, serial: u64, latest: u64, doubled: bool) {
        self.losses_since_spurious = 0;
        if serial <= self.reordering_raised_at {
            return;
        }
        self.spurious_count += 1;
        let sent = latest - self.reordering_raised_at;
        let few = if doubled { SPURIOUS_COUNTED } else { 1 };
        if self.spurious_count > few && self.spurious_count * TRANSMISSIONS_PER_SPURIOUS > sent {
            self.reordering = (self.reordering + 1).min(MAX_REORDERING);
            self.reordering_raised_at = latest;
            self.spurious_count = 0;
        } else if sent > SPURIOUS_COUNTED * TRANSMISSIONS_PER_SPURIOUS {
            self.reordering_raised_at = latest;
            self.spurious_count = 0;
        }
    }

    /// Transmission `serial` was taken for lost by [`verdict`](Self::verdict). `latest` is the number of the last one.
    pub(super) fn lost(&mut self, serial: u64, latest: u64) {
        if !before(self.loss_counted_at, serial as u32) {
            return;
        }
        self.loss_counted_at = latest as u32;
        self.losses_since_spurious += 1;
        if self.losses_since_spurious > FORGET_REORDERING << self.reordering {
            self.reordering = self.reordering.saturating_sub(1);
            self.losses_since_spurious = 0;
        }
    }

    /// Is the oldest segment in flight lost, which was sent as number `serial` at `sent_at`?
    pub(super) fn verdict(&self, serial: u64, sent_at: Time, now: Time) -> Verdict {
        if serial >= self.arrived {
            return Verdict::Unknown;
        }
        // Counting works only while the path keeps order.
        let counts = self.fast_resend > 0 && self.reordering == 0;
        if counts && self.arrived - serial > u64::from(self.fast_resend) {
            return Verdict::Lost;
        }
        let rtt = duration(self.latest.max(self.srtt));
        let window = (rtt * u32::from(self.reordering.max(1)) / 4).max(MIN_REORDERING);
        let at = sent_at + rtt + window;
        if at <= now {
            Verdict::Lost
        } else {
            Verdict::LostAt(at)
        }
    }
}

/// Saturates at 32 bits, which is beyond every time-out.
pub(super) fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

fn duration(micros: u32) -> Duration {
    Duration::from_micros(micros.into())
}

/// What is known about a segment in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing sent after it has arrived.
    Unknown,
    /// It will be taken for lost at this time unless it is acknowledged.
    LostAt(Time),
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_timeout_is_that_of_kcp() {
        let mut recovery = Recovery::new(&SessionConfig::default().interval(10 * MS));
        assert_eq!(recovery.timeout(), 200 * MS);
        recovery.sample(50 * MS);
        // srtt 50, variance 25: 50 + max(10, 100).
        assert_eq!(recovery.timeout(), 150 * MS);
        recovery.timed_out();
        assert_eq!(recovery.timeout(), 300 * MS);
        for _ in 0..1000 {
            recovery.timed_out();
        }
        assert_eq!(recovery.timeout(), MAX_RTO);
        recovery.progress();
        assert_eq!(recovery.timeout(), 150 * MS);

        let mut nodelay = Recovery::new(&SessionConfig::fast());
        for _ in 0..100 {
            nodelay.sample(MS / 10);
        }
        assert_eq!(nodelay.timeout(), MIN_RTO_NODELAY);
        nodelay.timed_out();
        assert_eq!(nodelay.timeout(), MIN_RTO_NODELAY * 3 / 2);
    }

    #[test]
    fn losses_are_found_by_count_and_by_time_and_only_by_time_if_reordered() {
        let mut recovery = Recovery::new(&SessionConfig::fast());
        recovery.sample(40 * MS);
        let start = Time::ZERO;
        assert_eq!(
            recovery.verdict(1, start, start + 40 * MS),
            Verdict::Unknown
        );
        recovery.arrived(3);
        let at = start + 50 * MS;
        assert_eq!(
            recovery.verdict(1, start, start + 40 * MS),
            Verdict::LostAt(at)
        );
        assert_eq!(recovery.verdict(1, start, at), Verdict::Lost);
        assert_eq!(recovery.verdict(3, start, at), Verdict::Unknown);
        recovery.arrived(4);
        assert_eq!(recovery.verdict(1, start, start), Verdict::Lost);

        recovery.spurious(1, 10, false);
        assert_eq!(
            recovery.verdict(1, start, start),
            Verdict::Lost,
            "one is none"
        );
        recovery.spurious(2, 10, false);
        assert_eq!(recovery.verdict(1, start, start), Verdict::LostAt(at));
        for _ in 0..10 {
            recovery.spurious(10, 20, false);
        }
        let once = recovery.verdict(1, start, start);
        assert_eq!(once, Verdict::LostAt(at), "once a round trip");
        recovery.spurious(11, 20, false);
        recovery.spurious(12, 20, false);
        let later = start + 60 * MS;
        assert_eq!(recovery.verdict(1, start, start), Verdict::LostAt(later));
        for serial in 1..=8 * u64::from(FORGET_REORDERING) {
            recovery.lost(serial, serial);
        }
        assert_eq!(recovery.verdict(1, start, start), Verdict::Lost);
    }

    #[test]
    fn without_fast_resend_losses_are_found_only_by_time() {
        let mut recovery = Recovery::new(&SessionConfig::fast().fast_resend(0));
        recovery.sample(40 * MS);
        recovery.arrived(100);
        let at = Time::ZERO + 50 * MS;
        let verdict = recovery.verdict(1, Time::ZERO, Time::ZERO);
        assert_eq!(verdict, Verdict::LostAt(at));
    }

    /// More than one transmission in 16 raises the reordering window, counted anew after that and after long.
    #[test]
    fn the_reordering_window_follows_the_rate_of_needless_retransmissions() {
        let mut recovery = Recovery::new(&SessionConfig::fast());
        let mut needless = |serial, latest| {
            recovery.spurious(serial, latest, false);
            recovery.reordering
        };
        assert_eq!([needless(1, 32), needless(2, 32), needless(3, 48)], [0; 3]);
        assert_eq!(needless(4, 63), 1);
        assert_eq!([needless(64, 66), needless(65, 95)], [1; 2]);
        assert_eq!(needless(66, 110), 2);
        // Too long ago.
        assert_eq!(needless(111, 110 + 64 * 16 + 1), 2);
        assert_eq!(needless(1136, 1140), 2);
        assert_eq!(needless(1137, 1140), 3);
    }

    #[test]
    fn the_reordering_window_is_forgotten_after_losses_without_needless_retransmissions() {
        let mut recovery = Recovery::new(&SessionConfig::fast());
        recovery.reordering = 2;
        let mut sent = 0;
        let mut losses = || {
            let (before, mut losses) = (recovery.reordering, 0);
            while recovery.reordering == before {
                // Several in one round trip count once.
                for serial in sent + 1..sent + 10 {
                    recovery.lost(serial, sent + 10);
                }
                sent += 10;
                losses += 1;
            }
            losses
        };
        assert_eq!([losses(), losses()], [65, 33]);
        recovery.reordering = 1;
        for serial in sent + 1..sent + 33 {
            recovery.lost(serial, serial);
        }
        recovery.spurious(0, 1, false);
        recovery.lost(sent + 33, sent + 33);
        assert_eq!(recovery.reordering, 1);
    }

    #[test]
    fn of_what_was_sent_twice_at_once_the_share_in_a_whole_span_counts() {
        let needless = |count: u64| {
            let mut recovery = Recovery::new(&SessionConfig::fast());
            for serial in 1..=count {
                recovery.spurious(serial, count, true);
            }
            recovery.reordering
        };
        assert_eq!((needless(64), needless(65)), (0, 1));
    }
}
