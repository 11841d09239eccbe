//! Waiting for room in a device, and errors from devices on the path, with an Ethernet whose other end is the
//! test.
//!
//! A network of its own takes privileges; without them these tests have nothing to test.

#[cfg(feature = "quinn")]
use crate::common::HANG;
use crate::common::network::{run_on_own_thread, set_link_up, unshare_network};
use crate::common::tap::Tap;
use crate::common::{fail_syscall, pool, skipped};
use futures_util::SinkExt;
use slab_net::udp::{Outgoing, SendErrorKind, Transmit, UdpReceiver, UdpSender};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Wake};
use std::thread;
use std::time::Duration;

/// Runs a test in a network of its own, with an Ethernet.
fn with_tap<F: Future<Output = ()> + 'static>(test: fn(Tap) -> F) {
    run_on_own_thread(unshare_network, move || async move {
        match Tap::open() {
            Ok(tap) => test(tap).await,
            Err(why) => skipped("there is no tap device", &why),
        }
    });
}

/// Polls a future once or a few times, and asserts that it waits.
async fn assert_pending<T: std::fmt::Debug>(future: &mut (impl Future<Output = T> + Unpin)) {
    tokio::select! {
        biased;
        done = future => panic!("completed instead of waiting: {done:?}"),
        () = tokio::task::yield_now() => {}
    }
}

