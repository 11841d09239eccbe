//! Endpoints with error correction and encryption at the limits of what they send and count.

use crate::common::pair::push;
use crate::common::sockets::{TIMEOUT, accept, any, pool, recv, wait_until};
use slab_net::rudp::crypto::{AesGcm, NONCE_BYTES, TAG_BYTES};
use slab_net::rudp::fec::{FEC_HEADER_BYTES, FecEncoder, FecShards};
use slab_net::rudp::wire::{HEADER_BYTES, Header};
use slab_net::rudp::{
    Connection, Endpoint, EndpointConfig, MemoryBudget, OpenError, SessionConfig, Time,
};
use slab_net::{PacketPool, SizeClasses};
use tokio::net::UdpSocket;
use tokio::time::timeout;

const KEY: &[u8] = b"sixteen secret b";

fn config(session: SessionConfig, fec: bool, encrypt: bool) -> EndpointConfig {
    let mut config = EndpointConfig::new(session);
    if fec {
        config = config.fec(FecShards::new(2, 1).unwrap());
    }
    if encrypt {
        config = config.aes_gcm(AesGcm::new(KEY).unwrap());
    }
    config
}

/// No datagram is longer than UDP takes, what protection adds included.
#[tokio::test]
async fn the_longest_mtu_is_that_of_udp_with_any_protection() {
    for (fec, encrypt, overhead) in [
        (false, false, 0),
        (true, false, 8),
        (false, true, 28),
        (true, true, 36),
    ] {
        let classes = SizeClasses::explicit(&[64, 2048, 65_536, 131_072]).unwrap();
        let builder = PacketPool::builder().size_classes(classes);
        let pool = builder.max_memory(256 << 20).build().unwrap();
        let config = |mtu| config(SessionConfig::fast().mtu(mtu), fec, encrypt);
        for mtu in [63 + overhead, 65_508] {
            let refused = Endpoint::bind(any(), &pool, config(mtu)).unwrap_err();
            assert!(matches!(refused, OpenError::Config(_)), "{mtu}: {refused}");
        }
        for mtu in [64 + overhead, 65_507] {
            let server = Endpoint::bind(any(), &pool, config(mtu)).unwrap();
            let client = Connection::connect(server.local_addr(), &pool, config(mtu)).unwrap();
            for len in [1, 0].map(|less| mtu - overhead - HEADER_BYTES - less) {
                let sent = timeout(TIMEOUT, client.send_slice(&vec![7; len])).await;
                sent.unwrap().unwrap();
            }
            let accepted = accept(&server).await;
            for len in [1, 0].map(|less| mtu - overhead - HEADER_BYTES - less) {
                assert_eq!(recv(&accepted).await.len(), len);
            }
        }
    }
}

/// The shard that opens a session is the first of its group.
#[tokio::test]
async fn what_follows_the_first_datagram_of_a_session_is_recovered() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, config(SessionConfig::fast(), true, false)).unwrap();
    let client = UdpSocket::bind(any()).await.unwrap();
    let budget = MemoryBudget::new(1 << 20);
    let mut encoder = FecEncoder::new(FecShards::new(2, 1).unwrap(), 1400, &pool, &budget);
    let mut protect = |sn| {
        let mut shard = [0; FEC_HEADER_BYTES + HEADER_BYTES + 1];
        let header = Header {
            sn,
            una: 0,
            ..push(&[0])
        };
        header.encode(&mut shard[FEC_HEADER_BYTES..]);
        encoder.protect(Time::ZERO, &mut shard);
        shard
    };
    let (first, _lost) = (protect(0), protect(1));
    let mut parity = [0; 1400];
    let len = encoder.next_parity(&mut parity).unwrap();
    for shard in [&first[..], &parity[..len]] {
        client.send_to(shard, server.local_addr()).await.unwrap();
        wait_until(&server, "opened", |server| server.stats().opened == 1).await;
    }
    let accepted = accept(&server).await;
    assert_eq!([recv(&accepted).await, recv(&accepted).await], [[0], [0]]);
    let stats = server.stats();
    assert_eq!((stats.fec.recovered, stats.fec.rejected), (1, 0));
    assert_eq!(stats.total.duplicates, 0);
}

/// Also parity, which names no session, and what is empty.
#[tokio::test]
async fn each_datagram_of_a_stranger_is_counted_once() {
    let pool = pool();
    let stranger = UdpSocket::bind(any()).await.unwrap();
    let shard = |kind: u8, len: usize| {
        let mut shard = vec![0; len];
        shard[4] = kind;
        shard
    };
    let strays = [
        vec![],
        vec![7; 10],
        vec![7; 100],
        shard(0xf1, 20),
        shard(0xf1, 100),
        shard(0xf2, 20),
        shard(0xf2, 100),
    ];
    let key = AesGcm::new(KEY).unwrap();
    for (fec, encrypt) in [(true, false), (false, true), (true, true)] {
        let config = config(SessionConfig::fast(), fec, encrypt);
        let server = Endpoint::bind(any(), &pool, config).unwrap();
        let mut sent = 0;
        for stray in &strays {
            let mut sealed = [&[0; NONCE_BYTES], &stray[..], &[0; TAG_BYTES]].concat();
            key.seal(&mut sealed);
            for datagram in [stray, &sealed] {
                stranger
                    .send_to(datagram, server.local_addr())
                    .await
                    .unwrap();
                sent += 1;
                wait_until(&server, "it is counted", |server| {
                    let stats = server.stats();
                    let total = stats.total;
                    stats.unknown_session + stats.unopened + total.rejected_datagrams() == sent
                })
                .await;
            }
        }
        let unopened = if encrypt { strays.len() as u64 } else { 0 };
        assert_eq!(server.stats().unopened, unopened);
    }
}
