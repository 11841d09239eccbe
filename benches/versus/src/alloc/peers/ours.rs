//! slab-core through its RAII handle.

use super::Heap;
use slab_core::{SizeClasses, SlabPool};

/// The smallest cap: under pressure a pool works differently, which these cases are not about.
pub(super) const MIN_POOL_MEMORY: usize = 64 << 20;

pub(crate) struct Ours {
    pool: SlabPool,
}

impl Ours {
    /// Builds a pool with a class for each of these lengths, and room for so many blocks of the longest.
    pub(crate) fn with_classes(lens: &[usize], live: usize) -> Self {
        let longest = lens.last().copied().unwrap_or(1);
        let classes = SizeClasses::explicit(lens).expect("the classes are valid");
        Self::of(classes, longest * live)
    }

    fn of(classes: SizeClasses, memory: usize) -> Self {
        let pool = SlabPool::builder()
            .name("versus")
            .size_classes(classes)
            .max_memory(memory.max(MIN_POOL_MEMORY))
            .build()
            .expect("the configuration is valid");
        Self { pool }
    }
}

/// A pool of a build of slab-core, as a peer.
macro_rules! peer {
    ($pool:ident, $build:ident, $open:expr) => {
        impl super::Peer for $pool {
            type Block<'p> = $build::Chunk;

            fn open(len: usize, live: usize) -> Self {
                $open($build::SizeClasses::network(), len * live * 4)
            }

            #[inline(always)]
            fn alloc(&self, len: usize) -> $build::Chunk {
                match self.pool.try_alloc(len) {
                    Ok(chunk) => chunk,
                    Err(error) => super::ours::refused(&error),
                }
            }

            #[inline(always)]
            fn address(&self, block: &mut $build::Chunk) -> *mut u8 {
                block.as_ptr().as_ptr()
            }

            #[inline(always)]
            fn free(&self, block: $build::Chunk) {
                drop(block);
            }
        }
    };
}
pub(super) use peer;

peer!(Ours, slab_core, Ours::of);

// SAFETY: `as_ptr` is the address of the chunk, whose capacity is at least the requested length.
unsafe impl Heap for Ours {
    fn release_free_memory(&self) -> bool {
        self.pool.trim();
        true
    }
}

#[cold]
pub(super) fn refused(error: &dyn std::error::Error) -> ! {
    panic!("the pool was opened too small for its case: {error}");
}
