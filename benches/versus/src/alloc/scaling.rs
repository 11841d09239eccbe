//! Allocating and freeing against the number of threads, the payload, and the number of classes, for the
//! plots.

use super::OURS;
use super::local::{self, random_numbers};
use super::peers::{self, Ours, Peer, Visit, VisitShared};
use super::threads::{BLOCKS_PER_ROUND, run_threads};
use crate::cpu::{Cpus, ThreadClock};
use crate::scaling::point::Point;
use std::hint::black_box;
use std::mem;
use std::time::Instant;

/// One side at one point of a plot.
pub(crate) type Run = Box<dyn FnMut() -> Point>;

/// Bytes of a block where the length is not varied.
const LEN: usize = 2048;
/// Blocks that live at once in [`classes`].
const LIVE: usize = 1024;

/// Runs so many threads on two CPUs, in turns of more blocks than a thread cache holds.
///
/// # Errors
/// There is no such peer, or only one CPU.
pub(crate) fn threads(peer: &str, count: usize, ops: u64) -> Result<Run, String> {
    let cpus = Cpus::choose();
    let other = cpus.other.ok_or("it needs two CPUs")?;
    let threads = Threads {
        cpus: [cpus.main, other],
        count,
        ops,
    };
    peers::visit_shared(peer, threads).map_err(|missing| missing.to_string())
}

struct Threads {
    cpus: [usize; 2],
    count: usize,
    ops: u64,
}

impl VisitShared for Threads {
    type Out = Run;

    fn visit<P>(self) -> Run
    where
        P: Peer + Sync,
        for<'p> P::Block<'p>: Send,
    {
        let peer = P::open(LEN, self.count * BLOCKS_PER_ROUND);
        Box::new(move || {
            let found = run_threads(&peer, LEN, self.cpus, self.ops, self.count);
            Point::new(found.ops, found.wall.as_secs_f64(), found.cpu_ns)
        })
    }
}

/// Runs one thread that allocates and frees in batches of 64 blocks of this length.
///
/// # Errors
/// There is no such peer.
pub(crate) fn payload(peer: &str, len: usize, ops: u64) -> Result<Run, String> {
    peers::visit(peer, len, Payload { len, ops }).map_err(|missing| missing.to_string())
}

struct Payload {
    len: usize,
    ops: u64,
}

impl Visit for Payload {
    type Out = Run;

    fn visit<P: Peer>(self) -> Run {
        let peer = P::open(self.len, local::BATCH);
        Box::new(move || {
            let begin = Instant::now();
            let per_op = local::batch::<P, { local::BATCH }>(&peer, self.len, self.ops);
            let wall = begin.elapsed().as_secs_f64();
            Point::new(self.ops, wall, per_op * self.ops as f64)
        })
    }
}

/// Replaces random ones of [`LIVE`] blocks by blocks of so many lengths in turn; our pool has a class for
/// each length.
///
/// # Errors
/// There is no such peer.
pub(crate) fn classes(peer: &str, count: usize, ops: u64) -> Result<Run, String> {
    let lens: Vec<usize> = (1..=count).map(|nth| 128 * nth).collect();
    let longest = 128 * count;
    if peer == OURS {
        let pool = Ours::with_classes(&lens, 2 * LIVE);
        return Ok(run_with_lengths(pool, lens, ops));
    }
    let classes = Classes { lens, ops };
    peers::visit_any_length(peer, longest, classes).map_err(|missing| missing.to_string())
}

struct Classes {
    lens: Vec<usize>,
    ops: u64,
}

impl Visit for Classes {
    type Out = Run;

    fn visit<P: Peer>(self) -> Run {
        let longest = self.lens.last().copied().unwrap_or(LEN);
        run_with_lengths(P::open(longest, LIVE + 1), self.lens, self.ops)
    }
}

fn run_with_lengths<P: Peer>(peer: P, lens: Vec<usize>, ops: u64) -> Run {
    let slots: Vec<usize> = random_numbers()
        .take(8 * LIVE)
        .map(|number| number as usize % LIVE)
        .collect();
    Box::new(move || {
        let mut lens = lens.iter().cycle();
        let mut next = || local::alloc(&peer, black_box(lens.next().copied().unwrap_or(LEN)));
        let mut held: Vec<_> = (0..LIVE).map(|_| next()).collect();
        let (begin, clock) = (Instant::now(), ThreadClock::start());
        for &slot in slots.iter().cycle().take(ops as usize) {
            let old = mem::replace(&mut held[slot], next());
            peer.free(old);
        }
        let (cpu, wall) = (clock.elapsed_ns(), begin.elapsed().as_secs_f64());
        held.into_iter().for_each(|block| peer.free(block));
        Point::new(ops, wall, cpu)
    })
}
