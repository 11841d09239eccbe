//! A mutex whose holder can let others pass in the midst of long work.
//!
//! A mutex that is released and taken again at once lets nobody pass: a thread that sleeps for it takes
//! longer to wake than the holder to come back. So sleepers are counted, and the holder waits a moment.

use crate::sync::{Backoff, MODELLED, Mutex, MutexGuard};

/// A plain atomic: nothing depends on its order with anything else, so models need not see it.
type Count = core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// How many times a holder checks whether the threads that it woke have come.
const MAX_HANDOVER_CHECKS: u32 = 256;

#[derive(Debug)]
pub(crate) struct HandoffMutex<T> {
    mutex: Mutex<T>,
    /// Threads that sleep for the mutex, or are about to. In the child of a fork those of the parent
    /// stay counted: each hand-over then makes all of its checks, and no more.
    waiting: Count,
}

impl<T> HandoffMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            mutex: Mutex::new(value),
            waiting: Count::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        if !MODELLED && let Some(guard) = self.mutex.try_lock() {
            return guard;
        }
        self.waiting.fetch_add(1, Relaxed);
        let guard = self.mutex.lock();
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }

    /// Lets threads that wait for the mutex now have it first. What it guards may have changed when this
    /// returns.
    pub(crate) fn hand_over<'a>(&'a self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        // In a model another thread may always come in between.
        if !MODELLED && self.waiting.load(Relaxed) == 0 {
            return guard;
        }
        drop(guard);
        if !MODELLED {
            let mut backoff = Backoff::default();
            for _ in 0..MAX_HANDOVER_CHECKS {
                if self.waiting.load(Relaxed) == 0 {
                    break;
                }
                backoff.snooze();
            }
        }
        self.lock()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn hand_over_lets_waiting_threads_lock_first() {
        let mutex = HandoffMutex::new(0);
        std::thread::scope(|scope| {
            let mut guard = mutex.lock();
            for others in 1..=2 {
                scope.spawn(|| *mutex.lock() += 1);
                while mutex.waiting.load(Relaxed) == 0 {
                    std::thread::yield_now();
                }
                // Once is enough unless the machine is too busy to run the other thread.
                for _ in 0..10_000 {
                    guard = mutex.hand_over(guard);
                    if *guard == others {
                        break;
                    }
                }
                assert_eq!(*guard, others);
            }
        });
    }
}
