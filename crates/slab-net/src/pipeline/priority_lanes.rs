//! [`PriorityLanes`]: a bounded queue that drops the lowest priority first.
//!
//! There is one array per priority, and one count for all of them. A producer reserves a place by the
//! count before it pushes, and a consumer returns the place after it has popped. Therefore
//!
//! ```text
//! batches in all lanes <= count <= capacity
//! ```
//!
//! holds at all times, and a lane, which has room for `capacity` batches, is never full for a producer
//! that has a place. A producer that finds the count at the capacity takes over the place of a batch of
//! a lower priority by popping that batch; the count does not change then.

use crate::atomics::{AtomicUsize, Ordering};
use crate::udp::PacketBatch;
use crossbeam_queue::ArrayQueue;

/// The priority of a batch: the lowest is dropped first when a queue is full, the highest is delivered
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Dropped first, delivered last.
    Low,
    /// For most traffic.
    #[default]
    Normal,
    /// Delivered before most traffic, and dropped after it.
    High,
    /// Dropped last, delivered first; for example for keep-alives.
    Critical,
}

const LANES: usize = 4;

pub(super) type PriorityOf = dyn Fn(&PacketBatch) -> Priority + Send + Sync;

pub(super) struct PriorityLanes {
    /// One for each priority, the lowest first.
    lanes: [ArrayQueue<PacketBatch>; LANES],
    /// The number of places taken.
    count: AtomicUsize,
    capacity: usize,
    priority_of: Box<PriorityOf>,
}

/// The result of a push.
pub(super) enum Pushed {
    /// The batch is queued.
    Queued,
    /// The batch is queued, in the place of this one.
    Replaced(PacketBatch),
    /// The batch is returned: there is no place, and nothing of a lower priority is queued.
    Refused(PacketBatch),
}

impl PriorityLanes {
    pub(super) fn new(capacity: usize, priority_of: Box<PriorityOf>) -> Self {
        Self {
            lanes: [(); LANES].map(|()| ArrayQueue::new(capacity)),
            count: AtomicUsize::new(0),
            capacity,
            priority_of,
        }
    }

    /// Returns the user's priority of a batch. The user's function may panic.
    pub(super) fn priority_of(&self, batch: &PacketBatch) -> Priority {
        (self.priority_of)(batch)
    }

    pub(super) fn push(&self, priority: Priority, batch: PacketBatch) -> Pushed {
        let lane = priority as usize;
        if self.reserve() {
            self.push_to(lane, batch);
            return Pushed::Queued;
        }
        match self.lanes[..lane].iter().find_map(ArrayQueue::pop) {
            Some(other) => {
                self.push_to(lane, batch);
                Pushed::Replaced(other)
            }
            None => Pushed::Refused(batch),
        }
    }

    /// Removes and returns the oldest batch of the highest priority.
    pub(super) fn pop(&self) -> Option<PacketBatch> {
        let batch = self.lanes.iter().rev().find_map(ArrayQueue::pop)?;
        self.count.fetch_sub(1, Ordering::Release);
        Some(batch)
    }

    /// The number of batches queued or about to be.
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
