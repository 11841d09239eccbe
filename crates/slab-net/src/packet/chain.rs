//! [`PacketChain`]: a sequence of packets, read as one run of bytes.

use super::frozen::Packet;
use super::pool::PacketPool;
use bytes::{Buf, Bytes};
use core::fmt;
use slab_core::AllocError;
use std::collections::{VecDeque, vec_deque};
use std::io::IoSlice;

/// A sequence of packets, read as one run of bytes without joining them: for example a header in one
/// chunk and a payload in another, sent by one `writev` or `sendmsg`.
///
/// Bounded: it accepts [`MAX_PACKETS`](Self::MAX_PACKETS) packets and returns the next one. It implements [`Buf`],
/// so tokio's `write_all_buf` can send it, or [`write_vectored`](std::io::Write::write_vectored) over
/// [`chunks_vectored`](Buf::chunks_vectored); [`Transmit::gather`](crate::udp::Transmit::gather) sends
/// those slices, 128 at most, as one datagram. Packets are dropped as soon as they have been read. An emptied chain
/// keeps its list's memory, so using it again allocates nothing.
///
/// ```
/// use bytes::Buf;
/// use slab_net::{Packet, PacketChain};
/// use std::io::{IoSlice, Write};
///
/// let mut chain = PacketChain::new();
/// chain.push_back(Packet::from_static(b"payload")).unwrap();
/// chain.push_front(Packet::from_static(b"header ")).unwrap();
///
/// let mut slices = [IoSlice::new(&[]); 16];
/// let filled = chain.chunks_vectored(&mut slices);
/// let mut sink = Vec::new();
/// let sent = sink.write_vectored(&slices[..filled])?;
/// chain.advance(sent);
/// assert_eq!(sink, b"header payload");
/// assert!(chain.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct PacketChain {
    /// None of them is empty, so [`Buf::chunk`] is empty only at the end.
    packets: VecDeque<Packet>,
    /// The sum of their lengths.
    len: usize,
}

impl PacketChain {
    /// The most packets of a chain: the number of slices that one system call takes on Linux and the BSDs
    /// (`IOV_MAX`).
    pub const MAX_PACKETS: usize = 1024;

    /// Returns an empty chain; allocates nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            packets: VecDeque::new(),
            len: 0,
        }
    }

    /// The number of bytes in all packets together.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of packets, which is the number of slices that a vectored write of the whole chain
    /// takes.
    #[inline]
    #[must_use]
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// Appends a packet. A packet without bytes is dropped: it would send nothing.
    ///
    /// # Errors
    /// Returns the packet if the chain is full, or if its length would exceed `usize::MAX`.
    pub fn push_back(&mut self, packet: Packet) -> Result<(), Packet> {
        if let Some(packet) = self.admit(packet)? {
            self.packets.push_back(packet);
        }
        Ok(())
    }

    /// Prepends a packet, for example a header in a packet of its own.
    ///
    /// # Errors
    /// The same as [`push_back`](Self::push_back).
    pub fn push_front(&mut self, packet: Packet) -> Result<(), Packet> {
        if let Some(packet) = self.admit(packet)? {
            self.packets.push_front(packet);
        }
        Ok(())
    }

    /// Counts the packet if there is room for it; returns `None` if it is empty.
    fn admit(&mut self, packet: Packet) -> Result<Option<Packet>, Packet> {
        if packet.is_empty() {
            return Ok(None);
        }
        match self.len.checked_add(packet.len()) {
            Some(len) if self.packets.len() < Self::MAX_PACKETS => {
                self.len = len;
                Ok(Some(packet))
            }
            _ => Err(packet),
        }
    }

    /// Removes and returns the first packet, or the unread rest of it if a part was read.
    ///
    /// ```
    /// # use bytes::Buf;
    /// # use slab_net::{Packet, PacketChain};
    /// let mut chain = PacketChain::from(Packet::from_static(b"first"));
    /// chain.push_back(Packet::from_static(b"second")).unwrap();
    /// chain.advance(2);
    /// assert_eq!(chain.pop_front().unwrap(), "rst");
    /// assert_eq!((chain.packets(), chain.len()), (1, 6));
    /// ```
    pub fn pop_front(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        self.len -= packet.len();
        Some(packet)
    }

    /// Drops all packets; keeps the memory of the list.
    pub fn clear(&mut self) {
        // Before the packets go: the drop of one may panic (a foreign owner's, or a waker's).
        self.len = 0;
        self.packets.clear();
    }

    /// Returns an iterator over the packets in their order.
    #[must_use]
    pub fn iter(&self) -> vec_deque::Iter<'_, Packet> {
        self.packets.iter()
    }

    /// Returns all bytes in one packet: a clone if they already lie in one, otherwise a copy in a chunk
    /// of `pool`.
    ///
    /// ```
    /// # use slab_net::{Packet, PacketChain, PacketPool};
    /// let pool = PacketPool::builder().build()?;
    /// let mut chain = PacketChain::new();
    /// chain.push_back(Packet::from_static(b"pay")).unwrap();
    /// chain.push_back(Packet::from_static(b"load")).unwrap();
    /// assert_eq!(chain.try_to_packet(&pool)?, "payload");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`PacketPool::try_alloc`].
    pub fn try_to_packet(&self, pool: &PacketPool) -> Result<Packet, AllocError> {
        match self.packets.len() {
            0 => Ok(Packet::new()),
            1 => Ok(self.packets[0].clone()),
            _ => {
                let mut joined = pool.try_alloc(self.len)?;
                for packet in &self.packets {
                    joined.extend_from_slice(packet);
                }
                Ok(joined.freeze())
            }
        }
    }
}

