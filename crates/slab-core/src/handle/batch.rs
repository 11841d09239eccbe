//! [`ChunkBatch`]: many chunks, allocated or freed in one step.

use crate::class::place::Place;
use crate::error::AllocError;
use crate::handle::chunk::{Chunk, ChunkId};
use crate::pool::SlabPool;
use crate::pool::request::Request;
use crate::sys::asan;
use crate::thread_cache::local;
use arrayvec::ArrayVec;
use core::fmt;
use core::iter::FusedIterator;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// Chunks of one size class, kept as indices: filling the batch copies a piece of a magazine, and
/// freeing its chunks copies the piece back.
///
/// For code that repeatedly needs many chunks at a time: the buffers of one `recvmmsg`, or packets
/// that are dropped together. Chunks leave it one by one by [`pop`](Self::pop) or iteration, and enter
/// it by [`push`](Self::push).
///
/// ```
/// use slab_core::SlabPool;
///
/// let pool = SlabPool::builder().build()?;
/// let mut batch = pool.chunk_batch(2048)?;
/// assert_eq!(batch.fill(32)?, 32);
/// let one = batch.pop().unwrap();
/// batch.clear(); // frees 31 chunks in one step
/// assert_eq!(pool.stats().in_use(), 1);
/// # drop(one);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// Aligned so that the indices never lie across two pages, which would double the time to copy them; and in this
// order, so that what copies 16 bytes of them at a time never lies across two cache lines, which costs 3 to 7 %.
#[repr(C, align(512))]
pub struct ChunkBatch {
    pool: SlabPool,
    place: Place,
    /// What was asked for, in bytes, which a chunk holds.
    request_len: u32,
    units: ArrayVec<u32, { Self::MAX }>,
}

const _: () = assert!(size_of::<ChunkBatch>() == align_of::<ChunkBatch>());

impl SlabPool {
    /// Returns an empty batch for chunks of at least `len` bytes. Takes nothing from the pool yet.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] above the largest class.
    pub fn chunk_batch(&self, len: usize) -> Result<ChunkBatch, AllocError> {
        Ok(ChunkBatch {
            place: self.place_for(len)?,
            pool: self.clone(),
            request_len: len as u32,
            units: ArrayVec::new(),
        })
    }
}

impl ChunkBatch {
    /// The most chunks that a batch holds.
    pub const MAX: usize = 64;

    /// Fills the batch up to `count` chunks, or to [`MAX`](Self::MAX) if that is less, in one step;
    /// returns how many it holds now. If the pool has no more, these are fewer than `count`, but not none; at the cap that
    /// is not counted as [refused](crate::ClassStats::exhausted).
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().max_memory(256 << 10).build()?;
    /// let mut batch = pool.chunk_batch(65536)?;
    /// assert_eq!(batch.fill(32)?, 4, "all there are");
    /// assert_eq!(batch.fill(32)?, 4, "still");
    /// assert!(pool.chunk_batch(65536)?.fill(32).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`SlabPool::try_alloc`], if the batch is empty and the pool has not even one chunk.
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn fill(&mut self, count: usize) -> Result<usize, AllocError> {
        let count = count.min(Self::MAX);
        if let Some(missing @ 1..) = count.checked_sub(self.units.len()) {
            local::with_magazine(Some(self.place), |magazine| {
                magazine
                    .try_pop_many(missing, &mut self.units)
                    .then_some(())
            });
            if self.units.len() < count {
                self.fill_slow(count, Request::new(self.request_len as usize))?;
            }
        }
        if cfg!(slab_asan) {
            let bytes = self.chunk_bytes();
            self.as_ptrs().for_each(|at| asan::unpoison(at, bytes));
        }
        Ok(self.units.len())
    }

    fn chunk_bytes(&self) -> usize {
        self.pool.inner().classes.geometry(self.place.class()).bytes
    }

    /// Fills one by one where the magazine had fewer; each refill brings a batch of the depot or of a slab.
    #[cold]
    #[inline(never)]
    fn fill_slow(&mut self, count: usize, request: Request) -> Result<(), AllocError> {
        while self.len() < count {
            let (pool, class) = (self.pool.inner(), self.place.class());
            let unit = match self.pool.try_alloc_cached(self.place) {
                Some(chunk) => ManuallyDrop::new(chunk).unit(),
                None if self.is_empty() => pool.alloc_slow(class, request)?,
                None => match pool.alloc_slow_if_any(class, request) {
                    Some(unit) => unit,
                    None => return Ok(()),
                },
            };
            self.units.push(unit);
        }
        Ok(())
    }

