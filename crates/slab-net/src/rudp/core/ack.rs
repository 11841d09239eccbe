//! The acknowledgements that this end owes.
//!
//! Every segment carries `una`, so that an ACK is owed only for each segment out of order, and for the latest of
//! those that `una` covers, which gives the peer its round-trip time. How long ACKs wait depends on the traffic.
//! They go at once if something is missing or arrived twice, or if little arrives. If much arrives, they wait to go
//! together; if the application answers at once, they wait for its answer.

use super::super::time::Time;
use super::recovery::micros;
use core::time::Duration;

/// How long an ACK waits for the application's answer to go with, if it usually answers. Well below the shortest
/// time-out of a peer.
const ANSWER_DELAY: Duration = Duration::from_millis(10);
/// The most segments in order that are acknowledged together.
const MAX_UNACKNOWLEDGED: u32 = 16;

#[derive(Debug, Default)]
pub(super) struct Acks {
    /// In microseconds, in 32 bits like the counts below: there are many sessions.
    delay: u32,
    /// `sn` and `ts` of segments out of order, in the order of arrival.
    list: Vec<(u32, u32)>,
    /// How many of the list have been sent, while more are to follow.
    sent: u32,
    max_listed: u32,
    /// `sn` and `ts` of the latest segment in order.
    latest: Option<(u32, u32)>,
    /// Segments in order since the last acknowledgement.
    unacknowledged: u32,
    due: Option<Time>,
    last_sent: Option<Time>,
    last_arrival: Option<Time>,
    /// Does the application answer within [`ANSWER_DELAY`] what it receives?
    application_answers: bool,
}

impl Acks {
    /// At most `max_listed` out-of-order acknowledgements are kept.
    pub(super) fn new(delay: Duration, max_listed: u32) -> Self {
        Self {
            delay: micros(delay),
            max_listed,
            ..Self::default()
        }
    }

    /// The next segment in order came, which `una` now covers.
    pub(super) fn in_order(&mut self, sn: u32, ts: u32, now: Time) {
        self.latest = Some((sn, ts));
        self.unacknowledged += 1;
        let sparse = self
            .last_sent
            .is_none_or(|at| now.micros_since(at) >= self.delay);
        self.last_arrival = Some(now);
        if self.unacknowledged >= MAX_UNACKNOWLEDGED || (sparse && !self.application_answers) {
            self.due = Some(now);
        } else if self.due.is_none() {
            let delay = match self.application_answers {
                true => ANSWER_DELAY,
                false => Duration::from_micros(self.delay.into()),
            };
            self.due = Some(now + delay);
        }
    }

    /// A segment came again that `una` covers.
    pub(super) fn duplicate(&mut self, sn: u32, ts: u32, now: Time) {
        self.latest = Some((sn, ts));
        self.due = Some(now);
    }

    /// A segment came ahead of a missing one.
    pub(super) fn out_of_order(&mut self, sn: u32, ts: u32, now: Time) {
        if self.list.len() < self.max_listed as usize {
            self.list.push((sn, ts));
        }
        self.due = Some(now);
    }

    /// Acknowledges at once: something that was missing has come.
    pub(super) fn send_now(&mut self, now: Time) {
        self.due = Some(now);
    }

    /// Is there anything to acknowledge?
    pub(super) fn is_pending(&self) -> bool {
        self.latest.is_some() || (self.sent as usize) < self.list.len()
    }

    /// When the acknowledgements have to be sent.
    pub(super) fn due(&self) -> Option<Time> {
        self.due.filter(|_| self.is_pending())
    }

    /// The next one to send, in the order of arrival: a peer that is told of later segments first would take the
    /// earlier ones for lost. Skips those of the list that `una` covers by now.
    pub(super) fn pop(&mut self, una: u32) -> Option<(u32, u32)> {
        while let Some(&(sn, ts)) = self.list.get(self.sent as usize) {
            self.sent += 1;
            if !super::sn::before(sn, una) {
                return Some((sn, ts));
            }
            // Its round-trip time is as good as any.
            self.latest.get_or_insert((sn, ts));
        }
        self.list.clear();
        self.sent = 0;
        self.latest.take()
    }

    /// All were sent. `alone` if no data of ours went along: the application did not answer while they waited.
    pub(super) fn sent(&mut self, now: Time, alone: bool) {
        if alone {
            self.application_answers = false;
        }
        self.list.clear();
        self.sent = 0;
        self.unacknowledged = 0;
        self.due = None;
        self.last_sent = Some(now);
    }

    /// Frees the list's memory if it is empty.
    pub(super) fn shrink(&mut self) {
        if self.list.is_empty() {
            self.list = Vec::new();
        }
    }

    /// New data is sent.
    pub(super) fn data_sent(&mut self, now: Time) {
        self.application_answers = self
            .last_arrival
            .is_some_and(|at| now.since(at) < ANSWER_DELAY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Time {
        Time::ZERO + ms * MS
    }

    fn drain(acks: &mut Acks, una: u32, now: Time) -> Vec<u32> {
        let sns = std::iter::from_fn(|| acks.pop(una))
            .map(|(sn, _)| sn)
            .collect();
        acks.sent(now, true);
        sns
    }

    /// Its sender has not heard of it.
    #[test]
    fn a_segment_that_came_before_is_acknowledged_at_once() {
        let mut acks = Acks::new(2 * MS, 100);
        acks.in_order(0, 0, at(0));
        drain(&mut acks, 1, at(0));
        acks.duplicate(0, 0, at(1));
        assert_eq!(acks.due(), Some(at(1)));
    }

    #[test]
    fn sparse_acks_are_sent_at_once_and_many_are_batched() {
        let mut acks = Acks::new(2 * MS, 100);
        acks.in_order(0, 0, at(0));
        assert_eq!(acks.due(), Some(at(0)));
        assert_eq!(drain(&mut acks, 1, at(0)), [0]);
        for sn in 1..MAX_UNACKNOWLEDGED {
            acks.in_order(sn, 0, at(1));
            assert_eq!(acks.due(), Some(at(3)));
        }
        acks.in_order(MAX_UNACKNOWLEDGED, 0, at(1));
        assert_eq!(acks.due(), Some(at(1)));
        assert_eq!(
            drain(&mut acks, MAX_UNACKNOWLEDGED + 1, at(1)),
            [MAX_UNACKNOWLEDGED]
        );
        assert_eq!(acks.due(), None);
    }

    #[test]
    fn out_of_order_segments_are_acknowledged_at_once_and_one_by_one() {
        let mut acks = Acks::new(2 * MS, 2);
        drain(&mut acks, 0, at(0));
        for sn in [5, 6, 7] {
            acks.out_of_order(sn, 0, at(0));
        }
        assert_eq!(acks.due(), Some(at(0)));
        assert_eq!(drain(&mut acks, 0, at(0)), [5, 6], "bounded");
        acks.out_of_order(8, 0, at(0));
        acks.in_order(4, 0, at(0));
        assert_eq!(drain(&mut acks, 9, at(0)), [4]);
    }

    #[test]
    fn acks_wait_for_an_application_that_answers() {
        let mut acks = Acks::new(2 * MS, 2);
        acks.in_order(0, 0, at(0));
        drain(&mut acks, 1, at(0));
        acks.data_sent(at(1));
        acks.in_order(1, 0, at(100));
        assert_eq!(acks.due(), Some(at(110)));
        // The application does not answer this one.
        drain(&mut acks, 2, at(110));
        acks.in_order(2, 0, at(200));
        assert_eq!(acks.due(), Some(at(200)));
    }
}
