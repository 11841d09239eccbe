//! Magazines: a thread's stock of free chunks, one stack of chunk indices per size class
//! (Bonwick and Adams, "Magazines and Vmem", USENIX 2001).
//!
//! A magazine is an array of indices, not a list through the chunks: taking or returning a chunk
//! never touches the chunk's own memory. All words are atomics that only their owner writes, with
//! plain loads and stores, inside the [`Guard`]; others read the counters at any time and
//! the slots only after they have shut the owner out.
//!
//! Invariant, at any moment outside the guard:
//! `len <= capacity`, and `slots[..len]` are distinct free chunks of this class that are in no
//! other magazine, no batch and no caller's hand; unless the gate says [`TAKEN`]: then they belong to
//! others, and the magazine counts as empty.

use crate::class::geometry::{BATCH_MAX, MAGAZINE_MAX};
use crate::sync::units::{move_to_front, read_units, with_units, write_units};
use crate::sync::{AtomicU32, AtomicU64, Ordering, Zeroable};
use crate::thread_cache::guard::{FIRST_PUT, Guard, SHUT, TAKEN};
use arrayvec::ArrayVec;

const _: () = assert!(MAGAZINE_MAX <= u8::MAX as usize, "a capacity has a byte");
const _: () = assert!(
    MAGAZINE_MAX < FIRST_PUT as usize - 2,
    "what a magazine takes in without counting it leaves the guard's words apart"
);

/// Adds without a read-modify-write: there is one writer.
fn bump(counter: &AtomicU64, by: u64) {
    if cfg!(slab_uncounted) {
        return;
    }
    let sum = counter.load(Ordering::Relaxed).wrapping_add(by);
    // Release: for `add_to`, which reads while the owner goes on.
    counter.store(sum, Ordering::Release);
}

/// One class's stock and its counters; the words of the fast path share its first cache line.
///
/// There is no counter of allocations: a chunk that is in no slab, not in the depot and in no
/// magazine is in a caller's hand, so `allocations = frees + chunks in callers' hands`.
///
/// All zero it is nobody's, and refuses: see [`open`](Self::open).
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Magazine {
    /// Has the length, and the frees, which are its puts.
    pub(crate) guard: Guard,
    /// Chunks that came in by refill, and that went to the depot.
    refilled: AtomicU64,
    flushed: AtomicU64,
    from_depot: AtomicU64,
    from_slab: AtomicU64,
    slots: [AtomicU32; MAGAZINE_MAX],
}

/// The counters of a magazine, or the sum of several.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) frees: u64,
    pub(crate) frees_remote: u64,
    pub(crate) from_depot: u64,
    pub(crate) from_slab: u64,
    pub(crate) flushed: u64,
    pub(crate) cached: u64,
    /// Chunks in the class's stack or ring of single chunks, in the modes that have one.
    pub(crate) singles: u64,
}

/// Where a refill came from, for the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Depot,
    Slab,
}

// SAFETY: integers, and zero is a value of each.
unsafe impl Zeroable for Magazine {}

