//! Receiving by io_uring: the same datagrams, counters and guarantees as by readiness.
//!
//! Where the system forbids io_uring, there is nothing to test, and each test says so and ends.
//!
//! | file | what |
//! |---|---|
//! | `main` | what arrives, and the memory that it takes |
//! | `refused` | requests that end or that the system refuses, and errors of the socket |
//! | `exhausted` | a pool without memory |
//! | `end` | stopping, dropping, and the end of a thread |
#![cfg(all(target_os = "linux", feature = "io-uring"))]

mod end;
mod exhausted;
mod refused;
#[path = "../udp/common/mod.rs"]
mod udp_common;

use slab_net::udp::{
    Coalescing, Ecn, PacketBatch, Transmit, UdpReceiver, UdpReceiverBuilder, UdpSender,
};
use slab_net::{PacketPool, SizeClasses};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use udp_common::warnings::on_warning;
use udp_common::{HANG, LOOPBACK, skipped};

const OFF: Coalescing = Coalescing::Off { max_datagram: 1500 };

/// With a class for a super-buffer and its prefix.
fn pool(mebibytes: usize) -> PacketPool {
    let mut sizes = SizeClasses::network().sizes().to_vec();
    sizes.push(66 << 10);
    PacketPool::builder()
        .max_memory(mebibytes << 20)
        .size_classes(SizeClasses::explicit(&sizes).unwrap())
        .build()
        .unwrap()
}

fn builder(pool: &PacketPool, coalescing: Coalescing) -> UdpReceiverBuilder {
    UdpReceiver::builder(pool)
        .coalescing(coalescing)
        .receive_buffer_bytes(1 << 20)
        .timestamps(true)
        .io_uring(true)
}

/// `None` if there is no io_uring.
fn bind(pool: &PacketPool, coalescing: Coalescing) -> Option<UdpReceiver> {
    bound(builder(pool, coalescing))
}

fn bound(builder: UdpReceiverBuilder) -> Option<UdpReceiver> {
    let receiver = builder.bind(LOOPBACK).unwrap();
    if !receiver.uses_io_uring() {
        skipped("io_uring", &io::ErrorKind::Unsupported.into());
        return None;
    }
    Some(receiver)
}

async fn receive(receiver: &mut UdpReceiver, count: usize) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    while payloads.len() < count {
        let batch = receiver.recv_batch().await.unwrap();
        payloads.extend(batch.into_packets().map(|packet| packet.to_vec()));
    }
    payloads
}

