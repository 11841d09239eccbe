//! Millions of operations: memory and counters at the end are what they were after the start.
//! Alone in its file, and so in its process, because it looks at the process's resident memory.
#![cfg(all(target_os = "linux", not(miri), not(slab_asan), not(slab_tsan)))]

mod process;

use slab_core::{Chunk, SizeClasses, SlabPool};
use std::sync::mpsc;
use std::thread;

const THREADS: u64 = 3;

const SIZES: [usize; 3] = [64, 1536, 9216];

/// Allocates, frees and hands over at random, `operations` times on each thread; returns how many
/// chunks of each class were allocated, and how often there was none.
fn run(pool: &SlabPool, seed: u64, operations: u64) -> ([u64; 3], [u64; 3]) {
    let (send, receive) = mpsc::sync_channel::<Chunk>(1000);
    thread::scope(|scope| {
        let freeing = scope.spawn(move || receive.into_iter().for_each(drop));
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let send = send.clone();
                scope.spawn(move || {
                    let mut random = seed * THREADS + thread + 1;
                    let mut held = Vec::with_capacity(300);
                    let (mut allocated, mut refused) = ([0; 3], [0; 3]);
                    for _ in 0..operations {
                        // xorshift64
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let place = (random >> 32) as usize;
                        match random % 16 {
                            0..=8 if held.len() < 300 => {
                                let class = place % 3;
                                match pool.try_alloc(SIZES[class]) {
                                    Ok(chunk) => {
                                        allocated[class] += 1;
                                        held.push(chunk);
                                    }
                                    Err(_) => refused[class] += 1,
                                }
                            }
                            9 => {
                                if let Some(chunk) = held.pop() {
                                    send.send(chunk).unwrap();
                                }
                            }
                            10 if random % 65536 < 32 => drop(pool.trim()),
                            _ if held.is_empty() => {}
                            _ => drop(held.swap_remove(place % held.len())),
                        }
                    }
                    (allocated, refused)
                })
            })
            .collect();
        let mut sums = ([0; 3], [0; 3]);
        for worker in workers {
            let (allocated, refused) = worker.join().unwrap();
            for class in 0..3 {
                sums.0[class] += allocated[class];
                sums.1[class] += refused[class];
            }
        }
        drop(send);
        freeing.join().unwrap();
        sums
    })
}

/// Returns how many requests were refused.
fn long_run(max_memory: usize, rounds: u64, operations: u64) -> u64 {
    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&SIZES).unwrap())
        .max_memory(max_memory)
        .build()
        .unwrap();
    let (mut allocated, mut refused) = run(&pool, 1, operations);
    pool.trim();
    let begun = process::size("VmRSS");
    for round in 2..=rounds {
        let (more, none) = run(&pool, round, operations);
        let stats = pool.stats();
        assert_eq!(stats.in_use(), 0);
        for (index, class) in stats.classes().iter().enumerate() {
            allocated[index] += more[index];
            refused[index] += none[index];
            assert_eq!(
                (class.allocs, class.frees),
                (allocated[index], allocated[index])
            );
            assert_eq!(class.exhausted, refused[index]);
        }
    }
    pool.trim();
    assert_eq!(pool.stats().committed_bytes, 0);
    let grown = process::size("VmRSS").saturating_sub(begun);
    assert!(grown <= 1 << 20, "grew by {grown} bytes");
    refused.iter().sum()
}

#[test]
fn memory_does_not_grow_and_counters_stay_exact() {
    long_run(8 << 20, 5, 40_000);
    assert!(long_run(2 << 20, 2, 20_000) > 0, "the cap is met");
}

#[test]
#[ignore = "minutes: ci/faults --long"]
fn memory_does_not_grow_and_counters_stay_exact_for_minutes() {
    long_run(8 << 20, 100, 5_000_000);
}
