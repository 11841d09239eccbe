//! What a datagram does once it has been checked as a whole.

use super::super::error::{CloseReason, Rejection};
use super::super::time::Time;
use super::super::wire::{Command, Header, OURS, OURS_SERVER, OURS_UNPROVED, segments};
use super::close::{END, ENDED, NOT_RECEIVING, Phase, RESET, needs_reminder};
use super::congestion::Progress;
use super::receive::{BatchBuffer, Inserted, Measured};
use super::recovery::micros;
use super::restart::lacks_what_it_had;
use super::send::{Cause, Slot, State};
use super::sn::before;
use super::undo::Undo;
use super::{MAX_FRAGMENTS, Session, Side};
use crate::packet::Packet;
use bytes::Buf;
use core::num::NonZeroU64;
use core::ops::Range;
use core::time::Duration;

/// The shortest time between questions to the peer that are only useful, not needed.
const MIN_WASK_INTERVAL: Duration = Duration::from_secs(1);

/// What the segments of one datagram say together.
#[derive(Default)]
struct Digest {
    una: Option<(u32, u32)>,
    /// The number and the round-trip time of the latest transmission acknowledged.
    sample: Option<(u64, Duration)>,
    acknowledged: u32,
    /// Segments outstanding before this datagram.
    outstanding: u32,
    /// Is there a WASK from a peer that runs this library and has all that was sent?
    may_narrow: bool,
}

impl Session {
    /// Takes a datagram that arrived for this session, whoever sent it.
    ///
    /// # Errors
    /// Says why the datagram was refused. The session has then changed only in its count of rejections
    /// ([`stats`](Self::stats)), and may ask the peer for its window. Where PUSH segments of one datagram contradict each
    /// other, only the later ones are refused; of a peer that has begun anew, only PUSH segments.
    pub fn handle_datagram(&mut self, now: Time, datagram: Packet) -> Result<(), Rejection> {
        self.advance(now);
        self.handle(datagram, &mut BatchBuffer::default())
    }

    /// Takes datagrams that lie in order in one buffer, as the kernel coalesces them. The buffer is then charged to
    /// the session's memory once, not once a datagram.
    ///
    /// Returns how many were refused.
    pub fn handle_batch(&mut self, now: Time, datagrams: impl IntoIterator<Item = Packet>) -> u32 {
        self.handle_all(now, datagrams, false)
    }

    /// As [`handle_batch`](Self::handle_batch). Nothing of `transient` datagrams is kept: segments are copied, or
    /// dropped and counted where there is no memory for a copy.
    pub(in super::super) fn handle_all(
        &mut self,
        now: Time,
        datagrams: impl IntoIterator<Item = Packet>,
        transient: bool,
    ) -> u32 {
        self.advance(now);
        let mut batch = BatchBuffer::default();
        batch.transient = transient;
        let refused = datagrams
            .into_iter()
            .map(|datagram| self.handle(datagram, &mut batch).is_err());
        refused.map(u32::from).sum()
    }

    fn handle(&mut self, datagram: Packet, batch: &mut BatchBuffer) -> Result<(), Rejection> {
        let bytes = datagram.len() as u64;
        let handled = self.check(&datagram);
        let handled = handled.and_then(|()| self.handle_checked(datagram, batch));
        match handled {
            Ok(()) => {
                self.stats.received_datagrams += 1;
                self.stats.received_bytes += bytes;
            }
            Err(rejection) => {
                self.stats.reject(rejection);
                self.resync_token_after(rejection);
            }
        }
        handled
    }