#[tokio::test]
async fn every_length_arrives_intact_with_all_kernel_metadata() {
    let pool = pool(16);
    for coalescing in [Coalescing::On, OFF] {
        let Some(mut receiver) = bind(&pool, coalescing) else {
            return;
        };
        let sender = UdpReceiver::bind(LOOPBACK, &pool).unwrap().sender();
        let bytes: Vec<u8> = (0..70_000_u32).map(|n| (n / 5) as u8).collect();
        let longest = if coalescing == OFF { 1500 } else { 65_507 };
        for len in [0, 1, 63, 1200, 1500, 0, 0, 32_768, 65_507, 7] {
            let len = len.min(longest);
            let transmit = Transmit::new(&bytes[..len], receiver.local_addr()).ecn(Ecn::Ect1);
            sender.send(&transmit).await.unwrap();
            let batch = receiver.recv_batch().await.unwrap();
            assert_eq!(batch.contents(), &bytes[..len]);
            assert_eq!(batch.source(), sender.local_addr());
            assert_eq!(batch.destination_ip(), Some(LOOPBACK.ip()));
            assert_eq!(batch.ecn(), Some(Ecn::Ect1));
            assert!(batch.timestamp().is_some() && batch.interface().is_some());
            assert!(!batch.is_truncated());
            assert!(
                len > 600 || batch.chunk_bytes() <= 2048,
                "a short lone datagram is copied"
            );
        }
        let run = Transmit::new(&bytes[..64_999], receiver.local_addr()).segment_size(1200);
        assert_eq!(sender.send(&run).await.unwrap(), 55);
        let got = receive(&mut receiver, 55).await;
        assert_eq!(got.concat(), &bytes[..64_999]);
        assert!(got[..54].iter().all(|one| one.len() == 1200));
        assert_eq!(receiver.monitor().stats().received_datagrams, 10 + 55);
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[tokio::test]
async fn held_batches_are_not_overwritten_and_cancellation_loses_nothing() {
    let pool = pool(16);
    let Some(mut receiver) = bind(&pool, Coalescing::On) else {
        return;
    };
    let sender = receiver.sender();
    let to = receiver.local_addr();
    let mut held: Vec<(u8, PacketBatch)> = Vec::new();
    let mut next = 0_u64;
    for round in 0..600_u64 {
        let len = [1200, 40_000, 3, 64_800][round as usize % 4];
        let contents = vec![round as u8; len];
        let transmit = Transmit::new(&contents, to).segment_size(1200);
        sender.send(&transmit).await.unwrap();
        // A receive that is dropped while it waits.
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            batch = receiver.recv_batch() => held.push((round as u8, batch.unwrap())),
        }
        while next + held.len() as u64 <= round {
            let batch = receiver.recv_batch().await.unwrap();
            held.push((next as u8 + held.len() as u8, batch));
        }
        if held.len() > 40 {
            for (round, batch) in held.drain(..30) {
                assert!(batch.contents().iter().all(|&byte| byte == round));
                next += 1;
            }
        }
    }
    assert_eq!(receiver.monitor().stats().dropped(), 0);
    for (round, batch) in held.drain(..) {
        assert!(batch.contents().iter().all(|&byte| byte == round));
        next += 1;
    }
    assert_eq!(next, 600);
    drop(receiver);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[tokio::test]
async fn truncated_datagrams_are_counted_and_delivered_only_on_request() {
    let pool = pool(16);
    for deliver in [false, true] {
        let builder = builder(&pool, Coalescing::Off { max_datagram: 1000 });
        let Some(mut receiver) = bound(builder.deliver_truncated(deliver)) else {
            return;
        };
        let lens = [999_usize, 1001, 1000, 4000, 65_507, 0, 1023, 1024, 1025, 7];
        let sender = receiver.sender();
        // Twice as many as there are buffers.
        for _ in 0..7 {
            let mut expected = 0;
            for (n, len) in lens.into_iter().enumerate() {
                let sent = vec![n as u8; len];
                let transmit = Transmit::new(&sent, receiver.local_addr());
                sender.send(&transmit).await.unwrap();
                expected += usize::from(deliver || len <= 1000);
            }
            let mut got = Vec::new();
            while got.len() < expected {
                got.push(receiver.recv_batch().await.unwrap());
            }
            let expected = lens.iter().enumerate();
            let expected = expected.filter(|&(_, &len)| deliver || len <= 1000);
            for (batch, (n, &len)) in got.iter().zip(expected) {
                assert_eq!(batch.contents(), vec![n as u8; len.min(1000)]);
                assert_eq!(batch.is_truncated(), len > 1000);
            }
        }
        let stats = receiver.monitor().stats();
        assert_eq!(
            (stats.received_datagrams, stats.truncated_datagrams),
            (70, 42)
        );
        assert_eq!(stats.dropped_truncated, if deliver { 0 } else { 42 });
        assert_eq!(stats.dropped(), stats.dropped_truncated);
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[tokio::test]
async fn held_bytes_is_exact_and_bounded() {
    let pool = pool(16);
    for (coalescing, most) in [(Coalescing::On, 8 * (66 << 10)), (OFF, 32 * 2048)] {
        let Some(mut receiver) = bind(&pool, coalescing) else {
            return;
        };
        let (sender, to) = (receiver.sender(), receiver.local_addr());
        assert_eq!(receiver.held_bytes(), most, "all are lent");
        let bytes = vec![1; 40_000];
        for _ in 0..20 {
            let run = Transmit::new(&bytes, to).segment_size(1200);
            let mut left = sender.send(&run).await.unwrap();
            while left > 0 {
                match left % 3 {
                    0 => left -= receiver.recv_batch().await.unwrap().datagrams(),
                    _ => left -= receiver.recv().await.map(|_| 1).unwrap(),
                }
                let held = receiver.held_bytes();
                assert_eq!(held, pool.slab().stats().in_use_bytes());
                assert!(held <= most, "{held}");
            }
        }
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// What announced a datagram wakes nobody once that has been taken.
#[tokio::test]
async fn a_waiting_receiver_is_not_woken_in_vain() {
    #[derive(Default)]
    struct Woken(AtomicBool);
    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let pool = pool(16);
    let Some(mut receiver) = bind(&pool, OFF) else {
        return;
    };
    let one = Transmit::new(b"one", receiver.local_addr());
    receiver.sender().send(&one).await.unwrap();
    receiver.recv_batch().await.unwrap();
    let woken = Arc::<Woken>::default();
    let waker = Arc::clone(&woken).into();
    let polled = receiver.poll_recv_batch(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!woken.0.load(Ordering::Relaxed));
}

/// A buffer whose payload was copied is lent again at once, and may be filled again during the same reaping.
#[tokio::test]
async fn one_reaping_takes_no_more_batches_than_there_are_buffers() {
    let pool = pool(16);
    let builder = builder(&pool, Coalescing::On).receive_buffer_bytes(1 << 16);
    let Some(mut receiver) = bound(builder) else {
        return;
    };
    let (sender, to) = (UdpSender::bind(LOOPBACK).unwrap(), receiver.local_addr());
    let bytes = [1; 30_010];
    let one = Transmit::new(&bytes[..30_000], to);
    sender.send(&one).await.unwrap();
    // Ten at once, for which the socket has no room; the one behind them reports the drops.
    let ten: Vec<_> = (0..10)
        .map(|n| Transmit::new(&bytes[..30_000 + n], to))
        .collect();
    sender.send_many(&ten).await.unwrap();
    sender.send(&one).await.unwrap();
    let from = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    // Drops are logged while the ring is reaped.
    let _watching = on_warning(move |_| {
        for _ in 0..6 {
            from.send_to(&[3; 30_000], to).unwrap();
        }
    });
    let buffers = receiver.held_bytes();
    assert_eq!(buffers, 8 * (66 << 10));
    let mut held = Vec::new();
    while held.last() != Some(&3) {
        let batch = receiver.recv_batch().await.unwrap();
        held.push(batch.contents()[0]);
        let copies = receiver.held_bytes().saturating_sub(buffers);
        assert!(copies <= 8 * 32_768, "{copies}");
    }
    assert!(held.len() < 10, "nothing was lost");
}

/// Drops are logged once the datagram that reports them is delivered and counted.
#[tokio::test]
async fn a_subscriber_that_panics_at_a_drop_costs_no_datagram() {
    let pool = pool(8);
    let Some(mut receiver) = bound(builder(&pool, OFF).receive_buffer_bytes(1 << 14)) else {
        return;
    };
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let panicked = Arc::new(AtomicBool::new(false));
    let once = Arc::clone(&panicked);
    let _watching = on_warning(move |_| {
        assert!(once.swap(true, Ordering::Relaxed), "a subscriber panics");
    });
    let mut got = 0;
    let mut next = |receiver: &mut UdpReceiver| {
        let read = catch_unwind(AssertUnwindSafe(|| receiver.try_recv_batch()));
        let read = read.map(|batch| batch.unwrap().is_some());
        got += u64::from(matches!(read, Ok(true)));
        read
    };
    while !panicked.load(Ordering::Relaxed) {
        for _ in 0..100 {
            let transmit = Transmit::new(&[1; 1000], receiver.local_addr());
            sender.send(&transmit).await.unwrap();
        }
        while next(&mut receiver).is_ok_and(|found| found) {}
    }
    while next(&mut receiver).unwrap() {}
    let stats = monitor.stats();
    assert_eq!((stats.received_datagrams, stats.dropped()), (got, 0));
}
