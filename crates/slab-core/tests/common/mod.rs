//! What several tests of a pool do.

use slab_core::{AllocError, Chunk, SlabPool};

/// Allocates chunks for this length until the pool is exhausted.
pub(crate) fn fill(pool: &SlabPool, len: usize) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    loop {
        match pool.try_alloc(len) {
            Ok(chunk) => chunks.push(chunk),
            Err(AllocError::Exhausted { .. }) => return chunks,
            Err(error) => panic!("{error}"),
        }
    }
}
