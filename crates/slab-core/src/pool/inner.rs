//! The pool behind its handles: what it is made of, how its slow paths connect the layers, and its
//! end.
//!
//! # Where a chunk is looked for (`allocate.rs`)
//! 1. the thread's magazine (the fast path, in `mod.rs`: no lock, no read-modify-write)
//! 2. a batch from the depot: one compare-and-swap, and the magazine is half to three quarters full
//! 3. fresh chunks from a slab: a mutex
//!
//! A free (`free.rs`) goes into the magazine of the thread that frees; a full magazine sends the older part of what it
//! has to the depot as one batch. A thread without a cache (its thread-locals are being destroyed, or
//! there are too many threads) uses the class's open batch instead.
//!
//! # Order of locks
//! `slabs`, then `gates`, then waiting for a guard, then a class's open batch. Inside a guard an
//! owner touches only open batches and lock-free stacks, so it never waits for a thread that waits for
//! a guard.
//!
//! # The end of a pool
//! No chunk counts a reference to its pool. When the last [`SlabPool`](crate::SlabPool) goes,
//! [`close`](Inner::close) shuts all threads out of their magazines for good; from then on each
//! free comes to [`free_uncached`](Inner::free_uncached), which counts down what is still in
//! callers' hands. Whoever brings that to zero, the closer or the last free, unmaps the arena.

use crate::arena::Arena;
use crate::class::geometry::ClassTable;
use crate::class::{CHUNK_ALIGN, MAX_CLASSES};
use crate::depot::Depot;
use crate::diagnostics::hardening::Hardening;
#[cfg(feature = "alloc")]
use crate::diagnostics::recorder::SizeRecorder;
#[cfg(feature = "leak-tracking")]
use crate::diagnostics::track::Tracker;
#[cfg(feature = "alloc")]
use crate::handle::oversize::Oversize;
use crate::pool::allocate::Found;
use crate::pool::builder::Name;
use crate::pool::episode::Episode;
use crate::pool::fork;
use crate::pool::handle::Home;
use crate::pool::request::Request;
use crate::reclaim::SlabLayer;
use crate::singles::Singles;
use crate::sync::handoff::HandoffMutex;
use crate::sync::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64, Mutex, Ordering, Table, heavy_barrier,
};
use crate::sys::{asan, give_back};
use crate::thread_cache::guard::CLOSED;
use crate::thread_cache::magazine::Tally;
use crate::thread_cache::registry::magazines;
#[cfg(feature = "alloc")]
use alloc::sync::Arc;
use core::ptr::NonNull;

/// A class's counters of what bypasses the magazines, and of those of threads that have ended.
#[derive(Debug, Default)]
pub(crate) struct Uncached {
    pub(crate) from_depot: AtomicU64,
    pub(crate) from_slab: AtomicU64,
    pub(crate) frees: AtomicU64,
    pub(crate) exhausted: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) waiters_refused: AtomicU64,
    pub(crate) exhaustion: Episode,
    pub(crate) in_use_peak: AtomicU64,
    /// The most allocations from magazines that a snapshot has shown.
    pub(crate) from_magazine: AtomicU64,
    /// The latest snapshot's frees, split so that neither part ever falls.
    pub(crate) frees_local: AtomicU64,
    pub(crate) frees_remote: AtomicU64,
    /// By threads that have ended; see [`Tally`].
    pub(crate) ended_remote: AtomicU64,
    pub(crate) ended_flushed: AtomicU64,
}

