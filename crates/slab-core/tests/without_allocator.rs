//! Pools that lie, with all their tables, in memory that the caller lent. Without the crate's feature `alloc` there are
//! no others.
#![cfg(not(loom))]

use slab_core::{
    AllocError, Backing, BuildInError, Chunk, ConfigError, MAX_CHUNK_ALIGN, Mode, SizeClasses,
    Slab, SlabPool, SlabPoolBuilder,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The system's allocator, which counts what this thread takes of it.
struct CountingAllocator;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all is left to `System`.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const MODES: [Mode; 4] = [
    Mode::ThreadCached,
    Mode::DepotOnly,
    Mode::Ring,
    Mode::Locked,
];
/// The bytes around what is lent, which must stay what they are.
const MARGIN: usize = 4096;
const MARK: u8 = 0xA7;

/// Memory to be lent, which is freed at the end of the test: by then no pool may use it. So Miri sees a use after that,
/// and a leak if something in it was not dropped.
struct Lent {
    at: *mut u8,
    range: Range<usize>,
    layout: Layout,
}

impl Lent {
    fn new(len: usize, skip: usize) -> Self {
        let layout = Layout::from_size_align(MARGIN + skip + len + MARGIN, MAX_CHUNK_ALIGN);
        let layout = layout.unwrap();
        // SAFETY: not empty.
        let at = unsafe { std::alloc::alloc(layout) };
        // SAFETY: just allocated. What was there before must not be seen.
        unsafe { at.write_bytes(MARK, layout.size()) };
        Self {
            at,
            range: MARGIN + skip..MARGIN + skip + len,
            layout,
        }
    }

    /// Where the memory lies.
    fn lent(&self) -> Range<*const MaybeUninit<u8>> {
        let at = |offset| self.at.wrapping_add(offset).cast_const().cast();
        at(self.range.start)..at(self.range.end)
    }

    /// The memory, which nobody else has meanwhile.
    fn lend(&self) -> &'static mut [MaybeUninit<u8>] {
        let at = self.at.wrapping_add(self.range.start).cast();
        // SAFETY: allocated, and nobody else's until this is dropped, which every test does after it is through with it.
        unsafe { std::slice::from_raw_parts_mut(at, self.range.len()) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let is_mark = |range: Range<usize>| {
            let at = self.at.wrapping_add(range.start);
            // SAFETY: written in `new`, and not a part of what was lent.
            let bytes = unsafe { std::slice::from_raw_parts(at, range.len()) };
            bytes.iter().all(|&byte| byte == MARK)
        };
        let around = [0..self.range.start, self.range.end..self.layout.size()];
        let kept = around.into_iter().all(is_mark);
        // SAFETY: allocated in `new`, with this layout.
        unsafe { std::alloc::dealloc(self.at, self.layout) };
        assert!(kept || std::thread::panicking(), "written beside it");
    }
}

fn needed(builder: &SlabPoolBuilder, memory: &Lent) -> usize {
    let refused = builder.clone().build_all_in(memory.lend(), &mut []);
    match refused.unwrap_err().error() {
        ConfigError::BookkeepingTooSmall { bytes: 0, needed } => needed,
        error => panic!("{error}"),
    }
}

/// With chunks of all sizes: filled, every other one freed and filled again, each marked.
fn use_all(pool: &SlabPool) {
    for &bytes in pool.size_classes().sizes() {
        let fill = || std::iter::from_fn(|| pool.try_alloc(bytes).ok()).collect::<Vec<Chunk>>();
        let mark = |nth: usize, chunk: &mut Chunk| {
            chunk.try_copy_from_slice(&nth.to_le_bytes()).unwrap();
        };
        let mut all = fill();
        assert!(!all.is_empty());
        let refused = pool.try_alloc(bytes).unwrap_err();
        assert_eq!(refused, AllocError::Exhausted { chunk_bytes: bytes });
        assert_eq!(pool.stats().in_use(), all.len() as u64);
        let count = all.len();
        let mut nth = 0;
        all.retain(|_| {
            nth += 1;
            nth % 2 == 0
        });
        all.extend(fill());
        assert_eq!(all.len(), count);
        (0..)
            .zip(&mut all)
            .for_each(|(nth, chunk)| mark(nth, chunk));
        for (nth, chunk) in (0_usize..).zip(&all) {
            // SAFETY: just written, and ours.
            let bytes = unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), 8) };
            assert_eq!(bytes, nth.to_le_bytes());
        }
    }
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    assert!(
        stats
            .classes()
            .iter()
            .all(|class| class.allocs == class.frees)
    );
}

fn classes() -> SizeClasses {
    // Fewer chunks, for Miri.
    let small = if cfg!(miri) { 768 } else { 64 };
    SizeClasses::explicit(&[small, 1536, 16384]).unwrap()
}

fn options(mode: Mode) -> [SlabPoolBuilder; 4] {
    let plain = SlabPoolBuilder::default()
        .mode(mode)
        .size_classes(classes());
    [
        plain.clone(),
        plain.clone().hardened(true),
        plain.clone().zero_on_free(true),
        plain.backing(Backing::Prefault).zero_on_alloc(true),
    ]
}

