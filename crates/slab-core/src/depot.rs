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

use crate::class::MAX_CLASSES;
use crate::geometry::{BATCH_MAX, ClassTable};
use crate::sync::{AtomicU32, AtomicU64, MODELLED, Mutex, Ordering, Table, Zeroable};
use crate::units::{with_units, write_units};
use arrayvec::ArrayVec;

/// No block: the end of a stack. Block 0 exists but is never used.
const NIL: u32 = 0;

/// In models the tag wraps at its first change.
const FIRST_TAG: u64 = if MODELLED { u32::MAX as u64 } else { 0 };

/// A block of 232 bytes: the link, and the chunk indices of one batch. Not aligned to a cache line:
/// that would take 24 bytes more for 56 free chunks, 0.7 % of their memory if they have 64 bytes, and
/// saves no time that could be measured.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Batch {
    next: AtomicU32,
    len: AtomicU32,
    units: [AtomicU32; BATCH_MAX],
}

#[cfg(not(any(loom, shuttle, miri)))]
const _: () = assert!(size_of::<Batch>() == 232);

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

impl Stack {
    fn new() -> Self {
        Self {
            head: AtomicU64::new(FIRST_TAG << 32 | u64::from(NIL)),
            chunks: AtomicU64::new(0),
        }
    }

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

/// A plain atomic: nothing depends on its order with anything else, so models need not see it.
type StatCounter = core::sync::atomic::AtomicU32;

/// Less than a batch of free chunks, for callers without magazines.
pub(crate) type Open = ArrayVec<u32, BATCH_MAX>;

#[derive(Debug)]
pub(crate) struct Depot {
    blocks: Table<Batch>,
    /// Blocks never used so far start here.
    fresh: AtomicU32,
    empty: Stack,
    full: [Stack; MAX_CLASSES],
    pub(crate) open: [Mutex<Open>; MAX_CLASSES],
    /// How many chunks the open batches hold, for the statistics: a lock a class would be most of
    /// what a snapshot costs.
    open_lens: [StatCounter; MAX_CLASSES],
    batch: [u32; MAX_CLASSES],
}

impl Depot {
    /// Blocks for `slabs` slabs and at most `movers` threads that move batches at the same time.
    ///
    /// # Errors
    /// The system's error number, if it would not give the address range.
    pub(crate) fn blocks(
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
        Table::new(slabs * most + movers + 1)
    }

    /// Of [`blocks`](Self::blocks), which can fail: to return all of a depot in a `Result` takes several times its
    /// 9 KiB of stack.
    pub(crate) fn new(blocks: Table<Batch>, classes: &ClassTable) -> Self {
        let mut batch = [1; MAX_CLASSES];
        for (class, len) in (0..classes.count() as u8).zip(&mut batch) {
            *len = classes.geometry(class).batch;
        }
        Self {
            blocks,
            fresh: AtomicU32::new(NIL + 1),
            empty: Stack::new(),
            full: core::array::from_fn(|_| Stack::new()),
            open: core::array::from_fn(|_| Mutex::new(Open::new())),
            open_lens: core::array::from_fn(|_| StatCounter::new(0)),
            batch,
        }
    }

    fn empty_block(&self) -> u32 {
        if let Some(block) = self.empty.pop(&self.blocks) {
            return block;
        }
        let block = self.fresh.fetch_add(1, Ordering::Relaxed);
        assert!(
            (block as usize) < self.blocks.len(),
            "more batches than the pool has chunks for: a chunk was freed twice"
        );
        block
    }

    /// Chunks in a batch of this class.
    pub(crate) fn batch_len(&self, class: u8) -> usize {
        self.batch[usize::from(class)] as usize
    }

    /// Adds one whole batch; `units` has exactly [`batch_len`](Self::batch_len) chunks.
    pub(crate) fn push_batch(&self, class: u8, units: &[u32]) {
        debug_assert_eq!(units.len(), self.batch_len(class));
        let block = self.empty_block();
        let batch = self.blocks.at(block as usize);
        // SAFETY: the block was just taken off the stack of empty ones, or never used before.
        unsafe { batch.write(units) };
        let stack = &self.full[usize::from(class)];
        // Before they can be popped, so that the sum never wraps below zero.
        stack
            .chunks
            .fetch_add(units.len() as u64, Ordering::Relaxed);
        stack.push(&self.blocks, block);
    }

    /// Takes one whole batch and gives it to `sink`, which takes no lock and waits for nothing; returns its
    /// length, 0 if there is none.
    pub(crate) fn pop_batch(&self, class: u8, sink: impl FnOnce(&[u32])) -> usize {
        let stack = &self.full[usize::from(class)];
        let Some(block) = stack.pop(&self.blocks) else {
            return 0;
        };
        let batch = self.blocks.at(block as usize);
        let take = |units: &[u32]| {
            // First: for the statistics, a chunk is never in two places.
            stack
                .chunks
                .fetch_sub(units.len() as u64, Ordering::Relaxed);
            sink(units);
        };
        // SAFETY: the block was just taken off its stack.
        let len = unsafe { batch.read(take) };
        self.empty.push(&self.blocks, block);
        len
    }

    /// Chunks of the class in the depot now; exact while nobody moves any.
    pub(crate) fn chunks(&self, class: u8) -> u64 {
        let class = usize::from(class);
        let stacked = self.full[class].chunks.load(Ordering::Relaxed);
        stacked + u64::from(self.open_lens[class].load(Ordering::Relaxed))
    }

    /// Takes every chunk of the class that is in the depot now, and gives it to `sink`.
    ///
    /// The open batch first: what was put there before is then either in it, or has gone to the
    /// stack as part of a whole batch. The other way round, such a batch would be missed.
    pub(crate) fn take_all(&self, class: u8, mut sink: impl FnMut(&[u32])) {
        let open = self.with_open(class, core::mem::take);
        sink(&open);
        let stack = &self.full[usize::from(class)];
        let mut block = stack.take_all();
        while block != NIL {
            let batch = self.blocks.at(block as usize);
            let mut units = Open::new();
            let copy = |batch: &[u32]| units.extend(batch.iter().copied());
            // SAFETY: the whole stack was just taken.
            let len = unsafe { batch.read(copy) };
            let next = batch.next.load(Ordering::Relaxed);
            stack.chunks.fetch_sub(len as u64, Ordering::Relaxed);
            self.empty.push(&self.blocks, block);
            sink(&units);
            block = next;
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

    /// Adds single chunks to the open batch; whole batches leave it for the stack.
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
            self.push_batch(class, open);
            open.clear();
        }
    }

    /// Takes a single chunk from the open batch, or from a batch that it opens.
    pub(crate) fn take_in(&self, class: u8, open: &mut Open) -> Option<u32> {
        if open.is_empty() {
            self.pop_batch(class, |batch| open.extend(batch.iter().copied()));
        }
        open.pop()
    }
}
