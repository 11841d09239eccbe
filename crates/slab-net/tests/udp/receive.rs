//! Receiving from real sockets: every length, both coalescing modes, cancelled futures, contents.

use crate::common::{LOOPBACK, bind, payload, receive, skipped};
use slab_net::PacketPool;
use slab_net::udp::{BindError, Coalescing, Transmit, UdpReceiver, UdpSender};
use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;

fn pool(mebibytes: usize) -> PacketPool {
    PacketPool::builder()
        .max_memory(mebibytes << 20)
        .build()
        .unwrap()
}

fn both_modes() -> [Coalescing; 2] {
    [
        Coalescing::On,
        Coalescing::Off {
            max_datagram: 65507,
        },
    ]
}

#[tokio::test]
async fn every_length_arrives_intact_in_both_modes() {
    for (coalescing, timestamps) in both_modes().into_iter().zip([false, true]) {
        let pool = pool(16);
        let mut receiver = UdpReceiver::builder(&pool)
            .coalescing(coalescing)
            .timestamps(timestamps)
            .bind(LOOPBACK)
            .unwrap();
        let sender = UdpSender::bind(LOOPBACK).unwrap();
        for len in [
            0, 1, 2, 63, 64, 65, 1200, 1472, 1500, 9000, 32768, 32769, 65506, 65507,
        ] {
            let sent = payload(len as u64, len);
            let transmit = Transmit::new(&sent, receiver.local_addr());
            assert_eq!(sender.send(&transmit).await.unwrap(), 1);
            let batch = receiver.recv_batch().await.unwrap();
            assert_eq!(batch.datagrams(), 1);
            assert_eq!(batch.contents(), sent, "{len} {coalescing:?}");
            assert_eq!(batch.source(), sender.local_addr());
            assert!(batch.ecn().is_none());
            // At most twice the payload, except for rounding up to the pool's classes.
            let class = pool.slab().size_classes().class_for(len).unwrap();
            let fitting = pool.slab().size_classes().sizes()[class];
            assert!(batch.chunk_bytes() <= fitting.max(2 * len), "{batch:?}");
            let datagram = batch.into_datagrams().next().unwrap();
            assert_eq!(&datagram.packet[..], sent);
            if cfg!(target_os = "linux") {
                assert_eq!(datagram.destination_ip, Some(Ipv4Addr::LOCALHOST.into()));
                assert_eq!(datagram.timestamp.is_some(), timestamps);
                assert!(datagram.interface.is_some());
            }
        }
        assert_eq!(receiver.monitor().stats().received_datagrams, 14);
        assert_eq!(receiver.monitor().stats().dropped(), 0);
        drop(receiver);
        assert_eq!(pool.slab().stats().in_use(), 0);
    }
}

/// The GRO trap: what a kernel coalesces must either fit, or not be coalesced.
#[tokio::test]
async fn datagrams_are_separated_correctly_with_and_without_gro() {
    for (coalescing, max_per_batch) in [
        (Coalescing::On, 64),
        (Coalescing::Off { max_datagram: 2047 }, 1),
    ] {
        let pool = pool(16);
        let mut receiver = bind(&pool, coalescing);
        let sender = UdpSender::bind(LOOPBACK).unwrap();
        // Ten of 1200 bytes; with a shorter last one; 54 that fill the buffer; a single one.
        for (total, segment) in [(12_000, 1200), (11_001, 1200), (64_800, 1200), (900, 900)] {
            let sent = payload(total as u64, total);
            let transmit = Transmit::new(&sent, receiver.local_addr()).segment_size(segment);
            let expected = total.div_ceil(segment);
            assert_eq!(sender.send(&transmit).await.unwrap(), expected);
            let mut got = Vec::new();
            let mut largest = 0;
            while got.len() < expected {
                let batch = receiver.recv_batch().await.unwrap();
                largest = largest.max(batch.datagrams());
                for datagram in &batch {
                    assert_eq!(datagram.source, sender.local_addr());
                    got.push(datagram.packet.to_vec());
                }
            }
            let want: Vec<Vec<u8>> = sent.chunks(segment).map(<[u8]>::to_vec).collect();
            assert_eq!(got, want, "{coalescing:?} {total}/{segment}");
            assert!(largest <= max_per_batch);
            if cfg!(target_os = "linux") && coalescing == Coalescing::On {
                assert_eq!(largest, expected, "loopback hands a GSO send over whole");
            }
        }
        let stats = receiver.monitor().stats();
        assert_eq!(stats.received_datagrams, 10 + 10 + 54 + 1);
        assert_eq!(stats.received_bytes, 12_000 + 11_001 + 64_800 + 900);
        assert_eq!(stats.dropped(), 0);
    }
}

