//! The metadata of datagrams, and the counters of datagrams that do not arrive.

#[cfg(target_os = "linux")]
use crate::common::warnings::{field, on_warning};
#[cfg(target_os = "linux")]
use crate::common::{HANG, skipped};
use crate::common::{LOOPBACK, pool};
#[cfg(target_os = "linux")]
use futures_util::SinkExt;
use slab_net::udp::{Coalescing, Ecn, PacketBatch, Transmit, UdpReceiver, UdpSender};
#[cfg(target_os = "linux")]
use slab_net::{Packet, udp::Outgoing};
#[cfg(target_os = "linux")]
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime};

fn off(max_datagram: usize) -> Coalescing {
    Coalescing::Off { max_datagram }
}

/// All metadata at once: none may be lost for lack of room, as it is in quinn-udp.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn each_datagram_carries_all_kernel_metadata() {
    for (local, coalescing) in [
        ("127.0.0.1:0", Coalescing::On),
        ("127.0.0.1:0", off(1500)),
        ("[::1]:0", Coalescing::On),
        ("[::1]:0", off(1500)),
    ] {
        let pool = pool();
        let bound = UdpReceiver::builder(&pool)
            .coalescing(coalescing)
            .timestamps(true)
            .bind(local.parse().unwrap());
        let Ok(mut receiver) = bound else {
            assert!(local.starts_with('['));
            skipped("IPv6", &io::ErrorKind::Unsupported.into());
            continue;
        };
        let sender = UdpSender::bind(local.parse().unwrap()).unwrap();
        let before = SystemTime::now() - Duration::from_millis(10);
        for ecn in [None, Some(Ecn::Ect0), Some(Ecn::Ect1), Some(Ecn::Ce)] {
            let mut transmit = Transmit::new(&[7; 3000], receiver.local_addr()).segment_size(1000);
            if let Some(ecn) = ecn {
                transmit = transmit.ecn(ecn);
            }
            sender.send(&transmit).await.unwrap();
            let mut left = 3;
            while left > 0 {
                let batch = receiver.recv_batch().await.unwrap();
                for datagram in &batch {
                    assert_eq!(datagram.packet, [7; 1000]);
                    assert_eq!(datagram.source, sender.local_addr());
                    assert_eq!(datagram.destination_ip, Some(receiver.local_addr().ip()));
                    assert_eq!(datagram.ecn, ecn);
                    assert!(datagram.interface.is_some());
                    assert!(!datagram.truncated);
                    let arrived = datagram.timestamp.unwrap();
                    let now = SystemTime::now() + Duration::from_millis(10);
                    assert!(arrived > before && arrived < now);
                    left -= 1;
                }
            }
        }
    }
}

/// Even on a socket whose creator had requested more.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn source_only_receivers_get_no_other_metadata() {
    for (local, coalescing) in [
        ("127.0.0.1:0", Coalescing::On),
        ("127.0.0.1:0", off(1500)),
        ("[::1]:0", Coalescing::On),
        ("[::1]:0", off(1500)),
    ] {
        let pool = pool();
        let Ok(socket) = std::net::UdpSocket::bind(local) else {
            assert!(local.starts_with('['), "a machine without IPv6");
            continue;
        };
        // Switches on GRO and timestamps, among others.
        quinn_udp::UdpSocketState::new((&socket).into()).unwrap();
        if local.starts_with('[') {
            socket2::SockRef::from(&socket)
                .set_recv_tclass_v6(true)
                .unwrap();
        } else {
            socket2::SockRef::from(&socket)
                .set_recv_tos_v4(true)
                .unwrap();
        }
        let mut receiver = UdpReceiver::builder(&pool)
            .coalescing(coalescing)
            .source_only(true)
            .from_std(socket)
            .unwrap();
        let mut peer = UdpReceiver::bind(local.parse().unwrap(), &pool).unwrap();
        let two = Transmit::new(&[7; 2000], receiver.local_addr()).segment_size(1000);
        peer.sender().send(&two.ecn(Ecn::Ect0)).await.unwrap();
        let mut left = 2;
        while left > 0 {
            let batch = tokio::time::timeout(HANG, receiver.recv_batch()).await;
            let batch = batch.expect("timed out").unwrap();
            for datagram in &batch {
                assert_eq!(datagram.packet, [7; 1000]);
                assert_eq!(datagram.source, peer.local_addr());
                assert_eq!((datagram.destination_ip, datagram.interface), (None, None));
                assert_eq!((datagram.ecn, datagram.timestamp), (None, None));
                left -= 1;
            }
            // The reply finds its way without them.
            receiver.sender().send(&batch.reply()).await.unwrap();
            let back = peer.recv_batch().await.unwrap();
            assert_eq!(back.contents(), batch.contents());
            assert_eq!(back.source(), receiver.local_addr());
        }
    }
}

