//! [`Lanes`]: a bounded queue that gives up what matters least.
//!
//! One array per priority, and one count for all of them. A producer reserves a place by the count
//! before it pushes, and a consumer gives the place back after it has popped, so that
//!
//! ```text
//! batches in all lanes <= count <= capacity
//! ```
//!
//! holds at each moment, and a lane, which has room for `capacity` batches, is never full for one
//! who has a place. Who finds the count at the capacity takes over the place of a batch of a lower
//! priority, by popping that batch; the count does not change then.

use crate::udp::PacketBatch;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use crossbeam_queue::ArrayQueue;

/// How much a batch matters when a queue is full, and which comes first when it is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// First to be dropped, last to be delivered.
    Low,
    /// What most traffic is.
    #[default]
    Normal,
    /// Before most traffic.
    High,
    /// Last to be dropped, first to be delivered; for keeping connections alive, for example.
    Critical,
}

const LANES: usize = 4;

pub(super) type PriorityOf = dyn Fn(&PacketBatch) -> Priority + Send + Sync;

pub(super) struct Lanes {
    /// By priority, the lowest first.
    lanes: [ArrayQueue<PacketBatch>; LANES],
    /// Places taken.
    count: AtomicUsize,
    capacity: usize,
    priority_of: Box<PriorityOf>,
}

/// What became of a batch that was pushed.
pub(super) enum Pushed {
    /// It is queued.
    In,
    /// It is queued, in the place of this one.
    InsteadOf(PacketBatch),
    /// There is no place, and nothing queued that matters less.
    Refused(PacketBatch),
}

impl Lanes {
    pub(super) fn new(capacity: usize, priority_of: Box<PriorityOf>) -> Self {
        Self {
            lanes: [(); LANES].map(|()| ArrayQueue::new(capacity)),
            count: AtomicUsize::new(0),
            capacity,
            priority_of,
        }
    }

    /// What the user's function says of a batch. It may panic.
    pub(super) fn priority_of(&self, batch: &PacketBatch) -> Priority {
        (self.priority_of)(batch)
    }

    pub(super) fn push(&self, priority: Priority, batch: PacketBatch) -> Pushed {
        let lane = priority as usize;
        if self.reserve() {
            self.push_to(lane, batch);
            return Pushed::In;
        }
        match self.lanes[..lane].iter().find_map(ArrayQueue::pop) {
            Some(other) => {
                self.push_to(lane, batch);
                Pushed::InsteadOf(other)
            }
            None => Pushed::Refused(batch),
        }
    }

    /// The oldest batch of the highest priority.
    pub(super) fn pop(&self) -> Option<PacketBatch> {
        let batch = self.lanes.iter().rev().find_map(ArrayQueue::pop)?;
        self.count.fetch_sub(1, Ordering::Release);
        Some(batch)
    }

    /// Batches queued, or about to be.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn reserve(&self) -> bool {
        let one_more = |count| (count < self.capacity).then_some(count + 1);
        self.count
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more)
            .is_ok()
    }

    fn push_to(&self, lane: usize, batch: PacketBatch) {
        let refused = self.lanes[lane].push(batch);
        debug_assert!(refused.is_ok(), "a place was reserved");
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes")
            .field("count", &self.count)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
