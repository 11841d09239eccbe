//! [`PacketBatch`]: the unit that travels from the socket to its consumer.

mod bufs;

pub use bufs::IntoBufs;

use super::builder::MAX_DATAGRAM;
use super::datagram::{Datagram, Metadata};
use super::error::BatchError;
use super::prefetch::prefetch;
use super::tally::Amount;
use super::transmit::Transmit;
use crate::packet::{Packet, PacketPool};
use bytes::Bytes;
use core::fmt;
use core::ptr::NonNull;
use slab_core::{Clones, SharedChunk};
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

/// The most datagrams that the kernel puts into one buffer.
pub(super) const MAX_DATAGRAMS: usize = 128;

/// The contents of one kernel buffer: one datagram, or with GRO up to 128 datagrams of the same sender,
/// contiguous in one chunk and all of the same length except the last.
///
/// A batch always has a datagram, though that may be an empty one. Moving a batch moves a handle; its
/// chunk returns to the pool when the batch and all packets made from it are dropped.
///
/// ```
/// # use slab_net::PacketPool;
/// # use slab_net::udp::PacketBatch;
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// # let batch = PacketBatch::try_copy_from_slice(&pool, b"onetwo", 3, "192.0.2.1:53".parse()?)?;
/// # assert_eq!(batch.chunk_bytes(), 64);
/// let (to_worker, worker) = std::sync::mpsc::channel();
/// println!("{} datagrams keep {} bytes in use", batch.datagrams(), batch.chunk_bytes());
/// if !batch.is_truncated() {
///     for datagram in batch.into_datagrams() {
///         to_worker.send(datagram)?; // its own payload and metadata, for any thread
///     }
/// }
/// let first = worker.recv()?;
/// assert_eq!((first.packet, first.source.port()), ("one".into(), 53));
/// # assert_eq!(worker.recv()?.packet, "two");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PacketBatch {
    chunk: SharedChunk,
    /// Where the payload begins in the chunk, and its length in bytes.
    start: u32,
    len: u32,
    /// The length of each datagram except the last, which may be shorter. Zero only if `len` is.
    stride: u32,
    meta: Metadata,
}

impl PacketBatch {
    /// # Safety
    /// The `len` bytes of the chunk from `start` on are the batch's payload, they have been written,
    /// and nobody else writes to them while there is a reference to the chunk.
    pub(super) unsafe fn new(
        chunk: SharedChunk,
        start: usize,
        len: usize,
        stride: usize,
        meta: Metadata,
    ) -> Self {
        debug_assert!(start + len <= chunk.capacity());
        // No buffer is longer than `buffer_bytes`, some 64 KiB. An impossible stride would be a kernel
        // bug; the payload is then taken as one datagram.
        let stride = if stride == 0 || stride > len {
            len
        } else {
            stride
        };
        Self {
            chunk,
            start: start as u32,
            len: len as u32,
            stride: stride as u32,
            meta,
        }
    }