#[tokio::test]
async fn truncated_datagrams_are_delivered_on_request() {
    for source_only in [false, true] {
        let pool = pool();
        let mut receiver = UdpReceiver::builder(&pool)
            .coalescing(off(1000))
            .deliver_truncated(true)
            .source_only(source_only)
            .bind(LOOPBACK)
            .unwrap();
        let sender = receiver.sender();
        let payload: Vec<u8> = (0..65507_u32).map(|n| n as u8).collect();
        let lens = [1000, 1001, 0, 65507, 999];
        for len in lens {
            let transmit = Transmit::new(&payload[..len], receiver.local_addr());
            sender.send(&transmit).await.unwrap();
        }
        for len in lens {
            let batch = receiver.recv_batch().await.unwrap();
            let whole = len <= 1000;
            assert_eq!(batch.is_truncated(), !whole);
            let datagram = batch.into_datagrams().next().unwrap();
            assert_eq!(datagram.truncated, !whole);
            if whole {
                assert_eq!(datagram.packet, payload[..len]);
            } else {
                // The buffer of the portable backend is one byte longer.
                assert!(matches!(datagram.packet.len(), 1000 | 1001));
                assert_eq!(datagram.packet, payload[..datagram.packet.len()]);
            }
        }
        let stats = receiver.monitor().stats();
        assert_eq!(stats.truncated_datagrams, 2);
        assert_eq!((stats.dropped_truncated, stats.dropped()), (0, 0));
        assert_eq!(stats.received_datagrams, 5);
    }
}

/// Takes everything queued, without waiting.
fn drain(receiver: &mut UdpReceiver) -> u64 {
    let next = || receiver.try_recv_batch().unwrap();
    std::iter::from_fn(next)
        .map(|batch: PacketBatch| batch.datagrams() as u64)
        .sum()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn every_kernel_drop_is_counted() {
    for coalescing in [Coalescing::On, off(1500)] {
        let pool = pool();
        let mut receiver = UdpReceiver::builder(&pool)
            .coalescing(coalescing)
            .receive_buffer_bytes(1 << 14)
            .bind(LOOPBACK)
            .unwrap();
        let (sender, monitor) = (UdpSender::bind(LOOPBACK).unwrap(), receiver.monitor());
        let (mut sent, mut got) = (0, 0);
        for round in 1..=3 {
            for _ in 0..100 {
                let transmit = Transmit::new(&[1; 1000], receiver.local_addr());
                sent += sender.send(&transmit).await.unwrap() as u64;
            }
            // Nothing followed the last drop that could report it.
            let dropped = monitor.stats().kernel_dropped_datagrams;
            assert!(dropped > (round - 1) * 10, "the kernel takes all of it");
            got += drain(&mut receiver);
            let stats = monitor.stats();
            assert_eq!(stats.received_datagrams, got);
            assert_eq!(stats.kernel_dropped_datagrams + got, sent, "{coalescing:?}");
            assert_eq!(stats.dropped(), 0);
        }
        drop((receiver, sender));
        let stats = monitor.stats();
        assert_eq!(stats.kernel_dropped_datagrams + got, sent, "and afterwards");
    }
}

/// The count also comes with the datagrams, without being asked for.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn kernel_drops_are_logged() {
    use std::sync::{Arc, Mutex};

    let reasons = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&reasons);
    let _watching = on_warning(move |event| {
        let which = field(event, "reason").zip(field(event, "socket"));
        log.lock()
            .unwrap()
            .push(which.expect("it says why, and where"));
    });
    let pool = pool();
    let mut receiver = UdpReceiver::builder(&pool)
        .receive_buffer_bytes(1 << 14)
        .bind(LOOPBACK)
        .unwrap();
    let once = ("kernel".to_owned(), receiver.local_addr().to_string());
    let sender = receiver.sender();
    for _ in 0..3 {
        for _ in 0..100 {
            let transmit = Transmit::new(&[1; 1000], receiver.local_addr());
            sender.send(&transmit).await.unwrap();
        }
        drain(&mut receiver);
    }
    assert_eq!(*reasons.lock().unwrap(), vec![once.clone()], "an episode");
    drop(receiver);
    drop(sender);
    assert_eq!(*reasons.lock().unwrap(), vec![once.clone(), once]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn stop_keeps_queued_datagrams_and_counts_later_ones() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    let five = Transmit::new(b"1122334455", receiver.local_addr()).segment_size(2);
    sender.send(&five).await.unwrap();
    receiver.stop().unwrap();
    sender.send(&five).await.unwrap();
    sender.send(&five).await.unwrap();
    assert_eq!(drain(&mut receiver), 5);
    let stats = receiver.monitor().stats();
    assert_eq!(stats.received_datagrams, 5);
    // The filter sees each GSO send once, either before or after it is cut.
    assert!(
        matches!(stats.kernel_dropped_datagrams, 2 | 10),
        "{stats:?}"
    );
    // Sending still works.
    let mut other = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let hello = Transmit::new(b"hello", other.local_addr());
    receiver.sender().send(&hello).await.unwrap();
    let batch = other.recv_batch().await.unwrap();
    assert_eq!(batch.source(), receiver.local_addr());
}

