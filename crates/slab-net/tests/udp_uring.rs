//! Receiving by io_uring: the same datagrams, counters and guarantees as by readiness.
//!
//! Where the system forbids io_uring, there is nothing to test, and each test says so and ends.
#![cfg(all(target_os = "linux", feature = "io-uring"))]

mod udp_common;

use slab_net::pipeline::{Overflow, forward, queue};
use slab_net::udp::{
    Coalescing, Ecn, PacketBatch, Transmit, UdpReceiver, UdpReceiverBuilder, UdpSender,
};
use slab_net::{PacketPool, SizeClasses};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Context;
use std::time::Duration;
use udp_common::{fail_syscall, skipped};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Limits only how long a broken test takes to fail.
const HANG: Duration = Duration::from_secs(20);
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
    let receiver = builder.bind(ANY).unwrap();
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
        let sender = UdpReceiver::bind(ANY, &pool).unwrap().sender();
        let bytes: Vec<u8> = (0..70_000_u32).map(|n| (n / 5) as u8).collect();
        let longest = if coalescing == OFF { 1500 } else { 65_507 };
        for len in [0, 1, 63, 1200, 1500, 0, 0, 32_768, 65_507, 7] {
            let len = len.min(longest);
            let transmit = Transmit::new(&bytes[..len], receiver.local_addr()).ecn(Ecn::Ect1);
            sender.send(&transmit).await.unwrap();
            let batch = receiver.recv_batch().await.unwrap();
            assert_eq!(batch.contents(), &bytes[..len]);
            assert_eq!(batch.source(), sender.local_addr());
            assert_eq!(batch.destination(), Some(ANY.ip()));
            assert_eq!(batch.ecn(), Some(Ecn::Ect1));
            assert!(batch.timestamp().is_some() && batch.interface().is_some());
            assert!(!batch.is_truncated());
            assert!(
                len > 600 || batch.pinned_bytes() <= 2048,
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
                assert_eq!(held as u64, pool.slab().stats().in_use_bytes());
                assert!(held <= most, "{held}");
            }
        }
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// Sends datagrams when a receiver logs drops, which is while it reaps the ring.
struct SendOnLogEvent {
    from: std::net::UdpSocket,
    to: SocketAddr,
}

