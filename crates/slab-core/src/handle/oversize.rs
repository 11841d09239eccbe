//! Requests above the largest size class, served by the heap under a cap of their own.

use crate::class::CHUNK_ALIGN;
use crate::error::AllocError;
use crate::handle::chunk::Chunk;
use crate::handle::wipe::wipe;
use crate::pool::SlabPool;
use crate::sys::ENOMEM;
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::sync::Arc;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The account of a pool's heap blocks. Outlives the pool if they do.
#[derive(Debug)]
pub(crate) struct Oversize {
    max_bytes: usize,
    zero_on_free: bool,
    bytes: AtomicUsize,
    allocs: AtomicU64,
    refused: AtomicU64,
}

impl Oversize {
    /// None where nothing may be on the heap.
    pub(crate) fn new(max_bytes: usize, zero_on_free: bool) -> Option<Arc<Self>> {
        let account = || {
            Arc::new(Self {
                max_bytes,
                zero_on_free,
                bytes: AtomicUsize::new(0),
                allocs: AtomicU64::new(0),
                refused: AtomicU64::new(0),
            })
        };
        (max_bytes > 0).then(account)
    }

    /// Bytes on the heap now.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn allocs(&self) -> u64 {
        self.allocs.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Sets bytes aside, unless that would pass the cap.
    fn reserve(&self, bytes: usize) -> bool {
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                now.checked_add(bytes).filter(|&sum| sum <= self.max_bytes)
            })
            .is_ok()
    }
}

/// A block of the heap, for a request above the largest size class; freed on drop.
pub struct HeapChunk {
    at: NonNull<u8>,
    layout: Layout,
    home: Arc<Oversize>,
}

// SAFETY: exclusive ownership of a piece of memory.
unsafe impl Send for HeapChunk {}
// SAFETY: a shared one offers its address and size, nothing that writes.
unsafe impl Sync for HeapChunk {}

impl HeapChunk {
    fn new(home: &Arc<Oversize>, len: usize) -> Result<Self, AllocError> {
        let refused = |error| {
            home.refused.fetch_add(1, Ordering::Relaxed);
            error
        };
        let over_cap = AllocError::OversizeExhausted {
            requested: len,
            limit: home.max_bytes,
        };
        let layout = Layout::from_size_align(len, CHUNK_ALIGN).map_err(|_| refused(over_cap))?;
        if !home.reserve(len) {
            return Err(refused(over_cap));
        }
        // SAFETY: longer than the largest size class, so not empty.
        let at = unsafe { alloc_zeroed(layout) };
        let Some(at) = NonNull::new(at) else {
            home.bytes.fetch_sub(len, Ordering::Relaxed);
            return Err(refused(AllocError::Commit { errno: ENOMEM }));
        };
        home.allocs.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            at,
            layout,
            home: Arc::clone(home),
        })
    }

    /// Returns the address of the first byte, aligned to [`CHUNK_ALIGN`]; valid as [`Chunk::as_ptr`] says.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.at
    }

    /// Returns the usable size in bytes: what was asked for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for HeapChunk {
    fn drop(&mut self) {
        let len = self.layout.size();
        if self.home.zero_on_free {
            let at = self.at.as_ptr().cast::<MaybeUninit<u8>>();
            // SAFETY: the block has as many bytes, which are ours alone.
            wipe(unsafe { core::slice::from_raw_parts_mut(at, len) });
        }
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
        self.home.bytes.fetch_sub(len, Ordering::Relaxed);
    }
}

impl fmt::Debug for HeapChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapChunk")
            .field("capacity", &self.layout.size())
            .field("at", &self.at)
            .finish()
    }
}

/// A chunk of the pool or, above the largest size class, of the heap.
#[derive(Debug)]
pub enum AnyChunk {
    /// A chunk of a size class.
    Pool(Chunk),
    /// A heap block, longer than the largest size class.
    Heap(HeapChunk),
}

