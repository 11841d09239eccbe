//! What the child processes do: each function takes one measurement.

use crate::alloc::peers::Heap;
use slab_core::{GlobalTag, Slab, SlabBox, StaticSlab};
use std::fs;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

const THREADS: usize = 8;
const LAPS: usize = 2;
const CHURNS: usize = 10;

pub(super) fn migration<P>(objects: usize) -> f64
where
    P: Heap,
    for<'p> P::Block<'p>: Send,
{
    const LEN: usize = 2048;
    // Room for the worst case of an owner-based peer, so that the cap does not flatter ours.
    let peer = P::open(LEN, objects * THREADS);
    let (peer, peak) = (&peer, &AtomicUsize::new(0));
    // All threads live from the first step to the last: what a dead thread leaves is a different case.
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
        let handles = resident_vec(objects);
        started.wait();
        let before = resident();
        senders[0].send(handles).expect("the first thread lives");
        before
    });
    let grown = peak.load(Ordering::Relaxed).saturating_sub(before);
    grown as f64 / (objects * LEN) as f64
}

/// `handles`: whether the memory of the handles counts too.
pub(super) fn footprint<P: Heap>(objects: usize, handles: bool) -> f64 {
    let peer = P::open(TYPED_BYTES, objects);
    let empty = resident();
    let mut held = resident_vec(objects);
    let before = if handles { empty } else { resident() };
    held.extend((0..objects).map(|_| filled(&peer, TYPED_BYTES)));
    percent(before, resident(), objects * TYPED_BYTES)
}

/// The length of an object in the footprint scenarios.
const TYPED_BYTES: usize = 64;
/// The most objects that there ever are.
pub(super) const MAX_TYPED_OBJECTS: usize = 10_000_000;

/// The tag of our typed slab; with it a handle is a single pointer.
struct Objects;

impl GlobalTag<[u8; TYPED_BYTES]> for Objects {
    fn slab() -> &'static StaticSlab<[u8; TYPED_BYTES], Self> {
        static SLAB: StaticSlab<[u8; TYPED_BYTES], Objects> =
            StaticSlab::new("versus", MAX_TYPED_OBJECTS);
        &SLAB
    }
}

/// As [`footprint`], with values in our typed slab.
pub(super) fn typed_footprint(objects: usize, handles: bool) -> f64 {
    let slab = Slab::<[u8; TYPED_BYTES], Objects>::global().expect("the configuration is valid");
    let empty = resident();
    let mut held = resident_vec(objects);
    let before = if handles { empty } else { resident() };
    held.extend((0..objects).map(|_| {
        let value = slab
            .try_insert(black_box([1; TYPED_BYTES]))
            .expect("the slab has room");
        SlabBox::into_global(value).expect("of the global slab")
    }));
    percent(before, resident(), objects * TYPED_BYTES)
}

/// In percent of the payload.
pub(super) struct Churned {
    pub(super) peak: f64,
    /// The growth from the first round's peak to the highest peak.
    pub(super) growth: f64,
}

pub(super) fn churn<P: Heap>(objects: usize, len: usize) -> Churned {
    let peer = P::open(len, objects);
    let mut held = resident_vec(objects);
    let before = resident();
    let mut random = Random::new();
    let (mut first, mut peak) = (0, 0);
    for round in 0..CHURNS {
        held.extend((held.len()..objects).map(|_| filled(&peer, len)));
        peak = peak.max(resident());
        if round == 0 {
            first = peak;
        }
        free_at_random(&peer, &mut held, objects / 10 * 9, &mut random);
    }
    Churned {
        peak: percent(before, peak, objects * len),
        growth: percent(first, peak, objects * len),
    }
}

pub(super) struct Trimmed {
    /// Resident memory over what is still allocated.
    pub(super) residue: f64,
    pub(super) ms_per_gib: f64,
}

/// `None` if the peer has no call for it.
pub(super) fn trim<P: Heap>(objects: usize) -> Option<Trimmed> {
    const LEN: usize = 2048;
    let peer = P::open(LEN, objects);
    let mut held = resident_vec(objects);
    let empty = resident();
    held.extend((0..objects).map(|_| filled(&peer, LEN)));
    free_at_random(&peer, &mut held, objects / 10 * 9, &mut Random::new());
    let before = resident();
    let start = Instant::now();
    if !peer.release_free_memory() {
        return None;
    }
    let took = start.elapsed();
    let after = resident();
    let returned = before.saturating_sub(after) as f64 / f64::from(1 << 30);
    Some(Trimmed {
        residue: after.saturating_sub(empty) as f64 / (held.len() * LEN) as f64,
        ms_per_gib: took.as_secs_f64() * 1000.0 / returned,
    })
}

fn free_at_random<'p, P: Heap>(
    peer: &'p P,
    held: &mut Vec<P::Block<'p>>,
    count: usize,
    random: &mut Random,
) {
    for _ in 0..count {
        let block = held.swap_remove(random.next() % held.len());
        peer.free(block);
    }
}

/// Xorshift: the same numbers for every peer and run.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize
    }
}

fn percent(before: usize, after: usize, payload: usize) -> f64 {
    after.saturating_sub(before) as f64 * 100.0 / payload as f64
}

/// Makes a vector for that many handles whose memory is already resident, so that handles are not counted.
fn resident_vec<T>(count: usize) -> Vec<T> {
    let mut handles = Vec::with_capacity(count);
    for slot in handles.spare_capacity_mut() {
        *slot = black_box(MaybeUninit::zeroed());
    }
    handles
}

/// A block of which every byte was written, so that its pages are resident.
fn filled<P: Heap>(peer: &P, len: usize) -> P::Block<'_> {
    let mut block = peer.alloc(len);
    let at = peer.address(&mut block);
    // SAFETY: a `Heap`'s address is that of the block's `len` bytes, which only we have.
    unsafe { at.write_bytes(1, len) };
    block
}

/// Returns the resident bytes of this process, counted exactly (the figures in `/proc/self/status` lag).
fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/smaps_rollup").expect("Linux 4.14 or later");
    let line = text.lines().find(|line| line.starts_with("Rss:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    kilobytes.expect("smaps_rollup has a line Rss") * 1024
}