    fn handle_checked(
        &mut self,
        datagram: Packet,
        batch: &mut BatchBuffer,
    ) -> Result<(), Rejection> {
        self.path.earn(datagram.len());
        if self.is_sign_of_life(&datagram) {
            self.last_received = self.now;
            self.keepalive_at = self.now + self.context.config.keepalive;
        }
        if !self.path.validated && is_challenge(&datagram) {
            // Two servers, each of which takes the other for a client, as if that had begun: somebody greeted us
            // in the peer's name, and the peer took our answer for a greeting. Each would prove its address to the
            // other, and they would talk for as long as they find an answer. No client sends a challenge.
            self.end(CloseReason::Reset);
            return Ok(());
        }
        let missed_the_end = self.ended().is_some() && needs_reminder(&datagram);
        if missed_the_end {
            self.learn_token(&datagram);
        }
        let applied = self.apply(datagram, batch);
        if missed_the_end {
            self.queue_reminder();
        }
        applied
    }

    /// A segment that seems forged may be the peer's own, if somebody asked in our name and gave it another token:
    /// asks it again, now and then, which tells it ours.
    fn resync_token_after(&mut self, rejection: Rejection) {
        use Rejection::{ForgedClose, ForgedDatagram, ForgedEnd};
        self.send_wask |= matches!(rejection, ForgedClose | ForgedDatagram | ForgedEnd)
            && self.peer.is_ours
            && self.may_ask_again();
    }

    /// May the peer be asked for its window again, if that is only useful?
    fn may_ask_again(&self) -> bool {
        let again = |at| self.now.since(at) >= MIN_WASK_INTERVAL;
        self.peer.wask_sent_at.is_none_or(again)
    }

    /// Returns why some of its segments were not applied, if that was not seen before.
    fn apply(&mut self, mut datagram: Packet, batch: &mut BatchBuffer) -> Result<(), Rejection> {
        let mut digest = Digest {
            outstanding: self.send.outstanding(),
            ..Digest::default()
        };
        let mut applied = Ok(());
        let mut has_push = false;
        let mut at = 0;
        // The last payload takes the datagram along, which is then empty.
        while at < datagram.len() {
            let Some(Ok((header, payload))) = segments(&datagram[at..]).next() else {
                break;
            };
            let payload = payload.start + at..payload.end + at;
            at = payload.end;
            if header.cmd == Command::Cookie {
                // Not part of a session yet: the other fields say nothing.
                self.on_cookie(&header, &datagram[payload]);
                continue;
            }
            let newer = |&(una, _): &(u32, u32)| before(una, header.una);
            if digest.una.is_none_or(|una| newer(&una)) {
                digest.una = Some((header.una, header.wnd.into()));
            }
            match header.cmd {
                Command::Ack => self.on_ack(&header, &mut digest),
                Command::Push => {
                    let behind_another = core::mem::replace(&mut has_push, true);
                    // When the datagram was checked, the one in front had no place yet.
                    let (sn, frg) = (header.sn, header.frg);
                    if behind_another && !self.receive.is_frg_consistent(sn, frg, None) {
                        applied = Err(Rejection::TooManyFragments);
                        continue;
                    }
                    if self.is_of_new_beginning(&header) {
                        // What is here already may be late, as by error correction: that is nobody's fault. Neither
                        // is acknowledged: a peer that began anew would take it for delivered.
                        if self.receive.has(sn) {
                            self.stats.received_segments += 1;
                            self.stats.duplicates += u64::from(header.len > 0);
                        } else {
                            applied = Err(Rejection::OtherConversation);
                        }
                        continue;
                    }
                    let segment = take_payload(&mut datagram, payload);
                    self.on_push(&header, segment, batch);
                }
                Command::Datagram => {
                    let payload = take_payload(&mut datagram, payload);
                    // It carries our token, which was sent to that address only.
                    self.on_address_validated();
                    self.on_datagram(payload, batch.transient);
                }
                Command::Cookie => {}
                Command::AskWindow => self.on_wask(&header, batch, &mut digest),
                Command::TellWindow => self.on_wins(&header),
                // One that has begun anew (see `restart`) is not the one whose end is awaited.
                Command::Close
                    if header.frg == RESET || before(header.una, self.peer.latest_una) =>
                {
                    self.on_reset();
                    return applied;
                }
                Command::Close if header.frg == NOT_RECEIVING => self.on_not_receiving(),
                Command::Close => {
                    // Its `una` covers everything that it will ever acknowledge.
                    self.apply_digest(&digest);
                    self.on_close(header.frg == ENDED);
                    return applied;
                }
            }
            if self.ended().is_some() {
                return applied;
            }
        }
        self.apply_digest(&digest);
        applied
    }

