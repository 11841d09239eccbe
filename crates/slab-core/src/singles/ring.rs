//! A bounded ring of single chunks, first in, first out (Vyukov, "Bounded MPMC queue", 2010).
//!
//! Two positions count up for ever; the thread that moves one owns the slot there. A slot's word tells
//! whose turn it is: `2 * lap` for the thread that fills it in that lap of the ring, `2 * lap + 1` for
//! the one that empties it.
//!
//! No thread takes a lock, but the ring is not lock-free in the strict sense: a thread that is stopped
//! between the two steps blocks those that come to its slot. There is a slot for every chunk, so the
//! ring is never full.

use super::SinglesCount;
use crate::sync::{AtomicU64, Backoff, Ordering, Table};
use crate::sys::room::Room;
use core::ptr::NonNull;

/// Nothing comes in or goes out; beside the position in `tail`.
const SHUT: u64 = 1 << 63;

/// A position of its own cache-line pair.
#[derive(Debug)]
#[repr(align(128))]
struct Position(AtomicU64);

#[derive(Debug)]
pub(crate) struct Ring {
    /// The next slot to be emptied, and to be filled.
    head: Position,
    tail: Position,
    /// Taken by `take_all`.
    swept: AtomicU64,
    /// `turn << 32 | unit`; a power of two of them.
    slots: Table<AtomicU64>,
    /// Their number as a shift.
    lap_shift: u32,
}

impl Ring {
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(super) fn new(room: &mut Room, population: usize) -> Result<Self, i32> {
        let slots = population.next_power_of_two();
        Ok(Self {
            head: Position(AtomicU64::new(0)),
            tail: Position(AtomicU64::new(0)),
            swept: AtomicU64::new(0),
            slots: Table::new(room, slots)?,
            lap_shift: slots.trailing_zeros(),
        })
    }

    /// The slot of a position, and the turn of the thread that fills it.
    fn slot(&self, position: u64) -> (&AtomicU64, u32) {
        let index = position & ((1 << self.lap_shift) - 1);
        let lap = position >> self.lap_shift;
        (self.slots.at(index as usize), (2 * lap) as u32)
    }

    /// Adds a chunk; `false` if the ring is shut.
    ///
    /// # Safety
    /// `this` points to a ring that lasts until the chunk is in. After `true` it may be gone, which is
    /// why it comes by pointer: a reference would have to stay valid until this returns.
    pub(super) unsafe fn put(this: NonNull<Self>, unit: u32) -> bool {
        // SAFETY: the caller's promise.
        let this = unsafe { this.as_ref() };
        // Acquire: a thread that sees it shut sees why.
        let mut tail = this.tail.0.load(Ordering::Acquire);
        loop {
            if tail & SHUT != 0 {
                return false;
            }
            match this.tail.0.compare_exchange_weak(
                tail,
                tail + 1,
                Ordering::Relaxed,
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(now) => tail = now,
            }
        }
        let (slot, turn) = this.slot(tail);
        // Another thread is emptying it if it is not empty: there is a slot for every chunk.
        let mut backoff = Backoff::default();
        // Relaxed: nothing else that the emptying thread did has to be visible.
        while (slot.load(Ordering::Relaxed) >> 32) as u32 != turn {
            backoff.snooze();
        }
        // Release: what the last owner did to the chunk comes before. The last access to the ring.
        let full = u64::from(turn.wrapping_add(1)) << 32 | u64::from(unit);
        slot.store(full, Ordering::Release);
        true
    }

    /// Takes the chunk that has been here longest; `None` if there is none or the ring is shut.
    pub(super) fn take(&self) -> Option<u32> {
        if self.tail.0.load(Ordering::Relaxed) & SHUT != 0 {
            return None;
        }
        self.take_first()
    }

