//! Tasks that share a session, cancel a wait, or wait when it ends, over real sockets on loopback.

use crate::common::pair::{bare_header, datagram};
use crate::common::sockets::{
    TIMEOUT, accept, any, bytes, connected_pair, fast, pool, wait_until, wait_until_pool_unused,
};
use crate::common::{Random, proxy};
use slab_net::rudp::wire::{Command, Header};
use slab_net::rudp::{CloseReason, Connection, Endpoint, EndpointConfig, SendError, SessionConfig};
use slab_net::{Packet, PacketPool};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// Polls a future at most `times` times, whenever it is woken, and then drops it.
async fn poll_at_most<T>(times: u64, what: impl Future<Output = T>) -> Option<T> {
    let (mut what, mut left) = (pin!(what), times);
    poll_fn(|cx| match what.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending if left <= 1 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// A cancelled call has sent nothing, or taken no message: each message comes once, whole, and behind those that
/// its task sent before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_sends_and_receives_are_cancel_safe() {
    const MESSAGES: u32 = 300;
    let pool = pool();
    let config = EndpointConfig::new(SessionConfig::fast().window(16, 16));
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let address = proxy::lossy(server.local_addr(), 20, 5).await;
    let client = Connection::connect(address, &pool, config).unwrap();
    let message = |task: u32, n: u32| {
        let mut message = bytes(u64::from(n), 8 + (n as usize * 977) % 9000);
        message[..4].copy_from_slice(&task.to_le_bytes());
        message[4..8].copy_from_slice(&n.to_le_bytes());
        message
    };
    let sending = [0, 1].map(|task| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut random = Random::new(task.into());
            for n in 0..MESSAGES {
                let message = message(task, n);
                loop {
                    let sent = poll_at_most(1 + random.below(2), client.send_slice(&message)).await;
                    match sent {
                        Some(sent) => break sent.unwrap(),
                        None => tokio::task::yield_now().await,
                    }
                }
            }
        })
    });
    let accepted = async {
        loop {
            match poll_at_most(1, server.accept()).await {
                Some(accepted) => break accepted.unwrap(),
                None => tokio::task::yield_now().await,
            }
        }
    };
    let accepted = timeout(TIMEOUT, accepted).await.unwrap();
    let receiving = [2, 3].map(|seed| {
        let accepted = accepted.clone();
        tokio::spawn(async move {
            let (mut random, mut received) = (Random::new(seed), Vec::new());
            loop {
                let mut segments = Vec::new();
                let got = match random.below(2) {
                    0 => poll_at_most(1 + random.below(2), accepted.recv())
                        .await
                        .map(|got| got.unwrap().map(|message| message.to_vec())),
                    _ => poll_at_most(1 + random.below(2), accepted.recv_segments(&mut segments))
                        .await
                        .map(|got| got.unwrap().map(|_| segments.concat())),
                };
                match got {
                    Some(Some(message)) => received.push(message),
                    Some(None) => break received,
                    None => tokio::task::yield_now().await,
                }
            }
        })
    });
    for task in sending {
        timeout(TIMEOUT, task).await.unwrap().unwrap();
    }
    timeout(TIMEOUT, client.close()).await.unwrap().unwrap();
    let mut all = BTreeMap::new();
    for task in receiving {
        let mut last = [None; 2];
        for got in timeout(TIMEOUT, task).await.unwrap().unwrap() {
            let number = |at| u32::from_le_bytes(*got[at..].first_chunk().unwrap());
            let (task, n) = (number(0), number(4));
            assert!(got == message(task, n), "message {n} of {task}");
            assert!(last[task as usize].replace(n) < Some(n), "in order");
            assert_eq!(all.insert((task, n), ()), None, "once");
        }
    }
    assert_eq!(all.len(), 2 * MESSAGES as usize);
    drop((client, accepted));
    wait_until_pool_unused(&pool).await;
}

