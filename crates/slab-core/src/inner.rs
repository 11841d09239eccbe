//! The pool behind its handles: the slow paths that connect magazines, depot and slabs, and the
//! end of a pool.
//!
//! # Where a chunk is looked for
//! 1. the thread's magazine (the fast path, in `pool.rs`: no lock, no read-modify-write)
//! 2. a batch from the depot: one compare-and-swap, and the magazine is half full
//! 3. fresh chunks from a slab: a mutex
//!
//! A free goes into the magazine of the thread that frees; a full magazine sends its older half to
//! the depot as one batch. A thread without a cache (its thread-locals are being destroyed, or
//! there are too many threads) uses the class's open batch instead.
//!
//! # Order of locks
//! `slabs`, then `registry`, then waiting for a guard, then a class's open batch. Inside a guard
//! only the open batches and the lock-free stacks are touched, so nobody who waits for a guard can
//! be waited for.
//!
//! # The end of a pool
//! No chunk counts a reference to its pool. When the last [`SlabPool`](crate::SlabPool) goes,
//! [`close`](Inner::close) shuts all threads out of their magazines for good; from then on each
//! free comes to [`free_uncached`](Inner::free_uncached), which counts down what is still in
//! callers' hands. Whoever brings that to zero, the closer or the last free, unmaps the arena.

use crate::arena::Arena;
use crate::builder::{Backing, SlabPoolBuilder};
use crate::call_site::CallSite;
use crate::class::{BATCH_MAX, CHUNK_ALIGN, ClassTable, MAX_CLASSES};
use crate::depot::Depot;
use crate::episode::Episode;
use crate::error::{AllocError, ConfigError};
use crate::guard::{CLOSED, PRESSURE, SCRUB};
use crate::hardening::Hardening;
use crate::local;
use crate::magazine::{Source, Tally, ThreadCache};
use crate::oversize::Oversize;
use crate::reclaim::{Reclaimed, SlabLayer};
use crate::slab::{Carved, ClassSlabs, Slabs};
use crate::stats::{ClassStats, PoolStats};
use crate::sync::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64, MODELLED, Mutex, Ordering, Table, heavy_barrier,
};
use crate::sys::asan;
#[cfg(feature = "leak-tracking")]
use crate::track::Tracker;
use arrayvec::ArrayVec;
use core::ptr::NonNull;
use core::task::Waker;
use std::sync::{Arc, OnceLock, Weak};

/// Threads of one pool that have magazines at the same time, at most; further ones work without.
const MAX_THREAD_CACHES: usize = if MODELLED { 4 } else { 4096 };

/// What the handles of a pool share; its drop closes the pool.
#[derive(Debug)]
pub(crate) struct Handle {
    inner: NonNull<Inner>,
}

// SAFETY: `Inner` is `Send + Sync`, and the handle is only a way to reach it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Not made from a reference: chunks keep this pointer, and the last of them frees the pool
    /// through it.
    pub(crate) fn as_ptr(&self) -> NonNull<Inner> {
        self.inner
    }

    pub(crate) fn inner(&self) -> &Inner {
        // SAFETY: `Inner` lives at least until `close`, which the drop of this handle calls.
        unsafe { self.inner.as_ref() }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: handles are built once an inner, in `Inner::open`, and this is its last use.
        unsafe { Inner::close(self.inner) };
    }
}

/// Counters of what passes by the magazines.
#[derive(Debug)]
struct Uncached {
    from_slab: AtomicU64,
    frees: AtomicU64,
    exhausted: AtomicU64,
    waits: AtomicU64,
    waiters_refused: AtomicU64,
    exhaustion: Episode,
    in_use_peak: AtomicU64,
}

/// Where a chunk goes that no magazine takes.
enum Place {
    Depot,
    /// Under pressure.
    Slab,
    /// The pool is closed.
    Nowhere,
}

/// Chunks of a class that are not in its slabs.
struct Whereabouts {
    in_use: u64,
    in_magazines: u64,
    in_depot: u64,
}

#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) cache: Arc<ThreadCache>,
    attached: bool,
}

