//! A plain model of what a pool promises: a map of live chunks and a few counters.

use slab_core::{Chunk, PoolStats};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

/// The most waiters at a time: what is set aside for them adds to the true high-water mark.
pub(crate) const MAX_WAITERS: u64 = 20;

/// A chunk that somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) class: usize,
    pub(crate) bytes: usize,
    /// What its edges are filled with.
    stamp: u64,
}

/// What the pool should count of a class, counted here by what callers see.
#[derive(Debug, Default, Clone)]
struct Counters {
    allocs: u64,
    frees: u64,
    /// The true high-water mark of chunks in use.
    peak: u64,
    /// The highest of those that a comparison saw.
    peak_seen: u64,
    exhausted: u64,
    waits: u64,
}

/// What waiters of a class have at the moment.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Queue {
    /// Chunks set aside for them, which to the counters are allocated.
    pub(crate) granted: u64,
    /// How many have nothing yet.
    pub(crate) waiting: u64,
}

#[derive(Debug)]
pub(crate) struct Model {
    /// By address.
    live: BTreeMap<usize, Live>,
    classes: Vec<Counters>,
    pub(crate) too_large: u64,
    stamps: u64,
    /// The arena's first byte, once known.
    base: usize,
    slab_bytes: usize,
    max_memory: usize,
    /// The most slabs that a class takes, and keeps, in pools with fixed shares.
    pub(crate) share: Option<usize>,
    /// Do threads keep free chunks? If not, each allocation is the depot's, a slab's or a wait's.
    pub(crate) has_magazines: bool,
    /// By how much the pool's high-water mark may exceed the true one.
    peak_slack: u64,
    /// Slabs that went back to the system; unknown where any thread may trim at any moment.
    trims: Option<u64>,
}

impl Model {
    /// `base`: the address of the arena's first chunk.
    pub(crate) fn new(base: usize, stats: &PoolStats, share: Option<usize>) -> Self {
        Self {
            live: BTreeMap::new(),
            classes: stats
                .classes()
                .iter()
                .map(|class| Counters {
                    allocs: class.allocs,
                    frees: class.frees,
                    peak: class.in_use_peak,
                    peak_seen: class.in_use_peak,
                    exhausted: class.exhausted,
                    waits: class.waits,
                })
                .collect(),
            too_large: stats.too_large,
            stamps: 0,
            base,
            slab_bytes: stats.slab_bytes,
            max_memory: stats.max_memory,
            share,
            has_magazines: true,
            peak_slack: MAX_WAITERS,
            trims: Some(trims_of(stats)),
        }
    }

    pub(crate) fn live(&self, at: NonNull<u8>) -> Live {
        self.live[&at.addr().get()]
    }

    /// Enters a chunk that was just handed out; it must not overlap another, nor leave the arena.
    pub(crate) fn enter(&mut self, at: NonNull<u8>, class: usize, bytes: usize) {
        let addr = at.addr().get();
        assert_eq!(addr % slab_core::CHUNK_ALIGN, 0);
        if let Some((&before, chunk)) = self.live.range(..=addr).next_back() {
            assert!(before + chunk.bytes <= addr, "{addr:x} overlaps {before:x}");
        }
        if let Some((&after, _)) = self.live.range(addr..).next() {
            assert!(addr + bytes <= after, "{addr:x} overlaps {after:x}");
        }
        assert!(addr >= self.base, "{addr:x} lies before the arena");
        let end = addr - self.base + bytes;
        assert!(end <= self.max_memory, "{addr:x} lies behind the arena");
        let slab_of_last = (end - 1) / self.slab_bytes;
        assert_eq!((addr - self.base) / self.slab_bytes, slab_of_last);
        self.stamps += 1;
        let live = Live {
            class,
            bytes,
            stamp: self.stamps.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        };
        for edge in edges(at, bytes) {
            // SAFETY: the edge lies in a chunk that the caller has, and is aligned.
            unsafe { edge.write(live.stamp) };
        }
        self.live.insert(addr, live);
        let counters = &mut self.classes[class];
        counters.allocs += 1;
        counters.peak = counters.peak.max(counters.allocs - counters.frees);
    }

    pub(crate) fn enter_chunk(&mut self, chunk: &Chunk) {
        self.enter(chunk.as_ptr(), chunk.class(), chunk.capacity());
    }

    /// A chunk that somebody has still holds what was written when it was handed out.
    pub(crate) fn check(&self, at: NonNull<u8>) {
        let live = self.live[&at.addr().get()];
        for edge in edges(at, live.bytes) {
            // SAFETY: the edge lies in a chunk that the caller has, is aligned and was written.
            assert_eq!(unsafe { edge.read() }, live.stamp, "{at:?} was overwritten");
        }
    }

    /// Removes a chunk that is about to be freed.
    pub(crate) fn leave(&mut self, at: NonNull<u8>) {
        self.check(at);
        let live = self.live.remove(&at.addr().get()).expect("a live chunk");
        self.classes[live.class].frees += 1;
    }

    /// Slabs with a chunk that somebody has.
    pub(crate) fn slabs_in_use(&self) -> usize {
        let slabs = self
            .live
            .keys()
            .map(|at| (at - self.base) / self.slab_bytes);
        slabs.collect::<BTreeSet<_>>().len()
    }

