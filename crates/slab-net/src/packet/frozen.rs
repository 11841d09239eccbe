//! [`Packet`]: representation, slicing and splitting.

use super::buf::{PacketBuf, narrow};
use super::owner::Owner;
use super::pool::PacketPool;
use super::resolve;
use bytes::Bytes;
use core::mem;
use core::ops::RangeBounds;
use core::ptr::{self, NonNull};
use core::slice;
use slab_core::SharedChunk;

/// Frozen packet memory, cheap to clone and to slice: [`bytes::Bytes`] over a [`PacketPool`].
///
/// It has the methods of `Bytes`, with the same meaning and the same panics, so that
/// `use slab_net::Packet as Bytes` compiles and behaves the same. Each clone and slice is one more
/// reference to the chunk, which is freed with the last of them, on any thread. Empty slices keep
/// nothing alive.
///
/// A `Packet` takes 24 bytes, and so does an `Option<Packet>`.
///
/// ```
/// use slab_net::{Packet, PacketPool};
///
/// let pool = PacketPool::builder().build()?;
/// let packet = pool.try_copy_from_slice(b"hello world")?;
/// let world = packet.slice(6..);
/// drop(packet);
/// assert_eq!(world, "world");
/// assert_eq!(pool.slab().stats().in_use(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Packet {
    owner: Owner,
    /// Invariant: `owner` keeps `ptr..ptr + len` alive, these bytes have been written, and nobody
    /// writes them while the owner has another handle.
    ptr: NonNull<u8>,
    len: usize,
}

const _: () = assert!(size_of::<Option<Packet>>() == 24);

// SAFETY: a packet only reads, and its owner may be dropped on any thread.
unsafe impl Send for Packet {}
// SAFETY: as above; the bytes do not change while a packet lives.
unsafe impl Sync for Packet {}

