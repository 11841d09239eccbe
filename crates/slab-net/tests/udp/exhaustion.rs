//! A pool at its cap: datagrams without memory are counted, and the receiver recovers.

use crate::common::{HANG, LOOPBACK, bind, exhaust};
use slab_net::udp::{Coalescing, PacketBatch, Transmit, UdpReceiver};
use slab_net::{PacketPool, SizeClasses};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

fn small_pool() -> PacketPool {
    PacketPool::builder().max_memory(1 << 20).build().unwrap()
}

#[tokio::test]
async fn datagrams_without_memory_are_counted_and_receiving_recovers() {
    for coalescing in [Coalescing::On, Coalescing::Off { max_datagram: 1500 }] {
        let pool = small_pool();
        let mut receiver = bind(&pool, coalescing);
        let (sender, monitor) = (receiver.sender(), receiver.monitor());
        let to = receiver.local_addr();
        let five = Transmit::new(&[5; 5000], to).segment_size(1000);
        for round in 1..=3 {
            // With nothing to read the receiver holds no buffer, so it is left with none.
            assert!(receiver.try_recv_batch().unwrap().is_none());
            let held = exhaust(&pool);
            sender.send(&five).await.unwrap();
            sender.send(&Transmit::new(b"", to)).await.unwrap();
            sender.send(&Transmit::new(b"one", to)).await.unwrap();
            // It drops them and waits, without an error and without spinning.
            while monitor.stats().dropped_no_memory < round * 7 {
                tokio::select! {
                    biased;
                    batch = receiver.recv_batch() => panic!("no memory for {batch:?}"),
                    () = tokio::task::yield_now() => {}
                }
            }
            assert!(receiver.try_recv_batch().unwrap().is_none());
            drop(held);
            sender.send(&Transmit::new(b"after", to)).await.unwrap();
            let batch = receiver.recv_batch().await.unwrap();
            assert_eq!(batch.contents(), b"after");
            let stats = monitor.stats();
            assert_eq!(stats.received_datagrams, round * 8);
            assert_eq!(stats.dropped_no_memory, round * 7);
            assert_eq!(stats.dropped(), round * 7);
            assert_eq!(stats.received_bytes, round * 5008);
            assert_eq!(stats.dropped_no_memory_bytes, round * 5003);
            assert_eq!(stats.dropped_bytes(), round * 5003);
            // Only one is delivered each time, in a chunk of its own.
            assert_eq!(
                stats.received_chunk_bytes,
                round * batch.chunk_bytes() as u64
            );
        }
        drop(receiver);
        assert_eq!(pool.slab().stats().in_use(), 0);
    }
}

/// Otherwise a sender could keep the caller's thread for as long as it sends.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn try_recv_batch_reads_only_so_much_in_vain() {
    // More than twice as many as that many reads have buffers for.
    const SENT: u64 = 450;
    let pool = small_pool();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1 });
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    for _ in 0..SENT {
        let too_long = Transmit::new(b"12", receiver.local_addr());
        sender.send(&too_long).await.unwrap();
    }
    assert!(receiver.try_recv_batch().unwrap().is_none());
    let dropped = monitor.stats().dropped_truncated;
    assert!((1..SENT).contains(&dropped), "{dropped}");
    // Nothing more arrives, so everything can be read.
    receiver.stop().unwrap();
    assert!(receiver.try_recv_batch().unwrap().is_none());
    let stats = monitor.stats();
    assert_eq!(
        (stats.received_datagrams, stats.dropped_truncated),
        (SENT, SENT)
    );
}

