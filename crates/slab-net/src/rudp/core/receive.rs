//! What has been received and not yet read, within the memory that was reserved for it.
//!
//! Segments lie in a ring from `read`, the first that the application has not read, over `next`,
//! the first that has not arrived, to `read + window`. Everything in that range is either held or
//! promised to the peer, with a slot of pool memory for each, as large as the longest segment.
//!
//! A received segment is a slice of the buffer it arrived in. Where that buffer is larger than a
//! slot, because the kernel coalesced many datagrams into it, the segments that share it bring
//! their slots; what the buffer is larger than those together is taken from a reserve:
//!
//! ```text
//! window * slot  +  sum over buffers of max(0, bytes - segments * slot)  <=  reserved
//! ```
//!
//! Where the reserve is used up, a segment is copied into a chunk of its own size. Of those there may be
//! none although the pool is not full, where each slab serves other classes: then the next segment, if
//! nothing can be read without it, lies in a larger chunk than its slot has, until it is read. Without
//! it what came behind would keep its memory for ever. Beyond their slots such segments have what one
//! receive buffer has.
//!
//! The slots that a buffer has are promised anew once all of its segments are read and it is gone; until then
//! those of the segments already read are `deferred`.
//!
//! The window follows the product of bandwidth and delay, within the budget: it is to hold twice what
//! comes in a round trip (dynamic right-sizing, Fisk and Feng 2001). What would come if the window did
//! not limit the peer is told by [`Train`], so that it opens within a round trip or two instead of
//! doubling in each.
//!
//! What was told cannot be taken back: the peer may send what it was promised. Where nothing came for
//! long the window [narrows](ReceiveQueue::narrow): a question for the peer's window tells of a small one,
//! and the answer shows that the peer has heard it, and comes behind what it had sent before; what it
//! overtook on the way is dropped and sent again. Only then the memory is given back; if a segment comes
//! first, everything is as it was.

mod buffers;

use super::super::budget::Account;
use super::super::config::{DEFAULT_WINDOW, MAX_WINDOW};
use super::super::time::Time;
use super::close::END;
use super::recovery::INITIAL_RTO;
use super::sn::{Ring, before, diff};
use super::train::Train;
use crate::packet::{Packet, PacketPool};
use buffers::Buffer;
use core::time::Duration;

/// The reserve for buffers larger than the slots of their segments: a fourth of the window's.
const RESERVE: usize = 4;
/// A round trip is taken to be no shorter: below, the tasks at both ends are what takes the time.
const SHORTEST_ROUND_TRIP: Duration = Duration::from_millis(5);
/// What segments that are waited for may take beyond their slots, in bytes.
const MOST_BEYOND: usize = 64 << 10;
/// Charged to the segment itself.
const OWN: u32 = u32::MAX;

#[derive(Debug)]
struct Held {
    packet: Packet,
    frg: u8,
    /// The buffer that it shares with others, or `OWN`.
    buffer: u32,
    /// Bytes charged for it alone.
    charge: u32,
}

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inserted {
    /// It is new, and the next one: what can be read may have grown.
    InOrder,
    /// It is new; one before it is missing.
    OutOfOrder,
    /// It was here already.
    Duplicate,
    /// It is beyond what the window may ever have promised, or behind the end.
    BeyondWindow,
    /// The pool had no chunk to copy it to.
    NoMemory,
}

/// What the segments that came say of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measured {
    /// Nothing yet.
    Nothing,
    /// The path carries more than it holds: it grew, if it may.
    Fast,
    /// The same, but there was no memory for it to grow, or not as far. For so long that may have
    /// limited the peer: since the train before, but no longer than two round trips.
    Refused(Duration),
    /// The path does not carry more, as far as the round trip is still right.
    Slow,
}

/// The buffer of the batch that is being handled, if it is charged as a whole.
#[derive(Debug, Default)]
pub(super) struct BatchBuffer {
    /// Must nothing of it be kept? Then segments are copied.
    pub(super) transient: bool,
    /// Did the pool have no chunk to copy one to? To ask an exhausted pool takes time.
    starved: bool,
    /// Index of the buffer, its address range so far, and its size.
    open: Option<(u32, usize, usize)>,
}

