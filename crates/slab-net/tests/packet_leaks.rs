//! With leak tracking, reports name the line of the program that requested a packet, not a line of this
//! crate.
#![cfg(feature = "leak-tracking")]

use bytes::BufMut;
use slab_net::{Packet, PacketBuf, PacketPool, SizeClasses};
use std::time::Duration;

fn builder() -> slab_net::PacketPoolBuilder {
    let classes = SizeClasses::explicit(&[64, 256, 1024]).unwrap();
    PacketPool::builder()
        .size_classes(classes)
        .slab(|slab| slab.track_leaks(1))
}

/// Drops `packet`, the only chunk in use, which was requested in this file at that line.
fn check<T>(pool: &PacketPool, (line, packet): (u32, T)) {
    let live = pool.slab().live_chunks();
    let places: Vec<_> = live.iter().map(|chunk| chunk.place).collect();
    assert_eq!(places.len(), 1, "{places:?}");
    assert_eq!((places[0].file(), places[0].line()), (file!(), line));
    drop(packet);
    assert_eq!(pool.slab().live_chunks(), []);
}

#[test]
fn packets_of_a_pool_record_the_call_site() {
    let pool = &builder().headroom(16).build().unwrap();
    check(pool, (line!(), pool.try_alloc(9).unwrap()));
    check(pool, (line!(), pool.with_capacity(9)));
    check(pool, (line!(), pool.try_zeroed(9).unwrap()));
    check(pool, (line!(), pool.zeroed(9)));
    check(pool, (line!(), pool.copy_from_slice(b"abc")));
    check(pool, (line!(), pool.try_copy_from_slice(b"abc").unwrap()));
}

#[tokio::test]
async fn awaited_packets_record_the_call_site() {
    let pool = &builder().build().unwrap();
    let soon = Duration::from_secs(9);
    check(pool, (line!(), pool.alloc(9).await.unwrap()));
    check(pool, (line!(), pool.alloc_timeout(9, soon).await.unwrap()));
}

fn long() -> Packet {
    Packet::from(vec![7; 500])
}

#[test]
fn growth_records_the_call_site() {
    let pool = &builder().build().unwrap();
    type Grow = fn(&mut PacketBuf);
    let grow: [(u32, Grow); 18] = [
        (line!(), |buf| buf.reserve(500)),
        (line!(), |buf| buf.try_reserve(500).unwrap()),
        (line!(), |buf| buf.extend_from_slice(&[7; 500])),
        (line!(), |buf| buf.try_extend_from_slice(&[7; 500]).unwrap()),
        (line!(), |buf| buf.resize(500, 7)),
        (line!(), |buf| buf.try_resize(500, 7).unwrap()),
        (line!(), |buf| buf.put_slice(&[7; 500])),
        (line!(), |buf| buf.put_bytes(7, 500)),
        (line!(), |buf| buf.put(&[7; 500][..])),
        (line!(), |buf| buf.prepend(&[7; 500])),
        (line!(), |buf| buf.try_prepend(&[7; 500]).unwrap()),
        (line!(), |buf| buf.prepend_header(500).fill(7)),
        (line!(), |buf| buf.extend_from_within(..)),
        (line!(), |buf| buf.unsplit(long().into())),
        (line!(), |buf| buf.extend([7; 500])),
        (line!(), |buf| buf.extend(&[7; 500])),
        (line!(), |buf| buf.extend([7; 500].iter().filter(|_| true))),
        (line!(), |buf| buf.extend([long()])),
    ];
    for (line, grow) in grow {
        let mut buf = pool.with_capacity(9);
        buf.extend_from_slice(&[7; 40]);
        grow(&mut buf);
        check(pool, (line, buf));
    }
}

#[test]
fn default_pool_packets_and_copies_record_the_call_site() {
    let pool = &builder().install_default().unwrap();
    check(pool, (line!(), PacketBuf::with_capacity(9)));
    check(pool, (line!(), PacketBuf::zeroed(9)));
    check(pool, (line!(), PacketBuf::from("text")));
    check(pool, (line!(), PacketBuf::from(&b"bytes"[..])));
    check(pool, (line!(), Packet::copy_from_slice(b"bytes")));
    check(pool, (line!(), PacketBuf::from(Packet::from("static"))));

    let pinning = pool.copy_from_slice(&[7; 1000]).slice(..9);
    check(pool, (line!(), pinning.compact()));
}
