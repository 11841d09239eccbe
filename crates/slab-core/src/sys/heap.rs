//! Takes the whole range from the global allocator, zeroed, where there is no `mmap`.

use super::ENOMEM;
use super::room::TABLE_ALIGN;
use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ops::Range;
use core::ptr::NonNull;

/// As on a system with pages, so that what relies on page alignment holds here too.
const ALIGN: usize = 4096;
/// There are no huge pages.
pub(crate) const HUGE_PAGE: usize = ALIGN;

/// A zeroed heap block, freed on drop.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a region is an address range, usable from any thread; what is shared inside it is
// synchronised by the code that hands out its parts.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Takes all of it at once: a heap block has no uncommitted state.
    pub(crate) fn reserved(bytes: usize) -> Result<Self, i32> {
        Self::zeroed(bytes, ALIGN)
    }

    /// Zeroed memory for a table.
    pub(crate) fn committed(bytes: usize) -> Result<Self, i32> {
        Self::zeroed(bytes, TABLE_ALIGN)
    }

    fn zeroed(bytes: usize, align: usize) -> Result<Self, i32> {
        super::fault_injection::check()?;
        let layout = Layout::from_size_align(bytes, align).map_err(|_| ENOMEM)?;
        assert_ne!(bytes, 0, "a region is never empty");
        // SAFETY: the layout is not empty, as just asserted.
        let base = unsafe { alloc_zeroed(layout) };
        NonNull::new(base)
            .map(|base| Self { base, layout })
            .ok_or(ENOMEM)
    }

    /// The first byte of the range.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Nothing to do: the block is committed from the start.
    pub(crate) fn commit(&self, offset: usize, bytes: usize) -> Result<(), i32> {
        super::fault_injection::check()?;
        self.part(offset, bytes);
        Ok(())
    }

    /// Zeroes the parts, as if they had been given back.
    ///
    /// # Safety
    /// The parts are committed, and nobody uses them until this returns.
    pub(crate) unsafe fn release(&self, parts: &[Range<usize>]) -> bool {
        for part in parts {
            let at = self.part(part.start, part.len());
            // SAFETY: the part lies in the block, and by this function's contract nobody uses it.
            unsafe { core::ptr::write_bytes(at, 0, part.len()) };
        }
        true
    }

    /// Backs the part with memory: an allocator's zeros may be pages that the system has yet to back. There is
    /// nothing to lock with.
    pub(crate) fn populate(&self, offset: usize, bytes: usize, _lock: bool) -> Result<(), i32> {
        for offset in (offset..offset + bytes).step_by(ALIGN) {
            let at = self.part(offset, 1);
            // SAFETY: a byte of the block, which nobody else knows yet. Volatile, so that the write of the
            // zero that is there already takes place.
            unsafe { at.write_volatile(0) };
        }
        Ok(())
    }

    /// Nothing to ask for.
    pub(crate) fn advise_huge_pages(&self) {}

    /// The allocator does not say.
    pub(crate) fn resident(&self, _bytes: usize) -> Option<usize> {
        None
    }

    fn part(&self, offset: usize, bytes: usize) -> *mut u8 {
        let size = self.layout.size();
        assert!(offset <= size && bytes <= size - offset);
        // SAFETY: just checked to lie within the block.
        unsafe { self.base.add(offset) }.as_ptr()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

pub(crate) fn page_size() -> usize {
    ALIGN
}

pub(crate) fn has_membarrier() -> bool {
    false
}

pub(crate) fn membarrier() {}
