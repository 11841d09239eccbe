//! Batches that are made without a socket, as a test of consuming code makes them.

use slab_net::pipeline::{Overflow, flow_queues, queue};
use slab_net::udp::{BatchError, Ecn, PacketBatch, UdpReceiver};
use slab_net::{AllocError, PacketPool};
use std::error::Error as _;
use std::net::SocketAddr;

const SOURCE: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    53,
);

fn pool() -> PacketPool {
    // Headroom is for what is to be sent.
    let pool = PacketPool::builder().max_memory(1 << 20).headroom(40);
    pool.build().unwrap()
}

#[test]
fn a_payload_is_divided_as_by_a_sender() {
    let pool = pool();
    let bytes: Vec<u8> = (0..=255).collect();
    // (length, segment size, expected lengths)
    let cases: &[(usize, usize, &[usize])] = &[
        (0, 0, &[0]),
        (0, 9, &[0]),
        (1, 1, &[1]),
        (10, 5, &[5, 5]),
        (11, 5, &[5, 5, 1]),
        (7, 0, &[7]),
        (7, 7, &[7]),
        (7, 9, &[7]),
        (128, 1, &[1; 128]),
    ];
    for &(len, segment_size, expected) in cases {
        let payload = &bytes[..len];
        let make = || PacketBatch::try_copy_from_slice(&pool, payload, segment_size, SOURCE);
        let mut batch = make().unwrap();
        assert_eq!((batch.contents(), batch.source()), (payload, SOURCE));
        assert_eq!(batch.datagrams(), expected.len());
        assert!(batch.contents_mut().is_some(), "nobody else has it");
        assert!(batch.chunk_bytes() >= len.max(1));
        let lengths: Vec<_> = batch.iter().map(|datagram| datagram.packet.len()).collect();
        assert_eq!(lengths, expected);
        let bufs = make().unwrap().try_into_bufs().expect("nobody else has it");
        assert_eq!(bufs.len(), expected.len());
        let mut bufs: Vec<_> = bufs.collect();
        for (number, buf) in bufs.iter_mut().enumerate() {
            assert_eq!(buf.len(), expected[number]);
            buf.fill(number as u8);
        }
        for (number, buf) in bufs.iter().enumerate() {
            assert!(buf.iter().all(|&byte| byte == number as u8), "{buf:?}");
        }
        assert_eq!(pool.slab().stats().in_use(), 2);
        drop(bufs);
        let packets: Vec<_> = batch.into_packets().collect();
        assert_eq!(packets.concat(), payload);
        assert_eq!(pool.slab().stats().in_use(), 1);
        drop(packets);
        assert_eq!(pool.slab().stats().in_use(), 0);
    }
}

