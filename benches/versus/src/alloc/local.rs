//! Cases that stay on one thread: `pair`, `batch`, `random`, and the peers' side of `bulk`. Blocks are
//! neither written nor read.

use super::peers::{Peer, Visit};
use crate::cpu::ThreadClock;
use crate::measure::Sampler;
use std::hint::black_box;
use std::mem;

/// Blocks of a `batch`.
pub(super) const BATCH: usize = 64;
/// Blocks of a `bulk`.
pub(super) const BULK: usize = 32;
/// Blocks that live at once in `random`.
const LIVE: usize = 1024;

#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Allocate one block, free it.
    Pair,
    /// Allocate [`BATCH`] blocks, free them in the same order.
    Batch,
    /// Allocate [`BULK`] blocks, free them in the same order.
    Bulk,
    /// Replace a random one of [`LIVE`] blocks by a new one.
    Random,
}

pub(crate) struct Local {
    pub(crate) shape: Shape,
    pub(crate) len: usize,
}

impl Visit for Local {
    type Out = Sampler;

    fn visit<P: Peer>(self) -> Sampler {
        let len = self.len;
        match self.shape {
            Shape::Pair => {
                let peer = P::open(len, BATCH);
                Sampler::timed(move |ops| pair(&peer, len, ops).into())
            }
            Shape::Batch => {
                let peer = P::open(len, BATCH);
                Sampler::timed(move |ops| batch::<P, BATCH>(&peer, len, ops).into())
            }
            Shape::Bulk => {
                let peer = P::open(len, BULK);
                Sampler::timed(move |ops| batch::<P, BULK>(&peer, len, ops).into())
            }
            Shape::Random => {
                let peer = P::open(len, LIVE + 1);
                let order = random_order();
                Sampler::timed(move |ops| random(&peer, len, ops, &order).into())
            }
        }
    }
}

/// One allocation; the compiler does not know its length and must produce its address.
#[inline(always)]
pub(super) fn alloc<P: Peer>(peer: &P, len: usize) -> P::Block<'_> {
    let mut block = peer.alloc(black_box(len));
    black_box(peer.address(&mut block));
    block
}

#[inline(never)]
pub(super) fn pair<P: Peer>(peer: &P, len: usize, ops: u64) -> f64 {
    let clock = ThreadClock::start();
    for _ in 0..ops {
        peer.free(alloc(peer, len));
    }
    clock.elapsed_ns() / ops as f64
}

#[inline(never)]
pub(super) fn batch<P: Peer, const COUNT: usize>(peer: &P, len: usize, ops: u64) -> f64 {
    let mut held = Vec::with_capacity(COUNT);
    let batches = ops.div_ceil(COUNT as u64);
    let clock = ThreadClock::start();
    for _ in 0..batches {
        held.extend((0..COUNT).map(|_| alloc(peer, len)));
        held.drain(..).for_each(|block| peer.free(block));
    }
    clock.elapsed_ns() / (batches * COUNT as u64) as f64
}

#[inline(never)]
fn random<P: Peer>(peer: &P, len: usize, ops: u64, order: &[u16; 8 * LIVE]) -> f64 {
    let mut held: Vec<_> = (0..LIVE).map(|_| alloc(peer, len)).collect();
    let mut turn = 0;
    let clock = ThreadClock::start();
    for _ in 0..ops {
        let slot = usize::from(order[turn]);
        turn = (turn + 1) % order.len();
        let old = mem::replace(&mut held[slot], alloc(peer, len));
        peer.free(old);
    }
    let per_op = clock.elapsed_ns() / ops as f64;
    held.drain(..).for_each(|block| peer.free(block));
    per_op
}

/// Random slots below [`LIVE`], drawn beforehand and equal for every peer and run: a generator in the loop
/// would cost as much as the fastest peer.
fn random_order() -> Box<[u16; 8 * LIVE]> {
    let mut order = Box::new([0; 8 * LIVE]);
    for (slot, random) in order.iter_mut().zip(random_numbers()) {
        *slot = random as u16 % LIVE as u16;
    }
    order
}

/// Returns the same numbers each time.
pub(super) fn random_numbers() -> impl Iterator<Item = u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u32
    })
}