/// As with any socket of tokio, a task that sends all the time lets others run in between, including those that
/// would stop it.
#[tokio::test]
async fn sending_counts_against_the_cooperative_budget() {
    let pool = pool();
    let nobody = UdpSocket::bind(any()).await.unwrap();
    let to = nobody.local_addr().unwrap();
    let connect = || Connection::connect(to, &pool, fast()).unwrap();
    let (slices, packets, mut stream) = (connect(), connect(), connect().into_stream());
    let (packet, mut sent) = (pool.try_copy_from_slice(b"x").unwrap(), [0; 3]);
    // Fewer than the queue takes.
    let most = 300;
    {
        let mut sending = pin!(async {
            for _ in 0..most {
                slices.send_slice(b"x").await.unwrap();
                sent[0] += 1;
            }
        });
        assert!(poll_at_most(1, sending.as_mut()).await.is_none());
    }
    tokio::task::yield_now().await;
    {
        let mut sending = pin!(async {
            for _ in 0..most {
                packets.send(packet.clone()).await.unwrap();
                sent[1] += 1;
            }
        });
        assert!(poll_at_most(1, sending.as_mut()).await.is_none());
    }
    tokio::task::yield_now().await;
    {
        let mut writing = pin!(async {
            for _ in 0..most {
                stream.write_all(b"x").await.unwrap();
                sent[2] += 1;
            }
        });
        assert!(poll_at_most(1, writing.as_mut()).await.is_none());
    }
    assert!(sent.iter().all(|&sent| sent > 0), "{sent:?}");
}

/// As sending; also at the end, which can be read again and again.
#[tokio::test]
async fn receiving_counts_against_the_cooperative_budget() {
    const MOST: usize = 250;

    async fn is_limited(mut receive: impl AsyncFnMut()) {
        let mut times = 0;
        let all = poll_at_most(1, async {
            for _ in 0..MOST {
                receive().await;
                times += 1;
            }
        });
        assert!(all.await.is_none() && times > 0, "{times} times");
        tokio::task::yield_now().await;
    }

    let pool = pool();
    let (server, client, accepted) = connected_pair(&pool).await;
    let fill = async || {
        while accepted.try_recv().is_ok() {}
        for _ in 0..MOST {
            client.send_slice(b"x").await.unwrap();
        }
    };
    // The window grows while it is filled and read.
    for _ in 0..20 {
        fill().await;
        wait_until(&server, "all has come", |_| {
            while accepted.try_recv().is_ok() {}
            client.is_sent()
        })
        .await;
    }
    let fill = async || {
        fill().await;
        wait_until(&server, "all is here", |_| client.is_sent()).await;
    };
    fill().await;
    is_limited(async || drop(accepted.recv().await.unwrap().unwrap())).await;
    fill().await;
    let mut segments = Vec::new();
    let mut receive = async || accepted.recv_segments(&mut segments).await;
    is_limited(async || assert_eq!(receive().await, Ok(Some(1)))).await;
    for n in 0..MOST {
        client.send_datagram(Packet::from_static(b"x")).unwrap();
        let came = |_: &Endpoint| accepted.stats().received_unreliable == n as u64 + 1;
        wait_until(&server, "each is here", came).await;
    }
    is_limited(async || drop(accepted.recv_datagram().await.unwrap().unwrap())).await;
    while accepted.try_recv_datagram().is_ok() {}
    fill().await;
    let mut stream = accepted.clone().into_stream();
    is_limited(async || drop(stream.read_packet().await.unwrap().unwrap())).await;
    fill().await;
    is_limited(async || assert_eq!(stream.read_u8().await.unwrap(), b'x')).await;
    fill().await;
    client.close().await.unwrap();
    is_limited(async || assert_eq!(stream.read(&mut []).await.unwrap(), 0)).await;
    stream.read_to_end(&mut Vec::new()).await.unwrap();
    is_limited(async || assert_eq!(stream.read(&mut [0]).await.unwrap(), 0)).await;
    is_limited(async || assert_eq!(stream.read_packet().await.unwrap(), None)).await;
    is_limited(async || assert_eq!(accepted.recv().await, Ok(None))).await;
    is_limited(async || assert_eq!(accepted.recv_datagram().await, Ok(None))).await;

    let runtime = Runtime::new().unwrap();
    let gone = {
        let _runtime = runtime.enter();
        Endpoint::bind(any(), &pool, fast()).unwrap()
    };
    runtime.shutdown_background();
    assert!(gone.accept().await.is_none());
    is_limited(async || assert!(gone.accept().await.is_none())).await;
}

