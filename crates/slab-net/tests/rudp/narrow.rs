//! A link narrower than what is sent to it, so that the socket has no room: in a network of its own, whose loopback
//! interface `tc` makes slow. Where that is not possible the test says so and runs nothing, or fails if
//! `SLAB_NET_NO_SKIP` is set.

use slab_net::rudp::{CloseReason, Endpoint, EndpointConfig, SessionConfig};
use slab_net::{PacketPool, SizeClasses};
use std::env;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const BYTES: usize = 1 << 20;
const SESSIONS: usize = 3;
/// The shell's exit status if there is no slow link.
const NO_SLOW_LINK: i32 = 77;

#[test]
fn datagrams_for_a_full_socket_are_sent_later() {
    run_in_own_network("100mbit", 1500, "over_a_slow_link");
}

#[test]
fn datagrams_longer_than_the_link_takes_arrive_in_fragments() {
    run_in_own_network("100mbit", 1280, "over_a_slow_link");
}

#[test]
fn datagrams_for_a_full_socket_are_sent_later_from_small_chunks() {
    run_in_own_network("100mbit", 1500, "over_a_slow_link_from_small_chunks");
}

#[test]
fn a_session_times_out_although_its_socket_is_full() {
    run_in_own_network("1kbit", 1500, "over_a_stalled_link");
}

#[test]
fn datagrams_without_socket_room_and_memory_are_counted() {
    run_in_own_network("1kbit", 1500, "over_a_stalled_link_without_memory");
}

/// Runs an ignored test in a network of its own whose link has this rate, and takes packets of so many bytes.
fn run_in_own_network(rate: &str, mtu: u32, test: &str) {
    let slow = "ip link set lo mtu \"$3\" up \
        && tc qdisc add dev lo root tbf rate \"$1\" burst 64k limit 10m || exit 77; \
        exec \"$0\" --ignored --exact \"$2\"";
    let run = Command::new("unshare")
        .args(["--map-root-user", "--net", "sh", "-c", slow])
        .arg(env::current_exe().unwrap())
        .args([rate, &format!("narrow::{test}"), &mtu.to_string()])
        .output();
    let why = match run {
        Ok(run) if run.status.success() => {
            let said = String::from_utf8_lossy(&run.stdout);
            return assert!(said.contains("1 passed"), "{said}");
        }
        Ok(run) if run.status.code() == Some(NO_SLOW_LINK) => {
            "no slow link could be made".to_owned()
        }
        // This is neither a status of the test nor a signal that ended it.
        Ok(run) if run.status.code() == Some(1) => String::from_utf8_lossy(&run.stderr).into(),
        Ok(run) => panic!("{}{}", run.status, String::from_utf8_lossy(&run.stdout)),
        Err(error) => error.to_string(),
    };
    crate::udp_common::skipped("a narrow link", &io::Error::other(why.trim()));
}

/// A pool, and a server and a client on it whose sockets hold this many bytes.
fn two_ends(
    memory: usize,
    session: SessionConfig,
    socket_bytes: usize,
) -> (PacketPool, Endpoint, Endpoint) {
    let pool = PacketPool::builder()
        .max_memory(memory)
        .headroom(24)
        .build()
        .unwrap();
    let (server, client) = two_ends_on(&pool, EndpointConfig::new(session), socket_bytes);
    (pool, server, client)
}

fn two_ends_on(
    pool: &PacketPool,
    config: EndpointConfig,
    socket_bytes: usize,
) -> (Endpoint, Endpoint) {
    let config = config
        .receive_buffer_bytes(socket_bytes)
        .send_buffer_bytes(socket_bytes);
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::bind(any, pool, config.clone()).unwrap();
    (server, Endpoint::bind(any, pool, config).unwrap())
}

/// Several sessions between two sockets, both ways, each with more to send than there is room for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a test above runs it, in a network of its own"]
async fn over_a_slow_link() {
    let session = SessionConfig::fast().stream(true).window(1024, 1024);
    let (_, server, clients) = two_ends(64 << 20, session, 128 << 10);
    exchange(&server, &clients).await;
}

