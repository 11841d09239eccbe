//! In place of `local` where there is no `std`, and so no thread-locals: no thread has magazines,
//! and everything goes through the depot.

use crate::inner::{Handle, Inner};
use crate::magazine::Magazine;
use crate::place::Place;
use crate::thread_cache::ThreadCache;
use alloc::sync::{Arc, Weak};

#[inline(always)]
pub(crate) fn with_magazine<R>(
    _: Option<Place>,
    _: impl FnOnce(&Magazine) -> Option<R>,
) -> Option<R> {
    None
}

pub(crate) fn with_owned_magazine<R>(
    _: u64,
    _: Place,
    _: impl FnOnce(&Magazine) -> Option<R>,
) -> Option<R> {
    None
}

pub(crate) fn attach(
    _: &Inner,
    _: &Weak<Handle>,
    _: impl FnOnce() -> Option<Arc<ThreadCache>>,
) -> Option<Arc<ThreadCache>> {
    None
}
