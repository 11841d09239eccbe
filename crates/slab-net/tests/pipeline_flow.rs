//! Queues by priority and by flow.

use slab_net::PacketPool;
use slab_net::pipeline::{Overflow, Priority, QueueReceiver, flow_queues, priority_queue};
use slab_net::udp::{Coalescing, PacketBatch, Transmit, UdpReceiver, UdpSender};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Limits only how long a broken test takes to fail.
const HANG: Duration = Duration::from_secs(20);

fn socket() -> (PacketPool, UdpReceiver) {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let socket = UdpReceiver::builder(&pool)
        .coalescing(Coalescing::Off { max_datagram: 100 })
        .bind(LOOPBACK)
        .unwrap();
    (pool, socket)
}

async fn batch(socket: &mut UdpReceiver, bytes: [u8; 2]) -> PacketBatch {
    let to = socket.local_addr();
    let sender = socket.sender();
    sender.send(&Transmit::new(&bytes, to)).await.unwrap();
    socket.recv_batch().await.unwrap()
}

fn priority_of(batch: &PacketBatch) -> Priority {
    match batch.contents()[0] {
        0 => Priority::Low,
        1 => Priority::Normal,
        2 => Priority::High,
        _ => Priority::Critical,
    }
}

fn drain(receiver: &QueueReceiver) -> Vec<[u8; 2]> {
    std::iter::from_fn(|| receiver.try_recv())
        .map(|batch| batch.contents().try_into().unwrap())
        .collect()
}

#[tokio::test]
async fn the_lowest_priority_is_dropped_first_and_delivered_last() {
    let (pool, mut socket) = socket();
    let (sender, receiver) = priority_queue(4.try_into().unwrap(), priority_of);
    let monitor = receiver.monitor();
    let mut offered = 0;
    let arrivals = [
        [1, 0],
        [0, 1],
        [2, 2],
        [0, 3],
        // Full from here on.
        [0, 4],  // nothing below it: dropped itself
        [1, 5],  // instead of [0, 1]
        [3, 6],  // instead of [0, 3]
        [2, 7],  // instead of [1, 0]
        [1, 8],  // nothing below it
        [3, 9],  // instead of [1, 5]
        [3, 10], // instead of [2, 2]
    ];
    for bytes in arrivals {
        sender.send(batch(&mut socket, bytes).await).await.unwrap();
        offered += 1;
    }
    let stats = receiver.monitor().stats();
    assert_eq!((stats.datagrams, stats.capacity_batches), (4, 4));
    assert_eq!(stats.batches, 4);
    assert_eq!((stats.dropped_policy, stats.dropped_queue_full), (5, 2));
    assert_eq!(drain(&receiver), [[3, 6], [3, 9], [3, 10], [2, 7]]);
    let stats = receiver.monitor().stats();
    assert_eq!(stats.delivered + stats.dropped(), offered);
    assert!(socket.try_recv_batch().unwrap().is_none());
    assert_eq!(pool.slab().stats().in_use(), 0);

    // The last consumer takes the queued batches with it.
    sender.send(batch(&mut socket, [1, 1]).await).await.unwrap();
    sender.send(batch(&mut socket, [3, 1]).await).await.unwrap();
    drop(receiver);
    assert!(sender.is_closed());
    assert!(sender.send(batch(&mut socket, [3, 2]).await).await.is_err());
    let stats = monitor.stats();
    assert_eq!((stats.dropped_closed, stats.dropped()), (3, 5 + 2 + 3));
    assert_eq!(stats.dropped_bytes(), 2 * stats.dropped(), "two bytes each");
}

/// Producers and consumers run at once. A place that one releases must belong to exactly one other, or else a
/// lane would be full for a producer that has a place (a debug assertion), or a count would be off.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_contended_priority_queue_keeps_its_bound_and_its_counts() {
    const PRODUCERS: u64 = 3;
    const CONSUMERS: u64 = 2;
    const EACH: u64 = 3000;
    let (sender, receiver) = priority_queue(2.try_into().unwrap(), priority_of);
    let monitor = receiver.monitor();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|_| {
            let sender = sender.clone();
            tokio::spawn(async move {
                let (pool, mut socket) = socket();
                for n in 0..EACH {
                    let batch = batch(&mut socket, [(n % 4) as u8, 0]).await;
                    sender.send(batch).await.unwrap();
                }
                pool
            })
        })
        .collect();
    drop(sender);
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|_| {
            let receiver = receiver.clone();
            tokio::spawn(async move {
                let (mut got, mut looks) = (0, 0);
                while receiver.recv().await.is_some() {
                    got += 1;
                    // A snapshot is not taken at one moment, unless nothing entered in between.
                    let monitor = receiver.monitor();
                    let (before, now) = (monitor.stats(), monitor.stats());
                    if before.enqueued == now.enqueued {
                        // Beyond the capacity of two: batches that are counted late or early.
                        assert!(now.datagrams <= 2 + PRODUCERS + CONSUMERS, "{now:?}");
                        looks += 1;
                    }
                }
                assert!(looks > 0);
                got
            })
        })
        .collect();
    let all = async {
        let mut pools = Vec::new();
        for producer in producers {
            pools.push(producer.await.unwrap());
        }
        let mut got = 0;
        for consumer in consumers {
            got += consumer.await.unwrap();
        }
        (pools, got)
    };
    let (pools, got) = tokio::time::timeout(HANG, all)
        .await
        .unwrap_or_else(|_| panic!("hangs: {:?}", monitor.stats()));
    let stats = monitor.stats();
    assert_eq!(stats.delivered, got);
    assert_eq!(stats.delivered + stats.dropped(), PRODUCERS * EACH);
    assert_eq!(stats.datagrams, 0);
    for pool in pools {
        assert_eq!(pool.slab().stats().in_use(), 0);
    }
}

