//! Zeroing of memory that nobody will read, because it is about to go back to the heap.

use core::mem::MaybeUninit;
use core::sync::atomic::{Ordering, compiler_fence};

/// Overwrites `bytes` with zeros; the compiler may not omit the writes although the memory is freed next.
/// A pool's own memory needs no such care: the compiler does not see it being freed. The crate `zeroize` does the
/// same, but byte by byte: eight stores for each of these.
///
/// For the crates of this workspace; not a part of the interface.
#[doc(hidden)]
pub fn wipe(bytes: &mut [MaybeUninit<u8>]) {
    // SAFETY: any bytes are a `MaybeUninit<u64>`, initialised or not.
    let (front, words, back) = unsafe { bytes.align_to_mut::<MaybeUninit<u64>>() };
    for byte in front.iter_mut().chain(back) {
        // SAFETY: a reference is valid for a write.
        unsafe { core::ptr::write_volatile(byte, MaybeUninit::new(0)) };
    }
    for word in words {
        // SAFETY: as above.
        unsafe { core::ptr::write_volatile(word, MaybeUninit::new(0)) };
    }
    // The writes stay before the call that frees the memory.
    compiler_fence(Ordering::SeqCst);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn wipe_zeroes_exactly_the_given_range() {
        for from in 0..10 {
            // Miri takes a step per byte.
            for to in (from..30).step_by(if cfg!(miri) { 7 } else { 1 }) {
                let mut bytes = [MaybeUninit::new(7_u8); 32];
                wipe(&mut bytes[from..to]);
                for (at, byte) in bytes.iter().enumerate() {
                    // SAFETY: written above.
                    let byte = unsafe { byte.assume_init() };
                    assert_eq!(byte == 0, (from..to).contains(&at), "{from}..{to} at {at}");
                }
            }
        }
    }
}
