//! [`PacketBuf`]: representation, construction, reading and writing.

use super::frozen::Packet;
use super::owner::{HeapBlock, Owner};
use super::pool::PacketPool;
use super::resolve;
use bytes::BufMut;
use core::mem::MaybeUninit;
use core::ops::RangeBounds;
use core::ptr::NonNull;
use core::slice;
use slab_core::Chunk;

/// An exclusive, growable buffer of packet memory: [`bytes::BytesMut`] over a [`PacketPool`].
///
/// It has the methods of `BytesMut`, with the same meaning and the same panics, so that
/// `use slab_net::PacketBuf as BytesMut` compiles and behaves the same. The differences:
///
/// - Capacities are those of the pool's size classes, so often larger than requested: code that fills a buffer up to its
///   capacity, and takes that for the length it asked for, has to say the length.
/// - A buffer holds at most `u32::MAX` bytes.
/// - Constructors that take no pool use the [process-wide one](PacketPool::default_pool). If the pool
///   cannot serve a request, methods that return no error follow [its
///   policy](PacketPool#when-the-pool-is-at-its-cap); [`try_reserve`](Self::try_reserve) and
///   [`try_prepend`](Self::try_prepend) return the error.
/// - There may be [`headroom`](Self::headroom) for [`prepend`](Self::prepend).
///
/// Splitting makes handles to disjoint parts of one chunk, which is freed with the last of them. A
/// `PacketBuf` takes 24 bytes, and so does an `Option<PacketBuf>`.
///
/// ```
/// use slab_net::PacketBuf;
///
/// let mut buf = PacketBuf::with_capacity(64);
/// buf.extend_from_slice(b"hello world");
/// let hello = buf.split_to(5).freeze();
/// let copy = hello.clone();
/// assert_eq!(copy, b"hello"[..]);
/// assert_eq!(buf, b" world"[..]);
/// ```
pub struct PacketBuf {
    /// The writable memory, or none while nothing has been allocated.
    pub(super) owner: Owner,
    /// The first byte of the `cap` bytes that this handle may write.
    ///
    /// Invariant: `owner` keeps `ptr..ptr + cap` alive and writable, no other handle to it touches
    /// that range, and its first `len` bytes have been written since they were allocated.
    pub(super) ptr: NonNull<u8>,
    pub(super) len: u32,
    pub(super) cap: u32,
}

const _: () = assert!(size_of::<Option<PacketBuf>>() == 24);

// SAFETY: a buffer is exclusive memory that any thread may write and free.
unsafe impl Send for PacketBuf {}
// SAFETY: `&PacketBuf` only reads its own range, which nobody writes while it is borrowed.
unsafe impl Sync for PacketBuf {}

/// Returns `n` as `u32`. It fits, because it does not exceed a capacity that fits.
#[inline]
pub(super) fn narrow(n: usize) -> u32 {
    debug_assert!(u32::try_from(n).is_ok());
    n as u32
}

impl PacketBuf {
    /// Returns an empty buffer over a whole chunk, with `headroom` bytes in front.
    #[inline(always)]
    pub(super) fn from_chunk(chunk: Chunk, headroom: u32) -> Self {
        let (start, capacity) = (chunk.as_ptr(), narrow(chunk.capacity()));
        debug_assert!(headroom <= capacity);
        Self {
            owner: Owner::chunk(chunk.into_shared()),
            // SAFETY: a pool's headroom is smaller than any chunk it takes.
            ptr: unsafe { start.add(headroom as usize) },
            len: 0,
            cap: capacity - headroom,
        }
    }

    /// Returns an empty buffer over a heap block of at most `u32::MAX` bytes, with `headroom` of them in front.
    pub(super) fn from_heap(block: HeapBlock, headroom: u32) -> Self {
        let (start, capacity) = (block.start(), narrow(block.capacity()));
        assert!(
            headroom <= capacity,
            "a block without room for its headroom"
        );
        Self {
            owner: Owner::heap(block),
            // SAFETY: just checked to lie within the block, or at its end.
            ptr: unsafe { start.add(headroom as usize) },
            len: 0,
            cap: capacity - headroom,
        }
    }

    /// # Safety
    /// The type's invariant holds: this is the only handle to `ptr..ptr + cap`, which `owner` keeps
    /// alive and writable, and the first `len` bytes have been written.
    #[inline]
    pub(super) unsafe fn from_parts(owner: Owner, ptr: NonNull<u8>, len: u32, cap: u32) -> Self {
        debug_assert!(len <= cap);
        Self {
            owner,
            ptr,
            len,
            cap,
        }
    }

