//! How a peer is recognised that has begun anew with the conversation, and lacks what the one before had.
//!
//! A server of this library that is asked in a session which it does not know answers with a reset
//! (`close::not_known`). Others answer whatever comes as if it were the beginning. But every segment says by its `una`
//! what its sender has, and that never becomes less. A datagram may be late, so an old `una` by itself says nothing.
//! The session ends if a peer
//!
//! - closes with an `una` behind what it had told: who closes takes nothing more, so there is no earlier notice;
//! - acknowledges with an `una` behind what it had told before that was sent ([`lacks_what_it_had`]);
//! - has acknowledged a segment, and lacks one before it ([`Session::has_peer_lost_some`]).
//!
//! All else that comes from it [is no sign of life](Session::is_sign_of_life), so that otherwise time ends the session.
//! Nor is anything delivered meanwhile [that it sends](Session::is_of_new_beginning).
//!
//! If it was this end that has begun anew, a peer of another implementation that had nothing to acknowledge may go on:
//! what it sends is behind a beginning that it will not send again. Until the beginning comes, nothing else from such a
//! peer is a sign of life. One of this library sees by the first acknowledgement that this end lacks what it had.

use super::super::wire::{Command, Header, segments};
use super::send::Slot;
use super::sn::before;
use super::{Peer, Session};
use core::time::Duration;

impl Session {
    /// Does it show that the peer still has its state? One that has begun anew answers whatever it is asked, but lacks
    /// what the one before had; and a server that would open the session for a cookie does not know it any more.
    pub(super) fn is_sign_of_life(&self, datagram: &[u8]) -> bool {
        let mut headers = segments(datagram).flatten().map(|(header, _)| header);
        if self.receive.lacks_beginning() && !self.peer.is_ours {
            return headers.any(|header| header.cmd == Command::Push && header.sn == 0);
        }
        let Peer {
            has_told_window,
            latest_una,
            ..
        } = self.peer;
        let is_current =
            |header: &Header| header.cmd != Command::Cookie && !before(header.una, latest_una);
        !has_told_window || headers.any(|header| is_current(&header))
    }

    /// Does this PUSH lack what the peer has had for long? By its number it may be the next one of the session, but the
    /// peer began anew, and it belongs behind others that the session has not had. If it is only late, by more than a
    /// time-out, it is sent again.
    pub(super) fn is_of_new_beginning(&self, push: &Header) -> bool {
        // One that has begun anew lacks everything, however lately the one before acknowledged more. KCP counts from 0.
        let has_had_for = match push.una {
            0 => Duration::from_millis(self.millis().wrapping_sub(self.peer.has_some_since).into()),
            _ => self.now.since(self.progress_at),
        };
        before(push.una, self.peer.latest_una) && has_had_for >= self.recovery.first_timeout()
    }

    /// Is a segment acknowledged that the peer says it has not? Whichever segment reached it last, its acknowledgement
    /// says by its `una` that all before have arrived, too. A peer that began anew lacks what only the one before had,
    /// and nobody would send it that again. Others than this library keep their `una` back while their reader is slow:
    /// then the window is empty, too, or was until it was made larger.
    pub(super) fn has_peer_lost_some(&self) -> bool {
        let latest = self.peer.latest_una;
        let is_held_back = !self.peer.is_ours && before(latest, self.peer.held_back_until);
        // Of a session that has ended everything counts as acknowledged.
        self.ended().is_none() && !is_held_back && before(latest, self.send.una())
    }
}

/// Does this acknowledgement of a segment lack what the peer had told that it has, before the transmission which is
/// acknowledged? It began anew, and waits for everything.
pub(super) fn lacks_what_it_had(ack: &Header, slot: &Slot) -> bool {
    let una = match ack.ts == slot.last_ts {
        true => slot.last_una,
        false => slot.first_una,
    };
    before(ack.una, una)
}