#[tokio::test]
async fn each_peer_is_served_in_order_by_one_consumer() {
    const PEERS: usize = 40;
    let (pool, mut socket) = socket();
    let (sender, receivers) = flow_queues(
        4.try_into().unwrap(),
        1000.try_into().unwrap(),
        Overflow::DropNewest,
    );
    let monitors: Vec<_> = receivers.iter().map(QueueReceiver::monitor).collect();
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        peers.push(UdpSender::bind(LOOPBACK).unwrap());
    }
    for n in 0..10_u8 {
        for peer in &peers {
            let transmit = Transmit::new(std::slice::from_ref(&n), socket.local_addr());
            peer.send(&transmit).await.unwrap();
            sender
                .send(socket.recv_batch().await.unwrap())
                .await
                .unwrap();
        }
    }
    drop(sender);
    let mut consumer_of = HashMap::new();
    let mut next_of = HashMap::new();
    for (index, receiver) in receivers.iter().enumerate() {
        while let Some(batch) = receiver.recv().await {
            let consumer = *consumer_of.entry(batch.source()).or_insert(index);
            assert_eq!(consumer, index, "one peer at two consumers");
            let next = next_of.entry(batch.source()).or_insert(0_u8);
            assert_eq!(batch.contents(), [*next]);
            *next += 1;
        }
    }
    assert_eq!(next_of.len(), PEERS);
    assert!(next_of.values().all(|&next| next == 10));
    let delivered: Vec<u64> = monitors.iter().map(|m| m.stats().delivered).collect();
    assert_eq!(delivered.iter().sum::<u64>(), 10 * PEERS as u64);
    // Of 40 peers each of the four gets some; by chance one gets none once in 25 000 runs.
    assert!(delivered.iter().all(|&n| n > 0), "{delivered:?}");
    assert!(socket.try_recv_batch().unwrap().is_none());
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// Otherwise a peer could choose its sources so that they all share one queue.
#[tokio::test]
async fn flow_hashing_uses_a_random_key() {
    let (_pool, mut socket) = socket();
    let peers: Vec<_> = (0..40)
        .map(|_| UdpSender::bind(LOOPBACK).unwrap())
        .collect();
    let mut shared = Vec::new();
    for _ in 0..2 {
        let (queues, capacity) = (4.try_into().unwrap(), 40.try_into().unwrap());
        let (sender, receivers) = flow_queues(queues, capacity, Overflow::DropNewest);
        for peer in &peers {
            let transmit = Transmit::new(b"x", socket.local_addr());
            peer.send(&transmit).await.unwrap();
            let batch = socket.recv_batch().await.unwrap();
            // All clones know the same queues.
            sender.clone().send(batch).await.unwrap();
        }
        let sources = |receiver: &QueueReceiver| -> Vec<SocketAddr> {
            let batches = std::iter::from_fn(|| receiver.try_recv());
            batches.map(|batch| batch.source()).collect()
        };
        shared.push(receivers.iter().map(sources).collect::<Vec<_>>());
    }
    assert_ne!(shared[0], shared[1]);
}

#[tokio::test]
async fn a_flow_without_a_consumer_does_not_block_the_others() {
    let (_pool, mut socket) = socket();
    let (sender, mut receivers) = flow_queues(
        2.try_into().unwrap(),
        100.try_into().unwrap(),
        Overflow::Wait,
    );
    let monitors: Vec<_> = receivers.iter().map(QueueReceiver::monitor).collect();
    drop(receivers.pop());
    assert!(!sender.is_closed());
    let (mut arrived, mut refused) = (0, 0);
    for n in 0..40 {
        let peer = UdpSender::bind(LOOPBACK).unwrap();
        let transmit = Transmit::new(b"x", socket.local_addr());
        peer.send(&transmit).await.unwrap();
        let batch = socket.recv_batch().await.unwrap();
        let sent = match n % 2 {
            0 => sender.send(batch).await.is_ok(),
            _ => sender.try_send(batch).is_ok(),
        };
        match sent {
            true => arrived += 1,
            false => refused += 1,
        }
    }
    assert!(arrived > 0 && refused > 0, "{arrived} {refused}");
    assert_eq!(monitors[0].stats().datagrams, arrived);
    assert_eq!(monitors[1].stats().dropped_closed, refused);
    drop(receivers);
    assert!(sender.is_closed());
}