    /// Frees all chunks in one step, on any thread.
    #[inline]
    pub fn clear(&mut self) {
        if cfg!(slab_asan) {
            let bytes = self.chunk_bytes();
            self.as_ptrs().for_each(|at| asan::poison_freed(at, bytes));
        }
        let freed = local::with_magazine(Some(self.place), |magazine| {
            magazine.try_push_many(&self.units).then_some(())
        });
        if freed.is_some() {
            self.units.clear();
        } else {
            self.free_one_by_one();
        }
    }

    /// Frees one by one where the magazine has no room for all of them.
    #[cold]
    #[inline(never)]
    fn free_one_by_one(&mut self) {
        struct FreeOnDrop<'a>(&'a mut ChunkBatch);

        impl FreeOnDrop<'_> {
            fn free(&mut self) {
                while let Some(chunk) = self.0.pop() {
                    drop(chunk);
                }
            }
        }

        // A free may wake a task that waits for memory. If the waker panics, the rest is freed here.
        impl Drop for FreeOnDrop<'_> {
            fn drop(&mut self) {
                self.free();
            }
        }

        FreeOnDrop(self).free();
    }

    /// Returns how many chunks the batch holds.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Returns whether the batch holds no chunks.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Takes one chunk out, the last one first.
    #[inline]
    pub fn pop(&mut self) -> Option<Chunk> {
        let unit = self.units.pop()?;
        // SAFETY: the batch owned the unit's chunk, and has just given it up.
        Some(unsafe { Chunk::from_id(ChunkId::new(self.place, unit)) })
    }

    /// Adds a chunk, to be freed with the others.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// let packets = (0..100).map(|_| pool.try_alloc(2048)).collect::<Result<Vec<_>, _>>()?;
    /// let mut done = pool.chunk_batch(2048)?;
    /// for packet in packets {
    ///     if let Err(packet) = done.push(packet) {
    ///         done.clear(); // it was full: frees 64
    ///         done.push(packet).expect("there is room");
    ///     }
    /// }
    /// assert_eq!((done.len(), pool.stats().in_use()), (36, 36));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Gives the chunk back if it is of another pool or size class, or the batch is full.
    #[inline]
    pub fn push(&mut self, chunk: Chunk) -> Result<(), Chunk> {
        let fits = chunk.belongs_to(&self.pool) && chunk.class_index() == self.place.class();
        if !fits || self.units.is_full() {
            return Err(chunk);
        }
        self.units.push(ManuallyDrop::new(chunk).unit());
        Ok(())
    }

    /// Returns the chunks' addresses; each is valid as [`Chunk::as_ptr`] says, while its chunk is in the
    /// batch.
    ///
    /// ```
    /// # #[cfg(unix)] {
    /// # use slab_core::SlabPool;
    /// # use std::{io::Write, os::{fd::AsRawFd, unix::net::UnixStream}};
    /// # let pool = SlabPool::builder().build()?;
    /// # let (mut peer, socket) = UnixStream::pair()?;
    /// # peer.write_all(&[7; 3000])?;
    /// let mut batch = pool.chunk_batch(2048)?;
    /// batch.fill(4)?;
    /// let part = |at: std::ptr::NonNull<u8>| libc::iovec { iov_base: at.as_ptr().cast(), iov_len: 2048 };
    /// let parts: Vec<_> = batch.as_ptrs().map(part).collect();
    /// // SAFETY: each part is a chunk of the batch, all of it, which nobody else has.
    /// let bytes = unsafe { libc::readv(socket.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
    /// assert_eq!(bytes, 3000);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn as_ptrs(&self) -> impl ExactSizeIterator<Item = NonNull<u8>> {
        let inner = self.pool.inner();
        self.units.iter().map(|&unit| inner.chunk_ptr(unit))
    }
}

impl Drop for ChunkBatch {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

impl IntoIterator for ChunkBatch {
    type Item = Chunk;
    type IntoIter = IntoChunks;

    fn into_iter(self) -> IntoChunks {
        IntoChunks(self)
    }
}

/// The chunks of a [`ChunkBatch`], one by one; what is left is freed with it.
#[derive(Debug)]
pub struct IntoChunks(ChunkBatch);

impl Iterator for IntoChunks {
    type Item = Chunk;

    #[inline]
    fn next(&mut self) -> Option<Chunk> {
        self.0.pop()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl ExactSizeIterator for IntoChunks {}
impl FusedIterator for IntoChunks {}

impl fmt::Debug for ChunkBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkBatch")
            .field("chunks", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, target_pointer_width = "64", not(any(loom, shuttle))))]
mod tests {
    use crate::SlabPool;

    /// `ArrayVec` keeps its length in front of its elements, which no type says.
    #[test]
    fn indices_begin_where_wide_copies_cross_no_cache_line() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let batch = pool.chunk_batch(64).unwrap();
        assert_eq!(batch.units.as_ptr().addr() % 16, 0);
    }
}
