//! Sending to real sockets: segments, replies, and what the system refuses.

use crate::common::{LOOPBACK, pool, receive};
#[cfg(target_os = "linux")]
use crate::common::{occupied, set_option, vacate};
use bytes::Buf;
use futures_util::SinkExt;
use slab_net::udp::{
    BindError, Coalescing, Ecn, Outgoing, SendErrorKind, Transmit, UdpReceiver, UdpSender,
};
use slab_net::{Packet, PacketChain};
use std::io::IoSlice;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

#[tokio::test]
async fn a_reply_is_complete_and_comes_from_the_address_it_was_sent_to() {
    let pool = pool();
    let mut server = UdpReceiver::bind((Ipv4Addr::UNSPECIFIED, 0).into(), &pool).unwrap();
    let mut client = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    // Not the address that the system would choose for the reply.
    let to = SocketAddr::from(([127, 0, 0, 2], server.local_addr().port()));
    let sent: Vec<u8> = (0..20_000_u32).map(|n| (n / 7) as u8).collect();
    let transmit = Transmit::new(&sent, to).segment_size(999).ecn(Ecn::Ect0);
    let count = client.sender().send(&transmit).await.unwrap();
    assert_eq!(count, 21);

    let mut left = count;
    while left > 0 {
        let batch = server.recv_batch().await.unwrap();
        if cfg!(target_os = "linux") {
            assert_eq!(batch.ecn(), Some(Ecn::Ect0));
        }
        left -= server.sender().send(&batch.reply()).await.unwrap();
    }
    let mut got = Vec::new();
    while got.len() < sent.len() {
        let batch = client.recv_batch().await.unwrap();
        if cfg!(target_os = "linux") {
            assert_eq!(batch.source(), to);
        }
        for datagram in &batch {
            assert!(datagram.packet.len() == 999 || datagram.packet.len() == 20);
            got.extend_from_slice(datagram.packet);
        }
    }
    assert_eq!(got, sent);
    let stats = server.monitor().stats();
    assert_eq!(stats.sent_datagrams, 21);
    assert_eq!(stats.sent_bytes, 20_000);
    assert!(stats.send_calls >= 1 && stats.send_calls <= 21);
}

/// A header and a payload in chunks of their own, and slices of one more chunk, in one datagram; and in
/// segments that begin anywhere in them.
#[tokio::test]
async fn a_packet_chain_is_sent_without_copying() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let sender = receiver.sender();
    let copy = |bytes: &[u8]| pool.try_copy_from_slice(bytes).unwrap();
    let whole = copy(&[3; 5000]);
    let mut chain = PacketChain::from(copy(&[2; 3000]));
    chain.push_front(copy(b"header")).unwrap();
    chain.push_back(whole.slice(..700)).unwrap();
    chain.push_back(whole.slice(900..)).unwrap();
    let expected: Vec<u8> = chain.iter().flat_map(|packet| packet.to_vec()).collect();
    let in_use = pool.slab().stats().in_use();
    for segment in [0, 1000] {
        let mut slices = [IoSlice::new(&[]); 8];
        let parts = chain.chunks_vectored(&mut slices);
        let transmit = Transmit::gather(&slices[..parts], receiver.local_addr());
        let transmit = transmit.segment_size(segment);
        let mut left = sender.send(&transmit).await.unwrap();
        assert_eq!(left, if segment == 0 { 1 } else { 8 });
        assert_eq!(pool.slab().stats().in_use(), in_use);
        let mut got = Vec::new();
        while left > 0 {
            let batch = receiver.recv_batch().await.unwrap();
            left -= batch.datagrams();
            got.extend_from_slice(batch.contents());
        }
        assert_eq!(got, expected);
    }
}

#[tokio::test]
async fn a_transmit_above_the_kernels_limits_is_split_and_arrives() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    // 200 segments, and more than 64 KiB: either limit forbids one message.
    let sent: Vec<u8> = (0..100_000_u32).map(|n| (n / 3) as u8).collect();
    let transmit = Transmit::new(&sent, receiver.local_addr()).segment_size(500);
    let (send, receive) = tokio::join!(sender.send(&transmit), async {
        let mut got = Vec::new();
        while got.len() < sent.len() {
            let batch = receiver.recv_batch().await.unwrap();
            got.extend_from_slice(batch.contents());
        }
        got
    });
    assert_eq!(send.unwrap(), 200);
    assert_eq!(receive, sent);
    let stats = sender.monitor().stats();
    assert_eq!((stats.sent_datagrams, stats.sent_bytes), (200, 100_000));
    // Three messages, since either limit forbids one; but only one system call, by sendmmsg.
    assert!(stats.send_calls <= 200);
    if cfg!(target_os = "linux") {
        assert_eq!(stats.send_calls, 1);
    }
}