#[test]
#[cfg_attr(miri, ignore = "builds a hundred pools")]
fn exactly_what_the_error_says_is_needed_and_used() {
    for mode in MODES {
        for builder in options(mode) {
            let memory = Lent::new(256 << 10, 0);
            let needed = needed(&builder, &memory);
            for skip in [0, 1, 127] {
                // From an aligned address on, all 127 bytes for the alignment are left over.
                let skipped = skip.min(1) * (128 - skip);
                let exact = needed - 127 + skipped;
                assert!(exact <= needed);
                let short = Lent::new(exact - 1, skip);
                let refused = builder.clone().build_all_in(memory.lend(), short.lend());
                let refused = refused.unwrap_err();
                let too_small = ConfigError::BookkeepingTooSmall {
                    bytes: exact - 1,
                    needed,
                };
                assert_eq!(refused.error(), too_small);
                let (back, bookkeeping) = refused.into_memory_and_bookkeeping();
                assert_eq!(back.as_ptr_range(), memory.lent());
                assert_eq!(bookkeeping.as_ptr_range(), short.lent());
                let enough = Lent::new(exact, skip);
                let pool = builder.clone().build_all_in(back, enough.lend()).unwrap();
                assert_eq!(pool.max_memory(), 256 << 10);
                if skip == 1 {
                    use_all(&pool);
                }
            }
        }
    }
}

/// But for the count of the handles, where there is one.
#[test]
#[cfg(not(feature = "std"))]
fn nothing_is_taken_of_the_heap() {
    for mode in MODES {
        // Miri takes seconds for each.
        for builder in options(mode)
            .into_iter()
            .take(if cfg!(miri) { 1 } else { 4 })
        {
            let memory = Lent::new(256 << 10, 0);
            let bookkeeping = Lent::new(needed(&builder, &memory), 5);
            let before = ALLOCATED.get();
            let pool = builder
                .build_all_in(memory.lend(), bookkeeping.lend())
                .unwrap();
            let count = if cfg!(feature = "alloc") { 24 } else { 0 };
            assert_eq!(ALLOCATED.get() - before, count);
            let chunk = pool.try_alloc(1).unwrap();
            let shared = chunk.into_shared();
            drop((shared.clone(), pool.clone(), shared));
            let mut batch = pool.chunk_batch(1536).unwrap();
            batch.fill(8).unwrap();
            drop(batch);
            assert!(pool.stats().in_use() == 0 && pool.trim() == 0);
            drop(pool);
            assert_eq!(ALLOCATED.get() - before, count);
        }
    }
}

#[test]
fn it_lasts_as_long_as_its_last_chunk_and_has_a_handle_as_long_as_somebody_has_one() {
    for mode in MODES {
        let builder = SlabPoolBuilder::default()
            .mode(mode)
            .size_classes(classes());
        let memory = Lent::new(256 << 10, 0);
        let bookkeeping = Lent::new(needed(&builder, &memory), 0);
        let pool = builder
            .build_all_in(memory.lend(), bookkeeping.lend())
            .unwrap();
        let chunks = [1, 1536].map(|len| pool.try_alloc(len).unwrap());
        assert!(chunks.iter().all(|chunk| chunk.belongs_to(&pool)));
        let other = chunks[0].pool().unwrap();
        assert!(other.same_pool(&pool));
        drop(pool);
        let last = chunks[1].pool().unwrap();
        drop(other);
        assert_eq!(last.stats().in_use(), 2);
        drop(last);
        assert!(chunks[0].pool().is_none());
        let [mut first, second] = chunks;
        drop(second);
        assert_eq!(first.fill_zero().len(), first.capacity());
        drop(first);
    }
}

#[test]
fn several_threads_use_it_and_end_it() {
    const STEPS: u64 = if cfg!(miri) { 30 } else { 20_000 };
    for mode in MODES {
        let builder = SlabPoolBuilder::default()
            .mode(mode)
            .size_classes(classes());
        let memory = Lent::new(256 << 10, 0);
        let bookkeeping = Lent::new(needed(&builder, &memory), 64);
        let pool = builder
            .build_all_in(memory.lend(), bookkeeping.lend())
            .unwrap();
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::sync_channel::<Chunk>(64);
            let mine = pool.clone();
            let sends = scope.spawn(move || {
                for step in 0..STEPS {
                    let len = [1, 1536, 16384][step as usize % 3];
                    let Ok(mut chunk) = mine.try_alloc(len) else {
                        continue;
                    };
                    chunk.try_copy_from_slice(&[step as u8]).unwrap();
                    if step % 7 == 0 {
                        drop(mine.clone());
                    }
                    let _ = sender.send(chunk);
                }
            });
            let frees = scope.spawn(move || {
                // The handle is the sender's by now.
                for chunk in receiver {
                    drop(chunk.pool());
                }
            });
            drop(pool);
            // Until their thread-locals are gone, too, by which an ending thread may have the last handle: the scope does
            // not wait for these, and then the memory goes.
            for thread in [sends, frees] {
                thread.join().unwrap();
            }
        });
    }
}