#[tokio::test]
async fn a_flood_into_a_full_pool_stays_at_the_cap_and_is_accounted_for() {
    let pool = small_pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let to = receiver.local_addr();
    let full = vec![3; 64_800];
    let transmit = Transmit::new(&full, to).segment_size(1200);
    // Received batches are all kept: after some 16 super-buffers the pool is at its cap.
    let mut kept: Vec<PacketBatch> = Vec::new();
    for _ in 0..40 {
        sender.send(&transmit).await.unwrap();
        let before = monitor.stats().received_datagrams;
        while monitor.stats().received_datagrams < before + 54 {
            tokio::select! {
                biased;
                batch = receiver.recv_batch() => kept.push(batch.unwrap()),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    while let Some(batch) = receiver.try_recv_batch().unwrap() {
        kept.push(batch);
    }
    let delivered: u64 = kept.iter().map(|batch| batch.datagrams() as u64).sum();
    let bytes: u64 = kept.iter().map(|batch| batch.contents().len() as u64).sum();
    let chunks: u64 = kept.iter().map(|batch| batch.chunk_bytes() as u64).sum();
    let stats = monitor.stats();
    assert_eq!(stats.received_datagrams, 40 * 54);
    assert!(stats.dropped_no_memory > 0);
    assert_eq!(
        delivered + stats.dropped_no_memory,
        stats.received_datagrams
    );
    assert_eq!(bytes + stats.dropped_no_memory_bytes, stats.received_bytes);
    assert_eq!(chunks, stats.received_chunk_bytes);
    assert!(pool.slab().stats().committed_bytes <= pool.slab().max_memory());
    assert!(
        kept.iter()
            .all(|batch| batch.contents().iter().all(|&b| b == 3))
    );
    kept.clear();
    sender.send(&transmit).await.unwrap();
    assert_eq!(receiver.recv_batch().await.unwrap().datagrams(), 54);
    drop(receiver);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Wakes(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// While the pool is exhausted, one poll makes a bounded number of system calls, however much is queued; and
/// with nothing queued the task is not woken.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_exhausted_pool_bounds_reads_per_poll_and_wakes_nobody_in_vain() {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::task::Context;

    let pool = small_pool();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1500 });
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let _held = exhaust(&pool);
    for _ in 0..300 {
        let one = Transmit::new(&[1; 100], receiver.local_addr());
        sender.send(&one).await.unwrap();
    }
    let wakes = Arc::<Wakes>::default();
    let waker = Arc::clone(&wakes).into();
    let mut cx = Context::from_waker(&waker);
    // The runtime has to learn of the readiness first.
    tokio::task::yield_now().await;
    let mut polls = 0;
    while monitor.stats().dropped_no_memory < 300 {
        let before = monitor.stats();
        assert!(receiver.poll_recv_batch(&mut cx).is_pending());
        let after = monitor.stats();
        assert!(after.receive_calls - before.receive_calls <= 4);
        assert!(after.dropped_no_memory - before.dropped_no_memory <= 4 * 32);
        polls += 1;
        tokio::task::yield_now().await;
    }
    assert!(polls >= 3, "{polls}");
    let calls = monitor.stats().receive_calls;
    assert!((300 / 32..=300).contains(&calls), "{calls}");
    // Nothing is left: the receiver finds that out once, and is not woken from then on.
    while receiver.poll_recv_batch(&mut cx).is_pending() {
        let before = wakes.0.load(Ordering::SeqCst);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        if wakes.0.load(Ordering::SeqCst) == before {
            break;
        }
    }
    let quiet = wakes.0.load(Ordering::SeqCst);
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(wakes.0.load(Ordering::SeqCst), quiet);
}

/// More is queued than one read drops, and nothing follows that would wake the receiver.
#[tokio::test]
async fn a_waiting_receiver_drains_the_socket_without_memory() {
    let pool = small_pool();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1500 });
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let to = receiver.local_addr();
    let held = exhaust(&pool);
    for _ in 0..300 {
        sender.send(&Transmit::new(&[1; 100], to)).await.unwrap();
    }
    let receiving = tokio::spawn(async move { receiver.recv_batch().await });
    let all_dropped = async {
        while monitor.stats().dropped_no_memory < 300 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let all_dropped = tokio::time::timeout(HANG, all_dropped).await;
    all_dropped.expect("the receiver stalled");
    drop(held);
    sender.send(&Transmit::new(b"after", to)).await.unwrap();
    assert_eq!(receiving.await.unwrap().unwrap().contents(), b"after");
}

/// What the kernel dropped is logged between reading datagrams and dropping them.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_subscriber_that_panics_at_a_drop_leaves_none_uncounted() {
    use crate::common::warnings::{field, on_warning};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let panicked = Arc::new(AtomicBool::new(false));
    let once = Arc::clone(&panicked);
    let others = Arc::<AtomicBool>::default();
    let logged = Arc::clone(&others);
    let _watching = on_warning(move |event| {
        let reason = field(event, "reason");
        let kernel = reason.as_deref() == Some("kernel");
        logged.fetch_or(reason.as_deref() == Some("no_memory"), Ordering::Relaxed);
        assert!(
            !kernel || once.swap(true, Ordering::Relaxed),
            "a subscriber panics"
        );
    });
    let pool = small_pool();
    let builder = UdpReceiver::builder(&pool).receive_buffer_bytes(1 << 14);
    let mut receiver = builder.bind(LOOPBACK).unwrap();
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let held = exhaust(&pool);
    while !panicked.load(Ordering::Relaxed) {
        for _ in 0..100 {
            let transmit = Transmit::new(&[1; 1000], receiver.local_addr());
            sender.send(&transmit).await.unwrap();
        }
        let _ = catch_unwind(AssertUnwindSafe(|| receiver.try_recv_batch()));
    }
    drop(held);
    let mut got = 0;
    while let Some(batch) = receiver.try_recv_batch().unwrap() {
        got += batch.datagrams() as u64;
    }
    let stats = monitor.stats();
    assert!(stats.dropped_no_memory > 0, "{stats:?}");
    assert!(others.load(Ordering::Relaxed), "that is logged, too");
    assert_eq!(stats.received_datagrams, got + stats.dropped(), "{stats:?}");
}

