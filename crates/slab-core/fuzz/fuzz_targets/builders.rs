//! Every configuration builder with arbitrary input: an error says why, and what is built works.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use slab_core::{
    AllocError, Backing, CHUNK_ALIGN, ConfigError, Growth, MAX_CHUNK_BYTES, MAX_CLASSES, Mode,
    SizeClasses, SizeHistogram, Slab, SlabPool, SlabPoolBuilder,
};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

#[derive(Arbitrary, Debug)]
enum Classes {
    Explicit(Vec<usize>),
    /// Likelier to be accepted: ascending steps of the alignment.
    Steps(Vec<u8>),
    Geometric(usize, usize, f64),
    Small(u16, u16, u8),
    Network,
    General,
    /// The advisor's proposal for these requests.
    Advised(Vec<(u32, u8)>, u8),
}

#[derive(Arbitrary, Debug)]
struct Input {
    classes: Classes,
    align: Option<usize>,
    max_memory: usize,
    slabs: Option<u8>,
    mode: u8,
    zero_on_alloc: bool,
    zero_on_free: bool,
    hardened: bool,
    growth: u8,
    backing: u8,
    huge_pages: bool,
    guard_pages: bool,
    record_sizes: bool,
    track_leaks: Option<u32>,
    /// A pool over the caller's memory, of which this many bytes are lent.
    lent: Option<u32>,
    /// And its bookkeeping in so many more.
    bookkeeping: Option<u32>,
    oversize: u32,
    objects: usize,
    requests: Vec<usize>,
}