/// What one did by way of its handle comes before the end, whoever brings that: Miri sees if it does not.
#[test]
fn two_threads_drop_its_last_handles() {
    for mode in MODES {
        let builder = SlabPoolBuilder::default().mode(mode);
        let builder = builder.size_classes(SizeClasses::explicit(&[16384]).unwrap());
        let memory = Lent::new(64 << 10, 0);
        let bookkeeping = Lent::new(needed(&builder, &memory), 0);
        let pool = builder
            .build_all_in(memory.lend(), bookkeeping.lend())
            .unwrap();
        let other = pool.clone();
        let thread = std::thread::spawn(move || drop(other));
        drop(pool);
        thread.join().unwrap();
    }
}

/// A process has numbers for so many pools, and those of one that does not end are gone.
#[test]
#[cfg_attr(miri, ignore = "builds thousands of pools")]
fn it_ends_whichever_goes_last() {
    // More than there are numbers for pools without magazines.
    const ROUNDS: usize = 700;
    type End = fn(SlabPool, Chunk);
    let ends: [End; 5] = [
        |pool, chunk| drop((chunk, pool)),
        |pool, chunk| drop((pool, chunk)),
        |pool, chunk| {
            let clone = pool.clone();
            drop((pool, chunk, clone));
        },
        |pool, chunk| {
            let other = chunk.pool().unwrap();
            drop((pool, chunk, other));
        },
        |pool, chunk| {
            drop((chunk.pool(), pool));
            assert!(chunk.pool().is_none());
        },
    ];
    let one = SizeClasses::explicit(&[16384]).unwrap();
    let memory = Lent::new(64 << 10, 0);
    for end in ends {
        for mode in MODES {
            let builder = SlabPoolBuilder::default().mode(mode);
            let builder = builder.size_classes(one.clone());
            let bookkeeping = Lent::new(needed(&builder, &memory), 0);
            for _ in 0..ROUNDS {
                let pool = builder.clone();
                let pool = pool
                    .build_all_in(memory.lend(), bookkeeping.lend())
                    .unwrap();
                let chunk = pool.try_alloc(1).unwrap();
                // One of two handles is not the last.
                drop(pool.clone());
                drop(pool.try_alloc(1).unwrap());
                assert_eq!(pool.stats().in_use(), 1);
                end(pool, chunk);
            }
        }
    }
}

#[test]
fn memory_that_was_lent_in_vain_comes_back() {
    #[repr(align(8192))]
    struct Unaligned;

    let check = |refused: BuildInError, memory: &Lent, bookkeeping: &Lent| {
        let error = refused.error();
        let (back, books) = refused.into_memory_and_bookkeeping();
        assert_eq!(back.as_ptr_range(), memory.lent());
        assert_eq!(books.as_ptr_range(), bookkeeping.lent());
        let builder = SlabPoolBuilder::default().mode(Mode::DepotOnly);
        let one = SizeClasses::explicit(&[1536]).unwrap();
        if back.len() > 100 << 10 {
            use_all(&builder.size_classes(one).build_all_in(back, books).unwrap());
        }
        error
    };
    let pieces = |bytes| (Lent::new(bytes, 0), Lent::new(256 << 10, 0));
    let ring = SlabPoolBuilder::default()
        .mode(Mode::Ring)
        .size_classes(classes());
    let (memory, bookkeeping) = pieces(128 << 10);
    let refused = ring.build_all_in(memory.lend(), bookkeeping.lend());
    let error = check(refused.unwrap_err(), &memory, &bookkeeping);
    assert_eq!(
        error,
        ConfigError::CapBelowClasses {
            slabs: 2,
            classes: 3
        }
    );

    let (memory, bookkeeping) = pieces(60 << 10);
    let few = SlabPoolBuilder::default().size_classes(classes());
    let refused = few.build_all_in(memory.lend(), bookkeeping.lend());
    let error = check(refused.unwrap_err(), &memory, &bookkeeping);
    assert!(
        matches!(error, ConfigError::CapBelowOneSlab { .. }),
        "{error}"
    );

    let (memory, bookkeeping) = pieces(128 << 10);
    let refused = Slab::<Unaligned>::builder().build_all_in(memory.lend(), bookkeeping.lend());
    let error = check(refused.unwrap_err(), &memory, &bookkeeping);
    assert_eq!(error, ConfigError::BadAlignment { align: 8192 });
}

#[test]
fn a_typed_slab_lies_there_too() {
    let memory = Lent::new(128 << 10, 0);
    let bookkeeping = Lent::new(256 << 10, 0);
    let slab = Slab::<[u64; 128]>::builder().name("all here");
    let slab = slab.pool(|pool| pool.mode(Mode::DepotOnly));
    let slab = slab
        .build_all_in(memory.lend(), bookkeeping.lend())
        .unwrap();
    assert_eq!(slab.pool().name(), "all here");
    let all: Vec<_> = std::iter::from_fn(|| slab.try_insert([7; 128]).ok()).collect();
    assert_eq!((all.len(), slab.capacity()), (128, 128));
    drop(slab);
    assert!(all.iter().all(|value| **value == [7; 128]));
}
