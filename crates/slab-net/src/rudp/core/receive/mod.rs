//! What has been received and not yet read, within the memory reserved for it.
//!
//! Segments lie in a ring from `read`, the first that the application has not read, past `next`, the first that has
//! not arrived, to `read + window`. Each segment in that range is held or promised to the peer, and has a slot of
//! pool memory, as large as the longest segment.
//!
//! A received segment is a slice of the buffer it arrived in. A buffer may be larger than a slot, because the
//! kernel coalesced many datagrams into it. The segments that share it then contribute their slots, and what it
//! takes beyond those comes from a reserve:
//!
//! ```text
//! window * slot  +  sum over buffers of max(0, bytes - segments * slot)  <=  reserved
//! ```
//!
//! Once the reserve is used up, a segment is copied into a chunk of its own size. There may be no such chunk
//! although the pool is not full, if every slab serves other classes. Then the next segment, if nothing can be read
//! without it, is kept in a chunk larger than its slot until it is read; without it the segments behind it would
//! keep their memory for ever. Beyond their slots, such segments may take as much together as one receive buffer;
//! those that would take more are copied into one chunk.
//!
//! A buffer's slots are promised anew only once all of its segments are read and it is gone; until then the slots
//! of those already read are `deferred`.
//!
//! How far the peer may send is told in [`window`].

mod buffers;
mod window;

use super::super::budget::Account;
use super::super::time::Time;
use super::close::END;
use super::sn::{Ring, before, diff};
use super::train::Train;
use crate::packet::{Packet, PacketPool};
use buffers::Buffer;
pub(super) use window::Measured;

/// The reserve for buffers larger than their segments' slots: this part of the window's slots, a fourth.
const RESERVE_DIVISOR: usize = 4;
/// What awaited segments may take beyond their slots together, in bytes.
const MAX_OVERSIZE: usize = 64 << 10;
/// The `buffer` of a segment that is charged by itself.
const UNSHARED: u32 = u32::MAX;

#[derive(Debug)]
struct Held {
    packet: Packet,
    frg: u8,
    /// The index of the buffer that it shares with others, or `UNSHARED`.
    buffer: u32,
    /// Bytes charged for it alone.
    charge: u32,
}

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inserted {
    /// It is new and the next in order: what can be read may have grown.
    InOrder,
    /// It is new, but one before it is missing.
    OutOfOrder,
    /// It was here already.
    Duplicate,
    /// It is beyond what the window can have promised, or behind the mark of the end.
    BeyondWindow,
    /// The pool had no chunk to copy it to.
    NoMemory,
}

/// The buffer of the batch being handled, if it is charged as a whole.
#[derive(Debug, Default)]
pub(super) struct BatchBuffer {
    /// Must no part of the buffer be kept? Then segments are copied.
    pub(super) transient: bool,
    /// Did the pool have no chunk for a copy? Asking an exhausted pool takes time.
    pool_exhausted: bool,
    /// Was a segment beyond the window, although copying others was to make room for it? To try that looks
    /// through the ring.
    window_is_full: bool,
    /// The index of the buffer, and its memory.
    open: Option<(u32, (usize, usize))>,
}

#[derive(Debug)]
pub(super) struct ReceiveQueue {
    ring: Ring<Option<Held>>,
    /// Segments in the ring. A peer that asks for the window again and again must not have the ring searched each
    /// time.
    held: u32,
    read: u32,
    next: u32,
    window: u32,
    max_window: u32,
    /// Bytes that buffers take from the reserve.
    extra: usize,
    deferred: u32,
    /// Complete messages, in order.
    complete: u32,
    /// Is the segment before `next` the mark of the end? It is never read.
    at_end: bool,
    /// Has the peer been told only the first window, so that the rest can be given back?
    narrowed: bool,
    /// Fragments that follow the segment before `next` in its message.
    to_follow: u8,
    train: Train,
    /// When the last train ended, in microseconds, which may wrap.
    train_ended: u32,
    /// When the last new segment came, likewise.
    came_at: u32,
    /// May the window grow?
    may_grow: bool,
    slot: u32,
    charged: usize,
    /// Bytes that segments take beyond their charge.
    oversize: usize,
    buffers: Vec<Buffer>,
    free_buffers: Vec<u32>,
    account: Account,
    /// Segments copied out of a larger buffer so far.
    pub(super) copied: u64,
    /// Attempts to grow the window that the budget refused so far.
    pub(super) growth_refused: u32,
}

