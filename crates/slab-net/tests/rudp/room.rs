//! Endpoints whose memory for sessions is taken, over real sockets on loopback.

use crate::common::sockets::{TIMEOUT, accept, any, fast, pool, recv, wait_until};
use slab_net::rudp::{Connection, Endpoint, OpenError};
use tokio::time::timeout;

/// What a session reserves when it is opened: its smallest window, with the reserve for larger buffers.
const OPENING_BYTES: usize = 32 * 1536 * 5 / 4;

/// Sessions that have proved their address share the memory, and are refused once it is used up.
#[tokio::test]
async fn sessions_beyond_the_memory_budget_are_refused_and_counted() {
    let pool = pool();
    // What the server sends takes memory, too.
    let config = fast().max_memory(5 * OPENING_BYTES).require_cookie(true);
    let server = Endpoint::bind(any(), &pool, config).unwrap();
    let clients: Vec<_> = (0..8)
        .map(|_| Connection::connect(server.local_addr(), &pool, fast()).unwrap())
        .collect();
    for client in &clients {
        client.send_slice(b"question").await.unwrap();
    }
    wait_until(&server, "refused", |server| {
        server.stats().refused_memory > 3
    })
    .await;
    let stats = server.stats();
    assert!((1..=5).contains(&stats.sessions), "{stats:?}");
    assert!(stats.reserved_bytes <= stats.reserve_limit_bytes);
    assert_eq!(recv(&accept(&server).await).await, b"question");

    let here = Endpoint::bind(any(), &pool, fast().max_memory(OPENING_BYTES)).unwrap();
    let first = here.connect(server.local_addr()).unwrap();
    let second = here.connect(server.local_addr());
    assert!(matches!(second, Err(OpenError::NoMemory)));
    drop(first);
}

/// As many peers as there is memory for may ask at once; who lets them in has to be able to answer.
#[tokio::test]
async fn peers_that_take_all_the_memory_for_sessions_can_be_answered() {
    let pool = pool();
    let config = fast().max_memory(16 * OPENING_BYTES).require_cookie(true);
    let server = Endpoint::bind(any(), &pool, config).unwrap();
    let here = Endpoint::bind(any(), &pool, fast()).unwrap();
    let clients: Vec<_> = (0..20)
        .map(|_| here.connect(server.local_addr()).unwrap())
        .collect();
    for client in &clients {
        client.send_slice(b"question").await.unwrap();
    }
    wait_until(&server, "refused", |server| {
        server.stats().refused_memory > 6
    })
    .await;
    let mut answered = Vec::new();
    while answered.len() < server.stats().sessions {
        let peer = accept(&server).await;
        assert_eq!(recv(&peer).await, b"question");
        peer.send_slice(&[7; 30_000]).await.unwrap();
        assert_eq!(timeout(TIMEOUT, peer.finish()).await.unwrap(), Ok(()));
        answered.push(peer);
    }
    assert!((12..=15).contains(&answered.len()), "{}", answered.len());
}
