//! Was the last reduction of the congestion window needless? Then it is taken back.
//!
//! It was if the path had lost nothing: it does not keep order, or its round trip is longer than the time-out. That is seen
//! when a segment that was taken for lost is acknowledged by an ACK that names an earlier transmission than the one
//! that should replace it. After a time-out, the first of these is enough (Eifel: RFC 3522, RFC 4015). After losses that later
//! arrivals showed, it takes one of each segment that was taken for lost since, as in Linux, which counts by D-SACKs
//! (`undo_retrans` in `tcp_input.c`).

use super::Session;
use super::send::{Cause, Slot, State};

/// What would show that the last reduction was needless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undo {
    /// Nothing: there was none, it is taken back already, or the path has surely lost something.
    Never,
    /// That one segment arrives that was overdue.
    Overdue,
    /// That so many segments arrive that were taken for lost. Short, as there are many sessions; no window is longer.
    TakenForLost(u16),
}

impl Session {
    /// A segment was taken for lost for this reason.
    pub(super) fn on_taken_for_lost(&mut self, cause: Cause) {
        if let (Undo::TakenForLost(segments), Cause::Fast) = (&mut self.undo, cause) {
            *segments = segments.saturating_add(1);
        }
    }

    /// The last transmission of a segment so far has arrived. If it was taken for lost, it was not yet sent again.
    pub(super) fn on_last_arrived(&mut self, slot: &Slot) {
        if slot.state == State::Lost && !slot.doubled {
            self.on_not_lost(slot.cause);
        }
    }

    /// A segment was sent again, but an earlier transmission of it has arrived.
    pub(super) fn on_earlier_arrived(&mut self, slot: &Slot) {
        // Otherwise it was taken for lost before the last reduction.
        if slot.serial > self.reduced_at {
            self.on_not_lost(slot.cause);
        }
    }

    fn on_not_lost(&mut self, cause: Cause) {
        let is_needless = match (&mut self.undo, cause) {
            (Undo::Overdue, Cause::Timeout) => true,
            (Undo::TakenForLost(segments), Cause::Fast) => {
                *segments = segments.saturating_sub(1);
                *segments == 0
            }
            _ => false,
        };
        if is_needless {
            self.undo = Undo::Never;
            self.control.undo();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::config::{Congestion, SessionConfig};
    use super::super::timers::tests::Pair;
    use super::*;
    use core::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    impl Pair {
        /// Two ends of which the first has sent a little.
        fn with(congestion: Congestion) -> Self {
            let config = SessionConfig::default().interval(10 * MS).fast_resend(2);
            let mut path = Self::new(config.congestion(congestion));
            for _ in 0..20 {
                let flight = path.send(1);
                path.arrive(&flight);
            }
            path
        }

        /// What the first end sends once it has so many more messages of a segment each.
        fn send(&mut self, messages: usize) -> Vec<Vec<u8>> {
            for _ in 0..messages {
                self.ends[0].send_slice(&[7; 1000]).unwrap();
            }
            let mut all = Vec::new();
            // Longer than pacing takes.
            for _ in 0..50 {
                all.extend(core::iter::from_fn(|| self.transmit(0)));
                self.now = self.now + MS / 10;
            }
            all
        }

        /// The second end receives these, and the first what it answers.
        fn arrive(&mut self, flight: &[Vec<u8>]) {
            flight.iter().for_each(|datagram| self.deliver(1, datagram));
            for _ in 0..20 {
                self.now = self.now + MS;
                self.ends[1].handle_timeout(self.now);
                while let Some(answer) = self.transmit(1) {
                    self.deliver(0, &answer);
                }
            }
            while self.ends[1].recv().is_some() {}
        }

        fn window(&self) -> u32 {
            self.ends[0].control.window()
        }
    }

    /// Whether what was overdue has been sent again by then or not.
    #[test]
    fn a_time_out_is_taken_back_when_what_was_overdue_arrives() {
        for congestion in [Congestion::Reno, Congestion::Cubic] {
            for (sent_again, lost) in [(false, false), (true, false), (true, true)] {
                let mut path = Pair::with(congestion);
                let before = path.window();
                let flight = path.send(5);
                assert_eq!(flight.len(), 5);
                path.now = path.now + 1000 * MS;
                path.ends[0].handle_timeout(path.now);
                assert_eq!(path.window(), 1);
                let again = if sent_again { path.send(0) } else { Vec::new() };
                path.arrive(if lost { &again } else { &flight });
                let case = (congestion, sent_again, lost, path.window(), before);
                assert_eq!(path.window() >= before, !lost, "{case:?}");
                assert_eq!(path.ends[0].undo == Undo::Never, !lost, "{case:?}");
            }
        }
    }

    #[test]
    fn a_reduction_is_taken_back_once_all_that_was_taken_for_lost_has_arrived() {
        for congestion in [Congestion::Reno, Congestion::Cubic] {
            for (sent_again, lost) in [(false, false), (true, false), (true, true)] {
                let mut path = Pair::with(congestion);
                let before = path.window();
                let flight = path.send(10);
                path.arrive(&flight[2..]);
                let reduced = path.window();
                assert!(reduced < before, "{reduced}");
                assert_eq!(path.ends[0].undo, Undo::TakenForLost(2));
                let again = if sent_again { path.send(0) } else { Vec::new() };
                assert_eq!(again.len(), if sent_again { 2 } else { 0 });
                path.arrive(&flight[..1]);
                assert_eq!(path.ends[0].undo, Undo::TakenForLost(1));
                assert!(path.window() < before);
                path.arrive(if lost { &again[1..] } else { &flight[1..2] });
                assert!(path.ends[0].is_sent());
                let case = (congestion, sent_again, lost, path.window(), before);
                assert_eq!(path.window() >= before, !lost, "{case:?}");
            }
        }
    }

    /// It was only late, and the probe that is still to be sent cannot be what has arrived.
    #[test]
    fn a_last_segment_that_arrives_before_its_probe_is_sent_was_not_lost() {
        let mut path = Pair::with(Congestion::Reno);
        let before = path.window();
        let flight = path.send(1);
        path.now = path.now + 50 * MS;
        path.ends[0].handle_timeout(path.now);
        assert_eq!(path.ends[0].lost_segments().count(), 1);
        path.arrive(&flight);
        assert!(path.ends[0].is_sent());
        assert!(path.window() >= before, "{}", path.window());
        assert_eq!(path.ends[0].stats().retransmits_tail, 0);
    }

    /// What was sent again before the last reduction, and is lost as well, tells nothing of that one.
    #[test]
    fn what_was_taken_for_lost_before_does_not_take_a_later_reduction_back() {
        let mut path = Pair::with(Congestion::Reno);
        for segments in [10, 20, 40] {
            let flight = path.send(segments);
            path.arrive(&flight);
        }
        let first = path.send(40);
        path.arrive(&[&first[1..30], &first[31..]].concat());
        assert_eq!(path.ends[0].undo, Undo::TakenForLost(2));
        let again = path.send(0);
        path.arrive(&again[..1]);
        let second = path.send(8);
        path.arrive(&second[1..]);
        let (window, undo) = (path.window(), Undo::TakenForLost(2));
        assert_eq!(path.ends[0].undo, undo, "again[1] and second[0]");
        path.arrive(&first[30..31]);
        assert_eq!((path.window(), path.ends[0].undo), (window, undo));
    }
}