/// Nothing comes from the peer that would make the endpoint's task look.
#[tokio::test]
async fn an_endpoint_is_gone_with_its_last_session() {
    let pool = pool();
    let nobody = UdpSocket::bind(any()).await.unwrap();
    let endpoint = Endpoint::bind(any(), &pool, fast()).unwrap();
    let client = endpoint.connect(nobody.local_addr().unwrap()).unwrap();
    let monitor = endpoint.monitor();
    drop(endpoint);
    let waits = timeout(Duration::from_millis(50), monitor.gone()).await;
    assert!(waits.is_err());
    assert!(!monitor.is_gone() && monitor.stats().is_some());
    client.abort();
    drop(client);
    for _ in 0..2 {
        timeout(TIMEOUT, monitor.gone()).await.expect("it is gone");
        assert!(monitor.is_gone());
    }
}

/// Whoever waited for that may bind to the address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_socket_of_an_endpoint_that_is_gone_is_closed() {
    let pool = pool();
    let mut address = any();
    for _ in 0..300 {
        let endpoint = Endpoint::bind(address, &pool, fast()).unwrap();
        address = endpoint.local_addr();
        let monitor = endpoint.monitor();
        drop(endpoint);
        monitor.gone().await;
    }
}

#[test]
fn the_end_of_the_runtime_wakes_who_waits_for_that_of_the_session() {
    struct Wakes(AtomicBool);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let runtime = Runtime::new().unwrap();
    let (server, client, accepted) = runtime.block_on(connected_pair(&pool()));
    let woken = Arc::new(Wakes(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let mut closed = pin!(client.closed());
    assert!(closed.as_mut().poll(&mut cx).is_pending());
    drop(runtime);
    assert!(woken.0.load(Ordering::Relaxed));
    assert_eq!(
        closed.as_mut().poll(&mut cx),
        Poll::Ready(CloseReason::Aborted)
    );
    drop((server, accepted));
}

/// Another task aborts it, and nothing else would wake those who wait. The peer learns of it, too.
#[tokio::test]
async fn an_abort_wakes_all_tasks_that_wait_for_the_session() {
    let pool = pool();
    let aborted = CloseReason::Aborted;
    // The session is idle and has no timer set.
    let (_server, client, _accepted) = connected_pair(&pool).await;
    let [one, two] = [client.clone(), client.clone()];
    let receiving = tokio::spawn(async move { one.recv().await });
    let hearing = tokio::spawn(async move { two.recv_datagram().await });
    let watched = client.clone();
    let watching = tokio::spawn(async move { watched.closed().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.abort();
    assert_eq!(timeout(TIMEOUT, watching).await.unwrap().unwrap(), aborted);
    assert_eq!(client.closed().await, aborted, "already");
    for waiting in [receiving, hearing] {
        let received = timeout(TIMEOUT, waiting).await.unwrap().unwrap();
        assert_eq!(received, Err(aborted));
    }

    let (_server, client, accepted) = connected_pair(&pool).await;
    let fill = async { while client.send_slice(&[7; 30_000]).await.is_ok() {} };
    let full = timeout(Duration::from_millis(200), fill).await;
    assert!(full.is_err(), "the windows are full");
    let [one, two] = [client.clone(), client.clone()];
    let sending = tokio::spawn(async move { one.send_slice(&[7; 30_000]).await });
    let finishing = tokio::spawn(async move { two.finish().await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.abort();
    let sent = timeout(TIMEOUT, sending).await.unwrap().unwrap();
    // The task that finishes may have been first.
    let closed = [aborted, CloseReason::Closed].map(|why| Err(SendError::Closed(why)));
    assert!(closed.contains(&sent), "{sent:?}");
    let finished = timeout(TIMEOUT, finishing).await.unwrap().unwrap();
    assert_eq!(finished, Err(aborted));
    let told = async {
        loop {
            match accepted.recv().await {
                Ok(Some(_)) => {}
                end => break end,
            }
        }
    };
    assert_eq!(
        timeout(TIMEOUT, told).await.unwrap(),
        Err(CloseReason::Reset)
    );
}

/// Notes, when it is woken, whether the session can be used from there.
struct Looks {
    at: Connection,
    found: Mutex<Vec<bool>>,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        let ((found, seen), at) = (mpsc::channel(), self.at.clone());
        // Another thread, because this one would wait for ever for a lock of its own.
        std::thread::spawn(move || {
            let _ = at.stats();
            let _ = found.send(());
        });
        let seen = seen.recv_timeout(Duration::from_secs(5));
        self.found.lock().unwrap().push(seen.is_ok());
    }
}

/// As with an executor that runs a task where it is woken.
#[tokio::test]
async fn a_waker_may_use_the_session() {
    let pool = pool();
    let (server, client, accepted) = connected_pair(&pool).await;
    let tasks: [_; 7] = core::array::from_fn(|_| {
        Arc::new(Looks {
            at: client.clone(),
            found: Mutex::default(),
        })
    });
    let mut waiting: Vec<_> = tasks
        .iter()
        .map(|_| Box::pin(client.recv_datagram()))
        .collect();
    let mut wait = || {
        for (task, waiting) in tasks.iter().zip(&mut waiting) {
            let waker = Waker::from(Arc::clone(task));
            let waiting = waiting.as_mut().poll(&mut Context::from_waker(&waker));
            assert_eq!(waiting, Poll::Pending);
        }
    };
    // By the endpoint's task, and by one that uses the session.
    wait();
    accepted.send_slice(b"message").await.unwrap();
    let all_woken = |_: &Endpoint| {
        tasks
            .iter()
            .all(|task| task.found.lock().unwrap().len() == 1)
    };
    wait_until(&server, "all are woken", all_woken).await;
    wait();
    client.abort();
    for task in &tasks {
        assert_eq!(*task.found.lock().unwrap(), [true, true]);
    }
}

/// A session frees memory as its peer acknowledges it, and when it ends.
#[tokio::test]
async fn the_waker_of_who_waits_for_memory_may_use_the_session_that_frees_it() {
    let (pool, servers) = (pool(), pool());
    let server = Endpoint::bind(any(), &servers, fast()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
    let sizes = pool.slab().size_classes().sizes().to_vec();
    for is_acknowledged in [true, false] {
        client.send_slice(&[7; 1000]).await.unwrap();
        let mut all = Vec::new();
        for &bytes in sizes.iter().rev() {
            all.extend(std::iter::from_fn(|| pool.slab().try_alloc(bytes).ok()));
        }
        let task = Arc::new(Looks {
            at: client.clone(),
            found: Mutex::default(),
        });
        let waker = Waker::from(Arc::clone(&task));
        let waits: Vec<_> = sizes
            .iter()
            .map(|&bytes| {
                let mut wait = Box::pin(pool.slab().alloc(bytes));
                let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending(), "of {bytes} bytes");
                wait
            })
            .collect();
        let woken = |_: &Endpoint| !task.found.lock().unwrap().is_empty();
        if is_acknowledged {
            wait_until(&server, "nobody is woken", woken).await;
        } else {
            client.abort();
            assert!(woken(&server));
        }
        assert!(!task.found.lock().unwrap().contains(&false));
        drop((waits, all));
    }
}

fn opening() -> Vec<u8> {
    let bare = bare_header(1, Command::AskWindow);
    datagram(Header { wnd: 32, ..bare }, b"")
}

/// From another runtime than the one that the endpoint was made in.
#[test]
fn dropping_the_runtime_wakes_all_tasks_that_wait() {
    let (first, second) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let pool = pool();
    let (server, client, accepted) = first.block_on(connected_pair(&pool));
    let accepting = server.clone();
    let accepting = second.spawn(async move { while accepting.accept().await.is_some() {} });
    let receiving = client.clone();
    let receiving = second.spawn(async move { receiving.recv().await });
    let sending = client.clone();
    let sending = second.spawn(async move {
        loop {
            if let Err(why) = sending.send_slice(&[7; 30_000]).await {
                return why;
            }
        }
    });
    // Another session, whose peer has not proved its address.
    let stranger = std::net::UdpSocket::bind(any()).unwrap();
    stranger.send_to(&opening(), server.local_addr()).unwrap();
    first.block_on(wait_until(&server, "half-open", |server| {
        server.stats().half_open == 1
    }));
    drop(first);
    second.block_on(async {
        timeout(TIMEOUT, accepting).await.unwrap().unwrap();
        let received = timeout(TIMEOUT, receiving).await.unwrap().unwrap();
        assert_eq!(received, Err(CloseReason::Aborted));
        let sent = timeout(TIMEOUT, sending).await.unwrap().unwrap();
        assert_eq!(sent, SendError::Closed(CloseReason::Aborted));
    });
    let stats = server.stats();
    assert_eq!(
        (stats.sessions, stats.half_open, stats.backlog),
        (0, 0, 0),
        "{stats:?}"
    );
    drop((server, client, accepted));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// Whoever holds the endpoint could still accept it.
#[test]
fn dropping_the_runtime_ends_what_nobody_has_accepted() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(async { Endpoint::bind(any(), &pool(), fast()).unwrap() });
    let stranger = std::net::UdpSocket::bind(any()).unwrap();
    stranger.send_to(&opening(), server.local_addr()).unwrap();
    let waits = |server: &Endpoint| server.stats().backlog == 1;
    runtime.block_on(wait_until(&server, "it waits", waits));
    drop(runtime);
    let (stats, monitor) = (server.stats(), server.monitor());
    assert_eq!((stats.sessions, stats.backlog), (0, 0));
    drop(server);
    assert!(monitor.is_gone());
}

/// A write of many slices takes as much as there is room for, and no part twice.
#[tokio::test]
async fn partial_vectored_writes_deliver_each_byte_once_and_in_order() {
    let pool = pool();
    let config = EndpointConfig::new(SessionConfig::fast().stream(true).window(16, 16));
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    let data = bytes(4, 3_000_000);
    let expected = data.clone();
    let writing = tokio::spawn(async move {
        let mut stream = client.into_stream();
        let (mut rest, mut in_parts) = (&data[..], 0);
        while !rest.is_empty() {
            let (front, back) = rest.split_at(rest.len().min(300_000));
            let (middle, back) = back.split_at(back.len().min(100_000));
            let slices = [front, middle, &[], back].map(IoSlice::new);
            let written = stream.write_vectored(&slices).await.unwrap();
            in_parts += u32::from(written < rest.len());
            rest = &rest[written..];
        }
        stream.shutdown().await.unwrap();
        (stream, in_parts)
    });
    let mut received = Vec::new();
    let mut stream = accept(&server).await.into_stream();
    let reading = stream.read_to_end(&mut received);
    timeout(TIMEOUT, reading).await.unwrap().unwrap();
    assert!(received == expected, "{} bytes", received.len());
    let (_stream, in_parts) = writing.await.unwrap();
    assert!(in_parts > 5, "{in_parts}");
}

/// Sessions that nobody can accept any more are closed, and the socket with them.
#[tokio::test]
async fn a_dropped_endpoint_frees_everything_with_or_without_sessions() {
    for with_session in [false, true] {
        let (pool, other): (PacketPool, PacketPool) = (pool(), pool());
        let server = Endpoint::bind(any(), &pool, fast()).unwrap();
        let address = server.local_addr();
        let client = match with_session {
            true => {
                let client = Connection::connect(address, &other, fast()).unwrap();
                client.send_slice(b"hello").await.unwrap();
                timeout(TIMEOUT, client.ready()).await.unwrap().unwrap();
                Some(client)
            }
            false => None,
        };
        // Nothing makes the endpoint's task look.
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(server);
        if let Some(client) = client {
            let end = timeout(TIMEOUT, client.recv()).await.unwrap();
            assert_eq!(end, Ok(None));
        }
        let gone = async {
            while std::net::UdpSocket::bind(address).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TIMEOUT, gone).await.expect("the socket is closed");
        wait_until_pool_unused(&pool).await;
    }
}

/// As documented: where the endpoint's task would panic, nobody would be told.
#[test]
#[should_panic(expected = "time")]
fn an_endpoint_in_a_runtime_without_time_is_refused() {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    let _runtime = runtime.enter();
    let _ = Endpoint::bind(any(), &pool(), fast());
}
