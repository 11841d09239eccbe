//! [`PacketChain`]: packets one behind the other, read as one run of bytes.

use super::frozen::Packet;
use super::pool::PacketPool;
use bytes::{Buf, Bytes};
use core::fmt;
use slab_core::AllocError;
use std::collections::{VecDeque, vec_deque};
use std::io::IoSlice;

/// Packets one behind the other, read as one run of bytes without joining them: a header in one
/// chunk, a payload in another, sent by one `writev` or `sendmsg`.
///
/// Bounded: it takes [`limit`](Self::limit) packets and gives the next one back. Implements
/// [`Buf`], so that tokio's `write_all_buf` or
/// [`write_vectored`](std::io::Write::write_vectored) over
/// [`chunks_vectored`](Buf::chunks_vectored) send it; and those slices are what
/// [`Transmit::gather`](crate::udp::Transmit::gather) sends as one datagram.
/// Packets that were read are dropped at once. A chain that was emptied keeps its list's memory:
/// used again, it allocates nothing.
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
    /// None of them is empty, so that [`Buf::chunk`] is empty at the end only.
    packets: VecDeque<Packet>,
    /// The sum of their lengths.
    len: usize,
    limit: usize,
}

impl PacketChain {
    /// How many packets [`new`](Self::new) allows: as many slices as one call to the kernel takes
    /// on Linux and the BSDs (`IOV_MAX`).
    pub const DEFAULT_LIMIT: usize = 1024;

    /// An empty chain of at most [`DEFAULT_LIMIT`](Self::DEFAULT_LIMIT) packets; allocates nothing
    /// yet.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_limit(Self::DEFAULT_LIMIT)
    }

    /// An empty chain of at most `packets` packets; allocates nothing yet.
    ///
    /// ```
    /// # use slab_net::{Packet, PacketChain};
    /// let mut chain = PacketChain::with_limit(1);
    /// assert_eq!(chain.push_back(Packet::from_static(b"first")), Ok(()));
    /// let second = Packet::from_static(b"second");
    /// assert_eq!(chain.push_back(second.clone()), Err(second));
    /// ```
    #[must_use]
    pub const fn with_limit(packets: usize) -> Self {
        Self {
            packets: VecDeque::new(),
            len: 0,
            limit: packets,
        }
    }

    /// Bytes in all packets together.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Are there no bytes?
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many packets it has: as many slices as a vectored write of all of it takes.
    #[inline]
    #[must_use]
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// How many packets it can have.
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Puts a packet behind the others. One without bytes is dropped: it would send nothing.
    ///
    /// # Errors
    /// Gives the packet back if the chain is at its limit, or its length would exceed
    /// `usize::MAX`.
    pub fn push_back(&mut self, packet: Packet) -> Result<(), Packet> {
        if let Some(packet) = self.admit(packet)? {
            self.packets.push_back(packet);
        }
        Ok(())
    }

    /// Puts a packet in front of the others: a header that is a packet of its own.
    ///
    /// # Errors
    /// As [`push_back`](Self::push_back).
    pub fn push_front(&mut self, packet: Packet) -> Result<(), Packet> {
        if let Some(packet) = self.admit(packet)? {
            self.packets.push_front(packet);
        }
        Ok(())
    }

    /// Counts the packet in, if there is room for it; `None` if there is nothing in it.
    fn admit(&mut self, packet: Packet) -> Result<Option<Packet>, Packet> {
        if packet.is_empty() {
            return Ok(None);
        }
        match self.len.checked_add(packet.len()) {
            Some(len) if self.packets.len() < self.limit => {
                self.len = len;
                Ok(Some(packet))
            }
            _ => Err(packet),
        }
    }

    /// Takes the first packet out: what is left of it, if a part was read.
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

    /// Drops all packets; keeps the list's memory.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.len = 0;
    }

    /// The packets in their order.
    #[must_use]
    pub fn iter(&self) -> vec_deque::Iter<'_, Packet> {
        self.packets.iter()
    }

    /// All bytes in one packet: a clone if they lie in one already, a copy in a chunk of `pool`
    /// otherwise.
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
    /// As [`PacketPool::try_alloc`].
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
        self.len -= cnt;
        while let Some(first) = self.packets.front_mut() {
            if cnt < first.len() {
                first.advance(cnt);
                return;
            }
            cnt -= first.len();
            self.packets.pop_front();
        }
    }

    /// Shares the memory if the bytes lie in the first packet, copies them to the heap otherwise.
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
    /// A chain of this one packet.
    fn from(packet: Packet) -> Self {
        let mut chain = Self::new();
        chain.len = packet.len();
        if !packet.is_empty() {
            chain.packets.push_back(packet);
        }
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
            .field("limit", &self.limit)
            .finish()
    }
}
