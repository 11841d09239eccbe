//! What a queue promises, as a list and a few sums.

use slab_net::pipeline::{Overflow, QueueStats};
use std::collections::VecDeque;

/// The priority of a batch for which the function that returns priorities panics.
pub(crate) const PANICS: u8 = 4;

/// A batch, as far as a queue looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) number: u32,
    pub(crate) priority: u8,
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Fifo(Overflow),
    Priority,
}

/// What becomes of a batch that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// It is queued, or dropped and counted by the policy.
    Done,
    /// It has to wait, or is given back.
    NoRoom,
    /// It is counted as `closed`, or given back.
    Closed,
    /// The function that returns priorities has panicked, and the batch is counted as `closed`.
    Panicked,
}

/// Datagrams and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum(u64, u64);

impl Sum {
    fn add(&mut self, item: Item) {
        self.0 += item.datagrams;
        self.1 += item.bytes;
    }
}

/// All counters but the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    queued: Sum,
    enqueued: Sum,
    delivered: Sum,
    full: Sum,
    policy: Sum,
    closed: Sum,
}

impl Counts {
    pub(crate) fn of(stats: &QueueStats) -> Self {
        Self {
            queued: Sum(stats.datagrams, stats.bytes),
            enqueued: Sum(stats.enqueued, stats.enqueued_bytes),
            delivered: Sum(stats.delivered, stats.delivered_bytes),
            full: Sum(stats.dropped_queue_full, stats.dropped_queue_full_bytes),
            policy: Sum(stats.dropped_policy, stats.dropped_policy_bytes),
            closed: Sum(stats.dropped_closed, stats.dropped_closed_bytes),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    policy: Policy,
    capacity: usize,
    /// In the order of their arrival.
    items: VecDeque<Item>,
    pub(crate) senders: usize,
    pub(crate) receivers: usize,
    counts: Counts,
}

impl Queue {
    pub(crate) fn new(policy: Policy, capacity: usize) -> Self {
        Self {
            policy,
            capacity,
            items: VecDeque::new(),
            senders: 1,
            receivers: 1,
            counts: Counts::default(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.counts;
        for &item in &self.items {
            counts.queued.add(item);
        }
        counts
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    fn is_full(&self) -> bool {
        self.items.len() == self.capacity
    }

    /// Sends one batch. What is not `Done` or `Panicked` is not counted.
    pub(crate) fn offer(&mut self, item: Item) -> Offered {
        if self.receivers == 0 {
            return Offered::Closed;
        }
        if self.policy == Policy::Priority && item.priority == PANICS {
            self.refuse(item);
            return Offered::Panicked;
        }
        if self.is_full() {
            let evicted = match self.policy {
                Policy::Fifo(Overflow::Wait) => return Offered::NoRoom,
                Policy::Fifo(Overflow::DropOldest) => Some(0),
                Policy::Fifo(_) => None,
                Policy::Priority => {
                    let lowest = self.items.iter().map(|other| other.priority).min();
                    self.items
                        .iter()
                        .position(|other| Some(other.priority) == lowest)
                        .filter(|_| lowest < Some(item.priority))
                }
            };
            let Some(other) = evicted.and_then(|at| self.items.remove(at)) else {
                self.counts.full.add(item);
                return Offered::Done;
            };
            self.counts.policy.add(other);
        }
        self.items.push_back(item);
        self.counts.enqueued.add(item);
        Offered::Done
    }

    /// Takes the batch that comes next.
    pub(crate) fn pop(&mut self) -> Option<Item> {
        let at = match self.policy {
            Policy::Fifo(_) => 0,
            Policy::Priority => {
                let highest = self.items.iter().map(|item| item.priority).max();
                let first = |item: &Item| Some(item.priority) == highest;
                self.items.iter().position(first)?
            }
        };
        let item = self.items.remove(at)?;
        self.counts.delivered.add(item);
        Some(item)
    }

    /// Counts a batch that its sender gave up, or for which there is no receiver.
    pub(crate) fn refuse(&mut self, item: Item) {
        self.counts.closed.add(item);
    }

    /// Counts a batch that was given back by `try_send` and dropped.
    pub(crate) fn drop_given_back(&mut self, item: Item, is_closed: bool) {
        if is_closed {
            self.counts.closed.add(item);
        } else {
            self.counts.full.add(item);
        }
    }

    pub(crate) fn drop_receiver(&mut self) {
        self.receivers -= 1;
        if self.receivers == 0 {
            for item in std::mem::take(&mut self.items) {
                self.counts.closed.add(item);
            }
        }
    }
}
