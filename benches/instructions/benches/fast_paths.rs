//! Instructions of the fast paths, counted by callgrind, which other programs do not disturb: see
//! `ci/instructions`.
#![allow(missing_docs)]

use gungraun::{library_benchmark, library_benchmark_group, main};
use slab_core::{Chunk, SlabPool};
use slab_net::{Packet, PacketBuf, PacketPool};
use std::hint::black_box;

/// Chunks allocated and freed beforehand, so that the thread's cache has chunks and everything that happens
/// only once is done.
const WARM: usize = 64;

fn pool() -> SlabPool {
    let pool = SlabPool::builder().name("bench").build().expect("valid");
    for len in [64, 2048] {
        let held: Vec<_> = (0..WARM).map(|_| pool.try_alloc(len)).collect();
        drop(held);
    }
    pool
}

fn chunk() -> (SlabPool, Chunk) {
    let pool = pool();
    let chunk = pool.try_alloc(2048).expect("it has room");
    (pool, chunk)
}

// The pool is kept, so that dropping it is not measured.
#[library_benchmark]
#[bench::of_64(64, pool())]
#[bench::of_2048(2048, pool())]
fn alloc(len: usize, pool: SlabPool) -> (SlabPool, Option<Chunk>) {
    let chunk = black_box(&pool).try_alloc(black_box(len)).ok();
    (pool, chunk)
}

#[library_benchmark]
#[bench::of_2048(chunk())]
fn free((pool, chunk): (SlabPool, Chunk)) -> SlabPool {
    drop(black_box(chunk));
    pool
}

fn packets() -> PacketPool {
    let pool = PacketPool::builder().build().expect("valid");
    let held: Vec<_> = (0..WARM).map(|_| pool.try_alloc(2048)).collect();
    drop(held);
    pool
}

fn buffer() -> (PacketPool, PacketBuf) {
    let pool = packets();
    let mut buffer = pool.try_alloc(2048).expect("it has room");
    buffer.extend_from_slice(&[7; 64]);
    (pool, buffer)
}

fn packet() -> (PacketPool, Packet) {
    let (pool, buffer) = buffer();
    (pool, buffer.freeze())
}

fn shared() -> (PacketPool, Packet, Packet) {
    let (pool, packet) = packet();
    let clone = packet.clone();
    (pool, packet, clone)
}

#[library_benchmark]
#[bench::of_2048(packets())]
fn packet_alloc(pool: PacketPool) -> (PacketPool, Option<PacketBuf>) {
    let buffer = black_box(&pool).try_alloc(black_box(2048)).ok();
    (pool, buffer)
}

#[library_benchmark]
#[bench::of_2048(buffer())]
fn freeze((pool, buffer): (PacketPool, PacketBuf)) -> (PacketPool, Packet) {
    let packet = black_box(buffer).freeze();
    (pool, packet)
}

// A packet that is not shared yet.
#[library_benchmark]
#[bench::first(packet())]
fn clone_first((pool, packet): (PacketPool, Packet)) -> (PacketPool, Packet, Packet) {
    let clone = black_box(&packet).clone();
    (pool, packet, clone)
}

#[library_benchmark]
#[bench::of_two(shared())]
fn clone(
    (pool, packet, other): (PacketPool, Packet, Packet),
) -> (PacketPool, Packet, Packet, Packet) {
    let clone = black_box(&packet).clone();
    (pool, packet, other, clone)
}

// A packet that is shared.
#[library_benchmark]
#[bench::of_two(shared())]
fn drop_clone((pool, packet, clone): (PacketPool, Packet, Packet)) -> (PacketPool, Packet) {
    drop(black_box(clone));
    (pool, packet)
}

// The last reference, which gives the chunk back.
#[library_benchmark]
#[bench::last(packet())]
fn drop_packet((pool, packet): (PacketPool, Packet)) -> PacketPool {
    drop(black_box(packet));
    pool
}

library_benchmark_group!(
    name = fast_paths,
    benchmarks = [
        alloc,
        free,
        packet_alloc,
        freeze,
        clone_first,
        clone,
        drop_clone,
        drop_packet
    ]
);

main!(library_benchmark_groups = fast_paths);
