//! When a session has to be called, and what it does then.

use super::super::config::MIN_TIMEOUT;
use super::super::error::CloseReason;
use super::super::time::Time;
use super::super::wire::HEADER_BYTES;
use super::close::Phase;
use super::recovery::INITIAL_RTO;
use super::send::Cause;
use super::undo::Undo;
use super::{MessageWait, Session};
use core::time::Duration;

/// The first and the longest wait between two questions for a closed window, in milliseconds.
const PROBE_FIRST: u32 = 500;
const PROBE_LONGEST: u32 = 10_000;
/// The first and the longest wait between attempts to grow a window that a message fills.
const GROW_RETRY_FIRST: Duration = Duration::from_millis(20);
const GROW_RETRY_LONGEST: Duration = Duration::from_secs(1);
/// How much sooner a silent peer is asked for a sign of life again than it was at first.
const KEEPALIVE_REPEATS: u32 = 4;
/// How long a window that has grown may be of no use while others may lack its memory, but at least for two round trips.
/// A peer that sends one long message after the other would wait for it to grow each time.
const SURPLUS_KEPT: Duration = Duration::from_millis(100);
/// How often a window of no use is looked at: others may make memory short, and nobody tells this session. After a long
/// silence, an eighth of that.
const SURPLUS_LOOK: Duration = Duration::from_secs(1);
/// Segments sent again at each time-out. Their acknowledgements tell what else is lost.
const PROBES_PER_TIMEOUT: usize = 4;

fn milliseconds(wait: u32) -> Duration {
    Duration::from_millis(wait.into())
}