    /// Makes a batch without a socket, in a chunk of `pool`: to test code that consumes batches, or for
    /// datagrams that arrived by other means. Copies the payload.
    ///
    /// It is divided into datagrams as by [`Transmit::segment_size`]: of `segment_size` bytes each, except
    /// the last, which may be shorter; into one if `segment_size` is zero, or not less than the length.
    /// Of the metadata there is only the source. [`into_datagrams`](Self::into_datagrams) makes
    /// [`Datagram`]s of it, whose other fields can be set.
    ///
    /// ```
    /// use slab_net::PacketPool;
    /// use slab_net::udp::PacketBatch;
    ///
    /// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let batch = PacketBatch::try_copy_from_slice(&pool, b"onetwosix!", 3, "192.0.2.1:53".parse()?)?;
    /// assert_eq!(batch.source().port(), 53);
    /// let packets: Vec<_> = batch.into_packets().collect();
    /// assert_eq!(packets, ["one", "two", "six", "!"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There are more than 65 527 bytes or 128 datagrams, which no kernel buffer holds; or the pool has no
    /// memory, as for [`PacketPool::try_alloc`].
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_copy_from_slice(
        pool: &PacketPool,
        payload: &[u8],
        segment_size: usize,
        source: SocketAddr,
    ) -> Result<Self, BatchError> {
        let len = payload.len();
        if len > MAX_DATAGRAM {
            return Err(BatchError::TooLong { bytes: len });
        }
        let datagrams = segments(len, segment_size);
        if datagrams > MAX_DATAGRAMS {
            return Err(BatchError::TooManyDatagrams { datagrams });
        }
        let mut chunk = match pool.slab().try_alloc(len) {
            Ok(chunk) => chunk,
            Err(error) => return Err(BatchError::NoMemory(error)),
        };
        let copy = chunk.try_copy_from_slice(payload);
        copy.expect("a chunk has the length that was asked for");
        let meta = Metadata::new(source);
        // SAFETY: the payload was just written, and there is no other reference to the chunk.
        Ok(unsafe { Self::new(chunk.into_shared(), 0, len, segment_size, meta) })
    }

    /// The number of datagrams in the batch, at least 1.
    #[inline]
    #[must_use]
    pub fn datagrams(&self) -> usize {
        segments(self.len as usize, self.stride as usize)
    }

    /// The datagrams and bytes that the batch adds to a counter.
    #[inline]
    pub(crate) fn amount(&self) -> Amount {
        Amount::new(self.datagrams() as u64, self.len.into())
    }

    /// Returns all payloads, contiguous.
    #[inline]
    #[must_use]
    pub fn contents(&self) -> &[u8] {
        // SAFETY: the caller of `new` promised initialised bytes that nobody else writes to.
        unsafe { core::slice::from_raw_parts(self.payload().as_ptr(), self.len as usize) }
    }

