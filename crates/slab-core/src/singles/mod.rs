//! Free chunks one by one, without a lock: the depot of pools whose threads keep no magazines.
//!
//! | file | what | order |
//! |---|---|---|
//! | `stack` | [`Mode::DepotOnly`] | last in, first out |
//! | `ring` | [`Mode::Ring`] | first in, first out |
//!
//! Either can be *shut*, by a bit in the very word that adding a chunk changes: while it is set,
//! nothing goes in or out. So a free at the same time is either in, and found by the thread that shut
//! it, or comes to the slow path and finds out why (the pool is closed, or somebody waits for memory).
//! Once a chunk is in, the thread that freed it does not touch the pool any more, which may be gone.

mod ring;
mod stack;

use crate::directory;
use crate::pool::builder::Mode;
use crate::pool::inner::Inner;
use crate::sync::{AtomicU32, Table};
use crate::sys::room::Room;
use core::ptr::NonNull;
use ring::Ring;
use stack::Stack;

/// The places of single chunks, by class.
#[derive(Debug)]
pub(crate) enum Singles {
    /// Free chunks lie in the depot's batches: threads have magazines, or everything is under a lock.
    None,
    Stacks(Table<Stack>),
    Rings(Table<Ring>),
}

/// What the statistics need to know of a class.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SinglesCount {
    /// Chunks that lie here now.
    pub(crate) chunks: u64,
    /// Frees and allocations that ended here.
    pub(crate) frees: u64,
    pub(crate) allocs: u64,
}

impl Singles {
    /// For a mode [in effect](Mode::in_effect); `population` is how many chunks of a class there can be.
    ///
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(crate) fn new(
        room: &mut Room,
        mode: Mode,
        classes: u8,
        population: impl Fn(u8) -> usize,
    ) -> Result<Self, i32> {
        Ok(match mode {
            Mode::DepotOnly => {
                let stack = |_: &mut Room| Ok(Stack::new());
                Self::Stacks(Table::filled(room, classes.into(), stack)?)
            }
            Mode::Ring => {
                let mut populations = (0..classes).map(population);
                let ring = |room: &mut Room| {
                    let population = populations.next().unwrap_or_default();
                    Ring::new(room, population)
                };
                Self::Rings(Table::filled(room, classes.into(), ring)?)
            }
            Mode::ThreadCached | Mode::Locked => Self::None,
        })
    }

    /// As [`Inner`] does at its end.
    #[cfg(all(test, loom))]
    pub(crate) fn after_all_others(&mut self) {
        match self {
            Self::None => {}
            Self::Stacks(stacks) => stacks.iter_mut().for_each(Stack::after_all_others),
            Self::Rings(rings) => rings.iter_mut().for_each(Ring::after_all_others),
        }
    }
}

impl Inner {
    /// Does each class keep the slabs it has, so that a sweep would free none for another class?
    pub(crate) fn has_fixed_shares(&self) -> bool {
        matches!(self.singles, Singles::Rings(_))
    }

