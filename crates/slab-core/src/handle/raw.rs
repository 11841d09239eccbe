//! Chunks as bare pointers, for memory that passes through foreign code.
//!
//! A pointer identifies its chunk: its distance from the arena's base gives the slab, the slab gives
//! the class, and the class says where chunks start.

use crate::error::{AllocError, NotAChunk};
use crate::handle::chunk::Chunk;
use crate::pool::SlabPool;
use crate::sys::asan;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

impl Chunk {
    /// Gives up the handle without freeing the chunk; returns its address, for
    /// [`chunk_from_raw`](SlabPool::chunk_from_raw) or [`free_raw`](SlabPool::free_raw) to take back.
    ///
    /// Those need a handle to the pool. A chunk that is not taken back is leaked, and keeps the pool's
    /// arena mapped. `chunk_from_raw` has an example.
    #[must_use = "the chunk is leaked unless it is taken back"]
    pub fn into_raw(self) -> NonNull<u8> {
        ManuallyDrop::new(self).as_ptr()
    }
}

impl SlabPool {
    /// Allocates as [`try_alloc`](Self::try_alloc) does, but returns a bare pointer. All bytes of the
    /// size class are valid for reads and writes until the pointer is given back; [`Chunk::as_ptr`] says
    /// what they hold.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// let at = pool.alloc_raw(1500)?;
    /// // SAFETY: `at` was just allocated from this pool and is not used again.
    /// unsafe { pool.free_raw(at) }?;
    /// assert_eq!(pool.stats().in_use(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_alloc`](Self::try_alloc).
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn alloc_raw(&self, len: usize) -> Result<NonNull<u8>, AllocError> {
        self.try_alloc(len).map(Chunk::into_raw)
    }

    /// Frees a chunk by its pointer, on any thread.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # use std::ptr::NonNull;
    /// # let pool = SlabPool::builder().build()?;
    /// /// What a library in C calls to free a buffer, which is one of the pool's or one of `malloc`'s.
    /// unsafe fn free_buffer(pool: &SlabPool, at: NonNull<u8>) {
    ///     // SAFETY: the library gives it up.
    ///     if unsafe { pool.free_raw(at) }.is_err() {
    ///         // SAFETY: as above.
    ///         unsafe { libc::free(at.as_ptr().cast()) };
    ///     }
    /// }
    /// # let buffer = NonNull::new(unsafe { libc::malloc(100) }.cast()).expect("there is memory");
    /// # unsafe { free_buffer(&pool, buffer) };
    /// # unsafe { free_buffer(&pool, pool.alloc_raw(100)?) };
    /// # assert_eq!(pool.stats().in_use(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NotAChunk`] if the pointer is not the start of a chunk of this pool; nothing is freed.
    ///
    /// # Safety
    /// As [`chunk_from_raw`](Self::chunk_from_raw).
    pub unsafe fn free_raw(&self, at: NonNull<u8>) -> Result<(), NotAChunk> {
        // SAFETY: the caller's promise.
        unsafe { self.chunk_from_raw(at) }.map(drop)
    }

    /// Returns the handle of a chunk whose pointer came from [`alloc_raw`](Self::alloc_raw) or
    /// [`Chunk::into_raw`].
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # use std::{ffi::c_void, ptr::NonNull};
    /// # let pool = SlabPool::builder().build()?;
    /// let chunk = pool.try_alloc(1500)?;
    /// // What foreign code keeps, and gives back when it is done with the memory.
    /// let user_data: *mut c_void = chunk.into_raw().as_ptr().cast();
    /// assert_eq!(pool.stats().in_use(), 1);
    ///
    /// let at = NonNull::new(user_data.cast()).expect("of a chunk");
    /// // SAFETY: it came from `into_raw`, and is not used again.
    /// let chunk = unsafe { pool.chunk_from_raw(at) }?;
    /// assert_eq!(chunk.capacity(), 1536);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NotAChunk`] if the pointer is not the start of a chunk of this pool. Not every pointer that
    /// came from elsewhere is detected.
    ///
    /// # Safety
    /// If the pointer is the start of a chunk of this pool, it must have come from one of these
    /// functions, and must not have been taken back since.
    pub unsafe fn chunk_from_raw(&self, at: NonNull<u8>) -> Result<Chunk, NotAChunk> {
        let inner = self.inner();
        let (class, unit) = inner.find_chunk(at).ok_or(NotAChunk(()))?;
        if let Some(hardening) = &inner.hardening
            && !hardening.is_in_use(unit)
        {
            return Err(NotAChunk(()));
        }
        if cfg!(slab_asan) {
            asan::assert_not_poisoned(at);
        }
        // SAFETY: a chunk of this pool and class; that nobody else has it is the caller's promise.
        Ok(unsafe { Chunk::new(inner, class, unit) })
    }
}
