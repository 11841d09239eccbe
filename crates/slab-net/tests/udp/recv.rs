//! Datagrams one by one, the number of buffers in a call, and what the receiver itself holds.

#[cfg(target_os = "linux")]
use crate::common::HANG;
use crate::common::{LOOPBACK, assert_errors_let_others_run, bind, payload, pool, runtime};
use futures_util::StreamExt;
#[cfg(target_os = "linux")]
use slab_net::udp::UdpSender;
use slab_net::udp::{Coalescing, PacketBatch, Transmit, UdpReceiver};
use slab_net::{PacketPool, SizeClasses};
#[cfg(target_os = "linux")]
use socket2::SockRef;
#[cfg(target_os = "linux")]
use std::io::ErrorKind;
#[cfg(target_os = "linux")]
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Waker};

/// Checks that these are the next datagrams, and counts them.
fn check(batch: &PacketBatch, next: &mut u64) {
    for datagram in batch {
        assert_eq!(datagram.packet, payload(*next, 40));
        *next += 1;
    }
}

#[tokio::test]
async fn mixing_receive_methods_and_cancellation_loses_nothing() {
    const COUNT: u64 = 3000;
    for coalescing in [Coalescing::On, Coalescing::Off { max_datagram: 100 }] {
        let pool = pool();
        let mut receiver = bind(&pool, coalescing);
        let sender = receiver.sender();
        let (mut sent, mut next, mut cancelled, mut single) = (0, 0, 0, 0);
        let mut many = Vec::new();
        let mut kept = Vec::new();
        for round in 0_u64.. {
            if next == COUNT {
                break;
            }
            if sent - next < 30 && sent < COUNT {
                // Ten that arrive coalesced, if possible.
                let ten: Vec<u8> = (sent..sent + 10).flat_map(|n| payload(n, 40)).collect();
                let transmit = Transmit::new(&ten, receiver.local_addr()).segment_size(40);
                sent += sender.send(&transmit).await.unwrap() as u64;
            }
            // Dropped before it has been polled, and while it waits.
            drop(receiver.recv());
            tokio::select! {
                biased;
                datagram = receiver.recv() => {
                    let datagram = datagram.unwrap();
                    assert_eq!(datagram.source, sender.local_addr());
                    assert_eq!(datagram.packet, payload(next, 40));
                    kept.push((next, datagram.packet));
                    (next, single) = (next + 1, single + 1);
                }
                () = std::future::ready(()) => cancelled += 1,
            }
            match round % 7 {
                0 => {
                    if let Some(batch) = receiver.try_recv_batch().unwrap() {
                        check(&batch, &mut next);
                    }
                }
                1 if next < sent => check(&receiver.recv_batch().await.unwrap(), &mut next),
                3 if next < sent => check(&receiver.next().await.unwrap().unwrap(), &mut next),
                5 if next < sent => {
                    receiver.recv_batches(&mut many).await.unwrap();
                    many.drain(..).for_each(|batch| check(&batch, &mut next));
                }
                _ => {}
            }
            if kept.len() > 100 || next == COUNT {
                for (n, packet) in kept.drain(..) {
                    assert_eq!(packet, payload(n, 40), "written again while it was kept");
                }
            }
        }
        assert!(single > 100 && cancelled > 100, "{single} {cancelled}");
        let stats = receiver.monitor().stats();
        assert_eq!((stats.received_datagrams, stats.dropped()), (COUNT, 0));
        assert_eq!(pool.slab().stats().in_use(), 0);
    }
}

/// The others of its read may be read by somebody.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_batch_gives_no_buffers_while_a_datagram_of_its_read_lives() {
    let pool = pool();
    let mut receiver = bind(&pool, Coalescing::On);
    let ten = Transmit::new(&[7; 1000], receiver.local_addr()).segment_size(100);
    receiver.sender().send(&ten).await.unwrap();
    let first = receiver.recv().await.unwrap().packet;
    let rest = receiver.recv_batch().await.unwrap();
    let rest = rest.try_into_bufs().unwrap_err();
    assert_eq!(rest.datagrams(), 9);
    drop(first);
    let mut bufs: Vec<_> = rest.try_into_bufs().unwrap().collect();
    bufs.iter_mut().for_each(|buf| buf.fill(1));
    assert_eq!(bufs.concat(), [1; 900]);
    drop(bufs);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// Who goes on after errors, as they are advised to, keeps no thread from other tasks.
#[test]
fn a_receiver_whose_runtime_is_gone_fails_and_lets_other_tasks_run() {
    let gone = runtime();
    let mut receiver = gone.block_on(async { bind(&pool(), Coalescing::On) });
    let sender = receiver.sender();
    drop(gone);
    runtime().block_on(async {
        let receive = async || drop(receiver.recv_batch().await.unwrap_err());
        assert_errors_let_others_run(receive).await;
        let wait = async || drop(sender.writable().await.unwrap_err());
        assert_errors_let_others_run(wait).await;
    });
}

