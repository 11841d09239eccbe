//! Allocation when the thread's magazine had nothing: the depot, then the slabs, then reclaim.

use crate::class::geometry::BATCH_MAX;
use crate::error::AllocError;
#[cfg(not(feature = "alloc"))]
use crate::no_events as tracing;
use crate::pool::inner::Inner;
use crate::pool::request::Request;
use crate::reclaim::{Collected, Reclaimed, SlabLayer};
use crate::slab::Carved;
use crate::sync::{MutexGuard, Ordering};
use crate::thread_cache::ThreadCache;
use crate::thread_cache::local;
use crate::thread_cache::magazine::{Magazine, Source};
use crate::wait::DeferredWakers;
use core::ptr::NonNull;

/// From this size on, zeroing a used chunk costs more than going to the slabs for each.
const PAGE: usize = 4096;

/// A chunk for a caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) unit: u32,
    /// Its memory is as the system gave it.
    pub(crate) zeroed: bool,
}

impl Found {
    pub(crate) fn used(unit: u32) -> Self {
        Self {
            unit,
            zeroed: false,
        }
    }
}

/// Frees a chunk that was taken and not handed out yet, unless it is forgotten: for the time in which foreign
/// code runs that may panic (a waker, a subscriber of `tracing`).
struct FreeOnPanic<'a>(&'a Inner, u8, u32);

impl Drop for FreeOnPanic<'_> {
    fn drop(&mut self) {
        // SAFETY: the chunk was given to nobody, and the caller that asked for it has a handle.
        unsafe { Inner::free_with(NonNull::from(self.0), None, self.1, self.2) };
    }
}

impl Inner {
    /// Allocation when the magazine had nothing or could not be entered; returns the chunk's unit.
    pub(crate) fn alloc_slow(&self, class: u8, request: Request) -> Result<u32, AllocError> {
        let found = self.find_for_magazine(class);
        self.record_outcome(class, found, request)
            .map(|found| found.unit)
    }

    /// As [`alloc_slow`](Self::alloc_slow), for a caller that has a chunk already: that there are no more is no refusal,
    /// of which the operator has to hear.
    pub(crate) fn alloc_slow_if_any(&self, class: u8, request: Request) -> Option<u32> {
        let found = self.find_for_magazine(class).ok()?;
        self.handed_out(class, found, request);
        Some(found.unit)
    }

    fn find_for_magazine(&self, class: u8) -> Result<Found, AllocError> {
        if self.zero_on_alloc {
            return self.find_to_zero(class);
        }
        // Mostly it was empty, and a batch of the depot fills it. As that happens for every batch, it
        // must not cost a look into the thread's list of caches.
        let quick = || {
            let place = self.classes.place(class);
            local::with_owned_magazine(self.id, place, |magazine| {
                self.alloc_from_depot(magazine, class)
            })
        };
        match self.has_magazines().then(quick).flatten() {
            Some(unit) => {
                self.end_exhaustion(class, unit);
                Ok(Found::used(unit))
            }
            None => self.find_free_chunk(self.attach().as_deref(), class),
        }
    }

    /// As [`alloc_slow`](Self::alloc_slow), for a caller that wants zeros and has to zero a used chunk.
    pub(crate) fn alloc_slow_zeroed(
        &self,
        class: u8,
        request: Request,
    ) -> Result<Found, AllocError> {
        let found = self.find_to_zero(class);
        self.record_outcome(class, found, request)
    }

    fn find_to_zero(&self, class: u8) -> Result<Found, AllocError> {
        let cache = self.attach();
        if let Some(used) = self.find_used(cache.as_deref(), class) {
            return Ok(used);
        }
        // A chunk of a page or more is carved alone: the others of its batch would lie in the magazine as if they had
        // been used.
        let is_small = self.classes.geometry(class).bytes < PAGE;
        self.alloc_from_slab(cache.as_deref().filter(|_| is_small), class)
    }

