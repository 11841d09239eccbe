//! What AddressSanitizer must catch inside the arena, which it can because free chunks are poisoned.
//! Each error is made in a child process that has to die of it. Run by `ci/asan`.
#![cfg(slab_asan)]

use slab_core::{Chunk, SizeClasses, SlabPool};
use std::process::Command;

const ERROR: &str = "SLAB_ASAN_ERROR";

fn pool() -> SlabPool {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[256, 2048]).unwrap())
        .max_memory(1 << 20)
        .build()
        .unwrap()
}

fn read(at: *const u8) {
    // SAFETY: none: this is the error.
    let byte = unsafe { at.read_volatile() };
    std::hint::black_box(byte);
}

fn chunk(pool: &SlabPool) -> Chunk {
    let mut chunk = pool.try_alloc(2048).unwrap();
    chunk.fill_zero();
    chunk
}

/// Makes the error that the parent asked for.
fn make_error(error: &str) {
    let pool = pool();
    match error {
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
            // SAFETY: none: this is the error.
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
            // SAFETY: none: this is the error.
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
        other => panic!("no such error: {other}"),
    }
}

#[test]
fn asan_catches_errors_inside_the_arena() {
    if let Ok(error) = std::env::var(ERROR) {
        return make_error(&error);
    }
    for (error, cause) in [
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
            .args(["--exact", "asan_catches_errors_inside_the_arena"])
            .arg("--nocapture")
            .env(ERROR, error)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&child.stderr);
        match cause {
            None => assert!(child.status.success(), "{error}: {stderr}"),
            Some(cause) => {
                assert!(!child.status.success(), "not caught: {error}");
                assert!(stderr.contains(cause), "{error}: {stderr}");
            }
        }
    }
}
