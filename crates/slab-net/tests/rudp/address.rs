//! Who may open a session, and from where: cookies, and sockets that are connected.

use crate::common::pair::{CONV, Pair, bare_header, datagram, segments_of, transmit};
use crate::common::sockets::{TIMEOUT, any, fast, pool, wait_until};
use slab_net::rudp::wire::{Command, HEADER_BYTES, Header};
use slab_net::rudp::{
    CloseReason, Connection, Endpoint, EndpointConfig, MemoryBudget, OpenError, Session,
    SessionConfig, Side, Time,
};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// The first datagram of a session of another implementation.
fn opening(conv: u32, cmd: Command, ts: u32) -> Vec<u8> {
    let header = Header {
        // As in this library's questions.
        frg: u8::from(cmd == Command::AskWindow),
        wnd: 32,
        ts,
        ..bare_header(conv, cmd)
    };
    datagram(header, b"")
}

/// The question is a segment that was here before, and the answer acknowledges it once more.
#[test]
fn the_question_for_a_proof_of_the_address_does_not_count_as_a_duplicate() {
    let mut pair = Pair::new();
    pair.client.send_slice(b"hello").unwrap();
    pair.settle();
    assert!(pair.server.is_validated());
    let stats = pair.client.stats();
    assert_eq!((stats.received_segments, stats.duplicates), (1, 0));
    assert_eq!(pair.server.stats().sent_segments, 1);
}

/// Sends a long message and receives it back.
async fn assert_echo(server: &Endpoint, client: &Connection) {
    client.send_slice(&[7; 20_000]).await.unwrap();
    client.send_slice(b"and more").await.unwrap();
    let echo = async {
        let connection = server.accept().await.unwrap();
        for _ in 0..2 {
            let message = connection.recv().await.unwrap().unwrap();
            connection.send(message).await.unwrap();
        }
        connection
    };
    let connection = timeout(TIMEOUT, echo).await.unwrap();
    let first = timeout(TIMEOUT, client.recv())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(first, [7; 20_000][..]);
    let second = timeout(TIMEOUT, client.recv()).await.unwrap().unwrap();
    assert_eq!(second.unwrap(), b"and more"[..]);
    drop(connection);
}

/// Forged addresses use up the room for unproved ones; a peer that receives at its own address still gets in.
#[tokio::test]
async fn a_flood_of_half_open_sessions_does_not_keep_this_library_out() {
    let pool = pool();
    let limits = [
        fast().max_half_open(3, 100),
        // Of four places, three.
        fast().max_sessions(4),
    ];
    for config in limits {
        let server = Endpoint::bind(any(), &pool, config).unwrap();
        let flood = UdpSocket::bind(any()).await.unwrap();
        for conv in 0..50 {
            let datagram = opening(conv, Command::Push, 1);
            flood.send_to(&datagram, server.local_addr()).await.unwrap();
        }
        wait_until(&server, "flooded", |server| {
            server.stats().refused_half_open >= 47
        })
        .await;
        assert_eq!(server.stats().half_open, 3);
        assert_eq!(server.stats().cookies_sent, 0, "they asked for nothing");
        // They keep their places.
        let mut flooded = Vec::new();
        for _ in 0..3 {
            flooded.push(server.accept().await);
        }

        let ask = opening(50, Command::AskWindow, 1);
        flood.send_to(&ask, server.local_addr()).await.unwrap();
        wait_until(&server, "asked", |server| server.stats().cookies_sent == 1).await;
        assert_eq!(server.stats().refused_half_open, 48);

        let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
        assert_echo(&server, &client).await;
        let stats = server.stats();
        assert!(stats.cookies_sent >= 2, "{stats:?}");
        assert_eq!(stats.cookies_taken, 1);
    }
}

