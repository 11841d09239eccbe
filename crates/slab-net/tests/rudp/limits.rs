//! What endpoints refuse, over real sockets: the limits, and what attackers try.

use crate::common::pair::{bare_header, datagram};
use crate::common::sockets::{TIMEOUT, accept, any, fast, pool, recv, wait_until};
use slab_net::rudp::wire::{Command, HEADER_BYTES, Header, segments};
use slab_net::rudp::{
    Connection, Endpoint, EndpointConfig, MemoryBudget, OpenError, Session, SessionConfig, Side,
    Time, TryRecvError,
};
use slab_net::{PacketPool, SizeClasses};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// What a session reserves when it is opened: its smallest window, with the reserve for larger buffers.
const OPENING_BYTES: usize = 32 * 1536 * 5 / 4;
/// The most that it may reserve before its address is proved: as much again for sending.
const HALF_OPEN_BYTES: usize = 2 * OPENING_BYTES;

fn opening(conv: u32) -> Vec<u8> {
    let header = Header {
        wnd: 32,
        len: 1,
        ..bare_header(conv, Command::Push)
    };
    datagram(header, &[0])
}

/// One datagram with another conversation takes over a client of tokio_kcp.
#[tokio::test]
async fn another_conversation_does_not_disturb_a_client() {
    let pool = pool();
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let client = Connection::connect(server.local_addr().unwrap(), &pool, fast()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let mut buf = [0; 2000];
    let (_, from) = server.recv_from(&mut buf).await.unwrap();
    let conv = client.conv();
    server.send_to(&opening(conv ^ 1), from).await.unwrap();
    // The right conversation, from another address.
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    stranger.send_to(&opening(conv), from).await.unwrap();
    server.send_to(&opening(conv), from).await.unwrap();
    assert_eq!(recv(&client).await, [0]);
    assert_eq!(client.conv(), conv);
    assert_eq!(client.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(client.ended(), None);
}

/// In a server of kcp-go, a second conversation from one address replaces the first.
#[tokio::test]
async fn another_conversation_from_the_same_address_opens_a_second_session() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let peer = UdpSocket::bind(any()).await.unwrap();
    let to = server.local_addr();
    peer.send_to(&opening(1), to).await.unwrap();
    let first = accept(&server).await;
    assert_eq!(recv(&first).await, [0]);
    peer.send_to(&opening(2), to).await.unwrap();
    let second = accept(&server).await;
    assert_eq!(recv(&second).await, [0]);
    assert_eq!((first.conv(), second.conv()), (1, 2));

    let mut more = opening(1);
    more[12] = 1; // `sn`
    more[HEADER_BYTES] = 7;
    peer.send_to(&more, to).await.unwrap();
    assert_eq!(recv(&first).await, [7]);
    first.send_slice(b"still here").await.unwrap();
    let mut buf = [0; 2000];
    let echoed = async {
        loop {
            let len = peer.recv(&mut buf).await.unwrap();
            let header = Header::decode(&buf).unwrap();
            if header.conv == 1 && buf[..len].ends_with(b"still here") {
                return;
            }
        }
    };
    timeout(TIMEOUT, echoed).await.unwrap();
    assert_eq!((first.ended(), second.ended()), (None, None));
    assert_eq!(server.stats().sessions, 2);
}

#[test]
fn session_open_returns_what_is_wrong() {
    let open = |config: SessionConfig, pool: &PacketPool, budget| {
        let budget = MemoryBudget::new(budget);
        Session::open(1, &config, Side::Client, pool, &budget, 5, Time::ZERO).map(drop)
    };
    let (config, plenty) = (SessionConfig::fast(), pool());
    assert!(open(config, &plenty, OPENING_BYTES).is_ok());
    let error = open(config, &plenty, OPENING_BYTES - 1).unwrap_err();
    assert!(matches!(error, OpenError::NoMemory), "{error}");
    let error = open(config.mtu(1), &plenty, OPENING_BYTES).unwrap_err();
    assert!(matches!(error, OpenError::Config(_)), "{error}");
    let classes = SizeClasses::explicit(&[1280]).unwrap();
    let small = PacketPool::builder().size_classes(classes).build().unwrap();
    let error = open(config, &small, OPENING_BYTES).unwrap_err();
    assert!(
        matches!(error, OpenError::NoSegmentClass { needed, largest: 1280 } if needed > 1280),
        "{error}"
    );
    // The longest segment fits, but not together with its header, as it is sent.
    for (largest, fits) in [(8000 - 64, false), (8000, true)] {
        let classes = SizeClasses::explicit(&[64, largest]).unwrap();
        let builder = PacketPool::builder().size_classes(classes);
        let opened = open(config.mtu(8000), &builder.build().unwrap(), 1 << 20);
        assert_eq!(opened.is_ok(), fits);
        if let Err(error) = opened {
            assert!(
                matches!(error, OpenError::NoSegmentClass { needed: 8000, .. }),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn limits_that_admit_no_session_are_refused_at_once() {
    let pool = pool();
    let refused = |config| Endpoint::bind(any(), &pool, config).map(drop).unwrap_err();
    let none = refused(fast().max_sessions(0));
    assert!(matches!(none, OpenError::TableFull), "{none}");
    let short = refused(fast().max_memory(OPENING_BYTES - 1));
    assert!(matches!(short, OpenError::NoMemory), "{short}");
    let one = fast().max_memory(OPENING_BYTES).max_sessions(1);
    Endpoint::bind(any(), &pool, one).unwrap();
}

#[tokio::test]
async fn every_limit_refuses_new_sessions_and_keeps_open_ones() {
    let pool = pool();
    let cases = [
        ("table", fast().max_sessions(3)),
        ("half-open", fast().max_half_open(3, 100)),
        ("prefix", fast().max_half_open(100, 3)),
        ("backlog", fast().backlog(3)),
        // A fourth of this has room for three half-open sessions.
        ("memory", fast().max_memory(4 * 3 * HALF_OPEN_BYTES)),
    ];
    for (what, config) in cases {
        let server = Endpoint::bind(any(), &pool, config).unwrap();
        let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
        client.send_slice(b"first").await.unwrap();
        let flood = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        wait_until(&server, what, |server| server.stats().sessions == 1).await;
        for conv in 0..200 {
            flood
                .send_to(&opening(conv), server.local_addr())
                .await
                .unwrap();
            tokio::task::yield_now().await;
        }
        let refused = |server: &Endpoint| {
            let stats = server.stats();
            match what {
                "table" => stats.refused_table_full,
                "half-open" | "memory" => stats.refused_half_open,
                "prefix" => stats.refused_prefix,
                _ => stats.refused_backlog,
            }
        };
        wait_until(&server, what, |server| refused(server) > 100).await;
        let stats = server.stats();
        // When the first one proved its address is not known.
        let most = match what {
            "table" | "backlog" => 3,
            _ => 4,
        };
        assert!(stats.sessions <= most, "{what}: {stats:?}");
        assert!(stats.reserved_bytes <= stats.reserve_limit_bytes);
        // The first session is not affected.
        let connection = accept(&server).await;
        assert_eq!(recv(&connection).await, b"first");
        connection.send_slice(b"answer").await.unwrap();
        assert_eq!(recv(&client).await, b"answer");
    }
}

/// Otherwise a few peers of one prefix, one after the other, would shut out all that come later.
#[tokio::test]
async fn a_proved_address_does_not_count_in_the_limit_of_its_prefix() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast().max_half_open(100, 2)).unwrap();
    for _ in 0..6 {
        let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
        client.send_slice(b"hello").await.unwrap();
        let accepted = accept(&server).await;
        assert_eq!(recv(&accepted).await, b"hello");
        wait_until(&server, "proved", |server| server.stats().half_open == 0).await;
    }
    let stats = server.stats();
    assert_eq!((stats.opened, stats.refused_prefix), (6, 0));
}

/// Forged addresses get a fourth of the memory. Others can still open sessions, and open sessions have what they
/// need.
#[tokio::test]
async fn forged_addresses_do_not_take_the_memory_of_others() {
    let pool = pool();
    let config = fast()
        .max_memory(16 * HALF_OPEN_BYTES)
        .max_half_open(1024, 1024);
    let server = Endpoint::bind(any(), &pool, config.clone().backlog(1000)).unwrap();
    let clients: Vec<_> = (0..3)
        .map(|_| Connection::connect(server.local_addr(), &pool, fast()).unwrap())
        .collect();
    let talk = async |client: &Connection| {
        client.send_slice(b"question").await.unwrap();
        let accepted = loop {
            let accepted = accept(&server).await;
            // The flood's sessions are in the same queue, and send nothing.
            if recv(&accepted).await == b"question" {
                break accepted;
            }
        };
        accepted.send_slice(&[1; 10_000]).await.unwrap();
        assert_eq!(recv(client).await, [1; 10_000]);
        accepted
    };
    let talk = async |client: &Connection| timeout(TIMEOUT, talk(client)).await.unwrap();
    let before = talk(&clients[0]).await;
    let flood = UdpSocket::bind(any()).await.unwrap();
    for conv in 0..200 {
        let datagram = opening(conv);
        flood.send_to(&datagram, server.local_addr()).await.unwrap();
        tokio::task::yield_now().await;
    }
    wait_until(&server, "flooded", |server| {
        server.stats().refused_half_open > 100
    })
    .await;
    let stats = server.stats();
    assert!(stats.half_open <= 4, "{stats:?}");
    assert!(stats.reserved_bytes <= stats.reserve_limit_bytes / 2);

    let sent = timeout(TIMEOUT, before.send_slice(&[2; 10_000]));
    sent.await.unwrap().unwrap();
    assert_eq!(recv(&clients[0]).await, [2; 10_000]);
    let after = [talk(&clients[1]).await, talk(&clients[2]).await];
    assert_eq!(server.stats().refused_memory, 0);
    drop(after);
}

/// A server with memory for four half-open sessions, and both ends of a session that is proved.
async fn server_with_one_proved_client(pool: &PacketPool) -> (Endpoint, Connection, Connection) {
    let config = fast()
        .max_memory(17 * HALF_OPEN_BYTES)
        .max_half_open(1024, 1024);
    let server = Endpoint::bind(any(), pool, config.backlog(1000)).unwrap();
    let live = Connection::connect(server.local_addr(), pool, fast()).unwrap();
    live.send_slice(b"hello").await.unwrap();
    let accepted = accept(&server).await;
    assert_eq!(recv(&accepted).await, b"hello");
    accepted.ready().await.unwrap();
    live.ready().await.unwrap();
    (server, live, accepted)
}

fn assert_half_open_take_a_fourth_at_most(server: &Endpoint, before: usize) {
    let stats = server.stats();
    assert_eq!(stats.half_open, 4);
    assert!(
        stats.reserved_bytes - before <= stats.reserve_limit_bytes / 4,
        "{stats:?}"
    );
}

/// Nor do they by messages that fill their windows and go on beyond.
#[tokio::test]
async fn forged_addresses_do_not_take_the_memory_of_others_by_long_messages() {
    let pool = pool();
    let (server, live, accepted) = server_with_one_proved_client(&pool).await;
    let before = server.stats().reserved_bytes;
    let flood = UdpSocket::bind(any()).await.unwrap();
    for conv in 1..=4 {
        for first in (0..250_u8).step_by(25) {
            let fragments = (first..first + 25).flat_map(|sn| {
                let mut fragment = opening(conv);
                (fragment[5], fragment[12]) = (254 - sn, sn);
                fragment
            });
            let datagram: Vec<u8> = fragments.collect();
            flood.send_to(&datagram, server.local_addr()).await.unwrap();
            tokio::task::yield_now().await;
        }
    }
    wait_until(&server, "flooded", |server| {
        server.stats().total.dropped_beyond_window > 500
    })
    .await;
    assert_half_open_take_a_fourth_at_most(&server, before);

    // Both ways, and more than the first window.
    live.send_slice(&[7; 80_000]).await.unwrap();
    assert_eq!(recv(&accepted).await, [7; 80_000]);
    accepted.send_slice(&[1; 9000]).await.unwrap();
    assert_eq!(recv(&live).await, [1; 9000]);
    let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    client.send_slice(b"question").await.unwrap();
    let got_in = async {
        loop {
            let accepted = accept(&server).await;
            // The flood's sessions have nothing to read.
            if let Ok(got) = timeout(Duration::from_millis(50), accepted.recv()).await {
                return got.unwrap().unwrap();
            }
        }
    };
    assert_eq!(timeout(TIMEOUT, got_in).await.unwrap(), b"question"[..]);
    assert_eq!(server.stats().refused_memory, 0);
}

/// Nor by what the application sends to them.
#[tokio::test]
async fn forged_addresses_do_not_take_the_memory_of_others_by_long_answers() {
    let pool = pool();
    let (server, _live, _accepted) = server_with_one_proved_client(&pool).await;
    let before = server.stats().reserved_bytes;
    let flood = UdpSocket::bind(any()).await.unwrap();
    let mut asked = Vec::new();
    for conv in 1..=4 {
        let question = opening(conv);
        flood.send_to(&question, server.local_addr()).await.unwrap();
        let forged = accept(&server).await;
        assert_eq!(recv(&forged).await, [0]);
        // As much as it may.
        while forged
            .try_send(pool.try_copy_from_slice(&[7; 1000]).unwrap())
            .is_ok()
        {}
        asked.push(forged);
    }
    assert_half_open_take_a_fourth_at_most(&server, before);
}

#[tokio::test]
async fn datagrams_that_open_no_session_are_counted() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut late = opening(5);
    late[12] = 200; // `sn` far into a session
    let mut ack = opening(5);
    ack[4] = Command::Ack as u8;
    let mut endless = opening(5);
    endless[5] = 255; // `frg`
    let mut trailing = opening(5);
    trailing.push(0);
    let mut heard = opening(5);
    heard[16] = 1; // `una` of what was never sent
    let two = [opening(5), opening(6)].concat();
    for datagram in [
        &b"short"[..],
        &late,
        &ack,
        &[0; 100],
        &endless,
        &trailing,
        &heard,
        &two,
    ] {
        stranger
            .send_to(datagram, server.local_addr())
            .await
            .unwrap();
    }
    wait_until(&server, "unknown", |server| {
        let stats = server.stats();
        stats.unknown_session == 7 && stats.total.rejected_datagrams() == 1
    })
    .await;
    assert_eq!(server.stats().sessions, 0);
}

#[tokio::test]
async fn a_half_open_session_times_out() {
    let pool = pool();
    let session = SessionConfig::fast().unproved_timeout(Duration::from_millis(100));
    // One half-open session of each prefix, whoever had it before.
    let config = EndpointConfig::new(session).max_half_open(2, 1);
    let server = Endpoint::bind(any(), &pool, config).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    stranger
        .send_to(&opening(1), server.local_addr())
        .await
        .unwrap();
    wait_until(&server, "opened", |server| server.stats().opened == 1).await;
    wait_until(&server, "gone", |server| server.stats().sessions == 0).await;
    let stats = server.stats();
    assert_eq!(
        (stats.half_open, stats.backlog, stats.reserved_bytes),
        (0, 0, 0)
    );
    wait_until(&server, "all back", |_| pool.slab().stats().in_use() == 0).await;

    let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    client.send_slice(b"I am who I say").await.unwrap();
    wait_until(&server, "proved", |server| {
        let stats = server.stats();
        (stats.opened, stats.half_open) == (2, 0)
    })
    .await;
    let next = opening(2);
    stranger.send_to(&next, server.local_addr()).await.unwrap();
    wait_until(&server, "opened, too", |server| server.stats().opened == 3).await;
    let stats = server.stats();
    assert_eq!((stats.refused_prefix, stats.refused_half_open), (0, 0));
}

#[tokio::test]
async fn connect_refuses_sessions_beyond_the_limit_and_duplicates() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let to = server.local_addr();
    let client = Endpoint::bind(any(), &pool, fast().max_sessions(2)).unwrap();
    let first = client.connect_as(to, 7).unwrap();
    let again = client.connect_as(to, 7);
    assert!(matches!(again, Err(OpenError::ConvInUse)));
    let second = client.connect(to).unwrap();
    let again = client.connect_as(to, 7);
    assert!(
        matches!(again, Err(OpenError::ConvInUse)),
        "also if it is full"
    );
    for third in [client.connect(to), client.connect_as(to, 8)] {
        assert!(matches!(third, Err(OpenError::TableFull)));
    }
    let stats = client.stats();
    assert_eq!((stats.sessions, stats.refused_table_full), (2, 2));
    for open in [&first, &second] {
        open.send_slice(b"hello").await.unwrap();
        let accepted = accept(&server).await;
        assert_eq!(recv(&accepted).await, b"hello");
        accepted.send_slice(b"welcome").await.unwrap();
        assert_eq!(recv(open).await, b"welcome");
    }
    second.abort();
    drop(second);
    assert!(client.connect(to).is_ok());
}

/// What a peer sends that has not noticed the end looks like the beginning of a session.
#[tokio::test]
async fn late_datagrams_do_not_reopen_an_ended_session() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let send = async |conv| {
        let datagram = opening(conv);
        stranger.send_to(&datagram, server.local_addr()).await
    };
    send(1).await.unwrap();
    accept(&server).await.abort();
    wait_until(&server, "ended", |server| server.stats().sessions == 0).await;
    send(1).await.unwrap();
    wait_until(&server, "refused", |server| {
        server.stats().unknown_session == 1
    })
    .await;
    send(2).await.unwrap();
    wait_until(&server, "another", |server| server.stats().opened == 2).await;
}