#[tokio::test]
async fn try_send_stops_at_a_full_send_buffer_or_sends_all() {
    let pool = pool();
    let receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    // Tokio has not noticed yet that there is room.
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    let hello = Transmit::new(b"hello", receiver.local_addr());
    assert_eq!(sender.try_send(&hello).unwrap(), 1);
    let contents = [0; 3000];
    let three = Transmit::new(&contents, receiver.local_addr()).segment_size(1000);
    let sent = sender.try_send(&three).unwrap();
    assert_eq!(sender.monitor().stats().sent_datagrams, 1 + sent as u64);
    assert_eq!(sent, 3, "loopback takes three datagrams");
}

#[tokio::test]
async fn a_datagram_too_large_is_an_error_and_the_socket_still_works() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    let to = receiver.local_addr();
    let long = vec![0; 70_000];
    let error = sender.send(&Transmit::new(&long, to)).await.unwrap_err();
    assert!(
        matches!(error.kind(), SendErrorKind::TooLarge { bytes: 70_000 }),
        "{error:?}"
    );
    assert_eq!(error.sent(), 0);
    // Segments of that length are refused one by one, after GSO was.
    let error = sender
        .send(&Transmit::new(&long, to).segment_size(66_000))
        .await
        .unwrap_err();
    assert!(matches!(
        error.kind(),
        SendErrorKind::TooLarge { bytes: 66_000 }
    ));
    // The socket still works.
    let three = Transmit::new(b"onetwosix", to).segment_size(3);
    assert_eq!(sender.send(&three).await.unwrap(), 3);
    let mut got = Vec::new();
    while got.len() < 9 {
        got.extend_from_slice(receiver.recv_batch().await.unwrap().contents());
    }
    assert_eq!(got, b"onetwosix");
    assert_eq!(sender.monitor().stats().sent_datagrams, 3);
}

#[tokio::test]
async fn invalid_destinations_and_local_addresses_are_errors() {
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    // Port 0 is invalid.
    let nowhere = Transmit::new(b"x", (Ipv4Addr::LOCALHOST, 0).into());
    let error = sender.send(&nowhere).await.unwrap_err();
    assert!(matches!(error.kind(), SendErrorKind::Io(_)), "{error:?}");
    // TEST-NET-1 is not an address of this host.
    let refused = UdpSender::bind(([192, 0, 2, 1], 0).into()).unwrap_err();
    assert!(matches!(refused, BindError::Socket { .. }));
    // A peer of another family cannot be connected to; the error names it, not the address that was bound.
    let elsewhere = (Ipv6Addr::LOCALHOST, 9).into();
    let refused = UdpReceiver::builder(&pool())
        .connect(elsewhere)
        .bind(LOOPBACK);
    let error = refused.unwrap_err();
    assert!(matches!(error, BindError::Connect { peer, .. } if peer == elsewhere));
    assert_eq!(error.to_string(), "cannot connect UDP to [::1]:9");
}

/// The kernel by itself ignores it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_ipv6_source_on_an_ipv4_socket_is_used_if_it_is_mapped_and_else_an_error() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let sender = UdpSender::bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    let hello = Transmit::new(b"hello", receiver.local_addr());
    let other = Ipv4Addr::new(127, 0, 0, 9);
    let mapped = hello.source_ip(other.to_ipv6_mapped().into());
    sender.send(&mapped).await.unwrap();
    let batch = receiver.recv_batch().await.unwrap();
    assert_eq!(batch.source().ip(), other);
    let foreign = hello.source_ip(std::net::Ipv6Addr::LOCALHOST.into());
    for transmit in [foreign, foreign.segment_size(2)] {
        let error = sender.send(&transmit).await.unwrap_err();
        assert!(matches!(error.kind(), SendErrorKind::Io(_)), "{error}");
        assert_eq!(error.sent(), 0);
    }
    // Not for want of GSO.
    let parts = hello.segment_size(2);
    assert_eq!(sender.send(&parts).await.unwrap(), 3);
    assert_eq!(sender.monitor().stats().send_calls, 2);
}

