//! Segments to be sent and segments in flight, by sequence number.
//!
//! ```text
//! una <= next <= end
//! una..next   outstanding: each in flight, lost, or acknowledged out of order
//! next..end   not sent yet
//! ```
//!
//! Segments in flight are linked in the order they were last sent, so that the search for overdue ones looks at no
//! others. Lost segments are linked in the order they were found lost.

use super::super::time::Time;
use super::blocks::{Blocks, Place};
use super::sn::{Ring, before, diff};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    /// Not sent yet.
    #[default]
    Queued,
    InFlight,
    /// To be sent again.
    Lost,
    /// The peer has it, but not yet one before it.
    Acked,
}

/// Why a segment is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Cause {
    #[default]
    New,
    /// Later transmissions have arrived.
    Fast,
    /// No acknowledgement came in time.
    Timeout,
    /// To learn of the last segments: a tail-loss probe.
    Tail,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    pub(super) place: Place,
    pub(super) state: State,
    pub(super) frg: u8,
    /// Why it is to be sent again.
    pub(super) cause: Cause,
    /// Does its second copy follow at once, or has it been sent?
    pub(super) doubled: bool,
    /// How often it was sent. Two copies at once count as one, and `excused` retransmissions as one at most.
    pub(super) transmissions: u16,
    /// Does it say nothing against the link that it is to be sent again?
    excused: bool,
    /// The `ts` of the first and of the last transmission, and the `una` that the peer had told before anything with
    /// that `ts` was sent.
    pub(super) first_ts: u32,
    pub(super) last_ts: u32,
    pub(super) first_una: u32,
    pub(super) last_una: u32,
    /// When it was last sent, and the number of that transmission among all of the session's.
    pub(super) sent_at: Time,
    pub(super) serial: u64,
    /// The neighbours in the list that it is in.
    prev: u32,
    next: u32,
}

/// What sending needs of a slot. Not the whole slot: that has just been written in pieces, and would have to be
/// read back as one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) place: Place,
    pub(super) frg: u8,
    pub(super) cause: Cause,
    pub(super) doubled: bool,
}

/// A list of slots, linked by sequence number.
#[derive(Debug, Clone, Copy, Default)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    fn push_back(&mut self, slots: &mut Ring<Slot>, sn: u32) {
        if self.len == 0 {
            self.head = sn;
        } else {
            slots.at_mut(self.tail).next = sn;
        }
        slots.at_mut(sn).prev = self.tail;
        self.tail = sn;
        self.len += 1;
    }

    fn remove(&mut self, slots: &mut Ring<Slot>, sn: u32) {
        let Slot { prev, next, .. } = *slots.at(sn);
        if sn == self.head {
            self.head = next;
        } else {
            slots.at_mut(prev).next = next;
        }
        if sn == self.tail {
            self.tail = prev;
        } else {
            slots.at_mut(next).prev = prev;
        }
        self.len -= 1;
    }

    fn front(&self) -> Option<u32> {
        (self.len > 0).then_some(self.head)
    }

    fn back(&self) -> Option<u32> {
        (self.len > 0).then_some(self.tail)
    }
}

#[derive(Debug)]
pub(super) struct SendQueue {
    slots: Ring<Slot>,
    pub(super) blocks: Blocks,
    first: u32,
    una: u32,
    next: u32,
    end: u32,
    /// The most segments from `una` to `end`.
    limit: u32,
    flight: List,
    lost: List,
    serial: u64,
}

impl SendQueue {
    pub(super) fn new(first: u32, limit: u32, blocks: Blocks) -> Self {
        Self {
            slots: Ring::new(1),
            blocks,
            first,
            una: first,
            next: first,
            end: first,
            limit,
            flight: List::default(),
            lost: List::default(),
            serial: 0,
        }
    }

    /// The first of all segments.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// The first segment that is not acknowledged.
    pub(super) fn una(&self) -> u32 {
        self.una
    }

    /// The first segment that was never sent.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Segments sent and not covered by `una`.
    pub(super) fn outstanding(&self) -> u32 {
        self.next.wrapping_sub(self.una)
    }

    /// Segments never sent.
    pub(super) fn queued(&self) -> u32 {
        self.end.wrapping_sub(self.next)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.una == self.end
    }