#[tokio::test]
async fn a_server_may_require_a_cookie_of_everybody() {
    let pool = pool();
    let config = fast().require_cookie(true);
    let server = Endpoint::bind(any(), &pool, config).unwrap();
    let foreign = UdpSocket::bind(any()).await.unwrap();
    let push = opening(1, Command::Push, 1);
    foreign.send_to(&push, server.local_addr()).await.unwrap();
    wait_until(&server, "refused", |server| {
        server.stats().unknown_session == 1
    })
    .await;

    // Nor would a peer that asks as KCP does understand a cookie.
    let mut ask = opening(1, Command::AskWindow, 77);
    ask[5] = 0;
    foreign.send_to(&ask, server.local_addr()).await.unwrap();
    wait_until(&server, "refused, too", |server| {
        server.stats().unknown_session == 2
    })
    .await;
    assert_eq!(server.stats().cookies_sent, 0);

    // The bound for a forged address is three times what was received; this is far below it.
    let ask = opening(1, Command::AskWindow, 77);
    foreign.send_to(&ask, server.local_addr()).await.unwrap();
    let mut answer = [0; 2000];
    let (len, _) = foreign.recv_from(&mut answer).await.unwrap();
    assert!(len <= 2 * ask.len(), "{len} bytes");
    let header = Header::decode(&answer).unwrap();
    assert_eq!((header.cmd, header.ts), (Command::Cookie, 77));
    let stats = server.stats();
    assert_eq!(stats.sessions, 0, "nothing is kept");
    assert_eq!(stats.unknown_session, 2, "it was not refused");
    // A cookie that the server never sent.
    let mut forged = answer[..len].to_vec();
    forged[len - 1] ^= 1;
    foreign.send_to(&forged, server.local_addr()).await.unwrap();
    wait_until(&server, "forged", |server| {
        server.stats().unknown_session == 3
    })
    .await;

    for _ in 0..5 {
        let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
        assert_echo(&server, &client).await;
    }
    let stats = server.stats();
    assert_eq!((stats.cookies_taken, stats.half_open), (5, 0));
    assert!(stats.cookies_sent >= 6, "{stats:?}");
    assert_eq!(stats.refused_half_open, 0, "no limit was reached");
}

/// An address may be given in any of its forms: an IPv6 socket reports IPv4 addresses mapped. On other systems it
/// may have none of IPv4.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_ipv6_endpoint_talks_to_ipv4_peers() {
    use std::net::SocketAddr;
    let pool = pool();
    let Ok(dual) = Endpoint::bind("[::]:0".parse().unwrap(), &pool, fast()) else {
        assert!(std::env::var_os("SLAB_NET_NO_SKIP").is_none(), "no IPv6");
        return;
    };
    let mapped = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
        SocketAddr::V6(_) => address,
    };
    let server = Endpoint::bind(any(), &pool, fast().require_cookie(true)).unwrap();
    let v4 = server.local_addr();
    for peer in [v4, mapped(v4)] {
        let alone = Connection::connect(peer, &pool, fast()).unwrap();
        for client in [dual.connect(peer).unwrap(), alone] {
            assert_echo(&server, &client).await;
            assert_eq!(client.peer_addr(), v4);
        }
    }
    let other: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
    assert!(matches!(
        server.connect(other),
        Err(OpenError::AddressFamily)
    ));
    let here = ([127, 0, 0, 1], dual.local_addr().port()).into();
    for peer in [here, mapped(here)] {
        let client = Connection::connect(peer, &pool, fast()).unwrap();
        assert_echo(&dual, &client).await;
    }
}

/// A client's socket is connected: it receives only from the address that it sends to.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_bound_to_all_answers_from_the_address_that_was_sent_to() {
    let pool = pool();
    let configs = [
        fast(),
        fast().require_cookie(true),
        #[cfg(feature = "aes-gcm")]
        fast()
            .require_cookie(true)
            .aes_gcm(slab_net::rudp::crypto::AesGcm::new(&[7; 16]).unwrap()),
    ];
    for config in configs {
        for all in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
            let bound = Endpoint::bind(all.parse().unwrap(), &pool, config.clone());
            let adopted = std::net::UdpSocket::bind(all)
                .map(|socket| Endpoint::from_std(socket, &pool, config.clone()).unwrap());
            for server in [bound.ok(), adopted.ok()] {
                let Some(server) = server else {
                    assert!(std::env::var_os("SLAB_NET_NO_SKIP").is_none(), "{all}");
                    continue;
                };
                // Not the address that the system would choose to answer from.
                let to = ([127, 0, 0, 2], server.local_addr().port()).into();
                let client = Connection::connect(to, &pool, config.clone()).unwrap();
                timeout(TIMEOUT, assert_echo(&server, &client))
                    .await
                    .expect(all);
            }
        }
    }
}

