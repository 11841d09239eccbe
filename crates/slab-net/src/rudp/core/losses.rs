//! Segments that are taken for lost: which, when, and what the congestion control is told of it.

use super::super::error::CloseReason;
use super::Session;
use super::recovery::Verdict;
use super::send::Cause;
use super::undo::Undo;

impl Session {
    /// Marks segments as lost, and notes when the next one will be.
    pub(super) fn find_losses(&mut self) {
        self.loss_at = None;
        while let Some(sn) = self.send.oldest() {
            let slot = *self.send.slot(sn);
            match self.recovery.verdict(slot.serial, slot.sent_at, self.now) {
                Verdict::Unknown => break,
                Verdict::LostAt(at) => {
                    self.loss_at = Some(at);
                    break;
                }
                Verdict::Lost => {
                    // The path has not lost what the peer had no room for.
                    if !self.is_beyond_window(sn) {
                        self.recovery.lost(slot.serial, self.send.serial());
                        self.reduce(slot.serial, Undo::TakenForLost(0));
                    }
                    // The peer is there. It may have no memory for this segment, and round trips may be short.
                    self.send.forgive(sn);
                    self.mark_lost(sn, Cause::Fast, true);
                }
            }
        }
    }

    /// A transmission was lost: tells the congestion control, once a round trip.
    pub(super) fn reduce(&mut self, serial: u64, undo: Undo) {
        if serial > self.reduced_at {
            self.reduced_at = self.send.serial();
            self.undo = undo;
            self.control.lost(self.send.outstanding());
        }
    }

    /// Queues a segment to be sent again; returns `false` if that ends the session. If it is `excused`, this says nothing
    /// against the link.
    pub(super) fn mark_lost(&mut self, sn: u32, cause: Cause, excused: bool) -> bool {
        let spent = u32::from(self.send.slot(sn).transmissions) >= self.context.config.dead_link;
        if spent && !excused {
            self.end(CloseReason::DeadLink);
            return false;
        }
        self.send.mark_lost(sn, cause, excused);
        self.on_taken_for_lost(cause);
        true
    }
}
