//! How a session ends: closed by either side, reset, or given up.
//!
//! The end that closes goes on until everything is delivered ([`Phase::Lingering`]), then tells the peer until the
//! peer answers ([`Phase::Notifying`]). A peer that would not understand is not told; its retransmissions are
//! acknowledged for a while ([`Phase::TimeWait`]). The notice is a segment of command 85, and its `frg` says which of
//! four kinds it is. Only a notice whose sender waits is answered, so no two ends answer each other for ever.
//!
//! An end that has ended answers whatever else comes by its last notice, now and then: the peer has not received it,
//! or there was none because the peer was silent. So does an endpoint for a session that is gone, and one that knows
//! nothing of it says so once it is asked.
//!
//! An end that only finishes sending goes on receiving: its last segment is followed by one whose `frg` marks the
//! end ([`END`]), with its own sequence number and acknowledged like any other.

use super::super::error::CloseReason;
use super::super::time::Time;
use super::super::wire::{Command, Header, OURS, segments};
use super::Session;
use super::recovery::micros;
use core::time::Duration;

/// The `frg` of a close notice whose sender has delivered everything, and waits for an answer.
const DELIVERED: u8 = 0;
/// The `frg` of a close notice that resets the session, whatever is in flight.
pub(super) const RESET: u8 = 1;
/// The `frg` of a close notice which says only that its sender, which has closed but still has something to
/// deliver, takes nothing any more.
pub(super) const NOT_RECEIVING: u8 = 2;
/// The `frg` of a close notice whose sender has ended: the answer to one whose sender waits. Not answered.
pub(super) const ENDED: u8 = 3;
/// The `frg` of the PUSH behind the last one; no fragment of a message has it. Its payload is the `ts` of the last
/// WASK that came from its receiver, as in a close notice: nobody who has not seen that WASK can forge it.
pub(super) const END: u8 = 255;
/// A close notice is given the time of this many time-outs, even if the linger time is over.
const MIN_NOTICE_TIMEOUTS: u32 = 3;

/// The shortest time after which a session that has ended says so again, whatever comes meanwhile.
pub(in super::super) const REMINDER_INTERVAL: Duration = Duration::from_millis(200);

/// Does this datagram show that its sender does not know that the session has ended? One that says that it has ended
/// there, too, is never answered.
pub(in super::super) fn needs_reminder(datagram: &[u8]) -> bool {
    segments(datagram).all(|segment| {
        segment.is_ok_and(|(header, _)| {
            header.cmd != Command::Close || !matches!(header.frg, RESET | ENDED)
        })
    })
}