/// All zero.
#[cfg(any(test, loom, shuttle))]
impl Default for Magazine {
    fn default() -> Self {
        Self {
            guard: Guard::default(),
            refilled: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            from_depot: AtomicU64::new(0),
            from_slab: AtomicU64::new(0),
            slots: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl Magazine {
    /// Begins anew, empty. For the owner, while nobody else has the magazine.
    pub(crate) fn open(&self, capacity: u8, lane: u8, gates: u32) {
        debug_assert!(usize::from(capacity) <= MAGAZINE_MAX);
        self.guard.open(capacity, lane, gates);
        for counter in [
            &self.refilled,
            &self.flushed,
            &self.from_depot,
            &self.from_slab,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Has it been opened, ever?
    pub(crate) fn is_somebodys(&self) -> bool {
        self.guard.capacity() > 0
    }

    #[inline(always)]
    fn slot(&self, index: usize) -> &AtomicU32 {
        debug_assert!(index < self.guard.capacity());
        // SAFETY: every caller passes an index below `capacity`, which is at most `MAGAZINE_MAX`.
        unsafe { self.slots.get_unchecked(index) }
    }

    /// Chunks inside; only a hint for a thread that is not the owner and does not hold the lock of the gates.
    pub(crate) fn len(&self) -> usize {
        if self.guard.is_raised(TAKEN) {
            0
        } else {
            self.raw_len()
        }
    }

    /// As [`len`](Self::len), before the owner has acknowledged that all was taken.
    fn raw_len(&self) -> usize {
        self.guard.puts_and_len().1
    }

    /// The allocation fast path: takes a chunk, unless the magazine is empty or shut.
    #[inline(always)]
    pub(crate) fn try_pop(&self) -> Option<u32> {
        let entered = self.guard.enter_to_take();
        if !self.guard.is_above_gate(entered) {
            self.guard.back_out();
            return None;
        }
        let unit = self.slot(entered.len() - 1).load(Ordering::Relaxed);
        self.guard.take(entered, 1);
        Some(unit)
    }

    /// The free fast path: returns a chunk; `false` if the magazine is full or shut.
    #[inline(always)]
    pub(crate) fn try_push(&self, unit: u32) -> bool {
        let entered = self.guard.enter_to_put();
        if !self.guard.is_below_ceiling(entered.len() as u16) {
            self.guard.back_out();
            return false;
        }
        self.slot(entered.len()).store(unit, Ordering::Relaxed);
        self.guard.put(entered, 1);
        true
    }

    /// Takes up to `count` chunks off the top in one step and adds them to `out`, which has room for
    /// them; `false` if the magazine is empty or shut.
    #[inline]
    pub(crate) fn try_pop_many<const N: usize>(
        &self,
        count: usize,
        out: &mut ArrayVec<u32, N>,
    ) -> bool {
        let entered = self.guard.enter_to_take();
        let len = entered.len();
        let taken = count.min(len).min(out.remaining_capacity());
        if taken == 0 || !self.guard.is_above_gate(entered) {
            self.guard.back_out();
            return false;
        }
        self.read(len - taken, taken, out);
        self.guard.take(entered, taken);
        true
    }

    /// Returns chunks in one step; `false`, and none returned, if they do not fit, the magazine is
    /// shut, or there are none.
    #[inline]
    pub(crate) fn try_push_many(&self, units: &[u32]) -> bool {
        let entered = self.guard.enter_to_put();
        let len = entered.len();
        // The slot that the last of them would take.
        let last = u16::try_from((len + units.len()).wrapping_sub(1));
        if units.is_empty() || !last.is_ok_and(|last| self.guard.is_below_ceiling(last)) {
            self.guard.back_out();
            return false;
        }
        self.write(len, units);
        self.guard.put(entered, units.len());
        true
    }

    /// Adds the slots `from..from + count` to `out`. Inside the guard only: nobody else touches
    /// them meanwhile, so they need not be read one by one as atomics.
    #[inline]
    fn read<const N: usize>(&self, from: usize, count: usize, out: &mut ArrayVec<u32, N>) {
        let slots = &self.slots[from..from + count];
        // SAFETY: the guard keeps every other access out.
        unsafe { read_units(slots, out) };
    }

    /// Sets the slots from `from` on. Inside the guard only, as [`read`](Self::read).
    #[inline]
    fn write(&self, from: usize, units: &[u32]) {
        let slots = &self.slots[from..from + units.len()];
        // SAFETY: the guard keeps every other access out.
        unsafe { write_units(slots, units) };
    }

    /// The most chunks that a taker can find, which while the owner moves a batch includes those in its
    /// hand. A hint, as [`len`](Self::len).
    pub(crate) fn len_at_most(&self) -> usize {
        if self.guard.is_inside_slow() {
            self.guard.capacity()
        } else {
            self.len()
        }
    }

    /// Takes a chunk. After `enter_slow` only.
    pub(crate) fn pop(&self) -> Option<u32> {
        let top = self.raw_len().checked_sub(1)?;
        let unit = self.slot(top).load(Ordering::Relaxed);
        self.guard.set_len(top);
        Some(unit)
    }

    /// Returns a chunk; `false` if the magazine is full. After `enter_slow` only.
    pub(crate) fn push(&self, unit: u32) -> bool {
        let len = self.raw_len();
        if len >= self.guard.capacity() {
            return false;
        }
        self.slot(len).store(unit, Ordering::Relaxed);
        self.guard.put_slow();
        true
    }

    /// Puts as many chunks on top as fit, which were not freed here; returns how many. After `enter_slow`
    /// only.
    pub(crate) fn refill(&self, units: &[u32]) -> usize {
        let len = self.raw_len();
        let fit = units.len().min(self.guard.capacity() - len);
        self.write(len, &units[..fit]);
        bump(&self.refilled, fit as u64);
        self.guard.set_len(len + fit);
        fit
    }

    /// Says which tier served the allocation that `pop` is about to answer.
    pub(crate) fn count_source(&self, source: Source) {
        match source {
            Source::Depot => bump(&self.from_depot, 1),
            Source::Slab => bump(&self.from_slab, 1),
        }
    }

    /// Takes at most `count` chunks out from the bottom, where the longest unused ones lie, and gives them to
    /// `sink`, which waits for no thread that waits for a guard. The warm top stays. After `enter_slow` only.
    pub(crate) fn take_bottom(&self, count: usize, sink: impl FnOnce(&[u32])) {
        let len = self.raw_len();
        let taken = count.min(len);
        // First: for the statistics, a chunk is never in two places.
        self.guard.set_len(len - taken);
        bump(&self.flushed, taken as u64);
        // SAFETY: the guard keeps every other access out.
        unsafe { with_units(&self.slots[..taken], sink) };
        // SAFETY: as above.
        unsafe { move_to_front(&self.slots[..len], taken) };
    }

    /// First step of a taker, with the lock of the gates: shuts the magazine. Then comes one
    /// `heavy_barrier` for all that were shut, then [`wait_idle`](Guard::wait_idle) on each guard.
    pub(crate) fn shut(&self) {
        self.guard.raise(SHUT);
    }

    /// Last step of a taker, while the owner is kept out: gives all chunks to `sink`, in pieces, and opens the
    /// magazine again; if there were any, its owner will find that they are gone.
    pub(crate) fn take(&self, mut sink: impl FnMut(&[u32])) {
        let len = self.len();
        let mut piece = ArrayVec::<u32, BATCH_MAX>::new();
        for index in 0..len {
            piece.push(self.slot(index).load(Ordering::Relaxed));
            if piece.is_full() || index + 1 == len {
                sink(&piece);
                piece.clear();
            }
        }
        if len > 0 {
            self.guard.raise(TAKEN);
        }
        self.guard.lower(SHUT);
    }

    /// Has a taker left something for the owner to [`acknowledge`](Self::acknowledge)?
    pub(crate) fn was_taken(&self) -> bool {
        self.guard.is_raised(TAKEN)
    }

    /// The owner, with the lock of the gates, writes down that the contents are gone.
    pub(crate) fn acknowledge(&self) {
        if self.was_taken() {
            let len = self.raw_len();
            // In this order: see `add_to`.
            self.guard.set_len(0);
            bump(&self.flushed, len as u64);
            self.guard.lower(TAKEN);
        }
    }

    /// Adds this magazine's counters to `tally`. Its owner goes on meanwhile, but no taker may come.
    pub(crate) fn add_to(&self, tally: &mut Tally) {
        // In this order, so that chunks that move are not counted twice: the owner sets the length before it counts them as
        // flushed and before it takes back that all was taken, and after it counts them as refilled.
        let was_taken = self.was_taken();
        let flushed = self.flushed.load(Ordering::Acquire);
        let (frees, len) = self.guard.puts_and_len();
        let len = len as u64;
        tally.frees += frees;
        // Chunks that went out beyond those that came in were freed but not allocated here.
        let surplus = (flushed + len).wrapping_sub(self.refilled.load(Ordering::Relaxed));
        // A saturating subtraction is compiled to a branch here: 2 % of a snapshot.
        tally.frees_remote += surplus.cast_signed().max(0).cast_unsigned();
        tally.flushed += flushed;
        tally.from_depot += self.from_depot.load(Ordering::Relaxed);
        tally.from_slab += self.from_slab.load(Ordering::Relaxed);
        // Of the same moment as the frees, so that the allocations, computed from both, never fall.
        tally.cached += if was_taken { 0 } else { len };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::thread_cache::guard::{CLOSED, FENCED};

    fn opened() -> Magazine {
        let magazine = Magazine::default();
        magazine.open(MAGAZINE_MAX as u8, 0, 0);
        magazine
    }

    /// As those are that a thread finds where it has none.
    #[test]
    fn magazine_of_zeros_refuses_until_it_is_opened() {
        let magazine = Magazine::default();
        for _ in 0..2 {
            assert!(!magazine.is_somebodys());
            assert_eq!(magazine.try_pop(), None);
            assert!(!magazine.try_push(1));
            assert!(!magazine.try_pop_many(1, &mut ArrayVec::<u32, 4>::new()));
            assert!(!magazine.try_push_many(&[1]));
            assert!(!magazine.try_push_many(&[]));
        }
        magazine.open(2, 3, 0);
        assert!(magazine.is_somebodys());
        assert_eq!((magazine.guard.capacity(), magazine.guard.lane()), (2, 3));
        assert!(magazine.guard.enter_slow());
        assert!(magazine.push(1) && magazine.push(2) && !magazine.push(3));
        magazine.guard.leave_slow();
        // For another pool: nothing is left of what it was.
        magazine.guard.raise(CLOSED | TAKEN);
        magazine.open(MAGAZINE_MAX as u8, 0, 0);
        let mut tally = Tally::default();
        magazine.add_to(&mut tally);
        assert_eq!((tally.cached, tally.frees, magazine.len()), (0, 0, 0));
        assert!(magazine.guard.enter_slow() && magazine.push(1));
    }

    #[test]
    fn hot_words_share_one_cache_line() {
        assert_eq!(core::mem::offset_of!(Magazine, guard), 0);
        assert!(core::mem::offset_of!(Magazine, slots) <= 64);
        if !cfg!(miri) {
            assert_eq!(size_of::<Magazine>(), 512);
        }
    }

    #[test]
    fn take_bottom_takes_the_oldest_chunks_first() {
        let magazine = opened();
        for unit in 0..magazine.guard.capacity() as u32 {
            assert!(magazine.push(unit));
        }
        assert!(!magazine.push(99), "full");
        magazine.take_bottom(10, |units| {
            assert_eq!(units, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        });
        let last = magazine.guard.capacity() as u32 - 1;
        assert_eq!(magazine.pop(), Some(last));
        magazine.take_bottom(MAGAZINE_MAX, |units| {
            let left: Vec<u32> = (10..last).collect();
            assert_eq!(units, left);
        });
        magazine.take_bottom(MAGAZINE_MAX, |units| {
            assert!(units.is_empty(), "nothing left")
        });
    }

    #[test]
    fn refill_stops_at_capacity() {
        let magazine = opened();
        let units: Vec<u32> = (0..200).collect();
        assert_eq!(magazine.refill(&units), MAGAZINE_MAX);
        assert_eq!(magazine.refill(&units), 0);
        let mut tally = Tally::default();
        magazine.add_to(&mut tally);
        assert_eq!((tally.cached, tally.frees), (MAGAZINE_MAX as u64, 0));
    }

    #[test]
    fn pop_many_and_push_many_respect_len_and_capacity() {
        if !crate::sync::barrier_is_asymmetric() {
            return; // The fast paths are shut for ever.
        }
        let magazine = opened();
        let mut out = ArrayVec::<u32, 4>::new();
        assert!(!magazine.try_pop_many(4, &mut out), "empty");
        assert_eq!(magazine.refill(&[1, 2, 3, 4, 5]), 5);
        assert!(!magazine.try_pop_many(0, &mut out), "none asked for");
        assert!(magazine.try_pop_many(3, &mut out));
        assert_eq!(out[..], [3, 4, 5]);
        assert!(magazine.try_pop_many(2, &mut out));
        assert_eq!(out[3..], [2], "room for one");
        assert!(!magazine.try_pop_many(2, &mut out), "no room");
        assert!(!magazine.try_push_many(&[0; MAGAZINE_MAX]), "one too many");
        assert!(magazine.try_push_many(&[7; MAGAZINE_MAX - 1]));
        assert!(!magazine.try_push_many(&[7]), "full");
        assert!(
            !magazine.try_push_many(&[7; 1 << 16]),
            "whose end has more bits than a place"
        );
        assert_eq!(magazine.len(), MAGAZINE_MAX);
    }

    #[test]
    fn taking_from_an_empty_magazine_leaves_it_open() {
        if !crate::sync::barrier_is_asymmetric() {
            return;
        }
        let magazine = opened();
        magazine.shut();
        assert!(!magazine.try_push(1), "shut");
        magazine.take(|_| panic!("there is nothing"));
        assert!(!magazine.was_taken());
        assert!(magazine.try_push(1));
        assert_eq!(magazine.try_pop(), Some(1));
    }

    /// As on a system without `membarrier`: the fast path is shut, and the slow one works beside a taker
    /// that only fences. (The models, in which both sides always fence, show that two fences are enough;
    /// here a missing one would hardly ever be noticed.)
    #[test]
    fn without_membarrier_only_the_slow_path_is_used() {
        const ROUNDS: u32 = if cfg!(miri) { 50 } else { 100_000 };
        let magazine = opened();
        magazine.guard.raise(FENCED);
        assert!(!magazine.try_push(0));
        assert_eq!(magazine.try_pop(), None);
        let registry = std::sync::Mutex::new(());
        let done = std::sync::atomic::AtomicBool::new(false);
        let (mut popped, taken) = std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let mut taken = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let _registry = registry.lock().unwrap();
                    magazine.shut();
                    crate::sync::fence(Ordering::SeqCst);
                    magazine.guard.wait_idle();
                    magazine.take(|units| taken.extend_from_slice(units));
                }
                taken
            });
            let mut popped = Vec::new();
            for unit in 0..ROUNDS {
                assert!(!magazine.try_push(unit), "the fast path is shut");
                while !magazine.guard.enter_slow() {
                    let _registry = registry.lock().unwrap();
                    magazine.acknowledge();
                }
                if unit % 3 == 0 {
                    popped.extend(magazine.pop());
                }
                if !magazine.push(unit) {
                    popped.push(unit);
                }
                magazine.guard.leave_slow();
            }
            done.store(true, Ordering::Relaxed);
            (popped, taker.join().unwrap())
        });
        magazine.acknowledge();
        assert!(magazine.guard.is_raised(FENCED));
        assert!(magazine.guard.enter_slow());
        popped.extend(std::iter::from_fn(|| magazine.pop()));
        magazine.guard.leave_slow();
        popped.extend(taken);
        popped.sort_unstable();
        assert!(popped.into_iter().eq(0..ROUNDS), "each unit once");
    }
}
