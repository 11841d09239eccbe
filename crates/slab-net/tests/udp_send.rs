//! Sending to real sockets: segments, replies, and what the system refuses.

use slab_net::PacketPool;
use slab_net::udp::{BindError, Ecn, SendErrorKind, Transmit, UdpReceiver, UdpSender};
use std::net::{Ipv4Addr, SocketAddr};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn pool() -> PacketPool {
    PacketPool::builder().max_memory(16 << 20).build().unwrap()
}

#[tokio::test]
async fn a_reply_goes_back_whole_and_from_where_it_was_sent_to() {
    let pool = pool();
    let mut server = UdpReceiver::bind((Ipv4Addr::UNSPECIFIED, 0).into(), &pool).unwrap();
    let mut client = UdpReceiver::bind(ANY, &pool).unwrap();
    // Not the address that the system would choose to answer from.
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

#[tokio::test]
async fn more_than_a_kernel_call_takes_is_cut_and_all_arrives() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(ANY, &pool).unwrap();
    let sender = UdpSender::bind(ANY).unwrap();
    // 200 segments, and more than 64 KiB: neither limit allows one call.
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
    assert!(stats.send_calls >= 2);
}

#[tokio::test]
async fn try_send_stops_at_a_full_send_buffer_or_sends_all() {
    let pool = pool();
    let receiver = UdpReceiver::bind(ANY, &pool).unwrap();
    let sender = UdpSender::bind(ANY).unwrap();
    // Tokio has to hear of the socket before `try_send` may try.
    let hello = Transmit::new(b"hello", receiver.local_addr());
    sender.send(&hello).await.unwrap();
    let contents = [0; 3000];
    let three = Transmit::new(&contents, receiver.local_addr()).segment_size(1000);
    let sent = sender.try_send(&three).unwrap();
    assert_eq!(sender.monitor().stats().sent_datagrams, 1 + sent as u64);
    assert_eq!(sent, 3, "loopback takes three datagrams");
}

#[tokio::test]
async fn what_is_too_large_is_said_and_nothing_else_breaks() {
    let pool = pool();
    let mut receiver = UdpReceiver::bind(ANY, &pool).unwrap();
    let sender = UdpSender::bind(ANY).unwrap();
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
    // The socket is as good as before.
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
async fn an_address_that_cannot_be_reached_or_bound_is_an_error() {
    let sender = UdpSender::bind(ANY).unwrap();
    // Port 0 is nowhere.
    let nowhere = Transmit::new(b"x", (Ipv4Addr::LOCALHOST, 0).into());
    let error = sender.send(&nowhere).await.unwrap_err();
    assert!(matches!(error.kind(), SendErrorKind::Io(_)), "{error}");
    // TEST-NET-1 is nobody's own address.
    let refused = UdpSender::bind(([192, 0, 2, 1], 0).into()).unwrap_err();
    assert!(matches!(refused, BindError::Socket { .. }));
}
