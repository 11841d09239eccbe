//! [`Chunk`]: a piece of pool memory with one owner, and the free fast path.

use crate::class::place::Place;
use crate::directory;
use crate::handle::shared::SharedChunk;
use crate::pool::SlabPool;
use crate::pool::inner::Inner;
use crate::sync::AtomicU32;
use crate::sys::asan;
use crate::thread_cache::local;
use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::num::NonZeroU64;
use core::ptr::NonNull;

/// What a handle is: its chunk, in one word, so that a handle travels in a register and is stored and loaded as it
/// was. (Fields of different widths would cost a failed store forwarding, about 15 cycles, whenever a handle is copied
/// soon after it was made.)
///
/// Bits 0..32 are the unit, bits 32..64 the class as a [`Place`], whose lower half is zero: one `or` makes
/// an id of the two. No place is zero, so no id is, and `Option<Chunk>` needs no further space. [`Place::MARK`] marks
/// a reference that was [lent](SharedChunk::lend).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct ChunkId(NonZeroU64);

impl ChunkId {
    #[inline(always)]
    pub(crate) fn new(place: Place, unit: u32) -> Self {
        // SAFETY: it was widened just now.
        unsafe { Self::from_wide_unit(place, unit.into()) }
    }

    /// Tells the compiler that the two share no bit. Where a chunk is freed in the function that allocated it, the
    /// free then knows its magazine without waiting for the unit to be loaded from there, and the unit without taking
    /// it out of the id (`ARCHITECTURE.md` says what that gained on Intel Xeons).
    ///
    /// # Safety
    /// `unit` has 32 bits.
    #[inline(always)]
    pub(crate) unsafe fn from_wide_unit(place: Place, unit: u64) -> Self {
        debug_assert_eq!(place.bits().get() as u32, 0, "a place out of an id");
        // SAFETY: the caller's promise.
        unsafe { core::hint::assert_unchecked(unit <= u32::MAX.into()) };
        // SAFETY: a place has none there, unless it is out of an id, and those are for reading only.
        unsafe { core::hint::assert_unchecked(place.bits().get() as u32 == 0) };
        Self(place.bits() | unit)
    }

    #[inline(always)]
    fn unit(self) -> u32 {
        self.0.get() as u32
    }

    /// For reading only, not for making another id: its lower half still is the unit.
    #[inline(always)]
    fn place(self) -> Place {
        // SAFETY: `new` put a place's bits there; the callers of this private function only read it.
        unsafe { Place::from_bits(self.0) }
    }

    #[inline(always)]
    fn class(self) -> u8 {
        self.place().class()
    }

    #[inline(always)]
    fn with_lent(self) -> Self {
        Self(self.0 | Place::MARK)
    }

    #[inline(always)]
    fn is_lent(self) -> bool {
        self.0.get() & Place::MARK != 0
    }

    #[inline(always)]
    fn without_lent(self) -> Self {
        // SAFETY: a place has other bits set than this one.
        Self(unsafe { NonZeroU64::new_unchecked(self.0.get() & !Place::MARK) })
    }
}

/// Exclusive ownership of a chunk; dropping it, on any thread, gives the chunk back.
///
/// 8 bytes. The chunk may still hold a former owner's data, but safe methods show only what the present
/// owner has written. They show it as they write it: a handle does not remember how much that was, so reading it
/// back later takes `unsafe` and [`as_ptr`](Self::as_ptr). `slab-net`'s `PacketBuf` remembers it.
///
/// Forgetting a chunk (`mem::forget`) leaks it, and keeps the pool's arena mapped.
#[repr(transparent)]
pub struct Chunk(ChunkId);

// The compiler takes a chunk, which is a number, for `Send` and `Sync`. It may: what the number stands for is memory with
// one owner, of which a shared chunk offers address and size only, and a pool that is both.
const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<Inner>();
};

