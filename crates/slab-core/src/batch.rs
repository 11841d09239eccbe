//! [`ChunkBatch`]: chunks that are allocated, or freed, in one step.

use crate::call_site::CallSite;
use crate::chunk::{Chunk, Name};
use crate::error::AllocError;
use crate::local;
use crate::pool::SlabPool;
use crate::sys::asan;
use crate::thread_cache::Place;
use arrayvec::ArrayVec;
use core::fmt;
use core::iter::FusedIterator;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// Chunks of one size class, kept as indices: filling it copies a piece of a magazine, and freeing
/// what it holds copies the piece back.
///
/// Meant for who needs many at a time and again and again: the buffers of one `recvmmsg`, or
/// packets that are dropped together. Chunks leave it one by one by [`pop`](Self::pop) or
/// iteration, and enter it by [`push`](Self::push).
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
// So aligned that the indices never lie across two pages, which costs copying them twice the time.
#[repr(align(512))]
pub struct ChunkBatch {
    pool: SlabPool,
    place: Place,
    units: ArrayVec<u32, { Self::MAX }>,
}

const _: () = assert!(size_of::<ChunkBatch>() == align_of::<ChunkBatch>());

impl SlabPool {
    /// An empty batch for chunks of at least `len` bytes. Takes nothing from the pool yet.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] above the largest class.
    pub fn chunk_batch(&self, len: usize) -> Result<ChunkBatch, AllocError> {
        Ok(ChunkBatch {
            place: self.place_for(len)?,
            pool: self.clone(),
            units: ArrayVec::new(),
        })
    }
}

impl ChunkBatch {
    /// Chunks in a batch, at most.
    pub const MAX: usize = 64;

    /// Allocates in one step what is missing to `count` chunks, or to [`MAX`](Self::MAX) if that is
    /// less; returns how many there are now. Fewer if the pool has no more, at least one.
    ///
    /// # Errors
    /// As [`SlabPool::try_alloc`], if the batch is empty and not even one chunk can be had.
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn fill(&mut self, count: usize) -> Result<usize, AllocError> {
        let count = count.min(Self::MAX);
        if let Some(missing @ 1..) = count.checked_sub(self.units.len()) {
            local::with_current(self.pool.inner_ptr().as_ptr(), |cache| {
                cache
                    .magazine_at(self.place)
                    .try_pop_many(missing, &mut self.units)
                    .then_some(())
            });
            if self.units.len() < count {
                self.fill_slow(count, CallSite::here())?;
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

    /// The magazine had fewer: one by one, each refill another batch of the depot or of a slab.
    #[cold]
    #[inline(never)]
    fn fill_slow(&mut self, count: usize, call_site: CallSite) -> Result<(), AllocError> {
        while self.len() < count {
            let unit = match self.pool.try_alloc_cached(self.place) {
                Some(chunk) => ManuallyDrop::new(chunk).unit(),
                None => match self.pool.inner().alloc_slow(self.place.class(), call_site) {
                    Ok(unit) => unit,
                    Err(error) if self.is_empty() => return Err(error),
                    Err(_) => return Ok(()),
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
        let freed = local::with_current(self.pool.inner_ptr().as_ptr(), |cache| {
            cache
                .magazine_at(self.place)
                .try_push_many(&self.units)
                .then_some(())
        });
        if freed.is_some() {
            self.units.clear();
        } else {
            self.free_one_by_one();
        }
    }

    /// Where they do not fit as a whole.
    #[cold]
    #[inline(never)]
    fn free_one_by_one(&mut self) {
        struct Rest<'a>(&'a mut ChunkBatch);

        impl Rest<'_> {
            fn free(&mut self) {
                while let Some(chunk) = self.0.pop() {
                    drop(chunk);
                }
            }
        }

        // A free may wake who waits for memory. A waker that panics does not keep the others.
        impl Drop for Rest<'_> {
            fn drop(&mut self) {
                self.free();
            }
        }

        Rest(self).free();
    }

    /// How many chunks it holds.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Does it hold none?
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
        Some(unsafe { Chunk::at(self.pool.inner_ptr(), Name::new(self.place, unit)) })
    }

    /// Puts a chunk in, to be freed with the others.
    ///
    /// # Errors
    /// The chunk comes back if it is of another pool or size class, or the batch is full.
    #[inline]
    pub fn push(&mut self, chunk: Chunk) -> Result<(), Chunk> {
        let fits = chunk.belongs_to(&self.pool) && chunk.class_index() == self.place.class();
        if !fits || self.units.is_full() {
            return Err(chunk);
        }
        self.units.push(ManuallyDrop::new(chunk).unit());
        Ok(())
    }

    /// The chunks' addresses; each is valid as [`Chunk::as_ptr`] says, while the batch has it.
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