impl Buf for PacketChain {
    #[inline]
    fn remaining(&self) -> usize {
        self.len
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self.packets.front().map_or(&[], |packet| packet.as_slice())
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let filled = dst.len().min(self.packets.len());
        for (slice, packet) in dst.iter_mut().zip(&self.packets) {
            *slice = IoSlice::new(packet);
        }
        filled
    }

    fn advance(&mut self, mut cnt: usize) {
        assert!(cnt <= self.len, "advance by {cnt} of {}", self.len);
        while let Some(first) = self.packets.front_mut() {
            if cnt < first.len() {
                first.advance(cnt);
                self.len -= cnt;
                return;
            }
            cnt -= first.len();
            // One by one: if the drop of a packet panics, the length is that of those which are left.
            drop(self.pop_front());
        }
    }

    /// Shares the memory if the bytes lie in the first packet; copies them to the heap otherwise.
    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        assert!(len <= self.len, "copy_to_bytes of {len} of {}", self.len);
        match self.packets.front_mut() {
            Some(first) if len <= first.len() => {
                let bytes = first.slice(..len).into();
                self.advance(len);
                bytes
            }
            _ => {
                let mut bytes = Vec::with_capacity(len);
                while bytes.len() < len {
                    let part = self.chunk();
                    let part = &part[..part.len().min(len - bytes.len())];
                    bytes.extend_from_slice(part);
                    let read = part.len();
                    self.advance(read);
                }
                bytes.into()
            }
        }
    }
}

impl Default for PacketChain {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Packet> for PacketChain {
    /// Makes a chain of this one packet.
    fn from(packet: Packet) -> Self {
        let mut chain = Self::new();
        // Not refused: an empty chain has room.
        let _ = chain.push_back(packet);
        chain
    }
}

impl IntoIterator for PacketChain {
    type Item = Packet;
    type IntoIter = vec_deque::IntoIter<Packet>;

    fn into_iter(self) -> Self::IntoIter {
        self.packets.into_iter()
    }
}

impl<'a> IntoIterator for &'a PacketChain {
    type Item = &'a Packet;
    type IntoIter = vec_deque::Iter<'a, Packet>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for PacketChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketChain")
            .field("packets", &self.packets)
            .finish()
    }
}
