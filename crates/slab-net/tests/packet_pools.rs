//! Which pool a buffer belongs to, and grows into.

use bytes::{Buf, BufMut};
use slab_net::{Packet, PacketBuf, PacketPool, SizeClasses};
use std::sync::Once;

/// A small process-wide pool, because Miri tracks every byte.
fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let classes = SizeClasses::explicit(&[64, 256, 1024, 4096]).unwrap();
        let pool = PacketPool::builder().size_classes(classes);
        pool.max_memory(4 * 65_536).install_default().unwrap();
    });
}

/// A pool whose buffers never leave it: it has headroom, and permits no heap.
fn pool_without_heap(name: &str) -> PacketPool {
    setup();
    PacketPool::builder()
        .name(name)
        .size_classes(SizeClasses::explicit(&[64, 1024]).unwrap())
        .max_memory(2 * 65_536)
        .headroom(16)
        .max_heap_memory(0)
        .build()
        .unwrap()
}

/// The name of the pool that the buffer would grow into.
fn name(buf: &PacketBuf) -> Option<String> {
    Some(buf.pool()?.slab().name().to_owned())
}

#[test]
fn options_of_the_slab_pool_leave_the_others_as_they_were_set() {
    let classes = || SizeClasses::explicit(&[64, 1024]).unwrap();
    let before = PacketPool::builder()
        .name("mine")
        .size_classes(classes())
        .max_memory(2 * 65_536)
        .slab(|slab| slab.zero_on_free(true));
    let after = PacketPool::builder()
        .slab(|slab| slab.zero_on_free(true))
        .max_memory(2 * 65_536)
        .size_classes(classes())
        .name("mine");
    for builder in [before, after] {
        let pool = builder.build().unwrap();
        let slab = pool.slab();
        assert_eq!(slab.name(), "mine");
        assert_eq!(slab.size_classes().sizes(), classes().sizes());
        assert_eq!(slab.max_memory(), 2 * 65_536);
        assert!(slab.zeroes_on_free());
    }
}

#[test]
fn a_clone_is_a_copy_of_the_contents() {
    let pool = pool_without_heap("mine");
    let mut buf = pool.try_alloc(40).unwrap();
    buf.extend_from_slice(b"one");
    let copy = buf.clone();
    buf[0] = b'O';
    assert_eq!((&buf[..], &copy[..]), (&b"One"[..], &b"one"[..]));
    assert_eq!(pool.slab().stats().in_use(), 2);
    assert_eq!(PacketBuf::new().clone().capacity(), 0);
}

#[test]
fn a_copy_of_an_empty_buffer_stays_in_its_pool() {
    let pool = pool_without_heap("mine");
    let empty = pool.try_alloc(0).unwrap();
    let copy = empty.clone();
    assert_eq!(name(&copy).as_deref(), Some("mine"));
    assert_eq!((copy.len(), copy.headroom()), (0, 16));

    // Neither does a packet that has been read completely.
    let mut packet = pool.try_copy_from_slice(b"read").unwrap();
    let other = packet.clone();
    packet.advance(4);
    let buf = PacketBuf::from(packet);
    assert_eq!(name(&buf).as_deref(), Some("mine"));
    drop(other);

    // Without a pool there is none to stay in.
    let packet = Packet::from_static(b"static").slice(..0);
    assert_eq!(name(&PacketBuf::from(packet)), None);
    assert_eq!(name(&PacketBuf::new().clone()), None);
}

#[test]
fn unsplit_with_an_empty_buffer_keeps_the_pool() {
    let pool = pool_without_heap("mine");
    let mut buf = pool.try_alloc(40).unwrap();
    buf.unsplit(PacketBuf::new());
    assert_eq!(name(&buf).as_deref(), Some("mine"));
    buf.put_bytes(1, 500);
    assert_eq!((name(&buf).as_deref(), buf.headroom()), (Some("mine"), 16));
}

/// Each of several pools is found, whether made before or after others that are gone.
#[test]
fn each_buffer_finds_its_own_pool_among_many() {
    let mut pools: Vec<_> = (0..6).map(|n| pool_without_heap(&format!("{n}"))).collect();
    let fill = |pool: &PacketPool| pool.copy_from_slice(b"contents");
    let packets: Vec<_> = pools.iter().map(fill).collect();
    drop(pools.remove(4));
    drop(pools.remove(1));
    let later = pool_without_heap("later");
    for (n, packet) in packets.into_iter().enumerate() {
        let mut buf = PacketBuf::from(packet);
        let own = (n != 1 && n != 4).then(|| n.to_string());
        assert_eq!(name(&buf), own);
        buf.put_bytes(1, 500);
        let default = PacketPool::default_pool().slab().name().to_owned();
        assert_eq!(name(&buf), Some(own.unwrap_or(default)));
    }
    assert_eq!(later.slab().stats().in_use(), 0);
}

#[test]
fn buffers_of_a_closed_pool_grow_into_the_default_pool() {
    let mut buf = pool_without_heap("gone").try_alloc(48).unwrap();
    buf.extend_from_slice(b"orphan");
    assert!(buf.pool().is_none());
    // In its own chunk it grows without headroom.
    buf.advance(4);
    assert!(buf.try_reclaim(buf.tailroom() + 1));
    assert_eq!((&buf[..], buf.headroom()), (&b"an"[..], 0));
    buf.reserve(1000);
    assert_eq!(buf, "an");
    assert_eq!(
        buf.pool().unwrap().slab().name(),
        PacketPool::default_pool().slab().name()
    );
}

/// A handle to the slab pool alone preserves the memory, not the settings.
#[test]
fn a_slab_pool_without_its_packet_pool_uses_default_settings() {
    let pool = pool_without_heap("mine");
    let mut buf = pool.try_alloc(48).unwrap();
    buf.extend_from_slice(b"contents");
    let slab = pool.slab().clone();
    drop(pool);
    buf.reserve(500);
    assert_eq!(name(&buf).as_deref(), Some("mine"));
    assert_eq!((buf.headroom(), slab.stats().in_use()), (0, 1));
    buf.put_bytes(1, 2000);
    assert_eq!(buf.class(), None, "nothing limits the heap any more");
    assert_eq!(name(&buf).as_deref(), Some("mine"));

    // The buffer on the heap is a handle to the slab pool too.
    drop(slab);
    buf.clear();
    let again = buf.pool().unwrap();
    assert!(again.try_alloc(64).is_ok());
    drop((again, buf));
}

#[test]
fn the_first_open_packet_pool_over_a_slab_pool_sets_the_settings() {
    let first = pool_without_heap("mine");
    let second = PacketPool::from(first.slab().clone());
    let mut buf = second.try_alloc(48).unwrap();
    assert_eq!(buf.headroom(), 0);
    let plain = "headroom: 0, tailroom: 0, compact_ratio: 2";
    assert!(format!("{second:?}").contains(plain), "{second:?}");
    buf.put_bytes(1, 500);
    assert_eq!(buf.headroom(), 16);
    drop(first);
    buf.put_bytes(1, 2000);
    assert_eq!((buf.class(), buf.headroom()), (None, 0));
    assert_eq!(second.packet_stats().heap_fallbacks, 1);
}
