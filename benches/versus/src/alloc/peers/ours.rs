//! slab-core through its RAII handle.

use super::{Heap, Peer};
use slab_core::{Chunk, SizeClasses, SlabPool};

/// No cap below this: under pressure a pool works differently, and these cases are not about that.
pub(super) const LEAST_MEMORY: usize = 64 << 20;

pub(crate) struct Ours {
    pool: SlabPool,
}

impl Ours {
    /// A class for each of these lengths, and room for so many blocks of the longest.
    pub(crate) fn with_classes(lens: &[usize], live: usize) -> Self {
        let longest = lens.last().copied().unwrap_or(1);
        let classes = SizeClasses::explicit(lens).expect("the classes are valid");
        Self::of(classes, longest * live)
    }

    fn of(classes: SizeClasses, memory: usize) -> Self {
        let pool = SlabPool::builder()
            .name("versus")
            .size_classes(classes)
            .max_memory(memory.max(LEAST_MEMORY))
            .build()
            .expect("the configuration is valid");
        Self { pool }
    }
}

impl Peer for Ours {
    type Block<'p> = Chunk;

    fn open(len: usize, live: usize) -> Self {
        Self::of(SizeClasses::network(), len * live * 4)
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> Chunk {
        match self.pool.try_alloc(len) {
            Ok(chunk) => chunk,
            Err(error) => refused(&error),
        }
    }

    #[inline(always)]
    fn address(&self, block: &mut Chunk) -> *mut u8 {
        block.as_ptr().as_ptr()
    }

    #[inline(always)]
    fn free(&self, block: Chunk) {
        drop(block);
    }
}

// SAFETY: `as_ptr` is that of the chunk's capacity, at least what was asked for.
unsafe impl Heap for Ours {
    fn give_back(&self) -> bool {
        self.pool.trim();
        true
    }
}

#[cold]
pub(super) fn refused(error: &dyn std::error::Error) -> ! {
    panic!("the pool was opened too small for its case: {error}");
}