/// Everything of a pool. The first fields are all that the fast path reads.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Inner {
    base: NonNull<u8>,
    slab_unit_mask: u32,
    pub(crate) classes: ClassTable,
    /// Per unit of the arena room for a chunk's count of further references; see `shared.rs`.
    counts: Table<AtomicU32>,
    pub(crate) arena: Arena,
    pub(crate) depot: Depot,
    uncached: [Uncached; MAX_CLASSES],
    too_large: AtomicU64,
    pub(crate) slabs: Mutex<SlabLayer>,
    pub(crate) registry: Mutex<Vec<Registered>>,
    pub(crate) closed: AtomicBool,
    /// Somebody waits for memory: what becomes free goes to its slab at once (see `wait`). Changes
    /// under the mutexes of both the slab layer and the registry; true before the depot is emptied.
    pub(crate) under_pressure: AtomicBool,
    /// Chunks in callers' hands, once the pool is closed.
    live: AtomicI64,
    home: OnceLock<Weak<Handle>>,
    pub(crate) name: Box<str>,
    max_thread_caches: usize,
    pub(crate) oversize: Arc<Oversize>,
    pub(crate) zero_on_free: bool,
    pub(crate) hardening: Option<Hardening>,
    #[cfg(feature = "leak-tracking")]
    pub(crate) tracker: Option<Tracker>,
    /// Unique in the process, for ever.
    pub(crate) id: u64,
}

// SAFETY: the only field that is not both by itself is `base`, an address inside `arena`.
unsafe impl Send for Inner {}
// SAFETY: as above; all shared state is atomic or under a mutex.
unsafe impl Sync for Inner {}

fn next_id() -> u64 {
    // Plain std: models have no global state.
    static NEXT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed)
}

impl Inner {
    /// Builds a pool; returns the one handle whose drop closes it.
    pub(crate) fn open(
        classes: ClassTable,
        options: &SlabPoolBuilder,
    ) -> Result<Arc<Handle>, ConfigError> {
        let arena = Arena::reserve(options.max_memory, classes.slab_bytes())?;
        if options.huge_pages {
            arena.advise_huge_pages();
        }
        let reserve_error = |errno| ConfigError::Reserve {
            bytes: arena.bytes(),
            errno,
        };
        let counts = Table::new(arena.bytes() / CHUNK_ALIGN).map_err(reserve_error)?;
        // One more mover a class: an open batch that becomes whole is moved under its lock.
        let movers = MAX_THREAD_CACHES + MAX_CLASSES;
        let depot = Depot::new(&classes, arena.slabs(), movers).map_err(reserve_error)?;
        let mut slabs = Slabs::new(&arena, options.growth).map_err(reserve_error)?;
        if options.backing != Backing::OnDemand {
            let lock = options.backing == Backing::Locked;
            slabs
                .back_all(&arena, lock)
                .map_err(|errno| ConfigError::Back {
                    bytes: arena.bytes(),
                    errno,
                })?;
        }
        let hardening = options
            .hardened
            .then(|| Hardening::new(arena.bytes(), options.zero_on_free))
            .transpose()
            .map_err(reserve_error)?;
        #[cfg(feature = "leak-tracking")]
        let tracker = options
            .track_leaks
            .map(|one_in| Tracker::new(arena.bytes(), one_in))
            .transpose()
            .map_err(reserve_error)?;
        let inner = Box::new(Self {
            id: next_id(),
            base: arena.base(),
            slab_unit_mask: arena.slab_units() - 1,
            classes,
            counts,
            depot,
            uncached: core::array::from_fn(|_| Uncached {
                from_slab: AtomicU64::new(0),
                frees: AtomicU64::new(0),
                exhausted: AtomicU64::new(0),
                waits: AtomicU64::new(0),
                waiters_refused: AtomicU64::new(0),
                exhaustion: Episode::new(),
                in_use_peak: AtomicU64::new(0),
            }),
            too_large: AtomicU64::new(0),
            slabs: Mutex::new(SlabLayer::new(slabs)),
            arena,
            registry: Mutex::new(Vec::new()),
            closed: AtomicBool::new(false),
            under_pressure: AtomicBool::new(false),
            live: AtomicI64::new(0),
            home: OnceLock::new(),
            max_thread_caches: if options.thread_caches {
                MAX_THREAD_CACHES
            } else {
                0
            },
            zero_on_free: options.zero_on_free,
            hardening,
            #[cfg(feature = "leak-tracking")]
            tracker,
            oversize: Oversize::new(options.max_oversize_memory),
            name: options.name.as_str().into(),
        });
        let inner = NonNull::from(Box::leak(inner));
        let handle = Arc::new(Handle { inner });
        let home = Arc::downgrade(&handle);
        handle.inner().home.set(home).expect("set once, here");
        Ok(handle)
    }