/// The unspecified address is what an endpoint bound to all addresses reports.
#[tokio::test]
async fn connecting_to_the_unspecified_address_reaches_loopback() {
    let pool = pool();
    for all in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        let Ok(server) = Endpoint::bind(all.parse().unwrap(), &pool, fast()) else {
            assert!(std::env::var_os("SLAB_NET_NO_SKIP").is_none(), "{all}");
            continue;
        };
        let alone = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
        let shared = Endpoint::bind(all.parse().unwrap(), &pool, fast()).unwrap();
        for client in [shared.connect(server.local_addr()).unwrap(), alone] {
            assert_echo(&server, &client).await;
            assert!(client.peer_addr().ip().is_loopback());
        }
    }
}

/// A server that has restarted, or that sees the client at another address than before, does not know the client's
/// cookie. The client gets in with another one, or without one if none is needed.
#[tokio::test]
async fn a_client_with_an_outdated_cookie_still_connects() {
    for needs_another in [false, true] {
        let pool = pool();
        let first = Endpoint::bind(any(), &pool, fast().require_cookie(true)).unwrap();
        let config = fast().require_cookie(needs_another);
        let second = Endpoint::bind(any(), &pool, config).unwrap();
        let front = UdpSocket::bind(any()).await.unwrap();
        let back = UdpSocket::bind(any()).await.unwrap();
        let address = front.local_addr().unwrap();
        let (before, after) = (first.local_addr(), second.local_addr());
        let proxy = tokio::spawn(async move {
            let (mut there, mut here) = ([0; 2000], [0; 2000]);
            let (mut server, mut client) = (before, None);
            loop {
                tokio::select! {
                    Ok((len, from)) = front.recv_from(&mut there) => {
                        client = Some(from);
                        back.send_to(&there[..len], server).await.unwrap();
                    }
                    Ok((len, from)) = back.recv_from(&mut here) => {
                        let header = Header::decode(&here[..len]).unwrap();
                        if (from, header.cmd) == (before, Command::Cookie) {
                            server = after;
                        }
                        let client = client.expect("nobody else has asked");
                        front.send_to(&here[..len], client).await.unwrap();
                    }
                }
            }
        });
        let client = Connection::connect(address, &pool, fast()).unwrap();
        assert_echo(&second, &client).await;
        assert!(first.stats().cookies_sent > 0);
        let stats = second.stats();
        assert_eq!(stats.cookies_sent > 0, needs_another, "{stats:?}");
        assert_eq!(stats.cookies_taken, u64::from(needs_another), "{stats:?}");
        proxy.abort();
    }
}

/// By then everything was sent as often as a dead peer gets it; but the server is there, and has taken nothing so far.
#[test]
fn a_late_cookie_ends_no_session() {
    let pool = pool();
    let budget = MemoryBudget::new(1 << 20);
    let config = SessionConfig::fast().dead_link(2);
    let mut now = Time::ZERO;
    let mut client =
        Session::open(CONV, &config, Side::Client, &pool, &budget, 7 << 32, now).unwrap();
    let mut sent_after = |client: &mut Session, pause: u64| {
        now = now + Duration::from_millis(pause);
        client.handle_timeout(now);
        let sent = transmit(client, now);
        let pushes = sent.iter().flat_map(|datagram| segments_of(datagram));
        pushes.filter(|header| header.cmd == Command::Push).count()
    };
    let answer = |client: &mut Session, cookie: u64| {
        let mut datagram = opening(CONV, Command::Cookie, 7)[..HEADER_BYTES].to_vec();
        datagram[20..HEADER_BYTES].copy_from_slice(&8_u32.to_le_bytes());
        datagram.extend_from_slice(&cookie.to_le_bytes());
        client.handle_datagram(Time::ZERO, datagram.into()).unwrap();
    };
    client.send_slice(b"hello").unwrap();
    assert_eq!([0, 200].map(|pause| sent_after(&mut client, pause)), [1, 1]);
    answer(&mut client, 1);
    assert_eq!(client.ended(), None);
    // It has as often to answer to the cookie.
    assert_eq!([0, 400].map(|pause| sent_after(&mut client, pause)), [1, 1]);
    // Who wants another is not to be had.
    answer(&mut client, 2);
    assert_eq!(client.ended(), Some(CloseReason::DeadLink));
}

