//! The only operating-system code: an address range that is reserved first and backed by memory
//! piece by piece, and the process-wide memory barrier.
//!
//! `unix` maps anonymous memory. `heap` takes the whole range from the global allocator at once,
//! zeroed; it serves Miri, models, builds without `std` and systems without `mmap`. `nothing` has none: without an
//! allocator all memory is the caller's.
//!
//! `room` decides whether a pool's tables lie in such memory, or in a piece that the caller lent for them.

#[cfg(feature = "alloc")]
use core::alloc::Layout;
use core::ptr::NonNull;

/// What the system answers if it is out of memory, and the heap does not answer at all.
pub(crate) const ENOMEM: i32 = 12;

/// The most parts of a region that are given back by one call.
pub(crate) const RELEASE_MAX: usize = 64;

pub(crate) mod asan;
pub(crate) mod fault_injection;
pub(crate) mod room;

#[cfg(all(unix, feature = "std", not(any(miri, loom, shuttle))))]
mod unix;
#[cfg(all(unix, feature = "std", not(any(miri, loom, shuttle))))]
pub(crate) use unix::*;

#[cfg(all(
    feature = "alloc",
    not(all(unix, feature = "std", not(any(miri, loom, shuttle))))
))]
mod heap;
#[cfg(all(
    feature = "alloc",
    not(all(unix, feature = "std", not(any(miri, loom, shuttle))))
))]
pub(crate) use heap::*;

#[cfg(not(feature = "alloc"))]
mod nothing;
#[cfg(not(feature = "alloc"))]
pub(crate) use nothing::*;

/// Takes a place for one value from the heap.
///
/// # Errors
/// What the system would answer: out of memory. Without an operating system the heap may be small.
pub(crate) fn place_for<T>() -> Result<NonNull<T>, i32> {
    const { assert!(size_of::<T>() > 0) };
    #[cfg(feature = "alloc")]
    // SAFETY: the layout is not empty, as just asserted.
    let at = unsafe { alloc::alloc::alloc(Layout::new::<T>()) };
    #[cfg(not(feature = "alloc"))]
    let at = core::ptr::null_mut::<u8>();
    NonNull::new(at.cast::<T>()).ok_or(ENOMEM)
}

/// Gives a place back.
///
/// # Safety
/// It came from [`place_for`] of this type, and nobody uses it any more.
pub(crate) unsafe fn give_back<T>(at: NonNull<T>) {
    #[cfg(feature = "alloc")]
    // SAFETY: the caller's promise.
    unsafe {
        alloc::alloc::dealloc(at.as_ptr().cast::<u8>(), Layout::new::<T>());
    };
    // Formats nothing: firmware would carry the code for it.
    #[cfg(not(feature = "alloc"))]
    unreachable!("it came from no heap");
}

#[cfg(all(test, feature = "alloc", not(any(loom, shuttle))))]
mod tests {
    use super::{RELEASE_MAX, Region};
    use alloc::vec::Vec;

    #[test]
    fn committed_memory_is_zero_and_released_memory_is_zero_again() {
        const PART: usize = 64 << 10;
        const ZEROS: &[u8] = &[0; PART];
        let region = Region::reserved(4 * PART).unwrap();
        region.commit(PART, PART).unwrap();
        let at = region.base().as_ptr().wrapping_add(PART);
        // SAFETY: the part at `at` was committed above and nobody else knows the region.
        let bytes = unsafe { core::slice::from_raw_parts_mut(at, PART) };
        // Compared at once, because Miri takes a step per byte otherwise.
        assert!(bytes == ZEROS);
        bytes.fill(0xAA);
        let part = PART..2 * PART;
        // SAFETY: committed above, and `bytes` is not used again before it is made anew.
        assert!(unsafe { region.release(&[part]) });
        // SAFETY: still mapped; `bytes` is not used any more.
        let bytes = unsafe { core::slice::from_raw_parts(at, PART) };
        assert!(bytes == ZEROS);
    }

    const PAGE: usize = 4096;