/// As that, from chunks that hold one datagram: of what is sent at once, the rest has to fit into one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a test above runs it, in a network of its own"]
async fn over_a_slow_link_from_small_chunks() {
    let classes = SizeClasses::explicit(&[256, 2048]).unwrap();
    let pool = PacketPool::builder().size_classes(classes).headroom(24);
    let pool = pool.max_memory(64 << 20).build().unwrap();
    let session = SessionConfig::fast().stream(true).window(1024, 1024);
    let plain = EndpointConfig::new(session).offload(false);
    #[cfg(feature = "aes-gcm")]
    {
        let key = slab_net::rudp::crypto::AesGcm::new(b"sixteen secret b").unwrap();
        let (server, clients) = two_ends_on(&pool, plain.clone().aes_gcm(key), 128 << 10);
        exchange(&server, &clients).await;
    }
    let (server, clients) = two_ends_on(&pool, plain, 128 << 10);
    exchange(&server, &clients).await;
}

async fn exchange(server: &Endpoint, clients: &Endpoint) {
    let mut tasks = Vec::new();
    for _ in 0..SESSIONS {
        let client = clients.connect(server.local_addr()).unwrap();
        client.ready().await.unwrap();
        for end in [client, server.accept().await.unwrap()] {
            let (mut input, mut out) = tokio::io::split(end.into_stream());
            tasks.push(tokio::spawn(async move {
                out.write_all(&vec![7; BYTES]).await.unwrap();
                out.shutdown().await.unwrap();
            }));
            tasks.push(tokio::spawn(async move {
                let mut received = Vec::new();
                input.read_to_end(&mut received).await.unwrap();
                assert_eq!(received.len(), BYTES);
            }));
        }
    }
    for task in tasks {
        let done = timeout(Duration::from_secs(60), task).await;
        done.unwrap().unwrap();
    }
    let stats = clients.stats();
    assert!(stats.send_blocked > 0, "{stats:?}");
    assert_eq!(stats.send_errors, 0);
    // While the socket has no room the task waits, whatever is due.
    assert!(stats.wakeups > 0);
    assert!(stats.wakeups < 2 * stats.total.sent_datagrams, "{stats:?}");
}

/// A session that hears nothing, because nothing that it sends arrives, and always has more to send.
#[tokio::test]
#[ignore = "a test above runs it, in a network of its own"]
async fn over_a_stalled_link() {
    let session = SessionConfig::fast()
        .stream(true)
        .window(1024, 1024)
        .keepalive(Duration::from_millis(500))
        .idle_timeout(Duration::from_secs(2));
    let (_, server, clients) = two_ends(64 << 20, session, 32 << 10);
    let client = clients.connect(server.local_addr()).unwrap();
    client.ready().await.unwrap();
    let mut client = client.into_stream();

    // The first bytes pass in the link's burst. This is more than the session's buffer takes.
    let bytes = vec![7; 8 * BYTES];
    let written = timeout(Duration::from_secs(30), client.write_all(&bytes)).await;
    written.expect("in time").expect_err("it is over");
    let why = client.connection().close().await;
    assert_eq!(why, Err(CloseReason::TimedOut));
    let stats = clients.stats();
    assert!(stats.send_blocked > 0, "{stats:?}");
}

/// The pool has a block for what is sent, but nothing to keep what the socket has no room for.
#[tokio::test]
#[ignore = "a test above runs it, in a network of its own"]
async fn over_a_stalled_link_without_memory() {
    let session = SessionConfig::fast().stream(true).window(1024, 1024);
    let (pool, server, clients) = two_ends(8 << 20, session, 8 << 10);
    let client = clients.connect(server.local_addr()).unwrap();
    client.ready().await.unwrap();
    let mut client = client.into_stream();
    let mut taken = Vec::new();
    for bytes in [65_000, 9000, 2000, 1500, 1200, 500, 200, 40] {
        taken.extend(std::iter::from_fn(|| pool.try_alloc(bytes).ok()));
    }
    drop(taken.swap_remove(0));
    // The first bytes pass in the link's burst; then the socket fills, and what is sent again finds no room.
    let lost = async {
        while clients.stats().send_errors == 0 {
            let written = timeout(Duration::from_millis(10), client.write(&[7; 60_000])).await;
            assert!(!matches!(written, Ok(Err(_))));
        }
    };
    timeout(Duration::from_secs(30), lost)
        .await
        .expect("in time");
    assert_eq!(clients.stats().send_blocked, 0);
}