    /// A handle to this pool, unless its last one is gone.
    pub(crate) fn handle(&self) -> Option<Arc<Handle>> {
        self.home.get().and_then(Weak::upgrade)
    }

    pub(crate) fn max_memory(&self) -> usize {
        self.arena.bytes()
    }

    pub(crate) fn committed_bytes(&self) -> usize {
        self.slabs.lock().slabs.committed() * self.arena.slab_bytes()
    }

    /// The first byte of a chunk.
    #[inline(always)]
    pub(crate) fn chunk_ptr(&self, unit: u32) -> NonNull<u8> {
        // SAFETY: a chunk's unit is an offset inside the arena.
        unsafe { self.base.add(unit as usize * CHUNK_ALIGN) }
    }

    /// Class and unit of the chunk that starts at `at`, if one does.
    pub(crate) fn find_chunk(&self, at: NonNull<u8>) -> Option<(u8, u32)> {
        let offset = at.addr().get().wrapping_sub(self.base.addr().get());
        if offset >= self.arena.bytes() {
            return None;
        }
        let slab_bytes = self.arena.slab_bytes();
        let class = self.arena.class_of(offset / slab_bytes)?;
        let geometry = self.classes.geometry(class);
        let in_slab = offset % slab_bytes;
        let is_start = in_slab.is_multiple_of(geometry.bytes)
            && in_slab / geometry.bytes < geometry.chunks_per_slab as usize;
        is_start.then_some((class, (offset / CHUNK_ALIGN) as u32))
    }

    /// The word that counts the references to a chunk beyond the first.
    #[inline(always)]
    pub(crate) fn count(&self, class: u8, unit: u32) -> &AtomicU32 {
        let shift = self.classes.geometry(class).count_shift;
        let slab = unit & !self.slab_unit_mask;
        let at = slab + ((unit & self.slab_unit_mask) >> shift);
        debug_assert!((at as usize) < self.counts.len());
        // SAFETY: `at <= unit`, and the table has an entry for each unit of the arena.
        unsafe { self.counts.get_unchecked(at as usize) }
    }

    pub(crate) fn attach(&self) -> Option<Arc<ThreadCache>> {
        if self.max_thread_caches == 0 {
            return None;
        }
        local::attach(self, self.home.get()?, || self.register())
    }

    pub(crate) fn register(&self) -> Option<Arc<ThreadCache>> {
        let mut registry = self.registry.lock();
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(free) = registry.iter_mut().find(|entry| !entry.attached) {
            free.attached = true;
            return Some(Arc::clone(&free.cache));
        }
        if registry.len() == self.max_thread_caches {
            return None;
        }
        let id = registry.len();
        let cache = Arc::new(ThreadCache::new(id, &self.classes));
        let mut gates = 0;
        if self.under_pressure.load(Ordering::Relaxed) {
            gates |= PRESSURE;
        }
        if self.attends() {
            gates |= SCRUB;
        }
        for class in 0..self.classes.count() as u8 {
            cache.magazine(class).guard.raise(gates);
        }
        registry.push(Registered {
            cache: Arc::clone(&cache),
            attached: true,
        });
        Some(cache)
    }

    /// Takes back the cache of a thread that ends; its counters stay part of the statistics.
    pub(crate) fn detach(&self, cache: &Arc<ThreadCache>) {
        let mut registry = self.registry.lock();
        self.flush(&registry, cache);
        registry[cache.id].attached = false;
    }

    /// Moves all that lies in the current thread's magazines to the depot. The registry's lock
    /// keeps reclaimers out, who would otherwise be in the way.
    fn flush(&self, _registry: &[Registered], cache: &ThreadCache) {
        let mut units = [0; BATCH_MAX];
        for class in 0..self.classes.count() as u8 {
            let magazine = cache.magazine(class);
            if !magazine.guard.enter_slow() {
                return; // The pool is closed and has taken it all.
            }
            loop {
                match magazine.take_bottom(&mut units) {
                    0 => break,
                    taken => self.depot.put(class, &units[..taken]),
                }
            }
            magazine.guard.leave();
        }
    }

