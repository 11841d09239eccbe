//! In place of `local` where there is no `std`, and so no thread-locals: no thread has magazines,
//! and everything goes through the depot.

use crate::class::place::Place;
use crate::pool::inner::Inner;
use crate::sync::Shared;
use crate::thread_cache::ThreadCache;
use crate::thread_cache::magazine::Magazine;

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

pub(crate) fn cache_in(_: u64) -> Option<Shared<ThreadCache>> {
    None
}

pub(crate) fn attach(_: &Inner) -> Option<Shared<ThreadCache>> {
    None
}

pub(crate) fn have_rack() {}
