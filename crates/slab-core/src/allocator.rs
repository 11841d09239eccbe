//! [`SlabAllocator`]: collections that live in a pool, by the `allocator-api2` interface.

use crate::error::ConfigError;
use crate::handle::chunk::Chunk;
use crate::pool::SlabPool;
use crate::pool::builder::SlabPoolBuilder;
use allocator_api2::alloc::{AllocError, Allocator};
use core::alloc::Layout;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// A pool behind the `Allocator` interface of `allocator-api2`, so that its `Vec` and `Box`,
/// `hashbrown`'s maps and others can live in it. Behind the feature `allocator-api2`.
///
/// It owns a pool that serves nothing else, as a [`Slab`](crate::Slab) does: what a collection stores may have
/// padding, which is uninitialised as far as the language is concerned, and does not get into a byte pool.
///
/// A block is one chunk, so the largest class limits what a `Vec` or a map can hold: 64 KiB by default, 1 MiB
/// with [`SizeClasses::general`](crate::SizeClasses::general). Nothing comes from the heap, whatever
/// [`max_oversize_memory`](SlabPoolBuilder::max_oversize_memory) says. Growing and shrinking within its size class
/// moves nothing. A collection that grows from nothing passes through many classes, so the
/// [cap](SlabPoolBuilder::max_memory) should be many slabs; one made with its capacity takes one class. A request
/// fails if it is above the largest class, needs an alignment that no class [has](crate::SizeClasses::align), or
/// meets the cap. Use `try_reserve` and the like: methods that cannot return an error end the process then, as they
/// do when the heap has no memory.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use slab_core::{SlabAllocator, SlabPool};
///
/// let alloc = SlabAllocator::open(SlabPool::builder().name("lines"))?;
/// let mut line = Vec::new_in(alloc.clone());
/// line.extend_from_slice(b"in the pool");
/// assert_eq!(alloc.pool().stats().in_use(), 1);
///
/// // More than the largest class.
/// assert!(line.try_reserve(1 << 20).is_err());
/// # Ok::<(), slab_core::ConfigError>(())
/// ```
///
/// A table of sessions, which lie in a typed slab:
///
/// ```
/// use hashbrown::{DefaultHashBuilder, HashMap};
/// use slab_core::{Slab, SlabAllocator, SlabBox, SlabPool};
///
/// type Table = HashMap<u64, SlabBox<[u64; 8]>, DefaultHashBuilder, SlabAllocator>;
///
/// let sessions = Slab::<[u64; 8]>::builder().name("sessions").max_objects(1000).build()?;
/// let alloc = SlabAllocator::open(SlabPool::builder().name("table"))?;
/// let mut table = Table::with_capacity_in(1000, alloc.clone());
/// table.insert(7, sessions.try_insert([0; 8])?);
/// assert_eq!((sessions.pool().stats().in_use(), alloc.pool().stats().in_use()), (1, 1));
///
/// table.remove(&7);
/// drop(table);
/// assert_eq!((sessions.pool().stats().in_use(), alloc.pool().stats().in_use()), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SlabAllocator {
    pool: SlabPool,
}

impl SlabAllocator {
    /// Opens a pool for this allocator alone.
    ///
    /// # Errors
    /// As [`SlabPoolBuilder::build`].
    pub fn open(pool: SlabPoolBuilder) -> Result<Self, ConfigError> {
        Ok(Self {
            pool: pool.build()?,
        })
    }

    /// Returns the pool, for its statistics, [`trim`](SlabPool::trim) and so on: a block is one chunk.
    #[doc(alias = "stats")]
    #[must_use]
    pub fn pool(&self) -> &SlabPool {
        &self.pool
    }

    /// Returns how many bytes to ask the pool for, so that the chunk fits the layout.
    #[inline]
    fn request_len(&self, layout: Layout) -> Result<usize, AllocError> {
        if layout.align() <= crate::CHUNK_ALIGN {
            return Ok(layout.size());
        }
        let classes = self.pool.size_classes();
        let class = classes
            .class_for_aligned(layout.size(), layout.align())
            .ok_or(AllocError)?;
        Ok(classes.sizes()[class])
    }

    /// Returns the chunk of a block; the block still owns it.
    ///
    /// # Safety
    /// `at` is a block of this allocator, not of size zero, and alive.
    #[inline]
    unsafe fn chunk(&self, at: NonNull<u8>) -> ManuallyDrop<Chunk> {
        // SAFETY: the caller's promise: the chunk was given up for its pointer.
        let chunk = unsafe { self.pool.chunk_from_raw(at) };
        // The caller has promised that this does not fail.
        ManuallyDrop::new(chunk.expect("a block of this allocator"))
    }