    /// Starts to fetch the first cache line of the payload.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(self.payload().as_ptr());
    }

    #[inline]
    fn payload(&self) -> NonNull<u8> {
        // SAFETY: the payload lies within the chunk.
        unsafe { self.chunk.as_ptr().add(self.start as usize) }
    }

    /// Returns all payloads, to be changed in place; `None` if there is any other reference to the
    /// batch's chunk. [`try_into_bufs`](Self::try_into_bufs) gives them to several owners.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// # socket.sender().send(&Transmit::new(b"hello", socket.local_addr())).await?;
    /// let mut batch = socket.recv_batch().await?;
    /// batch.contents_mut().expect("it was just received").make_ascii_uppercase();
    /// assert_eq!(batch.contents(), b"HELLO");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn contents_mut(&mut self) -> Option<&mut [u8]> {
        if !self.chunk.is_unique() {
            return None;
        }
        let (at, len) = (self.payload().as_ptr(), self.len as usize);
        // SAFETY: the caller of `new` promised initialised bytes. The only reference to the chunk is
        // this batch's, which stays borrowed, so nobody else reads or writes them meanwhile.
        Some(unsafe { core::slice::from_raw_parts_mut(at, len) })
    }

    /// The length in bytes of each datagram except the last, which may be shorter.
    #[inline]
    #[must_use]
    pub fn segment_size(&self) -> usize {
        self.stride as usize
    }

    /// The bytes of pool memory that the batch, or any one packet of it, keeps in use.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.chunk.capacity()
    }

    /// The sender of the datagrams; an IPv4 peer may be in mapped form, see [`Datagram::source`].
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        self.meta.source
    }

    /// The local address that the datagrams were sent to, if the system reports it.
    #[must_use]
    pub fn destination_ip(&self) -> Option<IpAddr> {
        self.meta.destination
    }

    /// The ECN codepoint of the datagrams; `None` if the sender does not use ECN, or the system does not report it;
    /// see [`Datagram::ecn`].
    #[must_use]
    pub fn ecn(&self) -> Option<super::Ecn> {
        self.meta.ecn
    }

    /// The index of the interface that the datagrams arrived on, if the system reports it.
    #[must_use]
    pub fn interface(&self) -> Option<u32> {
        self.meta.interface
    }

    /// The time when the kernel received the datagrams, if the system reports it; see
    /// [`Datagram::timestamp`].
    #[must_use]
    pub fn timestamp(&self) -> Option<SystemTime> {
        self.meta.timestamp()
    }

    /// Returns `true` if the one datagram of the batch was longer than the receiver's buffers. See
    /// [`Datagram::truncated`].
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.meta.truncated
    }

    /// Returns an iterator over the datagrams, borrowed: touches no reference count.
    #[inline]
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            rest: self.contents(),
            stride: self.stride as usize,
            left: self.datagrams(),
            meta: &self.meta,
        }
    }

    /// Turns the payloads into owned packets that share the batch's chunk. Costs one addition to its
    /// reference count for all of them, and none for a batch of one.
    #[inline]
    #[must_use]
    pub fn into_packets(self) -> IntoPackets {
        let left = self.datagrams();
        IntoPackets {
            at: self.payload(),
            clones: self.chunk.clones(left - 1),
            rest: self.len as usize,
            stride: self.stride as usize,
            last: Some(self.chunk),
        }
    }

    /// Like [`into_packets`](Self::into_packets), but with the metadata.
    #[inline]
    #[must_use]
    pub fn into_datagrams(self) -> IntoDatagrams {
        IntoDatagrams {
            meta: self.meta,
            packets: self.into_packets(),
        }
    }

    /// Returns `true` if the batch holds only one datagram.
    #[inline]
    pub(super) fn is_single(&self) -> bool {
        self.len <= self.stride
    }

    /// Splits off the first datagram of a batch that holds more than one.
    pub(crate) fn split_first(&mut self) -> Datagram {
        debug_assert!(!self.is_single());
        // SAFETY: these bytes are payload, which has been written and is not written again while the
        // chunk has a reference other than the batch's.
        let packet = unsafe {
            Packet::from_shared(self.chunk.clone(), self.payload(), self.stride as usize)
        };
        self.start += self.stride;
        self.len -= self.stride;
        self.stride = self.stride.min(self.len);
        self.meta.datagram(packet)
    }

    /// Turns the payloads into [`Bytes`], for code that needs that type. They share one heap allocation
    /// for the whole batch.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// # socket.sender().send(&Transmit::new(b"hello", socket.local_addr())).await?;
    /// let payloads: Vec<bytes::Bytes> = socket.recv_batch().await?.into_bytes().collect();
    /// assert_eq!(payloads, ["hello"]);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn into_bytes(self) -> IntoBytes {
        IntoBytes {
            left: self.datagrams(),
            stride: self.stride as usize,
            rest: Bytes::from_owner(self),
        }
    }

    /// Returns a transmit of the whole batch back to its sender, from the address that it was sent to
    /// unless that is a multicast or broadcast address. With GSO it takes one system call and no copy
    /// on our side. [`Datagram::reply_with`] answers with other contents.
    ///
    /// The system may refuse to send it, through the peer's fault: nothing can be sent to port 0, which anyone
    /// can forge as a source. A server that ends when an answer fails can be ended by one datagram.
    #[must_use]
    pub fn reply(&self) -> Transmit<'_> {
        Transmit::new(self.contents(), self.source())
            .segment_size(self.segment_size())
            .source(self.reply_source())
    }

    /// Returns the local address to answer from: the one that the batch was sent to, unless that is a
    /// multicast or broadcast address.
    pub(crate) fn reply_source(&self) -> Option<SocketAddr> {
        self.meta.reply_source()
    }
}

impl AsRef<[u8]> for PacketBatch {
    fn as_ref(&self) -> &[u8] {
        self.contents()
    }
}

