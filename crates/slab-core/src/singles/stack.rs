//! A lock-free stack of single chunks: Treiber's ("Systems programming: coping with parallelism",
//! 1986), with a tag against a head that went away and came back (ABA).
//!
//! The links lie in the words that count a chunk's references: there is one for each chunk, it is
//! never used for anything but numbers, and a free chunk has no references to count. A thread that
//! reads a link too late reads some number, and the tag tells it so.

use super::SinglesCount;
use crate::sync::{AtomicU32, AtomicU64, MODELLED, Ordering};
use core::ptr::NonNull;

/// Nothing comes in or goes out.
const SHUT: u64 = 1 << 32;
const ONE_TAG: u64 = 1 << 33;
/// In models the tag wraps at its first change.
const FIRST_TAG: u64 = if MODELLED {
    u64::MAX - (ONE_TAG - 1)
} else {
    0
};

/// `tag << 33 | shut << 32 | unit of the top plus one`, or zero instead of a unit. A thread would
/// have to sleep inside one `take` through exactly 2^31 changes of the head to be deceived.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Stack {
    head: AtomicU64,
    /// In the line that a change owns anyway. Also puts of chunks that were refused.
    puts: AtomicU64,
    takes: AtomicU64,
    /// Taken by `take_all`, or refused.
    swept: AtomicU64,
}

/// The head with its next tag and this top.
fn with_top(head: u64, top: u32) -> u64 {
    ((head & !u64::from(u32::MAX)) | u64::from(top)).wrapping_add(ONE_TAG)
}

impl Stack {
    pub(super) fn new() -> Self {
        Self {
            head: AtomicU64::new(FIRST_TAG),
            puts: AtomicU64::new(0),
            takes: AtomicU64::new(0),
            swept: AtomicU64::new(0),
        }
    }

    /// Adds a chunk, whose link is `link`; `false` if the stack is shut. Counts the free in either case.
    ///
    /// # Safety
    /// `this` points to a stack that lasts until the chunk is in. After `true` it may be gone, which is
    /// why it comes by pointer: a reference would have to stay valid until this returns.
    pub(super) unsafe fn put(this: NonNull<Self>, unit: u32, link: &AtomicU32) -> bool {
        // SAFETY: the caller's promise.
        let this = unsafe { this.as_ref() };
        // Before the chunk is in: afterwards the stack may be gone.
        this.puts.fetch_add(1, Ordering::Relaxed);
        // Acquire: a thread that sees it shut sees why.
        let mut head = this.head.load(Ordering::Acquire);
        while head & SHUT == 0 {
            link.store(head as u32, Ordering::Relaxed);
            // Release: the link, and what the last owner did to the chunk, come before.
            match this.head.compare_exchange_weak(
                head,
                with_top(head, unit + 1),
                Ordering::Release,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
        link.store(0, Ordering::Relaxed);
        // As if it had been swept at once: taken back, the count of frees would fall for a moment. Release: for
        // `len_at_most`.
        this.swept.fetch_add(1, Ordering::Release);
        false
    }

    /// Takes the chunk on top; `None` if there is none or the stack is shut.
    pub(super) fn take<'a>(&self, link: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        // Acquire: pairs with the `put` that published this top.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            if head & SHUT != 0 {
                return None;
            }
            let unit = (head as u32).checked_sub(1)?;
            let link = link(unit);
            let next = link.load(Ordering::Relaxed);
            // Relaxed: it is the head that was read, tag and all, and was acquired then.
            match self.head.compare_exchange_weak(
                head,
                with_top(head, next),
                Ordering::Relaxed,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    link.store(0, Ordering::Relaxed);
                    // Release: for `len_at_most`.
                    self.takes.fetch_add(1, Ordering::Release);
                    return Some(unit);
                }
                Err(now) => head = now,
            }
        }
    }

    /// Takes all chunks, also of a stack that is shut; returns how many there were.
    pub(super) fn take_all<'a>(
        &self,
        shut: bool,
        link: impl Fn(u32) -> &'a AtomicU32,
        mut sink: impl FnMut(u32),
    ) -> u64 {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let new = with_top(head, 0) | if shut { SHUT } else { 0 };
            // Acquire: the links. Release: publishes why it is shut.
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let mut chunks = 0;
        let mut top = head as u32;
        while let Some(unit) = top.checked_sub(1) {
            let link = link(unit);
            top = link.load(Ordering::Relaxed);
            link.store(0, Ordering::Relaxed);
            sink(unit);
            chunks += 1;
        }
        self.swept.fetch_add(chunks, Ordering::Relaxed);
        chunks
    }

    pub(super) fn reopen(&self) {
        // Relaxed: nobody concludes anything from its being open.
        self.head.fetch_and(!SHUT, Ordering::Relaxed);
    }

    /// The most chunks that may be here. Those that go in or out meanwhile make it larger, where they make the one of
    /// [`count`](Self::count) smaller.
    pub(super) fn len_at_most(&self) -> u64 {
        // Acquire: of each chunk that is seen to be gone, the put is seen too.
        let gone = self.takes.load(Ordering::Acquire) + self.swept.load(Ordering::Acquire);
        self.puts.load(Ordering::Relaxed).saturating_sub(gone)
    }

    pub(super) fn count(&self) -> SinglesCount {
        let frees = self.puts.load(Ordering::Relaxed);
        let allocs = self.takes.load(Ordering::Relaxed);
        let gone = allocs + self.swept.load(Ordering::Relaxed);
        SinglesCount {
            chunks: frees.saturating_sub(gone),
            frees,
            allocs,
        }
    }
}

