//! What a pool promises, in the plainest words: a map of live chunks and a few counters.

use slab_core::{Chunk, PoolStats};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

/// Waiters at a time, at most: what is set aside for them adds to the true high-water mark.
pub(crate) const WAITERS: u64 = 20;

/// A chunk that somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) class: usize,
    pub(crate) bytes: usize,
    /// What its edges are filled with.
    stamp: u64,
}

#[derive(Debug, Default, Clone)]
struct Counters {
    allocs: u64,
    frees: u64,
    /// The true high-water mark of chunks in use.
    peak: u64,
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
    /// Slabs that a class has at most, and keeps, in pools where that is so.
    pub(crate) share: Option<usize>,
    /// What the pool's high-water mark may exceed the true one by.
    peak_slack: u64,
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
                })
                .collect(),
            too_large: stats.too_large,
            stamps: 0,
            base,
            slab_bytes: stats.slab_bytes,
            max_memory: stats.max_memory,
            share,
            peak_slack: WAITERS,
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

    /// Strikes out a chunk that is about to be freed.
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

    /// A refusal is right only if no chunk of the class is free anywhere and every slab has a
    /// chunk that somebody has.
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
    pub(crate) fn threads_run_at_once(&mut self, threads: usize) {
        self.peak_slack += threads as u64 * 2 * slab_core::ChunkBatch::MAX as u64;
    }

    /// A waiter gave up a chunk that had been set aside for it.
    pub(crate) fn count_granted_and_freed(&mut self, class: usize) {
        let counters = &mut self.classes[class];
        counters.allocs += 1;
        counters.frees += 1;
    }

    /// Right at any moment at which the pool is quiet. `granted` chunks of each class are set aside
    /// for waiters, which makes them allocated, and in use.
    pub(crate) fn check_stats(&self, stats: &PoolStats, granted: &[u64]) {
        assert!(stats.committed_bytes <= stats.max_memory);
        assert_eq!(stats.too_large, self.too_large);
        let mut committed = 0;
        let mut in_use_bytes = 0;
        for (index, (class, model)) in stats.classes().iter().zip(&self.classes).enumerate() {
            let at = |what: &str| format!("{what} of class {index}: {class:?}, {model:?}");
            let in_use = model.allocs - model.frees + granted[index];
            assert_eq!(class.in_use, in_use, "{}", at("in use"));
            assert_eq!(
                class.allocs,
                model.allocs + granted[index],
                "{}",
                at("allocs")
            );
            assert_eq!(class.frees, model.frees, "{}", at("frees"));
            assert!(class.in_use_peak >= class.in_use, "{}", at("peak"));
            assert!(
                class.in_use_peak <= model.peak + self.peak_slack,
                "{}",
                at("peak")
            );
            if let Some(share) = self.share {
                assert!(class.committed_bytes <= share * self.slab_bytes);
            }
            assert!(class.frees_remote <= class.frees, "{}", at("remote"));
            assert_eq!(
                class.in_use + class.in_magazines + class.in_depot + class.in_slabs,
                class.committed_chunks,
                "{}",
                at("balance")
            );
            committed += class.committed_bytes;
            in_use_bytes += in_use * class.chunk_bytes as u64;
        }
        assert!(committed <= stats.committed_bytes);
        assert_eq!(stats.in_use_bytes(), in_use_bytes);
    }
}

/// The first and the last word of a chunk.
fn edges(at: NonNull<u8>, bytes: usize) -> [*mut u64; 2] {
    let last = at.as_ptr().wrapping_add(bytes - size_of::<u64>());
    [at.as_ptr().cast(), last.cast()]
}
