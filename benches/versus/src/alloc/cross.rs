//! Cases in which a block is freed on another thread than the one that allocated it, each thread pinned to
//! its own CPU: `cross` (a stream through a ring), `remote-free` (the frees alone).

use super::peers::{Peer, VisitShared};
use crate::cpu::{Cpus, Distance, PingPong, ThreadClock, pin, spin_until};
use crate::measure::{Reading, Sampler};
use std::hint::black_box;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

/// The most blocks between the two threads of `cross`.
const RING: usize = 1024;
/// A side that finds the ring full or empty waits until this much of it is free or filled: if every single
/// block woke it, the two sides would only measure one cache line going to and fro.
const WAKE_SLOTS: usize = RING / 4;
/// Blocks freed in one go by `remote-free`.
const BLOCKS_PER_ROUND: usize = 8192;

#[derive(Clone, Copy)]
pub(crate) enum Crossing {
    /// One thread allocates, a ring carries the blocks, another thread frees them.
    Stream,
    /// One thread allocates [`BLOCKS_PER_ROUND`] blocks and another frees them; only the frees are timed.
    RemoteFree,
}

pub(crate) struct Cross {
    pub(crate) crossing: Crossing,
    pub(crate) len: usize,
    /// Where the allocating and the freeing thread run.
    pub(crate) main: usize,
    pub(crate) other: usize,
}

impl Cross {
    pub(crate) fn new(crossing: Crossing, len: usize, cpus: Cpus) -> Option<Self> {
        Some(Self {
            crossing,
            len,
            main: cpus.main,
            other: cpus.other?,
        })
    }
}

impl VisitShared for Cross {
    type Out = Sampler;

    fn visit<P>(self) -> Sampler
    where
        P: Peer + Sync,
        for<'p> P::Block<'p>: Send,
    {
        let live = match self.crossing {
            Crossing::Stream => 2 * RING,
            Crossing::RemoteFree => BLOCKS_PER_ROUND,
        };
        let peer = P::open(self.len, live);
        Sampler::timed(move |ops| match self.crossing {
            Crossing::Stream => stream(&peer, &self, ops),
            Crossing::RemoteFree => remote_free(&peer, &self, ops),
        })
    }
}

/// The wall time from the first allocation to the last free, per block.
fn stream<P>(peer: &P, cross: &Cross, ops: u64) -> Reading
where
    P: Peer + Sync,
    for<'p> P::Block<'p>: Send,
{
    let (mut producer, mut consumer) = rtrb::RingBuffer::new(RING);
    let (before, after) = (PingPong::default(), PingPong::default());
    pin(cross.main);
    thread::scope(|scope| {
        let freeing = scope.spawn(|| {
            pin(cross.other);
            before.answer();
            let mut left = ops;
            while left > 0 {
                match consumer.pop() {
                    Ok(block) => {
                        peer.free(block);
                        left -= 1;
                    }
                    Err(rtrb::PopError::Empty) => {
                        spin_until(|| consumer.slots() >= WAKE_SLOTS.min(left as usize));
                    }
                }
            }
            let end = Instant::now();
            after.answer();
            end
        });
        let before_ns = before.measure();
        let start = Instant::now();
        for _ in 0..ops {
            let mut block = peer.alloc(black_box(cross.len));
            black_box(peer.address(&mut block));
            if let Err(rtrb::PushError::Full(block)) = producer.push(block) {
                spin_until(|| producer.slots() >= WAKE_SLOTS);
                // Nobody else pushes, so there is room now.
                if producer.push(block).is_err() {
                    unreachable!("the ring has a free slot");
                }
            }
        }
        let after_ns = after.measure();
        let end = freeing.join().expect("the freeing thread does not panic");
        Reading {
            value: (end - start).as_nanos() as f64 / ops as f64,
            distance: Some(Distance::between(before_ns, after_ns)),
        }
    })
}

/// The CPU time of the freeing thread per block, with the handles already in its cache.
fn remote_free<P>(peer: &P, cross: &Cross, ops: u64) -> Reading
where
    P: Peer + Sync,
    for<'p> P::Block<'p>: Send,
{
    let rounds = ops.div_ceil(BLOCKS_PER_ROUND as u64);
    let (before, after) = (PingPong::default(), PingPong::default());
    let (full, filled) = sync_channel::<Vec<P::Block<'_>>>(0);
    let (empty, emptied) = sync_channel::<Vec<P::Block<'_>>>(1);
    pin(cross.main);
    thread::scope(|scope| {
        let (before, after) = (&before, &after);
        // Each side owns its ends of the channels, so that it notices a panic on the other.
        let freeing = scope.spawn(move || {
            pin(cross.other);
            before.answer();
            let mut own = Vec::with_capacity(BLOCKS_PER_ROUND);
            let mut spent = 0.0;
            for _ in 0..rounds {
                let mut given = filled
                    .recv()
                    .expect("the allocating thread sends each round");
                own.append(&mut given);
                black_box(own.as_mut_slice());
                let clock = ThreadClock::start();
                own.drain(..).for_each(|block| peer.free(block));
                spent += clock.elapsed_ns();
                empty.send(given).expect("the allocating thread waits");
            }
            after.answer();
            spent
        });
        let before_ns = before.measure();
        let mut blocks = Vec::with_capacity(BLOCKS_PER_ROUND);
        for _ in 0..rounds {
            for _ in 0..BLOCKS_PER_ROUND {
                let mut block = peer.alloc(black_box(cross.len));
                black_box(peer.address(&mut block));
                blocks.push(block);
            }
            full.send(blocks)
                .expect("the freeing thread receives each round");
            blocks = emptied
                .recv()
                .expect("the freeing thread returns the vector");
        }
        let after_ns = after.measure();
        let spent = freeing.join().expect("the freeing thread does not panic");
        Reading {
            value: spent / (rounds * BLOCKS_PER_ROUND as u64) as f64,
            distance: Some(Distance::between(before_ns, after_ns)),
        }
    })
}