    /// A free chunk has no references to count, so that word leads to the next one.
    fn link<'a>(&'a self, class: u8) -> impl Fn(u32) -> &'a AtomicU32 {
        let place = self.classes.place(class);
        // SAFETY: the pool lives, and its table of counts with it.
        move |unit| unsafe { directory::count(place, unit) }
    }

    /// Frees a chunk; if it has to go elsewhere, the error is how many frees are to be counted there: none if it
    /// was counted here. After `Ok` the pool may be gone.
    ///
    /// # Safety
    /// The caller gives up a chunk of this pool.
    pub(crate) unsafe fn put_single(this: NonNull<Self>, class: u8, unit: u32) -> Result<(), u64> {
        // SAFETY: the pool lasts until the chunk is in.
        let pool = unsafe { this.as_ref() };
        match &pool.singles {
            Singles::None => Err(1),
            Singles::Stacks(stacks) => {
                let stack = NonNull::from(&stacks[usize::from(class)]);
                let link = pool.link(class)(unit);
                // SAFETY: it lasts as long as the pool.
                unsafe { Stack::put(stack, unit, link) }
                    .then_some(())
                    .ok_or(0)
            }
            Singles::Rings(rings) => {
                let ring = NonNull::from(&rings[usize::from(class)]);
                // SAFETY: it lasts as long as the pool.
                unsafe { Ring::put(ring, unit) }.then_some(()).ok_or(1)
            }
        }
    }

    pub(crate) fn take_single(&self, class: u8) -> Option<u32> {
        match &self.singles {
            Singles::None => None,
            Singles::Stacks(stacks) => stacks[usize::from(class)].take(self.link(class)),
            Singles::Rings(rings) => rings[usize::from(class)].take(),
        }
    }

    /// Takes all chunks of a class that are here now, and if `shut` lets none in from now on. Returns
    /// how many there were. By one thread at a time, under the mutex of the slab layer.
    pub(crate) fn take_singles(&self, class: u8, shut: bool, sink: impl FnMut(u32)) -> u64 {
        match &self.singles {
            Singles::None => 0,
            Singles::Stacks(stacks) => {
                stacks[usize::from(class)].take_all(shut, self.link(class), sink)
            }
            Singles::Rings(rings) => rings[usize::from(class)].take_all(shut, sink),
        }
    }

    /// Lets chunks in again.
    pub(crate) fn reopen_singles(&self) {
        match &self.singles {
            Singles::None => {}
            Singles::Stacks(stacks) => stacks.iter().for_each(Stack::reopen),
            Singles::Rings(rings) => rings.iter().for_each(Ring::reopen),
        }
    }

    /// The most chunks of a class that a sweep for another class may find here.
    pub(crate) fn singles_at_most(&self, class: u8) -> u64 {
        match &self.singles {
            Singles::Stacks(stacks) => stacks[usize::from(class)].len_at_most(),
            Singles::None | Singles::Rings(_) => 0,
        }
    }

    pub(crate) fn count_singles(&self, class: u8) -> SinglesCount {
        match &self.singles {
            Singles::None => SinglesCount::default(),
            Singles::Stacks(stacks) => stacks[usize::from(class)].count(),
            Singles::Rings(rings) => rings[usize::from(class)].count(),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod kinds {
    use super::Singles;
    use crate::{Mode, SizeClasses, SlabPool};

    /// All modes do the same: only their cost shows which one it is.
    #[test]
    fn each_mode_has_the_depot_that_it_says() {
        // A ring has a place for each chunk, which Miri fills one by one.
        let classes = SizeClasses::explicit(&[4096]).unwrap();
        let builder = || SlabPool::builder().size_classes(classes.clone());
        let pool = |mode| (builder().max_memory(1 << 20).mode(mode).build()).unwrap();
        let (stacks, rings) = (pool(Mode::DepotOnly), pool(Mode::Ring));
        assert!(matches!(stacks.inner().singles, Singles::Stacks(_)));
        assert!(matches!(rings.inner().singles, Singles::Rings(_)));
        let locked = pool(Mode::Locked);
        assert!(matches!(locked.inner().singles, Singles::None));
        assert_eq!(locked.inner().max_thread_caches, 0);
        for pool in [stacks, rings, locked] {
            assert_eq!(pool.stats().slow_classes, 0, "it has no magazines");
        }
    }

    /// A pool that has no magazines has none that are slow to find either.
    #[test]
    #[cfg(not(feature = "std"))]
    fn thread_cached_is_depot_only_without_std() {
        let pool = SlabPool::builder()
            .mode(Mode::ThreadCached)
            .build()
            .unwrap();
        assert_eq!(pool.stats().slow_classes, 0);
        assert!(!pool.inner().has_magazines());
        assert!(matches!(pool.inner().singles, Singles::Stacks(_)));
    }
}

/// Whole pools in these modes; `stack` and `ring` have models of their own.
#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use crate::class::SizeClasses;
    use crate::pool::builder::SlabPoolBuilder;
    use crate::pool::handle::Handle;
    use crate::pool::inner::ENDED;
    use crate::proofs::model::pools::{Flag, Sendable};
    use crate::proofs::model::{model, sizes};
    use crate::reclaim::Collected;
    use crate::wait::{Afterwards, Answer, Turn};
    use alloc::sync::Arc;
    use core::task::Waker;
    use loom::thread;

    const MODES: [Mode; 2] = [Mode::DepotOnly, Mode::Ring];

    /// A pool of two slabs of four chunks.
    fn pool(mode: Mode) -> Arc<Handle> {
        let options = SlabPoolBuilder::default().mode(mode).max_memory(8 << 10);
        Inner::open(&options.size_classes(sizes())).unwrap()
    }

    fn free(handle: &Handle, unit: u32) -> thread::JoinHandle<()> {
        let inner = Sendable(handle.as_ptr());
        thread::spawn(move || {
            let inner = inner;
            // SAFETY: the caller gives up a chunk of the pool.
            unsafe { Inner::free_slow(inner.0, 0, unit) };
        })
    }

    fn alloc(handle: &Handle) -> Option<u32> {
        handle.inner().alloc_with(None, 0).ok()
    }

    /// The last two chunks are freed while the last handle is dropped: the pool ends once, and nobody
    /// touches it afterwards.
    #[test]
    fn model_singles_close_against_the_last_frees() {
        for mode in MODES {
            model(Some(3), move || {
                let handle = pool(mode);
                let units = [alloc(&handle).unwrap(), alloc(&handle).unwrap()];
                let frees = units.map(|unit| free(&handle, unit));
                drop(handle);
                for free in frees {
                    free.join().unwrap();
                }
                assert_eq!(ENDED.replace(0), 1, "the pool ends once");
            });
        }
    }

    /// All chunks of a slab are free while another chunk comes and goes: an allocation of another class gets the slab.
    #[test]
    fn model_singles_of_a_free_slab_are_not_overlooked() {
        model(Some(3), || {
            let sizes = SizeClasses::explicit(&[512, 1024]).unwrap();
            let options = SlabPoolBuilder::default()
                .mode(Mode::DepotOnly)
                .max_memory(8 << 10);
            let handle = Inner::open(&options.size_classes(sizes)).unwrap();
            let pool = handle.inner();
            let free = |unit| {
                // SAFETY: gives up a chunk allocated below.
                unsafe { Inner::free_with(handle.as_ptr(), None, 0, unit) };
            };
            let mut units: Vec<u32> = (0..9).map(|_| alloc(&handle).unwrap()).collect();
            let mut comes_and_goes = units.pop().unwrap();
            let stays = units.pop().unwrap();
            units.into_iter().for_each(free);
            pool.sweep(&mut pool.slabs.lock(), &mut Collected::default());
            free(stays);
            let other = {
                let inner = Sendable(handle.as_ptr());
                thread::spawn(move || {
                    let inner = inner;
                    // SAFETY: the pool's handle outlives this thread, which is joined before it is dropped.
                    unsafe { inner.0.as_ref() }.alloc_with(None, 1).unwrap()
                })
            };
            for _ in 0..2 {
                free(comes_and_goes);
                comes_and_goes = alloc(&handle).unwrap();
            }
            other.join().unwrap();
        });
    }

    /// The pool is full. One thread waits for a chunk while two others free one each: the waiter
    /// gets one, and the other can be allocated.
    #[test]
    fn model_singles_wait_against_frees() {
        for mode in MODES {
            model(Some(2), move || {
                let handle = pool(mode);
                let units: Vec<u32> = (0..8).map(|_| alloc(&handle).unwrap()).collect();
                let frees = [units[0], units[7]].map(|unit| free(&handle, unit));
                let flag = Arc::new(Flag::default());
                let waker = Waker::from(flag.clone());
                let pool = handle.inner();
                let first = match pool.alloc_or_wait(None, 0, &waker, &mut Afterwards::default()) {
                    Answer::Now(result) => result.unwrap(),
                    Answer::Later(ticket) => {
                        flag.wait();
                        let grant =
                            pool.redeem(&Turn::new(0, ticket), &waker, &mut Afterwards::default());
                        grant.expect("woken for a reason").unwrap()
                    }
                };
                for free in frees {
                    free.join().unwrap();
                }
                assert_ne!(first, alloc(&handle).unwrap());
                assert_eq!(alloc(&handle), None);
            });
        }
    }
}