#[tokio::test]
async fn from_std_receives_and_replies_on_a_multicast_socket() {
    let pool = pool();
    // Joined to a multicast group, which the builder has no option for.
    let group = Ipv4Addr::new(239, 7, 7, 7);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    socket
        .bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into())
        .unwrap();
    socket
        .join_multicast_v4(&group, &Ipv4Addr::LOCALHOST)
        .unwrap();
    let mut receiver = UdpReceiver::builder(&pool).from_std(socket.into()).unwrap();

    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    socket.bind(&LOOPBACK.into()).unwrap();
    socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    let mut member = UdpReceiver::builder(&pool).from_std(socket.into()).unwrap();
    let to = SocketAddr::from((group, receiver.local_addr().port()));
    let transmit = Transmit::new(b"to all", to);
    member.sender().send(&transmit).await.unwrap();
    let batch = receiver.recv_batch().await.unwrap();
    assert_eq!(batch.contents(), b"to all");
    if cfg!(target_os = "linux") {
        assert_eq!(batch.destination_ip(), Some(group.into()));
    }
    // The reply cannot come from the group's address.
    receiver.sender().send(&batch.reply()).await.unwrap();
    let answer = member.recv_batch().await.unwrap();
    assert_eq!(answer.contents(), b"to all");
    assert!(!answer.source().ip().is_multicast());
}

/// Options set with socket2 stay set, and appear on the wire.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn from_std_keeps_the_options_of_the_socket() {
    let pool = pool();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    socket.bind(&LOOPBACK.into()).unwrap();
    socket.set_ttl_v4(7).unwrap();
    // ECT(0) is the second bit of the type of service.
    socket.set_tos_v4(0b10).unwrap();
    socket.set_multicast_ttl_v4(3).unwrap();
    socket.set_recv_buffer_size(100_000).unwrap();
    socket.set_send_buffer_size(50_000).unwrap();
    let buffers = (
        socket.recv_buffer_size().unwrap(),
        socket.send_buffer_size().unwrap(),
    );
    let same = socket.try_clone().unwrap();
    let ours = UdpReceiver::builder(&pool).from_std(socket.into()).unwrap();
    assert_eq!((same.ttl_v4().unwrap(), same.tos_v4().unwrap()), (7, 0b10));
    assert_eq!(same.multicast_ttl_v4().unwrap(), 3);
    let after = (
        same.recv_buffer_size().unwrap(),
        same.send_buffer_size().unwrap(),
    );
    assert_eq!(after, buffers);

    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let marked = Transmit::new(b"marked", receiver.local_addr());
    ours.sender().send(&marked).await.unwrap();
    assert_eq!(receiver.recv_batch().await.unwrap().ecn(), Some(Ecn::Ect0));
}

