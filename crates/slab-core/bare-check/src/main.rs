//! A program without an operating system: a pool in each mode over a static region, used by two processors at the same
//! time. Its tables lie in another region, and there is no allocator; or, with the feature `heap`, on a heap that takes
//! nothing back and is as large as the documentation says.
#![no_std]
#![no_main]

mod board;
#[cfg(feature = "heap")]
mod heap;
#[cfg(not(feature = "heap"))]
mod lent;

#[cfg(feature = "heap")]
use heap as tables;
#[cfg(not(feature = "heap"))]
use lent as tables;

use core::array;
use core::fmt::Write;
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use slab_core::{AllocError, Chunk, Mode, SizeClasses, SlabPool, SlabPoolBuilder};

const CAP: usize = 256 << 10;
const MODES: [Mode; 3] = [Mode::DepotOnly, Mode::Ring, Mode::Locked];
const CLASSES: [usize; 3] = [64, 1536, 16384];
const STEPS: usize = if cfg!(debug_assertions) {
    100_000
} else {
    400_000
};

#[repr(align(4096))]
struct Region<const BYTES: usize>([MaybeUninit<u8>; BYTES]);
static mut LENT: [Region<CAP>; MODES.len()] =
    [const { Region([MaybeUninit::uninit(); CAP]) }; MODES.len()];

/// The pool of the present turn, and how often a processor was ready for a turn, or done with it.
static POOL: AtomicPtr<SlabPool> = AtomicPtr::new(null_mut());
static READY: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);
/// Chunks on their way from one processor to the other, or back.
static SENT: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];

/// Where each processor begins, with its number.
#[unsafe(no_mangle)]
extern "C" fn begin(processor: usize) -> ! {
    if processor == 1 {
        for turn in 0.. {
            use_pool(turn, 2);
        }
    }
    for (turn, mode) in MODES.into_iter().enumerate() {
        let region = (&raw mut LENT).cast::<Region<CAP>>().wrapping_add(turn);
        // SAFETY: each region is lent once, and nothing else refers to it.
        let lent = unsafe { &mut (*region).0 };
        let classes = SizeClasses::explicit(&CLASSES).unwrap();
        let builder = SlabPoolBuilder::default().mode(mode).size_classes(classes);
        let mut tables = tables::Tables::default();
        let mut pool = tables.build(builder, lent, mode);
        assert_eq!(pool.max_memory(), CAP);
        for len in CLASSES {
            exhaust(&pool, len);
        }
        POOL.store(&mut pool, SeqCst);
        use_pool(turn, 1);
        for sent in &SENT {
            receive(&pool, sent.swap(null_mut(), SeqCst));
        }
        let stats = pool.stats();
        assert_eq!(stats.in_use(), 0);
        assert!(
            stats
                .classes()
                .iter()
                .all(|class| class.allocs == class.frees)
        );
        let _ = writeln!(board::Port, "{mode:?}: {} bytes of tables", tables.check());
    }
    board::exit(0)
}

/// Fills the whole memory, frees every other chunk, and fills it again.
fn exhaust(pool: &SlabPool, len: usize) {
    let mut chunks: [Option<Chunk>; CAP / 64] = array::from_fn(|_| pool.try_alloc(len).ok());
    let all = chunks.iter().flatten().count();
    assert!(matches!(
        pool.try_alloc(len),
        Err(AllocError::Exhausted { .. })
    ));
    for again in [false, true] {
        for (chunk, mark) in chunks[..all].iter_mut().zip(1..).step_by(2) {
            *chunk = again.then(|| pool.try_alloc(len).unwrap());
            chunk
                .iter()
                .for_each(|chunk| fill(chunk.as_ptr(), mark, len));
        }
        assert_eq!(
            pool.stats().in_use(),
            if again { all } else { all / 2 } as u64
        );
    }
    for (chunk, mark) in chunks.iter().zip(1..).step_by(2) {
        chunk
            .iter()
            .for_each(|chunk| check(chunk.as_ptr(), mark, len));
    }
}

/// What both processors do at the same time, in this turn.
fn use_pool(turn: usize, mut random: u64) {
    READY.fetch_add(1, SeqCst);
    while READY.load(SeqCst) < 2 * (turn + 1) {
        core::hint::spin_loop();
    }
    // SAFETY: the first processor keeps the pool until both are done.
    let pool = unsafe { &*POOL.load(SeqCst) };
    for step in 0..STEPS {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let len = CLASSES[random as usize % CLASSES.len()];
        let place = &SENT[random as usize / 64 % SENT.len()];
        match random >> 60 {
            0..8 => match pool.alloc_raw(len) {
                // Its length goes with it.
                Ok(at) => {
                    fill(at, len as u64, len);
                    receive(pool, place.swap(at.as_ptr(), SeqCst));
                }
                Err(_) => receive(pool, place.swap(null_mut(), SeqCst)),
            },
            8..12 => {
                let mut batch = pool.chunk_batch(len).unwrap();
                let _ = batch.fill(8);
                batch.as_ptrs().for_each(|at| fill(at, random, len));
                batch.as_ptrs().for_each(|at| check(at, random, len));
            }
            12..14 => {
                if let Ok(chunk) = pool.try_alloc_zeroed(len) {
                    check(chunk.as_ptr(), 0, len);
                    let shared = chunk.into_shared();
                    drop((shared.clone(), shared));
                }
            }
            14 if step % 64 == 0 => assert_eq!(pool.trim(), 0, "lent memory stays"),
            _ => {
                for class in pool.stats().classes() {
                    let free = class.in_magazines + class.in_depot + class.in_slabs;
                    assert_eq!(class.in_use + free, class.committed_chunks);
                }
            }
        }
    }
    DONE.fetch_add(1, SeqCst);
    while DONE.load(SeqCst) < 2 * (turn + 1) {
        core::hint::spin_loop();
    }
}

/// Checks a chunk that was sent, and frees it here, whoever allocated it.
fn receive(pool: &SlabPool, at: *mut u8) {
    let Some(at) = NonNull::new(at) else { return };
    // SAFETY: its sender wrote the length there, and gave it up.
    let len = unsafe { at.cast::<u64>().read() };
    check(at, len, len as usize);
    // SAFETY: as above.
    unsafe { pool.free_raw(at) }.unwrap();
}

fn fill(at: NonNull<u8>, mark: u64, len: usize) {
    let words = at.cast::<u64>().as_ptr();
    // SAFETY: the caller's chunk of at least this length.
    (0..len / 8).for_each(|word| unsafe { words.wrapping_add(word).write(mark) });
}

fn check(at: NonNull<u8>, mark: u64, len: usize) {
    let words = at.cast::<u64>().as_ptr();
    // SAFETY: as in `fill`, which has written all of it.
    let is_mark = |word| unsafe { words.wrapping_add(word).read() } == mark;
    assert!((0..len / 8).all(is_mark), "somebody else wrote to {at:p}");
}