#[tokio::test]
async fn truncated_datagrams_are_counted_and_not_delivered() {
    // With or without metadata, which uses different system calls.
    for source_only in [false, true] {
        let pool = pool(16);
        let mut receiver = UdpReceiver::builder(&pool)
            .coalescing(Coalescing::Off { max_datagram: 1000 })
            .source_only(source_only)
            .bind(LOOPBACK)
            .unwrap();
        let sender = receiver.sender();
        for len in [999, 1001, 1000, 4000, 65507, 0, 1023, 1024, 1025, 7] {
            let sent = payload(len as u64, len);
            let transmit = Transmit::new(&sent, receiver.local_addr());
            sender.send(&transmit).await.unwrap();
        }
        let got = receive(&mut receiver, 4).await;
        let lens: Vec<usize> = got.iter().map(Vec::len).collect();
        assert_eq!(lens, [999, 1000, 0, 7]);
        for got in got {
            assert_eq!(got, payload(got.len() as u64, got.len()));
        }
        let stats = receiver.monitor().stats();
        assert_eq!(stats.received_datagrams, 10);
        assert_eq!(stats.dropped_truncated, 6);
        assert_eq!(stats.dropped(), 6);
        let delivered: usize = lens.iter().sum();
        let rest = stats.received_bytes - stats.dropped_truncated_bytes;
        assert_eq!(rest, delivered as u64);
        drop(receiver);
        assert_eq!(pool.slab().stats().in_use(), 0);
    }
}

#[tokio::test]
async fn cancelled_receives_lose_nothing() {
    const COUNT: u64 = 2000;
    for coalescing in both_modes() {
        let pool = pool(16);
        let mut receiver = UdpReceiver::builder(&pool)
            .coalescing(coalescing)
            .source_only(coalescing != Coalescing::On)
            .bind(LOOPBACK)
            .unwrap();
        let sender = receiver.sender();
        let to = receiver.local_addr();
        let mut next = 0;
        let mut cancelled = 0;
        let mut in_flight = 0;
        let mut many = Vec::new();
        for round in 0.. {
            if next == COUNT && in_flight == 0 {
                break;
            }
            while next < COUNT && in_flight < 40 {
                let sent = payload(next, 8 + next as usize % 100);
                sender.send(&Transmit::new(&sent, to)).await.unwrap();
                next += 1;
                in_flight += 1;
            }
            // `select!` polls in random order; the futures that lose are dropped.
            tokio::select! {
                batch = receiver.recv_batch() => many.push(batch.unwrap()),
                () = std::future::ready(()) => cancelled += 1,
            }
            tokio::select! {
                count = receiver.recv_batches(&mut many), if round % 3 == 0 => {
                    assert!(count.unwrap() > 0);
                }
                () = tokio::task::yield_now() => cancelled += 1,
            }
            for batch in many.drain(..) {
                for datagram in &batch {
                    let expected = next - in_flight;
                    assert_eq!(
                        datagram.packet,
                        payload(expected, 8 + expected as usize % 100)
                    );
                    in_flight -= 1;
                }
            }
        }
        assert!(cancelled > 10, "the test has to cancel to test cancelling");
        assert_eq!(receiver.monitor().stats().received_datagrams, COUNT);
    }
}

/// A stream that is alternately polled and dropped yields the same as `recv_batch`.
#[tokio::test]
async fn the_stream_yields_every_batch_despite_cancellation() {
    use futures_util::{Stream, StreamExt};

    let pool = pool(16);
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 100 });
    let sender = receiver.sender();
    let to = receiver.local_addr();
    // It never ends, but `take_until` may end it, and tokio-stream's `collect` reserves the lower bound.
    assert_eq!(receiver.size_hint().0, 0);
    let mut got = 0_u64;
    for round in 0..50 {
        for n in 0..20_u64 {
            let sent = (round * 20 + n).to_le_bytes();
            sender.send(&Transmit::new(&sent, to)).await.unwrap();
        }
        while got < (round + 1) * 20 {
            // `select!` polls in random order; the future that loses is dropped.
            tokio::select! {
                () = tokio::task::yield_now() => {}
                batch = receiver.next() => {
                    let batch = batch.expect("the stream ended").unwrap();
                    assert_eq!(batch.contents(), got.to_le_bytes());
                    got += 1;
                }
            }
        }
    }
}

