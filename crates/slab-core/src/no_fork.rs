//! Instead of `fork`, where the system tells nobody that a process forks, or no program under test does.

use crate::inner::Inner;
use core::ptr::NonNull;

pub(crate) fn watch(_pool: NonNull<Inner>) {}

pub(crate) fn forget(_pool: NonNull<Inner>) {}