    fn page(region: &Region, nth: usize) -> &[u8] {
        let at = region.base().as_ptr().wrapping_add(nth * PAGE);
        // SAFETY: the tests commit and write the pages that they look at, and nobody writes while the borrow lives.
        unsafe { core::slice::from_raw_parts(at, PAGE) }
    }

    fn fill_all(region: &Region, pages: usize) {
        // SAFETY: so many pages are committed, and nobody else has them.
        unsafe { region.base().as_ptr().write_bytes(0xAA, pages * PAGE) };
    }

    #[test]
    fn what_lies_between_released_parts_stays() {
        // The pages of the largest page that a system may have.
        const STEP: usize = if cfg!(miri) { 1 } else { 16 };
        for parts in [1, 2, RELEASE_MAX] {
            let pages = 2 * parts * STEP;
            let region = Region::committed(pages * PAGE).unwrap();
            fill_all(&region, pages);
            let starts = (0..parts).map(|nth| (2 * nth + 1) * STEP * PAGE);
            let list: Vec<_> = starts.map(|start| start..start + STEP * PAGE).collect();
            // SAFETY: committed, and nobody uses it.
            assert!(unsafe { region.release(&list) });
            for nth in (0..pages).step_by(STEP) {
                let expected = if nth / STEP % 2 == 1 { 0 } else { 0xAA };
                assert!(
                    page(&region, nth) == [expected; PAGE],
                    "page {nth} of {pages}"
                );
            }
        }
    }

    /// Linux gives back what lies before it, and says how much; an older one refuses at once.
    #[test]
    // The sanitizers lock nothing.
    #[cfg(all(
        target_os = "linux",
        feature = "std",
        not(any(miri, slab_asan, slab_tsan))
    ))]
    fn a_part_that_the_system_keeps_is_told() {
        use std::io::Write;
        let region = Region::committed(64 * PAGE).unwrap();
        fill_all(&region, 64);
        let locked = region.base().as_ptr().wrapping_add(32 * PAGE).cast();
        // SAFETY: a part of our own mapping.
        if unsafe { libc::mlock(locked, 16 * PAGE) } != 0 {
            let _ = writeln!(std::io::stderr(), "skipped: no memory may be locked");
            return;
        }
        let parts = [0, 32, 48].map(|first| first * PAGE..(first + 16) * PAGE);
        // SAFETY: committed, and nobody uses it.
        assert!(!unsafe { region.release(&parts) });
        for nth in [0, 32, 48] {
            let first = page(&region, nth)[0];
            assert!(page(&region, nth) == [first; PAGE] && [0, 0xAA].contains(&first));
        }
        assert!(page(&region, 16) == [0xAA; PAGE]);
        // SAFETY: locked above.
        assert_eq!(unsafe { libc::munlock(locked, 16 * PAGE) }, 0);
        // SAFETY: as above.
        assert!(unsafe { region.release(&parts) });
        assert!(page(&region, 32) == [0; PAGE]);
    }

    /// Or a page of it would cost two megabytes where the system gives huge pages unasked, as a choice of its administrator.
    #[test]
    #[cfg(all(target_os = "linux", feature = "std", not(miri)))]
    fn committed_memory_is_not_for_huge_pages() {
        use std::io::Write;
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            let _ = writeln!(std::io::stderr(), "skipped: no huge pages in this kernel");
            return;
        }
        let region = Region::committed(4 << 20).unwrap();
        let at = region.base().addr().get();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut flags_of_its = smaps.lines().skip_while(|line| {
            let range = line.split(' ').next().unwrap().split_once('-');
            let bound = |hex| usize::from_str_radix(hex, 16).unwrap_or(0);
            range.is_none_or(|(from, to)| !(bound(from)..bound(to)).contains(&at))
        });
        let flags = flags_of_its.find(|line| line.starts_with("VmFlags:"));
        assert!(flags.unwrap().contains(" nh"), "{flags:?}");
    }

    #[test]
    fn an_impossible_reservation_is_an_error() {
        assert!(Region::reserved(isize::MAX as usize).is_err());
    }
}