/// The log comes last, when whatever was read with it is delivered and counted.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_subscriber_that_panics_at_a_truncated_datagram_costs_no_other() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let panicked = AtomicBool::new(false);
    let _watching = crate::common::warnings::on_warning(move |_| {
        let again = panicked.swap(true, Ordering::Relaxed);
        assert!(again, "a subscriber panics");
    });
    let pool = small_pool();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 100 });
    let (sender, monitor, to) = (receiver.sender(), receiver.monitor(), receiver.local_addr());
    let send = async |lens: &[usize]| {
        for &len in lens {
            let sent = sender.send(&Transmit::new(&[1; 101][..len], to)).await;
            sent.unwrap();
        }
    };
    let next = |receiver: &mut UdpReceiver| {
        let batch = receiver.try_recv_batch().unwrap();
        batch.map(|batch| batch.contents().len())
    };
    // Makes the next read one into four buffers.
    send(&[80, 81]).await;
    assert_eq!(
        [next(&mut receiver), next(&mut receiver)],
        [Some(80), Some(81)]
    );
    send(&[99, 101, 98]).await;
    let panicked = catch_unwind(AssertUnwindSafe(|| next(&mut receiver)));
    assert!(panicked.is_err());
    assert_eq!(
        [next(&mut receiver), next(&mut receiver)],
        [Some(99), Some(98)]
    );
    let stats = monitor.stats();
    assert_eq!((stats.received_datagrams, stats.dropped()), (5, 1));
    assert_eq!((stats.dropped_truncated, stats.receive_calls), (1, 2));
    assert_eq!(stats.received_bytes, 80 + 81 + 99 + 100 + 98);
}

