//! Wake-ups that wait until the caller's locks are free.
//!
//! A free serves whoever waits for memory (see `wait`) and wakes it, and a waker is foreign code, which may take any
//! lock, or panic. Code that frees chunks while it holds a lock of its own has the thread's wake-ups
//! [held](hold_wakes) meanwhile. Only frees that have somebody to wake look whether they are.

use crate::wait::DeferredWakers;
use alloc::vec::{self, Vec};
use core::cell::{Cell, RefCell};
use core::marker::PhantomData;
use core::task::Waker;

/// Beside the number of [`HeldWakes`] that the thread has: there is a waker in [`WAKERS`].
const ANY: u32 = 1 << 31;

std::thread_local! {
    /// Without a destructor, so that reading it is one access.
    static STATE: Cell<u32> = const { Cell::new(0) };
    static WAKERS: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// While it lives, frees by this thread wake nobody; its drop wakes them, if it is the thread's last.
#[doc(hidden)]
#[derive(Debug)]
#[must_use]
pub struct HeldWakes {
    /// It stays with its thread.
    _thread: PhantomData<*const ()>,
}

/// To be called before the first lock is taken; what it returns is dropped after the last one is free.
///
/// For the crates of this workspace; not a part of the interface.
#[doc(hidden)]
#[inline(always)]
pub fn hold_wakes() -> HeldWakes {
    STATE.set(STATE.get() + 1);
    HeldWakes {
        _thread: PhantomData,
    }
}

impl Drop for HeldWakes {
    #[inline(always)]
    fn drop(&mut self) {
        let state = STATE.get() - 1;
        STATE.set(state);
        if state == ANY {
            wake_held();
        }
    }
}

#[cold]
fn wake_held() {
    STATE.set(0);
    if let Ok(wakers) = WAKERS.try_with(RefCell::take) {
        DeferredWakers::new(wakers).wake();
    }
}

/// Takes the wakers over if the thread's wake-ups are held.
pub(crate) fn put_off(wakers: &mut vec::IntoIter<Waker>) {
    if wakers.as_slice().is_empty() || STATE.get() == 0 {
        return;
    }
    // A thread that is ending may have no place for them any more: then they are woken at once.
    if WAKERS
        .try_with(|held| held.borrow_mut().extend(wakers))
        .is_ok()
    {
        STATE.set(STATE.get() | ANY);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::SlabPool;
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use core::future::Future;
    use core::sync::atomic::{AtomicU32, Ordering};
    use core::task::Context;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[derive(Default)]
    struct Task(AtomicU32);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            if self.0.fetch_add(1, Ordering::Relaxed) == u32::MAX {
                panic!("by a waker");
            }
        }
    }

    #[test]
    fn tasks_are_woken_when_the_last_hold_ends_each_once() {
        let pool = SlabPool::builder().max_memory(256 << 10).build().unwrap();
        let mut all: Vec<_> = core::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
        // The first one panics.
        let tasks = [u32::MAX, 0, 0].map(|from| Arc::new(Task(AtomicU32::new(from))));
        let mut waits = [(); 3].map(|()| alloc::boxed::Box::pin(pool.alloc(65536)));
        for (task, wait) in tasks.iter().zip(&mut waits) {
            let waker = Waker::from(Arc::clone(task));
            let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        let woken = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        let outer = hold_wakes();
        drop(all.pop());
        {
            let _inner = hold_wakes();
            drop(all.pop());
        }
        assert_eq!(woken(), [u32::MAX, 0, 0]);
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(outer)));
        assert!(panicked.is_err());
        assert_eq!(woken(), [0, 1, 0]);
        // As ever.
        drop(all.pop());
        assert_eq!(woken(), [0, 1, 1]);
        drop(hold_wakes());
        assert_eq!(woken(), [0, 1, 1]);
    }
}
