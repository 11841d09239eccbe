//! slab-core through its RAII handle.

use super::{Heap, Peer};
use slab_core::{Chunk, SizeClasses, SlabPool};

/// No cap below this: under pressure a pool works differently, and these cases are not about that.
const LEAST_MEMORY: usize = 64 << 20;

pub(crate) struct Ours {
    pool: SlabPool,
}

impl Peer for Ours {
    type Block<'p> = Chunk;

    fn open(len: usize, live: usize) -> Self {
        let pool = SlabPool::builder()
            .name("versus")
            .size_classes(SizeClasses::network())
            .max_memory((len * live * 4).max(LEAST_MEMORY))
            .build()
            .expect("the configuration is valid");
        Self { pool }
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
fn refused(error: &slab_core::AllocError) -> ! {
    panic!("the pool was opened too small for its case: {error}");
}
