//! Options of a socket that the caller sets: before a sender takes the socket, and while it is in use.

use crate::common::{LOOPBACK, pool};
#[cfg(target_os = "linux")]
use crate::common::{occupied, set_option};
#[cfg(target_os = "linux")]
use slab_net::udp::Ecn;
use slab_net::udp::{Transmit, UdpReceiver, UdpSender};
use std::net::{Ipv4Addr, SocketAddr};

/// A group is joined and left while the receiver is in use, through the sender's handle to the same socket.
#[tokio::test]
async fn options_can_change_while_a_receiver_is_in_use() {
    let pool = pool();
    let group = Ipv4Addr::new(239, 7, 7, 8);
    let any = (Ipv4Addr::UNSPECIFIED, 0).into();
    let mut receiver = UdpReceiver::bind(any, &pool).unwrap();
    let port = receiver.local_addr().port();
    let client = UdpSender::bind(LOOPBACK).unwrap();
    let options = socket2::SockRef::from(&client);
    options.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    let to_group = Transmit::new(b"to the group", (group, port).into());
    let direct = Transmit::new(b"direct", (Ipv4Addr::LOCALHOST, port).into());

    let sender = receiver.sender();
    let localhost = &Ipv4Addr::LOCALHOST;
    for is_member in [false, true, false] {
        let options = socket2::SockRef::from(&sender);
        if is_member {
            options.join_multicast_v4(&group, localhost).unwrap();
        }
        client.send_many(&[to_group, direct]).await.unwrap();
        let expected: &[&[u8]] = match is_member {
            true => &[b"to the group", b"direct"],
            false => &[b"direct"],
        };
        for &expected in expected {
            assert_eq!(receiver.recv_batch().await.unwrap().contents(), expected);
        }
        if is_member {
            let options = socket2::SockRef::from(&receiver);
            options.leave_multicast_v4(&group, localhost).unwrap();
        }
    }
}

/// The kernel chooses one shard only for what is sent to one host.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_datagram_to_a_group_reaches_each_shard() {
    let group = Ipv4Addr::new(239, 7, 7, 9);
    let any = (Ipv4Addr::UNSPECIFIED, 0).into();
    let builder = UdpReceiver::builder(&pool());
    let shards = builder.bind_shards(any, 3.try_into().unwrap()).unwrap();
    let client = UdpSender::bind(any).unwrap();
    let to = (group, shards[0].local_addr().port()).into();
    for shard in &shards {
        let options = socket2::SockRef::from(shard);
        let localhost = &Ipv4Addr::LOCALHOST;
        options.join_multicast_v4(&group, localhost).unwrap();
    }
    let mut receivers: Vec<_> = shards.into_iter().map(|s| s.start().unwrap()).collect();
    // The address also says which interface.
    let transmit = Transmit::new(b"to all", to).source_ip(Ipv4Addr::LOCALHOST.into());
    client.send(&transmit).await.unwrap();
    for receiver in &mut receivers {
        let batch = receiver.recv_batch().await.unwrap();
        assert_eq!(batch.contents(), b"to all");
        assert_eq!(batch.destination_ip(), Some(group.into()));
        assert_eq!(receiver.monitor().stats().received_datagrams, 1);
    }
}

