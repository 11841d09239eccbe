//! The owner of a packet's bytes: a chunk of a pool, a heap block, or foreign `Bytes`.

use super::pool::PacketPool;
use super::settings::{self, Refusal, Settings};
use bytes::Bytes;
use core::mem::{self, ManuallyDrop};
use core::num::NonZeroU64;
use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, fence};
use slab_core::SharedChunk;
use std::sync::Arc;

/// The owner of the memory that a [`PacketBuf`](super::PacketBuf) or a
/// [`Packet`](super::Packet) points into. One word: the bits of a chunk's handle, or the address of a [`Block`] in an
/// `Arc`, rotated so that [`SharedChunk::SET_BIT`] is the lowest bit of the address, which is not set; or none. (So what
/// looks for addresses in memory, as leak checkers do, does not find the block. To rotate the handle instead costs a
/// clone and its drop 5 %.)
pub(super) struct Owner(Option<NonNull<Block>>);

/// What an owner owns.
#[derive(Clone)]
enum Memory {
    /// A chunk of a pool.
    Pool(SharedChunk),
    /// Other memory; `None` for static bytes, and for no bytes at all.
    Other(Option<Arc<Block>>),
}

const _: () = assert!(size_of::<Owner>() == 8 && align_of::<Block>() > 1);

// SAFETY: it is what it owns, which the assertion below shows to be both.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<Memory>();
};

/// Memory outside a pool.
pub(super) enum Block {
    /// Memory of the global allocator: a pool could not serve the request, or a `Vec` was passed in.
    Heap(HeapBlock),
    /// Memory that only its foreign owner can free; never written.
    Foreign(Bytes),
}

#[inline(always)]
fn is_chunk(owner: NonNull<Block>) -> bool {
    owner.addr().get() >> SharedChunk::SET_BIT & 1 == 1
}

/// The block in an owner that is not a chunk.
fn block(owner: NonNull<Block>) -> *const Block {
    let address = |bits: usize| bits.rotate_right(SharedChunk::SET_BIT);
    owner.as_ptr().map_addr(address)
}

impl Owner {
    pub(super) const NONE: Self = Self(None);

    #[inline(always)]
    pub(super) fn chunk(chunk: SharedChunk) -> Self {
        let bits = chunk.into_bits().get() as usize;
        Self(NonNull::new(ptr::without_provenance_mut(bits)))
    }

    pub(super) fn heap(block: HeapBlock) -> Self {
        Self::block(Arc::new(Block::Heap(block)))
    }

    pub(super) fn foreign(bytes: Bytes) -> Self {
        Self::block(Arc::new(Block::Foreign(bytes)))
    }

    fn block(block: Arc<Block>) -> Self {
        let bits = |address: usize| address.rotate_left(SharedChunk::SET_BIT);
        Self(NonNull::new(Arc::into_raw(block).cast_mut().map_addr(bits)))
    }

    fn new(memory: Memory) -> Self {
        match memory {
            Memory::Pool(chunk) => Self::chunk(chunk),
            Memory::Other(None) => Self::NONE,
            Memory::Other(Some(block)) => Self::block(block),
        }
    }

    /// What it owns, for as long as it does.
    #[inline(always)]
    fn memory(&self) -> ManuallyDrop<Memory> {
        ManuallyDrop::new(match self.0 {
            None => Memory::Other(None),
            Some(chunk) if is_chunk(chunk) => {
                let bits = NonZeroU64::try_from(chunk.addr()).expect("64 bits");
                // SAFETY: `chunk` put them there. Not dropped unless the owner is.
                Memory::Pool(unsafe { SharedChunk::from_bits(bits) })
            }
            // SAFETY: `block` put it there. Not dropped unless the owner is.
            Some(other) => Memory::Other(Some(unsafe { Arc::from_raw(block(other)) })),
        })
    }

    /// Returns a clone that is not expected to be dropped last: see [`SharedChunk::lend`].
    #[inline(always)]
    pub(super) fn lend(&self) -> Self {
        Self::new(match &*self.memory() {
            Memory::Pool(chunk) => Memory::Pool(chunk.lend()),
            Memory::Other(block) => Memory::Other(block.clone()),
        })
    }

    /// Returns the chunk, if the memory is one, for as long as it is owned.
    pub(super) fn as_chunk(&self) -> Option<ManuallyDrop<SharedChunk>> {
        match ManuallyDrop::into_inner(self.memory()) {
            Memory::Pool(chunk) => Some(ManuallyDrop::new(chunk)),
            Memory::Other(block) => {
                mem::forget(block);
                None
            }
        }
    }

    /// Returns start and size of the memory, if its only owner may write it.
    #[inline]
    pub(super) fn region(&self) -> Option<(NonNull<u8>, usize)> {
        match &*self.memory() {
            Memory::Pool(chunk) => Some((chunk.as_ptr(), chunk.capacity())),
            Memory::Other(Some(block)) => match &**block {
                Block::Heap(heap) => Some((heap.start, heap.capacity)),
                Block::Foreign(_) => None,
            },
            Memory::Other(None) => None,
        }
    }

