//! The state that both ends share: the stored batches, the overflow policy, and the counters.

use super::super::event_count::EventCount;
use super::super::priority_lanes::{Priority, PriorityLanes, Pushed};
use super::super::stats::QueueCounters;
use super::Overflow;
use crate::atomics::{AtomicBool, AtomicUsize, Ordering};
use crate::finish::finish;
use crate::udp::{Amount, DropEpisode, PacketBatch};
use core::fmt;
use core::num::NonZeroUsize;
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

/// Where the batches are stored.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each queue, and the plain queue has no further indirection"
)]
pub(super) enum Store {
    Fifo(ArrayQueue<PacketBatch>, Overflow),
    Priority(Box<PriorityLanes>),
}

pub(in crate::pipeline) struct Shared {
    store: Store,
    /// Where consumers wait for a batch, or for the end of the last sender.
    pub(super) items: EventCount,
    /// Where producers under [`Overflow::Wait`] wait for room, or for the end of the last receiver.
    pub(super) room: EventCount,
    /// Where [`closed`](super::QueueSender::closed) waits for `is_abandoned`. Not at `room`, where it
    /// would take notifications meant for producers.
    pub(super) closed: EventCount,
    /// Whether the last receiver has gone and has counted what it left.
    pub(super) is_abandoned: AtomicBool,
    pub(super) senders: AtomicUsize,
    pub(super) receivers: AtomicUsize,
    pub(in crate::pipeline) counters: Arc<QueueCounters>,
    /// Drops of arriving batches, and of queued ones.
    refusing: DropEpisode,
    evicting: DropEpisode,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("capacity", &self.counters.capacity_batches)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Starts with one sender and one receiver.
    pub(super) fn new(capacity: NonZeroUsize, store: Store) -> Self {
        Self {
            store,
            items: EventCount::default(),
            room: EventCount::default(),
            closed: EventCount::default(),
            is_abandoned: AtomicBool::new(false),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
            counters: Arc::new(QueueCounters {
                capacity_batches: capacity.get() as u64,
                ..QueueCounters::default()
            }),
            refusing: DropEpisode::new("queue_full"),
            evicting: DropEpisode::new("policy"),
        }
    }

    /// Applies the policy to a batch, and adds it to `enqueued` if it entered the queue; returns it if
    /// the sender has to wait for room.
    #[inline]
    pub(super) fn offer(
        &self,
        batch: PacketBatch,
        enqueued: &mut EnqueuedBatches<'_>,
    ) -> Result<(), PacketBatch> {
        let amount = batch.amount();
        // The batch is added before another is dropped for it: that drop may panic.
        match &self.store {
            Store::Fifo(batches, Overflow::Wait) => {
                batches.push(batch)?;
                enqueued.add(amount);
            }
            Store::Fifo(batches, Overflow::DropNewest) => match batches.push(batch) {
                Ok(()) => {
                    enqueued.add(amount);
                    self.refusing.record_success();
                }
                Err(batch) => self.drop_arriving(batch),
            },
            Store::Fifo(batches, Overflow::DropOldest) => {
                let oldest = batches.force_push(batch);
                enqueued.add(amount);
                match oldest {
                    None => self.evicting.record_success(),
                    Some(oldest) => self.drop_evicted(oldest),
                }
            }
            Store::Priority(lanes) => match lanes.push(self.priority(lanes, &batch), batch) {
                Pushed::Queued => {
                    enqueued.add(amount);
                    self.refusing.record_success();
                    self.evicting.record_success();
                }
                Pushed::Replaced(other) => {
                    enqueued.add(amount);
                    self.drop_evicted(other);
                    // Last: the log is foreign code, too, and what is dropped has to be counted.
                    self.refusing.record_success();
                }
                Pushed::Refused(batch) => {
                    self.drop_arriving(batch);
                    self.evicting.record_success();
                }
            },
        }
        Ok(())
    }

    /// Half of the places, but at least one.
    pub(super) fn half(&self) -> usize {
        (self.counters.capacity_batches as usize / 2).max(1)
    }

    /// The number of batches queued.
    pub(in crate::pipeline) fn len(&self) -> usize {
        match &self.store {
            Store::Fifo(batches, _) => batches.len(),
            Store::Priority(lanes) => lanes.len(),
        }
    }