/// As an IPv6 socket reports its IPv4 peers.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_ipv4_socket_takes_a_mapped_destination_and_a_mapped_peer() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let v4 = receiver.local_addr();
    let mapped = (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), v4.port()).into();
    let builder = UdpReceiver::builder(&pool).connect(mapped);
    let connected = builder.bind(LOOPBACK).unwrap().sender();
    for sender in [UdpSender::bind(LOOPBACK).unwrap(), connected] {
        let one = Transmit::new(b"one", mapped);
        let rest = Transmit::new(b"twosix", mapped).segment_size(3);
        assert_eq!(sender.send(&one).await.unwrap(), 1);
        assert_eq!(sender.send(&rest.ecn(Ecn::Ect0)).await.unwrap(), 2);
        assert_eq!(receive(&mut receiver, 3).await, [b"one", b"two", b"six"]);
    }
}

#[tokio::test]
async fn mixed_destinations_and_lengths_take_few_calls_and_stay_in_order() {
    let pool = pool();
    let mut receivers = [(); 3].map(|()| UdpReceiver::bind(LOOPBACK, &pool).unwrap());
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    // Successive equal lengths, which become segments; others; empty ones.
    let plan: Vec<(usize, usize)> = (0..60)
        .map(|n| (n / 7 % 3, [100, 100, 100, 40, 0, 200, 1][n / 3 % 7]))
        .collect();
    let transmits: Vec<Transmit<'_>> = plan
        .iter()
        .enumerate()
        .map(|(n, &(to, len))| Transmit::new(&bytes[n..n + len / 2], receivers[to].local_addr()))
        .collect();
    assert_eq!(sender.send_many(&transmits).await.unwrap(), 60);
    let stats = sender.monitor().stats();
    assert_eq!(stats.sent_datagrams, 60);
    if cfg!(target_os = "linux") {
        assert!(stats.send_calls <= 3, "{}", stats.send_calls);
    }
    for (to, receiver) in receivers.iter_mut().enumerate() {
        let expected: Vec<&[u8]> = plan
            .iter()
            .enumerate()
            .filter(|(_, (other, _))| *other == to)
            .map(|(n, (_, len))| &bytes[n..n + len / 2])
            .collect();
        assert_eq!(receive(receiver, expected.len()).await, expected);
    }
    assert_eq!(sender.send_many(&[]).await.unwrap(), 0);
    assert_eq!(sender.try_send_many(&transmits[..20]).unwrap(), 20);
}

#[tokio::test]
async fn header_and_payload_are_gathered_by_the_kernel() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    let payload: Vec<u8> = (0..1200_u32).map(|n| n as u8).collect();
    let headers: Vec<[u8; 4]> = (0..10_u32).map(u32::to_be_bytes).collect();
    let parts: Vec<[IoSlice<'_>; 3]> = headers
        .iter()
        .map(|header| [header, &payload[..700], &payload[700..]].map(IoSlice::new))
        .collect();
    let transmits: Vec<Transmit<'_>> = parts
        .iter()
        .map(|parts| Transmit::gather(parts, receiver.local_addr()))
        .collect();
    sender.send_many(&transmits).await.unwrap();
    let got = receive(&mut receiver, 10).await;
    for (got, header) in got.iter().zip(&headers) {
        assert_eq!(got[..4], header[..]);
        assert_eq!(got[4..], payload);
    }
    if cfg!(target_os = "linux") {
        // Ten datagrams of 30 parts in one message: they arrive in one buffer.
        assert_eq!(receiver.monitor().stats().receive_calls, 1);
    }
    let many = vec![IoSlice::new(b"x"); 129];
    let error = sender
        .send(&Transmit::gather(&many, receiver.local_addr()))
        .await
        .unwrap_err();
    assert!(matches!(
        error.kind(),
        SendErrorKind::TooManyParts { most: 128 }
    ));
}

#[tokio::test]
async fn datagrams_before_a_failed_one_are_sent_and_counted() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    let to = receiver.local_addr();
    let nowhere = (Ipv4Addr::LOCALHOST, 0).into();
    let long = vec![0; 70_000];
    for (bad, bad_to) in [
        (Transmit::new(b"bad", nowhere), nowhere),
        (Transmit::new(&long, to), to),
    ] {
        let transmits = [
            Transmit::new(b"one", to),
            Transmit::new(b"fourfive", to).segment_size(4),
            bad,
            Transmit::new(b"never", to),
        ];
        let before = sender.monitor().stats().sent_datagrams;
        let error = sender.send_many(&transmits).await.unwrap_err();
        assert_eq!(error.sent(), 3, "{error:?}");
        assert_eq!(error.destination(), Some(bad_to), "{error:?}");
        assert_eq!(sender.monitor().stats().sent_datagrams, before + 3);
        assert_eq!(
            receive(&mut receiver, 3).await,
            [&b"one"[..], b"four", b"five"]
        );
        assert_eq!(sender.try_send_many(&transmits).unwrap_err().sent(), 3);
        receive(&mut receiver, 3).await;
    }
    // A destination that does not exist says nothing about GSO.
    let both = Transmit::new(b"fourfive", to).segment_size(4);
    sender.send(&both).await.unwrap();
    let batch = receiver.recv_batch().await.unwrap();
    if cfg!(target_os = "linux") {
        assert_eq!(batch.datagrams(), 2);
    }
}

