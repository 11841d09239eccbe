//! An endpoint whose runtime was kept from running, as by a call that blocks its thread.

use crate::common::pair::{datagram, push};
use crate::common::sockets::{accept, any, pool, recv};
use slab_net::rudp::wire::Header;
use slab_net::rudp::{CloseReason, Endpoint, EndpointConfig, SessionConfig};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// The system has received it, though not the endpoint. More of it than is read at once.
#[tokio::test]
async fn after_a_stall_only_who_was_silent_is_given_up_for_silence() {
    const PEERS: usize = 60;
    let pool = pool();
    let timeout = Duration::from_secs(10);
    let session = SessionConfig::fast().unproved_timeout(timeout);
    let server = Endpoint::bind(any(), &pool, EndpointConfig::new(session)).unwrap();
    let peers: Vec<_> = (0..PEERS)
        .map(|_| UdpSocket::bind(any()).unwrap())
        .collect();
    let send = |peer: &UdpSocket, sn| {
        let header = Header {
            sn,
            una: 0,
            ..push(&[0])
        };
        let datagram = datagram(header, &[0]);
        peer.send_to(&datagram, server.local_addr()).unwrap();
    };
    let mut sessions = Vec::new();
    for peer in &peers {
        send(peer, 0);
        let session = accept(&server).await;
        assert_eq!(recv(&session).await, [0]);
        sessions.push(session);
    }
    tokio::time::pause();
    for peer in peers.iter().skip(1).step_by(2) {
        send(peer, 1);
    }
    tokio::time::advance(timeout).await;
    let ended = || sessions.iter().map(|session| session.ended());
    let begun = Instant::now();
    while ended().step_by(2).any(|ended| ended.is_none()) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        // Not idle: with its clock paused, the runtime would go on to the next timer.
        tokio::task::yield_now().await;
    }
    for (at, ended) in ended().enumerate() {
        let expected = (at % 2 == 0).then_some(CloseReason::TimedOut);
        assert_eq!(ended, expected, "{at}");
    }
}
