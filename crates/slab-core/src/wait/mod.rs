//! Waiting for memory under the cap, without a runtime: [`Alloc`].
//!
//! While nobody waits, none of this costs anything. The first waiter puts the pool *under
//! pressure*: it raises a gate on every magazine and sweeps, so that each free chunk lies in its
//! slab. From then on, and under the mutex of the slab layer, each free goes into its slab at once
//! and is followed by [`serve`](Inner::serve), which carves for the waiter that has waited longest and
//! can be served. So these hold whenever the mutex is free:
//!
//! - `under pressure <=> somebody waits`, and then all free chunks are stored in the slab layer
//! - nobody waits for a class of which there is a free chunk, or could be
//!
//! A wake-up is therefore never lost: memory that becomes free and a waiter that comes are ordered
//! by the mutex. None is duplicated: a chunk is carved for one waiter, by name, and lies there
//! until the waiter takes it; a waiter that is dropped instead frees it, which serves the next.
//!
//! Waiters for the same class are served in the order in which they came, and `try_alloc` cannot
//! overtake them. Between classes there is no such order: a freed chunk serves the first waiter of its own class, even if
//! one of another came before, and a slab that becomes whole serves the waiter that came first. (A request never gets a
//! chunk of a larger class than its own: that would keep the larger one's waiters from theirs.)

#[cfg(feature = "std")]
pub(crate) mod held_wakes;
#[cfg(not(feature = "std"))]
pub(crate) mod no_times;
#[cfg(feature = "std")]
pub(crate) mod times;

#[cfg(not(feature = "std"))]
pub(crate) use no_times as times;

use crate::class::MAX_CLASSES;
use crate::error::AllocError;
use crate::handle::chunk::Chunk;
use crate::pool::SlabPool;
use crate::pool::allocate::Found;
use crate::pool::inner::Inner;
use crate::pool::request::Request;
use crate::reclaim::{Collected, SlabLayer};
use crate::sync::{MODELLED, Ordering};
use crate::thread_cache::ThreadCache;
use crate::thread_cache::guard::PRESSURE;
use crate::thread_cache::registry::magazines;
use crate::wait::times::{WaitStart, WaitTimes};
use alloc::collections::BTreeMap;
use alloc::vec::{self, Vec};
use arrayvec::ArrayVec;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};

/// The most tasks that wait in one pool at the same time; further ones are refused.
const MAX_WAITERS: usize = if MODELLED { 4 } else { 1 << 16 };

/// A place in the queue: the order in which waiters came.
pub(crate) type Ticket = u64;

/// The waiters, and the grants that they have not taken yet. A part of the slab layer.
#[derive(Debug)]
pub(crate) struct Waiters {
    next: Ticket,
    waiting: [BTreeMap<Ticket, Waker>; MAX_CLASSES],
    granted: BTreeMap<Ticket, Result<u32, AllocError>>,
    times: [WaitTimes; MAX_CLASSES],
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self {
            next: 0,
            waiting: core::array::from_fn(|_| BTreeMap::new()),
            granted: BTreeMap::new(),
            times: [WaitTimes::default(); MAX_CLASSES],
        }
    }

    #[cfg(feature = "std")]
    pub(crate) fn times(&self, class: u8) -> WaitTimes {
        self.times[usize::from(class)]
    }

    fn record_wait(&mut self, turn: &Turn) {
        turn.began
            .record_in(&mut self.times[usize::from(turn.class)]);
    }

    /// Waiters of a class that have nothing yet.
    pub(crate) fn waiting(&self, class: u8) -> usize {
        self.waiting[usize::from(class)].len()
    }

    fn is_empty(&self) -> bool {
        self.waiting.iter().all(BTreeMap::is_empty)
    }

    fn len(&self) -> usize {
        self.granted.len() + self.waiting.iter().map(BTreeMap::len).sum::<usize>()
    }

    /// The class of the waiter that has waited longest, leaving out classes that `failed`.
    fn longest_waiting_class(&self, failed: &[bool; MAX_CLASSES]) -> Option<u8> {
        (0..)
            .zip(&self.waiting)
            .filter(|&(class, _)| !failed[usize::from(class)])
            .filter_map(|(class, queue)| Some((queue.first_key_value()?.0, class)))
            .min()
            .map(|(_, class)| class)
    }
}

