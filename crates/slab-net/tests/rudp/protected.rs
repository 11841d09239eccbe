//! Sessions with error correction and encryption on sockets: everything arrives, the pool loses nothing, and
//! datagrams that are not from a peer with the key have no effect.

use crate::common::pair::{bare_header, datagram};
use crate::common::sockets::{accept, any, fast, pool, recv, wait_until, wait_until_pool_unused};
use crate::common::{Random, proxy};
use slab_net::Packet;
use slab_net::rudp::crypto::AesGcm;
use slab_net::rudp::fec::FecShards;
use slab_net::rudp::wire::{Command, Header};
use slab_net::rudp::{
    CloseReason, Connection, Endpoint, EndpointConfig, SessionConfig, TryRecvError,
};
use std::cell::RefCell;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(60);
const KEY: &[u8] = b"sixteen secret b";

#[derive(Debug, Clone, Copy)]
struct Kind {
    fec: Option<(usize, usize)>,
    key: Option<&'static [u8]>,
    /// By the kernel: GSO and GRO.
    offload: bool,
}

const KINDS: [Kind; 7] = [
    Kind {
        fec: Some((2, 2)),
        key: None,
        offload: true,
    },
    Kind {
        fec: None,
        key: Some(KEY),
        offload: true,
    },
    Kind {
        fec: Some((10, 3)),
        key: Some(KEY),
        offload: true,
    },
    Kind {
        fec: Some((3, 1)),
        key: Some(b"thirty-two bytes of a secret key"),
        offload: true,
    },
    Kind {
        fec: Some((2, 2)),
        key: None,
        offload: false,
    },
    Kind {
        fec: None,
        key: Some(KEY),
        offload: false,
    },
    Kind {
        fec: Some((10, 3)),
        key: Some(KEY),
        offload: false,
    },
];

