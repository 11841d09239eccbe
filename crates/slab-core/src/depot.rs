//! The depot: per size class, a lock-free stack of whole batches of free chunks.
//!
//! A Treiber stack ("Systems programming: coping with parallelism", 1986) whose nodes are batch
//! blocks of type-stable memory, addressed by a 32-bit index. The other 32 bits of the head are a
//! tag that every change increments, so that a head which went away and came back (ABA) does not
//! look unchanged. A thread would have to sleep inside one pop through exactly 2^32 changes of one
//! head to be deceived.
//!
//! Batches in the stacks are always full (`Geometry::batch` chunks). What is less than a batch
//! lies in the class's open batch, under a mutex: only threads without magazines, threads that flush
//! theirs and slow paths come there. So the number of blocks is bounded by the number of chunks:
//!
//! `blocks <= chunks / batch + one in the hand of each thread that moves a batch`
//!
//! # Lanes
//!
//! All stacks exist [`LANES`] times. A thread uses those of its own lane, and looks into the others only if its own
//! is empty. So threads that get back what they gave away change no head that other cores change, and find their
//! batches in their own caches; and where one thread gives what another takes, batches pass from lane to lane as they
//! would through a single stack. A stack that was empty when it was looked at may not be when the last one is: who finds
//! nothing in any lane knows of each that it was empty at some moment, not of all at the same. A batch may have been
//! there all the time, in one lane or another. For batches that is no new case: who finds none goes on to the slabs and,
//! at the cap, to reclaim, which expects batches to move (`reclaim.rs`). For blocks it is: see [`Depot::empty_block`].

use crate::class::MAX_CLASSES;
use crate::class::geometry::{BATCH_MAX, ClassTable};
use crate::sync::units::{with_units, write_units};
use crate::sync::{AtomicU32, AtomicU64, Backoff, MODELLED, Mutex, Ordering, Table, Zeroable};
use crate::sys::room::Room;
use arrayvec::ArrayVec;

/// No block: the end of a stack. Block 0 exists but is never used.
const NIL: u32 = 0;

/// In models the tag wraps at its first change.
const FIRST_TAG: u64 = if MODELLED { u32::MAX as u64 } else { 0 };

/// More than the threads that exchange batches at the same moment, mostly. Without std none has a magazine.
const LANES: usize = match (MODELLED, cfg!(feature = "std")) {
    (true, _) => 2,
    (_, true) => 8,
    (_, false) => 1,
};
const _: () = assert!(LANES.is_power_of_two());
/// How often a thread looks for an empty block where there has to be one: with std, which lets it sleep, for two seconds
/// as measured.
const MAX_LOOKS: u32 = match (MODELLED, cfg!(feature = "std")) {
    (true, _) => 3,
    (_, true) => 1 << 14,
    (_, false) => 1 << 16,
};
/// The lane of those who have no magazine.
pub(crate) const COMMON_LANE: u8 = 0;

/// A block of 344 bytes: the link, and the chunk indices of one batch. Not aligned to a cache line:
/// that would take 40 bytes more for 84 free chunks, 0.7 % of their memory if they have 64 bytes, and
/// saves no time that could be measured.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Batch {
    next: AtomicU32,
    len: AtomicU32,
    units: [AtomicU32; BATCH_MAX],
}

#[cfg(not(any(loom, shuttle, miri)))]
const _: () = assert!(size_of::<Batch>() == 344);

// SAFETY: all fields are atomic integers, for which zero is a value; none needs dropping.
unsafe impl Zeroable for Batch {}

