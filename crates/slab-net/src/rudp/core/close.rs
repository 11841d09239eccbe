//! How a session ends: closed by either side, reset, given up.
//!
//! Who closes goes on until everything is delivered ([`Phase::Lingering`]), then tells the peer until it
//! answers ([`Phase::Notifying`]). A peer that would not understand is left to find out, and has its
//! retransmissions acknowledged for a while ([`Phase::Quiet`]). The notice is a segment of command 85; its
//! `frg` says which of three it is.
//!
//! Who only finishes sending goes on receiving: behind its last segment comes one whose `frg` says so
//! ([`END`]), in its place in the order and acknowledged as all are.

use super::super::error::CloseReason;
use super::super::time::Time;
use super::super::wire::{Command, Header};
use super::Session;
use core::time::Duration;

/// The `frg` of a close notice whose sender has delivered everything, or has ended as the peer asked it to.
const DELIVERED: u8 = 0;
/// That of one that gives the session up, whatever is on its way.
pub(super) const RESET: u8 = 1;
/// That of one which says no more than that its sender, who has closed and has something to deliver still,
/// takes nothing any more.
pub(super) const DEAF: u8 = 2;
/// The `frg` of the PUSH behind the last one. No fragment of a message has it. Its payload is the `ts` of
/// the receiver's last WASK before it is sent, as a close notice has it: who has seen none of those
/// cannot forge it.
pub(super) const END: u8 = 255;
/// Time-outs that a close notice may take, although the linger time is over.
const NOTICES: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Closed here; goes on until everything is delivered, or this time.
    Lingering {
        until: Time,
    },
    /// Everything is delivered; the peer is told, again at this time and then after twice the wait,
    /// until it answers or the linger time is over.
    Notifying {
        until: Time,
        at: Time,
        wait: Duration,
    },
    /// Over, but for acknowledging what the peer sends again because an acknowledgement was lost.
    Quiet {
        until: Time,
    },
    Over(CloseReason),
}

/// Does more come from the application?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    No,
    /// No; the peer is to be told once it is known to understand, and there is room. If it is not known by
    /// this time, the session is closed.
    Wanted {
        until: Time,
    },
    /// No, and the segment that says so is on its way.
    Marked,
}

impl Session {
    /// What became of a session that was closed here, or of what was sent until it was finished: `None`
    /// until everything is delivered, or it is over.
    pub(in super::super) fn closed(&self) -> Option<Result<(), CloseReason>> {
        match self.phase {
            Phase::Open if self.finish != Finish::Marked => None,
            Phase::Over(_) if self.finish == Finish::Marked && !self.undelivered => Some(Ok(())),
            Phase::Over(CloseReason::Closed) => Some(Ok(())),
            // It may have had everything by then.
            Phase::Over(CloseReason::ClosedByPeer) if !self.undelivered => Some(Ok(())),
            Phase::Over(reason) => Some(Err(reason)),
            _ => self.send.is_empty().then_some(Ok(())),
        }
    }