/// What one of them grows into is no other's.
#[test]
fn the_buffers_of_a_batch_grow_and_are_kept_apart() {
    let pool = pool();
    let batch = PacketBatch::try_copy_from_slice(&pool, b"onetwosix", 3, SOURCE).unwrap();
    let at = batch.contents().as_ptr();
    let mut bufs: Vec<_> = batch.try_into_bufs().unwrap().collect();
    assert_eq!(bufs[2].as_ptr(), at.wrapping_add(6), "nothing is copied");
    assert_eq!(bufs[0].tailroom(), 0);
    for buf in &mut bufs {
        buf.extend_from_slice(b" more");
        buf.prepend(b"no ");
    }
    assert_eq!(bufs, ["no one more", "no two more", "no six more"]);
    let last = bufs.pop().unwrap();
    drop(bufs);
    let freed = std::thread::spawn(move || drop(last));
    freed.join().unwrap();
    assert_eq!(pool.slab().stats().in_use(), 0);
    // An iterator that is not finished keeps nothing.
    let batch = PacketBatch::try_copy_from_slice(&pool, b"onetwosix", 3, SOURCE).unwrap();
    let mut some = batch.try_into_bufs().unwrap();
    assert_eq!(some.next().unwrap(), "one");
    drop(some);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[test]
fn only_the_source_is_known_and_a_datagram_can_say_more() {
    let batch = PacketBatch::try_copy_from_slice(&pool(), b"onetwo", 3, SOURCE).unwrap();
    assert_eq!((batch.destination_ip(), batch.interface()), (None, None));
    assert_eq!((batch.ecn(), batch.timestamp()), (None, None));
    assert!(!batch.is_truncated());
    let mut datagram = batch.into_datagrams().last().unwrap();
    datagram.ecn = Some(Ecn::Ce);
    assert_eq!(
        (&datagram.packet[..], datagram.source),
        (&b"two"[..], SOURCE)
    );
}

#[test]
fn what_no_kernel_buffer_holds_is_refused() {
    let pool = pool();
    let make = |bytes: &[u8], size| PacketBatch::try_copy_from_slice(&pool, bytes, size, SOURCE);
    let bytes = [7; 65_528];
    assert_eq!(make(&bytes[..65_527], 0).unwrap().datagrams(), 1);
    let error = make(&bytes, 1000).unwrap_err();
    assert_eq!(error, BatchError::TooLong { bytes: 65_528 });
    let text = "a batch has at most 65527 bytes, not 65528";
    assert_eq!(error.to_string(), text);
    let error = make(&bytes[..257], 2).unwrap_err();
    assert_eq!(error, BatchError::TooManyDatagrams { datagrams: 129 });
    let text = "a batch has at most 128 datagrams, not 129";
    assert_eq!(error.to_string(), text);

    let all: Vec<_> = std::iter::from_fn(|| make(&bytes[..60_000], 0).ok()).collect();
    assert!(!all.is_empty());
    let error = make(&bytes[..60_000], 0).unwrap_err();
    let chunk_bytes = 65_536;
    assert_eq!(
        error,
        BatchError::NoMemory(AllocError::Exhausted { chunk_bytes })
    );
    assert!(error.source().is_some());
    drop(all);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The counters of a queue are the same as with batches from a socket.
#[tokio::test]
async fn a_consumer_can_be_tested_without_a_socket() {
    let pool = pool();
    let make = |payload| PacketBatch::try_copy_from_slice(&pool, payload, 4, SOURCE).unwrap();
    let (sender, receiver) = queue(2.try_into().unwrap(), Overflow::DropNewest);
    for payload in [&b"one"[..], b"two and three", b"dropped"] {
        sender.send(make(payload)).await.unwrap();
    }
    drop(sender);
    let mut received = Vec::new();
    while let Some(batch) = receiver.recv().await {
        let reply = batch.reply();
        assert!(format!("{reply:?}").contains("192.0.2.1:53"));
        received.extend(batch.into_datagrams().map(|datagram| datagram.packet));
    }
    assert_eq!(received, ["one", "two ", "and ", "thre", "e"]);
    let stats = receiver.monitor().stats();
    assert_eq!((stats.delivered, stats.delivered_bytes), (5, 3 + 13));
    assert_eq!(
        (stats.dropped_queue_full, stats.dropped_queue_full_bytes),
        (2, 7)
    );
}

/// Types of a program hold these, and are printed when a test fails.
#[cfg_attr(miri, ignore = "Miri has no UDP sockets")]
#[tokio::test]
async fn debug_output_is_short_and_shows_no_payload() {
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let receiver = UdpReceiver::bind(any, &pool).unwrap();
    let address = receiver.local_addr().to_string();
    let batch = PacketBatch::try_copy_from_slice(&pool, &[7; 60_000], 1000, any).unwrap();
    let iter = format!("{:?}", batch.iter());
    let (sender, queued) = queue(4.try_into().unwrap(), Overflow::DropOldest);
    sender.send(batch).await.unwrap();
    let two = 2.try_into().unwrap();
    let flows = flow_queues(two, two, Overflow::Wait);
    let printed = [
        format!("{receiver:?}"),
        format!("{:?}", receiver.sender()),
        format!("{sender:?}"),
        format!("{queued:?}"),
        format!("{flows:?}"),
        iter,
    ];
    for text in &printed {
        assert!(text.len() < 1000, "{text}");
    }
    assert!(printed[..2].iter().all(|text| text.contains(&address)));
    assert!(printed[3].contains("len: 1"), "{}", printed[3]);
}