/// The answer to a question in a session that is not known here, as after a restart: a reset, with the token that came
/// with the question. `None` if nothing is asked, or as other implementations ask, which would not understand.
pub(in super::super) fn not_known(datagram: &[u8]) -> Option<Header> {
    let mut headers = segments(datagram).flatten().map(|(header, _)| header);
    let asked = headers.find(|header| header.cmd == Command::AskWindow && header.frg == OURS)?;
    Some(Header {
        cmd: Command::Close,
        frg: RESET,
        wnd: 0,
        // The `sn` of a WASK is what its sender would take for an `una`.
        sn: asked.una,
        una: asked.sn,
        // A question has no contents, and the answer none, whatever a stranger's says.
        len: 0,
        ..asked
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Closed here; goes on until everything is delivered, at most until this time.
    Lingering {
        until: Time,
    },
    /// Everything is delivered. The peer is told at once, again at `at`, and then after waits that double, until it
    /// answers or `until` has come. A wait is in microseconds, in 32 bits: there are many sessions.
    Notifying {
        until: Time,
        at: Time,
        wait: u32,
    },
    /// Closed, except for acknowledging what the peer sends again because an acknowledgement was lost.
    TimeWait {
        until: Time,
    },
    /// The peer is told, and from that time on told again if something comes from it.
    Ended {
        reason: CloseReason,
        remind_at: Time,
    },
}

/// Will the application send more?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    No,
    /// No. The peer is to be told once it is known to understand and there is room. If that is not known by this
    /// time, the session is closed.
    Pending {
        until: Time,
    },
    /// No, and the segment that says so is queued or sent.
    Marked,
    /// No, and as the peer could not be told, the session was closed.
    GivenUp,
}

impl Session {
    /// The outcome of a close here, or of what was sent until a finish here: `None` until everything is delivered
    /// or the session has ended.
    pub(in super::super) fn close_result(&self) -> Option<Result<(), CloseReason>> {
        match self.phase {
            Phase::Open if self.finish != Finish::Marked => None,
            Phase::Ended { reason, .. } => Some(match reason {
                _ if self.finish == Finish::Marked && !self.undelivered => Ok(()),
                CloseReason::Closed => Ok(()),
                // It may have had everything by then.
                CloseReason::ClosedByPeer if !self.undelivered => Ok(()),
                reason => Err(reason),
            }),
            _ => self.send.is_empty().then_some(Ok(())),
        }
    }

    /// Accepts nothing more for sending, and goes on receiving. Once a peer that runs this library has received
    /// everything, its session [is read to the end](Self::is_read_closed). No other implementation would understand
    /// that, so for such a peer this [closes](Self::close) the session a few time-outs after the peer has answered,
    /// or after the linger time if it does not answer.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{MemoryBudget, Session, SessionConfig, Side, Time};
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let budget = MemoryBudget::new(8 << 20);
    /// # let open = |side| Session::open(7, &SessionConfig::fast(), side, &pool, &budget, 1 << 32, Time::ZERO);
    /// # let mut ends = [open(Side::Client).unwrap(), open(Side::Server).unwrap()];
    /// # let talk = |ends: &mut [Session; 2]| for from in [0, 1, 0, 1, 0, 1] {
    /// #     while let Some(out) = ends[from].poll_transmit(Time::ZERO, &mut [0; 2048], 1) {
    /// #         let datagram = pool.try_copy_from_slice(out.contents()).unwrap();
    /// #         ends[1 - from].handle_datagram(Time::ZERO, datagram).unwrap();
    /// #     }
    /// # };
    /// ends[0].send_slice(b"is that all?")?;
    /// ends[0].finish(Time::ZERO);
    /// talk(&mut ends);
    /// assert!(ends[1].is_read_closed());
    /// assert_eq!(ends[1].recv().unwrap(), b"is that all?"[..]);
    ///
    /// ends[1].send_slice(b"it is")?;
    /// talk(&mut ends);
    /// assert_eq!(ends[0].recv().unwrap(), b"it is"[..]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn finish(&mut self, now: Time) {
        self.advance(now);
        if self.phase == Phase::Open && self.finish == Finish::No {
            let until = self.now + self.context.config.linger;
            self.finish = Finish::Pending { until };
            self.queue_end_mark();
        }
    }

    /// By when it must be known whether the peer can be told of the end.
    pub(super) fn finish_deadline(&self) -> Option<Time> {
        match self.finish {
            Finish::Pending { until } if self.phase == Phase::Open => {
                (!self.peer.believes_us()).then_some(until)
            }
            _ => None,
        }
    }

    /// The peer could not be told in time. What has come meanwhile was looked at before.
    pub(super) fn give_up_finishing(&mut self) {
        self.close(self.now);
        self.finish = Finish::GivenUp;
    }

    /// Queues the mark of the end behind what is to be sent, if it is wanted and possible now.
    pub(super) fn queue_end_mark(&mut self) {
        let Finish::Pending { until } = self.finish else {
            return;
        };
        if self.phase != Phase::Open {
            return;
        }
        if !self.peer.believes_us() {
            if self.peer.is_foreign() {
                // So it seems; but anybody can answer in its name, and the real answer may still come.
                let soon = self.now + self.recovery.timeout() * MIN_NOTICE_TIMEOUTS;
                self.finish = Finish::Pending {
                    until: until.min(soon),
                };
            } else {
                // A peer that runs this library but has sent no token goes on asking.
                self.send_wask |= self.probe.is_none() && !self.peer.is_ours;
            }
        } else if self.send.room() > 0 {
            // Its payload is written when it is sent. Nobody calls again if there is no memory, and what keeps that in
            // use may stay for ever, such as datagrams that nobody reads.
            match self.send.blocks.push_or_heap(&[0; 4], &self.context.pool) {
                Some(place) => {
                    self.send.push(place, END);
                    self.finish = Finish::Marked;
                }
                // Tried again at the latest when the answer comes.
                None => self.start_window_probe(),
            }
        }
    }

    /// Does the peer have everything, except perhaps the mark of the end?
    fn is_delivered(&self) -> bool {
        match self.send.outstanding() + self.send.queued() {
            0 => true,
            left => left == 1 && self.finish == Finish::Marked,
        }
    }

    /// Accepts nothing more for sending and receives nothing more. Delivers what was accepted within the linger
    /// time, tells the peer if it understands, and ends. What the peer still sends is lost
    /// ([`finish`](Self::finish) goes on receiving); if the peer has closed as well, it learns that at once.
    pub fn close(&mut self, now: Time) {
        self.advance(now);
        if self.phase == Phase::Open {
            let until = self.now + self.context.config.linger;
            self.phase = Phase::Lingering { until };
            // Nobody will read what was received.
            self.receive.clear();
            self.continue_close();
            self.queue_not_receiving();
        }
    }

    /// While this end has something to deliver: tells the peer, which may have closed as well, that this end takes
    /// nothing any more.
    pub(super) fn queue_not_receiving(&mut self) {
        if matches!(self.phase, Phase::Lingering { .. }) {
            self.send_not_receiving = self.peer.believes_us();
        }
    }

    /// Ends at once; what was not delivered is lost. The segment that [`poll_transmit`](Self::poll_transmit)
    /// returns next tells the peer, if it understands, and the peer's session ends as
    /// [reset](CloseReason::Reset); so does what it returns when something comes from the peer later. A session that
    /// was closed and has delivered everything ends as closed, at both ends.
    pub fn abort(&mut self) {
        self.reset(CloseReason::Aborted);
    }

    /// Ends at once, and tells the peer.
    pub(super) fn reset(&mut self, reason: CloseReason) {
        if self.ended().is_none() {
            self.send_close_notice = self.peer.has_token;
            self.give_up(reason);
        }
    }

    /// Ends for this reason, unless it is closed and has delivered everything. The peer's application may not have
    /// read that yet, and a reset would discard it.
    pub(super) fn give_up(&mut self, reason: CloseReason) {
        let delivered = self.phase != Phase::Open && self.send.is_empty();
        self.end(match delivered {
            true => CloseReason::Closed,
            false => reason,
        });
    }

    /// The next message is longer than there will ever be room for, even if the peer has closed since.
    pub(super) fn refuse_message(&mut self) {
        self.reset(CloseReason::MessageTooLong);
        if let Phase::Ended { reason, .. } = &mut self.phase {
            *reason = CloseReason::MessageTooLong;
        }
        self.receive.clear();
    }

    /// Returns why the session has ended, if it has. What was received in full can still be read only if the peer
    /// has closed, or had [finished](Self::finish), whatever became of it then.
    #[must_use]
    pub fn ended(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Ended { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Returns `true` if nothing more will arrive than what can be read now.
    #[must_use]
    pub fn is_read_closed(&self) -> bool {
        self.phase != Phase::Open || self.receive.is_at_end()
    }

    /// Was the session closed because it could not be finished? Whether that is an error for who reads is known when
    /// it has ended.
    pub(in super::super) fn has_given_up_finishing(&self) -> bool {
        self.finish == Finish::GivenUp
    }

    /// Has the peer finished, and has everything arrived that it sent?
    pub(in super::super) fn has_received_all(&self) -> bool {
        self.receive.is_at_end()
    }

    /// Why nothing is accepted for sending any more.
    pub(in super::super) fn send_closed(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Ended { reason, .. } => Some(reason),
            Phase::Open if self.finish != Finish::No => Some(CloseReason::Closed),
            Phase::Open => self.peer_takes_nothing.then_some(CloseReason::ClosedByPeer),
            _ => Some(CloseReason::Closed),
        }
    }

    /// Nobody listens at the peer's address. Believed only if nothing has ever come from there.
    pub(in super::super) fn refused(&mut self) {
        if !self.peer.has_told_window {
            self.end(CloseReason::Refused);
        }
    }

    pub(super) fn end(&mut self, reason: CloseReason) {
        if self.ended().is_some() {
            return;
        }
        self.phase = Phase::Ended {
            reason,
            remind_at: self.now,
        };
        self.undelivered = !self.is_delivered();
        self.send.clear();
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.clear();
        }
        // A peer that has finished has been told that we received everything.
        let keep = match reason {
            CloseReason::ClosedByPeer => true,
            CloseReason::TimedOut | CloseReason::DeadLink | CloseReason::Reset => {
                self.receive.is_at_end()
            }
            _ => false,
        };
        if !keep {
            self.receive.clear();
        }
        self.release_window();
    }

    /// Once everything that will ever come is read, the window's reservation is of no use, however long the
    /// application keeps the session, or sends.
    pub(super) fn release_window(&mut self) {
        let nothing_comes = self.receive.is_at_end() || self.ended().is_some();
        // Once is enough, whatever comes again.
        if nothing_comes && self.receive.readable() == 0 && self.receive.reserved() > 0 {
            self.receive.release();
        }
    }

    /// Goes on with closing once everything is delivered.
    pub(super) fn continue_close(&mut self) {
        let Phase::Lingering { until } = self.phase else {
            return;
        };
        if self.finish == Finish::Marked && self.send.outstanding() == 0 && self.send.queued() == 1
        {
            // Only the mark of the end is left. The close notice says more, and needs no room in the peer's window.
            self.send.take_back(1);
        }
        if !self.send.is_empty() {
            return;
        }
        if !self.peer.is_known() {
            // It is not yet known whether the peer would understand a close notice.
            self.send_wask |= self.probe.is_none();
        } else if self.peer.is_ours {
            if !self.peer.has_token {
                return; // The peer's questions were lost; it goes on asking.
            }
            let wait = self.recovery.timeout();
            self.start_notifying(until.max(self.now + wait * MIN_NOTICE_TIMEOUTS), wait);
        } else {
            // As long as the peer would take to send something again.
            let until = self.now + self.recovery.timeout() * 3;
            self.phase = Phase::TimeWait { until };
        }
    }

    /// Tells the peer until it answers or the time is over: a peer that never hears of the close keeps its session
    /// for its idle timeout.
    pub(super) fn start_notifying(&mut self, until: Time, wait: Duration) {
        self.send_close_notice = true;
        // The close notice says more.
        self.send_not_receiving = false;
        self.phase = Phase::Notifying {
            until,
            at: until.min(self.now + wait),
            wait: micros(wait),
        };
    }

    /// The next close notice to send, if there is one.
    pub(super) fn next_notice(&mut self) -> Option<Header> {
        let frg = match self.phase {
            Phase::Ended { reason, .. } => last_notice_frg(reason)?,
            _ => DELIVERED,
        };
        let frg = if core::mem::take(&mut self.send_close_notice) {
            frg
        } else if core::mem::take(&mut self.send_not_receiving) {
            NOT_RECEIVING
        } else {
            return None;
        };
        if let Phase::Ended { remind_at, .. } = &mut self.phase {
            *remind_at = self.now + REMINDER_INTERVAL;
        }
        Some(self.notice(frg))
    }

    fn notice(&self, frg: u8) -> Header {
        Header {
            frg,
            ts: self.peer.token,
            sn: self.send.next(),
            ..self.header(Command::Close)
        }
    }

    /// What tells a peer that has not noticed it that the session has ended here. `None` if the peer would not
    /// understand, or is known to be gone.
    pub(in super::super) fn last_notice(&self) -> Option<Header> {
        let frg = last_notice_frg(self.ended()?)?;
        self.peer.has_token.then(|| self.notice(frg))
    }

    /// Something has come from a peer that has not noticed the end.
    pub(super) fn queue_reminder(&mut self) {
        if let Phase::Ended { remind_at, .. } = self.phase {
            self.send_close_notice |= remind_at <= self.now && self.last_notice().is_some();
        }
    }

    /// An end that was aborted before it had heard anything can tell its peer by the token in its first answer, in which
    /// an acknowledgement comes first: behind that, nothing of an ended session is looked at any more.
    pub(super) fn learn_token(&mut self, datagram: &[u8]) {
        let mut headers = segments(datagram).flatten().map(|(header, _)| header);
        let asks = |header: &Header| header.cmd == Command::AskWindow && header.frg == OURS;
        // One that is known is not replaced: anybody may ask in the peer's name.
        if !self.peer.has_token
            && let Some(asked) = headers.find(asks)
        {
            self.peer.token = asked.ts;
            self.peer.has_token = true;
        }
    }

    /// The peer has given the session up. Not answered.
    pub(super) fn on_reset(&mut self) {
        let delivered = self.phase != Phase::Open && self.is_delivered();
        self.end(match delivered {
            true => CloseReason::Closed,
            false => CloseReason::Reset,
        });
    }

    /// The peer takes nothing any more. If we have closed as well, nothing that is left can be delivered, on either
    /// side. Otherwise what the peer has left is read, for as long as it lingers.
    pub(super) fn on_not_receiving(&mut self) {
        match self.phase {
            Phase::Lingering { .. } => {
                // The peer may have delivered everything by now, and wait for an answer.
                self.send_close_notice = true;
                self.end(CloseReason::ClosedByPeer);
            }
            Phase::Open => self.stop_sending(),
            _ => {}
        }
    }

    /// The peer has delivered everything, and waits for an answer, or has ended. An end that has sent a notice of
    /// its own answers, too: the peer may not have received that, and would wait for the linger time.
    pub(super) fn on_close(&mut self, has_ended: bool) {
        self.send_close_notice = !has_ended;
        match self.phase {
            Phase::Open => self.end(CloseReason::ClosedByPeer),
            Phase::Lingering { .. } => self.end(if self.is_delivered() {
                CloseReason::Closed
            } else {
                CloseReason::ClosedByPeer
            }),
            Phase::Notifying { .. } | Phase::TimeWait { .. } => self.end(CloseReason::Closed),
            // If the peer waits, it has not received our answer.
            Phase::Ended { .. } => {}
        }
    }
}