    /// How many more segments can be queued.
    pub(super) fn room(&self) -> u32 {
        self.limit - self.end.wrapping_sub(self.una)
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Appends a segment. There must be room.
    // Inlined for the same reason as `Blocks::push`.
    #[inline(always)]
    pub(super) fn push(&mut self, place: Place, frg: u8) {
        debug_assert!(self.room() > 0);
        let count = self.end.wrapping_sub(self.una);
        if count == self.slots.capacity() {
            self.slots.grow(count * 2, self.una, count);
        }
        *self.slots.at_mut(self.end) = Slot {
            place,
            frg,
            ..Slot::default()
        };
        self.end = self.end.wrapping_add(1);
    }

    /// Removes the last `count` segments, which were never sent.
    pub(super) fn take_back(&mut self, count: u32) {
        for _ in 0..count {
            debug_assert!(self.queued() > 0);
            self.end = self.end.wrapping_sub(1);
            self.blocks.release(self.slots.at(self.end).place);
        }
    }

    /// Lengthens the last segment, if it was never sent, by as much of `payload` as it can take up to `max` bytes.
    pub(super) fn extend_last(&mut self, payload: &[u8], max: usize) -> usize {
        if self.queued() == 0 {
            return 0;
        }
        let last = self.slots.at_mut(self.end.wrapping_sub(1));
        self.blocks.extend(&mut last.place, payload, max)
    }

    pub(super) fn slot(&self, sn: u32) -> &Slot {
        self.slots.at(sn)
    }

    /// Is `sn` a segment that was sent and that `una` does not cover?
    pub(super) fn is_outstanding(&self, sn: u32) -> bool {
        diff(sn, self.una) >= 0 && diff(sn, self.next) < 0
    }

    /// The lost segments before `edge`, in the order in which to send them again.
    pub(super) fn lost(&self, edge: u32) -> impl Iterator<Item = u32> {
        let mut next = self.lost.head;
        // A peer that takes nothing any more leaves a whole window of lost ones, none of which may go: not to be
        // looked through at each step.
        let len = if before(self.una, edge) {
            self.lost.len
        } else {
            0
        };
        let all = (0..len).map(move |_| {
            let sn = next;
            next = self.slots.at(sn).next;
            sn
        });
        all.filter(move |&sn| before(sn, edge))
    }

    /// The segment that the peer waits for, if it is in flight.
    pub(super) fn first_in_flight(&self) -> Option<&Slot> {
        let first = self.slots.at(self.una);
        (self.outstanding() > 0 && first.state == State::InFlight).then_some(first)
    }

    /// The segment in flight that was sent least recently.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.flight.front()
    }

    /// The segment in flight that was sent most recently.
    pub(super) fn newest(&self) -> Option<u32> {
        self.flight.back()
    }

    /// The number of the last transmission.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// `sn` is sent now: one of the lost ones, or the first that was never sent. The peer has said that
    /// it has all before `una`.
    #[inline]
    pub(super) fn sent(&mut self, sn: u32, now: Time, ts: u32, una: u32) -> Sent {
        if self.slots.at(sn).state == State::Lost {
            self.lost.remove(&mut self.slots, sn);
        } else {
            debug_assert_eq!(sn, self.next);
            self.next = self.next.wrapping_add(1);
        }
        self.serial += 1;
        let slot = self.slots.at_mut(sn);
        if slot.serial == 0 {
            slot.first_ts = ts;
            slot.first_una = una;
            slot.last_una = una;
        } else if slot.last_ts != ts {
            slot.last_una = una;
        }
        // A second copy is one, too: it follows a fast retransmission, which has been counted.
        let is_counted = slot.excused && slot.transmissions > 1;
        debug_assert!(is_counted || !slot.doubled);
        if !is_counted {
            slot.transmissions = slot.transmissions.saturating_add(1);
        }
        slot.last_ts = ts;
        slot.sent_at = now;
        slot.serial = self.serial;
        slot.state = State::InFlight;
        let sent = Sent {
            place: slot.place,
            frg: slot.frg,
            cause: slot.cause,
            doubled: slot.doubled,
        };
        self.flight.push_back(&mut self.slots, sn);
        sent
    }

    /// A segment in flight has to be sent again; if it is `excused`, this counts once at most.
    pub(super) fn mark_lost(&mut self, sn: u32, cause: Cause, excused: bool) {
        debug_assert_eq!(self.slots.at(sn).state, State::InFlight);
        self.flight.remove(&mut self.slots, sn);
        let slot = self.slots.at_mut(sn);
        slot.state = State::Lost;
        slot.cause = cause;
        slot.doubled = false;
        slot.excused = excused;
        self.lost.push_back(&mut self.slots, sn);
    }

