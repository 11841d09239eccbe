//! A pool without memory: what arrives is dropped and counted, and receiving recovers.

use crate::refused::assert_refusals_wake;
use crate::udp_common::warnings::{field, on_event};
use crate::udp_common::{exhaust, vacate};
use crate::{HANG, LOOPBACK, OFF, bind, bound, builder, pool};
use slab_net::udp::{Coalescing, Transmit};
use slab_net::{PacketPool, SizeClasses};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[tokio::test]
async fn an_exhausted_pool_drops_and_counts_and_receiving_recovers() {
    let pool = pool(4);
    let Some(mut receiver) = bind(&pool, Coalescing::On) else {
        return;
    };
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let full = vec![5; 54 * 1200];
    let transmit = Transmit::new(&full, receiver.local_addr()).segment_size(1200);
    for round in 1..=3_u64 {
        let mut chunks = exhaust(&pool);
        let mut held = Vec::new();
        // Lent buffers come back full and are kept; the rest is dropped.
        for _ in 0..40 {
            sender.send(&transmit).await.unwrap();
            for _ in 0..4 {
                tokio::select! {
                    biased;
                    batch = receiver.recv_batch() => held.push(batch.unwrap()),
                    () = tokio::task::yield_now() => {}
                }
            }
        }
        while monitor.stats().received_datagrams < round * 40 * 54 + (round - 1) {
            tokio::select! {
                biased;
                batch = receiver.recv_batch() => held.push(batch.unwrap()),
                () = tokio::task::yield_now() => {}
            }
        }
        assert!(monitor.stats().dropped_no_memory > 0);
        assert!(
            held.iter()
                .all(|batch| batch.contents().iter().all(|&b| b == 5))
        );
        chunks.clear();
        held.clear();
        let after = Transmit::new(b"after", receiver.local_addr());
        sender.send(&after).await.unwrap();
        assert_eq!(receiver.recv_batch().await.unwrap().contents(), b"after");
    }
    drop(receiver);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// More is queued than one read drops, and nothing follows that would wake the receiver.
#[tokio::test]
async fn a_waiting_receiver_drains_the_socket_without_memory() {
    let pool = pool(4);
    let Some(mut receiver) = bind(&pool, OFF) else {
        return;
    };
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let to = receiver.local_addr();
    let chunks = exhaust(&pool);
    let mut held = Vec::new();
    while receiver.held_bytes() > 0 {
        sender.send(&Transmit::new(&[1; 1500], to)).await.unwrap();
        held.push(receiver.recv_batch().await.unwrap());
    }
    for _ in 0..300 {
        sender.send(&Transmit::new(b"x", to)).await.unwrap();
    }
    let receiving = tokio::spawn(async move { receiver.recv_batch().await });
    let all_dropped = async {
        while monitor.stats().dropped_no_memory < 300 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let all_dropped = tokio::time::timeout(HANG, all_dropped).await;
    all_dropped.expect("the receiver stalled");
    drop((chunks, held));
    sender.send(&Transmit::new(b"after", to)).await.unwrap();
    assert_eq!(receiving.await.unwrap().unwrap().contents(), b"after");
}

/// The class of the ring's buffers is exhausted, but not the classes that single system calls read into.
#[tokio::test]
async fn reads_without_the_ring_keep_no_buffers() {
    const RING: usize = 2048;
    let pool = pool(4);
    let slab = pool.slab();
    let Some(mut receiver) = bind(&pool, OFF) else {
        return;
    };
    let (sender, to) = (receiver.sender(), receiver.local_addr());
    // One slab each, so that they have free chunks when everything else is in the ring's class.
    let others = [slab.try_alloc(100).unwrap(), slab.try_alloc(1500).unwrap()];
    let mut taken: Vec<_> = std::iter::from_fn(|| slab.try_alloc(RING).ok()).collect();
    let mut held = Vec::new();
    for _ in 0..32 {
        sender.send(&Transmit::new(&[1; 1500], to)).await.unwrap();
        held.push(receiver.recv_batch().await.unwrap());
    }
    assert_eq!(receiver.held_bytes(), 0, "nothing is lent");
    // Each time as many as a call has buffers for, and all are copied out of them.
    for burst in [2, 4, 8, 16, 32] {
        for _ in 0..burst {
            sender.send(&Transmit::new(&[2; 100], to)).await.unwrap();
        }
        for _ in 0..burst {
            let batch = match burst {
                4 | 16 => receiver.try_recv_batch().unwrap().expect("it is queued"),
                _ => receiver.recv_batch().await.unwrap(),
            };
            assert_eq!(batch.contents(), [2; 100]);
        }
        assert_eq!(receiver.held_bytes(), 0);
    }
    taken.clear();
    sender.send(&Transmit::new(b"after", to)).await.unwrap();
    assert_eq!(receiver.recv_batch().await.unwrap().contents(), b"after");
    assert_eq!(receiver.held_bytes(), 32 * RING);
    drop((others, held, receiver));
    assert_eq!(slab.stats().in_use(), 0);
}

/// The socket is then read by readiness: to tokio it is readable ever after.
#[tokio::test]
async fn without_the_ring_a_receiver_that_was_shut_down_delivers_what_is_queued_and_fails() {
    let pool = pool(4);
    let slab = pool.slab();
    let Some(mut receiver) = bind(&pool, OFF) else {
        return;
    };
    let (sender, to) = (receiver.sender(), receiver.local_addr());
    // As above.
    let _others = [slab.try_alloc(100).unwrap(), slab.try_alloc(1500).unwrap()];
    let _taken: Vec<_> = std::iter::from_fn(|| slab.try_alloc(2048).ok()).collect();
    let mut held = Vec::new();
    for _ in 0..32 {
        sender.send(&Transmit::new(&[1; 1500], to)).await.unwrap();
        held.push(receiver.recv_batch().await.unwrap());
    }
    assert_eq!(receiver.held_bytes(), 0, "nothing is lent");
    sender.send(&Transmit::new(&[2; 100], to)).await.unwrap();
    let _ = socket2::SockRef::from(&receiver).shutdown(std::net::Shutdown::Read);
    assert_eq!(receiver.recv_batch().await.unwrap().contents(), [2; 100]);
    let received = tokio::time::timeout(HANG, receiver.recv_batch()).await;
    let error = received.expect("tries for ever").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
}

/// More than the ring has buffers for, and none is delivered.
#[tokio::test]
async fn try_recv_batch_reads_past_dropped_datagrams() {
    let pool = pool(4);
    let builder = builder(&pool, Coalescing::Off { max_datagram: 1000 });
    let Some(mut receiver) = bound(builder) else {
        return;
    };
    let (sender, to) = (receiver.sender(), receiver.local_addr());
    for _ in 0..100 {
        sender.send(&Transmit::new(&[1; 1001], to)).await.unwrap();
    }
    sender.send(&Transmit::new(&[1; 1000], to)).await.unwrap();
    let batch = receiver
        .try_recv_batch()
        .unwrap()
        .expect("a datagram is queued");
    assert_eq!(batch.contents(), [1; 1000]);

    // With the pool exhausted, and all lent chunks retained.
    let chunks = exhaust(&pool);
    let mut held = Vec::new();
    while receiver.held_bytes() > 0 {
        sender.send(&Transmit::new(&[1; 1000], to)).await.unwrap();
        held.push(receiver.recv_batch().await.unwrap());
    }
    for _ in 0..300 {
        sender.send(&Transmit::new(b"x", to)).await.unwrap();
    }
    assert!(receiver.try_recv_batch().unwrap().is_none());
    let stats = receiver.monitor().stats();
    assert_eq!(
        (stats.dropped_truncated, stats.dropped_no_memory),
        (100, 300)
    );
    drop((batch, chunks, held, receiver));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// It is told of the slab that is taken for the copy of a short datagram.
#[tokio::test]
async fn a_subscriber_that_panics_at_a_copy_leaves_none_uncounted() {
    let classes = SizeClasses::explicit(&[128, 2048]).unwrap();
    let of = PacketPool::builder().size_classes(classes);
    let pool = of.max_memory(1 << 20).build().unwrap();
    let Some(mut receiver) = bind(&pool, OFF) else {
        return;
    };
    let (sender, monitor, to) = (receiver.sender(), receiver.monitor(), receiver.local_addr());
    let panicked = AtomicBool::new(false);
    let _watching = on_event(tracing::Level::DEBUG, move |event| {
        let chunk = field(event, "chunk_bytes");
        let again = chunk.as_deref() != Some("128") || panicked.swap(true, Ordering::Relaxed);
        assert!(again, "a subscriber panics");
    });
    for len in [1400, 10, 11] {
        let sent = sender.send(&Transmit::new(&[1; 1400][..len], to)).await;
        sent.unwrap();
    }
    let read = catch_unwind(AssertUnwindSafe(|| receiver.try_recv_batch()));
    assert!(read.is_err(), "at the copy's slab");
    for len in [1400, 11] {
        let batch = receiver.try_recv_batch().unwrap().expect("it was read");
        assert_eq!(batch.contents().len(), len);
    }
    let stats = monitor.stats();
    assert_eq!((stats.received_datagrams, stats.dropped()), (3, 1));
    assert_eq!(stats.received_chunk_bytes, 2048 + 128);
    let of_memory = (stats.dropped_no_memory, stats.dropped_no_memory_bytes);
    assert_eq!(of_memory, (1, 10));
}

/// The socket is then read by readiness, and to tokio such an error is no reason to wake anybody.
#[tokio::test]
async fn connection_refused_wakes_who_receives_without_memory() {
    let pool = pool(4);
    let peer = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    let gone = peer.local_addr().unwrap();
    let Some(mut client) = bound(builder(&pool, OFF).connect(gone)) else {
        return;
    };
    let _chunks = exhaust(&pool);
    // Lent buffers come back full and are kept, until no request is under way.
    let mut held = Vec::new();
    let monitor = client.monitor();
    while monitor.stats().dropped_no_memory == 0 {
        peer.send_to(&[1; 1500], client.local_addr()).unwrap();
        held.extend(client.try_recv_batch().unwrap());
    }
    while let Some(batch) = client.try_recv_batch().unwrap() {
        held.push(batch);
    }
    vacate(&peer);
    assert_refusals_wake(&mut client, gone).await;
}

/// A receiver that has one buffer makes do.
#[tokio::test]
async fn buffers_beyond_the_first_are_no_refusals() {
    let pool = pool(4);
    // Room for four buffers.
    let mut held = exhaust(&pool);
    held.drain(..4);
    let refused = || {
        let stats = pool.slab().stats();
        stats
            .classes()
            .iter()
            .map(|class| class.exhausted)
            .sum::<u64>()
    };
    let before = refused();
    let Some(mut receiver) = bind(&pool, Coalescing::On) else {
        return;
    };
    let full = vec![5; 40_000];
    for _ in 0..10 {
        let transmit = Transmit::new(&full, receiver.local_addr());
        receiver.sender().send(&transmit).await.unwrap();
        assert_eq!(receiver.recv_batch().await.unwrap().contents(), full);
    }
    assert_eq!(
        (refused(), receiver.monitor().stats().dropped_no_memory),
        (before, 0)
    );
    drop(held);
}