    fn take_first(&self) -> Option<u32> {
        let mut backoff = Backoff::default();
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            let (slot, turn) = self.slot(head);
            // Acquire: pairs with the `put` that filled it.
            let word = slot.load(Ordering::Acquire);
            if (word >> 32) as u32 == turn.wrapping_add(1) {
                // Release: who sees that this one is gone sees what was put before it was taken.
                match self.head.0.compare_exchange_weak(
                    head,
                    head + 1,
                    Ordering::Release,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        let empty = u64::from(turn.wrapping_add(2)) << 32;
                        slot.store(empty, Ordering::Relaxed);
                        return Some(word as u32);
                    }
                    Err(now) => head = now,
                }
                continue;
            }
            // Empty, or about to be filled, or another thread was faster. The head is read before the tail: the other
            // way round, what is put and taken in between would make a ring that never was empty look so.
            let now = self.head.0.load(Ordering::Acquire);
            let tail = self.tail.0.load(Ordering::Relaxed) & !SHUT;
            if now == tail {
                return None;
            }
            if now == head {
                backoff.snooze();
            }
            head = now;
        }
    }

    /// Takes all chunks, also of a ring that is shut; returns how many there were.
    pub(super) fn take_all(&self, shut: bool, mut sink: impl FnMut(u32)) -> u64 {
        let shut = if shut { SHUT } else { 0 };
        // Release: publishes why it is shut.
        let tail = self.tail.0.fetch_or(shut, Ordering::Release) & !SHUT;
        // Chunks that come later are left, so that this ends.
        let most = tail.saturating_sub(self.head.0.load(Ordering::Relaxed));
        let mut chunks = 0;
        while chunks < most
            && let Some(unit) = self.take_first()
        {
            sink(unit);
            chunks += 1;
        }
        self.swept.fetch_add(chunks, Ordering::Relaxed);
        chunks
    }

    pub(super) fn reopen(&self) {
        // Relaxed: nobody concludes anything from its being open.
        self.tail.0.fetch_and(!SHUT, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> SinglesCount {
        let taken = self.head.0.load(Ordering::Relaxed);
        let frees = self.tail.0.load(Ordering::Relaxed) & !SHUT;
        SinglesCount {
            chunks: frees.saturating_sub(taken),
            frees,
            allocs: taken.saturating_sub(self.swept.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(all(test, loom))]
impl Ring {
    pub(super) fn after_all_others(&mut self) {
        self.head.0.with_mut(|_| ());
        self.tail.0.with_mut(|_| ());
        for slot in &mut *self.slots {
            slot.with_mut(|_| ());
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use crate::proofs::model::model;
    use crate::sync::AtomicU32;
    use loom::thread;
    use std::sync::Arc;

    fn ring(units: core::ops::Range<u32>) -> Arc<Ring> {
        ring_for(2, units)
    }

    fn ring_for(population: usize, units: core::ops::Range<u32>) -> Arc<Ring> {
        let ring = Ring::new(&mut Room::system(), population).unwrap();
        units.for_each(|unit| assert!(put(&ring, unit)));
        Arc::new(ring)
    }

    fn put(ring: &Ring, unit: u32) -> bool {
        // SAFETY: it is borrowed.
        unsafe { Ring::put(NonNull::from(ring), unit) }
    }

    fn assert_each_once(mut units: Vec<u32>, count: u32) {
        units.sort_unstable();
        assert_eq!(units, (0..count).collect::<Vec<_>>());
    }

    /// Both threads come to the second lap while the other may still be in the first.
    #[test]
    fn model_ring_goes_round() {
        model(None, || {
            let ring = ring(0..2);
            let turn = |ring: &Ring| ring.take().map(|unit| assert!(put(ring, unit)));
            let other = thread::spawn({
                let ring = ring.clone();
                move || {
                    turn(&ring);
                    ring.take()
                }
            });
            turn(&ring);
            let mut units: Vec<u32> = other.join().unwrap().into_iter().collect();
            ring.take_all(false, |unit| units.push(unit));
            assert_each_once(units, 2);
        });
    }

    /// A chunk that was put is found, even behind another thread's that is on its way.
    #[test]
    fn model_ring_is_not_empty_for_who_put_something() {
        model(None, || {
            let ring = ring(0..0);
            let other = thread::spawn({
                let ring = ring.clone();
                move || assert!(put(&ring, 0))
            });
            assert!(put(&ring, 1));
            assert!(ring.take().is_some());
            other.join().unwrap();
        });
    }

    /// There is always something in it: what is put is there before anything else is taken.
    #[test]
    fn model_ring_that_never_is_empty_does_not_look_so() {
        model(None, || {
            let ring = ring_for(4, 0..1);
            let other = thread::spawn({
                let ring = ring.clone();
                move || {
                    for unit in [1, 2] {
                        assert!(put(&ring, unit));
                        assert!(ring.take().is_some());
                    }
                }
            });
            assert!(ring.take().is_some());
            other.join().unwrap();
        });
    }

    #[test]
    fn model_ring_shut_against_put_and_take() {
        model(None, || {
            let ring = ring(0..1);
            let why = Arc::new(AtomicU32::new(0));
            let other = thread::spawn({
                let (ring, why) = (ring.clone(), why.clone());
                move || {
                    let mut mine: Vec<u32> = ring.take().into_iter().collect();
                    if !put(&ring, 1) {
                        assert_eq!(why.load(Ordering::Relaxed), 1);
                        mine.push(1);
                    }
                    mine
                }
            });
            why.store(1, Ordering::Relaxed);
            let mut units = Vec::new();
            let count = ring.take_all(true, |unit| units.push(unit));
            assert_eq!(count, units.len() as u64);
            units.extend(other.join().unwrap());
            assert_each_once(units, 2);
            assert_eq!(ring.take(), None);
            ring.reopen();
            assert!(put(&ring, 0));
            assert_eq!(ring.take(), Some(0));
        });
    }
}
