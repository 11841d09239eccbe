//! [`Buffer`]: memory that the kernel writes to.

use core::mem::MaybeUninit;

/// Memory for one buffer's worth of received data.
///
/// Chunks of a pool, and the rest of a `BytesMut`, had other owners before, who may have left bytes in
/// them that count as uninitialised. The kernel does not mind: on Linux it gets the address. On other
/// systems the interface takes `&mut [u8]`, so there each byte has to be written once before.
#[derive(Debug)]
pub(in crate::udp) struct Buffer<'a>(&'a mut [MaybeUninit<u8>]);

impl<'a> Buffer<'a> {
    /// Prepares memory to be a buffer, for as long as nobody else writes to it.
    #[inline]
    pub(in crate::udp) fn prepare(bytes: &mut [MaybeUninit<u8>]) {
        if !cfg!(target_os = "linux") {
            bytes.fill(MaybeUninit::new(0));
        }
    }

    /// # Safety
    /// The bytes have been [prepared](Self::prepare).
    #[inline]
    pub(in crate::udp) unsafe fn prepared(bytes: &'a mut [MaybeUninit<u8>]) -> Self {
        Self(bytes)
    }

    /// Makes a buffer of initialised bytes, which need no preparation.
    #[cfg(any(test, feature = "quinn", not(target_os = "linux")))]
    pub(in crate::udp) fn new(bytes: &'a mut [u8]) -> Self {
        let (at, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the same memory, exclusively borrowed for as long. Only initialised bytes are written
        // to a buffer.
        Self(unsafe { core::slice::from_raw_parts_mut(at, len) })
    }

    #[cfg(any(test, target_os = "linux"))]
    pub(in crate::udp) fn len(&self) -> usize {
        self.0.len()
    }

    /// The address for the kernel to write to.
    #[cfg(target_os = "linux")]
    #[inline]
    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }

    /// The bytes, for a system whose interface does not take an address.
    #[cfg(any(test, not(target_os = "linux")))]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let (at, len) = (self.0.as_mut_ptr().cast(), self.0.len());
        // SAFETY: exclusively borrowed, and all initialised, by `prepare` or from the start.
        unsafe { core::slice::from_raw_parts_mut(at, len) }
    }
}
