//! [`Gate`]: where one side of a queue waits for the other.
//!
//! It costs the other side one fence a turn while nobody waits, however much the turn brought: no
//! shared cache line is written.
//!
//! # Why no wake-up is lost
//!
//! Who waits *counts* itself, then *registers*, and then looks at the queue *again* before it
//! sleeps. The other side changes the queue first, and then reads the count. Between writing and
//! reading there is a sequentially consistent fence on both sides, so that one of them sees the
//! other: either the second look finds the change, or the count is seen. In the latter case the
//! notification comes before the registration, which takes it then and does not sleep, or after it,
//! and wakes.
//!
//! As many are notified as there are changes, if so many wait. One that is notified and then leaves
//! with what its second look found, or whose future is dropped, hands its notification on: that is
//! what dropping a `Notified` does. A notification that meets nobody is stored, once, and makes
//! somebody look in vain later.

use core::sync::atomic::{AtomicUsize, Ordering, fence};
use tokio::sync::Notify;

/// On a pair of cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Gate {
    waiting: AtomicUsize,
    notify: Notify,
}

impl Gate {
    /// There is something for so many of those who wait. Comes after the change that it tells of.
    #[inline]
    pub(super) fn open(&self, changes: usize) {
        fence(Ordering::SeqCst);
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > 0 {
            self.wake(changes.min(waiting));
        }
    }

    #[cold]
    fn wake(&self, count: usize) {
        for _ in 0..count {
            self.notify.notify_one();
        }
    }

    /// Wakes all who have registered: the other side is at its end.
    pub(super) fn open_for_all(&self) {
        self.notify.notify_waiters();
    }

    /// Waits until `look` finds something. Comes after a first look in vain.
    pub(super) async fn pass<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let counted = Counted::new(&self.waiting);
            // Declared behind it, and dropped before it: who is notified is counted.
            let mut notified = core::pin::pin!(self.notify.notified());
            notified.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            notified.await;
            drop(counted);
            if let Some(found) = look() {
                return found;
            }
        }
    }
}

struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
