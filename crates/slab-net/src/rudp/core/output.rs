//! What is to be sent, laid out for as few calls to the kernel as possible.
//!
//! Segments that lie side by side in memory are sent from where they are: as many as fit make a datagram, and
//! consecutive datagrams of one length make what GSO takes in one call. Only acknowledgements and segments that lie
//! apart are copied to the caller's scratch memory.

use super::super::config::Congestion;
use super::super::time::Time;
use super::super::wire::{Command, HEADER_BYTES, Header, OURS, OURS_SERVER, OURS_UNPROVED};
use super::close::END;
use super::send::Cause;
use super::{Session, Side};

/// One or more datagrams to send to the peer, returned by [`poll_transmit`](Session::poll_transmit).
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    contents: &'a [u8],
    segment_size: usize,
}

impl<'a> Outgoing<'a> {
    /// Returns the datagrams, one behind the other.
    #[must_use]
    pub fn contents(&self) -> &'a [u8] {
        self.contents
    }

    /// Returns the length of each datagram but the last, which may be shorter.
    #[must_use]
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// Returns the number of datagrams.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        self.contents.len().div_ceil(self.segment_size)
    }
}

/// The datagrams laid out so far.
struct Layout {
    /// The length of the first datagram, and so of all but the last; known once the first is complete.
    size: Option<usize>,
    /// Bytes of the datagram being filled.
    filling: usize,
    /// Datagrams, the one being filled included.
    datagrams: usize,
    max_datagrams: usize,
    mtu: usize,
    /// The most bytes that may be sent in all, what is on the wire around the first datagram not counted.
    allowance: usize,
    /// What is on the wire around each other one.
    overhead: usize,
    total: usize,
}

impl Layout {
    /// Adds a segment of `size` bytes if it fits.
    fn add(&mut self, size: usize) -> bool {
        let fits = self.filling + size <= self.size.unwrap_or(self.mtu);
        let total = self.total + size + if fits { 0 } else { self.overhead };
        if total > self.allowance {
            return false;
        }
        if fits {
            self.filling += size;
        } else {
            let first = *self.size.get_or_insert(self.filling);
            if self.filling < first || size > first || self.datagrams == self.max_datagrams {
                return false;
            }
            self.datagrams += 1;
            self.filling = size;
        }
        self.total = total;
        true
    }

    fn segment_size(&self) -> usize {
        self.size.unwrap_or(self.filling)
    }
}

/// Writes the segments of a datagram that are not PUSH, one behind the other.
pub(super) struct ControlWriter<'a> {
    to: &'a mut [u8],
    at: usize,
    limit: usize,
}

impl ControlWriter<'_> {
    fn has_room(&self) -> bool {
        self.has_room_for(0)
    }

    /// Is there room for a segment with so many bytes of payload?
    pub(super) fn has_room_for(&self, payload: usize) -> bool {
        self.at + HEADER_BYTES + payload <= self.limit
    }

    pub(super) fn put(&mut self, header: Header, payload: &[u8]) {
        header.encode(&mut self.to[self.at..]);
        self.at += HEADER_BYTES;
        self.to[self.at..self.at + payload.len()].copy_from_slice(payload);
        self.at += payload.len();
    }
}

