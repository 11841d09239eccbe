//! What is handed to the kernel; and that a call that fails costs what it was to send, and nothing behind it. This
//! program has a `sendmmsg` of its own, which fails when it is told to.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod rudp_common;

use libc::{c_int, c_uint, mmsghdr};
use rudp_common::sockets::{TIMEOUT, accept, any, bytes, pool, recv, wait_until};
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
use std::cell::Cell;
use tokio::time::timeout;

thread_local! {
    /// The error that the next call returns; 0 for none.
    static NEXT_ERROR: Cell<c_int> = const { Cell::new(0) };
    /// The bytes that all calls were to send.
    static OFFERED: Cell<usize> = const { Cell::new(0) };
    /// The bytes of the longest message.
    static LONGEST: Cell<usize> = const { Cell::new(0) };
}

/// # Safety
/// As of the system's.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, at: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let messages = unsafe { std::slice::from_raw_parts(at, count as usize) };
    for message in messages {
        let header = &message.msg_hdr;
        // SAFETY: as above, for the pieces that this header lists.
        let pieces = unsafe { std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen) };
        let bytes: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        OFFERED.set(OFFERED.get() + bytes);
        LONGEST.set(LONGEST.get().max(bytes));
    }
    let error = NEXT_ERROR.take();
    if error != 0 {
        // SAFETY: no conditions.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: it points to this thread's variable.
        unsafe { errno.write(error) };
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_sendmmsg, fd, at, count, flags) as c_int }
}

async fn connected(config: EndpointConfig) -> (Endpoint, [Connection; 2]) {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let accepted = accept(&server).await;
    assert_eq!(recv(&accepted).await, b"hello");
    timeout(TIMEOUT, client.ready()).await.unwrap().unwrap();
    (server, [client, accepted])
}

async fn what_a_failed_call_left_is_sent_at_once(config: EndpointConfig) {
    let (server, [client, accepted]) = connected(config).await;
    // More than one call takes.
    let message = bytes(1, 100 * 1300);
    // What is offered to the system before anything else runs on this thread.
    let send = async |error| {
        OFFERED.set(0);
        NEXT_ERROR.set(error);
        client.send_slice(&message).await.unwrap();
        assert_eq!(NEXT_ERROR.get(), 0, "the error was returned");
        let offered = OFFERED.get();
        assert!(recv(&accepted).await == message);
        wait_until(&server, "it is acknowledged", |_| client.is_sent()).await;
        offered
    };
    for error in [libc::EPERM, libc::ECONNREFUSED, libc::EHOSTUNREACH] {
        let mut rounds = 0..100;
        while send(0).await < message.len() {
            rounds.next().expect("the window grows");
        }
        let offered = send(error).await;
        assert!(offered >= message.len(), "{offered} bytes");
    }
}

fn config() -> EndpointConfig {
    EndpointConfig::new(SessionConfig::fast().window(256, 256))
}

#[tokio::test]
async fn plain() {
    what_a_failed_call_left_is_sent_at_once(config()).await;
}

/// Then each datagram is a message.
#[tokio::test]
async fn without_offload_the_kernel_has_nothing_to_split() {
    for offload in [true, false] {
        let (_server, [client, accepted]) = connected(config().offload(offload)).await;
        LONGEST.set(0);
        let message = bytes(1, 10 * 1300);
        client.send_slice(&message).await.unwrap();
        assert!(recv(&accepted).await == message);
        assert_eq!(LONGEST.get() > 1500, offload, "{}", LONGEST.get());
    }
}

#[cfg(feature = "aes-gcm")]
#[tokio::test]
async fn encrypted() {
    what_a_failed_call_left_is_sent_at_once(
        config().aes_gcm(slab_net::rudp::crypto::AesGcm::new(&[7; 32]).unwrap()),
    )
    .await;
}
