//! Prefetches payloads into the cache of their consumer.

/// Starts to fetch the cache line of an address.
///
/// A consumer on another CPU than the receiver's has a cache miss at each payload. Several of these
/// misses at once cost little more than one.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint, which reads nothing and faults at no address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
