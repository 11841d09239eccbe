//! Resident memory, as the system counts it. Alone in its file, and so in its process: the system
//! merges neighbouring mappings, and other tests' pools would be counted too.
#![cfg(all(feature = "std", target_os = "linux", not(miri)))]

mod common;

use common::fill;
use slab_core::{SizeClasses, SlabPool};

const CAP: usize = 16 << 20;

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
