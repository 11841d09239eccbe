//! Genuine `BytesMut` from a ring of buffers: none corrupted or aliased, the cap kept, everything counted.

use crate::common::warnings::{field, on_warning};
use crate::common::{HANG, LOOPBACK};
use bytes::BytesMut;
use futures_util::FutureExt;
use slab_net::PacketPool;
use slab_net::udp::{BytesMutReceiver, Coalescing, Transmit, UdpReceiver};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BUFFER: usize = 64 << 10;

fn bind(max_memory: usize) -> BytesMutReceiver {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let receiver = UdpReceiver::builder(&pool).receive_buffer_bytes(1 << 20);
    receiver.bind(LOOPBACK).unwrap().into_bytes_mut(max_memory)
}

async fn receive(receiver: &mut BytesMutReceiver, count: usize) -> Vec<BytesMut> {
    let mut all = Vec::new();
    while all.len() < count {
        all.push(receiver.recv().await.unwrap().packet);
    }
    all
}

#[tokio::test]
async fn every_length_arrives_intact_and_held_buffers_are_not_overwritten() {
    let mut receiver = bind(16 * BUFFER);
    let address = socket2::SockRef::from(&receiver).local_addr().unwrap();
    assert_eq!(address.as_socket(), Some(receiver.local_addr()));
    let sender = receiver.sender();
    let bytes: Vec<u8> = (0..70_000_u32).map(|n| (n / 3) as u8).collect();
    let mut held = Vec::new();
    // Short ones, which share a buffer, between coalesced ones and the longest possible.
    for round in 0..60_usize {
        let (len, segment) = [
            (0, 0),
            (1, 0),
            (1200, 0),
            (50_000, 1000),
            (65_507, 0),
            (9_999, 700),
        ][round % 6];
        let contents = &bytes[round..round + len];
        let transmit = Transmit::new(contents, receiver.local_addr()).segment_size(segment);
        let count = sender.send(&transmit).await.unwrap();
        let mut got = receive(&mut receiver, count).await;
        assert_eq!(got.concat(), contents);
        if segment > 0 {
            assert!(got.iter().all(|one| one.len() <= segment));
        }
        // Each may be written by its owner.
        let last = got.pop().unwrap();
        got.iter_mut().for_each(|one| one.fill(0));
        held.push((round, last));
        if held.len() > 8 {
            held.remove(0);
        }
        for (round, last) in &held {
            let (len, segment) = [0, 1, 1200, 50_000, 65_507, 9_999]
                .map(|len| (len, if len == 50_000 { 1000 } else { 700 }))[round % 6];
            let tail = match len {
                50_000 | 9_999 => (len - 1) % segment + 1,
                len => len,
            };
            assert_eq!(last, &bytes[round + len - tail..round + len]);
        }
        assert!(receiver.allocated_bytes() <= 16 * BUFFER);
    }
    assert_eq!(receiver.monitor().stats().dropped(), 0);
}