/// A socket that always has something to read lets other tasks run.
#[tokio::test]
async fn a_busy_receiver_yields_its_thread() {
    use std::cell::Cell;
    use std::rc::Rc;

    let pool = pool(16);
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 100 });
    let sender = receiver.sender();
    let to = receiver.local_addr();
    // Tokio has to know that the socket is writable before `try_send` can work.
    sender.send(&Transmit::new(b"hello", to)).await.unwrap();
    receiver.recv_batch().await.unwrap();
    let turns = Rc::new(Cell::new(0));
    let counted = Rc::clone(&turns);
    let other = async move {
        loop {
            counted.set(counted.get() + 1);
            tokio::task::yield_now().await;
        }
    };
    let local = tokio::task::LocalSet::new();
    local.spawn_local(other);
    let all = local.run_until(async move {
        tokio::task::yield_now().await;
        let mut received = 0;
        let before = turns.get();
        while received < 20_000 {
            // Sent without waiting, so only receiving can yield the thread; and as segments, so that sending
            // does not use up the budget.
            let sixty = Transmit::new(&[1; 60], to).segment_size(1);
            assert_eq!(sender.try_send(&sixty).unwrap(), 60);
            for _ in 0..60 {
                received += receiver.recv_batch().await.unwrap().datagrams();
            }
        }
        turns.get() - before
    });
    let turns = tokio::time::timeout(std::time::Duration::from_secs(20), all).await;
    assert!(turns.expect("hangs") > 0);
}

/// The datagrams of the next test, by number: of every length that UDP over IPv4 has.
struct Random {
    is_long: bool,
}

impl Random {
    fn len(&self, number: u64) -> usize {
        let random = |seed| u32::from_le_bytes(payload(seed, 4).try_into().unwrap()) as usize;
        let r = random(number ^ 0xABCD);
        match number % 16 {
            // A run of equal lengths, which can coalesce.
            8..16 => 8 + random(number / 16) % 1400,
            // Few bytes, or none.
            1 => r % 16,
            _ if self.is_long || number.is_multiple_of(160) => r % 65_508,
            _ => r % 3000,
        }
    }

    /// Begins with the number, if there is room for it.
    fn make(&self, number: u64) -> Vec<u8> {
        let len = self.len(number);
        if len < 8 {
            return payload(number, len);
        }
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.extend(payload(number, len - 8));
        bytes
    }

    /// Returns the number of an arrived datagram, which is in `from..to`. If it is too short to contain its
    /// number, it is the next one that looks the same.
    fn number(&self, packet: &[u8], from: u64, to: u64) -> u64 {
        let number = match packet.first_chunk() {
            Some(number) => u64::from_le_bytes(*number),
            None => (from..to)
                .find(|&number| self.len(number) < 8 && self.make(number) == packet)
                .expect("nothing like that was sent"),
        };
        assert!((from..to).contains(&number), "{number}, {from}..{to}");
        assert!(packet == self.make(number), "{number} is damaged");
        number
    }
}

