//! What every test of endpoints over real sockets begins with.

use slab_net::PacketPool;
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// Only how long a broken test takes to fail.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn pool() -> PacketPool {
    PacketPool::builder()
        .max_memory(64 << 20)
        .headroom(24)
        .build()
        .unwrap()
}

pub(crate) fn fast() -> EndpointConfig {
    EndpointConfig::new(SessionConfig::fast())
}

pub(crate) fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub(crate) async fn accept(server: &Endpoint) -> Connection {
    timeout(SOON, server.accept()).await.unwrap().unwrap()
}

pub(crate) async fn recv(connection: &Connection) -> Vec<u8> {
    let received = timeout(SOON, connection.recv()).await.unwrap();
    received.unwrap().unwrap().to_vec()
}

/// Polls until the endpoint has counted what it was sent, with patience for a busy machine.
pub(crate) async fn until(server: &Endpoint, what: &str, done: impl Fn(&Endpoint) -> bool) {
    for _ in 0..6000 {
        if done(server) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: {:?}", server.stats());
}
