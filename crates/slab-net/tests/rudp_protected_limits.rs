//! Endpoints with error correction and encryption at the limits of what they send and count.

#![cfg(all(feature = "fec", feature = "aes-gcm"))]

mod rudp_common;

use rudp_common::sockets::{TIMEOUT, accept, any, recv};
use slab_net::rudp::crypto::AesGcm;
use slab_net::rudp::fec::FecShards;
use slab_net::rudp::wire::HEADER_BYTES;
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, OpenError, SessionConfig};
use slab_net::{PacketPool, SizeClasses};
use tokio::time::timeout;

fn with_fec(config: EndpointConfig) -> EndpointConfig {
    config.fec(FecShards::new(2, 1).unwrap())
}

fn with_key(config: EndpointConfig) -> EndpointConfig {
    config.aes_gcm(AesGcm::new(b"sixteen secret b").unwrap())
}

/// No datagram is longer than UDP takes, what protection adds included.
#[tokio::test]
async fn the_longest_mtu_is_that_of_udp_with_any_protection() {
    let kinds: [(fn(EndpointConfig) -> EndpointConfig, usize); 4] = [
        (|config| config, 0),
        (with_fec, 8),
        (with_key, 28),
        (|config| with_key(with_fec(config)), 36),
    ];
    for (protect, overhead) in kinds {
        let classes = SizeClasses::explicit(&[64, 2048, 65_536, 131_072]).unwrap();
        let builder = PacketPool::builder().size_classes(classes);
        let pool = builder.max_memory(256 << 20).build().unwrap();
        let config = |mtu| protect(EndpointConfig::new(SessionConfig::fast().mtu(mtu)));
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
