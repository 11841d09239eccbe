//! `PacketChain`: compared with the joined bytes, at its limit, and through real vectored writes.

use bytes::{Buf, Bytes};
use proptest::prelude::*;
use slab_net::{AllocError, Packet, PacketChain, PacketPool, SizeClasses};
use std::io::{IoSlice, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn pool() -> PacketPool {
    PacketPool::builder().max_memory(1 << 20).build().unwrap()
}

fn chain(pool: &PacketPool, parts: &[&[u8]]) -> PacketChain {
    let mut chain = PacketChain::new();
    for part in parts {
        let packet = pool.try_copy_from_slice(part).unwrap();
        chain.push_back(packet).unwrap();
    }
    chain
}

fn panics<R>(f: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn push_to_a_full_chain_returns_the_packet_unchanged() {
    const MOST: usize = PacketChain::MAX_PACKETS;
    let mut chain = PacketChain::new();
    for _ in 0..MOST {
        chain.push_back(Packet::from_static(b"abc")).unwrap();
    }
    let more = Packet::from_static(b"more");
    assert_eq!(chain.push_back(more.clone()), Err(more.clone()));
    assert_eq!(chain.push_front(more.clone()), Err(more.clone()));
    assert_eq!((chain.packets(), chain.len()), (MOST, 3 * MOST));
    chain.push_back(Packet::new()).unwrap();
    assert_eq!(chain.packets(), MOST, "an empty packet takes no place");
    // Reading makes room again.
    chain.advance(4);
    chain.push_front(more).unwrap();
    assert_eq!(chain.copy_to_bytes(9), "morebcabc");
    chain.advance(3 * (MOST - 3));
    assert!(chain.is_empty() && !chain.has_remaining());
}

#[test]
fn many_packets_share_one_chunk() {
    let pool = pool();
    let whole = pool.try_copy_from_slice(&[0; 60_000]).unwrap();
    let mut chain = PacketChain::new();
    for _ in 0..1000 {
        chain.push_back(whole.clone()).unwrap();
    }
    assert_eq!(chain.len(), 60_000_000);
    assert_eq!(pool.slab().stats().in_use(), 1);
}

#[test]
fn chunks_go_back_to_the_pool_as_they_are_read() {
    let pool = pool();
    let mut chain = chain(&pool, &[b"one", b"two", b"three"]);
    assert_eq!(pool.slab().stats().in_use(), 3);
    chain.advance(2);
    assert_eq!(pool.slab().stats().in_use(), 3);
    chain.advance(1);
    assert_eq!(pool.slab().stats().in_use(), 2);
    assert_eq!(chain.pop_front().unwrap(), "two");
    assert_eq!((pool.slab().stats().in_use(), chain.len()), (1, 5));
    chain.clear();
    assert_eq!((pool.slab().stats().in_use(), chain.len()), (0, 0));
    assert_eq!(chain.pop_front(), None);
}

/// The drop of a foreign owner is foreign code, and so is the waker of who waits for the memory.
#[test]
fn a_packet_whose_drop_panics_leaves_the_chain_consistent() {
    struct PanicsOnDrop;

    impl AsRef<[u8]> for PanicsOnDrop {
        fn as_ref(&self) -> &[u8] {
            b"first"
        }
    }

    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("by an owner");
        }
    }

    let make = || {
        let mut chain = PacketChain::from(Packet::from_owner(PanicsOnDrop));
        chain.push_back(Packet::from_static(b"second")).unwrap();
        chain
    };
    let mut chain = make();
    assert!(panics(|| chain.advance(7)));
    assert_eq!((chain.len(), chain.chunk()), (6, &b"second"[..]));
    let mut chain = make();
    assert!(panics(|| chain.clear()));
    assert_eq!((chain.len(), chain.packets()), (0, 0));
}

#[test]
fn chunks_vectored_returns_at_most_the_requested_packet_slices() {
    let pool = pool();
    let chain = chain(&pool, &[b"one", b"two", b"three"]);
    let mut slices = [IoSlice::new(&[]); 2];
    assert_eq!(chain.chunks_vectored(&mut slices), 2);
    assert_eq!((&slices[0][..], &slices[1][..]), (&b"one"[..], &b"two"[..]));
    let mut slices = [IoSlice::new(b"old"); 5];
    assert_eq!(chain.chunks_vectored(&mut slices), 3);
    for (slice, packet) in slices.iter().zip(&chain) {
        assert_eq!(
            (slice.as_ptr(), slice.len()),
            (packet.as_ptr(), packet.len())
        );
    }
    assert_eq!(chain.chunks_vectored(&mut []), 0);
    assert_eq!(PacketChain::new().chunks_vectored(&mut slices), 0);
}