impl Chunk {
    /// # Safety
    /// `unit` is a chunk of this class and pool that nobody else has.
    #[inline(always)]
    pub(crate) unsafe fn new(pool: &Inner, class: u8, unit: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::from_id(ChunkId::new(pool.classes.place(class), unit)) }
    }

    /// # Safety
    /// Nobody else has the chunk.
    #[inline(always)]
    pub(crate) unsafe fn from_id(id: ChunkId) -> Self {
        let chunk = Self(id);
        if cfg!(slab_asan) {
            asan::unpoison(chunk.as_ptr(), chunk.capacity());
        }
        chunk
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner {
        // SAFETY: a pool is not unmapped while one of its chunks lives.
        unsafe { self.pool_ptr().as_ref() }
    }

    /// Not derived from a reference: the last chunk frees the pool through this pointer.
    #[inline(always)]
    pub(crate) fn pool_ptr(&self) -> NonNull<Inner> {
        // SAFETY: this chunk is alive.
        unsafe { directory::pool(self.0.place()) }
    }

    #[inline(always)]
    pub(crate) fn unit(&self) -> u32 {
        self.0.unit()
    }

    /// The word that counts the references to the chunk beyond the first.
    #[inline(always)]
    pub(crate) fn count(&self) -> &AtomicU32 {
        // SAFETY: this chunk is alive.
        unsafe { directory::count(self.0.place(), self.unit()) }
    }

    #[inline(always)]
    pub(crate) fn class_index(&self) -> u8 {
        self.0.class()
    }

    /// Returns a pointer to the chunk's first byte, aligned to [`CHUNK_ALIGN`](crate::CHUNK_ALIGN).
    ///
    /// All [`capacity`](Self::capacity) bytes behind it are valid for reads and writes for as long as
    /// this handle lives. They hold zeros, or a former owner's data, or bytes that a former owner left
    /// [uninitialised](core::mem::MaybeUninit::uninit): treat them as `MaybeUninit` until written.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: this chunk is alive.
        unsafe { directory::address(self.0.place(), self.unit()) }
    }

    /// Returns the usable size in bytes: that of the size class, at least what was asked for.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.inner().classes.geometry(self.class_index()).bytes
    }

    /// Returns the index of the chunk's class in [`SlabPool::size_classes`].
    #[inline]
    #[must_use]
    pub fn class(&self) -> usize {
        usize::from(self.class_index())
    }

    /// Returns a handle to the chunk's pool; `None` if the pool's last handle is gone.
    #[must_use]
    pub fn pool(&self) -> Option<SlabPool> {
        self.inner().handle().map(SlabPool::from_handle)
    }

    /// Returns whether the chunk belongs to this pool.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let (rx, tx) = (SlabPool::builder().build()?, SlabPool::builder().build()?);
    /// let chunk = rx.try_alloc(1500)?;
    /// assert!(chunk.belongs_to(&rx) && !chunk.belongs_to(&tx));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn belongs_to(&self, pool: &SlabPool) -> bool {
        pool.has_inner(self.pool_ptr())
    }

    /// Fills the chunk with zeros and returns all of it.
    pub fn fill_zero(&mut self) -> &mut [u8] {
        let (at, capacity) = (self.as_ptr().as_ptr(), self.capacity());
        // SAFETY: the chunk's `capacity` bytes are ours alone while `self` is borrowed.
        unsafe { core::ptr::write_bytes(at, 0, capacity) };
        // SAFETY: as above, and just initialised.
        unsafe { core::slice::from_raw_parts_mut(at, capacity) }
    }

    /// Copies `data` to the front of the chunk and returns the copy; `None`, and nothing copied, if
    /// `data` is longer than the chunk.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().build()?;
    /// let mut chunk = pool.try_alloc(64)?;
    /// assert_eq!(chunk.try_copy_from_slice(b"datagram").expect("it fits"), b"datagram");
    /// assert!(chunk.try_copy_from_slice(&[7; 65]).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "nothing is copied if the data does not fit"]
    pub fn try_copy_from_slice(&mut self, data: &[u8]) -> Option<&mut [u8]> {
        if data.len() > self.capacity() {
            return None;
        }
        let at = self.as_ptr().as_ptr();
        // SAFETY: `data` fits into the chunk, and cannot overlap it: safe code has no other
        // borrow of a chunk's bytes while `self` is borrowed mutably.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len()) };
        // SAFETY: these bytes are ours alone while `self` is borrowed, and just written.
        Some(unsafe { core::slice::from_raw_parts_mut(at, data.len()) })
    }

    /// Returns all of the chunk, to be written piece by piece. What it holds is what [`as_ptr`](Self::as_ptr)
    /// says: nothing that safe code can read before it is written.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().build()?;
    /// let mut chunk = pool.try_alloc(64)?;
    /// let bytes = chunk.as_uninit_mut();
    /// assert_eq!(bytes.len(), 64);
    /// assert_eq!(bytes[0].write(7), &7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn as_uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let at = self.as_ptr().cast().as_ptr();
        // SAFETY: the chunk's `capacity` bytes are ours alone while `self` is borrowed, and any bytes are a
        // `MaybeUninit`. Whoever owns the chunk next takes them for that, too.
        unsafe { core::slice::from_raw_parts_mut(at, self.capacity()) }
    }

    /// Turns the chunk into one whose handle can be cloned. Touches no memory.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// let mut chunk = pool.try_alloc(1500)?;
    /// chunk.try_copy_from_slice(b"datagram").expect("it fits");
    /// let chunk = chunk.into_shared();
    /// let other = chunk.clone();
    /// std::thread::spawn(move || drop(other)).join().unwrap();
    /// assert!(chunk.is_unique());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn into_shared(self) -> SharedChunk {
        SharedChunk::new(self)
    }

    /// The free fast path: a push onto this thread's magazine.
    #[inline(always)]
    fn free(&self) {
        let (place, unit) = (self.0.place(), self.unit());
        if cfg!(slab_asan) {
            asan::poison_freed(self.as_ptr(), self.capacity());
        }
        let freed = local::with_magazine(Some(place), |magazine| {
            magazine.try_push(unit).then_some(())
        });
        if freed.is_none() {
            // SAFETY: this is the chunk's drop: it is given up here and not used again.
            unsafe { Self::free_slow(self.0) };
        }
    }

    /// # Safety
    /// The caller gives up the chunk.
    #[cold]
    #[inline(never)]
    unsafe fn free_slow(id: ChunkId) {
        // SAFETY: the chunk is alive until the call below.
        let pool = unsafe { directory::pool(id.place()) };
        // SAFETY: the caller's promise.
        unsafe { Inner::free_slow(pool, id.class(), id.unit()) };
    }

    /// Returns another handle to the same chunk; the caller keeps count.
    ///
    /// # Safety
    /// Of all handles to the chunk, exactly one is dropped as a `Chunk`.
    #[inline(always)]
    pub(crate) unsafe fn duplicate(&self) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self(self.0))
    }

    #[inline(always)]
    pub(crate) fn bits(&self) -> NonZeroU64 {
        self.0.0
    }

    /// # Safety
    /// As [`duplicate`](Self::duplicate), of the handle that the bits are of.
    #[inline(always)]
    pub(crate) unsafe fn from_bits(bits: NonZeroU64) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self(ChunkId(bits)))
    }

    /// Sets whether this handle is marked as lent: see [`SharedChunk::lend`].
    #[inline(always)]
    pub(crate) fn set_lent(&mut self, lent: bool) {
        self.0 = if lent {
            self.0.with_lent()
        } else {
            self.0.without_lent()
        };
    }

    #[inline(always)]
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.0.without_lent() == other.0.without_lent()
    }
}

impl Drop for Chunk {
    #[inline]
    fn drop(&mut self) {
        self.free();
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("pool", &self.inner().name)
            .field("capacity", &self.capacity())
            .field("at", &self.as_ptr())
            .finish()
    }
}