    /// A WASK: owes the peer a WINS, which is to carry its token.
    fn on_wask(&mut self, header: &Header, batch: &mut BatchBuffer, digest: &mut Digest) {
        self.send_wins = true;
        // There may have been no memory for this before.
        self.receive.make_room(&self.context.pool, batch);
        self.grow_for_message();
        self.shrink_if_both_idle();
        digest.may_narrow |= header.frg == OURS && header.una == self.send.next();
        self.peer.token = header.ts;
        self.peer.has_token |= header.frg == OURS;
        self.queue_not_receiving();
    }

    /// A WINS: learns what the peer is, if it carries our token.
    fn on_wins(&mut self, header: &Header) {
        self.measure_wask(header);
        let of_server = matches!(header.frg, OURS_UNPROVED | OURS_SERVER);
        self.peer.seems_ours = header.frg == OURS || of_server;
        // Other implementations leave in a WINS the `ts` of the last acknowledgement in front of it, which may be
        // that of our challenge.
        if header.ts != self.token || !self.peer.seems_ours {
            return;
        }
        if self.side == Side::Server && of_server {
            // Two servers, as in `handle`, whose challenges were lost.
            return self.end(CloseReason::Reset);
        }
        self.peer.doubts_our_address = header.frg == OURS_UNPROVED;
        // A peer that had to prove its address asks until it hears that it has.
        self.send_wins |= !self.peer.is_ours;
        self.peer.is_ours = true;
        // All that it can ever have, which may be less than was assumed.
        if header.sn > 0 {
            self.peer.largest_window = header.sn.min(MAX_FRAGMENTS);
        }
        self.on_address_validated();
    }

    /// Measures the round trip of a WASK, which ends with its first answer. A WINS is also sent unasked, when a
    /// reader has made room; one that comes when a question is due again may be such a WINS, and the answer lost.
    fn measure_wask(&mut self, header: &Header) {
        self.peer.has_sent_wins = true;
        if self.peer.is_ours && header.ts != self.token {
            return; // Its sender has not seen the question.
        }
        let owed = core::mem::take(&mut self.peer.wask_unanswered);
        // One that brings news may have been sent unasked, by a peer that has not heard the question.
        let edge = header.una.wrapping_add(header.wnd.into());
        if owed && !before(self.peer.window_edge, edge) {
            self.receive.apply_narrow();
        }
        let took = self.peer.wask_sent_at.map(|at| self.now.since(at));
        if let Some(took) = took.filter(|&took| owed && took < MIN_WASK_INTERVAL) {
            self.peer.wask_rtt_micros = micros(took).max(1);
        }
    }

    /// The server opens no session until we have shown, by this cookie, that we receive at our address.
    fn on_cookie(&mut self, header: &Header, payload: &[u8]) {
        let cookie = payload.try_into().map(u64::from_le_bytes);
        let Some(cookie) = cookie.ok().and_then(NonZeroU64::new) else {
            return;
        };
        if self.peer.has_told_window || header.ts != self.token || self.cookie == Some(cookie) {
            return;
        }
        let is_first = self.cookie.replace(cookie).is_none();
        self.send_wask = true;
        // The server kept nothing of what was sent, but it is there, however often that was sent while it was asked.
        // One that asks for cookie after cookie is not.
        if is_first {
            self.send.forget_transmissions();
        }
        while let Some(sn) = self.send.oldest() {
            if !self.mark_lost(sn, Cause::Timeout, false) {
                return;
            }
        }
    }

    /// The peer has received at its address what was sent there.
    fn on_address_validated(&mut self) {
        if !self.path.validated {
            self.trust_address();
        }
    }

