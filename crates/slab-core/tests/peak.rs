//! What is left of a peak: resident memory, and in the threads' magazines.
#![cfg(all(feature = "std", target_os = "linux", not(miri)))]

use slab_core::{Chunk, SizeClasses, SlabPool};
use std::thread;

const PAGE: usize = 4096;

/// Writes to every page, so that all of the chunk is resident.
fn touch(chunk: &mut Chunk) {
    for at in (0..chunk.capacity()).step_by(PAGE) {
        // SAFETY: within the chunk, which is borrowed mutably.
        let byte = unsafe { chunk.as_ptr().add(at) };
        // SAFETY: as above.
        unsafe { byte.write(1) };
    }
}

/// Chunks of several sizes that take `bytes`.
fn peak(pool: &SlabPool, bytes: usize) -> Vec<Chunk> {
    let sizes = pool.size_classes().sizes().to_vec();
    let mut chunks = Vec::new();
    let mut taken = 0;
    for &len in sizes.iter().cycle() {
        if taken >= bytes {
            break;
        }
        let mut chunk = pool.try_alloc(len).expect("below the cap");
        touch(&mut chunk);
        taken += len;
        chunks.push(chunk);
    }
    chunks
}

#[test]
fn trim_to_after_a_peak_of_400_mb_reaches_its_target() {
    const MB: usize = 1_000_000;
    let classes = SizeClasses::explicit(&[2048, 9216, 65536]).unwrap();
    let pool = SlabPool::builder()
        .size_classes(classes)
        .max_memory(420 * MB)
        .build()
        .unwrap();
    for level in [100 * MB, 20 * MB] {
        let mut chunks = peak(&pool, 400 * MB);
        assert!(pool.resident_bytes().unwrap() >= 400 * MB);
        // Every second one on another thread.
        let mut number = 0;
        let (here, there): (Vec<_>, Vec<_>) = chunks.drain(..).partition(|_| {
            number += 1;
            number % 2 == 0
        });
        drop(here);
        thread::spawn(move || drop(there)).join().unwrap();
        assert_eq!(pool.stats().in_use(), 0);
        pool.trim_to(level);
        let resident = pool.resident_bytes().unwrap();
        assert!(
            (level / 100 * 95..=level / 100 * 105).contains(&resident),
            "{resident} bytes instead of {level}"
        );
    }
    pool.trim();
    assert_eq!(pool.resident_bytes(), Some(0));
}

/// However small the pool: otherwise no freed chunk would ever stay with a thread.
#[test]
fn magazine_holds_two_chunks_of_any_size() {
    let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
    let len = 65536;
    let class = pool.class_for(len).unwrap();
    let chunks: Vec<_> = (0..4).map(|_| pool.try_alloc(len).unwrap()).collect();
    drop(chunks);
    assert_eq!(pool.stats().classes()[class].in_magazines, 2);
}

#[test]
fn magazines_are_bounded_in_chunks_and_in_bytes() {
    // The cap, and the most bytes of a class: 1/128 of it, or 2 MiB.
    for (max_memory, most) in [(64 << 20, 512 << 10), (1 << 30, 2 << 20)] {
        let pool = SlabPool::builder().max_memory(max_memory).build().unwrap();
        for (class, &len) in pool.size_classes().sizes().iter().enumerate() {
            let chunks: Vec<_> = (0..300).map(|_| pool.try_alloc(len).unwrap()).collect();
            drop(chunks);
            let kept = pool.stats().classes()[class].in_magazines;
            assert!((2..=112).contains(&kept), "{kept} chunks of {len} bytes");
            let bytes = kept as usize * len;
            assert!(bytes <= most, "{bytes} bytes of {len}");
            pool.flush_thread_cache();
            assert_eq!(pool.stats().classes()[class].in_magazines, 0);
        }
    }
}