impl tracing::Subscriber for SendOnLogEvent {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        for _ in 0..6 {
            self.from.send_to(&[3; 30_000], self.to).unwrap();
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// A buffer whose payload was copied is lent again at once, and may be filled again during the same reaping.
#[tokio::test]
async fn one_reaping_takes_no_more_batches_than_there_are_buffers() {
    let pool = pool(16);
    let builder = builder(&pool, Coalescing::On).receive_buffer_bytes(1 << 16);
    let Some(mut receiver) = bound(builder) else {
        return;
    };
    let (sender, to) = (UdpSender::bind(ANY).unwrap(), receiver.local_addr());
    let bytes = [1; 30_010];
    let one = Transmit::new(&bytes[..30_000], to);
    sender.send(&one).await.unwrap();
    // Ten at once, for which the socket has no room; the one behind them reports the drops.
    let ten: Vec<_> = (0..10)
        .map(|n| Transmit::new(&bytes[..30_000 + n], to))
        .collect();
    sender.send_many(&ten).await.unwrap();
    sender.send(&one).await.unwrap();
    let from = std::net::UdpSocket::bind(ANY).unwrap();
    // With only one dispatcher, a thread without any may disable the event for all threads (tracing-core).
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    let _guard = tracing::subscriber::set_default(SendOnLogEvent { from, to });
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

/// Makes a receiver whose request has ended, because the returned batches hold all of its buffers; another
/// datagram is queued.
async fn receiver_without_request(pool: &PacketPool) -> Option<(UdpReceiver, Vec<PacketBatch>)> {
    let mut receiver = bind(pool, OFF)?;
    let sender = receiver.sender();
    let full = [1; 1500];
    let mut held = Vec::new();
    // Chunks lent after the last of these is received are for the next datagram.
    for _ in 0..32 {
        let transmit = Transmit::new(&full, receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    let late = Transmit::new(b"late", receiver.local_addr());
    sender.send(&late).await.unwrap();
    while held.len() < 32 {
        held.push(receiver.try_recv_batch().unwrap().unwrap());
    }
    Some((receiver, held))
}

#[tokio::test]
async fn try_recv_batch_makes_a_new_request_after_the_last_one_ended() {
    let pool = pool(16);
    let Some((mut receiver, held)) = receiver_without_request(&pool).await else {
        return;
    };
    let late = receiver
        .try_recv_batch()
        .unwrap()
        .expect("a datagram is queued");
    assert_eq!(late.contents(), b"late");
    drop((held, late, receiver));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// A request that the kernel refused once is submitted again.
#[tokio::test]
async fn a_refused_request_is_submitted_again() {
    let pool = pool(16);
    let Some((mut receiver, held)) = receiver_without_request(&pool).await else {
        return;
    };
    let refused = std::thread::spawn(move || {
        if let Err(why) = fail_syscall(libc::SYS_io_uring_enter, libc::EBUSY) {
            skipped("this thread's system cannot be changed", &why);
            return (receiver, false);
        }
        for _ in 0..3 {
            let error = receiver.try_recv_batch().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        }
        (receiver, true)
    });
    let (mut receiver, is_refused) = refused.join().unwrap();
    let late = tokio::time::timeout(HANG, receiver.recv_batch()).await;
    let late = late.expect("hangs").unwrap();
    assert_eq!(late.contents(), b"late");
    assert!(is_refused || receiver.uses_io_uring());
    drop((held, late, receiver));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The kernel has nothing of a request that it refused. See `udp_system` for the first request.
#[tokio::test]
async fn a_refused_request_leaks_no_buffer() {
    let pool = pool(16);
    let Some((mut receiver, held)) = receiver_without_request(&pool).await else {
        return;
    };
    let refused = std::thread::spawn(move || {
        if let Err(why) = fail_syscall(libc::SYS_io_uring_enter, libc::EBUSY) {
            return skipped("this thread's system cannot be changed", &why);
        }
        receiver.try_recv_batch().unwrap_err();
        drop((held, receiver));
        assert_eq!(pool.slab().stats().in_use(), 0);
    });
    refused.join().unwrap();
}

/// The kernel has completed datagrams, followed by an error, before anything is reaped.
#[tokio::test]
async fn an_error_after_datagrams_is_reported_after_them_and_once() {
    let pool = pool(16);
    // Who has not waited for the datagrams is not woken for the error by what announced them.
    for waits_for_error in [false, true] {
        let peer = std::net::UdpSocket::bind(ANY).unwrap();
        let gone = peer.local_addr().unwrap();
        let mut client = builder(&pool, OFF).connect(gone).bind(ANY).unwrap();
        if !client.uses_io_uring() {
            return skipped("io_uring", &io::ErrorKind::Unsupported.into());
        }
        assert!(
            client.try_recv_batch().unwrap().is_none(),
            "the request is made"
        );
        for n in 0..3 {
            peer.send_to(&[n], client.local_addr()).unwrap();
        }
        drop(peer);
        // The ICMP error that nobody is there any more arrives at once.
        let hello = Transmit::new(b"hello", gone);
        client.sender().send(&hello).await.unwrap();
        for n in 0..3 {
            let batch = match waits_for_error {
                true => client.try_recv_batch().unwrap().expect("it is there"),
                false => tokio::time::timeout(HANG, client.recv_batch())
                    .await
                    .expect("hangs")
                    .unwrap(),
            };
            assert_eq!(batch.contents(), [n]);
        }
        let error = match waits_for_error {
            true => tokio::time::timeout(HANG, client.recv_batch())
                .await
                .expect("hangs")
                .unwrap_err(),
            false => client.try_recv_batch().unwrap_err(),
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(client.try_recv_batch().unwrap().is_none(), "once");
        let peer = std::net::UdpSocket::bind(gone).unwrap();
        peer.send_to(b"again", client.local_addr()).unwrap();
        let batch = tokio::time::timeout(HANG, client.recv_batch()).await;
        assert_eq!(batch.expect("hangs").unwrap().contents(), b"again");
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// A socket that was used before may have an error to report, which says nothing about io_uring.
#[tokio::test]
async fn an_error_from_before_is_reported_once_and_leaves_the_ring() {
    let pool = pool(16);
    if bind(&pool, OFF).is_none() {
        return;
    }
    let nobody = std::net::UdpSocket::bind(ANY).unwrap();
    let refusing = nobody.local_addr().unwrap();
    drop(nobody);
    let socket = std::net::UdpSocket::bind(ANY).unwrap();
    socket.connect(refusing).unwrap();
    socket.send(b"is anybody there?").unwrap();
    let mut receiver = builder(&pool, OFF).from_std(socket).unwrap();
    assert!(receiver.uses_io_uring());
    let received = tokio::time::timeout(HANG, receiver.recv_batch()).await;
    let error = received.expect("hangs").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let somebody = std::net::UdpSocket::bind(refusing).unwrap();
    somebody.send_to(b"now", receiver.local_addr()).unwrap();
    let received = tokio::time::timeout(HANG, receiver.recv_batch()).await;
    assert_eq!(received.expect("hangs").unwrap().contents(), b"now");
}

/// Allocates all memory of the pool, down to its smallest class.
fn exhaust(pool: &PacketPool) -> Vec<slab_core::Chunk> {
    let mut chunks = Vec::new();
    for &size in pool.slab().size_classes().sizes().iter().rev() {
        while let Ok(chunk) = pool.slab().try_alloc(size) {
            chunks.push(chunk);
        }
    }
    chunks
}

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
        assert_eq!(receive(&mut receiver, burst).await, vec![[2; 100]; burst]);
    }
    taken.clear();
    sender.send(&Transmit::new(b"after", to)).await.unwrap();
    assert_eq!(receiver.recv_batch().await.unwrap().contents(), b"after");
    assert_eq!(receiver.held_bytes(), 32 * RING);
    drop((others, held, receiver));
    assert_eq!(slab.stats().in_use(), 0);
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

#[tokio::test]
async fn dropping_the_receiver_counts_unread_batches_and_frees_all_memory() {
    let pool = pool(16);
    for coalescing in [Coalescing::On, OFF] {
        let Some(mut receiver) = bind(&pool, coalescing) else {
            return;
        };
        let (sender, monitor) = (receiver.sender(), receiver.monitor());
        assert!(receiver.try_recv_batch().unwrap().is_none());
        // As many as it has buffers for: only the kernel would have the others.
        for n in 0..8_u8 {
            let one = [n; 100];
            let transmit = Transmit::new(&one, receiver.local_addr());
            sender.send(&transmit).await.unwrap();
        }
        let first = receiver.try_recv_batch().unwrap().unwrap();
        assert_eq!(first.contents(), [0; 100]);
        drop(receiver);
        let stats = monitor.stats();
        assert_eq!((stats.received_datagrams, stats.dropped_closed), (8, 7));
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The first of the ring's buffers that is freed wakes somebody who waits for memory.
#[tokio::test]
async fn a_panicking_waker_leaves_unread_batches_counted() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("by a waker");
        }
    }
    let pool = pool(4);
    let Some(mut receiver) = bind(&pool, Coalescing::On) else {
        return;
    };
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    for n in 0..3_u8 {
        let one = [n; 100];
        let transmit = Transmit::new(&one, receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    drop(receiver.try_recv_batch().unwrap().unwrap());
    let held = exhaust(&pool);
    let mut waiting = Box::pin(pool.alloc(66 << 10));
    let waker = Arc::new(Panics).into();
    let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(receiver)));
    assert!(dropped.is_err(), "the waker was called");
    let stats = monitor.stats();
    assert_eq!((stats.received_datagrams, stats.dropped_closed), (3, 2));
    drop((waiting, held));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// Buffers that the kernel may still write to are lost then, but not those that it has filled.
#[tokio::test]
async fn stop_delivers_datagrams_in_the_ring_even_if_it_cannot_end_the_request() {
    let pool = pool(16);
    let Some(mut receiver) = bind(&pool, OFF) else {
        return;
    };
    let sender = receiver.sender();
    for n in 0..5_u8 {
        let one = [n; 100];
        let transmit = Transmit::new(&one, receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    let refused = std::thread::spawn(move || {
        if let Err(why) = fail_syscall(libc::SYS_io_uring_enter, libc::EBUSY) {
            return skipped("this thread's system cannot be changed", &why);
        }
        let error = receiver.stop().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        for n in 0..5_u8 {
            let batch = receiver.try_recv_batch().unwrap();
            assert_eq!(batch.expect("it was filled").contents(), [n; 100]);
        }
        assert!(receiver.try_recv_batch().unwrap().is_none());
    });
    refused.join().unwrap();
}

#[tokio::test]
async fn stop_delivers_datagrams_in_the_ring_and_in_the_socket() {
    let pool = pool(16);
    let Some(receiver) = bind(&pool, OFF) else {
        return;
    };
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    // More than the ring has buffers for.
    for n in 0..100_u8 {
        let one = [n; 100];
        let transmit = Transmit::new(&one, receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    let (to_consumer, batches) = queue(128.try_into().unwrap(), Overflow::DropNewest);
    let report = forward(receiver, to_consumer, std::future::ready(())).await;
    assert_eq!(report.socket.received_datagrams, 100);
    for n in 0..100_u8 {
        assert_eq!(batches.recv().await.unwrap().contents(), [n; 100]);
    }
    assert!(batches.recv().await.is_none());
    assert_eq!(monitor.stats().dropped(), 0);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The kernel ends a request when the thread that made it ends.
#[test]
fn receiving_survives_the_end_of_the_thread_that_made_the_ring() {
    let pool = pool(16);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .build()
        .unwrap();
    let handle = runtime.handle().clone();
    let of = pool.clone();
    let made = std::thread::spawn(move || {
        let _inside = handle.enter();
        bind(&of, Coalescing::On)
    });
    let Some(mut receiver) = made.join().unwrap() else {
        return;
    };
    runtime.block_on(async {
        let sender = receiver.sender();
        let to = receiver.local_addr();
        let arrived = Arc::<AtomicU32>::default();
        let arrives = Arc::clone(&arrived);
        let task = tokio::spawn(async move {
            let mut got = 0_u32;
            while got < 2000 {
                for one in receive(&mut receiver, 1).await {
                    assert_eq!(one, got.to_le_bytes());
                    got += 1;
                }
                arrives.store(got, Ordering::Relaxed);
                if got.is_multiple_of(50) {
                    tokio::task::yield_now().await;
                }
            }
        });
        for n in 0..2000_u32 {
            sender
                .send(&Transmit::new(&n.to_le_bytes(), to))
                .await
                .unwrap();
            // No more in flight than the socket's queue holds, however late the receiver runs.
            while n - arrived.load(Ordering::Relaxed).min(n) > 100 && !task.is_finished() {
                tokio::task::yield_now().await;
            }
        }
        task.await.unwrap();
    });
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Warnings {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "error" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
        panic!("a subscriber may panic");
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// The only test that causes the warning, which is logged once per process.
#[tokio::test]
async fn without_a_large_enough_class_it_falls_back_with_one_warning() {
    let warnings = Warnings::default();
    // With only one dispatcher, a thread without any may disable the event for all threads (tracing-core).
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let bind = || builder(&pool, Coalescing::On).bind(ANY);
    let warned = std::panic::catch_unwind(AssertUnwindSafe(bind));
    assert_eq!(warned.is_err(), !warnings.0.lock().unwrap().is_empty());
    for _ in 0..3 {
        let mut receiver = bind().unwrap();
        assert!(!receiver.uses_io_uring());
        let hello = Transmit::new(b"hello", receiver.local_addr());
        receiver.sender().send(&hello).await.unwrap();
        assert_eq!(receiver.recv_batch().await.unwrap().contents(), b"hello");
    }
    let said = std::mem::take(&mut *warnings.0.lock().unwrap());
    // Without io_uring another test may have caused the warning before.
    let is_ours = self::bind(&self::pool(16), OFF).is_some();
    assert!(said.len() <= 1 && (!is_ours || said.len() == 1), "{said:?}");
    if let Some(reason) = said.first().filter(|_| is_ours) {
        assert!(reason.contains("65792"), "{reason}");
    }
}