#[tokio::test]
async fn a_batch_whose_priority_panics_is_counted_and_not_queued() {
    let (pool, mut socket) = socket();
    let (sender, receiver) = priority_queue(1.try_into().unwrap(), |batch| {
        if batch.contents()[0] == 9 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        Priority::Normal
    });
    for n in 1..=3 {
        let (to, bad) = (sender.clone(), batch(&mut socket, [9, 9]).await);
        let panicked = tokio::spawn(async move { to.send(bad).await });
        assert!(panicked.await.unwrap_err().is_panic());
        let stats = receiver.monitor().stats();
        assert_eq!(
            (stats.dropped_closed, stats.dropped_closed_bytes),
            (n, 2 * n)
        );
        sender.send(batch(&mut socket, [1, 2]).await).await.unwrap();
        assert_eq!(drain(&receiver), [[1, 2]]);
    }
    drop(socket);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// Whatever the caller's code does, everything in the queue is counted and a consumer is woken for it.
#[tokio::test]
async fn a_panic_during_send_many_loses_no_count_and_no_wake_up() {
    let (pool, mut socket) = socket();
    let panics_at_nine = |batch: &PacketBatch| {
        if batch.contents()[0] == 9 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        Priority::Normal
    };
    // First the priority function panics, then the iterator.
    for iterator in [false, true] {
        let (sender, receiver) = priority_queue(8.try_into().unwrap(), panics_at_nine);
        let monitor = receiver.monitor();
        let consumer = tokio::spawn(async move { receiver.recv().await.unwrap() });
        tokio::task::yield_now().await;
        let mut batches = Vec::new();
        for first in [1, if iterator { 2 } else { 9 }, 3] {
            batches.push(batch(&mut socket, [first, 0]).await);
        }
        let sending = sender.clone();
        let panicked = tokio::spawn(async move {
            let batches = batches.into_iter().inspect(|batch| {
                if iterator && batch.contents()[0] == 2 {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
            });
            sending.send_many(batches).await
        });
        assert!(panicked.await.unwrap_err().is_panic());
        let woken = tokio::time::timeout(Duration::from_secs(20), consumer);
        let got = woken.await.expect("the consumer was not woken").unwrap();
        assert_eq!(got.contents(), [1, 0]);
        let stats = monitor.stats();
        assert_eq!((stats.enqueued, stats.datagrams), (1, 0));
        // Nothing more is known of an iterator that has panicked.
        assert_eq!(stats.dropped_closed, if iterator { 0 } else { 2 });
        drop((sender, got));
    }
    drop(socket);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[tokio::test]
async fn a_send_to_a_flow_that_is_never_polled_is_counted() {
    fn require_send<T: Send>(future: T) -> T {
        future
    }
    let (pool, mut socket) = socket();
    let (queues, capacity) = (2.try_into().unwrap(), 4.try_into().unwrap());
    let (sender, receivers) = flow_queues(queues, capacity, Overflow::DropNewest);
    drop(require_send(sender.send(batch(&mut socket, [0, 0]).await)));
    let many = [
        batch(&mut socket, [0, 1]).await,
        batch(&mut socket, [0, 2]).await,
    ];
    drop(require_send(sender.send_many(many)));
    let stats = receivers.iter().map(|receiver| receiver.monitor().stats());
    let dropped: Vec<_> = stats
        .map(|stats| (stats.dropped_closed, stats.dropped()))
        .collect();
    assert_eq!(
        dropped
            .iter()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)),
        (3, 3)
    );
    drop(socket);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// An iterator over what there is at the moment, in another queue for example, may have more after its end.
#[tokio::test]
async fn send_many_takes_nothing_after_the_end_of_its_iterator() {
    let (pool, mut socket) = socket();
    let capacity = 4.try_into().unwrap();
    let (to_queue, queued) = priority_queue(capacity, priority_of);
    let (to_flow, flows) = flow_queues(1.try_into().unwrap(), capacity, Overflow::Wait);
    for to_flows in [false, true] {
        let now = Some(batch(&mut socket, [0, 1]).await);
        let later = Some(batch(&mut socket, [0, 2]).await);
        let mut looks = [now, None, later].into_iter();
        let available = std::iter::from_fn(|| looks.next().flatten());
        let receiver = if to_flows {
            to_flow.send_many(available).await.unwrap();
            &flows[0]
        } else {
            to_queue.send_many(available).await.unwrap();
            &queued
        };
        assert_eq!(looks.next().flatten().unwrap().contents(), [0, 2]);
        assert_eq!(drain(receiver), [[0, 1]]);
        assert_eq!(receiver.monitor().stats().dropped(), 0);
    }
    drop(socket);
    assert_eq!(pool.slab().stats().in_use(), 0);
}