#[derive(Debug)]
pub(super) struct ReceiveQueue {
    ring: Ring<Option<Held>>,
    read: u32,
    next: u32,
    window: u32,
    max_window: u32,
    /// What buffers take from the reserve.
    extra: usize,
    deferred: u32,
    /// Messages that are here in full, and in order.
    complete: u32,
    /// Is the segment before `next` the mark that nothing more comes? It is never read.
    at_end: bool,
    /// Is the peer told of the first window only, so that what it grew to can be given back?
    narrowed: bool,
    /// Fragments that follow the segment before `next` in its message.
    to_follow: u8,
    train: Train,
    /// When the last train ended, in microseconds, which may wrap.
    train_ended: u32,
    /// May the window grow?
    grows: bool,
    slot: u32,
    charged: usize,
    /// Bytes that segments take beyond what they are charged.
    beyond: usize,
    buffers: Vec<Buffer>,
    free_buffers: Vec<u32>,
    account: Account,
    /// Segments copied out of a larger buffer so far.
    pub(super) copied: u64,
    /// Times the window did not grow for want of budget, so far.
    pub(super) refused: u32,
}

impl ReceiveQueue {
    /// A queue with a window of `window` segments that may grow to `max_window`, of at most
    /// `slot` bytes each; `None` if the budget has not even the smaller.
    pub(super) fn new(
        first: u32,
        (window, max_window): (u32, u32),
        slot: usize,
        mut account: Account,
    ) -> Option<Self> {
        let window = window.min(max_window);
        if !account.reserve(reservation(window, slot)) {
            return None;
        }
        Some(Self {
            ring: Ring::new(1),
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
            train: Train::new(),
            train_ended: 0,
            grows: true,
            slot: slot as u32,
            charged: 0,
            beyond: 0,
            buffers: Vec::new(),
            free_buffers: Vec::new(),
            account,
            copied: 0,
            refused: 0,
        })
    }

    /// The first sequence number that has not arrived.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Segments from `next` that the peer may send.
    pub(super) fn advertised(&self) -> u32 {
        if self.narrowed {
            return self.first_window();
        }
        self.limit() - self.unread()
    }

    fn first_window(&self) -> u32 {
        DEFAULT_WINDOW.min(self.max_window)
    }

    /// Did the window grow, and is nothing in it?
    pub(super) fn is_wide(&self) -> bool {
        let nothing = self.charged == 0 && self.deferred == 0 && self.readable() == 0;
        nothing && self.window > self.first_window()
    }

    /// Tells of the first window from here on if nothing is in that which it grew to. All of that stays
    /// promised until the peer is known to have heard it, or sends something.
    pub(super) fn narrow(&mut self) {
        self.narrowed = self.is_wide();
    }

    /// The peer has heard of the narrow window, and nothing that it had sent before is on its way: gives
    /// back what the window grew to.
    pub(super) fn give_back(&mut self) {
        if core::mem::take(&mut self.narrowed) {
            let first = self.first_window();
            let all = self.account.bytes();
            self.window = first;
            self.account.release(all - reservation(first, self.slot()));
            self.train = Train::new();
        }
    }

    /// Segments from `read` that are held or promised.
    fn limit(&self) -> u32 {
        self.window - self.deferred
    }

    /// Segments that are in order and not read.
    pub(super) fn unread(&self) -> u32 {
        self.next.wrapping_sub(self.read)
    }

    /// Of those, what there is to be read.
    pub(super) fn readable(&self) -> u32 {
        self.unread() - u32::from(self.at_end)
    }

    /// Has everything arrived that the peer sends?
    pub(super) fn is_at_end(&self) -> bool {
        self.at_end
    }

    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// The chunk that the longest segment takes, in bytes.
    pub(super) fn slot(&self) -> usize {
        self.slot as usize
    }

    /// Messages that can be read.
    pub(super) fn complete(&self) -> u32 {
        self.complete
    }