impl<'a> IntoIterator for &'a PacketBatch {
    type Item = Datagram<&'a [u8]>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Debug for PacketBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketBatch")
            .field("source", &self.source())
            .field("datagrams", &self.datagrams())
            .field("bytes", &self.len)
            .field("segment_size", &self.stride)
            .field("chunk_bytes", &self.chunk_bytes())
            .finish_non_exhaustive()
    }
}

/// Returns the number of datagrams in a kernel buffer of `len` bytes. An empty datagram counts as one.
pub(super) fn segments(len: usize, stride: usize) -> usize {
    if stride == 0 { 1 } else { len.div_ceil(stride) }.max(1)
}

/// An iterator over the borrowed datagrams of a batch, from [`PacketBatch::iter`].
#[derive(Clone)]
pub struct Iter<'a> {
    rest: &'a [u8],
    stride: usize,
    left: usize,
    meta: &'a Metadata,
}

impl fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = Datagram<&'a [u8]>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (packet, rest) = self.rest.split_at(self.stride.min(self.rest.len()));
        self.rest = rest;
        Some(self.meta.datagram(packet))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Iter<'_> {}
impl core::iter::FusedIterator for Iter<'_> {}

/// An iterator over the owned packets of a batch, from [`PacketBatch::into_packets`].
pub struct IntoPackets {
    at: NonNull<u8>,
    /// References for all packets except the last, which takes the batch's own.
    clones: Clones,
    last: Option<SharedChunk>,
    /// The number of bytes from `at` to the end of the payload.
    rest: usize,
    stride: usize,
}

// SAFETY: `at` points into the chunk that `last` keeps alive, and is only read through packets,
// which are `Send` themselves.
unsafe impl Send for IntoPackets {}
// SAFETY: a shared reference to the iterator gives access to no payload.
unsafe impl Sync for IntoPackets {}

impl Iterator for IntoPackets {
    type Item = Packet;

    #[inline]
    fn next(&mut self) -> Option<Packet> {
        let chunk = match self.clones.next() {
            Some(chunk) => chunk,
            None => self.last.take()?,
        };
        let (at, len) = (self.at, self.stride.min(self.rest));
        self.rest -= len;
        // SAFETY: `len` is at most the rest of the payload, so the result is within the chunk or one
        // past its end.
        self.at = unsafe { at.add(len) };
        // SAFETY: these bytes are payload, which has been written and is not written again.
        Some(unsafe { Packet::from_shared(chunk, at, len) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.clones.len() + usize::from(self.last.is_some());
        (left, Some(left))
    }
}

impl ExactSizeIterator for IntoPackets {}
impl core::iter::FusedIterator for IntoPackets {}

impl fmt::Debug for IntoPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoPackets")
            .field("left", &self.len())
            .finish_non_exhaustive()
    }
}

/// An iterator over the owned datagrams of a batch, from [`PacketBatch::into_datagrams`].
#[derive(Debug)]
pub struct IntoDatagrams {
    packets: IntoPackets,
    meta: Metadata,
}

impl Iterator for IntoDatagrams {
    type Item = Datagram;

    #[inline]
    fn next(&mut self) -> Option<Datagram> {
        Some(self.meta.datagram(self.packets.next()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.packets.size_hint()
    }
}

impl ExactSizeIterator for IntoDatagrams {}
impl core::iter::FusedIterator for IntoDatagrams {}

/// An iterator over the payloads of a batch, from [`PacketBatch::into_bytes`].
#[derive(Debug)]
pub struct IntoBytes {
    rest: Bytes,
    stride: usize,
    left: usize,
}

impl Iterator for IntoBytes {
    type Item = Bytes;

    #[inline]
    fn next(&mut self) -> Option<Bytes> {
        self.left = self.left.checked_sub(1)?;
        if self.left == 0 {
            return Some(core::mem::take(&mut self.rest));
        }
        Some(self.rest.split_to(self.stride))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for IntoBytes {}
impl core::iter::FusedIterator for IntoBytes {}

#[cfg(test)]
mod tests;