/// Anybody can have sessions of forged addresses begin and end.
#[tokio::test]
async fn sessions_of_unproved_addresses_do_not_crowd_out_the_memory_of_others() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast().max_sessions(4)).unwrap();
    let bind = async || {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(server.local_addr()).await.unwrap();
        socket
    };
    let (proved, forged) = (bind().await, bind().await);
    proved.send(&opening(1)).await.unwrap();
    let session = accept(&server).await;
    // It acknowledges the question for the proof of its address.
    let mut asked = [0; 2000];
    let len = proved.recv(&mut asked).await.unwrap();
    let mut asked = segments(&asked[..len]).map(|segment| segment.unwrap().0);
    let challenge = asked.find(|header| header.cmd == Command::Push);
    let echo = Header {
        cmd: Command::Ack,
        una: 0,
        ..challenge.unwrap()
    };
    proved.send(&datagram(echo, b"")).await.unwrap();
    wait_until(&server, "proved", |server| server.stats().half_open == 0).await;
    session.abort();
    drop(session);
    for conv in 2..20 {
        forged.send(&opening(conv)).await.unwrap();
        accept(&server).await.abort();
    }
    proved.send(&opening(1)).await.unwrap();
    wait_until(&server, "refused", |server| {
        server.stats().unknown_session == 1
    })
    .await;
    assert_eq!(server.stats().opened, 19);
}