/// On the first interface with a route to multicast groups. Nothing leaves the host: the hop limit is 0.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_ipv6_group_can_be_joined_through_socket2() {
    let pool = pool();
    let group: std::net::Ipv6Addr = "ff12::7:7:7".parse().unwrap();
    let any = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0));
    for interface in 1..100 {
        let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None);
        let joined = socket.and_then(|socket| {
            socket.bind(&any.into())?;
            socket.join_multicast_v6(&group, interface)?;
            socket.set_multicast_if_v6(interface)?;
            socket.set_multicast_hops_v6(0)?;
            Ok(socket)
        });
        let Ok(socket) = joined else { continue };
        let mut member = UdpReceiver::builder(&pool).from_std(socket.into()).unwrap();
        let to = SocketAddr::from((group, member.local_addr().port()));
        let transmit = Transmit::new(b"to all", to);
        if member.sender().send(&transmit).await.is_err() {
            continue;
        }
        let batch = tokio::time::timeout(HANG, member.recv_batch()).await;
        let batch = batch.expect("hangs").unwrap();
        assert_eq!(batch.contents(), b"to all");
        assert_eq!(batch.destination_ip(), Some(group.into()));
        assert_eq!(batch.interface(), Some(interface));
        // The reply cannot come from the group's address.
        member.sender().send(&batch.reply()).await.unwrap();
        let answer = tokio::time::timeout(HANG, member.recv_batch()).await;
        let answer = answer.expect("hangs").unwrap();
        assert_eq!(answer.contents(), b"to all");
        assert!(!answer.source().ip().is_multicast());
        return;
    }
    skipped("a route to a group", &io::ErrorKind::Unsupported.into());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn one_socket_serves_both_address_families() {
    let pool = pool();
    // A machine without IPv6 may still have the unspecified address.
    if UdpReceiver::bind("[::1]:0".parse().unwrap(), &pool).is_err() {
        return skipped("IPv6", &io::ErrorKind::Unsupported.into());
    }
    let mut server = UdpReceiver::bind("[::]:0".parse().unwrap(), &pool).unwrap();
    let port = server.local_addr().port();
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let local: SocketAddr = local.parse().unwrap();
        let mut client = UdpReceiver::bind(local, &pool).unwrap();
        let to = SocketAddr::new(local.ip(), port);
        let transmit = Transmit::new(&[3; 3000], to)
            .segment_size(1000)
            .ecn(Ecn::Ect0);
        client.sender().send(&transmit).await.unwrap();
        let mut left = 3;
        while left > 0 {
            let batch = server.recv_batch().await.unwrap();
            assert_eq!(batch.source().ip().to_canonical(), local.ip());
            assert_eq!(batch.ecn(), Some(Ecn::Ect0));
            left -= batch.datagrams();
            server
                .sender()
                .send(&batch.reply().ecn(Ecn::Ce))
                .await
                .unwrap();
        }
        let mut left = 3;
        while left > 0 {
            let batch = client.recv_batch().await.unwrap();
            assert_eq!((batch.source(), batch.ecn()), (to, Some(Ecn::Ce)));
            left -= batch.datagrams();
        }
        // Also to an IPv4 address in its own form.
        let hello = Transmit::new(b"hello", client.local_addr()).source_ip(local.ip());
        server.sender().send(&hello).await.unwrap();
        assert_eq!(client.recv_batch().await.unwrap().source(), to);
    }
}

/// The reply to a broadcast cannot come from the address that it was sent to.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn sockets_of_either_family_reply_to_broadcasts() {
    let pool = pool();
    for any in ["0.0.0.0:0", "[::]:0"] {
        let Ok(mut server) = UdpReceiver::bind(any.parse().unwrap(), &pool) else {
            skipped("IPv6", &io::ErrorKind::Unsupported.into());
            continue;
        };
        let port = server.local_addr().port();
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_broadcast(true).unwrap();
        let mut client = UdpReceiver::builder(&pool).from_std(socket).unwrap();
        let to_all = Ipv4Addr::new(127, 255, 255, 255);
        let hello = Transmit::new(b"hello", (to_all, port).into());
        client.sender().send(&hello).await.unwrap();
        let batch = server.recv_batch().await.unwrap();
        assert_eq!(batch.destination_ip().unwrap().to_canonical(), to_all);
        server.sender().send(&batch.reply()).await.unwrap();
        let answer = client.recv_batch().await.unwrap();
        assert_eq!(answer.contents(), b"hello");
        assert_eq!(answer.source(), (Ipv4Addr::LOCALHOST, port).into());
        let datagram = batch.iter().next().unwrap();
        let sender = server.sender();
        sender.send(&datagram.reply_with(b"you")).await.unwrap();
        let answer = client.recv_batch().await.unwrap();
        assert_eq!(answer.contents(), b"you");
        assert_eq!(answer.source(), (Ipv4Addr::LOCALHOST, port).into());
        let too = Outgoing::reply_to(&datagram, Packet::from_static(b"too"));
        assert_eq!(
            (too.destination(), too.payload()),
            (datagram.source, &Packet::from_static(b"too"))
        );
        sender.sink().send(too).await.unwrap();
        let answer = client.recv_batch().await.unwrap();
        assert_eq!(answer.contents(), b"too");
        assert_eq!(answer.source(), (Ipv4Addr::LOCALHOST, port).into());
    }
}

/// A thousand waiting sockets hold nothing, even after bursts.
#[tokio::test]
async fn a_thousand_idle_receivers_hold_no_pool_memory() {
    const COUNT: usize = 1000;
    #[cfg(target_os = "linux")]
    crate::common::raise_open_files_limit(COUNT as u64 + 200).unwrap();
    let pool = pool();
    let bind = |_| UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let mut receivers: Vec<UdpReceiver> = (0..COUNT).map(bind).collect();
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    let burst = vec![1; 30 * 1200];
    for receiver in &mut receivers {
        let transmit = Transmit::new(&burst, receiver.local_addr()).segment_size(1200);
        sender.send(&transmit).await.unwrap();
        let mut left = 30;
        while left > 0 {
            left -= receiver.recv_batch().await.unwrap().datagrams();
        }
    }
    for receiver in &mut receivers {
        tokio::select! {
            biased;
            _ = receiver.recv_batch() => panic!("nothing was sent"),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(receivers.len(), COUNT);
    assert_eq!(pool.slab().stats().in_use(), 0);
}