/// All options but classes and cap. `little`: the pool will have little memory.
fn set(input: &Input, little: bool, builder: SlabPoolBuilder) -> SlabPoolBuilder {
    let builder = builder
        .mode(match input.mode % 4 {
            0 => Mode::ThreadCached,
            1 => Mode::DepotOnly,
            2 => Mode::Ring,
            _ => Mode::Locked,
        })
        .zero_on_alloc(input.zero_on_alloc)
        .zero_on_free(input.zero_on_free)
        .hardened(input.hardened)
        .guard_pages(input.guard_pages)
        .record_sizes(input.record_sizes)
        .growth(match input.growth % 3 {
            0 => Growth::Slab,
            1 => Growth::Double,
            _ => Growth::Custom(|slabs| slabs.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
        })
        // All of it at once only if that is little.
        .backing(match input.backing % 3 {
            1 if little => Backing::Prefault,
            2 if little => Backing::Locked,
            _ => Backing::OnDemand,
        })
        .huge_pages(input.huge_pages)
        .max_oversize_memory(input.oversize as usize);
    match input.track_leaks {
        Some(one_in) => builder.track_leaks(one_in),
        None => builder,
    }
}

/// Memory to lend, and more for bookkeeping (4096 threads' is in it): at most `len` bytes of either.
///
/// # Safety
/// Pools in memory that was lent before must be gone.
unsafe fn memory(len: [usize; 2]) -> [&'static mut [MaybeUninit<u8>]; 2] {
    const BYTES: [usize; 2] = [1 << 20, 4 << 20];
    static MEMORY: [OnceLock<usize>; 2] = [const { OnceLock::new() }; 2];
    [0, 1].map(|which| {
        let at = MEMORY[which].get_or_init(|| {
            let memory = Box::leak(Box::<[u8]>::new_uninit_slice(BYTES[which]));
            memory.as_mut_ptr().expose_provenance()
        });
        let at = std::ptr::with_exposed_provenance_mut(*at);
        // SAFETY: leaked above, and by the caller's promise nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(at, len[which] % (BYTES[which] + 1)) }
    })
}

fn classes(input: &Classes) -> Result<SizeClasses, ConfigError> {
    match input {
        Classes::Explicit(sizes) => SizeClasses::explicit(sizes),
        Classes::Steps(steps) => {
            let mut bytes = 0;
            let sizes: Vec<usize> = steps
                .iter()
                .map(|&step| {
                    bytes += (usize::from(step) + 1) * CHUNK_ALIGN;
                    bytes
                })
                .collect();
            SizeClasses::explicit(&sizes)
        }
        &Classes::Geometric(min, max, factor) => SizeClasses::geometric(min, max, factor),
        &Classes::Small(min, max, factor) => {
            SizeClasses::geometric(min.into(), max.into(), 1.0 + f64::from(factor) / 64.0)
        }
        Classes::Network => Ok(SizeClasses::network()),
        Classes::General => Ok(SizeClasses::general()),
        Classes::Advised(requests, count) => {
            let mut histogram = SizeHistogram::new();
            for &(len, count) in requests {
                histogram.record(len as usize, count.into());
            }
            histogram
                .advise((*count).into())
                .map(|advice| advice.classes)
        }
    }
}

/// The sanitizer's shadow of an arena is an eighth of it, and touched when the arena goes, so caps are
/// limited here. A cap that is too large for any arena stays so.
fn affordable(size: usize) -> usize {
    if size < 1 << 39 {
        size % (1 << 24)
    } else {
        size
    }
}

fn check(classes: &SizeClasses) {
    let sizes = classes.sizes();
    assert!((1..=MAX_CLASSES).contains(&sizes.len()));
    assert!(sizes.is_sorted_by(|a, b| a < b));
    assert!(sizes.iter().all(|bytes| bytes % CHUNK_ALIGN == 0));
    assert!(sizes[0] >= CHUNK_ALIGN && classes.largest() <= MAX_CHUNK_BYTES);
}

libfuzzer_sys::fuzz_target!(|input: Input| {
    let Ok(mut classes) = classes(&input.classes) else {
        return;
    };
    check(&classes);
    if let Some(align) = input.align {
        match classes.aligned_to(align) {
            Ok(aligned) => classes = aligned,
            Err(_) => return,
        }
        check(&classes);
        assert!((0..classes.sizes().len()).all(|class| classes.align(class) >= align));
    }
    // Mostly a few slabs, and otherwise anything.
    let slab = (4 * classes.largest()).next_power_of_two().max(64 << 10);
    let max_memory = match input.slabs {
        Some(slabs) => slab * usize::from(slabs % 4),
        None => affordable(input.max_memory),
    };
    let ring = input.mode % 4 == 2;
    let builder = SlabPool::builder()
        .size_classes(classes.clone())
        .max_memory(max_memory);
    let builder = set(&input, max_memory <= 1 << 20, builder);
    let (built, max_memory) = match input.lent {
        None => (builder.build(), max_memory),
        Some(len) => {
            let bookkeeping = input.bookkeeping.unwrap_or(0);
            // SAFETY: the pool of the last run went with its last chunk, at the end of that run.
            let [memory, books] = unsafe { memory([len, bookkeeping].map(|len| len as usize)) };
            let lent = [&*memory, &*books].map(|piece| (piece.as_ptr(), piece.len()));
            let built = if input.bookkeeping.is_some() {
                builder.build_all_in(memory, books)
            } else {
                builder.build_in(memory)
            };
            let built = built.map_err(|refused| {
                let error = refused.error();
                let (memory, books) = refused.into_memory_and_bookkeeping();
                assert_eq!((memory.as_ptr(), memory.len()), lent[0]);
                memory.fill(MaybeUninit::new(0xAA));
                if input.bookkeeping.is_some() {
                    assert_eq!((books.as_ptr(), books.len()), lent[1]);
                    books.fill(MaybeUninit::new(0xAA));
                }
                if let ConfigError::BookkeepingTooSmall { bytes, needed } = error {
                    assert!(bytes == lent[1].1 && needed > bytes, "{error}");
                }
                error
            });
            (built, lent[0].1)
        }
    };
    let Ok(pool) = built else {
        return;
    };
    assert!(pool.max_memory() <= max_memory);
    let mut held = Vec::new();
    for &len in &input.requests {
        match pool.try_alloc(len) {
            Ok(chunk) => {
                let class = classes.class_for(len).expect("it was served");
                assert_eq!(
                    (chunk.class(), chunk.capacity()),
                    (class, classes.sizes()[class])
                );
                assert_eq!(chunk.as_ptr().addr().get() % classes.align(class), 0);
                held.push(chunk);
            }
            Err(AllocError::TooLarge { requested, largest }) => {
                assert!(requested == len && largest == classes.largest() && len > largest);
            }
            Err(AllocError::Exhausted { .. }) => {
                // In a ring at least the slabs of its share.
                let slab = pool.stats().slab_bytes;
                let slabs = pool.max_memory() / slab / if ring { classes.sizes().len() } else { 1 };
                assert!(held.len() >= slabs, "refused too early");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(pool.stats().in_use(), held.len() as u64);
    drop(held);
    pool.trim();
    assert_eq!(pool.stats().in_use(), 0);
    let keeps = ring || input.lent.is_some() || input.backing % 3 == 2 && max_memory <= 1 << 20;
    if !keeps {
        assert_eq!(pool.stats().committed_bytes, 0);
    }
    drop(pool);

    let max_objects = affordable(input.objects);
    let objects = Slab::<[u64; 5]>::builder()
        .max_objects(max_objects)
        .pool(|builder| set(&input, max_objects <= 1 << 14, builder));
    if let Ok(objects) = objects.build() {
        assert!(objects.capacity() >= max_objects);
        assert_eq!(*objects.try_insert([7; 5]).expect("room for one"), [7; 5]);
    }
});
