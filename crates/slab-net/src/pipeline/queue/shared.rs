//! What both ends share: where the batches lie, what a full queue does, and what is counted.

use super::super::gate::Gate;
use super::super::lanes::{Lanes, Priority, Pushed};
use super::super::stats::QueueCounters;
use super::{Overflow, QueueClosed};
use crate::udp::{Amount, DropEpisode, PacketBatch};
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicUsize, Ordering};
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

/// Where the batches lie.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each queue, and the plain queue has no further indirection"
)]
pub(super) enum Store {
    Fifo(ArrayQueue<PacketBatch>, Overflow),
    Lanes(Box<Lanes>),
}

#[derive(Debug)]
pub(super) struct Shared {
    store: Store,
    /// Where consumers wait for a batch or for the last sender's end.
    pub(super) items: Gate,
    /// Where producers under [`Overflow::Wait`] wait for room or for the last receiver's end.
    pub(super) room: Gate,
    /// Where who has nothing to send waits for the last receiver's end. Not at `room`, where it
    /// would take the places that are made for others.
    pub(super) closed: Gate,
    pub(super) senders: AtomicUsize,
    pub(super) receivers: AtomicUsize,
    pub(super) counters: Arc<QueueCounters>,
    overflowing: DropEpisode,
}

impl Shared {
    /// With one end of each side.
    pub(super) fn new(capacity: NonZeroUsize, store: Store) -> Self {
        Self {
            store,
            items: Gate::default(),
            room: Gate::default(),
            closed: Gate::default(),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
            counters: Arc::new(QueueCounters {
                capacity_batches: capacity.get() as u64,
                ..QueueCounters::default()
            }),
            overflowing: DropEpisode::new("queue_full"),
        }
    }

    /// Does with a batch what the policy says, and returns how much entered, if it did; gives it
    /// back if there is to be waited for room. What enters is to be [announced](Self::entered).
    #[inline]
    pub(super) fn offer(&self, batch: PacketBatch) -> Result<Option<Amount>, PacketBatch> {
        let amount = batch.amount();
        match &self.store {
            Store::Fifo(batches, Overflow::Wait) => batches.push(batch)?,
            Store::Fifo(batches, Overflow::DropNewest) => match batches.push(batch) {
                Ok(()) => self.overflowing.all_well(),
                Err(batch) => {
                    self.full(batch);
                    return Ok(None);
                }
            },
            Store::Fifo(batches, Overflow::DropOldest) => match batches.force_push(batch) {
                None => self.overflowing.all_well(),
                Some(oldest) => self.evicted(oldest),
            },
            Store::Lanes(lanes) => match lanes.push(self.priority(lanes, &batch), batch) {
                Pushed::In => self.overflowing.all_well(),
                Pushed::InsteadOf(other) => self.evicted(other),
                Pushed::Refused(batch) => {
                    self.full(batch);
                    return Ok(None);
                }
            },
        }
        Ok(Some(amount))
    }

    /// Are consumers so far behind that half of the room is used up?
    pub(super) fn is_half_full(&self) -> bool {
        let batches = match &self.store {
            Store::Fifo(batches, _) => batches.len(),
            Store::Lanes(lanes) => lanes.len(),
        };
        2 * batches as u64 >= self.counters.capacity_batches
    }

    /// What the user's function says of a batch; counts it if that panics, and takes it along.
    fn priority(&self, lanes: &Lanes, batch: &PacketBatch) -> Priority {
        struct Lost<'a>(&'a Shared, Amount);

        impl Drop for Lost<'_> {
            fn drop(&mut self) {
                self.0.counters.producers.refused.add(self.1);
            }
        }

        let lost = Lost(self, batch.amount());
        let priority = lanes.priority_of(batch);
        core::mem::forget(lost);
        priority
    }

    /// There was no room for a batch that arrived.
    fn full(&self, batch: PacketBatch) {
        let amount = batch.amount();
        self.counters.producers.full.add(amount);
        self.overflowing.dropped(amount.datagrams);
        // Last, here and elsewhere: it may wake who waits for memory, and a waker may panic.
        drop(batch);
    }

    /// A queued batch made room for another.
    fn evicted(&self, batch: PacketBatch) {
        let amount = batch.amount();
        self.counters.producers.evicted.add(amount);
        self.overflowing.dropped(amount.datagrams);
        drop(batch);
    }

    /// So many batches went in, with so much in them.
    pub(super) fn entered(&self, batches: usize, amount: Amount) {
        if batches == 0 {
            return;
        }
        self.counters.producers.enqueued.add(amount);
        if self.receivers.load(Ordering::SeqCst) == 0 {
            // The last receiver emptied the queue after it had set the counter to zero. Of its
            // look at the queue and our push one came first: it has dropped our batch, or we see
            // the zero here and do.
            self.abandon();
        }
        self.items.open(batches);
    }

    /// Drops all that is queued: nobody is left to deliver it to.
    pub(super) fn abandon(&self) {
        struct Queued<'a>(&'a Shared);

        impl Queued<'_> {
            fn drop_all(&self) {
                while let Some(batch) = self.0.take() {
                    self.0.counters.producers.abandoned.add(batch.amount());
                }
            }
        }

        // If one panics, the rest.
        impl Drop for Queued<'_> {
            fn drop(&mut self) {
                self.drop_all();
            }
        }

        Queued(self).drop_all();
    }

    fn take(&self) -> Option<PacketBatch> {
        match &self.store {
            Store::Fifo(batches, _) => batches.pop(),
            Store::Lanes(lanes) => lanes.pop(),
        }
    }

    pub(super) fn pop(&self) -> Option<PacketBatch> {
        let batch = self.take()?;
        self.left(1, batch.amount());
        Some(batch)
    }

    /// Moves up to `limit` batches to `out`, and returns how many if there are any.
    pub(super) fn pop_many(&self, out: &mut Vec<PacketBatch>, limit: usize) -> Option<usize> {
        let (mut count, mut amount) = (0, Amount::default());
        while count < limit {
            let Some(batch) = self.take() else {
                break;
            };
            amount += batch.amount();
            // Its turn comes after all the others of this turn.
            batch.prefetch();
            out.push(batch);
            count += 1;
        }
        self.left(count, amount);
        (count > 0).then_some(count)
    }

    /// So many batches are with a consumer now, with so much in them.
    fn left(&self, batches: usize, amount: Amount) {
        if batches == 0 {
            return;
        }
        self.counters.consumers.delivered.add(amount);
        if matches!(self.store, Store::Fifo(_, Overflow::Wait)) {
            self.room.open(batches);
        }
    }

    pub(super) fn refuse(&self, batch: PacketBatch) -> QueueClosed {
        self.counters.producers.refused.add(batch.amount());
        QueueClosed
    }
}
