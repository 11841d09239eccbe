//! A stream's writes when there is no memory.

use crate::common::sockets::any;
use crate::memory::{exhaust_all, strict, within_a_minute};
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SendError, SessionConfig};
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// What a new session reserves.
const OPENING_BYTES: usize = 32 * 1536 * 5 / 4;

/// The memory is others', and nothing is in flight: a stream waits as for room in the window, whereas a message is
/// refused.
#[tokio::test]
async fn a_stream_waits_for_memory_that_others_have() {
    let pool = strict(8 << 20);
    let session = SessionConfig::fast()
        .keepalive(Duration::from_secs(600))
        .idle_timeout(Duration::from_secs(6000));
    let config = EndpointConfig::new(session);
    let server = Endpoint::bind(any(), &strict(8 << 20), config.clone()).unwrap();
    let clients = Endpoint::bind(any(), &pool, config).unwrap();
    let client = clients.connect(server.local_addr()).unwrap();
    within_a_minute(client.ready()).await.unwrap();
    let rest = exhaust_all(&pool);
    let refused = client.send_slice(&[1; 1000]).await;
    assert_eq!(refused, Err(SendError::NoMemory));
    let mut client = client.into_stream();
    // In a task of its own, which nothing else wakes.
    let write = tokio::spawn(async move { client.write_all(&[2; 1000]).await.map(|()| client) });
    // Longer than until the first timers, which wake whoever waits.
    let pause = Duration::from_secs(1);
    tokio::time::sleep(pause).await;
    drop(rest);
    let _client = within_a_minute(write).await.unwrap().unwrap();
    assert!(clients.stats().blocked_sending >= pause / 2);
    let server = within_a_minute(server.accept()).await.unwrap();
    let received = within_a_minute(server.recv()).await.unwrap().unwrap();
    assert_eq!(received, [2; 1000][..]);
}

/// Nobody can make room for what would not fit if the session were alone.
#[tokio::test]
async fn a_stream_does_not_wait_for_memory_that_nobody_has() {
    let config = EndpointConfig::new(SessionConfig::fast());
    let server = Endpoint::bind(any(), &strict(8 << 20), config.clone()).unwrap();
    let config = config.max_memory(OPENING_BYTES + 1100);
    let client = Connection::connect(server.local_addr(), &strict(8 << 20), config).unwrap();
    within_a_minute(client.ready()).await.unwrap();
    let mut client = client.into_stream();
    let write = client.write_all(&[2; 5000]);
    let error = within_a_minute(write).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    within_a_minute(client.write_all(&[2; 500])).await.unwrap();
}

/// A write that was given up no longer waits, however much later the next one comes.
#[tokio::test]
async fn a_write_that_was_given_up_is_not_counted_as_blocked() {
    let pool = strict(8 << 20);
    let config = EndpointConfig::new(SessionConfig::fast());
    let server = Endpoint::bind(any(), &strict(8 << 20), config.clone()).unwrap();
    let clients = Endpoint::bind(any(), &pool, config).unwrap();
    let client = clients.connect(server.local_addr()).unwrap();
    within_a_minute(client.ready()).await.unwrap();
    let rest = exhaust_all(&pool);
    let mut client = client.into_stream();
    let write = client.write(&[2; 1000]);
    let given_up = tokio::time::timeout(Duration::from_millis(30), write).await;
    assert!(given_up.is_err());
    drop(rest);
    let pause = Duration::from_secs(2);
    tokio::time::sleep(pause).await;
    within_a_minute(client.write_all(&[2; 1000])).await.unwrap();
    assert!(clients.stats().blocked_sending < pause / 2);
}

/// The same if the session ends meanwhile.
#[tokio::test]
async fn a_stream_that_waits_for_memory_is_told_of_the_end() {
    let pool = strict(8 << 20);
    let config = EndpointConfig::new(SessionConfig::fast());
    let server = Endpoint::bind(any(), &strict(8 << 20), config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    within_a_minute(client.send_slice(b"hello")).await.unwrap();
    let server = within_a_minute(server.accept()).await.unwrap();
    within_a_minute(client.ready()).await.unwrap();
    within_a_minute(server.ready()).await.unwrap();
    let rest = exhaust_all(&pool);
    let mut client = client.into_stream();
    let write = async {
        let error = client.write_all(&[2; 1000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    };
    let end = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        server.abort();
    };
    within_a_minute(async { tokio::join!(write, end) }).await;
    drop(rest);
}