    /// Moves a block's first `keep` bytes to `to`, and frees it.
    ///
    /// # Safety
    /// As for [`chunk`](Self::chunk); `keep` is not above the size of either block; the block at
    /// `at` is not used any more.
    unsafe fn move_to(&self, at: NonNull<u8>, to: NonNull<[u8]>, keep: usize) {
        // SAFETY: two blocks of at least `keep` bytes, and never the same, since both are alive.
        unsafe { at.copy_to_nonoverlapping(to.cast(), keep) };
        // SAFETY: the caller's promise.
        let chunk = unsafe { self.chunk(at) };
        drop(ManuallyDrop::into_inner(chunk));
    }

    /// Returns the block that replaces `at` for a larger layout; its further bytes hold anything.
    ///
    /// # Safety
    /// As for [`Allocator::grow`].
    unsafe fn grow_block(
        &self,
        at: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if old.size() == 0 {
            return self.allocate(new);
        }
        // SAFETY: a block, by the caller's promise; not of size zero.
        let chunk = unsafe { self.chunk(at) };
        if new.size() <= chunk.capacity() && is_aligned(at, new) {
            return Ok(NonNull::slice_from_raw_parts(at, chunk.capacity()));
        }
        let to = self.allocate(new)?;
        // SAFETY: the old block has `old.size()` bytes and the new one more; the old one is given
        // up by the caller.
        unsafe { self.move_to(at, to, old.size()) };
        Ok(to)
    }
}

/// A block of size zero: no chunk, and an address that is aligned and not null.
fn zero_sized_block(layout: Layout) -> NonNull<[u8]> {
    let at = core::ptr::without_provenance_mut(layout.align());
    let at = NonNull::new(at).expect("an alignment is not zero");
    NonNull::slice_from_raw_parts(at, 0)
}

fn is_aligned(at: NonNull<u8>, layout: Layout) -> bool {
    at.addr().get().is_multiple_of(layout.align())
}

/// The block of a chunk that was just allocated: all of it.
fn block(chunk: Chunk) -> NonNull<[u8]> {
    let bytes = chunk.capacity();
    NonNull::slice_from_raw_parts(chunk.into_raw(), bytes)
}

// SAFETY: a block is a chunk of the pool, which nobody else has until it is deallocated, and
// which a chunk in use keeps mapped. Clones are handles to the same pool. `request_len` honours size
// and alignment, and `deallocate` finds the class by the address, so any layout that fits will do.
unsafe impl Allocator for SlabAllocator {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(zero_sized_block(layout));
        }
        let chunk = self.pool.try_alloc(self.request_len(layout)?);
        chunk.map(block).map_err(|_| AllocError)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(zero_sized_block(layout));
        }
        let chunk = self.pool.try_alloc_zeroed(self.request_len(layout)?);
        chunk.map(block).map_err(|_| AllocError)
    }

    #[inline]
    unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            // SAFETY: the caller's promise.
            let chunk = unsafe { self.chunk(at) };
            drop(ManuallyDrop::into_inner(chunk));
        }
    }

    unsafe fn grow(
        &self,
        at: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.grow_block(at, old, new) }
    }

    unsafe fn grow_zeroed(
        &self,
        at: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        let grown = unsafe { self.grow_block(at, old, new) }?;
        // SAFETY: `old.size()` is within the block, which is at least `new.size()` bytes long.
        let rest = unsafe { grown.cast::<u8>().add(old.size()) };
        // Not what the block has beyond that, or each small step in a large chunk would zero all of its rest.
        // SAFETY: from there to the new size; the caller owns it.
        unsafe { rest.write_bytes(0, new.size() - old.size()) };
        Ok(NonNull::slice_from_raw_parts(grown.cast(), new.size()))
    }

    unsafe fn shrink(
        &self,
        at: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if new.size() == 0 {
            // SAFETY: the caller's promise.
            unsafe { self.deallocate(at, old) };
            return Ok(zero_sized_block(new));
        }
        // SAFETY: a block, by the caller's promise; not of size zero, because `new` is smaller.
        let chunk = unsafe { self.chunk(at) };
        let classes = self.pool.size_classes();
        let class = classes.class_for_aligned(new.size(), new.align());
        let in_place =
            is_aligned(at, new).then(|| NonNull::slice_from_raw_parts(at, chunk.capacity()));
        // Above it, or in none, if the block happens to be aligned to more than its class promises.
        if let Some(block) = in_place
            && class.is_none_or(|class| class >= chunk.class())
        {
            return Ok(block);
        }
        // A smaller chunk would do. At the cap there may be none: then the large one stays.
        let to = match in_place {
            Some(large) => match self.pool.try_alloc_spare(self.request_len(new)?) {
                Some(chunk) => block(chunk),
                None => return Ok(large),
            },
            None => self.allocate(new)?,
        };
        // SAFETY: both blocks have at least `new.size()` bytes; the old one is given up by the caller.
        unsafe { self.move_to(at, to, new.size()) };
        Ok(to)
    }
}

impl fmt::Debug for SlabAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SlabAllocator").field(&self.pool).finish()
    }
}