impl Session {
    /// Returns when [`handle_timeout`](Self::handle_timeout) has to be called if no other call comes first, or
    /// `None` if never. Calling it earlier or later does no harm.
    ///
    /// A program sends what there is to send, waits for datagrams or for this time, whichever comes first, and begins
    /// again. Here the path loses the first datagrams, and the clock jumps:
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{MemoryBudget, Outgoing, Session, SessionConfig, Side, Time};
    /// # use slab_net::udp::PacketBatch;
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let budget = MemoryBudget::new(8 << 20);
    /// # let open = |side| Session::open(7, &SessionConfig::fast(), side, &pool, &budget, 1 << 32, Time::ZERO);
    /// # let mut ends = [open(Side::Client).unwrap(), open(Side::Server).unwrap()];
    /// # let (mut scratch, mut now, mut is_lost, mut turns) = ([0; 1400], Time::ZERO, true, 0);
    /// # let mut carry = |outgoing: Outgoing<'_>| {
    /// #     let (contents, size) = (outgoing.contents(), outgoing.segment_size());
    /// #     let batch = PacketBatch::try_copy_from_slice(&pool, contents, size, ([192, 0, 2, 1], 9).into());
    /// #     (!std::mem::take(&mut is_lost)).then_some(batch.unwrap())
    /// # };
    /// ends[0].send_slice(b"hello")?;
    /// while !ends[0].is_sent() {
    ///     # turns += 1;
    ///     # assert!(turns < 100);
    ///     for from in [0, 1] {
    ///         while let Some(outgoing) = ends[from].poll_transmit(now, &mut scratch, 64) {
    ///             // By `Transmit::segment_size`, and `UdpReceiver::recv_batch` at the other end; `None` if lost.
    ///             if let Some(batch) = carry(outgoing) {
    ///                 assert_eq!(ends[1 - from].handle_batch(now, batch.into_packets()), 0, "refused");
    ///             }
    ///         }
    ///     }
    ///     now = ends.iter().filter_map(Session::poll_timeout).min().expect("they are open");
    ///     ends.iter_mut().for_each(|end| end.handle_timeout(now));
    /// }
    /// assert!(ends[1].has_message() && ends[0].stats().retransmits_timeout == 1);
    /// # assert!(ends[0].rtt().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
            self.surplus_at(),
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
        let idle = self.context.config.idle_timeout;
        match self.path.validated {
            true => idle,
            false => self.context.config.unproved_timeout.min(idle),
        }
    }

    /// When the peer is given up for silence. Before it has proved its address, it is also given up if it leaves
    /// what was sent to it unacknowledged for too long, whatever else comes from its address.
    fn idle_deadline(&self) -> Time {
        let silent = self.last_received + self.silence_limit();
        if self.path.validated {
            return silent;
        }
        let unproved = self.context.config.unproved_timeout;
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

    /// Has its window grown, is nothing in it, and does the peer believe that it may use it?
    pub(super) fn holds_surplus(&self) -> bool {
        self.receive.is_grown_and_empty() && !self.receive.is_narrowed()
    }

    /// When what the window has grown by is to be given back, if memory is short and nothing comes. The session may not
    /// be idle: it may send.
    fn surplus_at(&self) -> Option<Time> {
        if !self.receive.is_grown_and_empty() || !self.context.budget.is_short() {
            return None;
        }
        let mut kept = SURPLUS_KEPT.max(2 * self.rtt_estimate().unwrap_or(INITIAL_RTO));
        let mut quiet = self.receive.quiet_for(self.now);
        if self.receive.is_narrowed() {
            // The question or its answer may be lost, and others may wait: asks again, after twice the time each time.
            let asked = self.peer.wask_sent_at.filter(|_| !self.send_wask)?;
            let since = self.now.since(asked);
            kept = kept.max(quiet.saturating_sub(since));
            quiet = since;
        }
        Some(self.now + kept.saturating_sub(quiet))
    }

    /// When to look again at a session that holds what others may need, if nobody calls it meanwhile: they may make memory
    /// short, if it is not.
    pub(in super::super) fn look_again_at(&self) -> Option<Time> {
        let look = || self.now + SURPLUS_LOOK.max(self.receive.quiet_for(self.now) / 8);
        let at = || self.surplus_at().unwrap_or_else(look);
        self.holds_surplus().then(at)
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
        let newest = self.send.newest()?;
        if self.loss_at.is_some() || self.tail_probed || self.recovery.is_backing_off() {
            return None;
        }
        if self.lost_segments().next().is_some() || self.allowance() < HEADER_BYTES {
            return None;
        }
        if self.is_beyond_window(newest) {
            return None;
        }
        let newest = self.send.slot(newest);
        // The peer may hold an acknowledgement back for an interval.
        let wait = self.recovery.srtt()? * 2 + self.context.config.interval;
        (wait < self.recovery.timeout()).then_some(newest.sent_at + wait)
    }

    /// Does what is due at `now`. Call [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn handle_timeout(&mut self, now: Time) {
        self.advance(now);
        let now = self.now;
        if self.ended().is_some() {
            return;
        }
        let late = now.since(self.keepalive_at);
        let is_open = self.phase == Phase::Open && self.path.validated;
        let time_to_answer = self.context.config.idle_timeout - self.context.config.keepalive;
        if is_open && !self.send_wask && late >= time_to_answer / 2 {
            // Nobody has called in time, as in a process that was stopped, and who was not asked may well be silent. A
            // smaller delay leaves the peer time to answer; and where each call is a little late, one that is gone would
            // be waited for many times as long.
            self.last_received = self.last_received + late;
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
            self.give_up_finishing();
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
            // Sooner than at first: a question or its answer is soon lost, and three in a row are now and then. But not if
            // it could not even be sent.
            let again = match core::mem::replace(&mut self.send_wask, true) {
                true => self.context.config.keepalive,
                false => self.context.config.keepalive / KEEPALIVE_REPEATS,
            };
            self.keepalive_at = now + again.max(MIN_TIMEOUT);
            self.shrink();
        }
        if self.surplus_at().is_some_and(|at| at <= now) {
            self.shrink_receive();
        }
        if let Some((at, wait)) = self.probe
            && at <= now
        {
            self.send_wask = true;
            let wait = (wait + wait / 2).min(PROBE_LONGEST);
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
    pub(super) fn shrink_receive(&mut self) {
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
            let told = |at| self.now.since(at) < self.context.config.keepalive;
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
        if !self.receive.is_filled_by_message()
            || self.phase != Phase::Open
            || self.context.config.stream
        {
            if self.message_wait.take().is_some() {
                self.schedule_window_update();
            }
            return;
        }
        let (now, longest) = (self.now, self.silence_limit());
        let wait = self.message_wait.get_or_insert_with(|| {
            Box::new(MessageWait {
                since: now,
                retry_at: now,
            })
        });
        let end = wait.since + longest;
        if self.receive.is_largest() || end <= now {
            return self.reset(CloseReason::MessageTooLong);
        }
        if wait.retry_at <= now {
            let waited = now.since(wait.since);
            wait.retry_at = now + waited.clamp(GROW_RETRY_FIRST, GROW_RETRY_LONGEST);
        }
        wait.retry_at = wait.retry_at.min(end);
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
pub(super) mod tests;
