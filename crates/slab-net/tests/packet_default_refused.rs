//! The process-wide pool when the system refuses its memory, in a process of its own, because the limit
//! applies to the whole process.
#![cfg(all(target_os = "linux", not(miri)))]

use slab_net::{Packet, PacketBuf, PacketPool};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The limit of the process's address space, in bytes.
fn limit() -> libc::rlimit {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call only writes the limit.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    assert_eq!(result, 0);
    limit
}

fn set_limit(limit: libc::rlimit) {
    // SAFETY: the call only reads the limit.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!(result, 0);
}

/// The address space that the process uses, in bytes.
fn used_address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn default_pool_users_panic_until_address_space_is_available() {
    let before = limit();
    // Enough for everything else in the test, and half of what the pool needs.
    let tight = (used_address_space() + (32 << 20)).min(before.rlim_max);
    set_limit(libc::rlimit {
        rlim_cur: tight,
        ..before
    });
    type Use = (&'static str, fn());
    let uses: [Use; 7] = [
        ("default_pool", || drop(PacketPool::default_pool().clone())),
        ("with_capacity", || drop(PacketBuf::with_capacity(1))),
        ("zeroed", || drop(PacketBuf::zeroed(1))),
        ("from", || drop(PacketBuf::from("text"))),
        ("reserve", || PacketBuf::new().reserve(1)),
        ("collect", || drop([1u8].iter().collect::<PacketBuf>())),
        ("copy_from_slice", || drop(Packet::copy_from_slice(b"x"))),
    ];
    for (name, user) in uses {
        assert!(catch_unwind(user).is_err(), "{name}");
    }
    // A buffer without a pool is unchanged after a failed growth, with memory of its own or without.
    let grow: [fn(&mut PacketBuf); 4] = [
        |buf| buf.extend_from_slice(b"text"),
        |buf| buf.prepend(b"text"),
        |buf| buf.try_reserve(4).unwrap(),
        |buf| buf.try_prepend(b"text").unwrap(),
    ];
    let own = b"own".to_vec().into_boxed_slice();
    let mut own = Packet::from(own).try_into_mut().unwrap();
    let mut buf = PacketBuf::new();
    for grow in grow {
        let grown = catch_unwind(AssertUnwindSafe(|| grow(&mut own)));
        assert!(grown.is_err());
        assert_eq!(own, "own");
        let grown = catch_unwind(AssertUnwindSafe(|| grow(&mut buf)));
        assert!(grown.is_err() && buf.is_empty());
    }
    // What needs no memory does not need the pool either.
    drop((PacketBuf::new(), PacketBuf::zeroed(0), Packet::new()));

    set_limit(before);
    buf.extend_from_slice(b"text");
    assert_eq!(buf, "text");
    own.prepend(b"its ");
    assert_eq!(own, "its own");
}
