//! The case `bulk`: [`BULK`] blocks allocated and freed in one step, which only ours has; the peers
//! allocate and free them one by one.

use super::OURS;
use super::peers::{self, Missing};
use crate::alloc::local::{BULK, Local, Shape};
use crate::cpu::ThreadClock;
use crate::measure::Sampler;
use slab_core::{ChunkBatch, SlabPool};
use std::hint::black_box;

pub(crate) fn sampler(peer: &str, len: usize) -> Result<Sampler, Missing> {
    if peer != OURS {
        let shape = Shape::Bulk;
        return peers::visit(peer, len, Local { shape, len });
    }
    let pool = SlabPool::builder()
        .name("versus-bulk")
        .build()
        .expect("the configuration is valid");
    let mut batch = pool.chunk_batch(len).expect("the length has a class");
    Ok(Sampler::timed(move |ops| bulk(&mut batch, ops).into()))
}

/// The chunks stay indices in the batch; their addresses are computed on demand.
#[inline(never)]
fn bulk(batch: &mut ChunkBatch, ops: u64) -> f64 {
    let steps = ops.div_ceil(BULK as u64);
    let clock = ThreadClock::start();
    for _ in 0..steps {
        let filled = batch.fill(black_box(BULK));
        assert_eq!(filled.ok(), Some(BULK), "the pool has room");
        black_box(&mut *batch);
        batch.clear();
    }
    clock.elapsed_ns() / (steps * BULK as u64) as f64
}