    /// Something sent after this segment has arrived, so its transmissions are counted anew. That it was sent more than
    /// once is not forgotten.
    pub(super) fn forgive(&mut self, sn: u32) {
        let slot = self.slots.at_mut(sn);
        slot.transmissions = slot.transmissions.min(2);
    }

    /// Counts the transmissions of all outstanding segments anew.
    pub(super) fn forget_transmissions(&mut self) {
        for n in 0..self.outstanding() {
            self.slots.at_mut(self.una.wrapping_add(n)).transmissions = 0;
        }
    }

    /// A segment just sent is to be sent a second time at once.
    pub(super) fn queue_second_copy(&mut self, sn: u32) {
        self.mark_lost(sn, self.slot(sn).cause, true);
        self.slots.at_mut(sn).doubled = true;
    }

    /// The peer has an outstanding segment; returns `true` if that is news.
    pub(super) fn acknowledge(&mut self, sn: u32) -> bool {
        debug_assert!(self.is_outstanding(sn));
        let slot = self.slots.at_mut(sn);
        let (state, place) = (slot.state, slot.place);
        slot.state = State::Acked;
        match state {
            State::InFlight => self.flight.remove(&mut self.slots, sn),
            State::Lost => self.lost.remove(&mut self.slots, sn),
            State::Acked | State::Queued => return false,
        }
        self.blocks.release(place);
        while self.una != self.next && self.slots.at(self.una).state == State::Acked {
            self.una = self.una.wrapping_add(1);
        }
        true
    }

    /// Frees the memory of the ring and of the blocks' lists if nothing is in them.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.slots = Ring::new(1);
            self.blocks.shrink();
        }
    }

    /// Drops all segments.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.slots = Ring::new(1);
        self.una = self.end;
        self.next = self.end;
        self.flight = List::default();
        self.lost = List::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::budget::MemoryBudget;
    use super::*;
    use crate::packet::PacketPool;

    #[test]
    fn lists_keep_their_order_across_growth_and_wrap() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let budget = MemoryBudget::new(1 << 20);
        let first = u32::MAX - 10;
        let mut queue = SendQueue::new(first, 64, Blocks::new(budget.account_to_send()));
        let sn = |n: u32| first.wrapping_add(n);
        for n in 0..64_u8 {
            let place = queue.blocks.push(&[n], 0, true, &pool).unwrap();
            queue.push(place, 0);
            if n < 32 {
                queue.sent(sn(n.into()), Time::ZERO, 0, first);
            }
        }
        assert_eq!(queue.room(), 0);
        // Every third is lost, every third acknowledged.
        for n in (0..32).step_by(3) {
            queue.mark_lost(sn(n), Cause::Fast, true);
        }
        for n in (1..32).step_by(3) {
            assert!(queue.acknowledge(sn(n)));
            assert!(!queue.acknowledge(sn(n)));
        }
        assert_eq!((queue.una(), queue.flight.len), (sn(0), 10));
        assert_eq!(queue.oldest(), Some(sn(2)));
        assert_eq!(queue.lost(sn(4)).collect::<Vec<_>>(), [sn(0), sn(3)]);
        // Where the peer takes nothing, none is looked at.
        let at_most = |edge| queue.lost(edge).size_hint().1;
        assert_eq!((at_most(sn(0)), at_most(sn(1))), (Some(0), Some(11)));
        assert_eq!(queue.lost(sn(0)).next(), None);
        let again: Vec<_> = queue.lost(sn(64)).collect();
        assert_eq!(again, (0..32).step_by(3).map(sn).collect::<Vec<_>>());
        for lost in again {
            queue.sent(lost, Time::ZERO, 1, first);
        }
        assert_eq!(queue.lost(sn(64)).next(), None);
        for n in 0..32 {
            if queue.is_outstanding(sn(n)) {
                queue.acknowledge(sn(n));
            }
        }
        assert_eq!((queue.una(), queue.outstanding()), (sn(32), 0));
        queue.take_back(32);
        assert!(queue.is_empty());
        assert_eq!((pool.slab().stats().in_use(), budget.reserved()), (0, 0));
    }
}
