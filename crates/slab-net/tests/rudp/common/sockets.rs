//! What the tests of endpoints over real sockets have in common.

use super::Random;
use slab_net::PacketPool;
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Matters only for how long a broken test takes to fail.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn pool() -> PacketPool {
    PacketPool::builder()
        .max_memory(64 << 20)
        .headroom(24)
        .build()
        .unwrap()
}

pub(crate) fn fast() -> EndpointConfig {
    // A missed wake-up must not be repaired by a sign of life.
    let minutes = |n: u64| Duration::from_secs(60 * n);
    EndpointConfig::new(
        SessionConfig::fast()
            .keepalive(minutes(10))
            .idle_timeout(minutes(100)),
    )
}

/// Any port of an address that no other socket of the tests has: after a test has ended its session lingers and
/// goes on sending, and its peer's port may belong to another test by then.
pub(crate) fn any() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // On other systems a loopback interface has only one address.
    let host = if cfg!(target_os = "linux") {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % 1022 + 1;
        let [_, high, middle, low] = (std::process::id() << 10 | number).to_be_bytes();
        [127, high, middle, low]
    } else {
        [127, 0, 0, 1]
    };
    (host, 0).into()
}

pub(crate) async fn accept(server: &Endpoint) -> Connection {
    timeout(TIMEOUT, server.accept()).await.unwrap().unwrap()
}

pub(crate) async fn recv(connection: &Connection) -> Vec<u8> {
    let received = timeout(TIMEOUT, connection.recv()).await.unwrap();
    received.unwrap().unwrap().to_vec()
}

/// Polls until the endpoint has counted what it was sent, with patience for a busy machine.
pub(crate) async fn wait_until(server: &Endpoint, what: &str, done: impl Fn(&Endpoint) -> bool) {
    for _ in 0..6000 {
        if done(server) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: {:?}", server.stats());
}

/// Connects two ends, and sends a message from the client.
pub(crate) async fn connected_pair(pool: &PacketPool) -> (Endpoint, Connection, Connection) {
    let server = Endpoint::bind(any(), pool, fast()).unwrap();
    let client = Connection::connect(server.local_addr(), pool, fast()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let accepted = accept(&server).await;
    assert_eq!(recv(&accepted).await, b"hello");
    accepted.ready().await.unwrap();
    client.ready().await.unwrap();
    (server, client, accepted)
}

/// Waits until the pool has everything back.
pub(crate) async fn wait_until_pool_unused(pool: &PacketPool) {
    for _ in 0..1000 {
        if pool.slab().stats().in_use() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} chunks are still in use", pool.slab().stats().in_use());
}

pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next() as u8).collect()
}
