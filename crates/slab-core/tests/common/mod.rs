//! What several tests of a pool do.
// No test uses all of it.
#![allow(dead_code)]

use slab_core::{AllocError, Chunk, Mode, SlabPool};

/// Every way to run a pool. With `std` the first has magazines, and no other.
pub(crate) const MODES: [Mode; 4] = [
    Mode::ThreadCached,
    Mode::DepotOnly,
    Mode::Ring,
    Mode::Locked,
];

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