impl Kind {
    fn config(&self, session: SessionConfig) -> EndpointConfig {
        let session = session.linger(Duration::from_secs(2));
        let mut config = EndpointConfig::new(session).offload(self.offload);
        if let Some((data, parity)) = self.fec {
            config = config.fec(FecShards::new(data, parity).unwrap());
        }
        if let Some(key) = self.key {
            config = config.aes_gcm(AesGcm::new(key).unwrap());
        }
        config
    }
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

/// Sends messages of many lengths and expects each back.
async fn exchange(client: &Connection, server: &Endpoint) {
    let echo = async {
        let connection = server.accept().await.unwrap();
        while let Ok(Some(message)) = connection.recv().await {
            connection.send(message).await.unwrap();
        }
        connection
    };
    let ask = async {
        let mut random = Random::new(5);
        for len in [1, 24, 1300, 1356, 1357, 1400, 9000, 40_000, 100] {
            let message = bytes(&mut random, len);
            client.send_slice(&message).await.unwrap();
            let answer = client.recv().await.unwrap().unwrap();
            assert!(answer == message[..], "{len} bytes");
        }
        client.close().await.unwrap();
    };
    timeout(TIMEOUT, async { tokio::join!(echo, ask) })
        .await
        .expect("in time");
}

#[tokio::test]
async fn messages_arrive_with_each_protection_and_all_memory_is_freed() {
    for kind in KINDS {
        let pool = pool();
        let server = Endpoint::bind(any(), &pool, kind.config(SessionConfig::fast())).unwrap();
        let config = kind.config(SessionConfig::fast());
        let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
        exchange(&client, &server).await;
        let stats = server.stats();
        assert_eq!((stats.unopened, stats.send_errors), (0, 0), "{kind:?}");
        assert_eq!(stats.total.rejected_datagrams(), 0);
        assert_eq!(stats.fec.rejected + stats.fec.no_memory, 0);
        assert_eq!(stats.fec.sent_parity > 0, kind.fec.is_some(), "{stats:?}");
        drop((client, server));
        wait_until_pool_unused(&pool).await;
    }
}

/// Receive buffers have room for what protection adds to the longest datagram.
#[tokio::test]
async fn datagrams_of_a_long_mtu_are_not_truncated_by_protection() {
    for kind in KINDS {
        let pool = pool();
        let session = SessionConfig::fast().mtu(9000);
        let server = Endpoint::bind(any(), &pool, kind.config(session)).unwrap();
        let config = kind.config(session);
        let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
        let message = bytes(&mut Random::new(3), 40_000);
        client.send_slice(&message).await.unwrap();
        let accepted = timeout(TIMEOUT, server.accept()).await.unwrap().unwrap();
        let received = timeout(TIMEOUT, accepted.recv()).await.expect("in time");
        assert!(received.unwrap().unwrap() == message[..], "{kind:?}");
        assert_eq!(server.stats().unopened, 0, "{kind:?}");
    }
}

#[tokio::test]
async fn a_stream_arrives_over_a_lossy_path_and_losses_are_recovered() {
    for kind in KINDS {
        let pool = pool();
        let session = SessionConfig::fast().stream(true);
        let server = Endpoint::bind(any(), &pool, kind.config(session)).unwrap();
        let address = proxy::lossy(server.local_addr(), 30, 7).await;
        let client = Connection::connect(address, &pool, kind.config(session)).unwrap();
        let mut stream = client.into_stream();
        let data = bytes(&mut Random::new(8), 300_000);
        let echo = async {
            let mut stream = server.accept().await.unwrap().into_stream();
            let mut got = vec![0; 300_000];
            stream.read_exact(&mut got).await.unwrap();
            stream.write_all(&got).await.unwrap();
            stream.shutdown().await.unwrap();
            // Dropped once everything has arrived: a busy machine may take longer than the linger time.
            stream
        };
        let ask = async {
            stream.write_all(&data).await.unwrap();
            let mut got = vec![0; 300_000];
            stream.read_exact(&mut got).await.unwrap();
            assert!(got == data);
            stream.shutdown().await.unwrap();
        };
        timeout(TIMEOUT, async { tokio::join!(echo, ask) })
            .await
            .expect("in time");
        let stats = server.stats();
        assert_eq!(stats.unopened, 0);
        assert_eq!(stats.fec.recovered > 0, kind.fec.is_some(), "{stats:?}");
        drop((stream, server));
        wait_until_pool_unused(&pool).await;
    }
}

#[tokio::test]
async fn sessions_of_one_socket_share_shard_numbers() {
    let kind = KINDS[2];
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, kind.config(SessionConfig::fast())).unwrap();
    let client = Endpoint::bind(any(), &pool, kind.config(SessionConfig::fast())).unwrap();
    let address = proxy::lossy(server.local_addr(), 50, 9).await;
    let connections: Vec<_> = (0..5).map(|_| client.connect(address).unwrap()).collect();
    let mut random = Random::new(10);
    let talk = async {
        for round in 0..40 {
            for connection in &connections {
                let message = bytes(&mut random, 700 + round);
                connection.send_slice(&message).await.unwrap();
            }
        }
        for connection in &connections {
            for round in 0..40 {
                assert_eq!(connection.recv().await.unwrap().unwrap().len(), 700 + round);
            }
            connection.close().await.unwrap();
        }
    };
    let echo = async {
        let mut tasks = Vec::new();
        for _ in 0..5 {
            let connection = server.accept().await.unwrap();
            tasks.push(tokio::spawn(async move {
                while let Ok(Some(message)) = connection.recv().await {
                    connection.send(message).await.unwrap();
                }
            }));
        }
    };
    timeout(TIMEOUT, async { tokio::join!(talk, echo) })
        .await
        .expect("in time");
    assert_eq!(server.stats().total.rejected_datagrams(), 0);
    drop((connections, client, server));
    wait_until_pool_unused(&pool).await;
}

