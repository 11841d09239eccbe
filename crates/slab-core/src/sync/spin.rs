//! A mutex that spins, for builds without `std`.
//!
//! A thread holds one of the pool's locks for a bounded number of steps, and calls no foreign code
//! meanwhile but a [`Growth::Custom`](crate::Growth::Custom) and the global allocator. A holder that is interrupted
//! keeps the others spinning: do not use a pool from an interrupt handler that can interrupt another user of the same
//! pool.

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::panic::RefUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Mutex<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Mutex<T> {}
/// As `std`'s mutex is, and with it every handle to a pool: what is guarded stays valid (see `sync`).
impl<T> RefUnwindSafe for Mutex<T> {}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        // Acquire: pairs with the release in the former holder's drop.
        while self.locked.swap(true, Ordering::Acquire) {
            // Reading does not take the cache line from the holder.
            while self.locked.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        }
        MutexGuard { mutex: self }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        // Acquire: as in `lock`.
        let taken = self.locked.swap(true, Ordering::Acquire);
        (!taken).then(|| MutexGuard { mutex: self })
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
}

// SAFETY: a shared guard gives `&T` only. (It may move to another thread too: nothing of the
// lock belongs to a thread.)
unsafe impl<T: Sync> Sync for MutexGuard<'_, T> {}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.locked.store(false, Ordering::Release);
    }
}

/// In builds with `std` too, so that Miri has it before it.
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// What one holder wrote is seen by the next, and nobody has it at the same time.
    #[test]
    fn holders_come_one_after_the_other() {
        const ROUNDS: usize = if cfg!(miri) { 50 } else { 50_000 };
        let mutex = Mutex::new(0);
        let count = |tries: bool| {
            for _ in 0..ROUNDS {
                let tried = tries.then(|| mutex.try_lock()).flatten();
                *tried.unwrap_or_else(|| mutex.lock()) += 1;
            }
        };
        std::thread::scope(|scope| {
            let others = [true, false].map(|tries| scope.spawn(move || count(tries)));
            others.into_iter().for_each(|one| one.join().unwrap());
        });
        assert_eq!(*mutex.lock(), 2 * ROUNDS);
        let _held = mutex.lock();
        assert!(mutex.try_lock().is_none());
    }
}
