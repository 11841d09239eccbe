//! Resident memory, as the system counts it. In a file, and so in a process, of their own, one at a time: the system
//! merges neighbouring mappings, and other tests' pools would be counted too.
#![cfg(all(feature = "std", target_os = "linux", not(miri)))]

mod common;

use common::{MODES, fill};
use slab_core::{Backing, Growth, Mode, SizeClasses, SlabPool, SlabPoolBuilder};
use std::sync::Mutex;

const CAP: usize = 16 << 20;
static ALONE: Mutex<()> = Mutex::new(());

/// Resident bytes of the mapping that `at` lies in.
fn resident_around(at: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().unwrap().split_once('-');
        if let Some((from, to)) = range
            && let (Ok(from), Ok(to)) = (
                usize::from_str_radix(from, 16),
                usize::from_str_radix(to, 16),
            )
        {
            inside = (from..to).contains(&at);
        } else if inside && let Some(rest) = line.strip_prefix("Rss:") {
            return rest
                .trim()
                .trim_end_matches(" kB")
                .parse::<usize>()
                .unwrap()
                << 10;
        }
    }
    panic!("no mapping around {at:x}");
}

#[test]
fn trimmed_memory_is_no_longer_resident_and_reads_as_zero() {
    let _alone = ALONE.lock();
    let large = 65536;
    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[64, large]).unwrap())
        .max_memory(CAP)
        .build()
        .unwrap();
    let mut chunks = fill(&pool, large);
    for chunk in &mut chunks {
        chunk.try_copy_from_slice(&vec![0xAB; large]).unwrap();
    }
    let at = chunks[0].as_ptr().as_ptr() as usize;
    let full = resident_around(at);
    assert!(full >= CAP, "{full}");
    assert_eq!(pool.resident_bytes(), Some(CAP));
    // A tenth stays: whole free pages of partly used slabs go too.
    let mut number = 0;
    chunks.retain(|_| {
        number += 1;
        number % 10 == 0
    });
    pool.trim();
    let tenth = resident_around(at);
    // The pool's tables may lie in the same mapping: within 5 % of the cap.
    assert!(tenth <= chunks.len() * large + CAP / 20, "{tenth}");
    for chunk in &chunks {
        // SAFETY: written in full above.
        let bytes = unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), large) };
        assert!(
            bytes.iter().all(|&byte| byte == 0xAB),
            "a chunk in use was trimmed"
        );
    }
    assert_eq!(pool.resident_bytes(), Some(chunks.len() * large));
    drop(chunks);
    pool.trim();
    assert!(resident_around(at) <= CAP / 20);
    assert_eq!(pool.resident_bytes(), Some(0));
}

fn builder(mode: Mode) -> SlabPoolBuilder {
    let classes = SizeClasses::explicit(&[16384]).unwrap();
    SlabPool::builder()
        .size_classes(classes)
        .max_memory(CAP)
        .mode(mode)
}

#[test]
fn zeros_fresh_from_the_system_are_not_touched() {
    let _alone = ALONE.lock();
    for mode in MODES {
        let pool = builder(mode).build().unwrap();
        let held: Vec<_> = std::iter::from_fn(|| pool.try_alloc_zeroed(1).ok()).collect();
        assert_eq!(held.len(), CAP / 16384);
        assert_eq!(pool.resident_bytes(), Some(0), "{mode:?}");
    }
}

#[test]
fn a_pool_is_unmapped_with_its_last_chunk() {
    let _alone = ALONE.lock();
    for mode in MODES {
        for guarded in [false, true] {
            // So large that nothing else is mapped in its middle.
            let pool = builder(mode).max_memory(1 << 28).guard_pages(guarded);
            let pool = pool.build().unwrap();
            let mut chunk = pool.try_alloc(1).unwrap();
            let middle = chunk.as_ptr().as_ptr().wrapping_add(1 << 27);
            let is_mapped = || {
                let mut vec = 0;
                // SAFETY: looks at the page tables only; `vec` has room for one page.
                let failed = unsafe { libc::mincore(middle.cast(), 1, &raw mut vec) };
                failed == 0
            };
            drop(pool);
            chunk.fill_zero();
            assert!(is_mapped(), "{mode:?} {guarded}");
            drop(chunk);
            assert!(!is_mapped(), "{mode:?} {guarded}");
        }
    }
}

/// Every page of a chunk is written as soon as it is allocated, and no chunk is carved before it is asked for.
#[test]
fn touched_bytes_of_the_statistics_are_what_is_resident() {
    let _alone = ALONE.lock();
    let sizes = [64, 1536, 4096, 9216, 65536];
    for (mode, growth) in [
        (Mode::DepotOnly, Growth::Slab),
        (Mode::Ring, Growth::Double),
    ] {
        let builder = SlabPool::builder().mode(mode).growth(growth);
        let builder = builder.size_classes(SizeClasses::explicit(&sizes).unwrap());
        let pool = builder.max_memory(4 << 20).build().unwrap();
        let mut held = Vec::new();
        let mut random = 7_u64;
        let (mut most, mut trimmed) = (0, 0);
        for step in 0..4000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Grows to the cap, and then mostly shrinks, and grows again.
            if random >> 32 & 7 < if step / 1000 % 2 == 0 { 6 } else { 2 } {
                if let Ok(mut chunk) = pool.try_alloc(sizes[random as usize % sizes.len()]) {
                    chunk.fill_zero();
                    held.push(chunk);
                }
            } else if !held.is_empty() {
                held.swap_remove(random as usize % held.len());
            }
            if step % 97 == 0 {
                trimmed += pool.trim_to(if step % 2 == 0 { 0 } else { 1 << 20 });
            }
            if step % 13 == 0 {
                let stats = pool.stats();
                assert_eq!(Some(stats.touched_bytes), pool.resident_bytes(), "{step}");
                assert!(stats.touched_bytes <= stats.committed_bytes);
                most = most.max(stats.touched_bytes);
            }
        }
        assert!(most > 2 << 20 && trimmed > 4 << 20, "{most}, {trimmed}");
        drop(held);
        pool.trim();
        let touched = pool.stats().touched_bytes;
        assert_eq!(Some(touched), pool.resident_bytes(), "{mode:?}");
        // Slabs that keep their class keep a page that a chunk shares with what is left at their end.
        assert!(touched <= if mode == Mode::Ring { 16 << 10 } else { 0 });
    }
    // What lies in magazines counts as well, and all of a pool that was backed at the start.
    let pool = SlabPool::builder().max_memory(CAP).build().unwrap();
    drop(pool.try_alloc(1500).unwrap());
    let stats = pool.stats();
    let class = &stats.classes()[pool.class_for(1500).unwrap()];
    let cached = class.in_magazines as usize * 1536;
    assert_eq!(stats.touched_bytes, cached.next_multiple_of(4096));
    let builder = SlabPool::builder().max_memory(CAP).guard_pages(true);
    let pool = builder.backing(Backing::Prefault).build().unwrap();
    assert_eq!(Some(pool.stats().touched_bytes), pool.resident_bytes());
}