#[tokio::test]
async fn random_datagrams_are_neither_corrupted_nor_aliased() {
    const WINDOW: u64 = 24;
    // A million in the long form (some minutes, with --release).
    let is_long = std::env::var_os("SLAB_NET_STRESS_SECONDS").is_some();
    let count: u64 = if is_long { 1_000_000 } else { 6_000 };
    let random = Random { is_long };
    for coalescing in both_modes() {
        let pool = pool(64);
        let mut receiver = UdpReceiver::builder(&pool)
            .coalescing(coalescing)
            .receive_buffer_bytes(4 << 20)
            .bind(LOOPBACK)
            .unwrap();
        let sender = UdpSender::bind(LOOPBACK).unwrap();
        let to = receiver.local_addr();
        // Some packets are held for long, to see that their memory is not reused.
        let mut kept = HashMap::new();
        let (mut got, mut to_check, mut checked, mut short) = (0_u64, 0, 0, 0);
        // The number sent so far, and the lowest number that can arrive next.
        let (mut next, mut expected) = (0_u64, 0_u64);
        let (mut in_flight, mut dropped) = (0_u64, 0);
        let mut waited = 0;
        while next < count || in_flight > 0 {
            while next < count && in_flight < WINDOW {
                let run = if next % 16 == 8 && next + 8 <= count {
                    8
                } else {
                    1
                };
                let bytes: Vec<u8> = (next..next + run).flat_map(|n| random.make(n)).collect();
                let transmit = Transmit::new(&bytes, to).segment_size(bytes.len() / run as usize);
                assert_eq!(sender.send(&transmit).await.unwrap() as u64, run);
                next += run;
                in_flight += run;
            }
            let second = std::time::Duration::from_secs(1);
            let Ok(batch) = tokio::time::timeout(second, receiver.recv_batch()).await else {
                // If all sockets together have too much queued, the kernel drops datagrams and reports it.
                let told = receiver.monitor().stats().kernel_dropped_datagrams;
                waited = if told > dropped { 0 } else { waited + 1 };
                assert!(waited < 30, "{in_flight} before {next} are gone, unseen");
                if told > dropped {
                    (dropped, in_flight) = (told, 0);
                }
                continue;
            };
            waited = 0;
            for packet in batch.unwrap().into_packets() {
                let number = random.number(&packet, expected, next);
                (got, expected) = (got + 1, number + 1);
                in_flight = in_flight.saturating_sub(1);
                short += u64::from(packet.len() < 8);
                if number.is_multiple_of(50) {
                    kept.insert(number, pool.compact(packet));
                    to_check += 1;
                }
            }
            if kept.len() > 300 || (next == count && in_flight == 0) {
                for (number, packet) in kept.drain() {
                    assert!(packet == random.make(number), "{number} was written to");
                    checked += 1;
                }
            }
        }
        assert_eq!(checked, to_check);
        assert!(short > count / 64, "{short}");
        let stats = receiver.monitor().stats();
        let (missing, told) = (count - got, stats.kernel_dropped_datagrams);
        // The kernel drops up to 64 coalesced datagrams together, and counts them as one.
        let most = if coalescing == Coalescing::On { 64 } else { 1 };
        assert!(
            told <= missing && missing <= most * told,
            "{missing} {stats:?}"
        );
        assert_eq!(stats.received_datagrams, got);
        assert_eq!(stats.dropped(), 0);
        drop(receiver);
        assert_eq!(pool.slab().stats().in_use(), 0);
    }
}

#[tokio::test]
async fn a_lone_datagram_pins_at_most_twice_its_size() {
    for coalescing in both_modes() {
        let pool = pool(16);
        let mut receiver = bind(&pool, coalescing);
        let sender = receiver.sender();
        let sizes = pool.slab().size_classes().sizes();
        // The longest for each class, and the shortest that is too long for it.
        let ends = sizes.iter().flat_map(|&bytes| [bytes, bytes + 1]);
        let lens: Vec<usize> = ends
            .chain([32, 65507])
            .filter(|&len| len <= 65507)
            .collect();
        assert!(lens.len() > 2 * 13);
        for len in lens {
            let alone = payload(len as u64, len);
            let transmit = Transmit::new(&alone, receiver.local_addr());
            sender.send(&transmit).await.unwrap();
            let batch = receiver.recv_batch().await.unwrap();
            assert_eq!(batch.contents(), alone);
            let pinned = batch.chunk_bytes();
            assert!(pinned <= 2 * len, "{pinned} by {len}, {coalescing:?}");
        }
    }
}

