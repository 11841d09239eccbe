//! Millions of operations: memory and counters at the end are what they were after the start.
//! Alone in its file, and so in its process, because it looks at the process's resident memory.
#![cfg(all(target_os = "linux", not(miri), not(slab_asan), not(slab_tsan)))]

use slab_core::{Chunk, SizeClasses, SlabPool};
use std::sync::mpsc;
use std::thread;

const THREADS: u64 = 3;

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Allocates, frees and hands over at random, `operations` times on each thread.
fn run(pool: &SlabPool, seed: u64, operations: u64) {
    let (send, receive) = mpsc::sync_channel::<Chunk>(1000);
    thread::scope(|scope| {
        let freeing = scope.spawn(move || receive.into_iter().for_each(drop));
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let send = send.clone();
                scope.spawn(move || {
                    let mut random = seed * THREADS + thread + 1;
                    let mut held = Vec::with_capacity(300);
                    for _ in 0..operations {
                        // xorshift64
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let place = (random >> 32) as usize;
                        match random % 16 {
                            0..=8 if held.len() < 300 => {
                                held.extend(pool.try_alloc([64, 1536, 9216][place % 3]));
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
                })
            })
            .collect();
        workers.into_iter().for_each(|one| one.join().unwrap());
        drop(send);
        freeing.join().unwrap();
    });
}

fn long_run(rounds: u64, operations: u64) {
    let pool = SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[64, 1536, 9216]).unwrap())
        .max_memory(8 << 20)
        .build()
        .unwrap();
    run(&pool, 1, operations);
    pool.trim();
    let begun = resident();
    for round in 2..=rounds {
        run(&pool, round, operations);
        let stats = pool.stats();
        assert_eq!(stats.in_use(), 0);
        for class in stats.classes() {
            assert_eq!(class.allocs, class.frees);
        }
    }
    pool.trim();
    assert_eq!(pool.stats().committed_bytes, 0);
    let grown = resident().saturating_sub(begun);
    assert!(grown <= 1 << 20, "grew by {grown} bytes");
}

#[test]
fn memory_and_counters_stay_where_they_were() {
    long_run(5, 40_000);
}

#[test]
#[ignore = "minutes: ci/faults --long"]
fn memory_and_counters_stay_where_they_were_for_long() {
    long_run(100, 5_000_000);
}
