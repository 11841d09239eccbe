//! Sessions of which one direction or all ends, and tasks that wait meanwhile, over real sockets on loopback.

use crate::common::proxy;
use crate::common::sockets::{
    TIMEOUT, accept, any, bytes, connected_pair, fast, pool, recv, wait_until,
    wait_until_pool_unused,
};
use slab_net::Packet;
use slab_net::rudp::{
    CloseReason, Connection, Endpoint, EndpointConfig, SendError, SessionConfig, TryRecvError,
};
use std::future::Future;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

#[tokio::test]
async fn close_reports_whether_a_peer_that_closed_had_received_everything() {
    let pool = pool();
    // The peer had everything.
    let (_server, client, accepted) = connected_pair(&pool).await;
    client.send_slice(b"all").await.unwrap();
    assert_eq!(recv(&accepted).await, b"all");
    timeout(TIMEOUT, accepted.close()).await.unwrap().unwrap();
    assert_eq!(timeout(TIMEOUT, client.recv()).await.unwrap(), Ok(None));
    assert_eq!(client.close().await, Ok(()));

    // The peer has not, and reads no more: there is more than its window and ours take.
    let (_server, client, accepted) = connected_pair(&pool).await;
    let fill = async { while client.send_slice(&[7; 30_000]).await.is_ok() {} };
    let full = timeout(Duration::from_millis(200), fill).await;
    assert!(full.is_err(), "the windows are full");
    timeout(TIMEOUT, accepted.close()).await.unwrap().unwrap();
    let closed = timeout(TIMEOUT, client.close()).await.unwrap();
    assert_eq!(closed, Err(CloseReason::ClosedByPeer));

    // Both close at once with something left on both sides: this ends long before the linger time is over.
    let (_server, client, accepted) = connected_pair(&pool).await;
    let fill = |connection: &Connection| {
        let connection = connection.clone();
        async move { while connection.send_slice(&[7; 30_000]).await.is_ok() {} }
    };
    let both = async { tokio::join!(fill(&client), fill(&accepted)) };
    let full = timeout(Duration::from_millis(200), both).await;
    assert!(full.is_err(), "the windows are full");
    let closed = async { tokio::join!(client.close(), accepted.close()) };
    let closed = timeout(TIMEOUT, closed).await.unwrap();
    let lost = Err(CloseReason::ClosedByPeer);
    assert_eq!(closed, (lost, lost));
}

/// A server that sends nothing before it has heard everything, behind a relay that knows nothing of RUDP.
#[tokio::test]
async fn a_relay_forwards_a_half_close_and_the_other_direction_goes_on() {
    let pool = pool();
    let config = EndpointConfig::new(SessionConfig::fast().stream(true));
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let address = proxy::lossy(server.local_addr(), 50, 3).await;
    let (mut near, mut far) = tokio::io::duplex(4096);
    let relay = tokio::spawn(async move {
        let mut stream = accept(&server).await.into_stream();
        tokio::io::copy_bidirectional(&mut stream, &mut near).await
    });
    let serving = tokio::spawn(async move {
        let mut question = Vec::new();
        far.read_to_end(&mut question).await.unwrap();
        question.reverse();
        far.write_all(&question).await.unwrap();
        far.shutdown().await.unwrap();
    });
    let mut stream = Connection::connect(address, &pool, config)
        .unwrap()
        .into_stream();
    let mut data = bytes(5, 300_000);
    stream.write_all(&data).await.unwrap();
    timeout(TIMEOUT, stream.shutdown()).await.unwrap().unwrap();
    let late = stream.write(b"more").await.unwrap_err();
    assert_eq!(late.kind(), std::io::ErrorKind::BrokenPipe);
    let mut answer = Vec::new();
    timeout(TIMEOUT, stream.read_to_end(&mut answer))
        .await
        .unwrap()
        .unwrap();
    data.reverse();
    assert!(answer == data, "{} bytes came back", answer.len());
    let passed = timeout(TIMEOUT, relay).await.unwrap().unwrap().unwrap();
    assert_eq!(passed, (300_000, 300_000));
    serving.await.unwrap();
    drop(stream);
    wait_until_pool_unused(&pool).await;
}