/// A waiter's class and ticket, and when its wait began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    class: u8,
    ticket: Ticket,
    began: WaitStart,
}

impl Turn {
    pub(crate) fn new(class: u8, ticket: Ticket) -> Self {
        let began = WaitStart::now();
        Self {
            class,
            ticket,
            began,
        }
    }
}

/// Wakers to be woken outside of all locks: they are foreign code. If one panics, the others are woken
/// all the same.
#[must_use]
pub(crate) struct DeferredWakers(vec::IntoIter<Waker>);

impl DeferredWakers {
    pub(crate) fn new(wakers: Vec<Waker>) -> Self {
        Self(wakers.into_iter())
    }

    pub(crate) fn wake(mut self) {
        #[cfg(feature = "std")]
        crate::wait::held_wakes::put_off(&mut self.0);
        self.wake_rest();
    }

    fn wake_rest(&mut self) {
        self.0.by_ref().for_each(Waker::wake);
    }
}

impl Drop for DeferredWakers {
    fn drop(&mut self) {
        self.wake_rest();
    }
}

/// The answer to a request that found no chunk in its thread's magazine.
#[derive(Debug)]
pub(crate) enum Answer {
    Now(Result<u32, AllocError>),
    Later(Ticket),
}

/// Foreign code that is to run last, when no lock is held and the chunk of the answer, or the ticket, has an owner: it may
/// panic.
#[derive(Debug, Default)]
pub(crate) struct Afterwards {
    /// A clone that was not needed, to be dropped.
    unused: Option<Waker>,
    collected: Collected,
}

impl Afterwards {
    fn run(self, pool: &Inner) {
        self.collected.report(pool);
        drop(self.unused);
    }
}

impl Inner {
    pub(crate) fn alloc_or_wait(
        &self,
        cache: Option<&ThreadCache>,
        class: u8,
        waker: &Waker,
        afterwards: &mut Afterwards,
    ) -> Answer {
        match self.alloc_with(cache, class) {
            Err(AllocError::Exhausted { .. }) => {}
            done => return Answer::Now(done),
        }
        // Foreign code, so not under the mutex.
        let waker = waker.clone();
        let mut layer = self.slabs.lock();
        if layer.waiters.len() == MAX_WAITERS {
            drop(layer);
            return Answer::Now(Err(self.too_many_waiters_error(class, MAX_WAITERS)));
        }
        if layer.waiters.is_empty() {
            self.begin_pressure(&mut layer, &mut afterwards.collected);
        }
        let carved = self.carve_one(&mut layer, class);
        if !matches!(carved, Err(AllocError::Exhausted { .. })) {
            self.end_pressure_if_idle(&layer);
            afterwards.unused = Some(waker);
            return Answer::Now(carved);
        }
        let ticket = layer.waiters.next;
        layer.waiters.next += 1;
        layer.waiters.waiting[usize::from(class)].insert(ticket, waker);
        // Under the mutex, so that no snapshot shows a waiter without its wait.
        let waits = &self.uncached[usize::from(class)].waits;
        waits.fetch_add(1, Ordering::Relaxed);
        Answer::Later(ticket)
    }

    fn carve_one(&self, layer: &mut SlabLayer, class: u8) -> Result<u32, AllocError> {
        let mut unit = [0];
        let slabs = &mut layer.slabs;
        slabs.carve(&self.arena, &self.classes, class, &mut unit)?;
        // While somebody waits, all that is free lies in the slabs.
        let counters = &self.uncached[usize::from(class)];
        counters.from_slab.fetch_add(1, Ordering::Relaxed);
        self.raise_in_use_peak(layer, class, layer.slabs.class(class).out());
        Ok(unit[0])
    }

    /// When this returns, no magazine and no open batch takes a chunk, and none holds one.
    fn begin_pressure(&self, layer: &mut SlabLayer, collected: &mut Collected) {
        self.under_pressure.store(true, Ordering::Relaxed);
        let gates = self.gates.lock();
        magazines(&layer.registry).for_each(|magazine| magazine.guard.raise(PRESSURE));
        drop(gates);
        // Has the barrier that makes the gates effective, and takes what lies behind them. Of all classes, because it also
        // shuts the stacks of single chunks: what comes back to one that is empty now would stay in it.
        let classes: ArrayVec<u8, MAX_CLASSES> = self.all_classes().collect();
        self.sweep_classes(layer, &classes, collected);
    }