/// To tokio it is readable ever after; what is queued comes first, also if it comes later.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_receiver_that_was_shut_down_delivers_what_is_queued_and_fails() {
    use std::net::Shutdown;

    for how in [Shutdown::Read, Shutdown::Both] {
        for coalescing in [Coalescing::On, Coalescing::Off { max_datagram: 100 }] {
            let pool = pool();
            let mut receiver = bind(&pool, coalescing);
            let to = receiver.local_addr();
            let sender = UdpSender::bind(LOOPBACK).unwrap();
            let (mut sent, mut next) = (0, 0);
            let mut send = async |count| {
                for _ in 0..count {
                    let one = payload(sent, 40);
                    sender.send(&Transmit::new(&one, to)).await.unwrap();
                    sent += 1;
                }
            };
            send(10).await;
            // An error, but done: it has no peer.
            let done = SockRef::from(&receiver).shutdown(how);
            assert_eq!(done.unwrap_err().kind(), ErrorKind::NotConnected);
            while next < 10 {
                check(&receiver.recv_batch().await.unwrap(), &mut next);
            }
            for _ in 0..3 {
                let received = tokio::time::timeout(HANG, receiver.recv_batch()).await;
                let error = received.expect("tries for ever").unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotConnected);
                assert!(receiver.try_recv_batch().unwrap().is_none());
                assert_eq!(receiver.held_bytes(), 0);
                // Linux lets more come.
                send(1).await;
                check(&receiver.recv_batch().await.unwrap(), &mut next);
            }
            let receive = async || drop(receiver.recv().await.unwrap_err());
            assert_errors_let_others_run(receive).await;
            assert_eq!(pool.slab().stats().in_use(), 0);
        }
    }
}

/// By one that waits, with a peer or without.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_receiver_that_waits_learns_that_it_is_shut_down() {
    for is_connected in [false, true] {
        let pool = pool();
        let peer = UdpSender::bind(LOOPBACK).unwrap();
        let mut builder = UdpReceiver::builder(&pool);
        if is_connected {
            builder = builder.connect(peer.local_addr());
        }
        let mut receiver = builder.bind(LOOPBACK).unwrap();
        let socket = receiver.as_fd().try_clone_to_owned().unwrap();
        let receive = tokio::time::timeout(HANG, receiver.recv_batch());
        let (received, ()) = tokio::join!(receive, async {
            tokio::task::yield_now().await;
            let done = SockRef::from(&socket).shutdown(std::net::Shutdown::Read);
            assert_eq!(done.is_ok(), is_connected);
        });
        let error = received.expect("waits for ever").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
    }
}

#[tokio::test]
async fn dropping_the_receiver_counts_the_rest_of_a_batch() {
    let pool = pool();
    let mut receiver = bind(&pool, Coalescing::On);
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let ten = Transmit::new(&[7; 1000], receiver.local_addr()).segment_size(100);
    sender.send(&ten).await.unwrap();
    let kept = [
        receiver.recv().await.unwrap(),
        receiver.recv().await.unwrap(),
    ];
    while monitor.stats().received_datagrams < 10 {
        receiver.recv().await.unwrap();
    }
    let before = monitor.stats().received_bytes;
    drop(receiver);
    let stats = monitor.stats();
    if cfg!(target_os = "linux") {
        assert_eq!((stats.dropped_closed, stats.dropped_closed_bytes), (8, 800));
    }
    assert_eq!(before, 1000);
    assert_eq!(pool.slab().stats().in_use(), 1);
    drop(kept);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

struct Panics;

impl std::task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("by a waker");
    }
}

/// Dropping a batch frees memory for a waiter, and the waiter's waker is foreign code.
#[tokio::test]
async fn dropping_the_receiver_counts_even_if_a_waker_panics() {
    let one_size = SizeClasses::explicit(&[2048]).unwrap();
    let pool = PacketPool::builder().size_classes(one_size);
    let pool = pool.max_memory(1 << 20).build().unwrap();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1500 });
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    for _ in 0..2 {
        let one = Transmit::new(b"one", receiver.local_addr());
        sender.send(&one).await.unwrap();
    }
    let first = receiver.recv_batch().await.unwrap();
    let slab = pool.slab();
    let all: Vec<_> = std::iter::from_fn(|| slab.try_alloc(100).ok()).collect();
    let waker = Waker::from(Arc::new(Panics));
    let mut waits = Box::pin(slab.alloc(100));
    let polled = waits.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(receiver)));
    assert!(dropped.is_err(), "the waker was called");
    let stats = monitor.stats();
    assert_eq!((stats.received_datagrams, stats.dropped_closed), (2, 1));
    drop((first, all, waits));
    assert_eq!(slab.stats().in_use(), 0);
}