#[tokio::test]
async fn a_peer_with_another_key_opens_no_session_and_is_counted() {
    let pool = pool();
    let session = SessionConfig::fast();
    let server = Endpoint::bind(any(), &pool, KINDS[1].config(session)).unwrap();
    let wrong = Kind {
        key: Some(b"another secret b"),
        ..KINDS[1]
    };
    let none = Kind {
        fec: None,
        key: None,
        offload: true,
    };
    for kind in [wrong, none, KINDS[0]] {
        let client = Connection::connect(server.local_addr(), &pool, kind.config(session)).unwrap();
        client
            .send_slice(b"let me in, please, I have no key")
            .await
            .unwrap();
        let before = server.stats().unopened;
        while server.stats().unopened == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let stats = server.stats();
    assert_eq!((stats.sessions, stats.opened), (0, 0));
    assert!(stats.unopened >= 3);
}

/// Both directions have one key: an attacker without it can still send a client's datagrams back to it.
#[tokio::test]
async fn an_endpoint_refuses_datagrams_that_it_sealed_itself() {
    for kind in KINDS.into_iter().filter(|kind| kind.key.is_some()) {
        let pool = pool();
        let mirror = UdpSocket::bind(any()).await.unwrap();
        let config = kind.config(SessionConfig::fast());
        let client = Endpoint::bind(any(), &pool, config).unwrap();
        let connection = client.connect(mirror.local_addr().unwrap()).unwrap();
        connection.send_slice(b"am I admin?").await.unwrap();
        let mut buf = [0; 2000];
        let mut thrown = 0;
        while thrown < 3 {
            let (len, from) = mirror.recv_from(&mut buf).await.unwrap();
            mirror.send_to(&buf[..len], from).await.unwrap();
            thrown += 1;
        }
        while client.stats().unopened < thrown {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(connection.try_recv(), Err(TryRecvError::Empty), "{kind:?}");
        let stats = client.stats();
        assert_eq!((stats.opened, stats.total.received_datagrams), (1, 0));
    }
}

/// As over plain sockets, where the system reports it to the next call that sends.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_client_is_refused_if_nobody_listens() {
    for kind in KINDS {
        let pool = pool();
        // Keeps the port from others, and takes nothing from the client.
        let occupied = UdpSocket::bind(any()).await.unwrap();
        occupied.connect("127.0.0.1:9").await.unwrap();
        let peer = occupied.local_addr().unwrap();
        let config = kind.config(SessionConfig::fast());
        let client = Connection::connect(peer, &pool, config).unwrap();
        client.send_slice(b"hello").await.unwrap();
        let end = timeout(TIMEOUT, client.recv()).await.unwrap();
        assert_eq!(end, Err(CloseReason::Refused), "{kind:?}");
    }
}

/// The thread-local memory in which datagrams are put together may be gone before the connection.
#[test]
fn a_connection_may_be_dropped_while_its_thread_exits() {
    thread_local! {
        static HELD: RefCell<Option<Connection>> = const { RefCell::new(None) };
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let none = Kind {
        fec: None,
        key: None,
        offload: true,
    };
    for kind in KINDS.into_iter().chain([none]) {
        let pool = pool();
        let _guard = runtime.enter();
        let config = kind.config(SessionConfig::fast());
        let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
        let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
        let accepted = runtime.block_on(async {
            client.send_slice(b"hello").await.unwrap();
            timeout(TIMEOUT, server.accept()).await.unwrap().unwrap()
        });
        let thread = std::thread::spawn(move || {
            // The thread registers this before that memory, and so drops it afterwards.
            HELD.set(Some(client));
            let send = |client: &Connection| client.try_send(Packet::from(vec![1; 10])).is_ok();
            assert!(HELD.with_borrow(|held| held.as_ref().is_some_and(send)));
        });
        thread.join().unwrap();
        runtime.block_on(async {
            for message in [&b"hello"[..], &[1; 10]] {
                let received = timeout(TIMEOUT, accepted.recv()).await.unwrap();
                assert_eq!(received.unwrap().unwrap(), message);
            }
            let end = timeout(TIMEOUT, accepted.recv()).await.unwrap();
            assert_eq!(end, Ok(None), "{kind:?}");
        });
    }
}

/// Clones of one key at both ends, as within one process, still count as two.
#[tokio::test]
async fn ends_with_clones_of_one_key_can_talk() {
    let pool = pool();
    let config = KINDS[2].config(SessionConfig::fast());
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    exchange(&client, &server).await;
    assert_eq!(server.stats().unopened, 0);
}

/// Nothing that is sent to a live session harms it, with the key or without.
#[tokio::test]
async fn garbage_and_replays_harm_no_session() {
    for kind in KINDS {
        let pool = pool();
        let session = SessionConfig::fast();
        let server = Endpoint::bind(any(), &pool, kind.config(session)).unwrap();
        // A proxy that repeats everything, changes every second repetition, and adds garbage; to the server all of
        // it seems to come from the client.
        let front = UdpSocket::bind(any()).await.unwrap();
        let back = UdpSocket::bind(any()).await.unwrap();
        back.connect(server.local_addr()).await.unwrap();
        let address = front.local_addr().unwrap();
        let proxy = tokio::spawn(async move {
            let (mut random, mut client) = (Random::new(11), None);
            let (mut there, mut here) = ([0; 2000], [0; 2000]);
            loop {
                tokio::select! {
                    Ok((len, from)) = front.recv_from(&mut there) => {
                        client = Some(from);
                        back.send(&there[..len]).await.unwrap();
                        back.send(&there[..len]).await.unwrap();
                        let mut garbage = there[..len].to_vec();
                        let keep = [0, 6, 8][random.below(3) as usize].min(len);
                        for byte in &mut garbage[keep..] {
                            *byte = random.next() as u8;
                        }
                        garbage.truncate(1 + random.below(len as u64) as usize);
                        back.send(&garbage).await.unwrap();
                    }
                    Ok(len) = back.recv(&mut here) => {
                        if let Some(client) = client {
                            front.send_to(&here[..len], client).await.unwrap();
                            front.send_to(&here[..len], client).await.unwrap();
                        }
                    }
                }
            }
        });
        let client = Connection::connect(address, &pool, kind.config(session)).unwrap();
        exchange(&client, &server).await;
        let stats = server.stats();
        assert_eq!(stats.unopened > 0, kind.key.is_some(), "{stats:?}");
        proxy.abort();
        drop((client, server));
        wait_until_pool_unused(&pool).await;
    }
}

/// At most three times what came in, headers, tags and parity included, while the peer's address is not proved.
#[tokio::test]
async fn an_unproved_address_is_sent_at_most_three_times_what_it_sent() {
    for kind in KINDS {
        let pool = pool();
        let config = || kind.config(SessionConfig::fast());
        let server = Endpoint::bind(any(), &pool, config()).unwrap();
        // The client's first datagrams reach the server; the answers do not reach the client.
        let front = UdpSocket::bind(any()).await.unwrap();
        let back = UdpSocket::bind(any()).await.unwrap();
        let client = Connection::connect(front.local_addr().unwrap(), &pool, config()).unwrap();
        client.send_slice(&[7; 1000]).await.unwrap();
        let (mut buf, mut sent, mut received) = ([0; 2000], 0, 0);
        while sent < 1000 {
            let len = front.recv(&mut buf).await.unwrap();
            back.send_to(&buf[..len], server.local_addr())
                .await
                .unwrap();
            sent += len;
        }
        let connection = server.accept().await.unwrap();
        for n in 0..100 {
            let _ = connection.try_send(pool.try_copy_from_slice(&[n; 30]).unwrap());
        }
        let answers = async {
            loop {
                received += back.recv(&mut buf).await.unwrap();
            }
        };
        let _ = timeout(Duration::from_millis(250), answers).await;
        assert!(
            received > 0 && received <= 3 * sent,
            "{kind:?}: {received} for {sent}"
        );
    }
}

/// Nor for a datagram that is not a shard, although everything sent has a header of error correction.
#[tokio::test]
async fn the_amplification_limit_holds_for_datagrams_that_are_not_shards() {
    let pool = pool();
    let config = KINDS[0].config(SessionConfig::fast());
    let server = Endpoint::bind(any(), &pool, config).unwrap();
    let forged = UdpSocket::bind(any()).await.unwrap();
    let header = Header {
        wnd: 500,
        len: 1,
        ..bare_header(5, Command::Push)
    };
    let opening = datagram(header, &[0]);
    let to = server.local_addr();
    forged.send_to(&opening, to).await.unwrap();
    let connection = timeout(TIMEOUT, server.accept()).await.unwrap().unwrap();
    for n in 0..50 {
        let _ = connection.try_send(pool.try_copy_from_slice(&[n; 2]).unwrap());
    }
    let (mut buf, mut received) = ([0; 2000], 0);
    let answers = async {
        loop {
            received += forged.recv(&mut buf).await.unwrap();
        }
    };
    let _ = timeout(Duration::from_millis(500), answers).await;
    assert!(
        received > 0 && received <= 3 * opening.len(),
        "{received} for {}",
        opening.len()
    );
}

/// The limit covers the headers of error correction. A session that did not know of them would spend all of it, each
/// time anew, on datagrams that are too long by their header, and would never be heard.
#[tokio::test]
async fn an_unproved_address_is_answered_as_often_as_it_asks() {
    let pool = pool();
    let config = KINDS[0].config(SessionConfig::fast());
    let server = Endpoint::bind(any(), &pool, config).unwrap();
    let peer = UdpSocket::bind(any()).await.unwrap();
    peer.connect(server.local_addr()).await.unwrap();
    let bare = bare_header(5, Command::AskWindow);
    let question = datagram(Header { wnd: 500, ..bare }, b"");
    let (mut buf, mut received, mut connection) = ([0; 2000], 0, None);
    for asked in 1..=12 {
        peer.send(&question).await.unwrap();
        if connection.is_none() {
            connection = timeout(TIMEOUT, server.accept()).await.unwrap();
        }
        // More than may be sent.
        for _ in 0..4 {
            let message = pool.try_copy_from_slice(&[7]).unwrap();
            let _ = connection.as_ref().unwrap().try_send(message);
        }
        let answer = timeout(TIMEOUT, peer.recv(&mut buf)).await;
        received += answer.expect("an answer").unwrap();
        while let Ok(len) = peer.try_recv(&mut buf) {
            received += len;
        }
        assert!(received <= 3 * asked * question.len());
    }
}

/// The answer with the cookie is sealed like everything else.
#[tokio::test]
async fn a_session_that_needs_a_cookie_is_opened() {
    for kind in KINDS {
        let pool = pool();
        let config = kind.config(SessionConfig::fast());
        let server = Endpoint::bind(any(), &pool, config.clone().require_cookie(true)).unwrap();
        let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
        exchange(&client, &server).await;
        let stats = server.stats();
        assert!(
            stats.cookies_sent > 0 && stats.cookies_taken == 1,
            "{stats:?}"
        );
    }
}

/// Headers and tags take their room from the MTU.
#[tokio::test]
async fn no_datagram_is_longer_than_the_mtu() {
    for kind in KINDS {
        let pool = pool();
        let front = UdpSocket::bind(any()).await.unwrap();
        let config = kind.config(SessionConfig::fast().mtu(600));
        let client = Connection::connect(front.local_addr().unwrap(), &pool, config).unwrap();
        client.send_slice(&[7; 10_000]).await.unwrap();
        let (mut longest, mut buf) = (0, [0; 2000]);
        for _ in 0..15 {
            longest = longest.max(front.recv(&mut buf).await.unwrap());
        }
        assert_eq!(longest, 600, "{kind:?}");
        let too_short = kind.config(SessionConfig::fast().mtu(70));
        assert!(Endpoint::bind(any(), &pool, too_short).is_err());
    }
}

/// Half a second after the last datagram no parity is sent for it, and none is awaited.
#[tokio::test]
async fn an_idle_session_with_error_correction_holds_no_pool_memory() {
    let pool = pool();
    let config = fast().fec(FecShards::new(10, 3).unwrap());
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    for n in 0..4 {
        client.send_slice(&[n; 1000]).await.unwrap();
    }
    let accepted = accept(&server).await;
    for n in 0..4 {
        assert_eq!(recv(&accepted).await, [n; 1000]);
    }
    assert_ne!(pool.slab().stats().in_use(), 0);
    wait_until(&server, "idle", |_| pool.slab().stats().in_use() == 0).await;
    assert_eq!((client.ended(), accepted.ended()), (None, None));
}

/// The parity memory of a datagram that nobody answers is given back soon, even if nothing else wakes the
/// endpoint for long.
#[tokio::test]
async fn datagram_in_an_idle_session_keeps_no_parity_memory() {
    let pool = pool();
    let config = fast().fec(FecShards::new(10, 3).unwrap());
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    client.send_slice(b"question").await.unwrap();
    let accepted = accept(&server).await;
    assert_eq!(recv(&accepted).await, b"question");
    accepted.send_slice(b"answer").await.unwrap();
    assert_eq!(recv(&client).await, b"answer");
    wait_until(&server, "idle", |_| pool.slab().stats().in_use() == 0).await;
    // As many as it takes to begin a group.
    let mut sent = 0;
    while pool.slab().stats().in_use() == 0 {
        client.send_datagram(Packet::from(vec![1])).unwrap();
        sent += 1;
    }
    for _ in 0..sent {
        let datagram = timeout(TIMEOUT, accepted.recv_datagram()).await.unwrap();
        assert_eq!(datagram.unwrap().unwrap(), [1][..]);
    }
    wait_until(&server, "idle", |_| pool.slab().stats().in_use() == 0).await;
}
