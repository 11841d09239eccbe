//! slab-net.

use crate::cpu::Meter;
use crate::{Bulk, ECHOES, Echo};
use slab_net::PacketPool;
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
use std::net::SocketAddr;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PIECE: usize = 64 << 10;

fn config() -> EndpointConfig {
    EndpointConfig::new(SessionConfig::fast().window(1024, 1024).stream(true))
}

fn pool() -> PacketPool {
    PacketPool::builder()
        .max_memory(128 << 20)
        .headroom(24)
        .build()
        .expect("a pool")
}

fn pair() -> (PacketPool, Endpoint, Connection) {
    let pool = pool();
    let any = "127.0.0.1:0".parse().expect("an address");
    let server = Endpoint::bind(any, &pool, config()).expect("a socket");
    let client = Connection::connect(server.local_addr(), &pool, config()).expect("a socket");
    (pool, server, client)
}

pub(crate) async fn bulk(megabytes: usize) -> Bulk {
    let (_pool, server, client) = pair();
    let total = megabytes << 20;
    let reading = tokio::spawn(async move {
        let mut stream = server.accept().await.expect("a session").into_stream();
        let (mut buf, mut left) = (vec![0; PIECE], total);
        while left > 0 {
            left -= stream.read(&mut buf).await.expect("bytes");
        }
    });
    let mut stream = client.into_stream();
    let piece = vec![7; PIECE];
    let meter = Meter::start();
    tokio::spawn(async move {
        for _ in 0..total / PIECE {
            stream.write_all(&piece).await.expect("written");
        }
        let _ = stream.shutdown().await;
    });
    reading.await.expect("read");
    meter.stop(total)
}

/// To a sink of another implementation; the CPU time is this end's only.
pub(crate) async fn to(address: SocketAddr, megabytes: usize) -> Bulk {
    let pool = pool();
    let mut stream = Connection::connect(address, &pool, config())
        .expect("a socket")
        .into_stream();
    let (total, piece) = (megabytes << 20, vec![7; PIECE]);
    let meter = Meter::start();
    for _ in 0..total / PIECE {
        stream.write_all(&piece).await.expect("written");
    }
    stream.shutdown().await.expect("delivered");
    meter.stop(total)
}

pub(crate) async fn echo() -> Echo {
    let (_pool, server, client) = pair();
    tokio::spawn(async move {
        let mut stream = server.accept().await.expect("a session").into_stream();
        let mut buf = [0; 1024];
        while stream.read_exact(&mut buf).await.is_ok() {
            stream.write_all(&buf).await.expect("written");
        }
    });
    let mut stream = client.into_stream();
    // A task, as the other end is: the main thread would have to be woken each time.
    let asking = tokio::spawn(async move {
        let (mut times, mut buf) = (Vec::with_capacity(ECHOES), [0; 1024]);
        for _ in 0..ECHOES {
            let begin = Instant::now();
            stream.write_all(&buf).await.expect("written");
            stream.read_exact(&mut buf).await.expect("read");
            times.push(begin.elapsed());
        }
        times
    });
    Echo::of(asking.await.expect("answered"))
}