#[test]
fn copy_to_bytes_within_one_packet_shares_memory() {
    let pool = pool();
    let mut chain = chain(&pool, &[b"whole", b"header", b"body"]);
    let at = chain.chunk().as_ptr();
    let whole = chain.copy_to_bytes(5);
    assert_eq!((&whole[..], whole.as_ptr()), (&b"whole"[..], at));
    drop(whole);
    let at = chain.chunk().as_ptr();
    let head = chain.copy_to_bytes(4);
    assert_eq!((&head[..], head.as_ptr()), (&b"head"[..], at));
    assert_eq!(chain.copy_to_bytes(0), "");
    assert_eq!(chain.copy_to_bytes(5), "erbod");
    assert_eq!(chain.copy_to_bytes(1), "y");
    drop((head, chain));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[test]
fn try_to_packet_copies_only_when_joining_several() {
    let pool = pool();
    let several = chain(&pool, &[b"header", b"body"]);
    let joined = several.try_to_packet(&pool).unwrap();
    assert_eq!(joined, "headerbody");
    let one = PacketChain::from(joined.clone());
    assert_eq!(one.try_to_packet(&pool).unwrap().as_ptr(), joined.as_ptr());
    assert!(!one.is_empty());
    assert!(format!("{one:?}").contains("[b\"headerbody\"]"), "{one:?}");
    let none = PacketChain::from(Packet::new());
    assert_eq!((none.is_empty(), none.packets()), (true, 0));
    let none = PacketChain::default();
    assert!(none.try_to_packet(&pool).unwrap().is_empty());

    let classes = SizeClasses::explicit(&[64]).unwrap();
    let small = PacketPool::builder()
        .size_classes(classes)
        .max_memory(65_536);
    let small = small.build().unwrap();
    let long = chain(&pool, &[&[1; 40], &[2; 40]]);
    let refused = long.try_to_packet(&small).unwrap_err();
    assert!(matches!(refused, AllocError::TooLarge { .. }));
    assert_eq!(long.len(), 80);
}

#[test]
fn reading_past_the_end_panics() {
    let pool = pool();
    let chain = || chain(&pool, &[b"ab", b"cd"]);
    assert!(panics(|| chain().advance(5)));
    assert!(panics(|| chain().copy_to_bytes(5)));
    assert!(panics(|| chain().get_u64()));
    assert_eq!(chain().get_u32(), u32::from_be_bytes(*b"abcd"));
    assert!(panics(|| PacketChain::new().get_u8()));
}

#[test]
#[cfg_attr(miri, ignore = "Miri calls a full pipe a deadlock")]
fn a_chain_is_written_by_vectored_writes() {
    let pool = pool();
    let parts: Vec<Vec<u8>> = (0..200u8)
        .map(|n| vec![n; 1 + usize::from(n) * 13])
        .collect();
    let expected = parts.concat();
    let mut chain = PacketChain::new();
    for part in &parts {
        chain.push_back(pool.copy_from_slice(part)).unwrap();
    }
    let (mut from, mut to) = std::io::pipe().unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap();
        all
    });
    let mut calls = 0;
    while chain.has_remaining() {
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = chain.chunks_vectored(&mut slices);
        let sent = to.write_vectored(&slices[..filled]).unwrap();
        chain.advance(sent);
        calls += 1;
    }
    drop(to);
    assert_eq!(reader.join().unwrap(), expected);
    assert!(
        calls < parts.len(),
        "{calls} calls for {} packets",
        parts.len()
    );
    assert_eq!(pool.slab().stats().in_use(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 100 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// However it is read, in whatever steps, the result equals the joined bytes.
    #[test]
    fn a_chain_reads_like_its_concatenated_bytes(
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..12),
        steps in prop::collection::vec((0..5u8, 0..30usize), 0..20),
    ) {
        let pool = pool();
        let mut chain = PacketChain::new();
        for part in &parts {
            chain.push_back(pool.copy_from_slice(part)).unwrap();
        }
        let mut joined = Bytes::from(parts.concat());
        for (step, n) in steps {
            let n = n.min(joined.len());
            match step {
                0 => {
                    chain.advance(n);
                    joined.advance(n);
                }
                1 => prop_assert_eq!(chain.copy_to_bytes(n), joined.copy_to_bytes(n)),
                2 => {
                    let first = chain.pop_front().unwrap_or_default();
                    prop_assert_eq!(&first[..], &joined.split_to(first.len())[..]);
                }
                3 => {
                    let header = Bytes::from(vec![n as u8; n]);
                    chain.push_front(header.clone().into()).unwrap();
                    joined = [header, joined].concat().into();
                }
                _ if n >= 2 => prop_assert_eq!(chain.get_u16_le(), joined.get_u16_le()),
                _ => {}
            }
            prop_assert_eq!(chain.len(), joined.len());
            prop_assert_eq!(chain.chunk().is_empty(), joined.is_empty());
            let all: Vec<u8> = chain.iter().flat_map(|packet| packet.to_vec()).collect();
            prop_assert_eq!(&all, &joined);
            prop_assert_eq!(chain.try_to_packet(&pool).unwrap(), &joined);
        }
        drop(chain);
        prop_assert_eq!(pool.slab().stats().in_use(), 0);
    }
}