/// A client's socket lets in only its peer's datagrams.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_client_receives_only_from_its_peer() {
    let pool = pool();
    let server = UdpSocket::bind(any()).await.unwrap();
    let peer = server.local_addr().unwrap();
    let client = Connection::connect(peer, &pool, fast()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let mut buf = [0; 2000];
    let (_, from) = server.recv_from(&mut buf).await.unwrap();
    // Connected from its side as well, so that it learns of a refusal by the system.
    let stranger = UdpSocket::bind(any()).await.unwrap();
    stranger.connect(from).await.unwrap();
    stranger
        .send(&opening(client.conv(), Command::Push, 1))
        .await
        .unwrap();
    // Tokio wakes nobody for it who waits for something to read, and on a busy machine it comes late.
    let told = timeout(TIMEOUT, stranger.ready(Interest::ERROR)).await;
    told.unwrap().unwrap();
    let refused = stranger.take_error().unwrap().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_client_is_refused_if_nobody_listens() {
    let pool = pool();
    // Keeps the port from others, and takes nothing from the client.
    let occupied = UdpSocket::bind(any()).await.unwrap();
    occupied.connect("127.0.0.1:9").await.unwrap();
    let peer = occupied.local_addr().unwrap();
    let client = Connection::connect(peer, &pool, fast()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let end = timeout(TIMEOUT, client.recv()).await.unwrap();
    assert_eq!(end, Err(CloseReason::Refused));
}

/// The client's questions do not look like the beginning of a session, although it has received nothing: otherwise the
/// new server would open one, and take nothing of what comes next. It says that it knows of none.
#[tokio::test]
async fn a_client_that_only_sends_notices_that_its_server_has_restarted() {
    assert_restart_is_noticed(40, 256).await;
}

/// Nor do messages beyond the window that the new server has, though another might take them.
#[tokio::test]
async fn a_client_notices_that_its_server_has_restarted_with_a_smaller_window() {
    assert_restart_is_noticed(10, 4).await;
}

/// Has a server restart, with this window, to which its client has sent so many messages.
async fn assert_restart_is_noticed(messages: u8, window: u32) {
    let pool = pool();
    let [first, second] = [256, window].map(|window| {
        let config = EndpointConfig::new(SessionConfig::fast().window(256, window));
        Endpoint::bind(any(), &pool, config).unwrap()
    });
    let front = UdpSocket::bind(any()).await.unwrap();
    let back = UdpSocket::bind(any()).await.unwrap();
    let session = SessionConfig::fast();
    let session = session
        .keepalive(Duration::from_millis(200))
        .idle_timeout(Duration::from_secs(600));
    let config = EndpointConfig::new(session.dead_link(1000));
    let client = Connection::connect(front.local_addr().unwrap(), &pool, config).unwrap();
    let (restart, restarted) = tokio::sync::watch::channel(first.local_addr());
    let proxy = tokio::spawn(async move {
        let (mut there, mut here, mut client) = ([0; 2000], [0; 2000], None);
        loop {
            let server = *restarted.borrow();
            tokio::select! {
                Ok((len, from)) = front.recv_from(&mut there) => {
                    client = Some(from);
                    back.send_to(&there[..len], server).await.unwrap();
                }
                Ok((len, from)) = back.recv_from(&mut here) => {
                    let client = client.filter(|_| from == server);
                    if let Some(client) = client {
                        front.send_to(&here[..len], client).await.unwrap();
                    }
                }
            }
        }
    });
    for n in 0..messages {
        client.send_slice(&[n]).await.unwrap();
    }
    wait_until(&first, "acknowledged", |_| client.is_sent()).await;
    restart.send(second.local_addr()).unwrap();
    client.send_slice(b"one more").await.unwrap();
    let end = timeout(TIMEOUT, client.recv()).await;
    assert_eq!(end.expect("it goes on"), Err(CloseReason::Reset));
    assert_eq!(second.stats().opened, 0);
    proxy.abort();
}
