//! [`IntoBufs`]: the datagrams of a batch, to be changed and to be kept apart.

use super::PacketBatch;
use crate::packet::{Packet, PacketBuf};

impl PacketBatch {
    /// Turns the payloads into buffers, each of which may be changed in place, on a task of its own: a header rewritten, a
    /// payload decrypted. Nothing is copied; they share the batch's chunk as [packets](Self::into_packets) do. The first
    /// has what is free in front of them, the last what is behind.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::PacketBatch;
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let batch = PacketBatch::try_copy_from_slice(&pool, b"onetwosix!", 3, "192.0.2.1:53".parse()?)?;
    /// let mut bufs: Vec<_> = batch.try_into_bufs().expect("nobody else has it").collect();
    /// bufs[1].make_ascii_uppercase();
    /// assert_eq!(bufs, ["one", "TWO", "six", "!"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Gives the batch back if there is any other reference to its chunk: datagrams taken out of the same read before, by
    /// [`UdpReceiver::recv`](crate::udp::UdpReceiver::recv).
    pub fn try_into_bufs(self) -> Result<IntoBufs, Self> {
        if !self.chunk.is_unique() {
            return Err(self);
        }
        let (left, stride) = (self.datagrams(), self.stride as usize);
        let (at, len) = (self.payload(), self.len as usize);
        // SAFETY: these bytes are payload, which has been written, and the chunk has no other reference.
        let whole = unsafe { Packet::from_shared(self.chunk, at, len) };
        let rest = whole.try_into_mut().expect("the only handle to a chunk");
        Ok(IntoBufs { rest, stride, left })
    }
}

/// An iterator over the buffers of a batch, from [`PacketBatch::try_into_bufs`].
#[derive(Debug)]
pub struct IntoBufs {
    rest: PacketBuf,
    stride: usize,
    left: usize,
}

impl Iterator for IntoBufs {
    type Item = PacketBuf;

    #[inline]
    fn next(&mut self) -> Option<PacketBuf> {
        self.left = self.left.checked_sub(1)?;
        Some(match self.left {
            0 => core::mem::take(&mut self.rest),
            _ => self.rest.split_to(self.stride),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for IntoBufs {}
impl core::iter::FusedIterator for IntoBufs {}
