//! In place of `fork` where the system does not announce forks, or a checker runs, whose programs do not
//! fork. Models also end here the pools that they leave.

use crate::pool::inner::Inner;
use core::ptr::NonNull;

// Most models end with chunks in hand. Each of their millions of executions would leave its pool behind.
#[cfg(all(test, loom))]
std::thread_local! {
    static OPEN: core::cell::RefCell<alloc::vec::Vec<NonNull<Inner>>> = const {
        core::cell::RefCell::new(alloc::vec::Vec::new())
    };
}

pub(crate) fn watch(_pool: NonNull<Inner>) {
    #[cfg(all(test, loom))]
    OPEN.with_borrow_mut(|open| open.push(_pool));
}

pub(crate) fn forget(_pool: NonNull<Inner>) {
    #[cfg(all(test, loom))]
    OPEN.with_borrow_mut(|open| open.retain(|&other| other != _pool));
}

/// Ends the pools that an execution of a model leaves.
///
/// # Safety
/// No handle to any pool is left, and no thread.
#[cfg(all(test, loom))]
pub(crate) unsafe fn end_pools() {
    for pool in OPEN.take() {
        // SAFETY: nobody has handles, and chunks are numbers in models.
        unsafe { Inner::unmap(pool) };
    }
}