    /// Bytes of pool memory that it keeps in use, at most, but for what is beyond the slots of segments.
    pub(super) fn charged(&self) -> usize {
        self.charged
    }

    /// Bytes of pool memory that it has reserved.
    pub(super) fn reserved(&self) -> usize {
        self.account.bytes()
    }

    /// Is a message at the front that will not be complete as long as the window stays as it is, because
    /// it fills the window?
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        self.complete == 0 && self.readable() == self.window && self.deferred == 0
    }

    /// Is the window as large as it will ever be?
    pub(super) fn is_largest(&self) -> bool {
        self.window == self.max_window
    }

    /// Lets the window grow if a message fills it, for all of that message or not at all: two that had
    /// taken a part each of what is left would wait for each other.
    pub(super) fn unstick(&mut self) {
        if !self.grows || !self.is_stuck() {
            return;
        }
        let whole = (self.window + u32::from(self.to_follow)).min(self.max_window);
        let roomy = (self.window * 2).min(self.max_window).max(whole);
        if !self.try_grow(roomy) && roomy > whole {
            self.try_grow(whole);
        }
    }

    /// Can a segment with this number of fragments behind it be where it says? Each has one less than the
    /// one before in its message; `before` is the one before if it is on its way in the same datagram.
    pub(super) fn counts_down(&self, sn: u32, frg: u8, before: Option<(u32, u8)>) -> bool {
        if diff(sn, self.next) < 0 {
            return true;
        }
        let one_before = sn.wrapping_sub(1);
        let before = match before {
            Some((at, frg)) if at == one_before => Some(frg),
            _ if sn == self.next => Some(self.to_follow),
            _ => self.held_frg(one_before),
        };
        before.is_none_or(|before| follows(before, frg))
            && self
                .held_frg(sn.wrapping_add(1))
                .is_none_or(|next| follows(frg, next))
    }

    fn held_frg(&self, sn: u32) -> Option<u8> {
        let ahead = diff(sn, self.read);
        let within = ahead >= 0 && (ahead as u32) < self.ring.capacity();
        let held = within.then(|| self.ring.at(sn).as_ref())??;
        Some(held.frg)
    }

    /// Lets the window grow, or not.
    pub(super) fn set_grows(&mut self, grows: bool) {
        self.grows = grows;
    }

    /// Where `sn` is in relation to `next`, in segments.
    pub(super) fn offset(&self, sn: u32) -> i32 {
        diff(sn, self.next)
    }

    /// Lets the window grow to `wanted`, if that is allowed, as far as there is budget for it.
    fn grow(&mut self, wanted: u32) {
        let mut larger = wanted.min(self.max_window);
        while larger > self.window && !self.try_grow(larger) {
            larger /= 2;
        }
    }

    /// Lets the window grow to `larger`, or counts that there is no budget for it.
    fn try_grow(&mut self, larger: u32) -> bool {
        if larger <= self.window {
            return false;
        }
        let more = reservation(larger, self.slot()) - reservation(self.window, self.slot());
        let reserved = self.account.reserve(more);
        if reserved {
            self.window = larger;
        } else {
            self.refused = self.refused.saturating_add(1);
        }
        reserved
    }

    /// A segment is about to come: see [`Train::pause`].
    pub(super) fn pause(&mut self, now: Time, rtt: Option<Duration>) {
        self.train.pause(now, rtt);
    }

    /// Takes a segment, unless it is here already or beyond the window. `edge` is the end of the window
    /// that the peer was last told.
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
            self.undefer(pool);
            batch.open = None;
            if ahead as u32 >= self.limit() {
                return Inserted::BeyondWindow;
            }
        }
        if ahead as u32 >= self.ring.capacity() {
            let wanted = (ahead as u32 + 1).next_power_of_two();
            self.ring.grow(wanted, self.read, self.ring.capacity());
        }
        if self.ring.at(sn).is_some() {
            return Inserted::Duplicate;
        }
        // Of a peer that has proved its address: others have no more than their first window.
        let awaited = sn == self.next && self.complete == 0 && self.grows;
        let Some(held) = self.charge(frg, packet, awaited, pool, batch) else {
            return Inserted::NoMemory;
        };
        *self.ring.at_mut(sn) = Some(held);
        self.narrowed = false;
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

    /// To be called after segments were taken: lets the window grow if the path, with round trips of
    /// `rtt` if they are known, carries more than it holds.
    pub(super) fn measure(&mut self, now: Time, rtt: Option<Duration>) -> Measured {
        if !self.grows {
            return Measured::Nothing;
        }
        let round = rtt.unwrap_or(INITIAL_RTO).max(SHORTEST_ROUND_TRIP);
        let Some((carried, caught_up)) = self.train.end(self.window, round) else {
            return Measured::Nothing;
        };
        let now = now.as_micros() as u32;
        let since = now.wrapping_sub(core::mem::replace(&mut self.train_ended, now));
        let wanted = carried.saturating_mul(2).min(MAX_WINDOW);
        if wanted <= self.window {
            return Measured::Slow;
        }
        let doubled = self.window * 2;
        let refused = self.refused;
        self.grow(match rtt {
            Some(_) if caught_up => wanted.next_power_of_two().max(doubled),
            // How much is not known, or it is not the path that limits.
            _ => doubled,
        });
        if self.refused == refused {
            return Measured::Fast;
        }
        Measured::Refused(Duration::from_micros(since.into()).min(2 * round))
    }

    /// Moves `next` over what is here.
    fn advance(&mut self) {
        // The ring may be smaller than the window; behind its end nothing is held.
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
            }
            self.next = self.next.wrapping_add(1);
        }
    }

    /// The next segment in order: its payload, and whether it ends a message.
    pub(super) fn pop(&mut self) -> Option<(Packet, bool)> {
        if self.readable() == 0 {
            return None;
        }
        let held = self.ring.at_mut(self.read).take()?;
        self.read = self.read.wrapping_add(1);
        self.complete -= u32::from(held.frg == 0);
        self.charged -= held.charge as usize;
        if self.beyond > 0 && held.buffer == OWN {
            self.beyond -= buffers::occupied(&held.packet).saturating_sub(self.slot());
        }
        if held.buffer != OWN {
            self.deferred += 1;
            self.leave(held.buffer);
        }
        self.check();
        Some((held.packet, held.frg == 0))
    }

    /// Segments and bytes of the message at the front, which has to be complete.
    pub(super) fn front(&self) -> Option<(usize, usize)> {
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

    /// Gives the memory of the ring and the lists back if nothing is in them.
    pub(super) fn shrink(&mut self) {
        let mut held = (0..self.ring.capacity()).map(|n| self.ring.at(self.read.wrapping_add(n)));
        if held.all(Option::is_none) {
            self.ring = Ring::new(1);
            self.buffers = Vec::new();
            self.free_buffers = Vec::new();
        }
    }

    /// Gives up everything that is held.
    pub(super) fn clear(&mut self) {
        self.read = self.next;
        self.extra = 0;
        self.deferred = 0;
        self.complete = 0;
        self.at_end = false;
        self.narrowed = false;
        self.to_follow = 0;
        self.charged = 0;
        self.beyond = 0;
        self.ring = Ring::new(1);
        self.buffers = Vec::new();
        self.free_buffers = Vec::new();
        let bytes = self.account.bytes();
        self.account.release(bytes);
        self.window = 0;
        self.max_window = 0;
    }

    #[inline]
    fn check(&self) {
        let promised = self.window as usize * self.slot() + self.extra;
        debug_assert!(
            promised <= self.account.bytes() && self.charged <= promised,
            "more promised than reserved"
        );
    }
}

/// Can a segment with `frg` fragments behind it come after one with `before`?
fn follows(before: u8, frg: u8) -> bool {
    matches!(before, 0 | END) || frg == before - 1
}

/// What has to be reserved for a window.
pub(super) fn reservation(window: u32, slot: usize) -> usize {
    let slots = window as usize * slot;
    slots + slots / RESERVE
}

#[cfg(test)]
mod tests;