    pub(crate) fn flush_current(&self) {
        if let Some(cache) = self.attach() {
            self.flush(&self.registry.lock(), &cache);
        }
    }

    /// Does the pool have something to do with each chunk that goes to a caller or comes back?
    /// Then the gates of all magazines send callers to the slow paths.
    fn attends(&self) -> bool {
        #[cfg(feature = "leak-tracking")]
        if self.tracker.is_some() {
            return true;
        }
        self.zero_on_free || self.hardening.is_some()
    }

    /// A chunk goes to a caller; every slow path ends here.
    pub(crate) fn handed_out(&self, class: u8, unit: u32, _call_site: CallSite) {
        if let Some(hardening) = &self.hardening {
            let bytes = self.classes.geometry(class).bytes;
            asan::unpoison(self.chunk_ptr(unit), bytes);
            // SAFETY: the chunk was just taken out of the pool's free chunks.
            unsafe { hardening.handed_out(unit, self.chunk_ptr(unit), bytes) };
        }
        #[cfg(feature = "leak-tracking")]
        if let Some(tracker) = &self.tracker {
            tracker.handed_out(class, unit, _call_site);
        }
    }

    /// A chunk comes back from a caller, who may not touch it any more.
    fn given_back(&self, class: u8, unit: u32) {
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

    /// Allocation when the magazine had nothing or could not be entered; returns the chunk's unit.
    pub(crate) fn alloc_slow(&self, class: u8, call_site: CallSite) -> Result<u32, AllocError> {
        let result = self.alloc_with(self.attach().as_deref(), class);
        if let Ok(unit) = result {
            self.handed_out(class, unit, call_site);
        }
        result.inspect_err(|error| {
            if matches!(error, AllocError::Exhausted { .. }) {
                self.uncached[usize::from(class)]
                    .exhausted
                    .fetch_add(1, Ordering::Relaxed);
                self.begin_exhaustion(class);
            }
        })
    }

    /// As [`alloc_slow`](Self::alloc_slow), but being at the cap is not counted as a refusal: the
    /// caller may wait.
    pub(crate) fn alloc_with(
        &self,
        cache: Option<&ThreadCache>,
        class: u8,
    ) -> Result<u32, AllocError> {
        if let Some(cache) = cache
            && let Some(unit) = self.alloc_from_depot(cache, class)
        {
            self.end_exhaustion(class);
            return Ok(unit);
        }
        match self.alloc_single(class) {
            Some(unit) => {
                self.end_exhaustion(class);
                Ok(unit)
            }
            None => self.alloc_from_slab(cache, class),
        }
    }

    /// From the magazine (this thread's other pools may have hidden it) or a batch of the depot.
    fn alloc_from_depot(&self, cache: &ThreadCache, class: u8) -> Option<u32> {
        let magazine = cache.magazine(class);
        if !magazine.guard.enter_slow() {
            return None;
        }
        let unit = magazine.pop().or_else(|| {
            let mut batch = [0; BATCH_MAX];
            let count = self.depot.pop_batch(class, &mut batch);
            magazine.refill(&batch[..count]);
            if count > 0 {
                magazine.count_source(Source::Depot);
            }
            magazine.pop()
        });
        magazine.guard.leave();
        unit
    }

    /// From the open batch, for which no magazine is needed.
    pub(crate) fn alloc_single(&self, class: u8) -> Option<u32> {
        self.depot.with_open(class, |open| {
            // What is left in the stack is about to be swept; a batch moved here would be missed.
            if self.under_pressure.load(Ordering::Relaxed) {
                return None;
            }
            self.depot.take_in(class, open)
        })
    }

    /// Fresh chunks: one for the caller, the rest for the magazine.
    fn alloc_from_slab(&self, cache: Option<&ThreadCache>, class: u8) -> Result<u32, AllocError> {
        let mut units = [0; BATCH_MAX];
        // Without a magazine there is no place for more than the one that is wanted.
        let want = if cache.is_some() && !self.under_pressure.load(Ordering::Relaxed) {
            self.depot.batch_len(class)
        } else {
            1
        };
        let units = &mut units[..want];
        let carved = self.carve(class, units);
        let carved = match carved {
            Err(AllocError::Exhausted { .. }) => match self.alloc_by_reclaim(class, units) {
                Ok(Reclaimed::Single(unit)) => {
                    self.end_exhaustion(class);
                    return Ok(unit);
                }
                Ok(Reclaimed::Fresh(carved)) => Ok(carved),
                Err(error) => Err(error),
            },
            carved => carved,
        };
        let carved = carved.inspect_err(|error| {
            if !matches!(error, AllocError::Exhausted { .. }) {
                tracing::warn!(pool = %self.name, %error, "slab not committed");
            }
        })?;
        if carved.new_slab {
            tracing::debug!(
                pool = %self.name,
                chunk_bytes = self.classes.geometry(class).bytes,
                slab_bytes = self.arena.slab_bytes(),
                "slab committed"
            );
        }
        let fresh = &units[..carved.chunks];
        let answer = self.deliver(cache, class, fresh);
        self.note_peak(class);
        self.end_exhaustion(class);
        Ok(answer)
    }

    fn carve(&self, class: u8, units: &mut [u32]) -> Result<Carved, AllocError> {
        let mut layer = self.slabs.lock();
        layer.slabs.carve(&self.arena, &self.classes, class, units)
    }

    /// Counts an allocation of the last of `fresh` and stores the others.
    fn deliver(&self, cache: Option<&ThreadCache>, class: u8, fresh: &[u32]) -> u32 {
        if let Some(cache) = cache
            && let magazine = cache.magazine(class)
            && magazine.guard.enter_slow()
        {
            let stored = magazine.refill(fresh);
            magazine.count_source(Source::Slab);
            let unit = magazine.pop();
            magazine.guard.leave();
            // The magazine was empty a moment ago and only this thread fills it.
            debug_assert_eq!(stored, fresh.len());
            self.put_free(class, &fresh[stored..]);
            if let Some(unit) = unit {
                return unit;
            }
        }
        let (&unit, rest) = fresh.split_last().expect("carve gives at least one chunk");
        self.put_free(class, rest);
        self.uncached[usize::from(class)]
            .from_slab
            .fetch_add(1, Ordering::Relaxed);
        unit
    }

    /// Free chunks into the depot, or under pressure to whoever waits.
    fn put_free(&self, class: u8, units: &[u32]) {
        let stored = self.depot.with_open(class, |open| {
            if self.under_pressure.load(Ordering::Relaxed) {
                return false;
            }
            for &unit in units {
                self.depot.put_in(class, open, unit);
            }
            true
        });
        if !stored && let Some(woken) = self.store_and_serve(class, units, 0) {
            woken.into_iter().for_each(Waker::wake);
        }
    }

    fn begin_exhaustion(&self, class: u8) {
        if self.uncached[usize::from(class)].exhaustion.refused() {
            let chunk_bytes = self.classes.geometry(class).bytes;
            tracing::warn!(pool = %self.name, chunk_bytes, max_memory = self.max_memory(), "pool exhausted");
        }
    }

    pub(crate) fn count_frees(&self, class: u8, frees: u64) {
        self.uncached[usize::from(class)]
            .frees
            .fetch_add(frees, Ordering::Relaxed);
    }

    pub(crate) fn count_wait(&self, class: u8) {
        self.uncached[usize::from(class)]
            .waits
            .fetch_add(1, Ordering::Relaxed);
        self.begin_exhaustion(class);
    }

    pub(crate) fn too_many_waiters(&self, class: u8, limit: usize) -> AllocError {
        self.uncached[usize::from(class)]
            .waiters_refused
            .fetch_add(1, Ordering::Relaxed);
        AllocError::TooManyWaiters { limit }
    }

    fn end_exhaustion(&self, class: u8) {
        if self.uncached[usize::from(class)].exhaustion.served() {
            let chunk_bytes = self.classes.geometry(class).bytes;
            tracing::info!(pool = %self.name, chunk_bytes, "pool no longer exhausted");
        }
    }

    #[cold]
    pub(crate) fn too_large(&self, requested: usize) -> AllocError {
        self.too_large.fetch_add(1, Ordering::Relaxed);
        AllocError::TooLarge {
            requested,
            largest: self.classes.classes().largest(),
        }
    }

    /// A free when the magazine was full or could not be entered.
    ///
    /// # Safety
    /// The caller gives up a chunk of this pool, and does not touch the pool afterwards unless it
    /// holds a handle or another chunk: this call may end the pool.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn free_slow(this: NonNull<Self>, class: u8, unit: u32) {
        // SAFETY: the pool lives at least as long as the chunk that is being given up.
        let pool = unsafe { this.as_ref() };
        if pool.attends() {
            pool.given_back(class, unit);
        }
        let cache = pool.attach();
        // SAFETY: the caller's promise.
        unsafe { Self::free_with(this, cache.as_deref(), class, unit) };
    }

