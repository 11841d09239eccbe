//! Endpoints over real sockets on loopback: delivery, closing, and what is left afterwards.

use crate::common::proxy;
use crate::common::sockets::{
    TIMEOUT, accept, any, bytes, connected_pair, fast, pool, recv, wait_until,
    wait_until_pool_unused,
};
use slab_net::rudp::wire::Command;
use slab_net::rudp::{
    CloseReason, Connection, Endpoint, EndpointConfig, OpenError, SendError, SessionConfig,
    TryRecvError,
};
use slab_net::{PacketPool, SizeClasses};
use std::error::Error;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;

#[tokio::test]
async fn messages_of_all_lengths_are_echoed_and_the_peer_sees_the_close() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    // 44 032 is the longest that a window of 32 takes; longer ones wait for the first answer.
    let lengths = [1, 2, 1375, 1376, 1377, 40_000, 44_032, 100_000, 300_000];
    let echo = tokio::spawn(async move {
        let connection = accept(&server).await;
        while let Some(message) = connection.recv().await.unwrap() {
            connection.send(message).await.unwrap();
        }
        connection
    });
    for (seed, len) in lengths.into_iter().enumerate() {
        let message = bytes(seed as u64, len);
        timeout(TIMEOUT, client.send_slice(&message))
            .await
            .unwrap()
            .unwrap();
        assert!(recv(&client).await == message, "length {len}");
    }
    assert_eq!(client.send_slice(b"").await, Err(SendError::Empty));
    let too_long = client.send_slice(&bytes(0, 400_000)).await;
    assert!(matches!(too_long, Err(SendError::TooLong { .. })));

    timeout(TIMEOUT, client.close()).await.unwrap().unwrap();
    let connection = timeout(TIMEOUT, echo).await.unwrap().unwrap();
    assert_eq!(connection.ended(), Some(CloseReason::ClosedByPeer));
    let after = connection.send_slice(b"x").await;
    assert_eq!(after, Err(SendError::Closed(CloseReason::ClosedByPeer)));
    drop((client, connection));
    wait_until_pool_unused(&pool).await;
}

/// Only for what the peer's window may take does a sender wait until that is known.
#[tokio::test]
async fn what_no_window_takes_is_refused_before_the_peer_answers() {
    let pool = pool();
    let silent = UdpSocket::bind(any()).await.unwrap();
    let peer = silent.local_addr().unwrap();
    // A stream's limit is that of the send queue, one and a half windows here.
    for (stream, max) in [(false, 32), (true, 384)] {
        let config = EndpointConfig::new(SessionConfig::fast().stream(stream));
        let client = Connection::connect(peer, &pool, config).unwrap();
        let sent = timeout(TIMEOUT, client.send_slice(&bytes(0, 600_000))).await;
        let segments = 600_000_usize.div_ceil(1376);
        assert_eq!(sent.unwrap(), Err(SendError::TooLong { segments, max }));
    }
}

#[tokio::test]
async fn a_message_with_headroom_is_not_copied() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    // What arrives is longer by a header, and lies in a larger class.
    let class = pool.slab().size_classes().class_for(1024).unwrap();
    let allocs = || pool.slab().stats().classes()[class].allocs;
    let before = allocs();
    let message = pool.try_copy_from_slice(&[1; 1000]).unwrap();
    client.send(message).await.unwrap();
    assert_eq!(recv(&accept(&server).await).await, [1; 1000]);
    assert_eq!(allocs() - before, 1, "the message's own chunk");
}