impl Session {
    /// Returns the next datagrams to send, at most `max_datagrams` of one length (the last may be shorter), 0 being
    /// taken as 1, or `None` if there is nothing to send now. Call it until `None` after each of the other calls, or
    /// after several of them.
    ///
    /// What it returns counts as sent. `scratch` has to hold one datagram; if it is longer, small messages are
    /// gathered there for one call to the kernel.
    ///
    /// # Panics
    /// If `scratch` is shorter than the [MTU](super::super::SessionConfig::mtu).
    pub fn poll_transmit<'a>(
        &'a mut self,
        now: Time,
        scratch: &'a mut [u8],
        max_datagrams: usize,
    ) -> Option<Outgoing<'a>> {
        assert!(
            scratch.len() >= self.context.config.mtu,
            "`scratch` is shorter than the MTU"
        );
        self.advance(now);
        let unanswered = !self.path.validated && !self.send.is_empty();
        if unanswered && self.path.unanswered_since == 0 {
            self.path.unanswered_since = self.millis();
        }
        let rate = self.control.rate(self.recovery.srtt());
        if let Some(rate) = rate {
            self.pacer.fill(self.now, rate);
        }
        self.rate = rate.map(|rate| rate as f32);
        let has_segment = self.next_segment().is_some();
        let mut control = ControlWriter {
            to: scratch,
            at: 0,
            limit: self.context.config.mtu.min(self.allowance()),
        };
        self.write_control(&mut control, has_segment);
        self.write_datagrams(&mut control);
        let written = control.at;
        if written > 0 {
            return self.gather(scratch, written, 1);
        }
        if !has_segment {
            self.start_probing_if_blocked();
            return None;
        }
        if self.next_segments_lie_apart() && scratch.len() >= 2 * self.context.config.mtu {
            return self.gather(scratch, 0, max_datagrams);
        }
        // The borrow has to end with this call, so the run is returned by position first.
        let (block, start, end, segment_size) = self.run_in_place(max_datagrams)?;
        self.on_sent((end - start) as usize, segment_size);
        Some(Outgoing {
            contents: self.send.blocks.range(block, start, end),
            segment_size,
        })
    }

    fn on_sent(&mut self, bytes: usize, segment_size: usize) {
        let datagrams = bytes.div_ceil(segment_size);
        self.stats.sent_datagrams += datagrams as u64;
        self.stats.sent_bytes += bytes as u64;
        self.path.spend(bytes, datagrams);
        // Every segment tells the peer the window as it is now.
        self.peer.advertised_edge = self.edge();
    }

    /// Bytes that may still be sent in a datagram before the peer has proved its address; `usize::MAX` once it has.
    pub(super) fn allowance(&self) -> usize {
        if self.path.validated {
            return usize::MAX;
        }
        let overhead = i32::from(self.path.sent_overhead);
        let allowance = self.path.allowance.saturating_sub(overhead);
        usize::try_from(allowance).unwrap_or(0)
    }

    /// A header with the fields that are alike in every segment.
    pub(super) fn header(&self, cmd: Command) -> Header {
        Header {
            conv: self.conv,
            cmd,
            frg: 0,
            wnd: self.window() as u16,
            ts: 0,
            sn: 0,
            una: self.receive.next(),
            len: 0,
        }
    }

    /// Writes all that is not PUSH or an unreliable datagram, as far as it fits in a datagram.
    fn write_control(&mut self, control: &mut ControlWriter<'_>, has_segment: bool) {
        if self.ended().is_none() {
            self.write_acks(control, has_segment);
            self.write_windows(control);
        }
        while control.has_room()
            && let Some(notice) = self.next_notice()
        {
            control.put(notice, &[]);
        }
    }

    /// Those that are due, or all if a segment goes along.
    fn write_acks(&mut self, control: &mut ControlWriter<'_>, has_segment: bool) {
        if has_segment || self.acks.due().is_some_and(|due| due <= self.now) {
            let header = self.header(Command::Ack);
            while control.has_room()
                && let Some((sn, ts)) = self.acks.pop(header.una)
            {
                control.put(Header { sn, ts, ..header }, &[]);
                self.stats.sent_acks += 1;
            }
            // Also if the last one has filled the datagram.
            if !self.acks.is_pending() {
                self.acks.sent(self.now, !has_segment);
            }
        }
    }

    /// The question for the peer's window, and the answer to its question for ours.
    fn write_windows(&mut self, control: &mut ControlWriter<'_>) {
        if self.send_wask
            && control.has_room()
            && let Some(cookie) = self.cookie.filter(|_| !self.peer.has_told_window)
        {
            // In front of everything else: the server looks no further.
            let header = Header {
                ts: self.token,
                len: size_of::<u64>() as u32,
                ..self.header(Command::Cookie)
            };
            control.put(header, &cookie.get().to_le_bytes());
        }
        if self.send_wask && control.has_room() {
            self.send_wask = false;
            if !self.peer.is_known() || !self.path.validated {
                self.start_window_probe();
            }
            // Only if that leaves room for this challenge and another: the answer to this one may be lost, and a
            // peer that has said little may say nothing more by itself.
            if self.allowance() - control.at >= 3 * HEADER_BYTES {
                self.write_wask(control);
            }
            self.write_challenge(control);
        }
        if self.send_wins && control.has_room() {
            self.send_wins = false;
            let header = Header {
                frg: match (self.side, self.path.validated) {
                    (Side::Client, _) => OURS,
                    (Side::Server, false) => OURS_UNPROVED,
                    (Side::Server, true) => OURS_SERVER,
                },
                ts: self.peer.token,
                sn: self.context.config.recv_window,
                ..self.header(Command::TellWindow)
            };
            control.put(header, &[]);
        }
    }

    fn write_wask(&mut self, control: &mut ControlWriter<'_>) {
        self.peer.wask_sent_at = Some(self.now);
        self.peer.wask_unanswered = true;
        self.stats.probes += 1;
        let header = Header {
            frg: OURS,
            ts: self.token,
            // Tells a server that has restarted that this session is not new.
            sn: self.send.una(),
            ..self.header(Command::AskWindow)
        };
        control.put(header, &[]);
    }

    /// Makes the peer show that it receives at its address, whatever its implementation, even with nothing to send:
    /// every KCP acknowledges once more a segment that it has had long ago, with its `ts`, and does nothing else
    /// with it. (`IKCP_CMD_PUSH` in `ikcp_input` of C's ikcp.c; kcp-go and the crate `kcp` do the same.) It is
    /// from before the first, since a peer that began anew has had none.
    fn write_challenge(&mut self, control: &mut ControlWriter<'_>) {
        if self.path.validated || !control.has_room() {
            return;
        }
        let header = Header {
            ts: self.token,
            sn: self.send.first().wrapping_sub(1),
            ..self.header(Command::Push)
        };
        control.put(header, &[]);
        self.stats.sent_segments += 1;
    }

    /// The segment to send next: a lost one, or a new one if the windows allow it.
    fn next_segment(&self) -> Option<u32> {
        if self.rate.is_some() && !self.pacer.allows() {
            return None;
        }
        self.next_unpaced_segment()
    }

    /// As [`next_segment`](Self::next_segment), without pacing.
    pub(super) fn next_unpaced_segment(&self) -> Option<u32> {
        if self.allowance() < HEADER_BYTES {
            return None;
        }
        self.lost_segments().next().or_else(|| self.new_segment(0))
    }

    /// The segments to send again now: the lost ones that the peer has room for.
    pub(super) fn lost_segments(&self) -> impl Iterator<Item = u32> {
        self.send.lost(self.peer.window_edge)
    }

    /// When a segment or datagram may go that only pacing holds back.
    pub(super) fn paced_until(&self) -> Option<Time> {
        let rate = self.rate?;
        if self.pacer.allows() {
            return None;
        }
        let waits = self.next_unpaced_segment().is_some() || self.has_datagram_to_send();
        waits.then(|| self.pacer.next(rate.into()))
    }

    /// The new segment `ahead` places behind the next one, if it may be sent.
    fn new_segment(&self, ahead: u32) -> Option<u32> {
        let window = self.window_limit().min(self.control.window());
        let allowed = self.send.outstanding() + ahead < window && self.send.queued() > ahead;
        allowed.then(|| self.send.next().wrapping_add(ahead))
    }

    /// Do the next two segments lie apart in memory?
    fn next_segments_lie_apart(&self) -> bool {
        let mut lost = self.lost_segments();
        let (first, second) = match lost.next() {
            Some(first) => (Some(first), lost.next().or_else(|| self.new_segment(0))),
            None => (self.new_segment(0), self.new_segment(1)),
        };
        let (Some(first), Some(second)) = (first, second) else {
            return false;
        };
        let (first, second) = (self.send.slot(first).place, self.send.slot(second).place);
        first.block != second.block || first.end() != second.offset
    }

    /// Marks a segment as sent and writes its header.
    fn stamp(&mut self, sn: u32) {
        let ts = self.ts();
        let sent = self.send.sent(sn, self.now, ts, self.peer.latest_una);
        match sent.cause {
            Cause::New => self.acks.data_sent(self.now),
            Cause::Fast => self.stats.retransmits_fast += 1,
            Cause::Timeout => self.stats.retransmits_timeout += 1,
            Cause::Tail => self.stats.retransmits_tail += 1,
        }
        if self.rate.is_some() {
            self.pacer.take();
            self.last_paced_was_datagram = false;
        }
        if sent.cause == Cause::Fast && !sent.doubled && self.is_window_blocked_by_loss() {
            self.send.queue_second_copy(sn);
        }
        let header = Header {
            frg: sent.frg,
            ts,
            sn,
            len: sent.place.len,
            ..self.header(Command::Push)
        };
        let token = self.peer.token;
        let segment = self.send.blocks.bytes_mut(sent.place);
        header.encode(segment);
        if sent.frg == END {
            // Written only now: somebody else may have asked in the peer's name and changed the token.
            segment[HEADER_BYTES..].copy_from_slice(&token.to_le_bytes());
        }
        self.stats.sent_segments += 1;
    }

    /// Is the window filling with segments that wait for a lost one? Then the lost one is sent twice: losing it
    /// again would cost another round trip, and a second copy costs little. Not with a congestion control, which
    /// takes care of the path.
    fn is_window_blocked_by_loss(&self) -> bool {
        self.context.config.congestion == Congestion::Off
            && self.send.queued() > 0
            && self.send.outstanding() >= self.window_limit() / 2
    }

    /// Copies segments to `scratch`, one behind the other, and behind a datagram's first `at` bytes if these are written.
    fn gather<'a>(
        &mut self,
        scratch: &'a mut [u8],
        mut at: usize,
        max_datagrams: usize,
    ) -> Option<Outgoing<'a>> {
        let mut layout = self.layout(at, max_datagrams);
        while let Some(sn) = self.next_segment() {
            let place = self.send.slot(sn).place;
            if at + place.size() > scratch.len() || !layout.add(place.size()) {
                break;
            }
            self.stamp(sn);
            scratch[at..at + place.size()].copy_from_slice(self.send.blocks.bytes_mut(place));
            at += place.size();
        }
        self.start_probing_if_blocked();
        if at == 0 {
            return None;
        }
        let segment_size = layout.segment_size();
        self.on_sent(at, segment_size);
        Some(Outgoing {
            contents: &scratch[..at],
            segment_size,
        })
    }

    /// Stamps a run of segments that lie side by side: returns their block, where they begin and end in it, and the
    /// length of the datagrams.
    fn run_in_place(&mut self, max_datagrams: usize) -> Option<(u32, u32, u32, usize)> {
        let mut layout = self.layout(0, max_datagrams);
        let mut run: Option<(u32, u32, u32)> = None;
        while let Some(sn) = self.next_segment() {
            let place = self.send.slot(sn).place;
            let start = match run {
                None => place.offset,
                Some((block, start, end)) if block == place.block && end == place.offset => start,
                Some(_) => break,
            };
            if !layout.add(place.size()) {
                break;
            }
            run = Some((place.block, start, place.end()));
            self.stamp(sn);
        }
        self.start_probing_if_blocked();
        let (block, start, end) = run?;
        Some((block, start, end, layout.segment_size()))
    }

    /// With a first datagram of which so many bytes are there already.
    fn layout(&self, filling: usize, max_datagrams: usize) -> Layout {
        Layout {
            size: None,
            filling,
            datagrams: 1,
            max_datagrams: max_datagrams.max(1),
            mtu: self.context.config.mtu,
            allowance: self.allowance(),
            overhead: self.path.sent_overhead.into(),
            total: filling,
        }
    }
}
