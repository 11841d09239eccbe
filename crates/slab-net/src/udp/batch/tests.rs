//! Tests of batches whose chunks are filled by hand, also as no socket would.

use super::*;
use slab_core::SlabPool;
use std::net::Ipv4Addr;

fn pool() -> SlabPool {
    SlabPool::builder().max_memory(4 << 20).build().unwrap()
}

fn batch(pool: &SlabPool, payload: &[u8], stride: usize) -> PacketBatch {
    batch_behind(pool, &[], payload, stride)
}

/// With bytes in front of the payload, as io_uring leaves them.
fn batch_behind(pool: &SlabPool, front: &[u8], payload: &[u8], stride: usize) -> PacketBatch {
    let (start, all) = (front.len(), [front, payload].concat());
    let mut chunk = pool.try_alloc(all.len()).unwrap();
    chunk.try_copy_from_slice(&all).unwrap();
    let mut meta = Metadata::new((Ipv4Addr::LOCALHOST, 7).into());
    meta.interface = Some(1);
    meta.destination = Some(Ipv4Addr::LOCALHOST.into());
    // SAFETY: the payload was just written, and there is no other reference to the chunk.
    unsafe { PacketBatch::new(chunk.into_shared(), start, payload.len(), stride, meta) }
}

#[test]
fn bytes_in_front_of_the_payload_are_neither_visible_nor_changed() {
    let pool = pool();
    let make = || batch_behind(&pool, &[255; 16], b"onetwosix!", 3);
    let expected = [&b"one"[..], b"two", b"six", b"!"];

    let mut batch = make();
    assert_eq!(batch.contents(), b"onetwosix!");
    batch.contents_mut().unwrap().make_ascii_uppercase();
    assert_eq!(batch.contents(), b"ONETWOSIX!");
    // SAFETY: the chunk begins with the 16 bytes that `make` wrote in front.
    let front = unsafe { core::slice::from_raw_parts(batch.chunk.as_ptr().as_ptr(), 16) };
    assert_eq!(front, [255; 16]);

    assert!(make().iter().map(|datagram| datagram.packet).eq(expected));
    assert!(make().into_packets().eq(expected));
    assert!(make().into_datagrams().map(|d| d.packet).eq(expected));
    assert!(make().into_bytes().eq(expected));
    let batch = make();
    let reply = Transmit::new(b"onetwosix!", batch.source()).segment_size(3);
    assert_eq!(format!("{:?}", batch.reply()), format!("{reply:?}"));

    let mut shared = make();
    let kept = shared.chunk.clone();
    assert!(shared.contents_mut().is_none(), "somebody else reads it");
    drop(kept);
    assert!(shared.contents_mut().is_some());
}

#[test]
fn borrowed_and_owned_slices_agree_for_every_shape() {
    let pool = pool();
    let bytes: Vec<u8> = (0..=255).collect();
    // (length, stride, expected lengths). Strides of 0 and above the length are impossible, and
    // must yield one datagram.
    let cases: &[(usize, usize, &[usize])] = &[
        (0, 0, &[0]),
        (1, 1, &[1]),
        (5, 5, &[5]),
        (10, 5, &[5, 5]),
        (11, 5, &[5, 5, 1]),
        (3, 1, &[1, 1, 1]),
        (7, 0, &[7]),
        (7, 9, &[7]),
    ];
    for &(len, stride, expected) in cases {
        let batch = batch(&pool, &bytes[..len], stride);
        assert_eq!(batch.datagrams(), expected.len());
        let mut at = 0;
        for (datagram, &want) in batch.iter().zip(expected) {
            assert_eq!(datagram.packet, &bytes[at..at + want]);
            assert_eq!(datagram.interface, Some(1));
            at += want;
        }
        assert_eq!(batch.iter().count(), expected.len());
        assert_eq!(batch.iter().len(), expected.len());

        let again = self::batch(&pool, &bytes[..len], stride);
        let payloads: Vec<Bytes> = again.into_bytes().collect();
        let mut at = 0;
        assert_eq!(payloads.len(), expected.len());
        for (payload, &want) in payloads.iter().zip(expected) {
            assert_eq!(payload, &bytes[at..at + want]);
            at += want;
        }
        drop(payloads);

        let packets: Vec<Packet> = batch.into_packets().collect();
        assert_eq!(packets.len(), expected.len());
        let mut at = 0;
        for (packet, &want) in packets.iter().zip(expected) {
            assert_eq!(&packet[..], &bytes[at..at + want]);
            at += want;
        }
        assert_eq!(pool.stats().in_use(), 1);
        drop(packets);
        assert_eq!(pool.stats().in_use(), 0);
    }
}

#[test]
fn split_first_leaves_the_remaining_datagrams_unchanged() {
    let pool = pool();
    for payload in [&b"onetwosix"[..], b"onetwosi", b"one", b"onet"] {
        let mut batch = batch_behind(&pool, &[255; 5], payload, 3);
        let mut rest = payload.chunks(3);
        let mut taken = Vec::new();
        while !batch.is_single() {
            let datagram = batch.split_first();
            assert_eq!(datagram.packet, rest.next().unwrap());
            assert_eq!(datagram.interface, Some(1));
            taken.push(datagram.packet);
            assert_eq!(batch.segment_size(), batch.contents().len().min(3));
            assert!(batch.iter().map(|d| d.packet).eq(rest.clone()));
            assert!(batch.contents_mut().is_none(), "a packet could see it");
        }
        assert!(batch.into_packets().eq(rest));
        assert_eq!(pool.stats().in_use(), u64::from(!taken.is_empty()));
        drop(taken);
        assert_eq!(pool.stats().in_use(), 0);
    }
}

#[test]
fn a_half_consumed_iterator_releases_everything() {
    let pool = pool();
    for taken in 0..=4 {
        let mut packets = batch(&pool, &[7; 100], 25).into_packets();
        let kept: Vec<Packet> = packets.by_ref().take(taken).collect();
        assert_eq!(packets.len(), 4 - taken);
        drop(packets);
        assert_eq!(pool.stats().in_use(), u64::from(taken > 0));
        drop(kept);
        assert_eq!(pool.stats().in_use(), 0);
    }
}

#[test]
fn packets_dropped_on_other_threads_free_the_chunk() {
    let pool = pool();
    let packets = batch(&pool, &[9; 64 * 100], 100).into_packets();
    let threads: Vec<_> = packets
        .map(|packet| std::thread::spawn(move || assert_eq!(&packet[..], &[9; 100])))
        .collect();
    assert_eq!(threads.len(), 64);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(pool.stats().in_use(), 0);
}