    fn end_pressure_if_idle(&self, layer: &SlabLayer) {
        if !layer.waiters.is_empty() || !self.under_pressure.load(Ordering::Relaxed) {
            return;
        }
        self.under_pressure.store(false, Ordering::Relaxed);
        self.reopen_singles();
        let _gates = self.gates.lock();
        magazines(&layer.registry).for_each(|magazine| magazine.guard.lower(PRESSURE));
    }

    /// Puts free chunks into their slabs and serves the waiters that can now be served; returns their
    /// wakers.
    ///
    /// `None`, and nothing done, if the pool is closed.
    ///
    /// # Safety
    /// The pool lives until the chunks are stored. A caller that gives up a chunk by this call must not
    /// touch the pool afterwards: a woken task may drop it (see `pool/free.rs`).
    pub(crate) unsafe fn store_and_serve(
        this: NonNull<Self>,
        class: u8,
        units: &[u32],
        frees: u64,
    ) -> Option<DeferredWakers> {
        // SAFETY: the caller's promise.
        let pool = unsafe { this.as_ref() };
        let mut layer = pool.slabs.lock();
        // `close` sets it under this mutex.
        if pool.closed.load(Ordering::Relaxed) {
            return None;
        }
        pool.count_frees(class, frees);
        layer.slabs.store(&pool.arena, class, units);
        let woken = pool.serve(&mut layer);
        pool.end_pressure_if_idle(&layer);
        Some(woken)
    }

    /// Grants chunks to waiters, the longest waiting first, until nobody can be served.
    fn serve(&self, layer: &mut SlabLayer) -> DeferredWakers {
        let mut woken = Vec::new();
        let mut failed = [false; MAX_CLASSES];
        while let Some(class) = layer.waiters.longest_waiting_class(&failed) {
            let grant = self.carve_one(layer, class);
            if matches!(grant, Err(AllocError::Exhausted { .. })) {
                failed[usize::from(class)] = true;
            } else if let Some((ticket, waker)) =
                layer.waiters.waiting[usize::from(class)].pop_first()
            {
                layer.waiters.granted.insert(ticket, grant);
                woken.push(waker);
            }
        }
        DeferredWakers::new(woken)
    }

    /// What was granted to a ticket; `None` if it waits on, from now on with this waker.
    pub(crate) fn redeem(
        &self,
        turn: &Turn,
        waker: &Waker,
        afterwards: &mut Afterwards,
    ) -> Option<Result<u32, AllocError>> {
        // Wakers are cloned and dropped outside of the mutex: they are foreign code.
        let mut waker = waker.clone();
        let mut layer = self.slabs.lock();
        let grant = layer.waiters.granted.remove(&turn.ticket);
        let waiting = &mut layer.waiters.waiting[usize::from(turn.class)];
        if let Some(known) = waiting.get_mut(&turn.ticket) {
            core::mem::swap(known, &mut waker);
        }
        if grant.is_some() {
            layer.waiters.record_wait(turn);
        }
        drop(layer);
        afterwards.unused = Some(waker);
        grant
    }

    /// Gives a ticket back; a chunk that was granted already is the caller's to free.
    pub(crate) fn cancel(&self, turn: &Turn) -> Option<u32> {
        let mut layer = self.slabs.lock();
        let waker = layer.waiters.waiting[usize::from(turn.class)].remove(&turn.ticket);
        let grant = layer.waiters.granted.remove(&turn.ticket);
        layer.waiters.record_wait(turn);
        self.end_pressure_if_idle(&layer);
        drop(layer);
        drop(waker);
        grant?.ok()
    }
}

/// The future that [`SlabPool::alloc`] returns: waits until there is a chunk.
///
/// Cancel-safe: it can be dropped at any moment, and a chunk that was already set aside for it goes to the
/// next waiter. A future that is neither polled nor dropped keeps its place: nobody else gets a chunk that
/// was set aside for it, and while it still waits, frees bypass the threads' magazines. A leaked one
/// (`mem::forget`) does so for ever.
#[must_use = "futures do nothing unless polled"]
pub struct Alloc<'a> {
    pool: &'a SlabPool,
    request: Request,
    pending: Option<Turn>,
}

impl<'a> Alloc<'a> {
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub(crate) fn new(pool: &'a SlabPool, len: usize) -> Self {
        Self {
            pool,
            request: Request::new(len),
            pending: None,
        }
    }

