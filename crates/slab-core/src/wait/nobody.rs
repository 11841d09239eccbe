//! In place of the rest of this module where there is no allocator, from which the queue of those who wait comes: nobody
//! waits, and so no pool is ever under pressure.

use crate::pool::inner::Inner;
use crate::sync::Ordering;
use core::ptr::NonNull;

#[derive(Debug)]
pub(crate) struct Waiters(());

impl Waiters {
    pub(crate) fn new() -> Self {
        Self(())
    }

    pub(crate) fn waiting(&self, _class: u8) -> usize {
        0
    }
}

pub(crate) struct DeferredWakers(());

impl DeferredWakers {
    pub(crate) fn wake(self) {}
}

impl Inner {
    /// As with those who wait.
    ///
    /// # Safety
    /// As with those who wait.
    pub(crate) unsafe fn store_and_serve(
        this: NonNull<Self>,
        class: u8,
        units: &[u32],
        frees: u64,
    ) -> Option<DeferredWakers> {
        // SAFETY: the caller's promise.
        let pool = unsafe { this.as_ref() };
        let mut layer = pool.slabs.lock();
        // `close` sets it under this mutex.
        if pool.closed.load(Ordering::Relaxed) {
            return None;
        }
        pool.count_frees(class, frees);
        layer.slabs.store(&pool.arena, class, units);
        Some(DeferredWakers(()))
    }
}