    /// Asserts that a refusal is right: no chunk of the class is free anywhere, and every slab has a chunk
    /// that somebody has.
    pub(crate) fn check_refusal(&self, class: usize, stats: &PoolStats) {
        let entry = &stats.classes()[class];
        assert_eq!(entry.in_use, entry.committed_chunks, "refused: {entry:?}");
        let (taken, limit) = match self.share {
            None => (self.slabs_in_use() * self.slab_bytes, self.max_memory),
            Some(share) => (entry.committed_bytes, share * self.slab_bytes),
        };
        assert_eq!(taken, limit, "refused while a slab is free");
    }

    /// Chunks that threads carry between their magazines and the depot look as if they were in use.
    #[allow(dead_code, reason = "fuzz targets run one thread at a time")]
    pub(crate) fn allow_concurrent_threads(&mut self, threads: usize) {
        self.peak_slack += threads as u64 * 2 * slab_core::ChunkBatch::MAX as u64;
        self.trims = None;
    }

    /// An allocation was refused for want of memory.
    pub(crate) fn count_refusal(&mut self, class: usize) {
        self.classes[class].exhausted += 1;
    }

    /// A request waits, for the first time.
    pub(crate) fn count_wait(&mut self, class: usize) {
        self.classes[class].waits += 1;
    }

    /// A waiter gave up a chunk that had been set aside for it.
    pub(crate) fn count_granted_and_freed(&mut self, class: usize) {
        let counters = &mut self.classes[class];
        counters.allocs += 1;
        counters.frees += 1;
    }

    /// Memory went back to the system between two snapshots. `exactly`: all of it had served.
    pub(crate) fn check_trim(&mut self, before: &PoolStats, after: &PoolStats, exactly: bool) {
        let slabs = ((before.committed_bytes - after.committed_bytes) / self.slab_bytes) as u64;
        let counted = trims_of(after) - trims_of(before);
        assert!(counted == slabs || !exactly && counted < slabs, "{after:?}");
        self.trims = self.trims.map(|trims| trims + counted);
    }

    /// Asserts that the pool's statistics are right, at any moment at which the pool is quiet.
    ///
    /// A pool computes `in_use` as what is left of its chunks when all free ones are counted, so its sums
    /// always agree: only here, where the true number is known, are they put to the test.
    pub(crate) fn check_stats(&mut self, stats: &PoolStats, queues: &[Queue]) {
        assert!(stats.committed_bytes <= stats.max_memory);
        assert_eq!(stats.too_large, self.too_large);
        assert_eq!(stats.commit_failures, 0);
        let mut committed = 0;
        let mut in_use_bytes = 0;
        for (index, (class, model)) in stats.classes().iter().zip(&mut self.classes).enumerate() {
            let Queue { granted, waiting } = queues[index];
            let in_use = model.allocs - model.frees + granted;
            model.peak_seen = model.peak_seen.max(in_use);
            let at = |what: &str| format!("{what} of class {index}: {class:?}, {model:?}");
            assert_eq!(class.in_use, in_use, "{}", at("in use"));
            assert_eq!(class.allocs, model.allocs + granted, "{}", at("allocs"));
            assert_eq!(class.frees, model.frees, "{}", at("frees"));
            assert!(class.in_use_peak >= model.peak_seen, "{}", at("peak"));
            assert!(
                class.in_use_peak <= model.peak + self.peak_slack,
                "{}",
                at("peak")
            );
            assert_eq!(class.exhausted, model.exhausted, "{}", at("exhausted"));
            assert_eq!(class.waits, model.waits, "{}", at("waits"));
            assert_eq!(class.waiting, waiting, "{}", at("waiting"));
            assert_eq!(class.waiters_refused, 0, "{}", at("waiters refused"));
            let elsewhere = class.allocs_from_depot + class.allocs_from_slab;
            assert!(
                elsewhere == class.allocs || self.has_magazines && elsewhere < class.allocs,
                "{}",
                at("sources")
            );
            let kept = [class.in_magazines, class.chunks_flushed, class.frees_remote];
            assert!(self.has_magazines || kept == [0; 3], "{}", at("threads"));
            // Each slab that serves the class, or did until it was trimmed, was once committed to it.
            let slabs = (class.committed_bytes / self.slab_bytes) as u64;
            assert!(
                class.slab_commits >= slabs + class.slab_trims,
                "{}",
                at("commits")
            );
            let rebalances = class.slab_rebalances;
            assert!(rebalances <= class.slab_commits, "{}", at("rebalances"));
            assert!(rebalances == 0 || self.share.is_none(), "{}", at("share"));
            if let Some(share) = self.share {
                assert!(class.committed_bytes <= share * self.slab_bytes);
            }
            committed += class.committed_bytes;
            in_use_bytes += in_use as usize * class.chunk_bytes;
        }
        assert!(committed <= stats.committed_bytes);
        assert_eq!(stats.in_use_bytes(), in_use_bytes);
        assert!(self.trims.is_none_or(|trims| trims == trims_of(stats)));
    }
}

fn trims_of(stats: &PoolStats) -> u64 {
    stats.classes().iter().map(|class| class.slab_trims).sum()
}

/// The first and the last word of a chunk.
fn edges(at: NonNull<u8>, bytes: usize) -> [*mut u64; 2] {
    let last = at.as_ptr().wrapping_add(bytes - size_of::<u64>());
    [at.as_ptr().cast(), last.cast()]
}