    #[cold]
    fn poll_slow(&mut self, class: u8, cx: &Context<'_>) -> Poll<Result<Chunk, AllocError>> {
        let inner = self.pool.inner();
        let (waker, mut afterwards) = (cx.waker(), Afterwards::default());
        let grant = match &self.pending {
            Some(turn) => inner.redeem(turn, waker, &mut afterwards),
            None => {
                let cache = inner.attach();
                match inner.alloc_or_wait(cache.as_deref(), class, waker, &mut afterwards) {
                    Answer::Now(result) => Some(result),
                    Answer::Later(ticket) => {
                        self.pending = Some(Turn::new(class, ticket));
                        // Logs, which calls foreign code that may panic: from here on the drop gives the
                        // ticket back.
                        inner.begin_exhaustion(class);
                        None
                    }
                }
            }
        };
        let Some(unit) = grant else {
            afterwards.run(inner);
            return Poll::Pending;
        };
        self.pending = None;
        if let Ok(unit) = unit {
            inner.handed_out(class, Found::used(unit), self.request);
        }
        // SAFETY: the unit was taken out of the pool's free chunks for this future.
        let chunk = unit.map(|unit| unsafe { Chunk::new(self.pool.inner(), class, unit) });
        afterwards.run(inner);
        Poll::Ready(chunk)
    }
}

impl Future for Alloc<'_> {
    type Output = Result<Chunk, AllocError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(turn) = &self.pending {
            let class = turn.class;
            return self.poll_slow(class, cx);
        }
        match self.pool.place_for(self.request.len) {
            Err(too_large) => Poll::Ready(Err(too_large)),
            Ok(place) => match self.pool.try_alloc_cached(place) {
                Some(chunk) => Poll::Ready(Ok(chunk)),
                None => self.poll_slow(place.class(), cx),
            },
        }
    }
}

impl Drop for Alloc<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.pending.take()
            && let Some(unit) = self.pool.inner().cancel(&turn)
        {
            // As a chunk that was never handed out: it is no request that was served, which a histogram would count.
            // SAFETY: the unit was set aside for this future alone, which has handed it to nobody and borrows a handle of
            // the pool.
            unsafe {
                Inner::free_with(NonNull::from(self.pool.inner()), None, turn.class, unit);
            }
        }
    }
}

impl fmt::Debug for Alloc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alloc")
            .field("pool", &self.pool.name())
            .field("len", &self.request.len)
            .field("waiting", &self.pending.is_some())
            .finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// What is left would count towards [`MAX_WAITERS`] for ever, until everybody is refused.
    #[test]
    fn ended_waits_leave_no_entries() {
        let pool = SlabPool::builder().max_memory(256 << 10).build().unwrap();
        let left = || pool.inner().slabs.lock().waiters.len();
        let all: Vec<_> = core::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
        let mut cx = Context::from_waker(Waker::noop());
        let [served, granted, waits] = &mut [(); 3].map(|()| pool.alloc(65536));
        for waiter in [&mut *served, &mut *granted, &mut *waits] {
            assert!(Pin::new(waiter).poll(&mut cx).is_pending());
        }
        let mut all = all.into_iter();
        drop((all.next(), all.next()));
        let Poll::Ready(Ok(chunk)) = Pin::new(&mut *served).poll(&mut cx) else {
            panic!("it was set aside");
        };
        assert_eq!(left(), 2);
        *granted = pool.alloc(1);
        *waits = pool.alloc(1);
        assert_eq!(left(), 0);
        drop((chunk, all));
        assert_eq!(pool.stats().in_use(), 0);
    }

    #[test]
    fn no_snapshot_shows_a_waiter_without_its_wait() {
        let pool = SlabPool::builder().max_memory(256 << 10).build().unwrap();
        let inner = pool.inner();
        let class = inner.classes.place_for(65536).unwrap().class();
        let _all: Vec<_> = core::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
        let Answer::Later(ticket) =
            inner.alloc_or_wait(None, class, Waker::noop(), &mut Afterwards::default())
        else {
            panic!("the pool is full");
        };
        let stats = pool.stats().classes()[usize::from(class)];
        assert_eq!((stats.waits, stats.waiting), (1, 1));
        assert!(inner.cancel(&Turn::new(class, ticket)).is_none());
    }
}