    /// # Safety
    /// As [`free_slow`](Self::free_slow).
    pub(crate) unsafe fn free_with(
        this: NonNull<Self>,
        cache: Option<&ThreadCache>,
        class: u8,
        unit: u32,
    ) {
        // SAFETY: the pool lives at least as long as the chunk that is being given up.
        let pool = unsafe { this.as_ref() };
        if let Some(cache) = cache
            && pool.free_cached(cache, class, unit)
        {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { Self::free_uncached(this, class, unit) };
    }

    fn free_cached(&self, cache: &ThreadCache, class: u8, unit: u32) -> bool {
        let magazine = cache.magazine(class);
        if !magazine.guard.enter_slow() {
            return false;
        }
        let mut pushed = magazine.push(unit);
        if !pushed {
            let mut units = [0; BATCH_MAX];
            let batch = &mut units[..self.depot.batch_len(class)];
            // A full magazine holds two batches.
            let taken = magazine.take_bottom(batch);
            debug_assert_eq!(taken, batch.len());
            self.depot.push_batch(class, batch);
            pushed = magazine.push(unit);
        }
        magazine.guard.leave();
        pushed
    }

    /// # Safety
    /// As [`free_slow`](Self::free_slow).
    unsafe fn free_uncached(this: NonNull<Self>, class: u8, unit: u32) {
        // SAFETY: the pool lives at least as long as the chunk that is being given up.
        let pool = unsafe { this.as_ref() };
        let place = pool.depot.with_open(class, |open| {
            // Under the lock: `close` sets the flag before it takes the lock and adds up, so a
            // free is counted here or there, never in both places. The same goes for what is
            // swept when pressure begins.
            if pool.closed.load(Ordering::Relaxed) {
                return Place::Nowhere;
            }
            if pool.under_pressure.load(Ordering::Relaxed) {
                return Place::Slab;
            }
            pool.count_frees(class, 1);
            pool.depot.put_in(class, open, unit);
            Place::Depot
        });
        match place {
            Place::Depot => return,
            Place::Slab => {
                if let Some(woken) = pool.store_and_serve(class, &[unit], 1) {
                    woken.into_iter().for_each(Waker::wake);
                    return;
                }
            }
            Place::Nowhere => {}
        }
        if pool.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the last chunk of a closed pool was just given up; `close` has counted.
            unsafe { Self::unmap(this) };
        }
    }