#[tokio::test]
async fn an_idle_receiver_holds_no_pool_memory() {
    let pool = pool(16);
    let mut receiver = UdpReceiver::builder(&pool)
        .receive_buffer_bytes(1 << 20)
        .bind(LOOPBACK)
        .unwrap();
    let sender = receiver.sender();
    // A burst makes it take several buffers at once.
    let burst = vec![1; 64_800];
    for _ in 0..4 {
        let transmit = Transmit::new(&burst, receiver.local_addr()).segment_size(1200);
        sender.send(&transmit).await.unwrap();
    }
    let mut left = 4 * 54;
    while left > 0 {
        left -= receiver.recv_batch().await.unwrap().datagrams();
    }
    tokio::select! {
        biased;
        _ = receiver.recv_batch() => panic!("nothing was sent"),
        () = tokio::task::yield_now() => {}
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
    assert!(receiver.try_recv_batch().unwrap().is_none());
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[tokio::test]
async fn bad_configurations_are_refused() {
    let pool = pool(16);
    for max_datagram in [0, 65528, usize::MAX] {
        let refused = UdpReceiver::builder(&pool)
            .coalescing(Coalescing::Off { max_datagram })
            .bind(LOOPBACK);
        assert!(matches!(refused, Err(BindError::MaxDatagram { bytes }) if bytes == max_datagram));
    }
    let small = PacketPool::builder()
        .size_classes(slab_net::SizeClasses::explicit(&[2048]).unwrap())
        .max_memory(1 << 20)
        .build()
        .unwrap();
    assert!(matches!(
        UdpReceiver::bind(LOOPBACK, &small),
        Err(BindError::NoBufferClass {
            needed: 65536,
            largest: 2048
        })
    ));
    let fits = Coalescing::Off { max_datagram: 2047 };
    assert!(
        UdpReceiver::builder(&small)
            .coalescing(fits)
            .bind(LOOPBACK)
            .is_ok()
    );

    let first = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let error = UdpReceiver::bind(first.local_addr(), &pool).unwrap_err();
    assert!(matches!(&error, BindError::Socket { address, .. } if *address == first.local_addr()));
    // Shards beyond all memory: the system is asked first.
    let builder = UdpReceiver::builder(&pool);
    let refused = builder.bind_shards(first.local_addr(), NonZeroUsize::MAX);
    assert!(matches!(refused, Err(BindError::Socket { .. })));
    assert!(error.to_string().contains(&first.local_addr().to_string()));
}

#[cfg(unix)]
#[tokio::test]
async fn shards_share_an_address_and_lose_nothing() {
    let pool = pool(16);
    let shard = |address| {
        UdpReceiver::builder(&pool)
            .reuse_port(true)
            .bind(address)
            .unwrap()
    };
    let mut first = shard(LOOPBACK);
    let mut second = shard(first.local_addr());
    let mut sent = 0;
    // The kernel chooses by the sender's address; of 32 senders each shard gets some.
    for _ in 0..32 {
        let sender = UdpSender::bind(LOOPBACK).unwrap();
        sent += sender
            .send(&Transmit::new(&[1; 40], first.local_addr()).segment_size(10))
            .await
            .unwrap();
    }
    let mut got = [0, 0];
    while got[0] + got[1] < sent {
        tokio::select! {
            batch = first.recv_batch() => got[0] += batch.unwrap().datagrams(),
            batch = second.recv_batch() => got[1] += batch.unwrap().datagrams(),
        }
    }
    assert!(got[0] > 0 && got[1] > 0, "{got:?}");
    assert_eq!(got[0] + got[1], 128);
}

#[tokio::test]
async fn ipv6_works_as_well() {
    let pool = pool(16);
    let Ok(mut receiver) = UdpReceiver::bind("[::1]:0".parse().unwrap(), &pool) else {
        return skipped("IPv6", &io::ErrorKind::Unsupported.into());
    };
    let sender = receiver.sender();
    let sent = payload(6, 3000);
    let transmit = Transmit::new(&sent, receiver.local_addr()).segment_size(1000);
    assert_eq!(sender.send(&transmit).await.unwrap(), 3);
    let got = receive(&mut receiver, 3).await;
    assert_eq!(got.concat(), sent);
}

/// What `try_recv_batch` has read fills all buffers, and tokio never learns that the socket was readable.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_receiver_that_waits_after_a_full_read_holds_no_buffer() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let mut receiver = bind(&pool, Coalescing::Off { max_datagram: 1500 });
    let peer = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    for n in 0..2 {
        peer.send_to(&[n; 8], receiver.local_addr()).unwrap();
    }
    for n in 0..2 {
        let batch = receiver.try_recv_batch().unwrap().expect("it is there");
        assert_eq!(batch.contents(), [n; 8]);
    }
    assert!(receiver.held_bytes() > 0, "for more that may be there");
    tokio::select! {
        biased;
        batch = receiver.recv_batch() => panic!("{batch:?}"),
        () = tokio::task::yield_now() => {}
    }
    assert_eq!(receiver.held_bytes(), 0);
    assert_eq!(pool.slab().stats().in_use(), 0);
}
