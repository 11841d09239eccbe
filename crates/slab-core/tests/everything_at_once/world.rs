//! What the threads of a program share, and what they check.

#[cfg(feature = "allocator-api2")]
use crate::lines;
use crate::values::{Boxed, Values};
use crate::{Config, Random};
use slab_core::{Alloc, AnyChunk, Chunk, ChunkBatch, Mode, PoolStats, SharedChunk, SlabPool};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::thread::{self, Thread};

/// Marks of owners: a number in the table, and the same at both ends of the chunk. Zero: nobody has it.
pub(crate) struct Marks {
    /// By address, modulo the arena's size.
    pub(crate) table: Vec<AtomicU64>,
    pub(crate) next: AtomicU64,
}

impl Marks {
    pub(crate) fn new(pool: &SlabPool) -> Self {
        let units = pool.max_memory() / slab_core::CHUNK_ALIGN;
        Self {
            table: (0..units).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU64::new(1),
        }
    }

    pub(crate) fn entry(&self, at: NonNull<u8>) -> &AtomicU64 {
        &self.table[at.addr().get() / slab_core::CHUNK_ALIGN % self.table.len()]
    }

    pub(crate) fn enter(&self, at: NonNull<u8>, bytes: usize) {
        let mark = self.next.fetch_add(1, Ordering::Relaxed);
        let before = self.entry(at).swap(mark, Ordering::Relaxed);
        assert_eq!(before, 0, "{at:?} was handed out twice");
        for end in ends(at, bytes) {
            // SAFETY: within the chunk, which is the caller's alone, and aligned.
            unsafe { end.write(mark) };
        }
    }

    pub(crate) fn check(&self, at: NonNull<u8>, bytes: usize) {
        let mark = self.entry(at).load(Ordering::Relaxed);
        assert_ne!(mark, 0, "{at:?} is nobody's");
        for end in ends(at, bytes) {
            // SAFETY: within the chunk, whose owners only read; written by `enter`.
            assert_eq!(unsafe { end.read() }, mark, "{at:?} has another owner");
        }
    }

    pub(crate) fn leave(&self, at: NonNull<u8>, bytes: usize) {
        self.check(at, bytes);
        for end in ends(at, bytes) {
            // SAFETY: within the chunk, of which the caller is the last owner.
            unsafe { end.write(u64::MAX) };
        }
        self.entry(at).store(0, Ordering::Relaxed);
    }
}

/// The first and the last word of a chunk.
pub(crate) fn ends(at: NonNull<u8>, bytes: usize) -> [*mut u64; 2] {
    let last = at.as_ptr().wrapping_add(bytes - size_of::<u64>());
    [at.as_ptr().cast(), last.cast()]
}

/// The waker of one poll: wakes the thread that polled, and counts.
pub(crate) struct Signal {
    pub(crate) woken: AtomicU32,
    pub(crate) thread: Thread,
}

impl Signal {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            woken: AtomicU32::new(0),
            thread: thread::current(),
        })
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// How a wait ended.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Served,
    GivenUp,
}

pub(crate) struct Wait<'p> {
    pub(crate) future: Pin<Box<Alloc<'p>>>,
    /// Of the last poll that left it waiting: the only one that may be woken.
    pub(crate) signal: Arc<Signal>,
    pub(crate) class: usize,
}

pub(crate) enum Held<'p> {
    Chunk(Chunk),
    Raw(Pointer, usize),
    Shared(SharedChunk),
    /// With the size of its chunks.
    Batch(Box<ChunkBatch>, usize),
    Heap(AnyChunk),
    Wait(Wait<'p>),
    Value(Boxed),
    RawValue(Pointer),
    #[cfg(feature = "allocator-api2")]
    Line(lines::Line),
}

pub(crate) struct Pointer(pub(crate) NonNull<u8>);
// SAFETY: the pointer stands for a chunk, which is `Send`.
unsafe impl Send for Pointer {}

/// What all threads of a program share.
pub(crate) struct World<'p> {
    pub(crate) pool: &'p SlabPool,
    pub(crate) config: Config,
    pub(crate) marks: Marks,
    /// Things that change hands.
    pub(crate) passing: Mutex<Vec<Held<'p>>>,
    /// All waits that are over, to be looked at when nobody wakes any more.
    pub(crate) ended: Mutex<Vec<(Arc<Signal>, usize, End)>>,
    /// Chunks that callers got, by class.
    pub(crate) served: Vec<AtomicU64>,
    /// A thread has failed: the others need not go on.
    pub(crate) failed: AtomicBool,
    pub(crate) values: Values,
    #[cfg(feature = "allocator-api2")]
    pub(crate) lines: lines::Lines,
}