impl ReceiveQueue {
    /// Creates a queue with a window of `window` segments, which may grow to `max_window`, of at most `slot` bytes
    /// each; `None` if the budget has not enough for `window`.
    pub(super) fn new(
        first: u32,
        (window, max_window): (u32, u32),
        slot: usize,
        mut account: Account,
    ) -> Option<Self> {
        let window = window.min(max_window);
        if !account.reserve_promise(reservation(window, slot)) {
            return None;
        }
        Some(Self {
            ring: Ring::new(1),
            held: 0,
            read: first,
            next: first,
            window,
            max_window,
            extra: 0,
            deferred: 0,
            complete: 0,
            at_end: false,
            narrowed: false,
            to_follow: 0,
            train: Train::default(),
            train_ended: 0,
            came_at: 0,
            may_grow: true,
            slot: slot as u32,
            charged: 0,
            oversize: 0,
            buffers: Vec::new(),
            free_buffers: Vec::new(),
            account,
            copied: 0,
            growth_refused: 0,
        })
    }

    /// The first sequence number that has not arrived.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Is no segment held, not even one without payload, which takes no memory?
    fn holds_nothing(&self) -> bool {
        let mut slots = (0..self.ring.capacity()).map(|n| self.ring.at(n));
        debug_assert_eq!(self.held == 0, slots.all(Option::is_none));
        self.held == 0
    }

    /// Segments from `read` on that are held or promised.
    fn limit(&self) -> u32 {
        self.window - self.deferred
    }

    /// Segments in order and not yet read.
    pub(super) fn unread(&self) -> u32 {
        self.next.wrapping_sub(self.read)
    }

    /// Those of them that can be read: all but the mark of the end, which [`release`](Self::release) drops.
    pub(super) fn readable(&self) -> u32 {
        self.unread().saturating_sub(self.at_end.into())
    }

    /// Has everything arrived that the peer will send?
    pub(super) fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// The size of the chunk that the longest segment takes, in bytes.
    pub(super) fn slot(&self) -> usize {
        self.slot as usize
    }

    /// Messages that can be read.
    pub(super) fn complete(&self) -> u32 {
        self.complete
    }

    /// Pool memory that it keeps in use at most, in bytes, without what segments take beyond their slots.
    pub(super) fn charged(&self) -> usize {
        self.charged
    }

    /// Pool memory reserved, in bytes.
    pub(super) fn reserved(&self) -> usize {
        self.account.bytes()
    }

    /// Does a segment with this number of fragments behind it fit its neighbours? Within a message, each segment
    /// has one less than the one before. `before` is the PUSH before it in the same datagram.
    pub(super) fn is_frg_consistent(&self, sn: u32, frg: u8, before: Option<(u32, u8)>) -> bool {
        if diff(sn, self.next) < 0 {
            return true;
        }
        let one_before = sn.wrapping_sub(1);
        let before = match before {
            Some((at, frg)) if at == one_before => Some(frg),
            _ if sn == self.next => Some(self.to_follow),
            _ => self.held_frg(one_before),
        };
        before.is_none_or(|before| is_next_frg(before, frg))
            && self
                .held_frg(sn.wrapping_add(1))
                .is_none_or(|next| is_next_frg(frg, next))
    }

    /// Has this segment arrived already?
    pub(super) fn has(&self, sn: u32) -> bool {
        before(sn, self.next) || self.held_frg(sn).is_some()
    }

    /// Has only come what is behind the first segment of the session? KCP counts from 0.
    pub(super) fn lacks_beginning(&self) -> bool {
        self.next == 0 && self.held > 0
    }

    fn held_frg(&self, sn: u32) -> Option<u8> {
        let ahead = diff(sn, self.read);
        let within = ahead >= 0 && (ahead as u32) < self.ring.capacity();
        let held = within.then(|| self.ring.at(sn).as_ref())??;
        Some(held.frg)
    }

    /// The distance of `sn` from `next`, in segments.
    pub(super) fn offset(&self, sn: u32) -> i32 {
        diff(sn, self.next)
    }

