//! In the steady state nothing is allocated from the heap: not for a packet, a batch, or a wait. A ring gives back what
//! it took, unless the kernel may still use it.

#[allow(dead_code, reason = "not every system has rings")]
#[path = "rudp/common/counting.rs"]
mod counting;
#[cfg(all(target_os = "linux", feature = "io-uring"))]
#[path = "udp/common/mod.rs"]
mod udp_common;

use slab_net::PacketPool;
use slab_net::pipeline::{Overflow, queue};
use slab_net::udp::{Coalescing, Transmit, UdpReceiver};
use std::net::{Ipv4Addr, SocketAddr};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const RUN: usize = 50;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Out {
    Borrowed,
    Packets,
    Bytes,
}

/// Receives, queues and consumes that many datagrams, and returns the number of allocations.
async fn allocations(coalescing: Coalescing, out: Out, datagrams: usize) -> u64 {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let mut receiver = UdpReceiver::builder(&pool)
        .coalescing(coalescing)
        .receive_buffer_bytes(1 << 20)
        .bind(LOOPBACK)
        .unwrap();
    let sender = receiver.sender();
    let (to_consumer, batches) = queue(64.try_into().unwrap(), Overflow::Wait);
    let payload = vec![1; RUN * 1200];
    let run = Transmit::new(&payload, receiver.local_addr()).segment_size(1200);
    let mut before = 0;
    let mut consumed = 0;
    let mut read = Vec::with_capacity(64);
    let warm_up = 10 * RUN;
    while consumed < warm_up + datagrams {
        if consumed == warm_up {
            before = counting::allocations();
        }
        sender.send(&run).await.unwrap();
        let mut left = RUN;
        while left > 0 {
            // Sometimes the receive has to wait for the socket, and is dropped.
            tokio::select! {
                count = receiver.recv_batches(&mut read) => drop(count.unwrap()),
                () = tokio::task::yield_now() => {}
            }
            for batch in read.drain(..) {
                left -= batch.datagrams();
                to_consumer.send(batch).await.unwrap();
            }
            while let Some(batch) = batches.try_recv() {
                consumed += batch.datagrams();
                let len: usize = match out {
                    Out::Borrowed => batch.iter().map(|d| d.packet.len()).sum(),
                    Out::Packets => batch.into_packets().map(|packet| packet.len()).sum(),
                    Out::Bytes => batch.into_bytes().map(|bytes| bytes.len()).sum(),
                };
                assert!(len >= 1200);
            }
        }
    }
    counting::allocations() - before
}

#[test]
fn packets_take_no_heap_allocation_and_bytes_one_per_batch() {
    // A million in the long form.
    let datagrams = match std::env::var_os("SLAB_NET_STRESS_SECONDS") {
        Some(_) => 1_000_000,
        None => 20_000,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    for coalescing in [Coalescing::On, Coalescing::Off { max_datagram: 1500 }] {
        for out in [Out::Borrowed, Out::Packets, Out::Bytes] {
            let found = runtime.block_on(allocations(coalescing, out, datagrams));
            match (out, coalescing) {
                (Out::Bytes, Coalescing::On) if cfg!(target_os = "linux") => {
                    assert_eq!(found as usize, datagrams / RUN, "{out:?} {coalescing:?}");
                }
                (Out::Bytes, _) => assert_eq!(found as usize, datagrams),
                _ => assert_eq!(found, 0, "{out:?} {coalescing:?}"),
            }
        }
    }
}

#[cfg(all(target_os = "linux", feature = "io-uring"))]
#[tokio::test]
async fn a_ring_gives_its_memory_back() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let off = Coalescing::Off { max_datagram: 1500 };
    let mut held = 0;
    // The first takes what stays for all that follow.
    for round in 0..5 {
        let receiver = UdpReceiver::builder(&pool).coalescing(off).io_uring(true);
        drop(receiver.bind(LOOPBACK).unwrap());
        // The runtime has to let go of the sockets.
        for _ in 0..2 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        match round {
            0 | 1 => held = counting::bytes(),
            _ => assert_eq!(counting::bytes(), held),
        }
    }
}

/// The kernel would take what lies there next for buffers, and write to them.
#[cfg(all(target_os = "linux", feature = "io-uring"))]
#[tokio::test]
async fn a_ring_whose_request_cannot_be_ended_keeps_what_the_kernel_reads() {
    use udp_common::{fail_syscall, skipped};
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let off = Coalescing::Off { max_datagram: 1500 };
    for ends in [true, false] {
        let receiver = UdpReceiver::builder(&pool).coalescing(off).io_uring(true);
        let receiver = receiver.bind(LOOPBACK).unwrap();
        if !receiver.uses_io_uring() {
            return skipped("io_uring", &std::io::ErrorKind::Unsupported.into());
        }
        let dropped = std::thread::spawn(move || {
            if !ends {
                fail_syscall(libc::SYS_io_uring_enter, libc::EBUSY)?;
            }
            drop(receiver);
            Ok(counting::ring_bytes_freed())
        });
        match dropped.join().unwrap() {
            // 32 entries of 16 bytes.
            Ok(freed) => assert_eq!(freed, if ends { 32 * 16 } else { 0 }),
            Err(why) => return skipped("this thread's system cannot be changed", &why),
        }
    }
}