impl Packet {
    /// Returns a packet without bytes; allocates nothing.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// assert_eq!(Packet::new(), b""[..]);
    /// ```
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self::from_static(&[])
    }

    /// Returns a packet of static bytes; allocates and copies nothing.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// static HELLO: Packet = Packet::from_static(b"hello");
    /// assert_eq!(HELLO, "hello");
    /// ```
    #[inline]
    #[must_use]
    pub const fn from_static(bytes: &'static [u8]) -> Self {
        // SAFETY: a reference is not null.
        let ptr = unsafe { NonNull::new_unchecked(bytes.as_ptr().cast_mut()) };
        Self {
            owner: Owner::NONE,
            ptr,
            len: bytes.len(),
        }
    }

    /// Returns a packet over the bytes of `owner`, which is dropped with the last packet that shares
    /// them.
    ///
    /// Makes two small heap allocations (one of them is [`Bytes::from_owner`]'s).
    ///
    /// ```
    /// # use slab_net::Packet;
    /// let packet = Packet::from_owner(*b"array");
    /// assert_eq!(packet, "array");
    /// ```
    #[must_use]
    pub fn from_owner<T>(owner: T) -> Self
    where
        T: AsRef<[u8]> + Send + 'static,
    {
        Self::from_foreign(Bytes::from_owner(owner))
    }

    pub(super) fn from_foreign(bytes: Bytes) -> Self {
        let len = bytes.len();
        // The bytes of a slice are never at address zero.
        let ptr = NonNull::new(bytes.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
        // SAFETY: `Bytes` keeps its bytes alive at their address, and never changes them.
        unsafe { Self::from_parts(Owner::foreign(bytes), ptr, len) }
    }

    /// Returns a packet with a copy of `data`, in the [process-wide pool](PacketPool::default_pool).
    ///
    /// ```
    /// # use slab_net::Packet;
    /// assert_eq!(Packet::copy_from_slice(b"hello"), "hello");
    /// ```
    ///
    /// # Panics
    /// The same as [`PacketPool::with_capacity`] and [`PacketPool::default_pool`].
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn copy_from_slice(data: &[u8]) -> Self {
        if data.is_empty() {
            return Self::new();
        }
        PacketPool::default_pool().copy_from_slice(data)
    }

    /// Returns a packet over a part of a chunk.
    ///
    /// # Safety
    /// `ptr..ptr + len` lies in the chunk and has been written by its present owners, and nobody writes
    /// it while a packet that shares it is alive. `ptr` is derived from [`as_ptr`](slab_core::Chunk::as_ptr): once the
    /// packet is the only handle, it may write through it.
    #[inline]
    pub(crate) unsafe fn from_shared(owner: SharedChunk, ptr: NonNull<u8>, len: usize) -> Self {
        debug_assert!(ptr >= owner.as_ptr());
        debug_assert!(
            ptr.addr().get() + len <= owner.as_ptr().addr().get() + owner.capacity(),
            "a packet beyond the end of its chunk"
        );
        // SAFETY: guaranteed by the caller.
        unsafe { Self::from_parts(Owner::chunk(owner), ptr, len) }
    }

    /// # Safety
    /// The type's invariant holds.
    #[inline]
    pub(super) unsafe fn from_parts(owner: Owner, ptr: NonNull<u8>, len: usize) -> Self {
        Self { owner, ptr, len }
    }

    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns a packet without bytes or owner, at the address of the byte `at`, as `Bytes` does.
    #[inline]
    fn empty_at(&self, at: usize) -> Self {
        let address = self.ptr.as_ptr().wrapping_add(at).addr();
        Self {
            owner: Owner::NONE,
            ptr: NonNull::new(ptr::without_provenance_mut(address)).unwrap_or(NonNull::dangling()),
            len: 0,
        }
    }

    /// The number of bytes.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// assert_eq!(Packet::from_static(b"hello").len(), 5);
    /// ```
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no bytes.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// assert!(Packet::new().is_empty());
    /// ```
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns `true` if this is the only handle to its memory, so that turning it into a [`PacketBuf`]
    /// (which holds no more than `u32::MAX` bytes) would not copy. Always `false` for static bytes and foreign owners.
    ///
    /// Another thread that has `&self` may clone the packet right afterwards.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// let a = Packet::copy_from_slice(b"hello");
    /// assert!(a.is_unique());
    /// let b = a.clone();
    /// assert!(!a.is_unique());
    /// ```
    #[inline]
    #[must_use]
    pub fn is_unique(&self) -> bool {
        self.owner.is_unique()
    }

    /// Returns the pool that the packet lies in, or in whose place the heap served it (such a packet
    /// keeps its pool open); `None` if the pool is closed, and for other memory. Empty slices have no
    /// pool.
    #[must_use]
    pub fn pool(&self) -> Option<PacketPool> {
        self.owner.pool()
    }

    /// The index of the chunk's size class in [`SlabPool::size_classes`]; `None` if the packet does not
    /// lie in a pool.
    ///
    /// [`SlabPool::size_classes`]: slab_core::SlabPool::size_classes
    #[must_use]
    pub fn class(&self) -> Option<usize> {
        self.owner.class()
    }

    /// Does dropping it run foreign code?
    pub(crate) fn is_foreign(&self) -> bool {
        self.owner.as_foreign().is_some()
    }

    /// The number of bytes that the packet keeps from being freed beyond its own length. Memory that
    /// packets share is counted for each of them. 0 for static bytes; of a foreign owner, only the
    /// bytes that it shows are counted.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().build()?;
    /// assert_eq!(pool.try_copy_from_slice(&[0; 100])?.pinned_bytes(), 28);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        self.memory().1 - self.len
    }

    /// The address and the length of the memory that the packet keeps from being freed, its own bytes included; they
    /// are alike for all packets that share it.
    #[inline]
    pub(crate) fn memory(&self) -> (usize, usize) {
        let region = self.owner.region();
        let region = region.map(|(start, capacity)| (start.addr().get(), capacity));
        let foreign = || {
            let bytes = self.owner.as_foreign()?;
            Some((bytes.as_ptr().addr(), bytes.len()))
        };
        region
            .or_else(foreign)
            .unwrap_or((self.as_ptr().addr(), self.len))
    }

    /// The length of that memory: the packet's own bytes and those that it pins. An empty packet, which needs none,
    /// counts as 0.
    #[inline]
    pub(crate) fn occupied_bytes(&self) -> usize {
        if self.is_empty() { 0 } else { self.memory().1 }
    }

    /// [`PacketPool::compact`] with the packet's own pool: returns a copy in a chunk of its own size if
    /// the packet pins a far larger one, and the packet itself otherwise.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().build()?;
    /// let packet = pool.try_copy_from_slice(&[0; 60_000])?.slice(..1200);
    /// assert_eq!(packet.compact().pinned_bytes(), 80);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn compact(self) -> Self {
        match self.pool() {
            Some(pool) => pool.compact(self),
            None => self,
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: these bytes are alive and written, and do not change while `self` is alive.
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Returns a part of the packet, sharing its memory.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// assert_eq!(Packet::copy_from_slice(b"hello world").slice(2..5), "llo");
    /// ```
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = resolve(range, self.len);
        if start == end {
            return self.empty_at(start);
        }
        Self {
            owner: self.owner.clone(),
            // SAFETY: `start` is within our bytes.
            ptr: unsafe { self.ptr.add(start) },
            len: end - start,
        }
    }

    /// Returns the part of the packet that `subset` borrows, sharing its memory.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// let packet = Packet::copy_from_slice(b"012345678");
    /// let subset = &packet[2..6];
    /// assert_eq!(packet.slice_ref(subset), "2345");
    /// ```
    ///
    /// # Panics
    /// If `subset` is not empty and does not lie in the packet.
    #[must_use]
    pub fn slice_ref(&self, subset: &[u8]) -> Self {
        if subset.is_empty() {
            return Self::new();
        }
        let (whole, part) = (self.ptr.as_ptr().cast_const(), subset.as_ptr());
        let start = part.addr().checked_sub(whole.addr());
        let Some(start) = start else {
            panic!("subset pointer ({part:p}) is smaller than self pointer ({whole:p})");
        };
        assert!(
            start
                .checked_add(subset.len())
                .is_some_and(|end| end <= self.len),
            "subset is out of bounds: self = ({whole:p}, {}), subset = ({part:p}, {})",
            self.len,
            subset.len()
        );
        self.slice(start..start + subset.len())
    }

    /// Splits at `at`: `self` keeps `[0, at)`, the result has `[at, len)`.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// let mut hello = Packet::copy_from_slice(b"hello world");
    /// let world = hello.split_off(5);
    /// assert_eq!((hello, world), (Packet::from("hello"), Packet::from(" world")));
    /// ```
    ///
    /// # Panics
    /// If `at` is above the length.
    #[must_use = "use `truncate` if the other half is not needed"]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(
            at <= self.len,
            "split_off out of bounds: {at} <= {}",
            self.len
        );
        if at == self.len {
            return self.empty_at(at);
        }
        if at == 0 {
            let empty = self.empty_at(0);
            return mem::replace(self, empty);
        }
        let mut other = self.clone();
        // SAFETY: `at` is within our bytes.
        unsafe { other.advance_unchecked(at) };
        self.len = at;
        other
    }

    /// Splits at `at`: the result has `[0, at)`, `self` keeps `[at, len)`.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// let mut world = Packet::copy_from_slice(b"hello world");
    /// let hello = world.split_to(5);
    /// assert_eq!((hello, world), (Packet::from("hello"), Packet::from(" world")));
    /// ```
    ///
    /// # Panics
    /// If `at` is above the length.
    #[must_use = "use `advance` if the other half is not needed"]
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(
            at <= self.len,
            "split_to out of bounds: {at} <= {}",
            self.len
        );
        if at == self.len {
            let empty = self.empty_at(at);
            return mem::replace(self, empty);
        }
        if at == 0 {
            return self.empty_at(0);
        }
        let mut other = self.clone();
        other.len = at;
        // SAFETY: `at` is within our bytes.
        unsafe { self.advance_unchecked(at) };
        other
    }

    /// # Safety
    /// `n` is at most the length.
    #[inline]
    pub(super) unsafe fn advance_unchecked(&mut self, n: usize) {
        // SAFETY: guaranteed by the caller: within or just behind our bytes.
        self.ptr = unsafe { self.ptr.add(n) };
        self.len -= n;
    }

    /// Like [`Buf::copy_to_bytes`](bytes::Buf::copy_to_bytes), but returns a packet. An inherent
    /// method, so that code written for `Bytes` finds it first.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// let mut packet = Packet::copy_from_slice(b"hello world");
    /// assert_eq!(packet.copy_to_bytes(5), "hello");
    /// assert_eq!(packet, " world");
    /// ```
    ///
    /// # Panics
    /// If `len` is above the length.
    #[inline]
    pub fn copy_to_bytes(&mut self, len: usize) -> Self {
        self.split_to(len)
    }

    /// Shortens the packet to `len` bytes; does nothing if it is no longer than that. With a `len` of 0
    /// it releases its memory.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// let mut packet = Packet::from_static(b"hello world");
    /// packet.truncate(5);
    /// assert_eq!(packet, "hello");
    /// ```
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len == 0 {
            *self = self.empty_at(0);
        } else {
            self.len = self.len.min(len);
        }
    }

    /// Removes all bytes and releases the memory.
    ///
    /// ```
    /// # use slab_net::Packet;
    /// let mut packet = Packet::from_static(b"hello");
    /// packet.clear();
    /// assert!(packet.is_empty());
    /// ```
    #[inline]
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Turns the packet into a [`PacketBuf`] without a copy, if this is the only handle to its memory.
    /// The buffer then has the whole chunk: headroom in front, tailroom behind.
    ///
    /// ```
    /// # use slab_net::{Packet, PacketBuf};
    /// let mut packet = Packet::copy_from_slice(b"hello world");
    /// let hello = packet.split_to(5);
    /// let packet = packet.try_into_mut().unwrap_err();
    /// drop(hello);
    /// let buf = packet.try_into_mut().unwrap();
    /// assert_eq!((buf.headroom(), buf), (5, PacketBuf::from(" world")));
    /// ```
    ///
    /// # Errors
    /// Returns the packet if there are other handles, or if its bytes are static or foreign, or longer
    /// than `u32::MAX`.
    pub fn try_into_mut(self) -> Result<PacketBuf, Self> {
        let Some((start, capacity)) = self.owner.region() else {
            return Err(self);
        };
        if !self.owner.is_unique() || u32::try_from(self.len).is_err() {
            return Err(self);
        }
        let rest = capacity - (self.ptr.addr().get() - start.addr().get());
        let cap = narrow(rest.min(u32::MAX as usize));
        // SAFETY: this is the only handle to the whole block, so everything behind `ptr` is the
        // buffer's alone; the packet's bytes have been written.
        Ok(unsafe { PacketBuf::from_parts(self.owner, self.ptr, narrow(self.len), cap) })
    }
}

impl Clone for Packet {
    /// Costs one atomic addition; none for static bytes. A packet is best dropped after its clones (see
    /// [`SharedChunk::lend`]); the order of a packet and its slices does not matter. Beyond 2^31 handles to one
    /// chunk, clones and slices together, the process is aborted, as by `Arc`.
    #[inline]
    fn clone(&self) -> Self {
        Self {
            owner: self.owner.lend(),
            ptr: self.ptr,
            len: self.len,
        }
    }
}