#[test]
fn sends_wait_for_a_full_send_buffer_and_send_each_datagram_once() {
    async fn test(mut tap: Tap) {
        let pool = pool();
        let receiver = UdpReceiver::builder(&pool)
            .send_buffer_bytes(4096)
            .bind((Tap::OURS, 0).into())
            .unwrap();
        let (sender, to) = (receiver.sender(), SocketAddr::from((Tap::THEIRS, 7777)));
        let payloads: Vec<[u8; 1000]> = (0..60_u8).map(|n| [n; 1000]).collect();
        // Different destinations, so that each is a message and the kernel may stop at any of them.
        let transmits: Vec<Transmit<'_>> =
            payloads.iter().map(|one| Transmit::new(one, to)).collect();
        sender.send(&transmits[0]).await.unwrap();
        let mut sent = 1;
        loop {
            match sender.try_send(&transmits[sent]) {
                Ok(count) => sent += count,
                Err(full) => {
                    assert!(matches!(full.kind(), SendErrorKind::WouldBlock), "{full}");
                    assert_eq!((full.sent(), full.destination()), (0, Some(to)));
                    assert_eq!(io::Error::from(full).kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            }
            assert!(sent < 40, "the send buffer is never full");
        }
        assert_eq!(sender.try_send_many(&transmits[sent..]).unwrap(), 0);
        assert_eq!(sender.monitor().stats().sent_datagrams, sent as u64);

        // One waits in a task's future, and beside it one in a sink.
        let mut rest = Box::pin(sender.send_many(&transmits[sent..50]));
        assert_pending(&mut rest).await;
        let mut sink = sender.sink();
        for one in &payloads[50..] {
            let payload = pool.try_copy_from_slice(one).unwrap();
            sink.feed(Outgoing::new(payload, to)).await.unwrap();
        }
        let mut flush = Box::pin(sink.flush());
        assert_pending(&mut flush).await;
        tap.add_arp_entry();
        // Before tokio has noticed that there is room.
        let elsewhere = Transmit::new(b"x", (Tap::THEIRS, 7778).into());
        assert_eq!(sender.try_send(&elsewhere).unwrap(), 1);
        let (all, flushed) = tokio::join!(rest, flush);
        assert_eq!(all.unwrap(), 50 - sent);
        flushed.unwrap();
        let payload = pool.try_copy_from_slice(b"y").unwrap();
        let again = Outgoing::new(payload, (Tap::THEIRS, 7778).into());
        sink.send(again).await.unwrap();
        let mut arrived: Vec<u8> = tap.datagrams(7777).iter().map(|one| one[0]).collect();
        arrived.sort_unstable();
        assert_eq!(arrived, (0..60).collect::<Vec<u8>>());
        assert_eq!(sender.monitor().stats().sent_datagrams, 62);
    }
    with_tap(test);
}

/// Whoever waits for room needs one more.
#[test]
fn a_send_waits_for_room_even_if_no_descriptor_is_left() {
    async fn test(tap: Tap) {
        let receiver = UdpReceiver::builder(&pool())
            .send_buffer_bytes(4096)
            .bind((Tap::OURS, 0).into())
            .unwrap();
        if let Err(why) = fail_syscall(libc::SYS_fcntl, libc::EMFILE) {
            return skipped("this thread's system cannot be changed", &why);
        }
        let (sender, to) = (receiver.sender(), SocketAddr::from((Tap::THEIRS, 7777)));
        let one = Transmit::new(&[7; 1000], to);
        while sender.try_send(&one).is_ok() {}
        let mut next = pin!(sender.send(&one));
        for _ in 0..10 {
            assert_pending(&mut next).await;
        }
        tap.add_arp_entry();
        next.await.unwrap();
    }
    with_tap(test);
}

/// An ICMP error reported once must not end a connected socket: other tasks run while it waits for room.
#[test]
fn a_socket_with_an_icmp_error_still_waits_for_room() {
    async fn test(tap: Tap) {
        set_link_up(b"lo", true);
        let pool = pool();
        let nobody = UdpSocket::bind((Tap::OURS, 0)).unwrap();
        let refusing = nobody.local_addr().unwrap();
        drop(nobody);
        let receiver = UdpReceiver::builder(&pool)
            .send_buffer_bytes(4096)
            .connect(refusing)
            .bind((Tap::OURS, 0).into())
            .unwrap();
        let (sender, to) = (receiver.sender(), SocketAddr::from((Tap::THEIRS, 7777)));
        sender
            .send(&Transmit::new(b"hello", refusing))
            .await
            .unwrap();
        let mut refused = false;
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let again = sender.send(&Transmit::new(b"hello", refusing)).await;
            refused |= again.is_err_and(|e| matches!(e.kind(), SendErrorKind::Refused));
        }
        assert!(refused);

        let payload = [7; 1000];
        let transmits: Vec<_> = (0..40).map(|_| Transmit::new(&payload, to)).collect();
        let mut sink = sender.sink();
        let answer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            tap.add_arp_entry();
            tap
        });
        let mut ticks = 0;
        let all = async {
            while sender.send_many(&transmits).await.is_err() {}
            for _ in 0..40 {
                let payload = pool.try_copy_from_slice(&payload).unwrap();
                let _ = sink.feed(Outgoing::new(payload, to)).await;
            }
            sink.flush().await
        };
        let ticking = async {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                ticks += 1;
            }
        };
        tokio::select! {
            sent = all => sent.unwrap(),
            () = ticking => {}
        }
        assert!(ticks > 10, "{ticks}");
        drop(answer.join().unwrap());
    }
    with_tap(test);
}

/// The same test, polled outside tokio: only the socket belongs to it.
#[test]
fn a_socket_with_an_icmp_error_waits_for_room_outside_a_runtime() {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    fn test() {
        let tap = match Tap::open() {
            Ok(tap) => tap,
            Err(why) => return skipped("there is no tap device", &why),
        };
        set_link_up(b"lo", true);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .build()
            .unwrap();
        let inside = runtime.enter();
        let nobody = UdpSocket::bind((Tap::OURS, 0)).unwrap();
        let refusing = nobody.local_addr().unwrap();
        drop(nobody);
        let receiver = UdpReceiver::builder(&pool())
            .send_buffer_bytes(4096)
            .connect(refusing)
            .bind((Tap::OURS, 0).into())
            .unwrap();
        drop(inside);
        let sender = receiver.sender();
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut cx = Context::from_waker(&waker);
        // Before the error, of which what has waited once is then told, and after it.
        for last in [2, 3] {
            let to = Ipv4Addr::new(10, 9, 9, last);
            let payload = [7; 1000];
            let transmit = Transmit::new(&payload, (to, 7777).into());
            while sender.try_send_many(slice::from_ref(&transmit)).ok() != Some(0) {}
            let mut waiting = pin!(sender.send(&transmit));
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            tap.add_arp_entry_of(to);
            while waiting.as_mut().poll(&mut cx).is_pending() {
                thread::park();
            }
            let hello = Transmit::new(b"hello", refusing);
            // Tokio has to notice a refusal, which takes it longer on a busy machine.
            let mut refused = 0;
            for tries in 0..10_000 {
                if tries >= 100 && refused > 0 {
                    break;
                }
                refused += usize::from(sender.try_send(&hello).is_err());
                thread::sleep(Duration::from_millis(1));
            }
            assert!(refused > 0);
        }
        drop(tap);
    }
    let run = || match unshare_network() {
        Ok(()) => test(),
        Err(why) => skipped("this thread's system cannot be changed", &why),
    };
    thread::spawn(run).join().unwrap();
}