impl Uncached {
    /// Adds the counters of an empty magazine that is about to go. Under the mutex of the slab layer, as every look
    /// at both.
    #[cfg(feature = "std")]
    pub(crate) fn take_over(&self, ended: &Tally) {
        debug_assert_eq!(ended.cached, 0);
        for (counter, more) in [
            (&self.frees, ended.frees),
            (&self.from_depot, ended.from_depot),
            (&self.from_slab, ended.from_slab),
            (&self.ended_remote, ended.frees_remote),
            (&self.ended_flushed, ended.flushed),
        ] {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// Everything of a pool. Of it the fast path reads `classes`, and `base` if the address is asked for; what leads from a
/// handle to its memory and its count is in the directory, too.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Inner {
    pub(super) base: NonNull<u8>,
    /// The counts of references to chunks beyond the first (see `handle/shared.rs`), numbered as the nodes of a
    /// binary tree are: at `(counts_from + unit) >> count_shift`, where `counts_from` is the arena's
    /// number of units, rounded up to a power of two. So the counts of all classes of one shift lie side
    /// by side, those of different shifts apart, and of a class only its shift has to be known.
    pub(super) counts: Table<AtomicU32>,
    pub(crate) classes: ClassTable,
    pub(crate) arena: Arena,
    pub(crate) depot: Depot,
    pub(crate) singles: Singles,
    pub(crate) uncached: [Uncached; MAX_CLASSES],
    pub(crate) too_large: AtomicU64,
    /// Episodes in which the system refuses slabs.
    pub(crate) commit_refusals: Episode,
    pub(crate) slabs: HandoffMutex<SlabLayer>,
    /// Whoever changes a gate holds this, and an owner that acknowledges what a taker left or flushes its magazines: it
    /// need not wait for a whole sweep.
    pub(crate) gates: Mutex<()>,
    pub(crate) closed: AtomicBool,
    /// Somebody waits for memory: what becomes free goes to its slab at once (see `wait`). Set under the
    /// mutex of the slab layer, before the gates are raised, and so before the depot is emptied; cleared under it, too.
    pub(crate) under_pressure: AtomicBool,
    /// Chunks in callers' hands, once the pool is closed.
    pub(crate) live: AtomicI64,
    pub(crate) home: Home,
    pub(crate) name: Name,
    pub(crate) max_thread_caches: usize,
    /// There are as many caches as allowed, and each has a thread. So further threads do not search all of them
    /// under the mutex at each allocation and free. Changes under that mutex. A plain atomic: a thread
    /// that sees an old value searches in vain, or goes without a cache once more, so models need not see it.
    pub(crate) no_cache_left: core::sync::atomic::AtomicBool,
    #[cfg(feature = "alloc")]
    pub(crate) oversize: Option<Arc<Oversize>>,
    /// Not if chunks are zeroed when they are freed.
    pub(crate) zero_on_alloc: bool,
    pub(crate) zero_on_free: bool,
    pub(crate) hardening: Option<Hardening>,
    #[cfg(feature = "alloc")]
    pub(crate) recorder: Option<SizeRecorder>,
    #[cfg(feature = "leak-tracking")]
    pub(crate) tracker: Option<Tracker>,
    /// Unique in the process, for ever.
    pub(crate) id: u64,
    /// It lies in a place of the heap, and not in memory that was lent.
    pub(super) in_heap: bool,
}

// SAFETY: the only field that is not `Send` and `Sync` by itself is `base`, an address inside `arena`.
unsafe impl Send for Inner {}
// SAFETY: as above; all shared state is atomic or under a mutex.
unsafe impl Sync for Inner {}

// A plain thread-local: models run all their threads on one system thread.
#[cfg(all(test, any(loom, shuttle)))]
std::thread_local! {
    /// Pools that have come to their end.
    pub(crate) static ENDED: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

impl Inner {
    pub(crate) fn max_memory(&self) -> usize {
        self.arena.bytes()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.slabs.lock().slabs.held() * self.arena.slab_bytes()
    }

    pub(crate) fn resident_bytes(&self) -> Option<usize> {
        let slabs = self.slabs.lock().slabs.backed();
        // Without the lock: what is committed meanwhile does not count yet.
        self.arena.resident(slabs)
    }

    /// The first byte of the arena.
    #[inline(always)]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The first byte of a chunk.
    #[inline(always)]
    pub(crate) fn chunk_ptr(&self, unit: u32) -> NonNull<u8> {
        // SAFETY: a chunk's unit is an offset inside the arena.
        unsafe { self.base.add(unit as usize * CHUNK_ALIGN) }
    }

    /// The size of the chunk in which this address lies, if it lies in a slab of the pool.
    pub(crate) fn chunk_bytes_at(&self, address: usize) -> Option<usize> {
        // Below the base this wraps around, to far above the arena's size.
        let offset = address.wrapping_sub(self.base.addr().get());
        if offset >= self.arena.bytes() {
            return None;
        }
        let class = self.arena.class_of(offset / self.arena.slab_bytes())?;
        Some(self.classes.geometry(class).bytes)
    }

    /// Class and unit of the chunk that starts at `at`, if one does.
    pub(crate) fn find_chunk(&self, at: NonNull<u8>) -> Option<(u8, u32)> {
        // Below the base this wraps around, to far above the arena's size.
        let offset = at.addr().get().wrapping_sub(self.base.addr().get());
        if offset >= self.arena.bytes() || !offset.is_multiple_of(CHUNK_ALIGN) {
            return None;
        }
        let unit = (offset / CHUNK_ALIGN) as u32;
        let class = self.arena.class_of(self.arena.slab_of(unit) as usize)?;
        let geometry = self.classes.geometry(class);
        // With units of 32 bits, and without divisions up to here: one is left.
        let in_slab = unit & (self.arena.slab_units() - 1);
        let is_start = in_slab.is_multiple_of(geometry.units)
            && in_slab / geometry.units < geometry.chunks_per_slab;
        is_start.then_some((class, unit))
    }

    pub(super) fn enter_directory(&self, this: NonNull<Self>, counts_from: usize) {
        let numbers = self.classes.numbers();
        numbers.enter(this, self.base, &self.counts, counts_from);
    }

    /// Does the pool have to look after each chunk that goes to a caller or comes back? If so, the gates
    /// of all magazines send callers to the slow paths.
    pub(crate) fn attends(&self) -> bool {
        #[cfg(feature = "leak-tracking")]
        if self.tracker.is_some() {
            return true;
        }
        #[cfg(feature = "alloc")]
        if self.recorder.is_some() {
            return true;
        }
        self.zero_on_alloc || self.zero_on_free || self.hardening.is_some()
    }

    /// Notes a request for a histogram, if the pool makes one.
    pub(crate) fn record_request(&self, len: usize) {
        #[cfg(feature = "alloc")]
        if let Some(recorder) = &self.recorder {
            recorder.record(len);
        }
    }

    /// A chunk goes to a caller; every slow path ends here.
    pub(crate) fn handed_out(&self, class: u8, found: Found, request: Request) {
        let unit = found.unit;
        let (at, bytes) = (self.chunk_ptr(unit), self.classes.geometry(class).bytes);
        self.record_request(request.len);
        if let Some(hardening) = &self.hardening {
            asan::unpoison(at, bytes);
            // SAFETY: the chunk was just taken out of the pool's free chunks.
            unsafe { hardening.handed_out(unit, at, bytes) };
        }
        if self.zero_on_alloc && !found.zeroed {
            asan::unpoison(at, bytes);
            // SAFETY: as above.
            unsafe { at.write_bytes(0, bytes) };
        }
        #[cfg(feature = "leak-tracking")]
        if let Some(tracker) = &self.tracker {
            tracker.handed_out(class, unit, request);
        }
    }

    /// A chunk comes back from a caller, which may not touch it any more.
    pub(crate) fn given_back(&self, class: u8, unit: u32) {
        let (at, bytes) = (self.chunk_ptr(unit), self.classes.geometry(class).bytes);
        #[cfg(feature = "leak-tracking")]
        if let Some(tracker) = &self.tracker {
            tracker.given_back(unit);
        }
        // Poisoned by `Chunk::free` already; this is the last access.
        asan::unpoison(at, bytes);
        if let Some(hardening) = &self.hardening {
            // SAFETY: the caller's chunk, which nobody else has and which is `bytes` long.
            unsafe { hardening.given_back(unit, at, bytes) };
        } else if self.zero_on_free {
            // SAFETY: as above.
            unsafe { at.write_bytes(0, bytes) };
        }
        asan::poison(at, bytes);
    }

    /// Closes the pool. If no chunk is in a caller's hand it ends here, otherwise with the last free.
    ///
    /// # Safety
    /// Called once, by the last handle.
    pub(crate) unsafe fn close(this: NonNull<Self>) {
        /// Closes the pool even if a subscriber of `tracing` panics at the report.
        struct CloseOnDrop(NonNull<Inner>);

        impl Drop for CloseOnDrop {
            fn drop(&mut self) {
                // SAFETY: the promise of the caller of `close`.
                unsafe { Inner::close_unreported(self.0) };
            }
        }

        let _close = CloseOnDrop(this);
        #[cfg(feature = "leak-tracking")]
        {
            // SAFETY: nothing unmaps the pool before it is closed.
            let pool = unsafe { this.as_ref() };
            if let Some(tracker) = &pool.tracker {
                tracker.report_at_end(pool);
            }
        }
    }

    /// # Safety
    /// As [`close`](Self::close).
    unsafe fn close_unreported(this: NonNull<Self>) {
        // SAFETY: nothing unmaps the pool before `live` has been set up below.
        let pool = unsafe { this.as_ref() };
        let live = pool.shut_out_and_count();
        // From the addition on, a free can end the pool at any moment, unless this call has to.
        if pool.live.fetch_add(live, Ordering::AcqRel) + live == 0 {
            // SAFETY: no chunk is in anyone's hand, no handle is left, and threads that still
            // have a cache of this pool hold that cache alone.
            unsafe { Self::unmap(this) };
        }
    }

    /// Closes all magazines for ever; returns how many chunks are in callers' hands.
    fn shut_out_and_count(&self) -> i64 {
        let mut layer = self.slabs.lock();
        let gates = self.gates.lock();
        self.closed.store(true, Ordering::Relaxed);
        magazines(&layer.registry).for_each(|magazine| magazine.guard.raise(CLOSED));
        heavy_barrier();
        let mut live = 0;
        for class in 0..self.classes.count() as u8 {
            let mut tally = Tally::default();
            for cache in &layer.registry {
                let magazine = cache.magazine(class);
                magazine.guard.wait_idle();
                magazine.add_to(&mut tally);
            }
            // Under its lock: from here on, every free sees that the pool is closed.
            let in_depot = self.depot.with_open(class, |_| self.depot.chunks(class));
            // Shut by a bit in the word that a free changes: the free is in, and counted here, or sees
            // the bit.
            let singles = self.take_singles(class, true, |_| ());
            live += layer.slabs.class(class).out() - in_depot - singles - tally.cached;
        }
        // A chunk that is never freed keeps the pool, but not the racks of threads.
        let caches = core::mem::take(&mut layer.registry);
        drop((gates, layer));
        drop(caches);
        live as i64
    }

    /// # Safety
    /// Nobody reaches the pool any more.
    pub(crate) unsafe fn unmap(this: NonNull<Self>) {
        #[cfg(all(test, any(loom, shuttle)))]
        ENDED.set(ENDED.get() + 1);
        fork::forget(this);
        #[cfg(all(test, loom))]
        // SAFETY: the caller's promise.
        unsafe { &mut *this.as_ptr() }.after_all_others();
        // SAFETY: by contract this is its last use.
        let in_heap = unsafe { this.as_ref() }.in_heap;
        // SAFETY: as above.
        unsafe { this.drop_in_place() };
        if in_heap {
            // SAFETY: it came from there, and nothing is left in it.
            unsafe { give_back(this) };
        }
    }

    /// Loom reports what another thread did to these words last, unless it is ordered before this. (What
    /// drops a word of loom's does not ask that.)
    #[cfg(all(test, loom))]
    fn after_all_others(&mut self) {
        self.live.with_mut(|_| ());
        for counters in &mut self.uncached {
            counters.frees.with_mut(|_| ());
        }
        self.singles.after_all_others();
    }
}