impl Default for Batch {
    fn default() -> Self {
        Self {
            next: AtomicU32::new(0),
            len: AtomicU32::new(0),
            units: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl Batch {
    /// Shows the chunk indices to `sink`; returns how many there are.
    ///
    /// # Safety
    /// The block is in the caller's hand alone.
    #[inline(always)]
    unsafe fn read(&self, sink: impl FnOnce(&[u32])) -> usize {
        let len = self.len.load(Ordering::Relaxed) as usize;
        // SAFETY: nobody else writes it: threads that read a popped block too late read its link only.
        unsafe { with_units(&self.units[..len], sink) };
        len
    }

    /// Sets the chunk indices, at most [`BATCH_MAX`].
    ///
    /// # Safety
    /// The block is in the caller's hand alone.
    unsafe fn write(&self, units: &[u32]) {
        let slots = &self.units[..units.len()];
        self.len.store(units.len() as u32, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { write_units(slots, units) };
    }
}

/// A stack of blocks; `tag << 32 | index of the top`. A cache-line pair of its own, so that
/// classes do not disturb each other.
#[derive(Debug)]
#[repr(align(128))]
struct Stack {
    head: AtomicU64,
    /// Chunks in the stack's batches, for the statistics; in the line that a change owns anyway.
    chunks: AtomicU64,
}

impl Default for Stack {
    fn default() -> Self {
        Self {
            head: AtomicU64::new(FIRST_TAG << 32 | u64::from(NIL)),
            chunks: AtomicU64::new(0),
        }
    }
}

impl Stack {
    fn push(&self, blocks: &Table<Batch>, block: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            blocks
                .at(block as usize)
                .next
                .store(head as u32, Ordering::Relaxed);
            let new = next_tag(head) | u64::from(block);
            // Release: the block's contents and link come before its appearance.
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn pop(&self, blocks: &Table<Batch>) -> Option<u32> {
        // Acquire: pairs with the push that published this top.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let block = head as u32;
            if block == NIL {
                return None;
            }
            // May be stale if the block was popped meanwhile; then the tag has moved on and the
            // exchange fails. Reading it is harmless: blocks are type-stable.
            let next = blocks.at(block as usize).next.load(Ordering::Relaxed);
            let new = next_tag(head) | u64::from(next);
            // Relaxed: it is the head that was read, tag and all, and was acquired then.
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::Relaxed, Ordering::Acquire)
            {
                Ok(_) => return Some(block),
                Err(now) => head = now,
            }
        }
    }

    /// Takes the whole stack; returns its top block.
    fn take_all(&self) -> u32 {
        let mut head = self.head.load(Ordering::Relaxed);
        while head as u32 != NIL {
            let new = next_tag(head) | u64::from(NIL);
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return head as u32,
                Err(now) => head = now,
            }
        }
        NIL
    }
}

/// The head's tag, plus one, in its place; wraps.
fn next_tag(head: u64) -> u64 {
    (head & !u64::from(u32::MAX)).wrapping_add(1 << 32)
}

/// See [Lanes](self#lanes).
#[derive(Debug, Default)]
pub(crate) struct Lane {
    empty: Stack,
    full: [Stack; MAX_CLASSES],
}

const _: () = assert!(MODELLED || FIRST_TAG == 0 && NIL == 0);
// SAFETY: zero is an empty stack, as just asserted, and none needs dropping.
unsafe impl Zeroable for Lane {}

/// A plain atomic: nothing depends on its order with anything else, so models need not see it.
type StatCounter = core::sync::atomic::AtomicU32;

/// Less than a batch of free chunks, for callers without magazines.
pub(crate) type Open = ArrayVec<u32, BATCH_MAX>;

/// The tops of a class's stacks, by lane, which were taken with all that lies under them.
#[derive(Debug)]
pub(crate) struct Detached([u32; LANES]);

#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Depot {
    blocks: Table<Batch>,
    /// Blocks never used so far start here.
    fresh: AtomicU32,
    lanes: Table<Lane>,
    /// Lanes from here on are of no thread so far: nobody looks into them. Plain, as models need not see it: it grows
    /// before anything is put into the lane, so who learns of that in any way sees the lane.
    used_lanes: core::sync::atomic::AtomicU32,
    pub(crate) open: Table<Mutex<Open>>,
    /// How many chunks the open batches hold, for the statistics: a lock a class would be most of
    /// what a snapshot costs.
    open_lens: [StatCounter; MAX_CLASSES],
    batch: [u32; MAX_CLASSES],
}

impl Depot {
    fn blocks(
        room: &mut Room,
        classes: &ClassTable,
        slabs: usize,
        movers: usize,
    ) -> Result<Table<Batch>, i32> {
        let batches_per_slab = |class| {
            let geometry = classes.geometry(class);
            geometry.chunks_per_slab.div_ceil(geometry.batch)
        };
        let of_classes = (0..classes.count() as u8).map(batches_per_slab);
        let most = of_classes.max().unwrap_or(0) as usize;
        Table::new(room, slabs * most + movers + 1)
    }