/// As with TCP, shutting down does not wait for the peer to read.
#[tokio::test]
async fn an_echo_larger_than_the_windows_arrives_after_a_shutdown() {
    let pool = pool();
    let config = EndpointConfig::new(SessionConfig::fast().stream(true).window(64, 64));
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let mut stream = Connection::connect(server.local_addr(), &pool, config)
        .unwrap()
        .into_stream();
    let echo = tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(accept(&server).await.into_stream());
        tokio::io::copy(&mut read, &mut write).await.unwrap();
        write.shutdown().await.unwrap();
        let stream = read.unsplit(write);
        stream.connection().finish().await
    });
    // More than fits both windows and the server's queue, but not more than fits with the client's queue.
    let data = bytes(6, 700_000);
    timeout(TIMEOUT, stream.write_all(&data))
        .await
        .unwrap()
        .unwrap();
    timeout(TIMEOUT, stream.shutdown()).await.unwrap().unwrap();
    let mut answer = Vec::new();
    timeout(TIMEOUT, stream.read_to_end(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer == data, "{} bytes came back", answer.len());
    assert_eq!(timeout(TIMEOUT, echo).await.unwrap().unwrap(), Ok(()));
}

/// One task that waits for two things does not wake itself by waiting.
#[tokio::test]
async fn waiting_for_finish_and_recv_in_one_task_is_no_busy_loop() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let accepted = accept(&server).await;
    assert_eq!(recv(&accepted).await, *b"hello");
    // The peer does not read: for a while it takes neither the data nor the mark of the end behind it.
    for _ in 0..400 {
        let _ = client.try_send(pool.try_copy_from_slice(&[7; 1300]).unwrap());
    }
    let mut polls = 0_u32;
    let waiting = async {
        let mut finish = std::pin::pin!(client.finish());
        let mut input = std::pin::pin!(client.recv());
        std::future::poll_fn(|cx| {
            polls += 1;
            let finished = finish.as_mut().poll(cx);
            let received = input.as_mut().poll(cx);
            assert!(finished.is_pending() && received.is_pending());
            std::task::Poll::<()>::Pending
        })
        .await;
    };
    let waited = timeout(Duration::from_millis(300), waiting).await;
    assert!(waited.is_err() && polls < 1000, "{polls} polls");
}