/// If the socket's creator wanted it to queue errors, nobody would read them: one about a peer that is gone would be the
/// error of a datagram to another.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_error_about_one_peer_is_not_told_to_whoever_sends_to_another() {
    let pool = pool();
    for any in [LOOPBACK, "[::1]:0".parse().unwrap()] {
        let Ok(socket) = std::net::UdpSocket::bind(any) else {
            assert!(std::env::var_os("SLAB_NET_NO_SKIP").is_none(), "{any}");
            continue;
        };
        let (level, option) = match any {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        set_option(&socket, level, option, 1);
        let occupied = occupied(any);
        let gone = occupied.local_addr().unwrap();
        let mut receiver = UdpReceiver::bind(any, &pool).unwrap();
        let sender = UdpSender::from_std(socket).unwrap();
        // On loopback, the answer that nobody listens there comes at once.
        for _ in 0..3 {
            sender.send(&Transmit::new(b"lost", gone)).await.unwrap();
            let kept = Transmit::new(b"kept", receiver.local_addr());
            sender.send(&kept).await.unwrap();
            assert_eq!(receiver.recv_batch().await.unwrap().contents(), b"kept");
        }
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_sender_from_std_keeps_the_options_of_the_socket() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    socket.bind(&LOOPBACK.into()).unwrap();
    // ECT(0) is the second bit of the type of service.
    socket.set_tos_v4(0b10).unwrap();
    socket.set_send_buffer_size(50_000).unwrap();
    let buffer = socket.send_buffer_size().unwrap();
    let sender = UdpSender::from_std(socket.into()).unwrap();
    let options = socket2::SockRef::from(&sender);
    assert_eq!(options.send_buffer_size().unwrap(), buffer);
    assert!(options.nonblocking().unwrap());

    let two = Transmit::new(b"onetwo", receiver.local_addr()).segment_size(3);
    assert_eq!(sender.send(&two).await.unwrap(), 2);
    let batch = receiver.recv_batch().await.unwrap();
    assert_eq!((batch.contents(), batch.datagrams()), (&b"onetwo"[..], 2));
    assert_eq!(
        (batch.source(), batch.ecn()),
        (sender.local_addr(), Some(Ecn::Ect0))
    );
    assert_eq!(sender.monitor().stats().sent_datagrams, 2);

    // A socket of another family is refused, not misread.
    let (stream, _peer) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let foreign = std::net::UdpSocket::from(std::os::fd::OwnedFd::from(stream));
    assert!(UdpSender::from_std(foreign).is_err());
}

/// Datagrams of one length that leave together are segments of that length; one that leaves alone is not cut.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_segment_size_set_on_the_socket_cuts_no_datagram() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let to = receiver.local_addr();
    let socket = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 500);
    let sender = UdpSender::from_std(socket).unwrap();
    let bodies = [1200, 1200, 700].map(|len| vec![7; len]);
    for body in &bodies {
        sender.send(&Transmit::new(body, to)).await.unwrap();
    }
    let together = bodies.each_ref().map(|body| Transmit::new(body, to));
    assert_eq!(sender.send_many(&together).await.unwrap(), 3);
    for body in bodies.iter().chain(&bodies) {
        assert_eq!(receiver.recv().await.unwrap().packet, body[..]);
    }
    let (sent, received) = (sender.monitor().stats(), receiver.monitor().stats());
    assert_eq!((sent.sent_datagrams, received.received_datagrams), (6, 6));
}

/// The system chooses it when the peer is known.
#[tokio::test]
async fn a_connected_receiver_knows_its_own_address() {
    let pool = pool();
    let peer = UdpSender::bind(LOOPBACK).unwrap();
    let receiver = UdpReceiver::builder(&pool)
        .connect(peer.local_addr())
        .bind((Ipv4Addr::UNSPECIFIED, 0).into())
        .unwrap();
    assert_eq!(receiver.local_addr().ip(), Ipv4Addr::LOCALHOST);
    assert_ne!(receiver.local_addr().port(), 0);
}

/// The system call takes 32 bits with a sign: of more, it would see what is left of them.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[tokio::test]
async fn a_size_of_a_socket_buffer_beyond_what_the_system_takes_is_the_most_that_it_takes() {
    let pool = pool();
    let sizes = |bytes: usize| {
        let builder = UdpReceiver::builder(&pool).receive_buffer_bytes(bytes);
        let receiver = builder.send_buffer_bytes(bytes).bind(LOOPBACK).unwrap();
        let options = socket2::SockRef::from(&receiver);
        [options.recv_buffer_size(), options.send_buffer_size()].map(Result::unwrap)
    };
    let most = sizes(i32::MAX as usize);
    assert!(most.iter().all(|&bytes| bytes > 50_000));
    assert_eq!(sizes((1 << 32) + 10_000), most);
}