    /// Takes a segment, unless it is here already or beyond the window. `edge` is the edge of the window that the
    /// peer was last told.
    pub(super) fn insert(
        &mut self,
        (sn, edge): (u32, u32),
        now: Time,
        frg: u8,
        packet: Packet,
        pool: &PacketPool,
        batch: &mut BatchBuffer,
    ) -> Inserted {
        let ahead = diff(sn, self.read);
        if ahead < 0 || before(sn, self.next) {
            return Inserted::Duplicate;
        }
        if self.at_end {
            return Inserted::BeyondWindow;
        }
        if ahead as u32 >= self.limit() {
            if !batch.window_is_full {
                self.copy_out_of_buffers(pool);
                batch.open = None;
                self.grow_beyond_edge(sn);
            }
            if ahead as u32 >= self.limit() {
                batch.window_is_full = true;
                return Inserted::BeyondWindow;
            }
        }
        if ahead as u32 >= self.ring.capacity() {
            let (needed, present) = (ahead as u32 + 1, self.ring.capacity());
            self.ring.grow(needed, self.read, present);
        }
        if self.ring.at(sn).is_some() {
            return Inserted::Duplicate;
        }
        // `may_grow`: only for a peer that has proved its address; others have no more than their first window.
        let awaited = sn == self.next && self.complete == 0 && self.may_grow;
        let Some(held) = self.charge(frg, packet, awaited, pool, batch) else {
            return Inserted::NoMemory;
        };
        *self.ring.at_mut(sn) = Some(held);
        self.held += 1;
        self.narrowed = false;
        self.came_at = now.as_micros() as u32;
        let unread = self.unread();
        self.train.count(sn, edge, self.window, unread, now);
        self.check();
        if sn != self.next {
            return Inserted::OutOfOrder;
        }
        self.advance();
        self.make_room(pool, batch);
        Inserted::InOrder
    }

    /// Moves `next` over the segments that are here.
    fn advance(&mut self) {
        // The ring may be smaller than the window; beyond the ring nothing is held.
        let limit = self.ring.capacity().min(self.window);
        while self.unread() < limit && !self.at_end {
            let Some(held) = self.ring.at(self.next) else {
                break;
            };
            self.complete += u32::from(held.frg == 0);
            self.at_end = held.frg == END;
            self.to_follow = held.frg;
            if self.at_end {
                *self.ring.at_mut(self.next) = None;
                self.held -= 1;
            }
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Takes the payload of the next segment in order.
    pub(super) fn pop(&mut self) -> Option<Packet> {
        if self.readable() == 0 {
            return None;
        }
        let held = self.ring.at_mut(self.read).take()?;
        self.held -= 1;
        self.read = self.read.wrapping_add(1);
        self.complete -= u32::from(held.frg == 0);
        self.charged -= held.charge as usize;
        if self.oversize > 0 && held.buffer == UNSHARED {
            self.oversize -= held.packet.occupied_bytes().saturating_sub(self.slot());
        }
        if held.buffer != UNSHARED {
            self.deferred += 1;
            self.remove_from_buffer(held.buffer);
        }
        self.check();
        Some(held.packet)
    }

    /// The segments and bytes of the message at the front, if it is complete.
    pub(super) fn front_message(&self) -> Option<(usize, usize)> {
        if self.complete == 0 {
            return None;
        }
        let (mut segments, mut bytes, mut sn) = (0, 0, self.read);
        loop {
            let held = self.ring.at(sn).as_ref()?;
            segments += 1;
            bytes += held.packet.len();
            if held.frg == 0 {
                return Some((segments, bytes));
            }
            sn = sn.wrapping_add(1);
        }
    }

    /// Frees the memory of the ring and the lists if no segment is held.
    pub(super) fn shrink(&mut self) {
        if self.holds_nothing() {
            self.ring = Ring::new(1);
            self.buffers = Vec::new();
            self.free_buffers = Vec::new();
            self.release_surplus();
        }
    }

    /// Drops everything that is held.
    pub(super) fn clear(&mut self) {
        self.held = 0;
        self.read = self.next;
        self.extra = 0;
        self.deferred = 0;
        self.complete = 0;
        self.at_end = false;
        self.narrowed = false;
        self.to_follow = 0;
        self.charged = 0;
        self.oversize = 0;
        self.ring = Ring::new(1);
        self.buffers = Vec::new();
        self.free_buffers = Vec::new();
        let bytes = self.account.bytes();
        self.account.release(bytes);
        self.window = 0;
        self.max_window = 0;
    }

    /// As [`clear`](Self::clear), but it is still known whether everything has arrived.
    pub(super) fn release(&mut self) {
        let at_end = self.at_end;
        self.clear();
        self.at_end = at_end;
    }

    /// The bytes of the window's slots, and those that buffers take from the reserve.
    #[inline]
    fn promised(&self) -> usize {
        self.window as usize * self.slot() + self.extra
    }

    #[inline]
    fn check(&self) {
        debug_assert!(
            self.promised() <= self.account.bytes() && self.charged <= self.promised(),
            "more promised than reserved"
        );
    }
}

/// Can a segment with `frg` fragments behind it follow one with `before` behind it?
fn is_next_frg(before: u8, frg: u8) -> bool {
    matches!(before, 0 | END) || frg == before - 1
}

/// The bytes to reserve for a window.
pub(super) fn reservation(window: u32, slot: usize) -> usize {
    let slots = window as usize * slot;
    slots + slots / RESERVE_DIVISOR
}

#[cfg(test)]
mod tests;