    /// Ends the pool as soon as no chunk is in a caller's hand.
    ///
    /// # Safety
    /// Called once, by the last handle.
    unsafe fn close(this: NonNull<Self>) {
        // SAFETY: nothing unmaps the pool before `live` has been set up below.
        let pool = unsafe { this.as_ref() };
        #[cfg(feature = "leak-tracking")]
        if let Some(tracker) = &pool.tracker {
            tracker.report_at_end(pool);
        }
        let live = pool.shut_out_and_count();
        // From the addition on, the pool can go at any moment unless it is we who end it.
        if pool.live.fetch_add(live, Ordering::AcqRel) + live == 0 {
            // SAFETY: no chunk is in anyone's hand, no handle is left, and threads that still
            // have a cache of this pool hold that cache alone.
            unsafe { Self::unmap(this) };
        }
    }

    /// Closes all magazines for ever; returns how many chunks are in callers' hands.
    fn shut_out_and_count(&self) -> i64 {
        let layer = self.slabs.lock();
        let registry = self.registry.lock();
        self.closed.store(true, Ordering::Relaxed);
        let classes = 0..self.classes.count() as u8;
        for entry in registry.iter() {
            for class in classes.clone() {
                entry.cache.magazine(class).guard.raise(CLOSED);
            }
        }
        heavy_barrier();
        let mut live = 0;
        for class in classes {
            let mut tally = Tally::default();
            for entry in registry.iter() {
                let magazine = entry.cache.magazine(class);
                magazine.guard.wait_idle();
                magazine.add_to(&mut tally);
            }
            // Under its lock: from here on, every free sees that the pool is closed.
            let in_depot = self
                .depot
                .with_open(class, |open| self.depot.chunks(class, open));
            live += layer.slabs.class(class).out() - in_depot - tally.cached;
        }
        live as i64
    }

