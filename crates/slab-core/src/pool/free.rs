//! A free when the thread's magazine was full or shut: the depot, a slab, or the end of the pool.

use crate::pool::inner::Inner;
use crate::sync::Ordering;
use crate::thread_cache::ThreadCache;
use crate::thread_cache::local;
use crate::thread_cache::magazine::Magazine;
use core::ptr::NonNull;

/// Where a chunk goes that no magazine takes.
enum FreeTarget {
    Depot,
    /// Under pressure.
    Slab,
    /// The pool is closed; nothing keeps the chunk.
    Closed,
}

impl Inner {
    /// A free when the magazine was full or could not be entered.
    ///
    /// Takes the pool by pointer, as do all functions that it passes the chunk to: once others can find
    /// the chunk the pool may be gone, but a reference argument has to stay valid until the function
    /// returns.
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
        // Mostly it was full, and a batch goes to the depot. As that happens for every batch, it must
        // not cost a look into the thread's list of caches.
        let (id, place) = (pool.id, pool.classes.place(class));
        let freed = pool.has_magazines()
            && local::with_owned_magazine(id, place, |magazine| {
                // SAFETY: the caller's promise.
                unsafe { Self::free_cached(this, magazine, class, unit) }.then_some(())
            })
            .is_some();
        if !freed {
            let cache = pool.attach();
            // SAFETY: the caller's promise.
            unsafe { Self::free_with(this, cache.as_deref(), class, unit) };
        }
    }

    /// # Safety
    /// As [`free_slow`](Self::free_slow).
    pub(crate) unsafe fn free_with(
        this: NonNull<Self>,
        cache: Option<&ThreadCache>,
        class: u8,
        unit: u32,
    ) {
        if let Some(cache) = cache
            // SAFETY: the caller's promise.
            && unsafe { Self::free_cached(this, cache.magazine(class), class, unit) }
        {
            return;
        }
        // SAFETY: the caller's promise; no magazine has taken the chunk.
        unsafe { Self::free_uncached(this, class, unit) };
    }

    /// # Safety
    /// As [`free_slow`](Self::free_slow).
    unsafe fn free_cached(this: NonNull<Self>, magazine: &Magazine, class: u8, unit: u32) -> bool {
        // SAFETY: the pool lives at least as long as the chunk that is being given up.
        let pool = unsafe { this.as_ref() };
        if !pool.enter(magazine) {
            return false;
        }
        let mut pushed = magazine.push(unit);
        if !pushed {
            // A full magazine holds more than a batch.
            magazine.take_bottom(pool.depot.batch_len(class), |batch| {
                pool.depot.push_batch(magazine.guard.lane(), class, batch);
            });
            pushed = magazine.push(unit);
        }
        magazine.guard.leave_slow();
        pushed
    }

    /// # Safety
    /// As [`free_slow`](Self::free_slow).
    unsafe fn free_uncached(this: NonNull<Self>, class: u8, unit: u32) {
        // SAFETY: the caller's promise.
        let Err(frees) = (unsafe { Self::put_single(this, class, unit) }) else {
            return;
        };
        // SAFETY: the chunk is still in hand, and the pool lives at least as long.
        let pool = unsafe { this.as_ref() };
        // SAFETY: the caller's promise.
        match unsafe { Self::free_to_open_batch(this, class, unit, frees) } {
            FreeTarget::Depot => return,
            FreeTarget::Slab => {
                // SAFETY: the caller's promise.
                if let Some(woken) = unsafe { Self::store_and_serve(this, class, &[unit], frees) } {
                    woken.wake();
                    return;
                }
            }
            FreeTarget::Closed => {}
        }
        if pool.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the last chunk of a closed pool was just given up; `close` has counted.
            unsafe { Self::unmap(this) };
        }
    }

    /// Puts the chunk into the class's open batch, if that is where it goes, and counts it there as so many
    /// frees.
    ///
    /// # Safety
    /// As [`free_slow`](Self::free_slow).
    unsafe fn free_to_open_batch(
        this: NonNull<Self>,
        class: u8,
        unit: u32,
        frees: u64,
    ) -> FreeTarget {
        // SAFETY: the pool lives at least as long as the chunk that is being given up.
        let pool = unsafe { this.as_ref() };
        let mut open = pool.depot.open[usize::from(class)].lock();
        // Under the lock: `close` sets the flag before it takes the lock and adds up, so a
        // free is counted here or there, never in both places. The same holds for the sweep
        // with which pressure begins.
        if pool.closed.load(Ordering::Relaxed) {
            return FreeTarget::Closed;
        }
        if pool.under_pressure.load(Ordering::Relaxed) {
            return FreeTarget::Slab;
        }
        pool.count_frees(class, frees);
        pool.depot.put_in(class, &mut open, unit);
        pool.depot.note_open(class, &open);
        FreeTarget::Depot
    }
}