#[cfg(all(test, loom))]
impl Stack {
    pub(super) fn after_all_others(&mut self) {
        self.head.with_mut(|_| ());
        self.puts.with_mut(|_| ());
        self.swept.with_mut(|_| ());
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use crate::proofs::model::model;
    use loom::thread;
    use std::sync::Arc;

    struct Fixture {
        stack: Stack,
        links: [AtomicU32; 3],
    }

    impl Fixture {
        fn with(units: u32) -> Arc<Self> {
            let this = Self {
                stack: Stack::new(),
                links: core::array::from_fn(|_| AtomicU32::new(0)),
            };
            (0..units).for_each(|unit| assert!(this.put(unit)));
            Arc::new(this)
        }

        fn put(&self, unit: u32) -> bool {
            let link = &self.links[unit as usize];
            // SAFETY: the stack lives in `self`.
            unsafe { Stack::put(NonNull::from(&self.stack), unit, link) }
        }

        fn take(&self) -> Option<u32> {
            let unit = self.stack.take(|unit| &self.links[unit as usize])?;
            // The next owner counts from zero.
            assert_eq!(self.links[unit as usize].load(Ordering::Relaxed), 0);
            Some(unit)
        }

        fn take_all(&self, shut: bool) -> Vec<u32> {
            let mut units = Vec::new();
            let link = |unit: u32| &self.links[unit as usize];
            self.stack.take_all(shut, link, |unit| units.push(unit));
            units
        }
    }

    fn assert_each_once(mut units: Vec<u32>, count: u32) {
        units.sort_unstable();
        assert_eq!(units, (0..count).collect::<Vec<_>>());
    }

    /// One thread is inside a `take` while another takes two chunks and puts the first back.
    #[test]
    fn model_stack_top_that_comes_back() {
        model(None, || {
            let all = Fixture::with(3);
            let other = thread::spawn({
                let all = all.clone();
                move || {
                    let (first, second) = (all.take(), all.take());
                    first.into_iter().for_each(|unit| assert!(all.put(unit)));
                    second
                }
            });
            let mut units: Vec<u32> = all.take().into_iter().collect();
            units.extend(other.join().unwrap());
            units.extend(all.take_all(false));
            assert_each_once(units, 3);
        });
    }

    /// A chunk on its way in is found by the thread that shuts the stack, or stays with its owner, who
    /// then knows why.
    #[test]
    fn model_stack_shut_against_put_and_take() {
        model(None, || {
            let all = Fixture::with(1);
            let why = Arc::new(AtomicU32::new(0));
            let other = thread::spawn({
                let (all, why) = (all.clone(), why.clone());
                move || {
                    let mut mine: Vec<u32> = all.take().into_iter().collect();
                    if !all.put(1) {
                        assert_eq!(why.load(Ordering::Relaxed), 1);
                        mine.push(1);
                    }
                    mine
                }
            });
            why.store(1, Ordering::Relaxed);
            let mut units = all.take_all(true);
            units.extend(other.join().unwrap());
            assert_each_once(units, 2);
            assert_eq!(all.take(), None);
            all.stack.reopen();
            assert!(all.put(0));
            assert_eq!(all.take(), Some(0));
        });
    }

    /// A free that is refused is counted once, and never taken back.
    #[test]
    fn model_stack_counts_of_frees_never_fall() {
        model(None, || {
            let all = Fixture::with(1);
            assert_eq!(all.take_all(true), [0]);
            let other = thread::spawn({
                let all = all.clone();
                move || assert!(!all.put(1))
            });
            let before = all.stack.count().frees;
            assert!(before <= all.stack.count().frees);
            other.join().unwrap();
            let count = all.stack.count();
            assert_eq!((count.chunks, count.allocs), (0, 0));
        });
    }

    /// What lies in the stack all the time is never overlooked, whatever goes in and out.
    #[test]
    fn model_stack_is_at_least_as_long_as_what_stays_in_it() {
        model(None, || {
            let all = Fixture::with(1);
            let other = thread::spawn({
                let all = all.clone();
                move || {
                    assert!(all.put(1));
                    assert_eq!(all.take(), Some(1));
                }
            });
            assert!(all.stack.len_at_most() >= 1);
            other.join().unwrap();
            assert_eq!(all.stack.len_at_most(), 1);
        });
    }

    #[test]
    fn model_stack_is_at_least_as_long_while_it_refuses_a_chunk() {
        model(None, || {
            let all = Fixture::with(0);
            assert_eq!(all.take_all(true), []);
            let other = thread::spawn({
                let all = all.clone();
                move || all.put(1)
            });
            all.stack.reopen();
            assert!(all.put(0));
            assert!(all.stack.len_at_most() >= 1);
            other.join().unwrap();
        });
    }
}
