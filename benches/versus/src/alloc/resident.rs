//! Cases about resident memory, each sample in a process of its own: `migration-rss`,
//! `footprint-64`, `churn-rss`.

use super::peers::{Heap, VisitHeap, visit_heap};
use crate::measure::{Plan, Sampler};
use std::fs;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::panic;
use std::process::{Command, ExitCode};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// [`THREADS`] threads in a ring; each frees what the one before allocated, then allocates as
    /// much itself, [`LAPS`] times round.
    Migration,
    /// Many small objects alive at once.
    Footprint,
    /// [`CHURNS`] times: fill up, then free nine tenths at random.
    Churn,
}

const THREADS: usize = 8;
const LAPS: usize = 2;
const CHURNS: usize = 10;

impl Scenario {
    pub(crate) const ALL: [Self; 3] = [Self::Migration, Self::Footprint, Self::Churn];

    /// The name of the case.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Migration => "migration-rss",
            Self::Footprint => "footprint-64",
            Self::Churn => "churn-rss",
        }
    }

    /// Resident memory against the payload alive.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Migration => "x payload",
            Self::Footprint | Self::Churn => "% of payload",
        }
    }

    /// Length and number of the objects that live at once.
    fn size(self, plan: &Plan) -> (usize, usize) {
        match self {
            Self::Migration => (2048, 32_768 / plan.shrink),
            Self::Footprint if plan.quick => (64, 1_000_000),
            Self::Footprint => (64, 10_000_000),
            Self::Churn => (2048, 100_000 / plan.shrink),
        }
    }

    /// Samples that each run this program once more. Fails if the first one does.
    pub(crate) fn sampler(self, peer: &str, plan: &Plan) -> Result<Sampler, String> {
        let objects = self.size(plan).1.to_string();
        let peer = peer.to_owned();
        let run = move || in_child(self.name(), &peer, &objects);
        run()?;
        Ok(Sampler::whole(move || {
            run().expect("what ran once in a child process runs again")
        }))
    }
}

fn in_child(scenario: &str, peer: &str, objects: &str) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["--child", scenario, peer, objects])
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| {
        let problem = String::from_utf8_lossy(&output.stderr);
        format!("its child process failed: {}", problem.trim())
    })
}

/// The child's side: measures once and prints the figure.
pub(crate) fn child(arguments: &[String]) -> ExitCode {
    let [scenario, peer, objects] = arguments else {
        eprintln!("--child takes a scenario, a peer and a number of objects");
        return ExitCode::from(2);
    };
    let known = Scenario::ALL
        .into_iter()
        .find(|known| known.name() == scenario);
    let (Some(scenario), Ok(objects)) = (known, objects.parse()) else {
        eprintln!("no such scenario: {scenario} of {objects} objects");
        return ExitCode::from(2);
    };
    // A thread that panics would leave the others waiting for it.
    panic::set_hook(Box::new(|problem| {
        eprintln!("{problem}");
        std::process::exit(101);
    }));
    match visit_heap(peer, Run { scenario, objects }) {
        Ok(value) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Err(missing) => {
            eprintln!("{peer}: {missing}");
            ExitCode::from(2)
        }
    }
}

struct Run {
    scenario: Scenario,
    objects: usize,
}

impl VisitHeap for Run {
    type Out = f64;

    fn visit<P>(self) -> f64
    where
        P: Heap,
        for<'p> P::Block<'p>: Send,
    {
        match self.scenario {
            Scenario::Migration => migration::<P>(self.objects),
            Scenario::Footprint => footprint::<P>(self.objects),
            Scenario::Churn => churn::<P>(self.objects),
        }
    }
}

fn migration<P>(objects: usize) -> f64
where
    P: Heap,
    for<'p> P::Block<'p>: Send,
{
    const LEN: usize = 2048;
    // Room for an owner-based peer's worst case, so that no cap flatters ours.
    let peer = P::open(LEN, objects * THREADS);
    let (peer, peak) = (&peer, &AtomicUsize::new(0));
    // All threads live from the first step to the last: what a dead thread leaves is another case.
    let (started, finished) = (&Barrier::new(THREADS + 1), &Barrier::new(THREADS));
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| sync_channel(1)).unzip();
    let before = thread::scope(|scope| {
        for (number, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(number + 1) % THREADS].clone();
            scope.spawn(move || {
                started.wait();
                for lap in 1..=LAPS {
                    let mut held: Vec<P::Block<'_>> =
                        receiver.recv().expect("the thread before sends");
                    held.drain(..).for_each(|block| peer.free(block));
                    held.extend((0..objects).map(|_| filled(peer, LEN)));
                    peak.fetch_max(resident(), Ordering::Relaxed);
                    if lap == LAPS && number == THREADS - 1 {
                        held.drain(..).for_each(|block| peer.free(block));
                    } else {
                        next.send(held).expect("the next thread lives");
                    }
                }
                finished.wait();
            });
        }
        let handles = handles(objects);
        started.wait();
        let before = resident();
        senders[0].send(handles).expect("the first thread lives");
        before
    });
    let grown = peak.load(Ordering::Relaxed).saturating_sub(before);
    grown as f64 / (objects * LEN) as f64
}

fn footprint<P: Heap>(objects: usize) -> f64 {
    const LEN: usize = 64;
    let peer = P::open(LEN, objects);
    let mut held = handles(objects);
    let before = resident();
    held.extend((0..objects).map(|_| filled(&peer, LEN)));
    percent(before, resident(), objects * LEN)
}

fn churn<P: Heap>(objects: usize) -> f64 {
    const LEN: usize = 2048;
    let peer = P::open(LEN, objects);
    let mut held = handles(objects);
    let before = resident();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut peak = 0;
    for _ in 0..CHURNS {
        held.extend((held.len()..objects).map(|_| filled(&peer, LEN)));
        peak = peak.max(resident());
        for _ in 0..objects / 10 * 9 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let block = held.swap_remove(random as usize % held.len());
            peer.free(block);
        }
    }
    percent(before, peak, objects * LEN)
}

fn percent(before: usize, after: usize, payload: usize) -> f64 {
    after.saturating_sub(before) as f64 * 100.0 / payload as f64
}

/// A vector for that many handles whose memory is resident already: handles are not counted.
fn handles<T>(count: usize) -> Vec<T> {
    let mut handles = Vec::with_capacity(count);
    for slot in handles.spare_capacity_mut() {
        *slot = black_box(MaybeUninit::zeroed());
    }
    handles
}

/// A block whose every byte was written, so that its pages are resident.
fn filled<P: Heap>(peer: &P, len: usize) -> P::Block<'_> {
    let mut block = peer.alloc(len);
    let at = peer.address(&mut block);
    // SAFETY: a `Heap`'s address is that of the block's `len` bytes, which are ours alone.
    unsafe { at.write_bytes(1, len) };
    block
}

/// Resident bytes of this process, counted exactly (the figures in `/proc/self/status` lag).
fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/smaps_rollup").expect("Linux 4.14 or later");
    let line = text.lines().find(|line| line.starts_with("Rss:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    kilobytes.expect("smaps_rollup has a line Rss") * 1024
}