    /// # Safety
    /// Nobody reaches the pool any more.
    unsafe fn unmap(this: NonNull<Self>) {
        // SAFETY: the box was leaked in `open`, and by contract this is its last use.
        drop(unsafe { Box::from_raw(this.as_ptr()) });
    }

    /// Adds up one class.
    pub(crate) fn tally(&self, registry: &[Registered], class: u8) -> Tally {
        let uncached = &self.uncached[usize::from(class)];
        let mut tally = Tally {
            frees: uncached.frees.load(Ordering::Relaxed),
            from_slab: uncached.from_slab.load(Ordering::Relaxed),
            ..Tally::default()
        };
        for entry in registry {
            entry.cache.magazine(class).add_to(&mut tally);
        }
        tally
    }

    /// Where the class's chunks are. Threads run on while this reads, so the parts are of
    /// slightly different moments; they are kept within what can be, and always add up. When the
    /// pool is quiet, they are exact.
    fn whereabouts(&self, owned: &ClassSlabs, class: u8, cached: u64) -> Whereabouts {
        let out = owned.out();
        let in_depot = self
            .depot
            .with_open(class, |open| self.depot.chunks(class, open))
            .min(out);
        let in_magazines = cached.min(out - in_depot);
        Whereabouts {
            in_use: out - in_depot - in_magazines,
            in_magazines,
            in_depot,
        }
    }

    fn note_peak(&self, class: u8) {
        let layer = self.slabs.lock();
        let cached = self.tally(&self.registry.lock(), class).cached;
        let now = self.whereabouts(layer.slabs.class(class), class, cached);
        self.uncached[usize::from(class)]
            .in_use_peak
            .fetch_max(now.in_use, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let mut classes = ArrayVec::new();
        let layer = self.slabs.lock();
        let slabs = &layer.slabs;
        let registry = self.registry.lock();
        for class in 0..self.classes.count() as u8 {
            let geometry = self.classes.geometry(class);
            let tally = self.tally(&registry, class);
            let owned = slabs.class(class);
            let now = self.whereabouts(owned, class, tally.cached);
            let in_use = now.in_use;
            let uncached = &self.uncached[usize::from(class)];
            let committed_chunks = owned.slabs * u64::from(geometry.chunks_per_slab);
            classes.push(ClassStats {
                chunk_bytes: geometry.bytes,
                committed_bytes: owned.slabs as usize * self.arena.slab_bytes(),
                committed_chunks,
                in_use,
                in_magazines: now.in_magazines,
                in_depot: now.in_depot,
                in_slabs: committed_chunks - owned.out(),
                in_use_peak: uncached
                    .in_use_peak
                    .fetch_max(in_use, Ordering::Relaxed)
                    .max(in_use),
                allocs: tally.frees + in_use,
                allocs_from_depot: tally.from_depot,
                allocs_from_slab: tally.from_slab,
                frees: tally.frees,
                frees_remote: tally.frees_remote.min(tally.frees),
                slab_commits: owned.commits,
                slab_rebalances: owned.rebalances,
                slab_trims: owned.trims,
                exhausted: uncached.exhausted.load(Ordering::Relaxed),
                waits: uncached.waits.load(Ordering::Relaxed),
                waiting: layer.waiters.waiting(class) as u64,
                waiters_refused: uncached.waiters_refused.load(Ordering::Relaxed),
            });
        }
        PoolStats {
            max_memory: self.arena.bytes(),
            committed_bytes: slabs.committed() * self.arena.slab_bytes(),
            slab_bytes: self.arena.slab_bytes(),
            thread_caches: registry.iter().filter(|entry| entry.attached).count(),
            too_large: self.too_large.load(Ordering::Relaxed),
            oversize_bytes: self.oversize.bytes(),
            oversize_allocs: self.oversize.allocs(),
            oversize_refused: self.oversize.refused(),
            commit_failures: slabs.commit_failures,
            classes,
        }
    }
}
