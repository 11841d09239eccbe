//! Without an allocator there is no memory but what the caller lends.

use super::ENOMEM;
use core::ops::Range;
use core::ptr::NonNull;

/// As in `heap`.
const ALIGN: usize = 4096;
/// There are no huge pages.
pub(crate) const HUGE_PAGE: usize = ALIGN;

/// There is none.
#[derive(Debug)]
pub(crate) enum Region {}

impl Region {
    pub(crate) fn reserved(_bytes: usize) -> Result<Self, i32> {
        Err(ENOMEM)
    }

    pub(crate) fn committed(_bytes: usize) -> Result<Self, i32> {
        Err(ENOMEM)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        match *self {}
    }

    pub(crate) fn commit(&self, _offset: usize, _bytes: usize) -> Result<(), i32> {
        match *self {}
    }

    pub(crate) unsafe fn release(&self, _parts: &[Range<usize>]) -> bool {
        match *self {}
    }

    pub(crate) fn populate(&self, _offset: usize, _bytes: usize, _lock: bool) -> Result<(), i32> {
        match *self {}
    }

    pub(crate) fn advise_huge_pages(&self) {
        match *self {}
    }

    pub(crate) fn resident(&self, _bytes: usize) -> Option<usize> {
        match *self {}
    }
}

pub(crate) fn page_size() -> usize {
    ALIGN
}

pub(crate) fn has_membarrier() -> bool {
    false
}

pub(crate) fn membarrier() {}
