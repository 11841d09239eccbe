//! What AddressSanitizer must catch inside the arena, which it can because free chunks are poisoned.
//! Each crime runs in a child process that has to die of it. Run by `ci/asan`.
#![cfg(slab_asan)]

use slab_core::{Chunk, SizeClasses, SlabPool};
use std::process::Command;

const CRIME: &str = "SLAB_ASAN_CRIME";

fn pool() -> SlabPool {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[256, 2048]).unwrap())
        .max_memory(1 << 20)
        .build()
        .unwrap()
}

fn read(at: *const u8) {
    // SAFETY: none: this is the crime.
    let byte = unsafe { at.read_volatile() };
    std::hint::black_box(byte);
}

fn chunk(pool: &SlabPool) -> Chunk {
    let mut chunk = pool.try_alloc(2048).unwrap();
    chunk.zeroed();
    chunk
}

/// Commits the crime that the parent asked for.
fn commit(crime: &str) {
    let pool = pool();
    match crime {
        "none" => read(chunk(&pool).as_ptr().as_ptr()),
        "read after free" => {
            let chunk = chunk(&pool);
            let at = chunk.as_ptr().as_ptr();
            drop(chunk);
            read(at);
        }
        "write to the last byte after free on another thread" => {
            let chunk = chunk(&pool);
            let at = chunk.as_ptr().as_ptr().wrapping_add(2047);
            std::thread::spawn(move || drop(chunk)).join().unwrap();
            // SAFETY: none: this is the crime.
            unsafe { at.write_volatile(1) };
        }
        "read after a batch was freed" => {
            let mut batch = pool.chunk_batch(2048).unwrap();
            batch.fill(4).unwrap();
            let at = batch.as_ptrs().next().unwrap().as_ptr();
            read(at);
            batch.clear();
            read(at);
        }
        "read behind the end" => {
            let chunk = chunk(&pool);
            read(chunk.as_ptr().as_ptr().wrapping_add(2048));
        }
        "free twice" => {
            let at = chunk(&pool).into_raw();
            // SAFETY: the first free is correct.
            unsafe { pool.free_raw(at) }.unwrap();
            // SAFETY: none: this is the crime.
            unsafe { pool.free_raw(at) }.unwrap();
        }
        "read after the pool is gone" => {
            let chunk = chunk(&pool);
            let at = chunk.as_ptr().as_ptr();
            drop(pool);
            read(at);
            drop(chunk);
            read(at);
        }
        other => panic!("no such crime: {other}"),
    }
}

#[test]
fn crimes_inside_the_arena_are_caught() {
    if let Ok(crime) = std::env::var(CRIME) {
        return commit(&crime);
    }
    for (crime, cause) in [
        ("none", None),
        ("read after free", Some("use-after-poison")),
        (
            "write to the last byte after free on another thread",
            Some("use-after-poison"),
        ),
        ("read after a batch was freed", Some("use-after-poison")),
        ("read behind the end", Some("use-after-poison")),
        ("free twice", Some("is freed twice")),
        // Unmapped: the processor catches it.
        ("read after the pool is gone", Some("SEGV")),
    ] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crimes_inside_the_arena_are_caught"])
            .arg("--nocapture")
            .env(CRIME, crime)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&child.stderr);
        match cause {
            None => assert!(child.status.success(), "{crime}: {stderr}"),
            Some(cause) => {
                assert!(!child.status.success(), "not caught: {crime}");
                assert!(stderr.contains(cause), "{crime}: {stderr}");
            }
        }
    }
}