    /// Takes nothing more for sending, and goes on receiving. A peer of this library learns that nothing
    /// more comes once it has everything: its session [is read to the end](Self::is_read_closed) then. Of
    /// others none would understand: where the peer is one of those, this [closes](Self::close) the session
    /// a few time-outs after it has answered, or after the linger time if it answers nothing.
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
            let until = self.now + self.config.linger;
            self.finish = Finish::Wanted { until };
            self.mark_end();
        }
    }

    /// When it has to be known at last whether the peer can be told that nothing more comes.
    pub(super) fn finish_by(&self) -> Option<Time> {
        match self.finish {
            Finish::Wanted { until } if self.phase == Phase::Open => {
                (!self.peer.can_be_told()).then_some(until)
            }
            _ => None,
        }
    }

    /// Puts the mark of the end behind what is to be sent, if it is wanted and that can be.
    pub(super) fn mark_end(&mut self) {
        let Finish::Wanted { until } = self.finish else {
            return;
        };
        if self.phase != Phase::Open {
            return;
        }
        if !self.peer.can_be_told() {
            if until <= self.now {
                self.close(self.now);
            } else if self.peer.is_foreign() {
                // So it seems. Anybody can answer in its name, and it may answer yet.
                let soon = self.now + self.recovery.timeout() * NOTICES;
                self.finish = Finish::Wanted {
                    until: until.min(soon),
                };
            } else {
                // One of ours that has told no token goes on asking.
                self.ask |= self.probe.is_none() && !self.peer.is_ours;
            }
        } else if self.send.room() > 0 {
            // What it carries is written when it is sent.
            match self.send.blocks.push(&[0; 4], 0, &self.pool) {
                Some(place) => {
                    self.send.push(place, END);
                    self.finish = Finish::Marked;
                }
                // Tried again when the answer comes, if nothing else comes before.
                None => self.ask_again(),
            }
        }
    }

    /// Has the peer everything, but perhaps for the mark of the end?
    fn is_delivered(&self) -> bool {
        match self.send.outstanding() + self.send.queued() {
            0 => true,
            left => left == 1 && self.finish == Finish::Marked,
        }
    }

    /// Takes nothing more for sending and receives nothing more, delivers what was taken within the
    /// linger time, tells the peer if it understands, and ends. What the peer still sends is lost
    /// ([`finish`](Self::finish) goes on receiving), and if it has closed as well it learns that at once.
    pub fn close(&mut self, now: Time) {
        self.advance(now);
        if self.phase == Phase::Open {
            let until = self.now + self.config.linger;
            self.phase = Phase::Lingering { until };
            // Nobody will read it.
            self.receive.clear();
            self.finish_if_sent();
            self.say_deaf();
        }
    }

    /// Tells a peer that might have closed, too, that we take nothing any more, while we have something
    /// to deliver ourselves.
    pub(super) fn say_deaf(&mut self) {
        if matches!(self.phase, Phase::Lingering { .. }) {
            self.deaf = self.peer.can_be_told();
        }
    }

    /// Ends at once; what was not delivered is lost. The peer is told once, if it understands, by what
    /// [`poll_transmit`](Self::poll_transmit) returns next: its session ends as
    /// [reset](CloseReason::Reset). One that was closed and has delivered everything ends as closed, at both
    /// ends.
    pub fn abort(&mut self) {
        self.reset(CloseReason::Aborted);
    }

    /// Ends at once, and tells the peer once.
    pub(super) fn reset(&mut self, reason: CloseReason) {
        if self.ended().is_none() {
            self.notify = self.peer.can_be_told();
            // The peer has everything, and its application perhaps not yet: it would lose that.
            self.end(match self.phase {
                Phase::Notifying { .. } => CloseReason::Closed,
                _ => reason,
            });
        }
    }

    /// Why the session has ended, if it has. What was received in full can still be read after the
    /// peer has closed, or if it had [finished](Self::finish) and then fell silent, and only then.
    #[must_use]
    pub fn ended(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Over(reason) => Some(reason),
            _ => None,
        }
    }

    /// Will nothing more arrive than what can be read now?
    #[must_use]
    pub fn is_read_closed(&self) -> bool {
        self.phase != Phase::Open || self.receive.is_at_end()
    }

    /// Did the peer finish, and has all arrived that it sent?
    pub(in super::super) fn has_everything(&self) -> bool {
        self.receive.is_at_end()
    }

    /// Why nothing is taken for sending any more.
    pub(in super::super) fn send_closed(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Over(reason) => Some(reason),
            Phase::Open if self.finish == Finish::No => None,
            _ => Some(CloseReason::Closed),
        }
    }

    /// There is nobody at the peer's address. Believed only as long as nothing came from there.
    pub(in super::super) fn refused(&mut self) {
        if !self.peer.told {
            self.end(CloseReason::Refused);
        }
    }

    pub(super) fn end(&mut self, reason: CloseReason) {
        if self.ended().is_some() {
            return;
        }
        self.phase = Phase::Over(reason);
        self.undelivered = !self.is_delivered();
        self.send.clear();
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.clear();
        }
        // A peer that has finished has been told that we have everything.
        let keep = match reason {
            CloseReason::ClosedByPeer => true,
            CloseReason::TimedOut | CloseReason::DeadLink => self.receive.is_at_end(),
            _ => false,
        };
        if !keep {
            self.receive.clear();
        }
        self.give_window_back();
    }

    /// The peer has closed, and all is read: what the window reserved is of no more use, however long the
    /// application keeps the session.
    pub(super) fn give_window_back(&mut self) {
        if self.ended() == Some(CloseReason::ClosedByPeer) && self.receive.readable() == 0 {
            self.receive.clear();
        }
    }

    /// Goes on with closing once everything is delivered.
    pub(super) fn finish_if_sent(&mut self) {
        let Phase::Lingering { until } = self.phase else {
            return;
        };
        if !self.send.is_empty() {
            return;
        }
        if !self.peer.is_known() {
            // Whether it would understand a close notice is not known yet.
            self.ask |= self.probe.is_none();
        } else if self.peer.is_ours {
            if !self.peer.has_token {
                return; // Its questions were lost; it goes on asking.
            }
            let wait = self.recovery.timeout();
            self.notify(until.max(self.now + wait * NOTICES), wait);
        } else {
            // As long as the peer would take to send something again.
            let until = self.now + self.recovery.timeout() * 3;
            self.phase = Phase::Quiet { until };
        }
    }

    /// Tells the peer, until it answers or the time is over: a peer that never hears of it keeps the
    /// session for its idle timeout.
    pub(super) fn notify(&mut self, until: Time, wait: Duration) {
        self.notify = true;
        // It says more.
        self.deaf = false;
        self.phase = Phase::Notifying {
            until,
            at: until.min(self.now + wait),
            wait,
        };
    }

    /// The next close notice to be sent, if there is one.
    pub(super) fn next_notice(&mut self) -> Option<Header> {
        let frg = match self.phase {
            // An answer to the peer's close notice, or a reset, is the last that is heard of us.
            Phase::Over(
                CloseReason::Aborted | CloseReason::MessageTooLong | CloseReason::LingerExpired,
            ) => RESET,
            Phase::Over(CloseReason::ClosedByPeer | CloseReason::Closed) => DELIVERED,
            Phase::Over(_) => return None,
            _ => DELIVERED,
        };
        let frg = if core::mem::take(&mut self.notify) {
            frg
        } else if core::mem::take(&mut self.deaf) {
            DEAF
        } else {
            return None;
        };
        Some(Header {
            frg,
            ts: self.peer.token,
            sn: self.send.next(),
            ..self.header(Command::Close)
        })
    }

    /// The peer has given the session up. Not answered.
    pub(super) fn on_reset(&mut self) {
        let delivered = self.phase != Phase::Open && self.is_delivered();
        self.end(match delivered {
            true => CloseReason::Closed,
            false => CloseReason::Reset,
        });
    }

    /// The peer takes nothing any more, and nor do we if we have closed, too: then nothing that is left can
    /// be delivered, on either side.
    pub(super) fn on_deaf(&mut self) {
        if matches!(self.phase, Phase::Lingering { .. }) {
            self.deaf = true;
            self.end(CloseReason::ClosedByPeer);
        }
    }

    /// The peer has delivered everything and tells so, or answers that we have.
    pub(super) fn on_close(&mut self) {
        match self.phase {
            Phase::Open => {
                self.notify = true;
                self.end(CloseReason::ClosedByPeer);
            }
            Phase::Lingering { .. } => {
                self.notify = true;
                self.end(if self.is_delivered() {
                    CloseReason::Closed
                } else {
                    CloseReason::ClosedByPeer
                });
            }
            // Not answered: two that answer each other's answers would never end.
            Phase::Notifying { .. } | Phase::Quiet { .. } => self.end(CloseReason::Closed),
            // It has not heard our answer.
            Phase::Over(_) => self.notify = true,
        }
    }
}