/// However many have waited since the last session came.
#[tokio::test]
async fn cancelled_accepts_leave_no_waker_and_waiting_ones_are_woken() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let tasks: Vec<_> = (0..5000).map(|_| Arc::new(Task)).collect();
    let wait = |task: &Arc<Task>| {
        let waker = Waker::from(Arc::clone(task));
        let mut accept = Box::pin(server.accept());
        let polled = accept.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        accept
    };
    let held = || tasks.iter().filter(|task| Arc::strong_count(task) > 1);
    for task in &tasks {
        drop(wait(task));
    }
    assert_eq!(held().count(), 0);
    let waiting: Vec<_> = tasks.iter().map(wait).collect();
    assert_eq!(held().count(), tasks.len());
    let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    let ask = client.send_slice(b"hello");
    let (accepted, asked) = tokio::join!(accept(&server), ask);
    asked.unwrap();
    assert_eq!(recv(&accepted).await, b"hello");
    assert_eq!(held().count(), 0);
    drop(waiting);
}

/// Somebody greets a server in the name of another server, which takes what it then hears for the beginning of a
/// session. Each has what it needs to prove its address to the other, and answers whatever it is told.
#[tokio::test]
async fn two_servers_that_are_set_on_each_other_let_go() {
    let pool = pool();
    let session = SessionConfig::fast().unproved_timeout(Duration::from_millis(500));
    let config = || EndpointConfig::new(session);
    let first = Endpoint::bind(any(), &pool, config()).unwrap();
    let socket = std::net::UdpSocket::bind(any()).unwrap();
    let mut forged = opening(7);
    forged[4] = Command::AskWindow as u8;
    // As much as the answer and a greeting need.
    for _ in 0..6 {
        socket.send_to(&forged, first.local_addr()).unwrap();
    }
    wait_until(&first, "opened", |server| server.stats().opened == 1).await;
    let second = Endpoint::from_std(socket, &pool, config()).unwrap();
    let greet = async |server: &Endpoint| {
        while let Some(session) = server.accept().await {
            let mut message = b"welcome, whoever you are".to_vec();
            while session.send_slice(&message).await.is_ok() {
                let Ok(Some(answer)) = session.recv().await else {
                    break;
                };
                message = answer.to_vec();
            }
        }
    };
    let both_let_go = async {
        wait_until(&second, "opened", |server| server.stats().opened == 1).await;
        for server in [&first, &second] {
            wait_until(server, "let go", |server| server.stats().sessions == 0).await;
        }
    };
    tokio::select! {
        _ = async { tokio::join!(greet(&first), greet(&second)) } => unreachable!("they go on"),
        () = both_let_go => {}
        () = tokio::time::sleep(TIMEOUT) => panic!("{first:?} and {second:?} do not let go"),
    }
    assert_eq!((first.stats().opened, second.stats().opened), (1, 1));
}