    /// For `slabs` slabs and at most `movers` threads that move batches at the same time.
    ///
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(crate) fn new(
        room: &mut Room,
        classes: &ClassTable,
        slabs: usize,
        movers: usize,
    ) -> Result<Self, i32> {
        let mut batch = [1; MAX_CLASSES];
        for (class, len) in (0..classes.count() as u8).zip(&mut batch) {
            *len = classes.geometry(class).batch;
        }
        let open = |_: &mut Room| Ok(Mutex::new(Open::new()));
        Ok(Self {
            blocks: Self::blocks(room, classes, slabs, movers)?,
            fresh: AtomicU32::new(NIL + 1),
            lanes: Table::new(room, LANES)?,
            used_lanes: core::sync::atomic::AtomicU32::new(1),
            open: Table::filled(room, classes.count(), open)?,
            open_lens: core::array::from_fn(|_| StatCounter::new(0)),
            batch,
        })
    }

    /// Returns the lane for one more cache beside those in `taken`: one with the fewest. Under the mutex of the slab layer.
    #[cfg(feature = "std")]
    pub(crate) fn open_lane(&self, taken: impl Iterator<Item = u8>) -> u8 {
        let mut caches = [0_u32; LANES];
        for lane in taken {
            caches[usize::from(lane)] += 1;
        }
        let fewest = (0..LANES).min_by_key(|&lane| caches[lane]);
        let lane = fewest.expect("there are lanes") as u8;
        let used = u32::from(lane) + 1;
        if used > self.used_lanes.load(Ordering::Relaxed) {
            self.used_lanes.store(used, Ordering::Relaxed);
        }
        lane
    }

    /// All lanes in use, this one first.
    fn lanes_from(&self, lane: u8) -> impl Iterator<Item = &Lane> {
        let lanes = &self.lanes[..self.used_lanes.load(Ordering::Relaxed) as usize];
        let (before, own) = lanes.split_at(usize::from(lane));
        own.iter().chain(before)
    }

    fn own(&self, lane: u8) -> &Lane {
        self.lanes.at(lane.into())
    }

    /// One that others gave back, before one that was never used.
    ///
    /// There are enough, but those that others gave back may have passed from lane to lane behind this look for them.
    /// So it looks again when no other is left.
    fn empty_block(&self, lane: u8) -> u32 {
        let mut backoff = Backoff::default();
        for _ in 0..MAX_LOOKS {
            let given_back = || {
                self.lanes_from(lane)
                    .find_map(|lane| lane.empty.pop(&self.blocks))
            };
            if let Some(block) = given_back().or_else(|| self.fresh_block()) {
                return block;
            }
            backoff.snooze();
        }
        panic!("more batches than the pool has chunks for: a chunk was freed twice");
    }

    fn fresh_block(&self) -> Option<u32> {
        let next = |block| ((block as usize) < self.blocks.len()).then_some(block + 1);
        self.fresh
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .ok()
    }

    /// Chunks in a batch of this class.
    pub(crate) fn batch_len(&self, class: u8) -> usize {
        self.batch[usize::from(class)] as usize
    }