#[cfg(feature = "quinn")]
#[test]
fn quinns_poller_waits_for_room_and_can_be_polled_again() {
    async fn test(tap: Tap) {
        use quinn::AsyncUdpSocket;

        let receiver = UdpReceiver::builder(&pool())
            .send_buffer_bytes(4096)
            .bind((Tap::OURS, 0).into())
            .unwrap();
        let socket = Arc::new(receiver.into_quinn());
        let transmit = quinn::udp::Transmit {
            destination: (Tap::THEIRS, 7777).into(),
            ecn: None,
            contents: &[7; 1000],
            segment_size: None,
            src_ip: None,
        };
        let full = (0..40).find_map(|_| socket.try_send(&transmit).err());
        let full = full.expect("the send buffer is never full");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let mut poller = Arc::clone(&socket).create_io_poller();
        let mut room = std::future::poll_fn(|cx| poller.as_mut().poll_writable(cx));
        assert_pending(&mut room).await;
        tap.add_arp_entry();
        for _ in 0..2 {
            let room = tokio::time::timeout(HANG, &mut room).await;
            room.expect("hangs").unwrap();
        }
        socket.try_send(&transmit).unwrap();
        assert_eq!(socket.monitor().stats().send_lost_datagrams, 0);
    }
    with_tap(test);
}

/// A firewall's "administratively prohibited", which any host on the path may send, is about an earlier
/// datagram. quinn takes any error for the end of the socket.
#[cfg(feature = "quinn")]
#[test]
fn icmp_errors_do_not_end_a_quinn_socket() {
    async fn test(mut tap: Tap) {
        use quinn::AsyncUdpSocket;

        tap.add_arp_entry();
        let peer = SocketAddr::from((Tap::THEIRS, 7777));
        // One of each kind of ICMP error that interrupts a connected socket.
        for (kind, code) in [
            (3, 2),
            (3, 3),
            (3, 4),
            (3, 6),
            (3, 7),
            (3, 8),
            (3, 10),
            (3, 13),
            (12, 0),
        ] {
            let receiver = UdpReceiver::builder(&pool())
                .connect(peer)
                .bind((Tap::OURS, 0).into())
                .unwrap();
            let ours = receiver.local_addr();
            let hello = Transmit::new(b"hello", peer);
            receiver.sender().send(&hello).await.unwrap();
            let socket = receiver.into_quinn();
            tap.report(kind, code);
            let mut udp = [peer.port(), ours.port(), 8 + 2, 0]
                .map(u16::to_be_bytes)
                .concat();
            udp.extend_from_slice(b"hi");
            tap.answer(17, &udp);
            let (mut buffer, mut meta) = ([0; 64 << 10], [quinn::udp::RecvMeta::default()]);
            let read = std::future::poll_fn(|cx| {
                let mut buffers = [io::IoSliceMut::new(&mut buffer)];
                socket.poll_recv(cx, &mut buffers, &mut meta)
            });
            let read = tokio::time::timeout(HANG, read).await.expect("hangs");
            assert_eq!(read.map_err(|e| (kind, code, e)).unwrap(), 1);
            assert_eq!((meta[0].addr, &buffer[..meta[0].len]), (peer, &b"hi"[..]));
        }
    }
    with_tap(test);
}

