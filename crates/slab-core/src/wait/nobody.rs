//! In place of the rest of this module where there is no allocator, from which the queue of those who wait comes: nobody
//! waits, and so no pool is ever under pressure.

use crate::pool::inner::Inner;
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

/// There are none.
pub(crate) enum DeferredWakers {}

impl DeferredWakers {
    pub(crate) fn wake(self) {
        match self {}
    }
}

impl Inner {
    /// Called under pressure only.
    ///
    /// # Safety
    /// As with those who wait.
    pub(crate) unsafe fn store_and_serve(
        _this: NonNull<Self>,
        _class: u8,
        _units: &[u32],
        _frees: u64,
    ) -> Option<DeferredWakers> {
        unreachable!("nobody waits")
    }
}
