//! slab-core built without its counters, of the pool that [`Ours`](super::Ours) opens.

use super::Peer;
use slab_core_uncounted::{Chunk, SlabPool};

pub(crate) struct Uncounted {
    pool: SlabPool,
}

impl Peer for Uncounted {
    type Block<'p> = Chunk;

    fn open(len: usize, live: usize) -> Self {
        let pool = SlabPool::builder()
            .name("versus-uncounted")
            .max_memory((len * live * 4).max(super::ours::LEAST_MEMORY))
            .build()
            .expect("the configuration is valid");
        Self { pool }
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> Chunk {
        match self.pool.try_alloc(len) {
            Ok(chunk) => chunk,
            Err(error) => super::ours::refused(&error),
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