    /// Adds one whole batch to a lane; `units` has exactly [`batch_len`](Self::batch_len) chunks.
    pub(crate) fn push_batch(&self, lane: u8, class: u8, units: &[u32]) {
        debug_assert_eq!(units.len(), self.batch_len(class));
        let block = self.empty_block(lane);
        let batch = self.blocks.at(block as usize);
        // SAFETY: the block was just taken off a stack of empty ones, or never used before.
        unsafe { batch.write(units) };
        let stack = &self.own(lane).full[usize::from(class)];
        // Before they can be popped, so that the sum never wraps below zero.
        stack
            .chunks
            .fetch_add(units.len() as u64, Ordering::Relaxed);
        stack.push(&self.blocks, block);
    }

    /// Takes one whole batch, of this lane if it has one, and gives it to `sink`, which takes no lock and waits for
    /// nothing; returns its length, 0 if there is none.
    pub(crate) fn pop_batch(&self, lane: u8, class: u8, sink: impl FnOnce(&[u32])) -> usize {
        let popped = self.lanes_from(lane).find_map(|lane| {
            let stack = &lane.full[usize::from(class)];
            Some((stack, stack.pop(&self.blocks)?))
        });
        let Some((stack, block)) = popped else {
            return 0;
        };
        let batch = self.blocks.at(block as usize);
        let take = |units: &[u32]| {
            // First: for the statistics, a chunk is never in two places. Release: who misses them here sees that this
            // thread has them.
            stack
                .chunks
                .fetch_sub(units.len() as u64, Ordering::Release);
            sink(units);
        };
        // SAFETY: the block was just taken off its stack.
        let len = unsafe { batch.read(take) };
        self.own(lane).empty.push(&self.blocks, block);
        len
    }

    /// Chunks of the class in the depot now; exact while nobody moves any.
    pub(crate) fn chunks(&self, class: u8) -> u64 {
        let class = usize::from(class);
        let mut chunks = u64::from(self.open_lens[class].load(Ordering::Relaxed));
        let used_lanes = self.used_lanes.load(Ordering::Relaxed) as usize;
        // A loop over a slice of these lanes is compiled for many, of which there are few: 3 % of a snapshot.
        for (index, lane) in self.lanes[..LANES].iter().enumerate() {
            if index == used_lanes {
                break;
            }
            // Acquire: pairs with `pop_batch`.
            chunks += lane.full[class].chunks.load(Ordering::Acquire);
        }
        chunks
    }

    /// Takes every chunk of the class that is in the depot now: those of the open batch, which go to `sink`, and all
    /// stacks, for [`take_detached`](Self::take_detached).
    ///
    /// All under the lock of the open batch: with that, single chunks move between it and the stacks. So while no
    /// owner of a magazine moves a batch either, none is missed. `sink` takes no lock and waits for nothing.
    pub(crate) fn detach(&self, class: u8, sink: impl FnOnce(&[u32])) -> Detached {
        self.with_open(class, |open| {
            sink(open);
            open.clear();
            let mut tops = [NIL; LANES];
            for (top, lane) in tops.iter_mut().zip(self.lanes_from(COMMON_LANE)) {
                *top = lane.full[usize::from(class)].take_all();
            }
            Detached(tops)
        })
    }

    /// Gives all chunks of the stacks to `sink`.
    pub(crate) fn take_detached(
        &self,
        class: u8,
        detached: Detached,
        mut sink: impl FnMut(&[u32]),
    ) {
        for (lane, mut block) in self.lanes_from(COMMON_LANE).zip(detached.0) {
            let stack = &lane.full[usize::from(class)];
            while block != NIL {
                let batch = self.blocks.at(block as usize);
                let mut units = Open::new();
                let copy = |batch: &[u32]| units.extend(batch.iter().copied());
                // SAFETY: `detach` took the whole stack, and what it returned is used up here.
                let len = unsafe { batch.read(copy) };
                let next = batch.next.load(Ordering::Relaxed);
                stack.chunks.fetch_sub(len as u64, Ordering::Relaxed);
                lane.empty.push(&self.blocks, block);
                sink(&units);
                block = next;
            }
        }
    }