    fn on_ack(&mut self, header: &Header, digest: &mut Digest) {
        if !self.send.is_outstanding(header.sn) {
            // An acknowledgement of something no longer outstanding is either a repetition, or that of the
            // challenge: see `write_challenge`.
            if header.ts == self.token {
                self.on_address_validated();
            }
            return;
        }
        let slot = *self.send.slot(header.sn);
        // Any number between the two passes for the echo of a transmission. With transmissions a second apart, a
        // blind guess between them succeeds one time in a few thousand, which proves nothing.
        let is_exact = header.ts == slot.first_ts || header.ts == slot.last_ts;
        if lacks_what_it_had(header, &slot) {
            // Nobody would ever read what it acknowledges.
            if is_exact {
                self.end(CloseReason::Reset);
            }
            return;
        }
        if slot.state == State::Acked {
            return;
        }
        if is_exact {
            self.on_address_validated();
        }
        let rtt = Duration::from_micros(self.ts().wrapping_sub(header.ts).into());
        if header.ts == slot.last_ts {
            self.recovery.arrived(slot.serial);
            if slot.cause == Cause::Tail && slot.state == State::InFlight {
                // The probe was what arrived, so the segment had been lost (RFC 8985, 7.4).
                self.reduce(slot.serial, Undo::Never);
            }
            self.on_last_arrived(&slot);
            if digest.sample.is_none_or(|(serial, _)| serial < slot.serial) {
                digest.sample = Some((slot.serial, rtt));
            }
        } else {
            // Of two copies the first has a time of its own, too.
            if !slot.doubled || header.ts == slot.first_ts {
                self.on_needless(&slot);
            }
            digest.sample.get_or_insert((0, rtt));
        }
        digest.acknowledged += u32::from(self.send.acknowledge(header.sn));
    }

    fn on_push(&mut self, header: &Header, segment: Packet, batch: &mut BatchBuffer) {
        self.stats.received_segments += 1;
        self.peer.asked_since_data = false;
        let (sn, ts, now) = (header.sn, header.ts, self.now);
        if self.phase != Phase::Open {
            // Nobody will read it; but a segment that was read is acknowledged as often as it comes.
            if self.receive.offset(sn) < 0 {
                self.acks.duplicate(sn, ts, now);
            } else {
                self.queue_not_receiving();
            }
            return;
        }
        let expected = self.receive.next();
        self.receive.end_train_after_pause(now, self.rtt_estimate());
        let place = (sn, self.peer.advertised_edge);
        let segment = match header.frg {
            END => {
                // Its payload was our token.
                self.on_address_validated();
                Packet::new()
            }
            _ => segment,
        };
        let inserted =
            self.receive
                .insert(place, now, header.frg, segment, &self.context.pool, batch);
        match inserted {
            Inserted::InOrder => {
                self.acks.in_order(sn, ts, now);
                if self.receive.next() != expected.wrapping_add(1) {
                    self.acks.send_now(now);
                }
            }
            Inserted::OutOfOrder => self.acks.out_of_order(sn, ts, now),
            Inserted::Duplicate => {
                // Without payload it is a server's challenge: see `write_challenge`.
                self.stats.duplicates += u64::from(header.len > 0);
                if before(sn, expected) {
                    self.acks.duplicate(sn, ts, now);
                } else {
                    self.acks.out_of_order(sn, ts, now);
                }
            }
            Inserted::BeyondWindow => {
                self.stats.dropped_beyond_window += 1;
                self.schedule_window_update();
            }
            Inserted::NoMemory => self.stats.dropped_no_memory += 1,
        }
        if self.receive.is_filled_by_message() {
            self.grow_for_message();
        } else if self.receive.is_at_end() {
            self.release_window();
        }
    }