#[tokio::test]
async fn at_the_cap_datagrams_are_dropped_until_a_buffer_is_free() {
    let mut receiver = bind(3 * BUFFER);
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let full = vec![7; 54 * 1200];
    let transmit = Transmit::new(&full, receiver.local_addr()).segment_size(1200);
    let mut held = Vec::new();
    for _ in 0..10 {
        sender.send(&transmit).await.unwrap();
        let before = monitor.stats().received_datagrams;
        while monitor.stats().received_datagrams < before + 54 {
            tokio::select! {
                biased;
                datagram = receiver.recv() => held.push(datagram.unwrap().packet),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    // The datagrams of the last call.
    while held.len() as u64 + monitor.stats().dropped_no_memory < 540 {
        held.push(receiver.recv().await.unwrap().packet);
    }
    assert_eq!(receiver.allocated_bytes(), 3 * BUFFER);
    assert!(monitor.stats().dropped_no_memory > 0);
    assert!(
        held.iter()
            .all(|one| one.len() == 1200 && one.iter().all(|&b| b == 7))
    );
    held.clear();
    sender.send(&transmit).await.unwrap();
    let got = receive(&mut receiver, 54).await;
    assert_eq!(got.concat(), full);
    assert_eq!(receiver.allocated_bytes(), 3 * BUFFER, "and none was added");
}

/// As `BytesMutReceiver` advises those who retain many.
#[tokio::test]
async fn datagrams_retained_as_copies_pin_no_buffer() {
    let mut receiver = bind(BUFFER);
    let sender = receiver.sender();
    let full: Vec<u8> = (0..54 * 1200_u32).map(|n| (n / 1200) as u8).collect();
    let transmit = Transmit::new(&full, receiver.local_addr()).segment_size(1200);
    let mut held = Vec::new();
    for _ in 0..10 {
        sender.send(&transmit).await.unwrap();
        for _ in 0..54 {
            let datagram = receiver.recv().await.unwrap();
            held.push(BytesMut::from(&datagram.packet[..]));
        }
    }
    assert_eq!(held.concat(), full.repeat(10));
    assert_eq!(receiver.monitor().stats().dropped(), 0);
    assert_eq!(receiver.allocated_bytes(), BUFFER);
}

/// The one that short payloads share is free, though not among those to be used again.
#[tokio::test]
async fn the_buffer_of_short_payloads_is_used_before_anything_is_dropped() {
    let mut receiver = bind(2 * BUFFER);
    let (sender, to) = (receiver.sender(), receiver.local_addr());
    sender.send(&Transmit::new(b"short", to)).await.unwrap();
    drop(receive(&mut receiver, 1).await);
    let mut held = Vec::new();
    for contents in [[1; 40_000], [2; 40_000]] {
        sender.send(&Transmit::new(&contents, to)).await.unwrap();
        let received = tokio::time::timeout(HANG, receiver.recv()).await;
        let datagram = received.expect("dropped").unwrap();
        assert!(datagram.packet == contents[..]);
        held.push(datagram);
    }
    assert_eq!(receiver.monitor().stats().dropped(), 0);
    // Short payloads share a buffer again once there is one to spare.
    held.clear();
    for _ in 0..2 {
        sender.send(&Transmit::new(b"short", to)).await.unwrap();
        held.push(receiver.recv().await.unwrap());
    }
    assert_eq!(receiver.allocated_bytes(), 2 * BUFFER);
    assert_eq!(
        held[0].packet.as_ptr().wrapping_add(5),
        held[1].packet.as_ptr()
    );
}

/// More is queued than one read drops, and nothing follows that would wake the receiver.
#[tokio::test]
async fn a_waiting_receiver_drains_the_socket_without_free_buffers() {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&reasons);
    let _watching = on_warning(move |event| {
        log.lock().unwrap().extend(field(event, "reason"));
        assert!(field(event, "socket").is_some());
    });
    let logged = || reasons.lock().unwrap().clone();
    let mut receiver = bind(BUFFER);
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let to = receiver.local_addr();
    let full = vec![7; 54 * 1200];
    let transmit = Transmit::new(&full, to).segment_size(1200);
    sender.send(&transmit).await.unwrap();
    let held = receive(&mut receiver, 54).await;
    for _ in 0..100 {
        sender.send(&Transmit::new(&[1; 100], to)).await.unwrap();
    }
    let receiving = tokio::spawn(async move { (receiver.recv().await, receiver) });
    let all_dropped = async {
        while monitor.stats().dropped_no_memory < 100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let all_dropped = tokio::time::timeout(HANG, all_dropped).await;
    all_dropped.expect("the receiver stalled");
    assert_eq!(logged(), ["no_memory"]);
    drop(held);
    // What is received after a second without a drop ends the episode.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    sender.send(&Transmit::new(b"after", to)).await.unwrap();
    let (datagram, _receiver) = receiving.await.unwrap();
    assert_eq!(datagram.unwrap().packet, "after");
    assert_eq!(logged(), ["no_memory", "no_memory"]);
}

/// Receives until there are `count`; none may be dropped, however many are held.
async fn receive_up_to(
    count: usize,
    got: &mut Vec<BytesMut>,
    receiver: &mut BytesMutReceiver,
    held: usize,
) {
    while got.len() < count {
        tokio::select! {
            biased;
            datagram = receiver.recv() => got.push(datagram.unwrap().packet),
            // Datagrams that were dropped will not come.
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(receiver.monitor().stats().dropped(), 0, "with {held} held");
    }
}

/// One datagram each of many buffers is held, and these buffers are adjacent in the ring: the few free ones
/// behind them have to be found.
#[tokio::test]
async fn no_datagram_is_dropped_while_any_buffer_is_free() {
    let mut receiver = bind(100 * BUFFER);
    let sender = receiver.sender();
    let full = vec![7; 40 * 1200];
    let transmit = Transmit::new(&full, receiver.local_addr()).segment_size(1200);
    let mut held = Vec::new();
    for _ in 0..200 {
        sender.send(&transmit).await.unwrap();
        let mut got = Vec::new();
        receive_up_to(40, &mut got, &mut receiver, held.len()).await;
        // Leaves two for the next call, and one to spare.
        if held.len() < 97 {
            held.extend(got.pop());
        }
    }
    assert_eq!(held.len(), 97);
    assert_eq!(receiver.allocated_bytes(), 100 * BUFFER);
}

/// Even if all other buffers wait for the next call.
#[tokio::test]
async fn short_datagrams_share_a_buffer_even_at_the_cap() {
    let mut receiver = bind(8 * BUFFER);
    let sender = receiver.sender();
    let full = vec![7; 40 * 1200];
    let transmit = Transmit::new(&full, receiver.local_addr()).segment_size(1200);
    // Each call offers twice as many buffers as the one before, in the end all of them.
    for burst in [1, 2, 4] {
        for _ in 0..burst {
            sender.send(&transmit).await.unwrap();
        }
        receive(&mut receiver, burst * 40).await;
    }
    let mut held = Vec::new();
    for n in 0..100 {
        let short = Transmit::new(&[7; 9], receiver.local_addr());
        sender.send(&short).await.unwrap();
        receive_up_to(n + 1, &mut held, &mut receiver, n).await;
    }
    // Two fill one, which is then one of those to be used again.
    for _ in 0..40 {
        held.clear();
        let half = Transmit::new(&full[..30_000], receiver.local_addr());
        sender.send(&half).await.unwrap();
        receive_up_to(1, &mut held, &mut receiver, 0).await;
    }
    held.clear();
    for n in 1..=6 {
        sender.send(&transmit).await.unwrap();
        receive_up_to(n * 40, &mut held, &mut receiver, n).await;
    }
}

/// Two of half a buffer fit into one.
#[tokio::test]
async fn a_datagram_of_half_a_buffer_shares_one() {
    let mut receiver = bind(2 * BUFFER);
    let (sender, to) = (receiver.sender(), receiver.local_addr());
    let mut held = Vec::new();
    for len in [BUFFER / 2, BUFFER / 2, 40_000] {
        let contents = vec![7; len];
        sender.send(&Transmit::new(&contents, to)).await.unwrap();
        let received = tokio::time::timeout(HANG, receiver.recv()).await;
        let datagram = received.expect("dropped").unwrap();
        assert!(datagram.packet == contents[..]);
        held.push(datagram);
    }
    assert_eq!(receiver.allocated_bytes(), 2 * BUFFER);
}

/// The stream's wait is given up once, and two of three datagrams of one buffer are left to `recv`.
#[tokio::test]
async fn a_stream_loses_nothing_and_can_be_mixed_with_recv() {
    use futures_util::{Stream, StreamExt};
    let mut receiver = bind(4 * BUFFER);
    // As a `UdpReceiver`'s.
    assert_eq!(receiver.size_hint().0, 0);
    tokio::select! {
        biased;
        datagram = receiver.next() => panic!("{datagram:?} out of nowhere"),
        () = tokio::task::yield_now() => {}
    }
    let three = Transmit::new(b"onetwosix", receiver.local_addr()).segment_size(3);
    receiver.sender().send(&three).await.unwrap();
    assert_eq!(receiver.next().await.unwrap().unwrap().packet, "one");
    assert_eq!(receiver.recv().await.unwrap().packet, "two");
    assert_eq!(receiver.next().await.unwrap().unwrap().packet, "six");
    if cfg!(target_os = "linux") {
        assert_eq!(receiver.monitor().stats().receive_calls, 1);
    }
}

#[tokio::test]
async fn buffers_are_reused_in_the_steady_state() {
    let mut receiver = bind(64 * BUFFER);
    let sender = receiver.sender();
    let full = vec![7; 40 * 1200];
    let transmit = Transmit::new(&full, receiver.local_addr()).segment_size(1200);
    for round in 0..200 {
        sender.send(&transmit).await.unwrap();
        let got = receive(&mut receiver, 40).await;
        assert_eq!(got.concat().len(), full.len());
        assert!(receiver.allocated_bytes() <= 10 * BUFFER, "round {round}");
    }
}

#[tokio::test]
async fn truncated_and_undelivered_datagrams_are_counted() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let builder = UdpReceiver::builder(&pool).coalescing(Coalescing::Off { max_datagram: 100 });
    let mut receiver = builder.bind(LOOPBACK).unwrap().into_bytes_mut(1 << 20);
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    for len in [100, 101, 99] {
        let transmit = Transmit::new(&[1; 101][..len], receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    let got = receive(&mut receiver, 2).await;
    assert_eq!((got[0].len(), got[1].len()), (100, 99));
    assert_eq!(monitor.stats().dropped_truncated, 1);
    for _ in 0..3 {
        let transmit = Transmit::new(b"x", receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    receive(&mut receiver, 1).await;
    drop(receiver);
    let stats = monitor.stats();
    assert_eq!(stats.received_datagrams, 3 + 1 + stats.dropped_closed);
    assert_eq!(
        stats.dropped_closed_bytes, stats.dropped_closed,
        "a byte each"
    );
    let delivered = stats.received_bytes - stats.dropped_bytes();
    assert_eq!(delivered, 100 + 99 + 1);
}

#[tokio::test]
async fn a_subscriber_that_panics_costs_neither_buffers_nor_datagrams() {
    // The first warning is that of a drop.
    let panicked = AtomicBool::new(false);
    let _watching = on_warning(move |_| {
        assert!(
            panicked.swap(true, Ordering::Relaxed),
            "a subscriber panics"
        );
    });
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let builder = UdpReceiver::builder(&pool).coalescing(Coalescing::Off { max_datagram: 100 });
    let mut receiver = builder.bind(LOOPBACK).unwrap().into_bytes_mut(2 * 100);
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    let to = receiver.local_addr();
    // Makes the next read one into two buffers.
    sender.send(&Transmit::new(&[1; 80], to)).await.unwrap();
    receive(&mut receiver, 1).await;
    for len in [101, 99] {
        let transmit = Transmit::new(&[1; 101][..len], to);
        sender.send(&transmit).await.unwrap();
    }
    let panicked = AssertUnwindSafe(receive(&mut receiver, 1)).catch_unwind();
    assert!(panicked.await.is_err());
    sender.send(&Transmit::new(&[1; 98], to)).await.unwrap();
    let got = tokio::time::timeout(HANG, receive(&mut receiver, 2)).await;
    let got = got.expect("hangs");
    assert_eq!((got[0].len(), got[1].len()), (99, 98));
    let stats = monitor.stats();
    assert_eq!((stats.received_datagrams, stats.dropped()), (4, 1));
    assert_eq!(stats.dropped_truncated, 1);
}

/// As it is with a receiver into pool memory.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_receiver_that_was_shut_down_delivers_what_is_queued_and_fails() {
    let mut receiver = bind(1 << 20);
    let ten = Transmit::new(&[7; 1000], receiver.local_addr()).segment_size(100);
    receiver.sender().send(&ten).await.unwrap();
    let _ = socket2::SockRef::from(&receiver).shutdown(std::net::Shutdown::Read);
    assert_eq!(receive(&mut receiver, 10).await, vec![vec![7; 100]; 10]);
    let received = tokio::time::timeout(HANG, receiver.recv()).await;
    let error = received.expect("tries for ever").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
}
