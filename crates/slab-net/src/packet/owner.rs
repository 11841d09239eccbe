//! What keeps a packet's bytes alive: a chunk of a pool, a heap block, somebody else's `Bytes`.

use super::pool::PacketPool;
use super::settings::{self, Settings};
use bytes::Bytes;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use slab_core::SharedChunk;
use std::sync::Arc;

/// The owner of the memory that a [`PacketBuf`](super::PacketBuf) or a
/// [`Packet`](super::Packet) points into. 16 bytes: a chunk handle has a value to spare that tells
/// the two variants apart, so whatever else there is has to fit behind one pointer.
#[derive(Clone)]
pub(super) enum Owner {
    /// A chunk of a pool.
    Pool(SharedChunk),
    /// Other memory; `None` for static bytes, and for no bytes at all.
    Other(Option<Arc<Block>>),
}

const _: () = assert!(size_of::<Owner>() == 16);

/// Memory that is not of a pool.
pub(super) enum Block {
    /// Memory of the global allocator, where a pool could not serve or a `Vec` was given.
    Heap(HeapBlock),
    /// Memory that only somebody else knows how to free; never written.
    Foreign(Bytes),
}

impl Owner {
    pub(super) const NONE: Self = Self::Other(None);

    pub(super) fn heap(block: HeapBlock) -> Self {
        Self::Other(Some(Arc::new(Block::Heap(block))))
    }

    /// Start and size of memory that may be written by whoever owns all of it.
    #[inline]
    pub(super) fn region(&self) -> Option<(NonNull<u8>, usize)> {
        match self {
            Self::Pool(chunk) => Some((chunk.as_ptr(), chunk.capacity())),
            Self::Other(Some(block)) => match &**block {
                Block::Heap(heap) => Some((heap.start, heap.capacity)),
                Block::Foreign(_) => None,
            },
            Self::Other(None) => None,
        }
    }

    /// Is this the only handle to writable memory? What others did with it has then happened
    /// before.
    #[inline]
    pub(super) fn is_unique(&self) -> bool {
        match self {
            Self::Pool(chunk) => chunk.is_unique(),
            Self::Other(Some(block)) => {
                let unique = Arc::strong_count(block) == 1;
                // Pairs with the release in the other handles' drop; no `Weak` is ever made.
                fence(Ordering::Acquire);
                unique && matches!(**block, Block::Heap(_))
            }
            Self::Other(None) => false,
        }
    }

    /// Do both keep the same memory alive?
    #[inline]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pool(a), Self::Pool(b)) => a.same_chunk(b),
            (Self::Other(Some(a)), Self::Other(Some(b))) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The index of the chunk's size class.
    pub(super) fn class(&self) -> Option<usize> {
        match self {
            Self::Pool(chunk) => Some(chunk.class()),
            Self::Other(_) => None,
        }
    }

    /// The pool that the memory is of, or that the heap stood in for; `None` if it is closed.
    pub(super) fn pool(&self) -> Option<PacketPool> {
        match self {
            Self::Pool(chunk) => settings::pool_of(chunk),
            Self::Other(Some(block)) => match &**block {
                Block::Heap(heap) => heap.fallback_of.clone().map(PacketPool::from_settings),
                Block::Foreign(_) => None,
            },
            Self::Other(None) => None,
        }
    }

    pub(super) fn foreign(&self) -> Option<&Bytes> {
        match self {
            Self::Other(Some(block)) => match &**block {
                Block::Foreign(bytes) => Some(bytes),
                Block::Heap(_) => None,
            },
            Self::Other(None) | Self::Pool(_) => None,
        }
    }
}

/// A block of the global allocator, laid out and freed as a `Vec<u8>` of this capacity is.
pub(super) struct HeapBlock {
    start: NonNull<u8>,
    capacity: usize,
    /// The pool that could not serve the request, whose gauge of heap bytes counts this block.
    fallback_of: Option<Arc<Settings>>,
}

// SAFETY: the block is a plain allocation; who reads or writes which part of it is the handles'
// business.
unsafe impl Send for HeapBlock {}
// SAFETY: as above; the block itself offers its address and size only.
unsafe impl Sync for HeapBlock {}

impl HeapBlock {
    /// Takes over the allocation of `vec`, contents included.
    pub(super) fn from_vec(vec: Vec<u8>) -> Self {
        let mut vec = ManuallyDrop::new(vec);
        Self {
            // A vector's pointer is never null.
            start: NonNull::new(vec.as_mut_ptr()).unwrap_or(NonNull::dangling()),
            capacity: vec.capacity(),
            fallback_of: None,
        }
    }

    /// A block of at least `capacity` bytes in place of one that the pool did not have.
    pub(super) fn fallback(capacity: usize, pool: Arc<Settings>) -> Self {
        let mut block = Self::from_vec(Vec::with_capacity(capacity));
        pool.heap_block_made(block.capacity);
        block.fallback_of = Some(pool);
        block
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        if let Some(pool) = &self.fallback_of {
            pool.heap_block_freed(self.capacity);
        }
        // SAFETY: pointer and capacity came out of a `Vec<u8>` that was not dropped; a length of
        // zero asks nothing of the contents.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), 0, self.capacity) });
    }
}