    /// Applies what all segments of the datagram say together: windows, losses, and whether all is sent.
    fn apply_digest(&mut self, digest: &Digest) {
        let mut acknowledged = digest.acknowledged;
        // First, so that it is known how long what was sent again would have taken.
        if let Some((_, rtt)) = digest.sample {
            self.recovery.sample(rtt);
            self.context.measures.round_trip(rtt);
        }
        if let Some((una, window)) = digest.una {
            while before(self.send.una(), una) {
                let sn = self.send.una();
                let slot = *self.send.slot(sn);
                if slot.transmissions == 1 {
                    self.recovery.arrived(slot.serial);
                    self.on_last_arrived(&slot);
                } else if self.is_too_soon(&slot) {
                    self.on_needless(&slot);
                }
                acknowledged += u32::from(self.send.acknowledge(sn));
            }
            let edge = self.peer.window_edge;
            self.on_window(una, window, digest.may_narrow);
            let has_made_room = before(edge, self.peer.window_edge);
            if has_made_room && acknowledged == 0 && self.recovery.is_backing_off() {
                // Its reader has freed memory, perhaps what it had not for the segment that it waits for.
                self.resend_first();
            }
            if self.has_peer_lost_some() {
                self.end(CloseReason::Reset);
                self.undelivered = true; // though all may be acknowledged by one of the two
                return;
            }
        }
        if self.send.is_empty() {
            self.path.unanswered_since = 0;
        }
        self.measure_window();
        if acknowledged > 0 {
            self.recovery.progress();
            self.progress_at = self.now;
            self.tail_probed = false;
            self.control.acknowledged(&Progress {
                segments: acknowledged,
                outstanding: digest.outstanding,
                limit: self.window_limit(),
                now: self.now,
                rtt: self.recovery.srtt().unwrap_or_default(),
            });
            self.find_losses();
        }
        self.queue_end_mark();
        self.continue_close();
    }

    /// Is a segment acknowledged too soon for that to answer its last transmission? Then an earlier one has arrived.
    /// A peer does not acknowledge by itself what fills a gap and is followed by others.
    fn is_too_soon(&self, slot: &Slot) -> bool {
        let half = self.recovery.srtt().unwrap_or_default() / 2;
        slot.state == State::InFlight && self.now.since(slot.sent_at) < half
    }

    /// A segment was sent again, and an earlier transmission of it has arrived.
    fn on_needless(&mut self, slot: &Slot) {
        if slot.cause != Cause::Tail {
            self.stats.retransmits_spurious += 1;
            self.recovery
                .spurious(slot.serial, self.send.serial(), slot.doubled);
            self.on_earlier_arrived(slot);
        }
    }

    /// The round-trip time, as far as it is known.
    pub(super) fn rtt_estimate(&self) -> Option<Duration> {
        let asked = Duration::from_micros(self.peer.wask_rtt_micros.into());
        self.recovery
            .srtt()
            .max((!asked.is_zero()).then_some(asked))
    }

    /// Lets the receive window grow to what the path carries.
    fn measure_window(&mut self) {
        let measured = self.receive.measure(self.now, self.rtt_estimate());
        if let Measured::NoMemory(took) = measured {
            self.context.measures.blocked_receiving(took);
        }
        self.schedule_window_update();
        if measured == Measured::WindowSuffices && self.may_ask_again() {
            // An end that only receives has no other measure of the round trip.
            self.send_wask = true;
        }
    }
}

/// Does it carry what a server sends to be acknowledged, before the first of its segments? KCP counts from 0. See
/// `write_challenge`.
fn is_challenge(datagram: &[u8]) -> bool {
    segments(datagram)
        .flatten()
        .any(|(header, _)| header.cmd == Command::Push && header.sn == u32::MAX && header.len == 0)
}

/// Takes the payload at `range` out of a datagram. The last payload takes the datagram itself, so that no reference is
/// counted.
fn take_payload(datagram: &mut Packet, range: Range<usize>) -> Packet {
    if range.is_empty() {
        return Packet::new();
    }
    if range.end < datagram.len() {
        return datagram.slice(range);
    }
    let mut last = core::mem::take(datagram);
    last.advance(range.start);
    last
}