    /// Runs `f` on the class's open batch. `f` takes no lock and waits for nothing.
    pub(crate) fn with_open<R>(&self, class: u8, f: impl FnOnce(&mut Open) -> R) -> R {
        let mut open = self.open[usize::from(class)].lock();
        let result = f(&mut open);
        self.note_open(class, &open);
        result
    }

    /// Notes the length of an open batch for the statistics, before the lock of a changed one is released.
    pub(crate) fn note_open(&self, class: u8, open: &Open) {
        self.open_lens[usize::from(class)].store(open.len() as u32, Ordering::Relaxed);
    }

    /// Adds single chunks to the open batch; whole batches leave it for the common lane.
    pub(crate) fn put(&self, class: u8, units: &[u32]) {
        self.with_open(class, |open| {
            for &unit in units {
                self.put_in(class, open, unit);
            }
        });
    }

    /// As [`put`](Self::put), one chunk, inside [`with_open`](Self::with_open).
    pub(crate) fn put_in(&self, class: u8, open: &mut Open, unit: u32) {
        open.push(unit);
        if open.len() == self.batch_len(class) {
            self.push_batch(COMMON_LANE, class, open);
            open.clear();
        }
    }

    /// Takes a single chunk from the open batch, or from a batch that it opens.
    pub(crate) fn take_in(&self, class: u8, open: &mut Open) -> Option<u32> {
        if open.is_empty() {
            self.pop_batch(COMMON_LANE, class, |batch| {
                open.extend(batch.iter().copied());
            });
        }
        open.pop()
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::class::SizeClasses;
    use std::sync::Barrier;

    fn depot(slabs: usize, movers: usize) -> Depot {
        let classes = ClassTable::new(SizeClasses::explicit(&[1024]).unwrap(), 1 << 20);
        Depot::new(&mut Room::system(), &classes, slabs, movers).unwrap()
    }

    fn batch(depot: &Depot, first: u32) -> Vec<u32> {
        (first..first + depot.batch_len(0) as u32).collect()
    }

    #[test]
    fn each_lane_serves_its_thread_first_and_then_the_others() {
        let depot = depot(1, 1);
        for lane in 0..3 {
            assert_eq!(depot.open_lane(0..lane), lane);
        }
        assert_eq!(depot.open_lane([0, 0, 2].into_iter()), 1);
        let (mine, others) = (batch(&depot, 0), batch(&depot, 100));
        depot.push_batch(2, 0, &mine);
        depot.push_batch(0, 0, &others);
        assert_eq!(depot.chunks(0) as usize, mine.len() + others.len());
        assert_eq!(
            depot.pop_batch(2, 0, |units| assert_eq!(units, mine)),
            mine.len()
        );
        assert_eq!(
            depot.pop_batch(2, 0, |units| assert_eq!(units, others)),
            others.len()
        );
        assert_eq!(depot.pop_batch(2, 0, |_| panic!("there is none")), 0);
        depot.push_batch(1, 0, &mine);
        let mut taken = Vec::new();
        let detached = depot.detach(0, |open| assert!(open.is_empty()));
        depot.take_detached(0, detached, |units| taken.extend_from_slice(units));
        assert_eq!((taken, depot.chunks(0)), (mine, 0));
    }

    /// Where no block is left, one is about to come back: here from a thread that has just taken its chunks out.
    #[test]
    fn a_block_that_is_about_to_come_back_is_waited_for() {
        let depot = depot(0, 1);
        assert_eq!(depot.blocks.len(), 2, "one, and that of no number");
        depot.open_lane(0..1);
        let (first, second) = (batch(&depot, 0), batch(&depot, 100));
        depot.push_batch(0, 0, &first);
        let taken = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                depot.pop_batch(1, 0, |_| {
                    taken.wait();
                    // Gives the other one some time to look in vain.
                    std::thread::sleep(std::time::Duration::from_millis(20));
                });
            });
            taken.wait();
            depot.push_batch(0, 0, &second);
        });
        assert_eq!(
            depot.pop_batch(0, 0, |units| assert_eq!(units, second)),
            second.len()
        );
    }
}
