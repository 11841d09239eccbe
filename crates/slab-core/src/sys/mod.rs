//! The only operating-system code: an address range that is reserved first and backed by memory
//! piece by piece, and the process-wide memory barrier.
//!
//! `unix` maps anonymous memory. `heap` takes the whole range from the global allocator at once,
//! zeroed; it serves Miri, loom and systems without `mmap`.

#[cfg(all(unix, not(miri), not(loom)))]
mod unix;
#[cfg(all(unix, not(miri), not(loom)))]
pub(crate) use unix::*;

#[cfg(not(all(unix, not(miri), not(loom))))]
mod heap;
#[cfg(not(all(unix, not(miri), not(loom))))]
pub(crate) use heap::*;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Region;

    #[test]
    fn committed_memory_is_zero_and_released_memory_is_zero_again() {
        let region = Region::reserved(256 << 10).unwrap();
        region.commit(64 << 10, 64 << 10).unwrap();
        let at = region.base().as_ptr().wrapping_add(64 << 10);
        // SAFETY: the 64 KiB at `at` were committed above and nobody else knows the region.
        let bytes = unsafe { core::slice::from_raw_parts_mut(at, 64 << 10) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        bytes.fill(0xAA);
        // SAFETY: committed above, and `bytes` is not used again before it is made anew.
        unsafe { region.release(64 << 10, 64 << 10) };
        // SAFETY: still mapped; `bytes` is not used any more.
        let bytes = unsafe { core::slice::from_raw_parts(at, 64 << 10) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn an_impossible_reservation_is_an_error() {
        assert!(Region::reserved(isize::MAX as usize).is_err());
    }
}