impl AnyChunk {
    /// Returns a pointer to the first byte, aligned to [`CHUNK_ALIGN`]; valid as [`Chunk::as_ptr`] says.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        match self {
            Self::Pool(chunk) => chunk.as_ptr(),
            Self::Heap(chunk) => chunk.as_ptr(),
        }
    }

    /// Returns the usable size in bytes: that of the size class or, on the heap, what was asked for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match self {
            Self::Pool(chunk) => chunk.capacity(),
            Self::Heap(chunk) => chunk.capacity(),
        }
    }

    /// Fills the chunk with zeros and returns all of it.
    pub fn fill_zero(&mut self) -> &mut [u8] {
        let (at, capacity) = (self.as_ptr().as_ptr(), self.capacity());
        // SAFETY: these bytes are ours alone while `self` is borrowed.
        unsafe { core::ptr::write_bytes(at, 0, capacity) };
        // SAFETY: as above, and just initialised.
        unsafe { core::slice::from_raw_parts_mut(at, capacity) }
    }

    /// Copies `data` to the front and returns the copy; `None`, and nothing copied, if `data` is longer than the
    /// chunk.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().max_oversize_memory(1 << 20).build()?;
    /// let mut large = pool.try_alloc_any(200_000)?;
    /// assert_eq!(large.try_copy_from_slice(b"datagram").expect("it fits"), b"datagram");
    /// assert!(large.try_copy_from_slice(&[7; 200_001]).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "nothing is copied if the data does not fit"]
    pub fn try_copy_from_slice(&mut self, data: &[u8]) -> Option<&mut [u8]> {
        if data.len() > self.capacity() {
            return None;
        }
        let at = self.as_ptr().as_ptr();
        // SAFETY: `data` fits, and cannot overlap: these bytes are ours alone while `self` is
        // borrowed mutably.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len()) };
        // SAFETY: as above, and just written.
        Some(unsafe { core::slice::from_raw_parts_mut(at, data.len()) })
    }

    /// Returns all of the chunk, as [`Chunk::as_uninit_mut`] does.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().max_oversize_memory(1 << 20).build()?;
    /// let mut large = pool.try_alloc_any(200_000)?;
    /// assert_eq!(large.as_uninit_mut().len(), 200_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn as_uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let at = self.as_ptr().cast().as_ptr();
        // SAFETY: these bytes are ours alone while `self` is borrowed, and any bytes are a `MaybeUninit`.
        unsafe { core::slice::from_raw_parts_mut(at, self.capacity()) }
    }
}

impl From<Chunk> for AnyChunk {
    fn from(chunk: Chunk) -> Self {
        Self::Pool(chunk)
    }
}

impl From<HeapChunk> for AnyChunk {
    fn from(chunk: HeapChunk) -> Self {
        Self::Heap(chunk)
    }
}

impl SlabPool {
    /// Allocates as [`try_alloc`](Self::try_alloc) does, but serves requests above the largest size
    /// class from the heap, up to
    /// [`max_oversize_memory`](crate::SlabPoolBuilder::max_oversize_memory) bytes at a time. The statistics
    /// count them.
    ///
    /// ```
    /// # use slab_core::{AnyChunk, SlabPool};
    /// let pool = SlabPool::builder().max_oversize_memory(1 << 20).build()?;
    /// assert!(matches!(pool.try_alloc_any(1500)?, AnyChunk::Pool(_)));
    /// let large = pool.try_alloc_any(200_000)?;
    /// assert_eq!(large.capacity(), 200_000);
    /// assert_eq!(pool.stats().oversize_bytes, 200_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As `try_alloc`; [`AllocError::OversizeExhausted`] where the heap's share is used up, and
    /// [`AllocError::Commit`] where the heap has no memory.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_alloc_any(&self, len: usize) -> Result<AnyChunk, AllocError> {
        let inner = self.inner();
        if let Some(oversize) = &inner.oversize
            && len > self.size_classes().largest()
        {
            inner.record_request(len);
            return HeapChunk::new(oversize, len).map(AnyChunk::Heap);
        }
        self.try_alloc(len).map(AnyChunk::Pool)
    }
}