/// It is told of the slab that is taken for the copy of a short datagram.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_subscriber_that_panics_at_a_copy_leaves_none_uncounted() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let classes = SizeClasses::explicit(&[128, 2048]).unwrap();
    let builder = PacketPool::builder().size_classes(classes);
    let pool = builder.max_memory(1 << 20).build().unwrap();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1500 });
    let (sender, monitor, to) = (receiver.sender(), receiver.monitor(), receiver.local_addr());
    let panicked = AtomicBool::new(false);
    let _watching = crate::common::warnings::on_event(tracing::Level::DEBUG, move |event| {
        let chunk = crate::common::warnings::field(event, "chunk_bytes");
        let again = chunk.as_deref() != Some("128") || panicked.swap(true, Ordering::Relaxed);
        assert!(again, "a subscriber panics");
    });
    for len in [1400, 10, 11, 12] {
        let sent = sender.send(&Transmit::new(&[1; 1400][..len], to)).await;
        sent.unwrap();
    }
    // Reads the first two.
    let read = catch_unwind(AssertUnwindSafe(|| receiver.try_recv_batch()));
    assert!(read.is_err(), "at the copy's slab");
    for len in [1400, 11, 12] {
        let batch = receiver.try_recv_batch().unwrap().expect("it was read");
        assert_eq!(batch.contents().len(), len);
        let stats = monitor.stats();
        let read = if len == 1400 { 2 } else { 4 };
        assert_eq!((stats.received_datagrams, stats.dropped()), (read, 1));
        assert_eq!(
            (stats.receive_calls, stats.received_chunk_bytes),
            (read / 2, 2048 + (read - 2) * 128)
        );
        assert_eq!(
            (stats.dropped_no_memory, stats.dropped_no_memory_bytes),
            (1, 10)
        );
    }
}

/// Short datagrams are copied to smaller chunks to save memory; where none is free, they stay where they are.
#[tokio::test]
async fn a_copy_that_saves_memory_is_no_refusal() {
    let classes = SizeClasses::explicit(&[128, 2048]).unwrap();
    let builder = PacketPool::builder().size_classes(classes);
    let pool = builder.max_memory(1 << 20).build().unwrap();
    // All but a few buffers: no slab is left for the other class.
    let mut held: Vec<_> = std::iter::from_fn(|| pool.slab().try_alloc(2048).ok()).collect();
    held.truncate(held.len() - 8);
    let refused = || {
        let stats = pool.slab().stats();
        let classes = stats.classes().iter();
        classes.map(|class| class.exhausted).collect::<Vec<_>>()
    };
    assert_eq!(refused(), [0, 1], "for the buffer that ended the list");
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1500 });
    for _ in 0..10 {
        let short = Transmit::new(b"short", receiver.local_addr());
        receiver.sender().send(&short).await.unwrap();
        let batch = receiver.recv_batch().await.unwrap();
        assert_eq!(
            (batch.contents(), batch.chunk_bytes()),
            (&b"short"[..], 2048)
        );
    }
    assert_eq!(refused(), [0, 1]);
    drop(held);
    let short = Transmit::new(b"short", receiver.local_addr());
    receiver.sender().send(&short).await.unwrap();
    assert_eq!(receiver.recv_batch().await.unwrap().chunk_bytes(), 128);
}

/// Nobody else has a handle to the packet pool.
#[tokio::test]
async fn a_received_packet_grows_by_the_settings_of_its_receivers_pool() {
    let pool = PacketPool::builder().max_memory(1 << 20);
    let pool = pool.headroom(16).max_heap_memory(0).build().unwrap();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    drop(pool);
    let hello = Transmit::new(b"hello", receiver.local_addr());
    receiver.sender().send(&hello).await.unwrap();
    let packet = receiver.recv().await.unwrap().packet;
    let mut buf = packet.try_into_mut().unwrap();
    buf.reserve(1000);
    assert_eq!(buf.headroom(), 16);
    let grow = AssertUnwindSafe(|| buf.reserve(1 << 20));
    catch_unwind(grow).expect_err("not even on the heap");
}
