//! The path from the socket to a consumer on another thread and back to the pool, echo included, allocates
//! nothing on the heap. Alone in its file, since the global allocator is the whole process's.

use packet_slab::slab_net::pipeline::{Overflow, QueueReceiver, QueueSender, queue};
use packet_slab::slab_net::udp::{UdpReceiver, UdpSender};
use packet_slab::slab_net::{Packet, PacketPool};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: every call goes to `System` with its arguments unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(COUNTED.get().into(), Ordering::Relaxed);
        // SAFETY: the caller keeps `System`'s contract, which is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(COUNTED.get().into(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, new_size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Makes a runtime whose threads' allocations are counted.
fn counted_runtime(threads: usize) -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .on_thread_start(|| COUNTED.set(true))
        .build()
        .unwrap()
}

async fn receive(mut socket: UdpReceiver, to_consumers: QueueSender) {
    let mut batches = Vec::with_capacity(32);
    loop {
        socket.recv_batches(&mut batches).await.unwrap();
        for batch in batches.drain(..) {
            to_consumers.send(batch).await.unwrap();
        }
    }
}

/// Echoes each 16th batch, keeps some packets for a while, drops the others.
async fn consume(
    batches: QueueReceiver,
    echo: UdpSender,
    pool: PacketPool,
    consumed: Arc<AtomicU64>,
) {
    let mut kept: VecDeque<Packet> = VecDeque::with_capacity(100);
    let mut number: u64 = 0;
    while let Some(batch) = batches.recv().await {
        number += 1;
        if number.is_multiple_of(16) {
            echo.send(&batch.reply()).await.unwrap();
        }
        let packets = batch.into_packets();
        let count = packets.len() as u64;
        for (index, packet) in packets.enumerate() {
            if index % 50 == 0 {
                if kept.len() == 100 {
                    kept.pop_front();
                }
                kept.push_back(pool.compact(packet));
            }
        }
        consumed.fetch_add(count, Ordering::Release);
    }
}

/// Sends so many calls of so many datagrams, and waits for the consumers so that the kernel drops nothing.
fn send(from: &std::net::UdpSocket, to: SocketAddr, datagrams: u64, consumed: &AtomicU64) {
    let payload = [7; 1200];
    let before = consumed.load(Ordering::Acquire);
    let start = Instant::now();
    for sent in 0..datagrams {
        // Two different sizes use two different classes.
        let len = if sent % 3 == 0 { 100 } else { 1200 };
        from.send_to(&payload[..len], to).unwrap();
        while before + sent + 1 - consumed.load(Ordering::Acquire) > 32 {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "packets were lost"
            );
            std::thread::yield_now();
        }
    }
    while consumed.load(Ordering::Acquire) < before + datagrams {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "packets were lost"
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_packet_costs_no_heap_allocation_from_socket_to_pool() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let (receiving, consuming) = (counted_runtime(1), counted_runtime(2));
    let socket = {
        let _runtime = receiving.enter();
        UdpReceiver::bind("127.0.0.1:0".parse().unwrap(), &pool).unwrap()
    };
    let (server, monitor, echo) = (socket.local_addr(), socket.monitor(), socket.sender());
    let (to_consumers, batches) = queue(256.try_into().unwrap(), Overflow::DropNewest);
    let consumed = Arc::<AtomicU64>::default();
    let consumers: Vec<_> = (0..2)
        .map(|_| {
            let counter = Arc::clone(&consumed);
            consuming.spawn(consume(
                batches.clone(),
                echo.clone(),
                pool.clone(),
                counter,
            ))
        })
        .collect();
    let receiver = receiving.spawn(receive(socket, to_consumers));

    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    send(&client, server, 2_000, &consumed);
    let (before, received) = (
        ALLOCATIONS.load(Ordering::Relaxed),
        monitor.stats().received_datagrams,
    );
    // The counter works: runtimes and tasks have allocated.
    assert!(before > 0);
    send(&client, server, 20_000, &consumed);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(monitor.stats().received_datagrams - received, 20_000);
    // These are tokio's: the first task that uses up its budget on a worker allocates that worker's list of
    // tasks to run later. This may happen after the warm-up, once for each of three workers.
    assert!(allocations <= 3, "{allocations} in 20 000 packets");
    assert!(monitor.stats().sent_datagrams > 1_000);

    // Everything is back in the pool.
    receiver.abort();
    assert!(receiving.block_on(receiver).unwrap_err().is_cancelled());
    for consumer in consumers {
        consuming.block_on(consumer).unwrap();
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}
