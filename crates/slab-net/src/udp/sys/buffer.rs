//! [`Buffer`]: memory that the kernel writes to.

use core::mem::MaybeUninit;

/// Memory for what one buffer receives.
///
/// Chunks of a pool, and the rest of a `BytesMut`, were other people's before, who may have left
/// bytes in them that count as never written. A kernel does not mind: Linux gets the address. The
/// other systems' way takes `&mut [u8]`, so that there each byte has to be written once before.
#[derive(Debug)]
pub(in crate::udp) struct Buffer<'a>(&'a mut [MaybeUninit<u8>]);

impl<'a> Buffer<'a> {
    /// Makes memory ready to be a buffer, for as long as nobody else writes to it.
    #[inline]
    pub(in crate::udp) fn prepare(bytes: &mut [MaybeUninit<u8>]) {
        if !cfg!(target_os = "linux") {
            bytes.fill(MaybeUninit::new(0));
        }
    }

    /// # Safety
    /// The bytes were [prepared](Self::prepare).
    #[inline]
    pub(in crate::udp) unsafe fn prepared(bytes: &'a mut [MaybeUninit<u8>]) -> Self {
        Self(bytes)
    }

    /// Of bytes that need no preparation.
    #[cfg(any(test, feature = "quinn", not(target_os = "linux")))]
    pub(in crate::udp) fn new(bytes: &'a mut [u8]) -> Self {
        let (at, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the same memory, exclusively borrowed as long. What is written to a buffer are
        // initialised bytes only.
        Self(unsafe { core::slice::from_raw_parts_mut(at, len) })
    }

    #[cfg(any(test, target_os = "linux"))]
    pub(in crate::udp) fn len(&self) -> usize {
        self.0.len()
    }

    /// Where the kernel is to write.
    #[cfg(target_os = "linux")]
    #[inline]
    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }

    /// The bytes, for a system that is not told a mere address.
    #[cfg(any(test, not(target_os = "linux")))]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let (at, len) = (self.0.as_mut_ptr().cast(), self.0.len());
        // SAFETY: exclusively borrowed, and all initialised: by `prepare`, or from the beginning.
        unsafe { core::slice::from_raw_parts_mut(at, len) }
    }
}