async fn transfer_through_loss(loss: u64, len: usize, offload: bool) {
    let pool = pool();
    let config = EndpointConfig::new(SessionConfig::fast().stream(true).window(512, 512));
    let config = config.offload(offload);
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let address = proxy::lossy(server.local_addr(), loss, 42).await;
    let client = Connection::connect(address, &pool, config).unwrap();
    let data = bytes(1, len);
    let expected = data.clone();
    let sending = tokio::spawn(async move {
        let mut stream = client.into_stream();
        stream.write_all(&data).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        (answer, stream.connection().stats())
    });
    let mut stream = accept(&server).await.into_stream();
    let mut received = vec![0; len];
    timeout(TIMEOUT, stream.read_exact(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert!(received == expected, "what arrived is what was sent");
    stream.write_all(b"got it\n").await.unwrap();
    timeout(TIMEOUT, stream.shutdown()).await.unwrap().unwrap();
    let (answer, stats) = timeout(TIMEOUT, sending).await.unwrap().unwrap();
    assert_eq!(answer, b"got it\n");
    if loss > 0 {
        assert!(stats.retransmits_fast + stats.retransmits_timeout > 0);
    }
    drop(stream);
    wait_until_pool_unused(&pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_arrives_whole() {
    transfer_through_loss(0, 3_000_000, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_arrives_whole_without_offload() {
    transfer_through_loss(20, 1_000_000, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_arrives_whole_through_loss_duplicates_and_reordering() {
    transfer_through_loss(50, 1_000_000, true).await;
}

#[tokio::test]
async fn a_stream_can_be_read_by_lines() {
    let pool = pool();
    let config = EndpointConfig::new(SessionConfig::fast().stream(true));
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    let mut out = client.into_stream();
    let slices = [b"first\nsec".as_slice(), b"ond\n", b"third"].map(std::io::IoSlice::new);
    assert_eq!(out.write_vectored(&slices).await.unwrap(), 18);
    let mut lines = accept(&server).await.into_stream().lines();
    for expected in ["first", "second"] {
        let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap();
        assert_eq!(line.as_deref(), Some(expected));
    }
    out.shutdown().await.unwrap();
    let rest = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap();
    assert_eq!(rest.as_deref(), Some("third"));
}

/// There is no memory for the rest of the first slice, and enough for the second one.
#[tokio::test]
async fn a_vectored_write_that_ends_within_a_slice_takes_none_of_the_next() {
    let pool = pool();
    let config = EndpointConfig::new(SessionConfig::fast().stream(true));
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    // Its first window, and three segments to send.
    let config = config.max_memory(32 * 1536 * 5 / 4 + 3 * 1536 + 200);
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    let mut out = client.into_stream();
    let data: Vec<u8> = (0..5010_u16).map(|n| (n % 251) as u8).collect();
    let slices = [&data[..5000], &data[5000..]].map(std::io::IoSlice::new);
    let written = out.write_vectored(&slices).await.unwrap();
    assert!(written < 5000, "{written}");
    out.shutdown().await.unwrap();
    let mut input = accept(&server).await.into_stream();
    let mut read = Vec::new();
    timeout(TIMEOUT, input.read_to_end(&mut read))
        .await
        .unwrap()
        .unwrap();
    assert!(read == data[..written], "{} bytes", read.len());
}

/// A server may be the first to speak.
#[tokio::test]
async fn the_peer_hears_of_a_session_that_only_reads() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let connect = || Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    let looks = connect();
    assert_eq!(looks.try_recv(), Err(TryRecvError::Empty));
    accept(&server).await;
    let looks_for_datagrams = connect();
    let found = looks_for_datagrams.try_recv_datagram();
    assert_eq!(found, Err(TryRecvError::Empty));
    accept(&server).await;
    let mut stream = connect().into_stream();
    let (heard, ()) = tokio::join!(stream.read_u8(), async {
        accept(&server).await.send_slice(b"!").await.unwrap();
    });
    assert_eq!(heard.unwrap(), b'!');
}

/// `close` has said that everything is delivered.
#[tokio::test]
async fn data_of_a_session_that_ended_before_accept_can_be_read() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let address = server.local_addr();
    let client = Connection::connect(address, &pool, fast()).unwrap();
    for n in 0..3_u8 {
        client.send_slice(&[n; 2000]).await.unwrap();
    }
    timeout(TIMEOUT, client.close()).await.unwrap().unwrap();
    // Another client has sent nothing, and a third aborts.
    let silent = Connection::connect(address, &pool, fast()).unwrap();
    timeout(TIMEOUT, silent.ready()).await.unwrap().unwrap();
    timeout(TIMEOUT, silent.close()).await.unwrap().unwrap();
    let given_up = Connection::connect(address, &pool, fast()).unwrap();
    given_up.send_slice(b"never mind").await.unwrap();
    timeout(TIMEOUT, given_up.ready()).await.unwrap().unwrap();
    given_up.abort();
    wait_until(&server, "ended", |server| {
        let stats = server.stats();
        (stats.opened, stats.sessions, stats.backlog) == (3, 1, 1)
    })
    .await;
    let accepted = accept(&server).await;
    assert_eq!(accepted.ended(), Some(CloseReason::ClosedByPeer));
    for n in 0..3_u8 {
        assert_eq!(recv(&accepted).await, [n; 2000]);
    }
    assert_eq!(timeout(TIMEOUT, accepted.recv()).await.unwrap(), Ok(None));
    drop(accepted);
    wait_until(&server, "gone", |server| server.stats().sessions == 0).await;
    drop((client, silent, given_up, server));
    wait_until_pool_unused(&pool).await;
}

#[tokio::test]
async fn queued_messages_are_delivered_after_the_connection_is_dropped() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let address = proxy::lossy(server.local_addr(), 200, 7).await;
    let client = Connection::connect(address, &pool, fast()).unwrap();
    for n in 0..100_u8 {
        client.send_slice(&[n; 500]).await.unwrap();
    }
    drop(client);
    let connection = accept(&server).await;
    for n in 0..100_u8 {
        assert_eq!(recv(&connection).await, [n; 500]);
    }
    assert_eq!(timeout(TIMEOUT, connection.recv()).await.unwrap(), Ok(None));
}

#[tokio::test]
async fn an_abort_frees_all_memory_at_once() {
    let pool = pool();
    let nobody = UdpSocket::bind(any()).await.unwrap();
    let client = Connection::connect(nobody.local_addr().unwrap(), &pool, fast()).unwrap();
    for _ in 0..50 {
        client.send_slice(&[0; 1000]).await.unwrap();
    }
    assert!(client.reserved_bytes() > 50_000);
    client.abort();
    assert_eq!(client.reserved_bytes(), 0);
    assert_eq!(client.recv().await, Err(CloseReason::Aborted));
    wait_until_pool_unused(&pool).await;
}

#[tokio::test]
async fn a_session_without_answers_ends() {
    let pool = pool();
    let session = SessionConfig::fast()
        .keepalive(Duration::from_millis(50))
        .idle_timeout(Duration::from_millis(200));
    let nobody = UdpSocket::bind(any()).await.unwrap();
    let client = Connection::connect(
        nobody.local_addr().unwrap(),
        &pool,
        EndpointConfig::new(session),
    )
    .unwrap();
    assert_eq!(
        timeout(TIMEOUT, client.ready()).await.unwrap(),
        Err(CloseReason::TimedOut)
    );
    let dead = SessionConfig::fast().dead_link(2);
    let client = Connection::connect(
        nobody.local_addr().unwrap(),
        &pool,
        EndpointConfig::new(dead),
    )
    .unwrap();
    client.send_slice(b"x").await.unwrap();
    assert_eq!(
        timeout(TIMEOUT, client.recv()).await.unwrap(),
        Err(CloseReason::DeadLink)
    );
}

#[tokio::test]
async fn an_idle_session_is_kept_alive_by_its_peer() {
    let pool = pool();
    let session = SessionConfig::fast()
        .keepalive(Duration::from_millis(50))
        .idle_timeout(Duration::from_secs(1));
    let config = EndpointConfig::new(session);
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let connection = accept(&server).await;
    assert_eq!(recv(&connection).await, b"hello");
    tokio::time::sleep(Duration::from_millis(2000)).await;
    assert_eq!((client.ended(), connection.ended()), (None, None));
    assert_eq!(
        pool.slab().stats().in_use(),
        0,
        "an idle session holds nothing"
    );
}

#[tokio::test]
async fn a_slow_reader_blocks_only_its_own_sender() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let slow = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    let mut sent = 0_u32;
    while timeout(Duration::from_millis(300), slow.send_slice(&[0; 1000]))
        .await
        .is_ok()
    {
        sent += 1;
    }
    let unread = accept(&server).await;
    let quick = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    quick.send_slice(b"hello").await.unwrap();
    let connection = accept(&server).await;
    assert_eq!(recv(&connection).await, b"hello");
    let stats = server.stats();
    assert!(stats.reserved_bytes <= stats.reserve_limit_bytes);
    for _ in 0..sent {
        assert_eq!(recv(&unread).await, [0; 1000]);
    }
    timeout(TIMEOUT, slow.send_slice(b"goes on"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(recv(&unread).await, b"goes on");
}

#[tokio::test]
async fn sessions_go_on_after_their_endpoint_is_dropped() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let connection = accept(&server).await;
    let address = server.local_addr();
    drop(server);
    assert_eq!(recv(&connection).await, b"hello");
    connection.send_slice(b"still").await.unwrap();
    assert_eq!(recv(&client).await, b"still");
    drop((connection, client));
    wait_until_pool_unused(&pool).await;
    // The task is gone once the last session is, and the port is free with it.
    for _ in 0..1000 {
        if std::net::UdpSocket::bind(address).is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the socket is still bound");
}

#[test]
fn sessions_abort_when_the_runtime_is_dropped() {
    let pool = pool();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let connection = first.block_on(async {
        let server = Endpoint::bind(any(), &pool, fast()).unwrap();
        let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
        client.send_slice(&[0; 20_000]).await.unwrap();
        client
    });
    drop(first);
    let received = runtime().block_on(connection.recv());
    assert_eq!(received, Err(CloseReason::Aborted));
    drop(connection);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[tokio::test]
async fn invalid_configurations_and_taken_addresses_are_bind_errors() {
    let pool = pool();
    let wrong = EndpointConfig::new(SessionConfig::fast().mtu(10));
    let error = Endpoint::bind(any(), &pool, wrong).unwrap_err();
    assert!(matches!(error, OpenError::Config(_)), "{error}");
    let small = PacketPool::builder()
        .size_classes(SizeClasses::explicit(&[64, 1024]).unwrap())
        .build()
        .unwrap();
    let error = Endpoint::bind(any(), &small, fast()).unwrap_err();
    assert!(matches!(
        error,
        OpenError::NoSegmentClass { largest: 1024, .. }
    ));
    let taken = Endpoint::bind(any(), &pool, fast()).unwrap();
    let error = Endpoint::bind(taken.local_addr(), &pool, fast()).unwrap_err();
    let OpenError::Bind(bind) = &error else {
        panic!("{error}");
    };
    // A report of the whole chain says nothing twice for the wrapper.
    assert_eq!(error.to_string(), bind.to_string());
    assert!(error.source().unwrap().is::<std::io::Error>());
}

/// To its reader, a counter that went back would look like a restart.
#[tokio::test]
async fn totals_include_sessions_that_have_ended() {
    let pool = pool();
    let (server, client, accepted) = connected_pair(&pool).await;
    client.send_slice(&bytes(1, 5000)).await.unwrap();
    assert!(recv(&accepted).await == bytes(1, 5000));
    let before = accepted.stats();
    assert!(before.received_segments >= 5 && before.sent_datagrams > 0);
    drop(accepted);
    assert_eq!(timeout(TIMEOUT, client.recv()).await.unwrap(), Ok(None));
    wait_until(&server, "gone", |server| server.stats().sessions == 0).await;
    let total = server.stats().total;
    assert!(total.received_segments >= before.received_segments);
    assert!(total.received_bytes >= before.received_bytes);
    assert!(total.sent_datagrams >= before.sent_datagrams);
    let monitor = server.socket_monitor();
    drop(server);
    assert!(monitor.stats().received_datagrams >= total.received_datagrams);
}

/// Many tasks on two threads, some of which break off: no lock is left held, and no session or buffer is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_sessions_of_which_some_abort() {
    let pool = pool();
    // If socket buffers are small, many datagrams are lost, close notices among them: this leaves time to repeat
    // those.
    let session = SessionConfig::fast().linger(Duration::from_secs(10));
    let config = EndpointConfig::new(session).max_memory(48 << 20);
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let clients = Endpoint::bind(any(), &pool, config).unwrap();
    let serving = tokio::spawn({
        let server = server.clone();
        async move {
            while let Some(connection) = server.accept().await {
                tokio::spawn(async move {
                    while let Ok(Some(message)) = connection.recv().await {
                        if connection.send(message).await.is_err() {
                            break;
                        }
                    }
                });
            }
        }
    });
    let asking: Vec<_> = (0..60_u64)
        .map(|n| {
            let (clients, peer) = (clients.clone(), server.local_addr());
            tokio::spawn(async move {
                let client = clients.connect(peer).unwrap();
                let both = client.clone();
                let sending = tokio::spawn(async move {
                    for m in 0..40 {
                        both.send_slice(&bytes(m, 1 + (n * 97 + m * 131) as usize % 5000))
                            .await?;
                    }
                    Ok::<_, SendError>(())
                });
                for m in 0..40 {
                    if n % 5 == 0 && m == 20 {
                        client.abort();
                        break;
                    }
                    let expected = bytes(m, 1 + (n * 97 + m * 131) as usize % 5000);
                    assert!(recv(&client).await == expected);
                }
                let sent = sending.await.unwrap();
                assert!(sent.is_ok() || n % 5 == 0);
            })
        })
        .collect();
    for task in asking {
        timeout(TIMEOUT, task).await.unwrap().unwrap();
    }
    wait_until(&clients, "clients gone", |end| end.stats().sessions == 0).await;
    assert_eq!(clients.stats().reserved_bytes, 0);
    // Sessions whose peer broke off are found out later; the others have been told.
    wait_until(&server, "servers gone", |end| end.stats().sessions <= 12).await;
    serving.abort();
    drop(server);
}

/// One that is bound elsewhere, with options that its owner has set, and sets again later.
#[cfg(unix)]
#[tokio::test]
async fn an_endpoint_takes_a_socket_and_keeps_its_options() {
    let pool = pool();
    let socket = std::net::UdpSocket::bind(any()).unwrap();
    socket.set_ttl(7).unwrap();
    let (same, address) = (socket.try_clone().unwrap(), socket.local_addr().unwrap());
    let server = Endpoint::from_std(socket, &pool, fast()).unwrap();
    assert_eq!(server.local_addr(), address);

    let client = Connection::connect(address, &pool, fast()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let accepted = accept(&server).await;
    assert_eq!(accepted.recv().await.unwrap().unwrap(), b"hello"[..]);

    assert_eq!(same.ttl().unwrap(), 7);
    socket2::SockRef::from(&server).set_ttl_v4(8).unwrap();
    assert_eq!(same.ttl().unwrap(), 8);

    let refused = Endpoint::from_std(same, &pool, fast().max_sessions(0));
    assert!(matches!(refused, Err(OpenError::TableFull)), "{refused:?}");
}

/// The application has let go of the session, so only the endpoint knows that there was one.
#[tokio::test]
async fn a_peer_that_missed_the_reset_of_a_session_that_is_gone_is_told_again() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let to_server = server.local_addr();
    let between = UdpSocket::bind(any()).await.unwrap();
    let client = Connection::connect(between.local_addr().unwrap(), &pool, fast()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let session = async {
        let session = accept(&server).await;
        assert_eq!(recv(&session).await, b"hello");
        session.send_slice(b"welcome").await.unwrap();
        assert_eq!(recv(&client).await, b"welcome");
        while !session.is_sent() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        session.abort();
        drop(session);
        assert_eq!(server.stats().sessions, 0);
        // The first is sent at once, and another a moment later.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(client.ended(), None);
        client.send_slice(&[7; 100]).await.unwrap();
        assert_eq!(client.recv().await, Err(CloseReason::Reset));
    };
    let (mut from_client, mut resets) = (None, Vec::new());
    let mut late = Vec::new();
    let mut buf = [0; 2000];
    let relay = async {
        loop {
            let (len, from) = between.recv_from(&mut buf).await.unwrap();
            let to = if from == to_server {
                if buf[4] == Command::Close as u8 {
                    resets.push(buf[..len].to_vec());
                    if resets.len() == 1 {
                        continue;
                    }
                }
                from_client.expect("it was heard before")
            } else {
                late = buf[..len].to_vec();
                from_client = Some(from);
                to_server
            };
            between.send_to(&buf[..len], to).await.unwrap();
        }
    };
    tokio::select! {
        () = relay => {}
        done = timeout(TIMEOUT, session) => done.expect("nobody told it"),
    }
    assert_eq!((resets.len(), &resets[0]), (2, &resets[1]));

    // Others may send the same again, as often as they like.
    let started = std::time::Instant::now();
    let before = server.stats().unknown_session;
    for _ in 0..100 {
        between.send_to(&late, to_server).await.unwrap();
        between.send_to(&resets[0], to_server).await.unwrap();
    }
    wait_until(&server, "refused", |server| {
        server.stats().unknown_session == before + 200
    })
    .await;
    let most = started.elapsed().as_millis() as usize / 200 + 1;
    let mut answers = 0;
    while let Ok(received) = between.try_recv(&mut buf) {
        assert_eq!(&buf[..received], resets[0]);
        answers += 1;
    }
    assert!(answers <= most, "{answers} of {most}");
}