/// The device's MTU is less than the segments: EMSGSIZE is reported as such, and smaller ones are sent.
#[test]
fn a_datagram_above_the_mtu_fails_after_the_ones_before_it_are_sent() {
    async fn test(mut tap: Tap) {
        tap.add_arp_entry();
        let sender = UdpSender::bind((Tap::OURS, 0).into()).unwrap();
        let to = SocketAddr::from((Tap::THEIRS, 7777));
        let bytes = [7; 4000];
        let transmits = [
            Transmit::new(&bytes[..2000], to).segment_size(1000),
            Transmit::new(&bytes[..1473], to),
            Transmit::new(&bytes[..1], to),
        ];
        let error = sender.send_many(&transmits).await.unwrap_err();
        assert_eq!(error.sent(), 2);
        assert!(
            matches!(error.kind(), SendErrorKind::TooLarge { bytes: 1473 }),
            "{error:?}"
        );
        let segments = Transmit::new(&bytes, to).segment_size(1900);
        let error = sender.send(&segments).await.unwrap_err();
        assert!(
            matches!(error.kind(), SendErrorKind::TooLarge { bytes: 1900 }),
            "{error:?}"
        );
        assert_eq!(sender.send(&transmits[0]).await.unwrap(), 2);
        let lens: Vec<usize> = tap.datagrams(7777).iter().map(Vec::len).collect();
        assert_eq!(lens, [1000; 4]);
    }
    with_tap(test);
}

/// What a router reports about the path is heeded only where the system may fragment. Otherwise datagrams keep
/// their length, and are lost there.
#[test]
fn a_path_narrower_than_a_datagram_is_told_only_to_sockets_that_may_fragment() {
    async fn test(mut tap: Tap) {
        tap.add_arp_entry();
        let to = SocketAddr::from((Tap::THEIRS, 7777));
        let bytes = [7; 2800];
        let datagram = Transmit::new(&bytes[..1400], to);
        let segments = Transmit::new(&bytes, to).segment_size(1400);
        for fragment in [true, false] {
            let builder = UdpReceiver::builder(&pool()).fragment(fragment);
            let socket = builder.bind((Tap::OURS, 0).into()).unwrap();
            let sender = socket.sender();
            if fragment {
                sender.send(&datagram).await.unwrap();
                tap.report(3, 4);
            }
            assert_eq!(sender.send(&datagram).await.unwrap(), 1);
            assert_eq!(sender.send(&segments).await.unwrap(), 2);
            for _ in 0..3 {
                let whole = 28 + 1400;
                let first = tap.packet().len();
                assert_eq!(first < 1000, fragment, "{first}");
                let rest = if fragment { tap.packet().len() - 20 } else { 0 };
                assert_eq!(first + rest, whole);
            }
            if !fragment {
                let error = sender.send(&Transmit::new(&bytes[..1473], to)).await;
                let error = error.unwrap_err();
                assert!(matches!(error.kind(), SendErrorKind::TooLarge { .. }));
            }
        }
    }
    with_tap(test);
}

/// "Fragmentation needed" is about an earlier datagram, but the next call returns it: for a datagram that is
/// sent alone, as for one of a run.
#[test]
fn an_earlier_datagram_too_long_for_the_path_makes_no_other_too_large() {
    async fn test(mut tap: Tap) {
        tap.add_arp_entry();
        let peer = SocketAddr::from((Tap::THEIRS, 7777));
        let bytes = [7; 1400];
        for (segment_size, datagrams) in [(0, 1), (1, 3)] {
            let receiver = UdpReceiver::builder(&pool())
                .connect(peer)
                .bind((Tap::OURS, 0).into())
                .unwrap();
            let sender = receiver.sender();
            sender.send(&Transmit::new(&bytes, peer)).await.unwrap();
            tap.report(3, 4);
            let next = Transmit::new(&bytes[..3], peer).segment_size(segment_size);
            assert_eq!(sender.send(&next).await.unwrap(), datagrams);
            assert_eq!(tap.datagrams(7777).len(), datagrams);
        }
    }
    with_tap(test);
}