/// The `frg` of the last that the peer hears from an end that ended for this reason.
fn last_notice_frg(reason: CloseReason) -> Option<u8> {
    match reason {
        CloseReason::Closed | CloseReason::ClosedByPeer => Some(ENDED),
        CloseReason::Aborted
        | CloseReason::LingerExpired
        | CloseReason::MessageTooLong
        | CloseReason::TimedOut
        | CloseReason::DeadLink => Some(RESET),
        CloseReason::Reset | CloseReason::Refused => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::wire::HEADER_BYTES;
    use super::*;

    /// A stranger's question may have contents.
    #[test]
    fn the_answer_in_an_unknown_session_is_a_segment_by_itself() {
        let question = Header {
            conv: 7,
            cmd: Command::AskWindow,
            frg: OURS,
            wnd: 32,
            ts: 5,
            sn: 0,
            una: 3,
            len: 4,
        };
        let mut datagram = [0; HEADER_BYTES + 4];
        question.encode(&mut datagram);
        let mut answer = [0; HEADER_BYTES];
        not_known(&datagram).unwrap().encode(&mut answer);
        let (header, contents) = segments(&answer).next().unwrap().unwrap();
        assert_eq!((header.cmd, header.frg), (Command::Close, RESET));
        assert_eq!((header.conv, header.ts), (7, 5));
        assert!(contents.is_empty());
        assert!(!needs_reminder(&answer), "it is answered in turn");
        // As other implementations ask.
        datagram[5] = 0;
        assert_eq!(not_known(&datagram), None);
    }
}
