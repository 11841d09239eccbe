//! A real quinn connection over our socket.

#[cfg(target_os = "linux")]
use crate::common::HANG;
use crate::common::LOOPBACK;
#[cfg(target_os = "linux")]
use crate::common::warnings::on_event;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::rustls::{self, RootCertStore};
use quinn::{AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use slab_net::PacketPool;
#[cfg(target_os = "linux")]
use slab_net::udp::QuinnSocket;
use slab_net::udp::{Coalescing, SocketMonitor, Transmit, UdpReceiver, UdpReceiverBuilder};
use std::net::Ipv4Addr;
#[cfg(target_os = "linux")]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn configs() -> (ServerConfig, ClientConfig) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let certificate = CertificateDer::from(made.cert);
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server = ServerConfig::with_single_cert(vec![certificate.clone()], key.into()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = QuicClientConfig::try_from(client).unwrap();
    (server, ClientConfig::new(Arc::new(client)))
}

fn endpoint(
    builder: UdpReceiverBuilder,
    server: Option<ServerConfig>,
) -> (Endpoint, SocketMonitor) {
    let socket = builder.bind(LOOPBACK).unwrap().into_quinn();
    let monitor = socket.monitor();
    let config = EndpointConfig::default();
    let socket: Arc<dyn AsyncUdpSocket> = Arc::new(socket);
    let endpoint =
        Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime));
    (endpoint.unwrap(), monitor)
}

/// Both directions at once: a megabyte each, in both modes, interspersed with datagrams that are not QUIC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_carries_streams_both_ways() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let off = Coalescing::Off { max_datagram: 1500 };
    for coalescing in [Coalescing::On, off] {
        let builder = || UdpReceiver::builder(&pool).coalescing(coalescing);
        let (server_config, client_config) = configs();
        let (server, server_monitor) = endpoint(builder(), Some(server_config));
        let (client, client_monitor) = endpoint(builder(), None);
        let address = server.local_addr().unwrap();

        let echo = tokio::spawn(async move {
            let connection = server.accept().await.unwrap().await.unwrap();
            let (mut send, mut receive) = connection.accept_bi().await.unwrap();
            tokio::io::copy(&mut receive, &mut send).await.unwrap();
            send.finish().unwrap();
            connection.closed().await;
            server.wait_idle().await;
        });

        let noise = UdpReceiver::bind(LOOPBACK, &pool).unwrap().sender();
        noise
            .send(&Transmit::new(&[0xff; 40], address))
            .await
            .unwrap();
        noise.send(&Transmit::new(&[], address)).await.unwrap();

        let connecting = client.connect_with(client_config, address, "localhost");
        let connection = connecting.unwrap().await.unwrap();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let sent: Vec<u8> = (0..1_u32 << 20).map(|n| (n / 251) as u8).collect();
        let payload = sent.clone();
        let sending = tokio::spawn(async move {
            send.write_all(&payload).await.unwrap();
            send.finish().unwrap();
        });
        let got = receive.read_to_end(2 << 20).await.unwrap();
        sending.await.unwrap();
        assert!(got == sent, "what comes back is what was sent");
        connection.close(0_u32.into(), b"done");
        client.wait_idle().await;
        echo.await.unwrap();

        for monitor in [server_monitor, client_monitor] {
            let stats = monitor.stats();
            assert!(stats.received_bytes > 1 << 20, "{stats:?}");
            assert!(stats.sent_bytes > 1 << 20, "{stats:?}");
            assert_eq!(stats.dropped(), 0, "{stats:?}");
            if coalescing == Coalescing::On && cfg!(target_os = "linux") {
                assert!(stats.send_calls < stats.sent_datagrams, "GSO: {stats:?}");
            }
        }
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// quinn makes its buffers once, as long as the first socket of the endpoint requires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_rebinds_to_a_coalescing_socket_loses_nothing() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let (server_config, client_config) = configs();
    let (server, _) = endpoint(UdpReceiver::builder(&pool), Some(server_config));
    let off = Coalescing::Off { max_datagram: 1500 };
    let (client, _) = endpoint(UdpReceiver::builder(&pool).coalescing(off), None);
    let address = server.local_addr().unwrap();
    let sent: Vec<u8> = (0..1_u32 << 20).map(|n| (n / 251) as u8).collect();
    let payload = sent.clone();
    let sending = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let (mut send, mut receive) = connection.accept_bi().await.unwrap();
        assert_eq!(receive.read_to_end(9).await.unwrap(), b"go");
        send.write_all(&payload).await.unwrap();
        send.finish().unwrap();
        connection.closed().await;
    });

    let connecting = client.connect_with(client_config, address, "localhost");
    let connection = connecting.unwrap().await.unwrap();
    let socket = UdpReceiver::bind(LOOPBACK, &pool).unwrap().into_quinn();
    let monitor = socket.monitor();
    client.rebind_abstract(Arc::new(socket)).unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(b"go").await.unwrap();
    send.finish().unwrap();
    let got = receive.read_to_end(2 << 20).await.unwrap();
    assert!(got == sent, "what comes is what was sent");
    connection.close(0_u32.into(), b"done");
    client.wait_idle().await;
    sending.await.unwrap();
    let stats = monitor.stats();
    assert!(stats.received_bytes > 1 << 20, "{stats:?}");
    assert_eq!(stats.dropped(), 0, "{stats:?}");
}