    fn record_outcome(
        &self,
        class: u8,
        found: Result<Found, AllocError>,
        request: Request,
    ) -> Result<Found, AllocError> {
        if let Ok(found) = found {
            self.handed_out(class, found, request);
        }
        found.inspect_err(|error| {
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
        let found = self.find_free_chunk(cache, class)?;
        Ok(found.unit)
    }

    fn find_free_chunk(&self, cache: Option<&ThreadCache>, class: u8) -> Result<Found, AllocError> {
        match self.find_used(cache, class) {
            Some(used) => Ok(used),
            None => self.alloc_from_slab(cache, class),
        }
    }

    fn find_used(&self, cache: Option<&ThreadCache>, class: u8) -> Option<Found> {
        let unit = cache
            .and_then(|cache| self.alloc_from_depot(cache.magazine(class), class))
            .or_else(|| self.alloc_single(class))?;
        self.end_exhaustion(class, unit);
        Some(Found::used(unit))
    }

    /// From the magazine (the fast path does not see that of a class that shares its number, nor any of a pool that looks
    /// after each chunk) or a batch of the depot.
    fn alloc_from_depot(&self, magazine: &Magazine, class: u8) -> Option<u32> {
        if !self.enter(magazine) {
            return None;
        }
        let unit = magazine.pop().or_else(|| {
            let lane = magazine.guard.lane();
            let count = self.depot.pop_batch(lane, class, |batch| {
                let stored = magazine.refill(batch);
                debug_assert_eq!(stored, batch.len(), "an empty magazine holds a batch");
            });
            if count > 0 {
                magazine.count_source(Source::Depot);
            }
            magazine.pop()
        });
        magazine.guard.leave_slow();
        unit
    }

    /// A single chunk, for which no magazine is needed.
    pub(crate) fn alloc_single(&self, class: u8) -> Option<u32> {
        if let Some(unit) = self.take_single(class) {
            return Some(unit);
        }
        let unit = self.depot.with_open(class, |open| {
            // What is left in the stack is about to be swept; a batch moved to the open one would be
            // missed.
            if self.under_pressure.load(Ordering::Relaxed) {
                return None;
            }
            self.depot.take_in(class, open)
        })?;
        self.uncached[usize::from(class)]
            .from_depot
            .fetch_add(1, Ordering::Relaxed);
        Some(unit)
    }

    /// Fresh chunks: one for the caller, the rest for the magazine.
    fn alloc_from_slab(&self, cache: Option<&ThreadCache>, class: u8) -> Result<Found, AllocError> {
        let mut units = [0; BATCH_MAX];
        let mut layer = self.slabs.lock();
        // Without a magazine there is no place for more than the one that is wanted.
        let want = if cache.is_some() && !self.under_pressure.load(Ordering::Relaxed) {
            self.depot.batch_len(class)
        } else {
            1
        };
        let units = &mut units[..want];
        let mut collected = Collected::default();
        let carved = match self.carve(&mut layer, class, units) {
            Ok(carved) => carved,
            Err(refused) => {
                drop(layer);
                self.begin_refusal(refused);
                layer = self.slabs.lock();
                let reclaimed =
                    self.alloc_by_reclaim(&mut layer, class, units, refused, &mut collected);
                match reclaimed {
                    Ok(Reclaimed::Fresh(carved)) => carved,
                    Ok(Reclaimed::Single(unit)) => {
                        drop(layer);
                        let free_on_panic = FreeOnPanic(self, class, unit);
                        collected.report(self);
                        core::mem::forget(free_on_panic);
                        self.end_exhaustion(class, unit);
                        return Ok(Found::used(unit));
                    }
                    Err(refused) => {
                        drop(layer);
                        collected.report(self);
                        return Err(refused);
                    }
                }
            }
        };
        let fresh = &units[..carved.chunks];
        let unit = self.take_one_and_store_rest(layer, cache, class, fresh);
        let free_on_panic = FreeOnPanic(self, class, unit);
        collected.report(self);
        if carved.new_slab {
            tracing::debug!(
                pool = %self.name,
                chunk_bytes = self.classes.geometry(class).bytes,
                slab_bytes = self.arena.slab_bytes(),
                "slab committed"
            );
        }
        if carved.grown {
            self.end_refusal();
        }
        if carved.peak_due {
            self.update_in_use_peak(class);
        }
        core::mem::forget(free_on_panic);
        self.end_exhaustion(class, unit);
        Ok(Found {
            unit,
            zeroed: carved.fresh,
        })
    }

    fn carve(
        &self,
        layer: &mut SlabLayer,
        class: u8,
        units: &mut [u32],
    ) -> Result<Carved, AllocError> {
        layer.slabs.carve(&self.arena, &self.classes, class, units)
    }

    /// Counts an allocation of one of `fresh` and stores the others, in the magazine before the layer is
    /// unlocked: another thread would otherwise find them neither in the slabs nor there.
    fn take_one_and_store_rest(
        &self,
        layer: MutexGuard<'_, SlabLayer>,
        cache: Option<&ThreadCache>,
        class: u8,
        fresh: &[u32],
    ) -> u32 {
        let cached = cache.and_then(|cache| self.refill(cache.magazine(class), fresh));
        drop(layer);
        if let Some((unit, stored)) = cached {
            return self.store_rest(class, unit, &fresh[stored..]);
        }
        let (&unit, rest) = fresh.split_last().expect("carve gives at least one chunk");
        self.uncached[usize::from(class)]
            .from_slab
            .fetch_add(1, Ordering::Relaxed);
        self.store_rest(class, unit, rest)
    }

    /// Puts as many fresh chunks into the magazine as fit, and takes one; returns it, and how many fitted.
    fn refill(&self, magazine: &Magazine, fresh: &[u32]) -> Option<(u32, usize)> {
        if !self.enter(magazine) {
            return None;
        }
        // Mostly it is empty. It is not if it was shut for a fork, which takes nothing out; a chunk that
        // was in it is not fresh.
        let stored = magazine.refill(fresh);
        let unit = if stored > 0 {
            magazine.count_source(Source::Slab);
            magazine.pop()
        } else {
            None
        };
        magazine.guard.leave_slow();
        unit.map(|unit| (unit, stored))
    }

    /// Puts away the `rest` of what was carved and returns the wanted `unit`, which is counted as
    /// allocated: it is not lost if the rest wakes a task whose waker panics.
    fn store_rest(&self, class: u8, unit: u32, rest: &[u32]) -> u32 {
        let free_on_panic = FreeOnPanic(self, class, unit);
        self.put_free(class, rest);
        core::mem::forget(free_on_panic);
        unit
    }

    /// Puts free chunks into the depot or, under pressure, into their slabs, from which waiters are served.
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
        if !stored {
            // SAFETY: the pool outlives `self`.
            let woken = unsafe { Self::store_and_serve(NonNull::from(self), class, units, 0) };
            woken.into_iter().for_each(DeferredWakers::wake);
        }
    }

    pub(crate) fn begin_exhaustion(&self, class: u8) {
        if self.uncached[usize::from(class)]
            .exhaustion
            .record_refusal()
        {
            let chunk_bytes = self.classes.geometry(class).bytes;
            tracing::warn!(pool = %self.name, chunk_bytes, max_memory = self.max_memory(), "pool exhausted");
        }
    }

    /// Reports that the system would not back a slab, if that is the error: once an episode, as with
    /// exhaustion, because each later allocation asks again.
    fn begin_refusal(&self, error: AllocError) {
        if matches!(error, AllocError::Commit { .. }) && self.commit_refusals.record_refusal() {
            tracing::warn!(pool = %self.name, %error, "slab not committed");
        }
    }

    fn end_refusal(&self) {
        if self.commit_refusals.record_success() {
            tracing::info!(pool = %self.name, "slabs are committed again");
        }
    }

    pub(crate) fn count_frees(&self, class: u8, frees: u64) {
        self.uncached[usize::from(class)]
            .frees
            .fetch_add(frees, Ordering::Relaxed);
    }

    pub(crate) fn too_many_waiters_error(&self, class: u8, limit: usize) -> AllocError {
        self.uncached[usize::from(class)]
            .waiters_refused
            .fetch_add(1, Ordering::Relaxed);
        AllocError::TooManyWaiters { limit }
    }

    /// Reports that the class has chunks again, if it had none; `unit` is the one that was taken.
    fn end_exhaustion(&self, class: u8, unit: u32) {
        if self.uncached[usize::from(class)]
            .exhaustion
            .record_success()
        {
            let free_on_panic = FreeOnPanic(self, class, unit);
            let chunk_bytes = self.classes.geometry(class).bytes;
            tracing::info!(pool = %self.name, chunk_bytes, "pool no longer exhausted");
            core::mem::forget(free_on_panic);
        }
    }

    #[cold]
    pub(crate) fn too_large_error(&self, requested: usize) -> AllocError {
        self.too_large.fetch_add(1, Ordering::Relaxed);
        self.record_request(requested);
        AllocError::TooLarge {
            requested,
            largest: self.classes.classes().largest(),
        }
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use crate::SlabPool;
    use core::future::Future;
    use core::task::{Context, Waker};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::task::Wake;

    struct PanickingWaker;

    impl Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            panic!("by a waker");
        }
    }

