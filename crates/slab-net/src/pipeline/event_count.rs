//! [`EventCount`]: where one side of a queue waits for the other (an eventcount: Reed and Kanodia, "Synchronization with
//! Eventcounts and Sequencers", 1979).
//!
//! While nobody waits it costs the other side one fence a turn, however much the turn moved: no shared
//! cache line is written.
//!
//! # Why no wake-up is lost
//!
//! A waiter first *counts* itself, then *registers*, and then looks at the queue *again* before it
//! sleeps. The other side first changes the queue, and then reads the count. On both sides a
//! sequentially consistent fence lies between the write and the read, so that at least one of them sees
//! the other: either the second look finds the change, or the count is seen. In the latter case the
//! notification comes either before the registration, which then consumes it so that the waiter does
//! not sleep, or after it, and wakes the waiter.
//!
//! As many waiters are notified as there are changes, if so many wait. A waiter that is notified but
//! leaves with what its second look found, or whose future is dropped, passes its notification on:
//! dropping a `Notified` does that. A notification without a waiter is stored, at most one, and later
//! causes one look in vain.

use crate::atomics::{AtomicUsize, Ordering, fence};
use crate::finish::finish;
use tokio::sync::Notify;

/// Has a pair of cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct EventCount {
    waiting: AtomicUsize,
    notify: Notify,
}

impl EventCount {
    /// Notifies one waiter for each of `changes`. Call it after making the changes.
    #[inline]
    pub(super) fn notify(&self, changes: usize) {
        fence(Ordering::SeqCst);
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > 0 {
            self.wake(changes.min(waiting));
        }
    }

    /// Notifies all waiters: the other side has ended. One by one, because
    /// [`notify_waiters`](Notify::notify_waiters) forgets those that come after a panic.
    pub(super) fn notify_all(&self) {
        self.notify(usize::MAX);
    }

    /// One by one: a waker is foreign code, which may panic.
    #[cold]
    fn wake(&self, count: usize) {
        let mut left = 0..count;
        finish(|| left.next().map(|_| self.notify.notify_one()).is_some());
    }

    /// Waits until `look` finds something. Call it after a first look in vain.
    pub(super) async fn wait_for<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let counted = WaiterCount::new(&self.waiting);
            // Declared after `counted`, so dropped before it: whoever can be notified is counted.
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

struct WaiterCount<'a>(&'a AtomicUsize);

impl<'a> WaiterCount<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
