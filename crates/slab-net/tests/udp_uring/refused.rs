//! Requests that end, or that the system refuses; and errors of the socket.

use crate::udp_common::warnings::{field, on_warning};
use crate::udp_common::{fail_syscall, occupied, skipped, vacate};
use crate::{HANG, LOOPBACK, OFF, bind, bound, builder, pool};
use slab_net::udp::{Coalescing, PacketBatch, Transmit, UdpReceiver};
use slab_net::{PacketPool, SizeClasses};
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

/// Makes a receiver whose request has ended, because the returned batches hold all of its buffers; another
/// datagram is queued.
async fn receiver_without_request(pool: &PacketPool) -> Option<(UdpReceiver, Vec<PacketBatch>)> {
    let mut receiver = bind(pool, OFF)?;
    let sender = receiver.sender();
    let full = [1; 1500];
    let mut held = Vec::new();
    // Chunks lent after the last of these is received are for the next datagram.
    for _ in 0..32 {
        let transmit = Transmit::new(&full, receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    let late = Transmit::new(b"late", receiver.local_addr());
    sender.send(&late).await.unwrap();
    while held.len() < 32 {
        held.push(receiver.try_recv_batch().unwrap().unwrap());
    }
    Some((receiver, held))
}

#[tokio::test]
async fn try_recv_batch_makes_a_new_request_after_the_last_one_ended() {
    let pool = pool(16);
    let Some((mut receiver, held)) = receiver_without_request(&pool).await else {
        return;
    };
    let late = receiver
        .try_recv_batch()
        .unwrap()
        .expect("a datagram is queued");
    assert_eq!(late.contents(), b"late");
    drop((held, late, receiver));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// A request that the kernel refused once is submitted again.
#[tokio::test]
async fn a_refused_request_is_submitted_again() {
    let pool = pool(16);
    let Some((mut receiver, held)) = receiver_without_request(&pool).await else {
        return;
    };
    let refused = std::thread::spawn(move || {
        if let Err(why) = fail_syscall(libc::SYS_io_uring_enter, libc::EBUSY) {
            skipped("this thread's system cannot be changed", &why);
            return (receiver, false);
        }
        for _ in 0..3 {
            let error = receiver.try_recv_batch().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        }
        (receiver, true)
    });
    let (mut receiver, is_refused) = refused.join().unwrap();
    let late = tokio::time::timeout(HANG, receiver.recv_batch()).await;
    let late = late.expect("hangs").unwrap();
    assert_eq!(late.contents(), b"late");
    assert!(is_refused || receiver.uses_io_uring());
    drop((held, late, receiver));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// A request for which the kernel has no memory at the moment is no error. Until it has, the socket is read by readiness.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_a_request_for_want_of_memory_the_socket_is_read() {
    let pool = pool(16);
    let Some((mut receiver, held)) = receiver_without_request(&pool).await else {
        return;
    };
    let runtime = tokio::runtime::Handle::current();
    let (sender, to) = (receiver.sender(), receiver.local_addr());
    let send = {
        let sender = sender.clone();
        move |datagram: &'static [u8]| {
            assert!(sender.try_send(&Transmit::new(datagram, to)).is_ok())
        }
    };
    let refused = std::thread::spawn(move || {
        if let Err(why) = fail_syscall(libc::SYS_io_uring_enter, libc::EAGAIN) {
            skipped("this thread's system cannot be changed", &why);
            return None;
        }
        let late = receiver.try_recv_batch().unwrap().expect("it is queued");
        assert_eq!(late.contents(), b"late");
        assert!(receiver.try_recv_batch().unwrap().is_none());
        let waits = runtime.block_on(async {
            let wait = receiver.recv_batch();
            send(b"later");
            tokio::time::timeout(HANG, wait).await
        });
        assert_eq!(waits.expect("hangs").unwrap().contents(), b"later");
        Some(receiver)
    });
    let Some(mut receiver) = refused.join().unwrap() else {
        return;
    };
    assert!(receiver.uses_io_uring());
    // Waits by readiness of the ring, for which a request has to be under way.
    let waiting = tokio::spawn(async move { (receiver.recv_batch().await, receiver) });
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    sender.send(&Transmit::new(b"latest", to)).await.unwrap();
    let waited = tokio::time::timeout(HANG, waiting).await;
    let (latest, receiver) = waited.expect("hangs").unwrap();
    assert_eq!(latest.unwrap().contents(), b"latest");
    assert_eq!(receiver.monitor().stats().received_datagrams, 32 + 3);
    drop((held, receiver));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The kernel has nothing of a request that it refused. See `udp_system` for the first request.
#[tokio::test]
async fn a_refused_request_leaks_no_buffer() {
    let pool = pool(16);
    let Some((mut receiver, held)) = receiver_without_request(&pool).await else {
        return;
    };
    let refused = std::thread::spawn(move || {
        if let Err(why) = fail_syscall(libc::SYS_io_uring_enter, libc::EBUSY) {
            return skipped("this thread's system cannot be changed", &why);
        }
        receiver.try_recv_batch().unwrap_err();
        drop((held, receiver));
        assert_eq!(pool.slab().stats().in_use(), 0);
    });
    refused.join().unwrap();
}

/// The kernel has completed datagrams, followed by an error, before anything is reaped.
#[tokio::test]
async fn an_error_after_datagrams_is_reported_after_them_and_once() {
    let pool = pool(16);
    // Who has not waited for the datagrams is not woken for the error by what announced them.
    for waits_for_error in [false, true] {
        let peer = std::net::UdpSocket::bind(LOOPBACK).unwrap();
        let gone = peer.local_addr().unwrap();
        let mut client = builder(&pool, OFF).connect(gone).bind(LOOPBACK).unwrap();
        if !client.uses_io_uring() {
            return skipped("io_uring", &io::ErrorKind::Unsupported.into());
        }
        assert!(
            client.try_recv_batch().unwrap().is_none(),
            "the request is made"
        );
        for n in 0..3 {
            peer.send_to(&[n], client.local_addr()).unwrap();
        }
        vacate(&peer);
        // The ICMP error that nobody is there any more arrives at once.
        let hello = Transmit::new(b"hello", gone);
        client.sender().send(&hello).await.unwrap();
        for n in 0..3 {
            let batch = match waits_for_error {
                true => client.try_recv_batch().unwrap().expect("it is there"),
                false => tokio::time::timeout(HANG, client.recv_batch())
                    .await
                    .expect("hangs")
                    .unwrap(),
            };
            assert_eq!(batch.contents(), [n]);
        }
        let error = match waits_for_error {
            true => tokio::time::timeout(HANG, client.recv_batch())
                .await
                .expect("hangs")
                .unwrap_err(),
            false => client.try_recv_batch().unwrap_err(),
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(client.try_recv_batch().unwrap().is_none(), "once");
        peer.connect(client.local_addr()).unwrap();
        peer.send(b"again").unwrap();
        let batch = tokio::time::timeout(HANG, client.recv_batch()).await;
        assert_eq!(batch.expect("hangs").unwrap().contents(), b"again");
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// A socket that was used before may have an error to report, which says nothing about io_uring.
#[tokio::test]
async fn an_error_from_before_is_reported_once_and_leaves_the_ring() {
    let pool = pool(16);
    if bind(&pool, OFF).is_none() {
        return;
    }
    let occupied = occupied(LOOPBACK);
    let refusing = occupied.local_addr().unwrap();
    let socket = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    socket.connect(refusing).unwrap();
    socket.send(b"is anybody there?").unwrap();
    let mut receiver = builder(&pool, OFF).from_std(socket).unwrap();
    assert!(receiver.uses_io_uring());
    let received = tokio::time::timeout(HANG, receiver.recv_batch()).await;
    let error = received.expect("hangs").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    occupied.connect(receiver.local_addr()).unwrap();
    occupied.send(b"now").unwrap();
    let received = tokio::time::timeout(HANG, receiver.recv_batch()).await;
    assert_eq!(received.expect("hangs").unwrap().contents(), b"now");
}

/// Of a socket that is connected to a port where nobody is.
pub(crate) async fn assert_refusals_wake(client: &mut UdpReceiver, gone: SocketAddr) {
    let sender = client.sender();
    for _ in 0..3 {
        let waits = tokio::time::timeout(HANG, client.recv_batch());
        let (received, sent) = tokio::join!(waits, async {
            tokio::task::yield_now().await;
            sender.send(&Transmit::new(b"hello", gone)).await
        });
        sent.unwrap();
        let error = received.expect("hangs").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}

/// Of a connected socket: nobody is at the peer's port.
#[tokio::test]
async fn connection_refused_wakes_who_receives() {
    let pool = pool(16);
    let occupied = occupied(LOOPBACK);
    let gone = occupied.local_addr().unwrap();
    let Some(mut client) = bound(builder(&pool, OFF).connect(gone)) else {
        return;
    };
    assert_refusals_wake(&mut client, gone).await;
}

/// The only test that causes the warning, which is logged once per process.
#[tokio::test]
async fn without_a_large_enough_class_it_falls_back_with_one_warning() {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&warnings);
    let _watching = on_warning(move |event| {
        log.lock().unwrap().extend(field(event, "error"));
        panic!("a subscriber may panic");
    });
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let bind = || builder(&pool, Coalescing::On).bind(LOOPBACK);
    let warned = std::panic::catch_unwind(AssertUnwindSafe(bind));
    assert_eq!(warned.is_err(), !warnings.lock().unwrap().is_empty());
    for _ in 0..3 {
        let mut receiver = bind().unwrap();
        assert!(!receiver.uses_io_uring());
        let hello = Transmit::new(b"hello", receiver.local_addr());
        receiver.sender().send(&hello).await.unwrap();
        assert_eq!(receiver.recv_batch().await.unwrap().contents(), b"hello");
    }
    let said = std::mem::take(&mut *warnings.lock().unwrap());
    // Without io_uring another test may have caused the warning before.
    let is_ours = self::bind(&self::pool(16), OFF).is_some();
    // Of exactly the length that is needed, it is large enough.
    let sizes = SizeClasses::explicit(&[65_792]).unwrap();
    let exact = PacketPool::builder().size_classes(sizes);
    let exact = exact.max_memory(8 << 20).build().unwrap();
    let receiver = builder(&exact, Coalescing::On).bind(LOOPBACK).unwrap();
    assert_eq!(receiver.uses_io_uring(), is_ours);
    assert!(said.len() <= 1 && (!is_ours || said.len() == 1), "{said:?}");
    if let Some(reason) = said.first().filter(|_| is_ours) {
        assert!(reason.contains("65792"), "{reason}");
    }
}