    /// One thread has carved and not stored the rest yet when another begins to wait.
    #[test]
    fn panicking_waker_in_an_allocation_leaks_no_chunk() {
        // Few chunks, for Miri.
        let classes = crate::SizeClasses::explicit(&[64 << 10]).unwrap();
        let builder = SlabPool::builder().size_classes(classes);
        let pool = builder.max_memory(256 << 10).build().unwrap();
        let inner = pool.inner();
        let mut fresh = [0; 3];
        let carved = inner.carve(&mut inner.slabs.lock(), 0, &mut fresh);
        assert_eq!(carved.unwrap().chunks, 3);
        let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1).ok()).collect();
        let waker = Waker::from(Arc::new(PanickingWaker));
        let mut waits = Box::pin(pool.alloc(1));
        let mut cx = Context::from_waker(&waker);
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        let take_one = || inner.take_one_and_store_rest(inner.slabs.lock(), None, 0, &fresh);
        catch_unwind(AssertUnwindSafe(take_one)).unwrap_err();
        drop((waits, all));
        let stats = pool.stats();
        assert_eq!((stats.in_use(), stats.classes()[0].waiting), (0, 0));
    }

    /// What a fork leaves behind: a magazine that is not empty when fresh chunks come.
    #[test]
    fn fresh_alloc_does_not_return_a_used_chunk_of_the_magazine() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let inner = pool.inner();
        let cache = inner.attach().unwrap();
        let capacity = cache.magazine(0).guard.capacity();
        for room in [0, 1] {
            let alloc = |_| pool.try_alloc(64).unwrap();
            let mut chunks: Vec<_> = (0..2 * capacity).map(alloc).collect();
            while cache.magazine(0).len() < capacity {
                drop(chunks.pop());
            }
            let kept: Vec<_> = (0..room).map(alloc).collect();
            assert_eq!(cache.magazine(0).len(), capacity - room);
            let mut fresh = [0; 3];
            let mut layer = inner.slabs.lock();
            let carved = inner.carve(&mut layer, 0, &mut fresh).unwrap();
            assert!(carved.fresh && carved.chunks == 3);
            let unit = inner.take_one_and_store_rest(layer, Some(&cache), 0, &fresh);
            assert!(fresh.contains(&unit));
            let stats = pool.stats();
            let held = 1 + kept.len() + chunks.len();
            assert_eq!(stats.in_use() as usize, held, "the others can be had");
            inner
                .depot
                .with_open(0, |open| inner.depot.put_in(0, open, unit));
        }
    }

    /// A batch on its way from the depot to a magazine is in one place at most.
    #[test]
    fn snapshot_beside_a_refill_shows_no_fewer_chunks_in_use() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let inner = pool.inner();
        let _held = pool.try_alloc(64).unwrap();
        let mut batch = vec![0; inner.depot.batch_len(0)];
        let carved = inner.carve(&mut inner.slabs.lock(), 0, &mut batch);
        assert_eq!(carved.unwrap().chunks, batch.len());
        inner.depot.push_batch(0, 0, &batch);
        pool.flush_thread_cache();
        let cache = inner.attach().unwrap();
        let magazine = cache.magazine(0);
        assert!(inner.enter(magazine));
        let popped = inner.depot.pop_batch(0, 0, |batch| {
            assert_eq!(magazine.refill(batch), batch.len());
            assert_eq!(pool.stats().in_use(), 1);
        });
        magazine.guard.leave_slow();
        assert_eq!(popped, batch.len());
    }
}