/// The same when an empty socket makes the receiver return its buffers: it has to know afterwards which of
/// them it still has.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_waker_that_panics_leaves_the_receiver_working() {
    let sizes = SizeClasses::explicit(&[256, 2048]).unwrap();
    let pool = PacketPool::builder().size_classes(sizes);
    let pool = pool.max_memory(1 << 20).build().unwrap();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1500 });
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let to = receiver.local_addr();
    let payloads = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"];
    let send = |payloads: &[&str]| {
        for payload in payloads {
            let transmit = Transmit::new(payload.as_bytes(), to);
            assert_eq!(sender.try_send(&transmit).unwrap(), 1);
        }
    };
    // Copied out of their buffers, which it keeps: there may be more to read.
    send(&payloads[..2]);
    let mut delivered = vec![receiver.recv_batch().await.unwrap()];
    delivered.push(receiver.recv_batch().await.unwrap());
    assert!(receiver.held_bytes() >= 2 * 2048);
    let slab = pool.slab();
    let mut all: Vec<_> = std::iter::from_fn(|| slab.try_alloc(2048).ok()).collect();
    let waker = Waker::from(Arc::new(Panics));
    let mut waits = Box::pin(slab.alloc(2048));
    let polled = waits.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let empty = catch_unwind(AssertUnwindSafe(|| receiver.try_recv_batch()));
    assert!(empty.is_err(), "the waker was called");
    all.clear();
    for some in [&payloads[2..5], &payloads[5..]] {
        send(some);
        while let Some(batch) = receiver.try_recv_batch().unwrap() {
            delivered.push(batch);
        }
    }
    let stats = monitor.stats();
    assert_eq!((stats.received_datagrams, stats.dropped()), (6, 0));
    let contents = delivered
        .iter()
        .map(|batch| batch.contents().escape_ascii().to_string());
    assert_eq!(contents.collect::<Vec<_>>(), payloads);
    drop((receiver, waits, delivered));
    assert_eq!(slab.stats().in_use(), 0);
}

/// The number of chunks ever allocated.
fn allocs(pool: &PacketPool) -> u64 {
    let stats = pool.slab().stats();
    stats.classes().iter().map(|class| class.allocs).sum()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_number_of_buffers_per_call_adapts_to_the_load() {
    let pool = pool();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1500 });
    let (sender, to) = (receiver.sender(), receiver.local_addr());
    let full = [1; 1500];
    for round in 1..=3 {
        for _ in 0..64 {
            sender.send(&Transmit::new(&full, to)).await.unwrap();
        }
        let before = receiver.monitor().stats().receive_calls;
        let mut got = 0;
        while got < 64 {
            got += receiver.recv_batch().await.unwrap().datagrams();
        }
        // In calls of 2, 4, 8, 16, 32 and 32 buffers.
        let calls = receiver.monitor().stats().receive_calls - before;
        assert!(calls <= 6, "round {round}: {calls}");

        // One at a time from here on, which brings it down to two buffers.
        for alone in 0..8 {
            let before = (receiver.monitor().stats().receive_calls, allocs(&pool));
            sender.send(&Transmit::new(&full, to)).await.unwrap();
            receiver.recv_batch().await.unwrap();
            let calls = receiver.monitor().stats().receive_calls - before.0;
            let buffers = allocs(&pool) - before.1;
            assert_eq!(calls, 1, "round {round}");
            assert!(alone < 5 || buffers <= 2, "round {round}: {buffers}");
        }
    }
}

#[tokio::test]
async fn held_bytes_is_exact_and_bounded_under_load() {
    let off = Coalescing::Off { max_datagram: 1500 };
    for (coalescing, most) in [(Coalescing::On, 8 * (64 << 10)), (off, 32 * 2048)] {
        let pool = pool();
        let mut receiver = bind(&pool, coalescing);
        let (sender, to) = (receiver.sender(), receiver.local_addr());
        let bytes = vec![1; 40_000];
        let mut highest = 0;
        for _ in 0..20 {
            let mut left = 0;
            for len in [40_000, 900, 40_000, 1, 1400] {
                let run = Transmit::new(&bytes[..len], to).segment_size(1200);
                left += sender.send(&run).await.unwrap();
            }
            while left > 0 {
                // Alternates between all ways to receive, and keeps nothing.
                match left % 3 {
                    0 => left -= receiver.recv_batch().await.unwrap().datagrams(),
                    _ => left -= receiver.recv().await.map(|_| 1).unwrap(),
                }
                let held = receiver.held_bytes();
                assert_eq!(held, pool.slab().stats().in_use_bytes());
                assert!(held <= most, "{held}");
                highest = highest.max(held);
            }
        }
        assert!(highest > most / 4, "{highest}: never busy");
        assert!(receiver.try_recv_batch().unwrap().is_none());
        if cfg!(target_os = "linux") {
            assert_eq!(receiver.held_bytes(), 0);
        }
    }
}

/// The length is at most half of a buffer, and needs a class larger than that half.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn held_copies_are_bounded_in_number_and_size() {
    let pool = pool();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1500 });
    let (sender, to) = (receiver.sender(), receiver.local_addr());
    let mut highest = 0;
    for _ in 0..2 + 4 + 8 + 16 + 32 {
        sender.send(&Transmit::new(&[1; 700], to)).await.unwrap();
    }
    for _ in 0..2 + 4 + 8 + 16 + 32 {
        let batch = receiver.recv_batch().await.unwrap();
        highest = highest.max(receiver.held_bytes() + batch.chunk_bytes());
    }
    assert_eq!(highest, 32 * (1536 + 1024));
}
