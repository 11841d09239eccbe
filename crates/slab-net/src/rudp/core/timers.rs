//! When a session has to be called, and what it does then.

use super::super::error::CloseReason;
use super::super::time::Time;
use super::super::wire::HEADER_BYTES;
use super::close::Phase;
use super::send::Cause;
use super::undo::Undo;
use super::{MessageWait, Session};
use core::num::NonZeroU32;
use core::time::Duration;

/// The first and the longest wait between two questions for a closed window, in milliseconds.
const PROBE_FIRST: NonZeroU32 = NonZeroU32::new(500).unwrap();
const PROBE_LONGEST: NonZeroU32 = NonZeroU32::new(10_000).unwrap();
/// The first and the longest wait between attempts to grow a window that a message fills.
const GROW_RETRY_FIRST: Duration = Duration::from_millis(20);
const GROW_RETRY_LONGEST: Duration = Duration::from_secs(1);
/// Segments sent again at each time-out. Their acknowledgements tell what else is lost.
const PROBES_PER_TIMEOUT: usize = 4;

fn milliseconds(wait: NonZeroU32) -> Duration {
    Duration::from_millis(wait.get().into())
}

impl Session {
    /// Returns when [`handle_timeout`](Self::handle_timeout) has to be called if no other call comes first, or
    /// `None` if never. Calling it earlier or later does no harm.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let times = [
            Some(self.poll_end()?.min(self.keepalive_at)),
            self.acks_due(),
            self.rto_at(),
            self.tail_probe_at(),
            self.loss_at,
            self.paced_until(),
            self.probe_at(),
            self.message_wait.as_ref().map(|wait| wait.retry_at),
        ];
        times.into_iter().flatten().min()
    }

    /// When the session ends, or enters the next phase of ending, if nothing happens before: the timers that run
    /// even while nothing can be sent. `None` if it is over.
    pub(in super::super) fn poll_end(&self) -> Option<Time> {
        let phase = match self.phase {
            Phase::Ended { .. } => return None,
            Phase::Open => self.finish_deadline(),
            Phase::Lingering { until } | Phase::TimeWait { until } => Some(until),
            Phase::Notifying { at, .. } => Some(at),
        };
        let wait = self
            .message_wait
            .as_ref()
            .map(|wait| wait.since + self.silence_limit());
        [phase, wait, Some(self.idle_deadline())]
            .into_iter()
            .flatten()
            .min()
    }

    /// How long the peer may be silent, and how long a message that fills the window may take.
    fn silence_limit(&self) -> Duration {
        let idle = self.config.idle_timeout;
        match self.path.validated {
            true => idle,
            false => self.config.unproved_timeout.min(idle),
        }
    }

    /// When the peer is given up for silence. Before it has proved its address, it is also given up if it leaves
    /// what was sent to it unacknowledged for too long, whatever else comes from its address.
    fn idle_deadline(&self) -> Time {
        let silent = self.last_received + self.silence_limit();
        if self.path.validated {
            return silent;
        }
        let unproved = self.config.unproved_timeout;
        match self.path.unanswered_since {
            0 => silent,
            since => {
                let waited = self.millis().wrapping_sub(since);
                let left = unproved.saturating_sub(Duration::from_millis(waited.into()));
                silent.min(self.now + left)
            }
        }
    }

    /// When acknowledgements have to be sent. `None` while the allowance is used up: the peer has to send first.
    fn acks_due(&self) -> Option<Time> {
        self.acks.due().filter(|_| self.allowance() >= HEADER_BYTES)
    }

    /// When the peer has to be asked for its window again, or never, as with acknowledgements.
    fn probe_at(&self) -> Option<Time> {
        let (at, _) = self.probe?;
        (self.allowance() >= HEADER_BYTES).then_some(at)
    }

    /// When the oldest segment in flight is overdue.
    fn rto_at(&self) -> Option<Time> {
        // With no allowance left, not before the peer has sent something; if later segments have arrived, `loss_at`
        // says when this one is lost.
        if self.allowance() < HEADER_BYTES || self.loss_at.is_some() {
            return None;
        }
        let oldest = self.send.slot(self.send.oldest()?);
        // What is paced waits in the path's queue behind others, whose acknowledgements show that it moves (RFC 6298,
        // 5.3). Without a congestion control, each segment has its own time, as in KCP.
        let since = match self.rate {
            Some(_) => oldest.sent_at.max(self.progress_at),
            None => oldest.sent_at,
        };
        Some(since + self.recovery.timeout())
    }

    /// When the last segment is sent again, so that its acknowledgement tells what became of the others: the
    /// tail-loss probe of RFC 8985, section 7. One probe until something is acknowledged, and only if it comes
    /// before the time-out.
    fn tail_probe_at(&self) -> Option<Time> {
        if self.loss_at.is_some() || self.tail_probed || self.recovery.is_backing_off() {
            return None;
        }
        if self.lost_segments().next().is_some() || self.allowance() < HEADER_BYTES {
            return None;
        }
        let newest = self.send.newest()?;
        if self.is_beyond_window(newest) {
            return None;
        }
        let newest = self.send.slot(newest);
        // The peer may hold an acknowledgement back for an interval.
        let wait = self.recovery.srtt()? * 2 + self.config.interval;
        (wait < self.recovery.timeout()).then_some(newest.sent_at + wait)
    }

    /// Does what is due at `now`. Call [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn handle_timeout(&mut self, now: Time) {
        self.advance(now);
        let now = self.now;
        if self.ended().is_some() {
            return;
        }
        if self.idle_deadline() <= now {
            return self.give_up(CloseReason::TimedOut);
        }
        match self.phase {
            Phase::Lingering { until } if until <= now => {
                return self.reset(CloseReason::LingerExpired);
            }
            Phase::TimeWait { until } | Phase::Notifying { until, .. } if until <= now => {
                return self.end(CloseReason::Closed);
            }
            Phase::Notifying { until, at, wait } if at <= now => {
                self.start_notifying(until, 2 * Duration::from_micros(wait.into()))
            }
            _ => {}
        }
        if self.finish_deadline().is_some_and(|at| at <= now) {
            self.queue_end_mark();
        }
        if self
            .message_wait
            .as_ref()
            .is_some_and(|wait| wait.retry_at <= now)
        {
            self.grow_for_message();
            if self.ended().is_some() {
                return;
            }
        }
        if self.keepalive_at <= now {
            self.send_wask = true;
            self.keepalive_at = now + self.config.keepalive;
            self.shrink();
        }
        if let Some((at, wait)) = self.probe
            && at <= now
        {
            self.send_wask = true;
            let wait = wait.saturating_add(wait.get() / 2).min(PROBE_LONGEST);
            self.probe = Some((now + milliseconds(wait), wait));
        }
        if self.loss_at.is_some_and(|at| at <= now) {
            self.find_losses();
        }
        if self.rto_at().is_some_and(|at| at <= now) {
            self.time_out();
        } else if self.tail_probe_at().is_some_and(|at| at <= now)
            && let Some(sn) = self.send.newest()
        {
            self.tail_probed = true;
            // Each probe follows an acknowledgement, so the peer is there.
            self.mark_lost(sn, Cause::Tail, true);
        }
    }

    /// Nothing has come for long: frees the heap memory that the traffic needed.
    fn shrink(&mut self) {
        self.send.shrink();
        self.acks.shrink();
        self.shrink_datagrams();
        self.shrink_receive();
    }

    fn shrink_datagrams(&mut self) {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.shrink();
        }
    }

    /// Frees that of the receive side. The peer is asked, so that it hears of a smaller window; an answer that it
    /// owes to an earlier question does not count.
    fn shrink_receive(&mut self) {
        self.receive.shrink();
        self.receive.narrow();
        if self.receive.is_grown_and_empty() {
            self.send_wask = true;
            self.peer.wask_unanswered = false;
        }
    }

    /// A WASK has come. Two idle ends that ask in turn restart each other's keepalive, so that one of them might
    /// never find itself idle: two questions with no data between them count as idle, too.
    pub(super) fn shrink_if_both_idle(&mut self) {
        let quiet = core::mem::replace(&mut self.peer.asked_since_data, true);
        if quiet && self.send.is_empty() {
            self.shrink_datagrams();
            // One that has just told a smaller window waits for the answer, which may be behind this question: two ends
            // that each began anew would ask each other for ever, as fast as the path carries it.
            let told = |at| self.now.since(at) < self.config.keepalive;
            let is_told = self.receive.is_narrowed() && self.peer.wask_sent_at.is_some_and(told);
            if self.receive.is_grown_and_empty() && !is_told {
                self.shrink_receive();
            }
        }
    }

    /// A message may fill the window: tries to grow it. Where it may not grow yet, because the address is not
    /// proved or there is no memory, the window stays closed and this is tried again; but not for ever, because
    /// sessions that wait likewise may hold the memory that is missing.
    pub(super) fn grow_for_message(&mut self) {
        self.receive.grow_for_message();
        // In stream mode bytes can be read before the message is complete.
        if !self.receive.is_filled_by_message() || self.phase != Phase::Open || self.config.stream {
            if self.message_wait.take().is_some() {
                self.schedule_window_update();
            }
            return;
        }
        let now = self.now;
        let since = self
            .message_wait
            .get_or_insert_with(|| {
                Box::new(MessageWait {
                    since: now,
                    retry_at: now,
                })
            })
            .since;
        let (waited, end) = (now.since(since), since + self.silence_limit());
        if self.receive.is_largest() || end <= now {
            return self.reset(CloseReason::MessageTooLong);
        }
        let again = now + waited.clamp(GROW_RETRY_FIRST, GROW_RETRY_LONGEST);
        if let Some(wait) = &mut self.message_wait {
            let at = if wait.retry_at <= now {
                again
            } else {
                wait.retry_at
            };
            wait.retry_at = at.min(end);
        }
    }

    fn time_out(&mut self) {
        let timeout = self.recovery.timeout();
        // The one that the peer waits for is always among them, as in TCP: a peer short of memory takes no other, and
        // hundreds may be before it.
        let is_next = self.send.oldest() == Some(self.send.una());
        let mut probes = usize::from(!is_next && self.resend_first());
        while probes < PROBES_PER_TIMEOUT
            && let Some(sn) = self.send.oldest()
            && self.send.slot(sn).sent_at + timeout <= self.now
        {
            // Whatever the peer has acknowledged since, it is there.
            let excused = self.send.slot(sn).sent_at <= self.progress_at;
            if !self.mark_lost(sn, Cause::Timeout, excused) {
                return;
            }
            // What the peer has no room for is not sent now, and tells nothing.
            probes += usize::from(!self.is_beyond_window(sn));
        }
        if probes == 0 {
            return; // The path has not lost what the peer had no room for.
        }
        // The WASK repeats the cookie, if there is one: that may have been lost with the rest.
        self.send_wask |= self.cookie.is_some() && !self.peer.has_told_window;
        // Time-outs that follow without an acknowledgement belong to the same loss, often to the rest of one
        // flight: the threshold that the first one set stays (RFC 5681, 3.1).
        if !self.recovery.is_backing_off() {
            self.undo = Undo::Overdue;
            self.control.timed_out();
        }
        self.recovery.timed_out();
        self.reduced_at = self.send.serial();
    }

    /// Queues the segment that the peer waits for ahead of its turn, unless an acknowledgement may still be on its way;
    /// returns whether it does. That it is asked more often than others is not to make a peer seem dead any sooner.
    pub(super) fn resend_first(&mut self) -> bool {
        let Some(first) = self.send.first_in_flight() else {
            return false;
        };
        let (sn, again_at) = (
            self.send.una(),
            first.sent_at + self.recovery.first_timeout(),
        );
        let is_due = again_at <= self.now && !self.is_beyond_window(sn);
        is_due && self.mark_lost(sn, Cause::Timeout, true)
    }

    /// Starts asking for the peer's window if nothing else would bring news of it. What is outstanding beyond the
    /// window then waits for it, too: the peer has dropped it.
    pub(super) fn start_probing_if_blocked(&mut self) {
        let waiting = self.send.queued() > 0 || self.send.outstanding() > 0;
        if waiting && self.send.oldest().is_none() && self.window_limit() == 0 {
            self.start_window_probe();
        }
    }

    /// Asks for the window again if no answer comes.
    pub(super) fn start_window_probe(&mut self) {
        self.probe
            .get_or_insert((self.now + milliseconds(PROBE_FIRST), PROBE_FIRST));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::budget::MemoryBudget;
    use super::super::super::config::{DEFAULT_WINDOW, SessionConfig};
    use super::super::super::wire::{Command, Header, OURS};
    use super::super::Side;
    use super::*;
    use crate::packet::PacketPool;

    /// Lets both ends talk until that time; returns how often one of them was called for a timer.
    fn run(ends: &mut [Session; 2], pool: &PacketPool, now: &mut Time, until: Time) -> u32 {
        run_over(ends, pool, now, until, true)
    }

    /// As [`run`], over a path that may lose everything.
    fn run_over(
        ends: &mut [Session; 2],
        pool: &PacketPool,
        now: &mut Time,
        until: Time,
        arrives: bool,
    ) -> u32 {
        let mut wakes = 0;
        let mut scratch = [0; 2048];
        while *now < until {
            let mut said = false;
            for from in 0..2 {
                if ends[from].poll_timeout().is_some_and(|at| at <= *now) {
                    ends[from].handle_timeout(*now);
                    wakes += 1;
                }
                while let Some(out) = ends[from].poll_transmit(*now, &mut scratch, 1) {
                    let datagram = pool.try_copy_from_slice(out.contents()).unwrap();
                    if arrives {
                        ends[1 - from].handle_datagram(*now, datagram).unwrap();
                    }
                    said = true;
                }
            }
            let next = ends.iter().filter_map(Session::poll_timeout).min();
            if !said {
                *now = next.map_or(until, |at| at.max(*now)).min(until);
            }
        }
        wakes
    }

    #[test]
    fn an_idle_session_is_called_only_for_its_keepalive() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let config = SessionConfig::fast();
        let mut now = Time::ZERO;
        let mut ends = [Side::Client, Side::Server]
            .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
        ends[0].send_slice(b"hello").unwrap();
        let settled = now + Duration::from_secs(1);
        run(&mut ends, &pool, &mut now, settled);
        assert!(ends[1].recv().is_some());

        let wakes = run(
            &mut ends,
            &pool,
            &mut now,
            settled + Duration::from_secs(600),
        );
        // Each end asks after 15 seconds at most.
        assert!((20..=120).contains(&wakes), "{wakes} in ten minutes");
        assert!(ends.iter().all(|end| end.ended().is_none()));
    }

    #[test]
    fn a_close_notice_is_repeated_until_it_arrives_or_the_linger_time_is_over() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let config = SessionConfig::fast();
        for dead_for in [Duration::from_secs(4), Duration::from_secs(20)] {
            let mut now = Time::ZERO;
            let mut ends = [Side::Client, Side::Server]
                .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
            ends[0].send_slice(b"hello").unwrap();
            ends[1].send_slice(b"hello").unwrap();
            let settled = now + Duration::from_secs(1);
            run(&mut ends, &pool, &mut now, settled);

            ends[0].close(now);
            let before = ends[0].stats().sent_datagrams;
            let dead = now + dead_for;
            run_over(&mut ends, &pool, &mut now, dead, false);
            let notices = ends[0].stats().sent_datagrams - before;
            assert!(
                (5..=12).contains(&notices),
                "{notices}, each after twice the time"
            );
            let later = now + Duration::from_secs(10);
            run(&mut ends, &pool, &mut now, later);
            assert_eq!(ends[0].ended(), Some(CloseReason::Closed));
            // When the linger time is over it hears only what answers its own question.
            assert_eq!(ends[1].ended(), Some(CloseReason::ClosedByPeer));
        }
    }

    /// However long the application keeps the session, and whether it read before the end or after it.
    #[test]
    fn the_window_is_released_once_a_finished_peer_is_silent_and_all_is_read() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let config = SessionConfig::fast();
        for read_before in [false, true] {
            let mut now = Time::ZERO;
            let mut ends = [Side::Client, Side::Server]
                .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
            ends[0].send_slice(b"hello").unwrap();
            ends[0].finish(now);
            let settled = now + Duration::from_secs(1);
            run(&mut ends, &pool, &mut now, settled);
            let read = |end: &mut Session| assert_eq!(end.recv().unwrap(), b"hello"[..]);
            if read_before {
                read(&mut ends[1]);
            }
            let later = now + Duration::from_secs(100);
            run_over(&mut ends, &pool, &mut now, later, false);
            assert_eq!(ends[1].ended(), Some(CloseReason::TimedOut));
            if !read_before {
                assert!(ends[1].reserved_bytes() > 0);
                read(&mut ends[1]);
            }
            assert_eq!(ends[1].reserved_bytes(), 0);
            // The reader is not told of the silence.
            assert!(ends[1].recv().is_none() && ends[1].has_received_all());
        }
    }

    /// Each asks as its keepalive is due, both at once, and the answers are lost.
    #[test]
    fn two_idle_ends_that_have_grown_do_not_ask_each_other_for_ever() {
        let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
        let budget = MemoryBudget::new(8 << 20);
        let config = SessionConfig::fast();
        let mut now = Time::ZERO;
        let mut ends = [Side::Client, Side::Server]
            .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
        ends[0].send_slice(b"hello").unwrap();
        let settled = now + Duration::from_secs(1);
        run(&mut ends, &pool, &mut now, settled);
        assert!(ends[1].recv().is_some());
        for from in [0, 1] {
            // More segments than the first window has.
            ends[from].send_slice(&[7; 100_000]).unwrap();
        }
        let settled = now + Duration::from_secs(1);
        run(&mut ends, &pool, &mut now, settled);
        assert!(ends.iter_mut().all(|end| end.recv().is_some()));
        assert!(ends.iter().all(|end| end.receive.window() > DEFAULT_WINDOW));

        now = now + config.keepalive;
        let mut questions = [0, 1].map(|from| {
            ends[from].handle_timeout(now);
            let mut scratch = [0; 2048];
            let out = ends[from].poll_transmit(now, &mut scratch, 1);
            pool.try_copy_from_slice(out.unwrap().contents()).ok()
        });
        for to in [0, 1] {
            let question = questions[1 - to].take().unwrap();
            ends[to].handle_datagram(now, question).unwrap();
            while ends[to].poll_transmit(now, &mut [0; 2048], 1).is_some() {}
        }
        let before = ends[0].stats().probes;
        let later = now + 4 * config.keepalive;
        let mut scratch = [0; 2048];
        while now < later && ends[0].stats().probes < before + 100 {
            let mut said = false;
            for from in [0, 1] {
                if ends[from].poll_timeout().is_some_and(|at| at <= now) {
                    ends[from].handle_timeout(now);
                }
                while let Some(out) = ends[from].poll_transmit(now, &mut scratch, 1) {
                    let datagram = pool.try_copy_from_slice(out.contents()).unwrap();
                    ends[1 - from].handle_datagram(now, datagram).unwrap();
                    said = true;
                }
            }
            if !said {
                let next = ends.iter().filter_map(Session::poll_timeout).min();
                now = next.unwrap().max(now);
            }
        }
        let asked = ends[0].stats().probes - before;
        assert!(asked <= 4, "{asked} questions");
        assert!(
            ends.iter()
                .all(|end| end.receive.window() == DEFAULT_WINDOW)
        );
    }

    #[test]
    fn an_unasked_wins_does_not_count_as_an_answer_to_a_wask() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let config = SessionConfig::fast();
        let mut now = Time::ZERO;
        let mut ends = [Side::Client, Side::Server]
            .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
        ends[0].send_slice(b"hello").unwrap();
        // The question is lost, and so is what came with it.
        while ends[0].poll_transmit(now, &mut [0; 2048], 1).is_some() {}
        let told = Header {
            conv: 1,
            cmd: Command::TellWindow,
            frg: OURS,
            wnd: 64,
            ts: 0,
            sn: 64,
            una: 0,
            len: 0,
        };
        let mut datagram = [0; HEADER_BYTES];
        told.encode(&mut datagram);
        let datagram = pool.try_copy_from_slice(&datagram).unwrap();
        ends[0].handle_datagram(now, datagram).unwrap();
        assert!(ends[0].peer.has_sent_wins && !ends[0].is_peer_window_known());

        ends[0].close(now);
        let later = now + Duration::from_secs(20);
        run(&mut ends, &pool, &mut now, later);
        assert_eq!(ends[0].ended(), Some(CloseReason::Closed));
        assert_eq!(ends[1].ended(), Some(CloseReason::ClosedByPeer));
    }

    /// There may be memory for it now, which there was not before.
    #[test]
    fn what_a_peer_waits_for_is_sent_at_once_when_its_reader_has_made_room() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let config = SessionConfig::fast();
        let mut now = Time::ZERO;
        let mut ends = [Side::Client, Side::Server]
            .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
        ends[0].send_slice(b"hello").unwrap();
        let settled = now + Duration::from_secs(1);
        run(&mut ends, &pool, &mut now, settled);

        for _ in 0..2 {
            ends[0].send_slice(b"refused").unwrap();
        }
        let later = now + Duration::from_secs(5);
        run_over(&mut ends, &pool, &mut now, later, false);
        let before = ends[0].stats().retransmits_timeout;
        let mut told = [0; HEADER_BYTES];
        let header = Header {
            conv: 1,
            cmd: Command::TellWindow,
            frg: OURS,
            wnd: 300,
            ts: ends[0].token,
            sn: 300,
            una: 1,
            len: 0,
        };
        header.encode(&mut told);
        // The second says nothing new.
        for _ in 0..2 {
            let told = pool.try_copy_from_slice(&told).unwrap();
            ends[0].handle_datagram(now, told).unwrap();
            while ends[0].poll_transmit(now, &mut [0; 2048], 1).is_some() {}
            assert_eq!(ends[0].stats().retransmits_timeout, before + 1);
        }
    }

    /// A loss that a tail-loss probe repairs is a loss like any other (RFC 8985, 7.4).
    #[test]
    fn a_loss_repaired_by_a_tail_probe_reduces_the_congestion_window() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let config = SessionConfig::default().interval(Duration::from_millis(10));
        let mut now = Time::ZERO;
        let mut ends = [Side::Client, Side::Server]
            .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
        ends[0].send_slice(b"hello").unwrap();
        let settled = now + Duration::from_secs(1);
        run(&mut ends, &pool, &mut now, settled);
        let before = ends[0].control.window();

        ends[0].send_slice(b"is lost").unwrap();
        while ends[0].poll_transmit(now, &mut [0; 2048], 1).is_some() {}
        let later = now + Duration::from_secs(1);
        run(&mut ends, &pool, &mut now, later);
        let stats = ends[0].stats();
        assert_eq!((stats.retransmits_tail, stats.retransmits_timeout), (1, 0));
        assert!(ends[0].is_sent());
        assert!(ends[0].control.window() < before);
    }

    /// However many time-outs follow before an acknowledgement, and whatever is found lost with the segment then.
    #[test]
    fn repeated_time_outs_of_one_flight_reduce_the_threshold_once() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let mut now = Time::ZERO;
        let mut ends = [Side::Client, Side::Server].map(|side| {
            let config = SessionConfig::default();
            Session::open(1, &config, side, &pool, &budget, 5, now).unwrap()
        });
        ends[0].send_slice(b"hello").unwrap();
        let settled = now + Duration::from_secs(1);
        run(&mut ends, &pool, &mut now, settled);
        let before = ends[0].control.window();

        for _ in 0..before {
            ends[0].send_slice(&[7; 1000]).unwrap();
        }
        let cut = now + Duration::from_secs(3);
        run_over(&mut ends, &pool, &mut now, cut, false);
        assert_eq!(ends[0].control.window(), 1);
        assert!(ends[0].stats().retransmits_timeout > 4, "more than one");
        let later = now + Duration::from_secs(10);
        run(&mut ends, &pool, &mut now, later);
        assert!(ends[0].is_sent());
        assert!((before / 2..before).contains(&ends[0].control.window()));
    }
}