/// The kernel refuses segmentation on a socket without checksums.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn without_gso_datagrams_are_sent_one_by_one() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let socket = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    set_option(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1);
    let sender = UdpReceiver::builder(&pool)
        .from_std(socket)
        .unwrap()
        .sender();
    let transmit = Transmit::new(b"onetwosixten", receiver.local_addr()).segment_size(3);
    for round in 1..=3 {
        assert_eq!(sender.send(&transmit).await.unwrap(), 4);
        assert_eq!(
            receive(&mut receiver, 4).await,
            [b"one", b"two", b"six", b"ten"]
        );
        let stats = sender.monitor().stats();
        assert_eq!(stats.sent_datagrams, 4 * round);
        // Once that is known, one call takes four messages.
        assert_eq!(stats.send_calls, round);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn connection_refused_is_reported_once_to_sender_and_receiver() {
    let pool = pool();
    for source_only in [false, true] {
        let occupied = occupied(LOOPBACK);
        let gone = occupied.local_addr().unwrap();
        let mut client = UdpReceiver::builder(&pool)
            .coalescing(Coalescing::Off { max_datagram: 1500 })
            .source_only(source_only)
            .connect(gone)
            .bind(LOOPBACK)
            .unwrap();
        let sender = client.sender();
        let hello = Transmit::new(b"hello", gone);
        sender.send(&hello).await.unwrap();
        // On loopback the ICMP answer arrives before the next datagram, or on a busy machine soon after.
        let error = loop {
            if let Err(error) = sender.send(&hello).await {
                break error;
            }
        };
        assert!(matches!(error.kind(), SendErrorKind::Refused), "{error:?}");
        assert_eq!(error.sent(), 0);
        while sender.send(&hello).await.is_err() {}
        let error = loop {
            if let Err(error) = client.try_recv_batch() {
                break error;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        // Once somebody listens there, it works again.
        occupied.connect(client.local_addr()).unwrap();
        let mut server = UdpReceiver::builder(&pool).from_std(occupied).unwrap();
        while sender.send(&hello).await.is_err() {}
        let batch = server.recv_batch().await.unwrap();
        server.sender().send(&batch.reply()).await.unwrap();
        assert_eq!(client.recv_batch().await.unwrap().contents(), b"hello");
    }
}

/// Fails instead of hanging.
#[cfg(target_os = "linux")]
async fn within_a_minute<T>(call: impl Future<Output = T>) -> T {
    let minute = std::time::Duration::from_secs(60);
    tokio::time::timeout(minute, call).await.expect("was woken")
}

/// As on tokio's own socket: a client of a server that is gone need not wait until it gives up.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn connection_refused_wakes_who_receives() {
    let pool = pool();
    let refused = |error: std::io::Error| {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    };
    let occupied = occupied(LOOPBACK);
    let gone = occupied.local_addr().unwrap();
    let hello = Transmit::new(b"hello", gone);
    // The builder connects the one, and the caller has connected the other.
    let own = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    own.connect(gone).unwrap();
    let builder = || UdpReceiver::builder(&pool);
    let bound = builder().connect(gone).bind(LOOPBACK).unwrap();
    for mut client in [bound, builder().from_std(own).unwrap()] {
        let sender = client.sender();
        for _ in 0..3 {
            // It waits already when the error comes.
            let waits = within_a_minute(client.recv_batch());
            let (received, sent) = tokio::join!(waits, async {
                tokio::task::yield_now().await;
                sender.send(&hello).await
            });
            sent.unwrap();
            refused(received.unwrap_err());
            // Or begins to wait later.
            sender.send(&hello).await.unwrap();
            refused(within_a_minute(client.recv()).await.unwrap_err());
        }
        // An error that a send has taken is not told again.
        sender.send(&hello).await.unwrap();
        while sender.send(&hello).await.is_ok() {}
        occupied.connect(client.local_addr()).unwrap();
        let server = occupied.try_clone().unwrap();
        let mut server = builder().from_std(server).unwrap();
        while sender.send(&hello).await.is_err() {}
        let batch = server.recv_batch().await.unwrap();
        server.sender().send(&batch.reply()).await.unwrap();
        assert_eq!(client.recv_batch().await.unwrap().contents(), b"hello");
        drop(server);
        vacate(&occupied);
        let mut client = client.into_bytes_mut(1 << 20);
        sender.send(&hello).await.unwrap();
        refused(within_a_minute(client.recv()).await.unwrap_err());
    }
}

#[tokio::test]
async fn a_sink_sends_everything_and_continues_after_a_failure() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    // Tokio has not noticed yet that there is room.
    let mut sink = sender.sink();
    let to = receiver.local_addr();
    let copy = |bytes: &[u8]| pool.try_copy_from_slice(bytes).unwrap();
    // More than the sink holds.
    for n in 0..200_u32 {
        let payload = copy(&vec![n as u8; n as usize / 3]);
        let item = Outgoing::new(payload, to).header(copy(&n.to_be_bytes()));
        sink.feed(item).await.unwrap();
        assert!(sink.queued() <= 64);
    }
    sink.flush().await.unwrap();
    assert_eq!(sink.queued(), 0);
    for (n, got) in receive(&mut receiver, 200).await.iter().enumerate() {
        assert_eq!(got[..4], (n as u32).to_be_bytes());
        assert_eq!(got[4..], vec![n as u8; n / 3]);
    }
    // Of the loopback addresses not the one that the system would choose.
    let from = Ipv4Addr::new(127, 0, 0, 2).into();
    let marked = Outgoing::new(copy(b"marked"), to).source_ip(from);
    let any = UdpSender::bind("0.0.0.0:0".parse().unwrap()).unwrap();
    any.sink().send(marked.ecn(Ecn::Ect0)).await.unwrap();
    let got = receiver.recv_batch().await.unwrap();
    assert_eq!(got.contents(), b"marked");
    if cfg!(target_os = "linux") {
        assert_eq!((got.source().ip(), got.ecn()), (from, Some(Ecn::Ect0)));
    }
    drop(got);

    sink.feed(Outgoing::new(copy(b"one"), to)).await.unwrap();
    let nowhere = (Ipv4Addr::LOCALHOST, 0).into();
    sink.feed(Outgoing::new(copy(b"bad"), nowhere))
        .await
        .unwrap();
    sink.feed(Outgoing::new(copy(b"two"), to)).await.unwrap();
    let error = sink.flush().await.unwrap_err();
    assert_eq!((error.sent(), error.destination()), (1, Some(nowhere)));
    assert_eq!(sink.queued(), 1, "the one that failed is gone");
    sink.close().await.unwrap();
    assert_eq!(receive(&mut receiver, 2).await, [b"one", b"two"]);

    // An error that a full sink meets does not lose the packet that is being fed.
    let mut failed = 0;
    for n in 0..100_u8 {
        let to = if n == 10 { nowhere } else { to };
        let fed = sink.feed(Outgoing::new(copy(&[n]), to)).await;
        if let Err(error) = fed {
            assert_eq!(error.destination(), Some(nowhere));
            failed += 1;
        }
    }
    failed += usize::from(sink.flush().await.is_err());
    // Closing reports what flushing does.
    sink.feed(Outgoing::new(copy(b"bad"), nowhere))
        .await
        .unwrap();
    let error = sink.close().await.unwrap_err();
    assert_eq!(error.destination(), Some(nowhere));
    sink.close().await.unwrap();
    let got = receive(&mut receiver, 99).await.concat();
    let all = (0..100).filter(|&n| n != 10).collect::<Vec<u8>>();
    assert_eq!((failed, got), (1, all));
    drop((sink, receiver));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The send buffer is never full, so only the sender or the sink itself can yield the thread.
#[tokio::test]
async fn a_busy_sender_or_sink_yields_its_thread() {
    let receiver = UdpReceiver::bind(LOOPBACK, &pool()).unwrap();
    let to = receiver.local_addr();
    let sender = UdpSender::bind(LOOPBACK).unwrap();
    let mut sink = sender.sink();
    let other = tokio::spawn(async {});
    for _ in 0..10_000 {
        sender.send(&Transmit::new(b"hello", to)).await.unwrap();
    }
    assert!(other.is_finished(), "no other task got to run");
    let other = tokio::spawn(async {});
    for _ in 0..10_000 {
        let hello = Packet::from_static(b"hello");
        sink.send(Outgoing::new(hello, to)).await.unwrap();
    }
    assert!(other.is_finished(), "no other task got to run");
}
