//! The only operating-system code: an address range that is reserved first and backed by memory
//! piece by piece, and the process-wide memory barrier.
//!
//! `unix` maps anonymous memory. `heap` takes the whole range from the global allocator at once,
//! zeroed; it serves Miri, models, builds without `std` and systems without `mmap`.

pub(crate) mod asan;
pub(crate) mod fault_injection;

#[cfg(all(unix, feature = "std", not(any(miri, loom, shuttle))))]
mod unix;
#[cfg(all(unix, feature = "std", not(any(miri, loom, shuttle))))]
pub(crate) use unix::*;

#[cfg(not(all(unix, feature = "std", not(any(miri, loom, shuttle)))))]
mod heap;
#[cfg(not(all(unix, feature = "std", not(any(miri, loom, shuttle)))))]
pub(crate) use heap::*;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::Region;

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
        // SAFETY: committed above, and `bytes` is not used again before it is made anew.
        assert!(unsafe { region.release(PART, PART) });
        // SAFETY: still mapped; `bytes` is not used any more.
        let bytes = unsafe { core::slice::from_raw_parts(at, PART) };
        assert!(bytes == ZEROS);
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
