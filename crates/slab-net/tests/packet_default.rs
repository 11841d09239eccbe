//! The process-wide pool, in a process of its own, because it can be set only once.

use bytes::BufMut;
use slab_net::{Packet, PacketBuf, PacketPool, PacketPoolError};

#[test]
fn the_default_pool_can_be_installed_only_once_and_before_use() {
    // Empty ones do not make it.
    let none = (PacketBuf::zeroed(0), Packet::copy_from_slice(b""));
    assert!(none.0.is_empty() && none.1.is_empty());
    let small = || PacketPool::builder().name("mine").max_memory(2 << 20);
    let refused = small().max_memory(1).install_default();
    assert!(matches!(refused, Err(PacketPoolError::Slab(_))));

    let installed = small().headroom(32).install_default().unwrap();
    assert_eq!(PacketPool::default_pool().slab().name(), "mine");
    let again = small().name("other").install_default();
    assert!(matches!(again, Err(PacketPoolError::DefaultInUse)));

    // It serves all constructors that take no pool.
    let mut grown = PacketBuf::new();
    grown.put_u8(1);
    let alive = (
        PacketBuf::with_capacity(100),
        PacketBuf::zeroed(100),
        PacketBuf::from("text"),
        PacketBuf::from(&b"bytes"[..]),
        [1u8, 2, 3].iter().collect::<PacketBuf>(),
        Packet::copy_from_slice(b"copy"),
        vec![1u8, 2].into_iter().collect::<Packet>(),
        grown,
    );
    assert_eq!(installed.slab().stats().in_use(), 8);
    assert_eq!(alive.7.headroom(), 32);
    drop(alive);
    assert_eq!(installed.slab().stats().in_use(), 0);

    // Empty buffers and packets take no memory.
    let none = (
        PacketBuf::new(),
        PacketBuf::with_capacity(0),
        PacketBuf::from(""),
    );
    assert_eq!(installed.slab().stats().in_use(), 0);
    drop(none);
    let allocs = |class: &slab_core::ClassStats| class.allocs;
    let before: u64 = installed.slab().stats().classes().iter().map(allocs).sum();
    let none = (
        Packet::new(),
        Packet::from_static(b"x"),
        Packet::copy_from_slice(b""),
    );
    let after: u64 = installed.slab().stats().classes().iter().map(allocs).sum();
    assert_eq!((after, none.0.len()), (before, 0));
}

#[test]
fn headroom_and_tailroom_that_fill_the_chunk_are_refused() {
    let pool = PacketPool::builder().max_memory(2 << 20);
    for (headroom, tailroom) in [(65_536, 0), (0, 65_536), (32_768, 32_768), (usize::MAX, 1)] {
        let refused = pool.clone().headroom(headroom).tailroom(tailroom).build();
        let error = refused.unwrap_err();
        assert!(matches!(
            error,
            PacketPoolError::NoRoom {
                largest: 65_536,
                ..
            }
        ));
        assert!(error.to_string().contains("65536"), "{error}");
    }
    assert!(pool.headroom(32_768).tailroom(32_767).build().is_ok());
}