/// One receive call of quinn's, with a buffer of this many bytes.
#[cfg(target_os = "linux")]
async fn recv_once(socket: &QuinnSocket, bytes: usize) -> (quinn::udp::RecvMeta, Vec<u8>) {
    let (mut buffer, mut meta) = (vec![0; bytes], [quinn::udp::RecvMeta::default()]);
    let read = std::future::poll_fn(|cx| {
        let mut buffers = [std::io::IoSliceMut::new(&mut buffer)];
        socket.poll_recv(cx, &mut buffers, &mut meta)
    });
    assert_eq!(read.await.unwrap(), 1);
    buffer.truncate(meta[0].len);
    (meta[0], buffer)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn quinn_metadata_matches_the_kernel_in_both_directions() {
    use quinn::udp::EcnCodepoint::{Ce, Ect0, Ect1};

    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let socket = UdpReceiver::bind(LOOPBACK, &pool).unwrap().into_quinn();
    let everywhere = (Ipv4Addr::UNSPECIFIED, 0).into();
    let peer = UdpReceiver::bind(everywhere, &pool).unwrap().into_quinn();
    // Not the address that the system would choose.
    let from = Ipv4Addr::new(127, 0, 0, 2);
    for ecn in [None, Some(Ect0), Some(Ect1), Some(Ce)] {
        let transmit = quinn::udp::Transmit {
            destination: socket.local_addr().unwrap(),
            ecn,
            contents: b"onetwosi",
            segment_size: Some(3),
            src_ip: Some(from.into()),
        };
        peer.try_send(&transmit).unwrap();
        let (meta, contents) = recv_once(&socket, 64 << 10).await;
        assert_eq!((&contents[..], meta.stride), (&b"onetwosi"[..], 3));
        let port = peer.local_addr().unwrap().port();
        assert_eq!(meta.addr, (from, port).into());
        assert_eq!((meta.ecn, meta.dst_ip), (ecn, Some(LOOPBACK.ip())));
    }

    // See the tests of `udp_system`; quinn then looks for the longest datagram that the path takes.
    assert!(!socket.may_fragment());
    let fragments = UdpReceiver::builder(&pool)
        .fragment(true)
        .bind(LOOPBACK)
        .unwrap();
    assert!(fragments.into_quinn().may_fragment());

    // quinn does not see a truncated datagram, but does see the next one.
    for contents in [&b"too long"[..], b"short"] {
        let transmit = quinn::udp::Transmit {
            destination: socket.local_addr().unwrap(),
            ecn: None,
            contents,
            segment_size: None,
            src_ip: None,
        };
        peer.try_send(&transmit).unwrap();
    }
    assert_eq!(recv_once(&socket, 7).await.1, b"");
    assert_eq!(recv_once(&socket, 7).await.1, b"short");
    let stats = socket.monitor().stats();
    assert_eq!(
        (stats.received_datagrams, stats.receive_calls),
        (4 * 3 + 2, 4 + 2)
    );
    assert_eq!((stats.dropped_truncated, stats.dropped()), (1, 1));
    assert_eq!(stats.received_bytes - stats.dropped_bytes(), 4 * 8 + 5);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn quinn_is_told_that_its_socket_was_shut_down_after_what_is_queued() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
    let one = Transmit::new(b"one", receiver.local_addr());
    receiver.sender().send(&one).await.unwrap();
    let _ = socket2::SockRef::from(&receiver).shutdown(std::net::Shutdown::Read);
    let socket = receiver.into_quinn();
    assert_eq!(recv_once(&socket, 64 << 10).await.1, b"one");
    let (mut buffer, mut meta) = ([0; 100], [quinn::udp::RecvMeta::default()]);
    let read = std::future::poll_fn(|cx| {
        let mut buffers = [std::io::IoSliceMut::new(&mut buffer)];
        socket.poll_recv(cx, &mut buffers, &mut meta)
    });
    let read = tokio::time::timeout(HANG, read).await;
    let error = read.expect("tries for ever").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
}

/// quinn is not told, so the socket counts the loss.
#[cfg(target_os = "linux")]
#[test]
fn quinn_datagrams_that_fail_to_send_are_counted_as_lost() {
    use crate::common::network::run_on_own_thread;

    async fn test() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
        let to = receiver.local_addr();
        // Tokio has to know that the socket is writable before `try_send` can work.
        receiver
            .sender()
            .send(&Transmit::new(b"x", to))
            .await
            .unwrap();
        let socket = Arc::new(receiver.into_quinn());
        let transmit = |segment_size| quinn::udp::Transmit {
            destination: to,
            ecn: None,
            contents: b"onetwosix",
            segment_size,
            src_ip: None,
        };
        socket.try_send(&transmit(Some(3))).unwrap();
        let before = socket.monitor().stats();
        assert_eq!((before.sent_datagrams, before.send_lost_datagrams), (4, 0));
        if let Err(why) = crate::common::fail_sends(libc::ENOBUFS) {
            return crate::common::skipped("this thread's system cannot be changed", &why);
        }
        socket.try_send(&transmit(Some(3))).unwrap();
        socket.try_send(&transmit(None)).unwrap();
        let stats = socket.monitor().stats();
        assert_eq!((stats.sent_datagrams, stats.send_lost_datagrams), (4, 4));
        // The error is logged when they are counted: a subscriber may panic.
        let _watching = on_event(tracing::Level::DEBUG, |_| panic!("by a subscriber"));
        let send = AssertUnwindSafe(|| socket.try_send(&transmit(None)));
        assert!(catch_unwind(send).is_err());
        assert_eq!(socket.monitor().stats().send_lost_datagrams, 5);
    }
    // The refusal, which comes later, cannot be undone.
    run_on_own_thread(|| Ok(()), test);
}