    /// Returns `true` if at least half of the places are taken.
    pub(super) fn is_half_full(&self) -> bool {
        2 * self.len() as u64 >= self.counters.capacity_batches
    }

    /// Returns the user's priority of a batch. If the user's function panics, the batch is counted as
    /// refused.
    fn priority(&self, lanes: &PriorityLanes, batch: &PacketBatch) -> Priority {
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

    /// Counts and drops an arriving batch for which there was no room.
    fn drop_arriving(&self, batch: PacketBatch) {
        let amount = batch.amount();
        self.counters.producers.full.add(amount);
        self.refusing.dropped(amount.datagrams);
        // Last, here and elsewhere: freeing memory may wake a waiter for it, and a waker may panic.
        drop(batch);
    }

    /// Counts and drops a queued batch that made room for another.
    fn drop_evicted(&self, batch: PacketBatch) {
        let amount = batch.amount();
        self.counters.producers.evicted.add(amount);
        self.evicting.dropped(amount.datagrams);
        drop(batch);
    }

    /// Counts batches that entered the queue, and wakes consumers.
    fn on_enqueued(&self, batches: usize, amount: Amount) {
        if batches == 0 {
            return;
        }
        self.counters.producers.enqueued.add(amount);
        self.items.notify(batches);
        // The last receiver sets the counter to zero and then empties the queue, with a fence between. The
        // event count's fence in `notify` is between our push and this load: either the receiver has found our
        // batches, or we see the zero and drop them.
        if self.receivers.load(Ordering::Relaxed) == 0 {
            self.drop_all_queued();
        }
    }

    /// Drops and counts everything queued, since no receiver is left.
    pub(super) fn drop_all_queued(&self) {
        let abandoned = &self.counters.producers.abandoned;
        finish(|| {
            let counted = self.take().map(|batch| abandoned.add(batch.amount()));
            counted.is_some()
        });
    }

    fn take(&self) -> Option<PacketBatch> {
        match &self.store {
            Store::Fifo(batches, _) => batches.pop(),
            Store::Priority(lanes) => lanes.pop(),
        }
    }

    pub(super) fn pop(&self) -> Option<PacketBatch> {
        let batch = self.take()?;
        self.on_delivered(1, batch.amount());
        Some(batch)
    }

    /// Moves up to `limit` batches to `out`, and returns their number, or `None` if there were none.
    pub(super) fn pop_many(&self, out: &mut Vec<PacketBatch>, limit: usize) -> Option<usize> {
        let (mut count, mut amount) = (0, Amount::default());
        while count < limit {
            let Some(batch) = self.take() else {
                break;
            };
            amount += batch.amount();
            // The consumer reads it only after the batches taken before it.
            batch.prefetch();
            out.push(batch);
            count += 1;
        }
        self.on_delivered(count, amount);
        (count > 0).then_some(count)
    }

    /// Counts batches that a consumer has taken, and wakes producers that wait for room.
    fn on_delivered(&self, batches: usize, amount: Amount) {
        if batches == 0 {
            return;
        }
        self.counters.consumers.delivered.add(amount);
        if matches!(self.store, Store::Fifo(_, Overflow::Wait)) {
            self.room.notify(batches);
        }
    }

    /// Counts and drops a batch that does not enter the queue.
    pub(super) fn drop_unsent(&self, batch: PacketBatch) {
        self.counters.producers.refused.add(batch.amount());
    }
}

/// Batches that have entered the queue. Its drop counts them and wakes consumers, even if foreign code
/// panics: the caller's, which yields batches and decides on priorities, or the waker of a task that
/// waits for the memory of a dropped batch.
pub(super) struct EnqueuedBatches<'a> {
    shared: &'a Shared,
    batches: usize,
    amount: Amount,
}

impl<'a> EnqueuedBatches<'a> {
    pub(super) fn none(shared: &'a Shared) -> Self {
        Self {
            shared,
            batches: 0,
            amount: Amount::default(),
        }
    }

    fn add(&mut self, amount: Amount) {
        self.batches += 1;
        self.amount += amount;
    }
}

impl Drop for EnqueuedBatches<'_> {
    fn drop(&mut self) {
        self.shared.on_enqueued(self.batches, self.amount);
    }
}
