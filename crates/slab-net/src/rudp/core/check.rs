//! Is a datagram one that the peer can have sent? Nothing of it is applied before all of it is checked.

use super::super::error::Rejection;
use super::super::wire::{Command, Header, segments};
use super::close::{END, NOT_RECEIVING, Phase, RESET};
use super::sn::diff;
use super::{MAX_FRAGMENTS, Session};

/// The furthest that a valid sequence number can be from the session's: twice the largest window.
const MAX_SN_DISTANCE: i32 = 65536;

impl Session {
    /// Is every segment valid, and possible?
    pub(super) fn check(&self, datagram: &[u8]) -> Result<(), Rejection> {
        // The `sn` and `frg` of the PUSH before, if there is one.
        let mut before = None;
        for segment in segments(datagram) {
            let (header, payload) = segment?;
            if header.conv != self.conv {
                return Err(Rejection::OtherConversation);
            }
            let una = diff(header.una, self.send.una());
            if diff(header.una, self.send.next()) > 0 || una < -MAX_SN_DISTANCE {
                return Err(Rejection::UnaBeyondSent);
            }
            match header.cmd {
                Command::Push => {
                    match header.frg {
                        END => self.check_end(&datagram[payload])?,
                        _ => self.check_push(&header)?,
                    }
                    self.check_position(&header, before)?;
                    before = Some((header.sn, header.frg));
                }
                Command::Ack => self.check_ack(&header)?,
                Command::AskWindow | Command::TellWindow => {}
                Command::Close => {
                    // If this end is closing, it has stopped receiving and cannot judge `sn`; and a reset does not
                    // wait for what is in flight.
                    let in_turn = self.phase != Phase::Open
                        || matches!(header.frg, RESET | NOT_RECEIVING)
                        || header.sn == self.receive.next();
                    if header.ts != self.token || !in_turn {
                        return Err(Rejection::ForgedClose);
                    }
                }
                Command::Datagram => {
                    if header.ts != self.token {
                        return Err(Rejection::ForgedDatagram);
                    }
                    if header.len as usize > self.context.config.max_segment() {
                        return Err(Rejection::SegmentTooLong);
                    }
                }
                // Read where a session begins; ignored otherwise.
                Command::Cookie => {}
            }
        }
        Ok(())
    }

    fn check_push(&self, header: &Header) -> Result<(), Rejection> {
        if header.len as usize > self.context.config.max_segment() {
            return Err(Rejection::SegmentTooLong);
        }
        let most = MAX_FRAGMENTS.min(self.context.config.recv_window);
        if u32::from(header.frg) >= most {
            return Err(Rejection::TooManyFragments);
        }
        Ok(())
    }

    /// Only a peer that has received our WASK knows the token.
    fn check_end(&self, payload: &[u8]) -> Result<(), Rejection> {
        if payload != self.token.to_le_bytes() {
            return Err(Rejection::ForgedEnd);
        }
        Ok(())
    }

    /// Is the segment within reach, and does its `frg` fit its neighbours? Otherwise its message would have no end,
    /// or another one than the peer gave it.
    fn check_position(&self, header: &Header, before: Option<(u32, u8)>) -> Result<(), Rejection> {
        if !(-MAX_SN_DISTANCE..MAX_SN_DISTANCE).contains(&self.receive.offset(header.sn)) {
            return Err(Rejection::SequenceFarOutside);
        }
        if !self
            .receive
            .is_frg_consistent(header.sn, header.frg, before)
        {
            return Err(Rejection::TooManyFragments);
        }
        Ok(())
    }

    fn check_ack(&self, header: &Header) -> Result<(), Rejection> {
        if diff(header.sn, self.send.next()) >= 0
            || diff(header.sn, self.send.una()) < -MAX_SN_DISTANCE
        {
            return Err(Rejection::AckBeyondSent);
        }
        if self.send.is_outstanding(header.sn) {
            let slot = self.send.slot(header.sn);
            let since_first = header.ts.wrapping_sub(slot.first_ts);
            if since_first > slot.last_ts.wrapping_sub(slot.first_ts) {
                return Err(Rejection::TimeNeverSent);
            }
        }
        Ok(())
    }
}