    /// Returns whether this is the only handle to writable memory. If so, whatever was done through
    /// other handles happened before.
    #[inline]
    pub(super) fn is_unique(&self) -> bool {
        match &*self.memory() {
            Memory::Pool(chunk) => chunk.is_unique(),
            Memory::Other(Some(block)) => {
                let unique = Arc::strong_count(block) == 1;
                // Pairs with the release in the other handles' drops. No `Weak` is ever made.
                fence(Ordering::Acquire);
                unique && matches!(**block, Block::Heap(_))
            }
            Memory::Other(None) => false,
        }
    }

    /// Returns whether both keep the same memory alive.
    #[inline]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (&*self.memory(), &*other.memory()) {
            (Memory::Pool(a), Memory::Pool(b)) => a.same_chunk(b),
            (Memory::Other(Some(a)), Memory::Other(Some(b))) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The index of the chunk's size class.
    pub(super) fn class(&self) -> Option<usize> {
        self.as_chunk().map(|chunk| chunk.class())
    }

    /// Returns the pool that the memory belongs to, or in whose place the heap served it; `None` for
    /// other memory and for a closed pool.
    pub(super) fn pool(&self) -> Option<PacketPool> {
        match &*self.memory() {
            Memory::Pool(chunk) => settings::pool_of(chunk),
            Memory::Other(Some(block)) => match &**block {
                Block::Heap(heap) => heap.fallback_of.clone().map(PacketPool::from_settings),
                Block::Foreign(_) => None,
            },
            Memory::Other(None) => None,
        }
    }

    pub(super) fn as_foreign(&self) -> Option<&Bytes> {
        let other = self.0.filter(|&owner| !is_chunk(owner))?;
        // SAFETY: the owner keeps the block alive.
        match unsafe { &*block(other) } {
            Block::Foreign(bytes) => Some(bytes),
            Block::Heap(_) => None,
        }
    }
}

impl Clone for Owner {
    #[inline(always)]
    fn clone(&self) -> Self {
        Self::new(Memory::clone(&self.memory()))
    }
}

/// Hands the word over by value: otherwise the compiler passes the owner's address, which keeps every packet in memory
/// instead of in registers.
impl Drop for Owner {
    #[inline(always)]
    fn drop(&mut self) {
        match ManuallyDrop::into_inner(self.memory()) {
            Memory::Pool(chunk) => {
                if let Some(last) = chunk.into_inner() {
                    release(last);
                }
            }
            Memory::Other(None) => {}
            Memory::Other(Some(block)) => release(block),
        }
    }
}

/// The part of a drop that not every reference needs: frees the chunk (a push onto a magazine), or
/// gives up the reference to other memory. Not inlined, so that dropping a packet takes little code.
#[inline(never)]
fn release<T>(memory: T) {
    drop(memory);
}

/// A block of the global allocator, with the layout of a `Vec<u8>` of this capacity.
pub(super) struct HeapBlock {
    start: NonNull<u8>,
    capacity: usize,
    /// The pool that could not serve the request; its gauge of heap bytes counts this block.
    fallback_of: Option<Arc<Settings>>,
}

// SAFETY: the block is a plain allocation; the handles coordinate who reads or writes which part of it.
unsafe impl Send for HeapBlock {}
// SAFETY: as above; the block itself exposes only its address and size.
unsafe impl Sync for HeapBlock {}

impl HeapBlock {
    /// Takes over the allocation of `vec`, including its contents.
    pub(super) fn from_vec(vec: Vec<u8>) -> Self {
        let mut vec = ManuallyDrop::new(vec);
        Self {
            // A vector's pointer is never null.
            start: NonNull::new(vec.as_mut_ptr()).unwrap_or(NonNull::dangling()),
            capacity: vec.capacity(),
            fallback_of: None,
        }
    }

    /// What a block takes at least, as a chunk does: bookkeeping takes nearly as much, and blocks without a byte would
    /// pass any limit.
    pub(super) const MIN_BYTES: usize = 64;

    /// Allocates a block that stands in for a chunk of the pool: of `most` bytes, or as many as the
    /// pool's limit leaves, but no fewer than `least`, and at least 64.
    pub(super) fn fallback(
        least: usize,
        most: usize,
        pool: Arc<Settings>,
    ) -> Result<Self, Refusal> {
        let capacity =
            pool.admit_heap_block(least.max(Self::MIN_BYTES), most.max(Self::MIN_BYTES))?;
        let mut vec = Vec::new();
        if vec.try_reserve_exact(capacity).is_err() {
            pool.heap_block_freed(capacity);
            return Err(Refusal::OutOfMemory { bytes: capacity });
        }
        // A boxed slice of this length would take as much, since the elements are bytes.
        debug_assert_eq!(vec.capacity(), capacity);
        let mut block = Self::from_vec(vec);
        // From here on the block's drop gives the bytes back.
        block.fallback_of.insert(pool).count_heap_block(capacity);
        Ok(block)
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        // SAFETY: pointer and capacity came from a `Vec<u8>` that was not dropped; a length of zero
        // claims nothing about the contents.
        let mut vec = unsafe { Vec::from_raw_parts(self.start.as_ptr(), 0, self.capacity) };
        let Some(pool) = &self.fallback_of else {
            return;
        };
        if pool.slab.zeroes_on_free() {
            slab_core::wipe(vec.spare_capacity_mut());
        }
        drop(vec);
        // Not before the memory is freed: others may take up to the limit at once.
        pool.heap_block_freed(self.capacity);
    }
}