impl<'p> World<'p> {
    pub(crate) fn enter(&self, chunk: &Chunk) {
        self.marks.enter(chunk.as_ptr(), chunk.capacity());
        self.served[chunk.class()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, chunk: &Chunk) {
        self.marks.leave(chunk.as_ptr(), chunk.capacity());
    }

    pub(crate) fn free(&self, chunk: Chunk) {
        self.leave(&chunk);
        drop(chunk);
    }

    pub(crate) fn end_wait(&self, wait: Wait<'p>, end: End) {
        drop(wait.future);
        let ended = (wait.signal, wait.class, end);
        self.ended.lock().unwrap().push(ended);
    }

    pub(crate) fn free_held(&self, held: Held<'p>) {
        match held {
            Held::Chunk(chunk) => self.free(chunk),
            Held::Raw(at, bytes) => {
                self.marks.leave(at.0, bytes);
                // SAFETY: came from `into_raw` or `alloc_raw`, and is given up here.
                unsafe { self.pool.free_raw(at.0) }.unwrap();
            }
            Held::Shared(shared) => {
                self.marks.check(shared.as_ptr(), shared.capacity());
                if let Some(chunk) = shared.into_inner() {
                    self.free(chunk);
                }
            }
            Held::Batch(batch, bytes) => {
                batch.as_ptrs().for_each(|at| self.marks.leave(at, bytes));
                drop(batch);
            }
            Held::Heap(chunk) => drop(chunk),
            Held::Wait(wait) => self.end_wait(wait, End::GivenUp),
            Held::Value(value) => drop(value),
            Held::RawValue(at) => drop(self.values.take_back(at)),
            #[cfg(feature = "allocator-api2")]
            Held::Line(line) => lines::check(&line),
        }
    }

    /// When nobody has anything but chunks.
    pub(crate) fn finish(self, random: &mut Random) {
        self.values.finish(random);
        #[cfg(feature = "allocator-api2")]
        self.lines.finish(&self.config);
    }

    /// A snapshot of whatever moment is possible; what it counts has not fallen since `before`.
    pub(crate) fn check_stats(&self, stats: &PoolStats, before: Option<&PoolStats>) {
        assert!(stats.committed_bytes <= stats.max_memory);
        let of_classes: usize = stats.classes().iter().map(|one| one.committed_bytes).sum();
        assert!(of_classes <= stats.committed_bytes, "{stats:?}");
        let waiting = stats.classes().iter().any(|one| one.waiting > 0);
        for (index, class) in stats.classes().iter().enumerate() {
            let free = class.in_magazines + class.in_depot + class.in_slabs;
            assert!(class.in_use <= class.committed_chunks, "{class:?}");
            assert_eq!(class.in_use + free, class.committed_chunks, "{class:?}");
            assert!(class.in_use_peak >= class.in_use, "{class:?}");
            assert!(class.waiting <= class.waits, "{class:?}");
            assert!(class.waiting == 0 || class.in_slabs == 0, "{class:?}");
            // In a stack, chunks on their way look as if they were there.
            let all_in_slabs = class.in_magazines == 0
                && (class.in_depot == 0 || self.config.mode == Mode::DepotOnly);
            assert!(!waiting || all_in_slabs, "somebody waits: {stats:?}");
            let Some(before) = before.map(|before| &before.classes()[index]) else {
                continue;
            };
            let counted = [before, class].map(|one| {
                [
                    one.frees,
                    one.frees_remote,
                    one.frees - one.frees_remote,
                    one.allocs_from_depot,
                    one.allocs_from_slab,
                    one.chunks_flushed,
                    one.slab_commits,
                    one.slab_rebalances,
                    one.slab_trims,
                    one.exhausted,
                    one.waits,
                    one.in_use_peak,
                ]
            });
            let fell = counted[0].iter().zip(&counted[1]).any(|(a, b)| a > b);
            assert!(!fell, "what is counted fell: {before:?}, then {class:?}");
        }
    }
}