    /// Returns an empty buffer that has allocated nothing yet, and grows into the
    /// [process-wide pool](PacketPool::default_pool).
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::new();
    /// assert_eq!(buf.capacity(), 0);
    /// buf.extend_from_slice(b"xy");
    /// assert_eq!(buf, b"xy"[..]);
    /// ```
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            owner: Owner::NONE,
            ptr: NonNull::dangling(),
            len: 0,
            cap: 0,
        }
    }

    /// Returns an empty buffer with a capacity of at least `capacity` bytes, from the [process-wide
    /// pool](PacketPool::default_pool). A capacity of zero allocates nothing.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let buf = PacketBuf::with_capacity(1500);
    /// assert!(buf.is_empty());
    /// assert!(buf.capacity() >= 1500);
    /// ```
    ///
    /// # Panics
    /// The same as [`PacketPool::with_capacity`] and [`PacketPool::default_pool`].
    #[inline]
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn with_capacity(capacity: usize) -> Self {
        if capacity == 0 {
            return Self::new();
        }
        PacketPool::default_pool().with_capacity(capacity)
    }

    /// Returns a buffer of `len` zeros from the [process-wide pool](PacketPool::default_pool).
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// assert_eq!(PacketBuf::zeroed(3), [0, 0, 0][..]);
    /// ```
    ///
    /// # Panics
    /// The same as [`PacketPool::with_capacity`] and [`PacketPool::default_pool`].
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self::new();
        }
        PacketPool::default_pool().zeroed(len)
    }

    /// The number of bytes of contents.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// assert_eq!(PacketBuf::from("hello").len(), 5);
    /// ```
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns `true` if there are no contents.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// assert!(PacketBuf::with_capacity(64).is_empty());
    /// ```
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of bytes that the buffer can hold without moving: at least as many as were requested.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// assert!(PacketBuf::with_capacity(64).capacity() >= 64);
    /// ```
    #[inline]
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.cap as usize
    }

    /// The number of free bytes behind the contents.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::with_capacity(64);
    /// let before = buf.tailroom();
    /// buf.extend_from_slice(b"four");
    /// assert_eq!(buf.tailroom(), before - 4);
    /// ```
    #[inline]
    #[must_use]
    pub const fn tailroom(&self) -> usize {
        (self.cap - self.len) as usize
    }

    /// Returns the pool that the buffer came from, or in whose place the heap served it; `None` if the
    /// buffer has no memory yet or that of a `Vec`, or the pool is closed. A buffer on the heap keeps its pool open,
    /// a chunk does not.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().name("rx").build()?;
    /// let buf = pool.try_alloc(1400)?;
    /// assert_eq!(buf.pool().unwrap().slab().name(), "rx");
    /// let class = buf.class().unwrap();
    /// assert_eq!(pool.slab().size_classes().sizes()[class], 1536);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pool(&self) -> Option<PacketPool> {
        self.owner.pool()
    }

    /// The index of the chunk's size class in [`SlabPool::size_classes`]; `None` if the buffer does not
    /// lie in a pool.
    ///
    /// [`SlabPool::size_classes`]: slab_core::SlabPool::size_classes
    #[must_use]
    pub fn class(&self) -> Option<usize> {
        self.owner.class()
    }

    /// Turns the buffer into a [`Packet`]. Allocates and copies nothing, touches no reference count.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let packet = PacketBuf::from("hello").freeze();
    /// let other = packet.clone();
    /// std::thread::spawn(move || assert_eq!(packet, "hello")).join().unwrap();
    /// assert_eq!(other, "hello");
    /// ```
    #[inline]
    #[must_use]
    pub fn freeze(self) -> Packet {
        // SAFETY: the owner keeps these bytes alive, they have been written, and this was the only
        // handle that could write them.
        unsafe { Packet::from_parts(self.owner, self.ptr, self.len as usize) }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are alive, written, and ours alone.
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len()) }
    }

    #[inline]
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the first `len` bytes are alive, written, and ours alone.
        unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len()) }
    }

    /// Returns the free bytes behind the contents. Write them before [`set_len`](Self::set_len) or
    /// [`advance_mut`](BufMut::advance_mut) makes them readable.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::with_capacity(10);
    /// buf.spare_capacity_mut()[0].write(7);
    /// // SAFETY: the first byte was just written.
    /// unsafe { buf.set_len(1) };
    /// assert_eq!(buf, [7][..]);
    /// ```
    #[inline]
    pub fn spare_capacity_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: `len <= cap`, so this is within or just behind our range.
        let spare = unsafe { self.ptr.add(self.len()) };
        // SAFETY: the bytes from there to `cap` are alive and ours alone.
        unsafe { slice::from_raw_parts_mut(spare.as_ptr().cast(), self.tailroom()) }
    }

    /// Sets the length.
    ///
    /// # Safety
    /// `len` is at most [`capacity`](Self::capacity), and the bytes before it have been written since
    /// this handle acquired them.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::from("hello world");
    /// // SAFETY: shorter than before.
    /// unsafe { buf.set_len(5) };
    /// assert_eq!(buf, "hello");
    /// ```
    #[inline]
    pub unsafe fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.capacity(), "set_len out of bounds");
        self.len = narrow(len);
    }

    /// Shortens the contents to `len` bytes; does nothing if they are no longer than that.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::from("hello world");
    /// buf.truncate(5);
    /// assert_eq!(buf, "hello");
    /// ```
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.len = narrow(len);
        }
    }

    /// Removes the contents; keeps the capacity.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::from("hello");
    /// buf.clear();
    /// assert!(buf.is_empty());
    /// ```
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Shortens the contents to `new_len` bytes, or extends them to that length with bytes of `value`.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::new();
    /// buf.resize(3, 1);
    /// buf.resize(2, 2);
    /// buf.resize(4, 3);
    /// assert_eq!(buf, [1, 1, 3, 3][..]);
    /// ```
    ///
    /// # Panics
    /// The same as [`reserve`](Self::reserve).
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn resize(&mut self, new_len: usize, value: u8) {
        match new_len.checked_sub(self.len()) {
            Some(additional) => self.put_bytes(value, additional),
            None => self.truncate(new_len),
        }
    }

    /// Appends a copy of `extend`, growing if necessary.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::new();
    /// buf.extend_from_slice(b"aaabbb");
    /// buf.extend_from_slice(b"cccddd");
    /// assert_eq!(buf, b"aaabbbcccddd"[..]);
    /// ```
    ///
    /// # Panics
    /// The same as [`reserve`](Self::reserve).
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn extend_from_slice(&mut self, extend: &[u8]) {
        self.reserve(extend.len());
        // SAFETY: the tailroom now suffices. `extend` is borrowed, so it cannot overlap bytes that only
        // this handle may write.
        unsafe { self.append_unchecked(extend.as_ptr(), extend.len()) };
    }

    /// Appends a copy of a part of the contents.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::from("aaabbb_");
    /// buf.extend_from_within(3..6);
    /// assert_eq!(buf, "aaabbb_bbb");
    /// ```
    ///
    /// # Panics
    /// If `range` is out of bounds, or if [`reserve`](Self::reserve) panics.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn extend_from_within(&mut self, range: impl RangeBounds<usize>) {
        let (start, end) = resolve(range, self.len());
        self.reserve(end - start);
        // SAFETY: `start` is within the contents.
        let from = unsafe { self.ptr.add(start) };
        // SAFETY: the tailroom now suffices, and the source ends no later than the tailroom begins.
        unsafe { self.append_unchecked(from.as_ptr(), end - start) };
    }

    /// # Safety
    /// `from..from + n` can be read and does not overlap the free bytes, of which there are at
    /// least `n`.
    #[inline]
    pub(super) unsafe fn append_unchecked(&mut self, from: *const u8, n: usize) {
        // Computed before the copy: afterwards the compiler would have to load `self.len` again.
        let len = self.len + narrow(n);
        let to = self.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: guaranteed by the caller.
        unsafe { core::ptr::copy_nonoverlapping(from, to, n) };
        self.len = len;
    }

    /// # Safety
    /// `n` is at most the length.
    #[inline]
    pub(super) unsafe fn advance_unchecked(&mut self, n: usize) {
        // SAFETY: guaranteed by the caller: within or just behind the contents.
        self.ptr = unsafe { self.ptr.add(n) };
        self.len -= narrow(n);
        self.cap -= narrow(n);
    }

    /// # Safety
    /// `ptr..ptr + cap` lies in the owner's memory and is ours alone; its first `len` bytes have
    /// been written.
    pub(super) unsafe fn set_range(&mut self, ptr: NonNull<u8>, len: u32, cap: u32) {
        debug_assert!(len <= cap);
        self.ptr = ptr;
        self.len = len;
        self.cap = cap;
    }
}