/// The sender is told at once, not when there is room again or the linger time is over.
#[tokio::test]
async fn a_blocked_send_fails_if_another_task_finishes_or_closes() {
    for closes in [false, true] {
        let pool = pool();
        let (_server, client, _accepted) = connected_pair(&pool).await;
        // The peer does not read.
        let fill = async { while client.send_slice(&[7; 30_000]).await.is_ok() {} };
        let full = timeout(Duration::from_millis(200), fill).await;
        assert!(full.is_err(), "the windows are full");
        let sender = client.clone();
        // On a busy machine the windows may not be full yet.
        let sending = tokio::spawn(async move {
            loop {
                if let Err(error) = sender.send_slice(&[7; 30_000]).await {
                    break error;
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let ending = client.clone();
        let ending = tokio::spawn(async move {
            match closes {
                false => ending.finish().await,
                true => ending.close().await,
            }
        });
        let sent = timeout(Duration::from_secs(5), sending).await;
        let sent = sent.expect("long before the linger time is over");
        assert_eq!(sent.unwrap(), SendError::Closed(CloseReason::Closed));
        ending.abort();
    }
}

/// The first answer is enough, even if it makes little room.
#[tokio::test]
async fn ready_returns_although_the_send_queue_is_full() {
    let pool = pool();
    let config = EndpointConfig::new(SessionConfig::fast().window(256, 32));
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    // The peer does not read, and has not answered yet.
    let mut taken = 0;
    while client.try_send(Packet::from(vec![7; 1300])).is_ok() {
        taken += 1;
    }
    assert!(taken > 64, "{taken}");
    // In a task of its own: a future in this one would be polled once more by its own timeout.
    let ready = tokio::spawn(async move { client.ready().await });
    let ready = timeout(Duration::from_secs(5), ready).await;
    let ready = ready.expect("long before the next question");
    assert_eq!(ready.unwrap(), Ok(()));
}

/// The first end has closed by the time that the second says that it sends nothing more.
#[tokio::test]
async fn finish_after_the_peer_closed_succeeds_if_nothing_was_lost() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    for late in [false, true] {
        let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
        client.send_slice(b"hello").await.unwrap();
        timeout(TIMEOUT, client.finish()).await.unwrap().unwrap();
        let accepted = accept(&server).await;
        assert_eq!(recv(&accepted).await, *b"hello");
        assert_eq!(timeout(TIMEOUT, accepted.recv()).await.unwrap(), Ok(None));
        if late {
            accepted.send_slice(b"nobody reads this").await.unwrap();
        }
        drop(client);
        let finished = timeout(TIMEOUT, accepted.finish()).await.unwrap();
        let expected = match late {
            false => Ok(()),
            true => Err(CloseReason::ClosedByPeer),
        };
        assert_eq!(finished, expected);
    }
}

/// Nothing that it would have read is lost.
#[tokio::test]
async fn who_has_read_to_the_end_reads_no_error_after_a_reset() {
    let (_server, client, accepted) = connected_pair(&pool()).await;
    timeout(TIMEOUT, accepted.finish()).await.unwrap().unwrap();
    assert_eq!(timeout(TIMEOUT, client.recv()).await.unwrap(), Ok(None));
    accepted.abort();
    let ended = timeout(TIMEOUT, client.closed()).await.unwrap();
    assert_eq!(ended, CloseReason::Reset);
    assert_eq!(timeout(TIMEOUT, client.recv()).await.unwrap(), Ok(None));
    assert_eq!(client.try_recv(), Err(TryRecvError::End));
}

#[tokio::test]
async fn a_reader_is_told_that_the_peer_never_answered_though_writing_was_shut_down() {
    let pool = pool();
    let silent = std::net::UdpSocket::bind(any()).unwrap();
    let session = SessionConfig::fast().linger(Duration::from_millis(300));
    let config = EndpointConfig::new(session.stream(true));
    let client = Connection::connect(silent.local_addr().unwrap(), &pool, config).unwrap();
    let mut client = client.into_stream();
    client.write_all(b"request").await.unwrap();
    client.shutdown().await.unwrap();
    let read = timeout(TIMEOUT, client.read_to_end(&mut Vec::new())).await;
    let error = read.unwrap().expect_err("an answer of no bytes");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    let ended = client.connection().ended();
    assert_eq!(ended, Some(CloseReason::LingerExpired));
}

/// Who polls, as a game does once a frame, learns of the end as one that waits does.
#[tokio::test]
async fn without_waiting_a_reader_is_told_whether_more_can_come() {
    const EMPTY: TryRecvError = TryRecvError::Empty;
    // What is there first, and then the end; a datagram overtakes neither.
    let both = |connection: &Connection| {
        let datagram = connection.try_recv_datagram().unwrap_err();
        (connection.try_recv().unwrap_err(), datagram)
    };
    let end_of = async |connection: &Connection| {
        let poll = async {
            while both(connection) == (EMPTY, EMPTY) {
                tokio::task::yield_now().await;
            }
            both(connection)
        };
        timeout(TIMEOUT, poll).await.unwrap()
    };
    let pool = pool();
    for finishes in [true, false] {
        let (_server, client, accepted) = connected_pair(&pool).await;
        assert_eq!(both(&accepted), (EMPTY, EMPTY));
        client.send_slice(b"last").await.unwrap();
        if finishes {
            client.finish().await.unwrap();
        } else {
            client.close().await.unwrap();
        }
        assert_eq!(accepted.try_recv().unwrap(), b"last"[..]);
        let end = TryRecvError::End;
        assert_eq!(end_of(&accepted).await, (end, end));
        assert_eq!(accepted.ended().is_none(), finishes);
    }
    let (_server, client, accepted) = connected_pair(&pool).await;
    client.abort();
    let reset = TryRecvError::Closed(CloseReason::Reset);
    assert_eq!(end_of(&accepted).await, (reset, reset));
    let kind = |error: TryRecvError| std::io::Error::from(error).kind();
    assert_eq!(kind(reset), std::io::ErrorKind::ConnectionReset);
    assert_eq!(kind(EMPTY), std::io::ErrorKind::WouldBlock);
}

/// The peer's first answer comes later, and shows that it has let us in: it would keep the session for as long as a
/// stranger may be silent.
#[tokio::test]
async fn a_session_aborted_before_the_first_answer_is_reset_by_that() {
    let pool = pool();
    let session = SessionConfig::fast().unproved_timeout(Duration::from_secs(600));
    let bind = || Endpoint::bind(any(), &pool, EndpointConfig::new(session)).unwrap();
    for is_kept in [true, false] {
        let (server, here) = (bind(), bind());
        let client = here.connect(server.local_addr()).unwrap();
        client.send_slice(b"hello").await.unwrap();
        client.abort();
        let _kept = is_kept.then_some(client);
        wait_until(&server, "reset", |server| {
            let stats = server.stats();
            (stats.opened, stats.sessions) == (1, 0)
        })
        .await;
    }
}
