//! Cases in which threads do the same at once and independently: `scaling-2` and `threads-N`.

use super::local;
use super::peers::{Peer, VisitShared};
use crate::cpu::{ThreadClock, pin};
use crate::measure::Sampler;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Blocks that a thread of `threads-N` allocates before it frees them: more than a thread cache holds, so
/// that every turn reaches the shared layers.
pub(crate) const BLOCKS_PER_ROUND: usize = 512;

/// The least turns per thread and sample.
const MIN_ROUNDS: u64 = if cfg!(debug_assertions) { 1 } else { 16 };

#[derive(Clone, Copy)]
pub(crate) enum ThreadsCase {
    /// Two threads, each on its own CPU, allocate and free in pairs, compared with one thread.
    Scaling,
    /// So many threads on two CPUs allocate and free in rounds of [`BLOCKS_PER_ROUND`].
    Threads(usize),
}

pub(crate) struct ParallelThreads {
    pub(crate) case: ThreadsCase,
    pub(crate) len: usize,
    /// The two CPUs.
    pub(crate) main: usize,
    pub(crate) other: usize,
}

impl VisitShared for ParallelThreads {
    type Out = Sampler;

    fn visit<P>(self) -> Sampler
    where
        P: Peer + Sync,
        for<'p> P::Block<'p>: Send,
    {
        let live = match self.case {
            ThreadsCase::Scaling => 2,
            ThreadsCase::Threads(count) => count * BLOCKS_PER_ROUND,
        };
        let peer = P::open(self.len, live);
        Sampler::timed(move |ops| {
            match self.case {
                ThreadsCase::Scaling => scaling(&peer, &self, ops),
                ThreadsCase::Threads(count) => alloc_free_rounds(&peer, &self, ops, count),
            }
            .into()
        })
    }
}

/// The CPU time of a pair while the other CPU does the same, over that of a pair alone.
fn scaling<P: Peer + Sync>(peer: &P, together: &ParallelThreads, ops: u64) -> f64 {
    pin(together.main);
    let alone = local::pair(peer, together.len, ops);
    let started = Barrier::new(2);
    let on = |cpu| {
        pin(cpu);
        started.wait();
        local::pair(peer, together.len, ops)
    };
    let both = thread::scope(|scope| {
        let other = scope.spawn(|| on(together.other));
        let main = on(together.main);
        (main + other.join().expect("the other thread does not panic")) / 2.0
    });
    both / alone
}

/// The wall time of one operation, times the CPUs that the threads have: the same for every number of
/// threads, if none hinders another.
fn alloc_free_rounds<P: Peer + Sync>(
    peer: &P,
    together: &ParallelThreads,
    ops: u64,
    count: usize,
) -> f64 {
    let cpus = [together.main, together.other];
    let found = run_threads(peer, together.len, cpus, ops, count);
    let available = found.wall.as_nanos() as f64 * cpus.len().min(count) as f64;
    available / found.ops as f64
}

/// What so many threads did together.
pub(super) struct ParallelRun {
    pub(super) ops: u64,
    pub(super) wall: Duration,
    /// Of all of them.
    pub(super) cpu_ns: f64,
}

/// Runs at least so many operations, on threads that do them in rounds of [`BLOCKS_PER_ROUND`].
pub(super) fn run_threads<P: Peer + Sync>(
    peer: &P,
    len: usize,
    cpus: [usize; 2],
    ops: u64,
    count: usize,
) -> ParallelRun {
    let rounds = ops
        .div_ceil((count * BLOCKS_PER_ROUND) as u64)
        .max(MIN_ROUNDS);
    let started = Barrier::new(count);
    let run = |cpu| {
        pin(cpu);
        let mut held = Vec::with_capacity(BLOCKS_PER_ROUND);
        let mut turn = || {
            held.extend((0..BLOCKS_PER_ROUND).map(|_| local::alloc(peer, len)));
            held.drain(..).for_each(|block| peer.free(block));
        };
        // The cost of a thread's first allocation is not measured here.
        turn();
        started.wait();
        let (start, clock) = (Instant::now(), ThreadClock::start());
        for _ in 0..rounds {
            turn();
        }
        (start, Instant::now(), clock.elapsed_ns())
    };
    let spans: Vec<(Instant, Instant, f64)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let run = &run;
                scope.spawn(move || run(cpus[number % cpus.len()]))
            })
            .collect();
        let joined =
            |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no thread panics");
        threads.into_iter().map(joined).collect()
    });
    let first = spans.iter().map(|span| span.0).min();
    let last = spans.iter().map(|span| span.1).max();
    let wall = last.zip(first).map(|(last, first)| last - first);
    ParallelRun {
        ops: rounds * (count * BLOCKS_PER_ROUND) as u64,
        wall: wall.unwrap_or_default(),
        cpu_ns: spans.iter().map(|span| span.2).sum(),
    }
}
