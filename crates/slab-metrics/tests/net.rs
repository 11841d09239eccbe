//! slab-net's counters on the page.

#![cfg(feature = "net")]

mod common;

use common::Page;
use slab_metrics::{Collector, Exporter, RegisterError, SourceKind};
use slab_net::PacketPool;
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, Rejection, SessionConfig};
use std::time::Duration;

#[tokio::test]
async fn an_rudp_endpoint_is_exported_with_the_counts_of_its_sessions() {
    let pool = PacketPool::builder()
        .max_memory(32 << 20)
        .headroom(24)
        .build()
        .unwrap();
    let config = EndpointConfig::new(SessionConfig::fast());
    let any = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::bind(any, &pool, config.clone()).unwrap();
    let collector = Collector::new();
    collector
        .register_rudp_endpoint("a", server.monitor())
        .unwrap();
    let twice = collector.register_rudp_endpoint("a", server.monitor());
    let kind = SourceKind::RudpEndpoint;
    let name = "a".to_owned();
    assert_eq!(twice, Err(RegisterError::DuplicateName { kind, name }));
    let exporter = Exporter::new(collector);
    let page = || Page::parse(&exporter.scrape());
    let endpoint = [("endpoint", "a")];
    assert_eq!(page().value("slab_rudp_sessions", &endpoint), 0.0);

    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    let hello = pool.try_copy_from_slice(b"hello").unwrap();
    client.send(hello).await.unwrap();
    let accepted = server.accept().await.unwrap();
    assert_eq!(accepted.recv().await.unwrap().unwrap(), b"hello"[..]);
    // Rejected because it is shorter than a header.
    let stranger = tokio::net::UdpSocket::bind(any).await.unwrap();
    stranger.send_to(b"x", server.local_addr()).await.unwrap();
    while server.stats().unknown_session + server.stats().total.rejected_datagrams() == 0 {
        tokio::task::yield_now().await;
    }

    let stats = server.stats();
    let now = page();
    assert_eq!(now.value("slab_rudp_sessions", &endpoint), 1.0);
    assert_eq!(now.value("slab_rudp_opened_sessions_total", &endpoint), 1.0);
    let received = [endpoint[0], ("direction", "received")];
    assert!(now.value("slab_rudp_segments_total", &received) >= 1.0);
    assert!(now.value("slab_rudp_reserved_bytes", &endpoint) > 0.0);
    let rejected = now.sum("slab_rudp_rejected_datagrams_total", &endpoint);
    let unknown = now.value("slab_rudp_unknown_session_datagrams_total", &endpoint);
    let strange = stats.unknown_session + stats.total.rejected_datagrams();
    assert_eq!(rejected + unknown, strange as f64);
    for reason in Rejection::ALL {
        let labels = [endpoint[0], ("reason", reason.name())];
        let rejected = now.value("slab_rudp_rejected_datagrams_total", &labels);
        assert_eq!(rejected, stats.total.rejected_for(*reason) as f64);
    }

    assert!(exporter.collector().unregister(kind, "a"));
    assert!(!exporter.scrape().contains("slab_rudp_"));
}

/// The endpoint's port is free for another one, which may have the same name.
#[tokio::test]
async fn a_registered_endpoint_ends_with_its_last_handle_and_so_do_its_series() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let config = EndpointConfig::new(SessionConfig::fast());
    let any = "127.0.0.1:0".parse().unwrap();
    let endpoint = Endpoint::bind(any, &pool, config.clone()).unwrap();
    let address = endpoint.local_addr();
    let collector = Collector::new();
    collector
        .register_rudp_endpoint("a", endpoint.monitor())
        .unwrap();
    let exporter = Exporter::new(collector.clone());
    assert!(exporter.scrape().contains("endpoint=\"a\""));

    drop(endpoint);
    let another = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            if let Ok(endpoint) = Endpoint::bind(address, &pool, config.clone()) {
                return endpoint;
            }
            tokio::task::yield_now().await;
        }
    });
    let another = another.await.expect("the port is free");
    while exporter.scrape().contains("endpoint=\"a\"") {
        tokio::task::yield_now().await;
    }
    assert!(!collector.unregister(SourceKind::RudpEndpoint, "a"));
    collector
        .register_rudp_endpoint("a", another.monitor())
        .unwrap();
    assert!(exporter.scrape().contains("endpoint=\"a\""));
}

/// The server has memory for one session's window and little more to send from.
#[tokio::test]
async fn an_rudp_endpoints_round_trips_and_memory_stalls_are_exported() {
    let pool = PacketPool::builder()
        .max_memory(32 << 20)
        .headroom(24)
        .build()
        .unwrap();
    let config = EndpointConfig::new(SessionConfig::fast());
    let any = "127.0.0.1:0".parse().unwrap();
    let tight = config.clone().max_memory(32 * 1536 * 5 / 4 + (64 << 10));
    let server = Endpoint::bind(any, &pool, tight).unwrap();
    let collector = Collector::new();
    collector
        .register_rudp_endpoint("a", server.monitor())
        .unwrap();
    let exporter = Exporter::new(collector);
    let sent = [("endpoint", "a"), ("direction", "sent")];
    let first = Page::parse(&exporter.scrape());
    assert_eq!(
        first.value("slab_rudp_memory_blocked_seconds_total", &sent),
        0.0
    );

    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    client
        .send(pool.try_copy_from_slice(b"go").unwrap())
        .await
        .unwrap();
    let accepted = server.accept().await.unwrap();
    let message = [5; 1000];
    let sending = async {
        for _ in 0..500 {
            let message = pool.try_copy_from_slice(&message).unwrap();
            accepted.send(message).await.unwrap();
        }
    };
    let receiving = async {
        for _ in 0..500 {
            assert_eq!(client.recv().await.unwrap().unwrap(), message[..]);
        }
    };
    tokio::join!(sending, receiving);
    let now = Page::parse(&exporter.scrape());
    let value = |name: &str| now.sum(name, &[("endpoint", "a")]);
    let blocked = now.value("slab_rudp_memory_blocked_seconds_total", &sent);
    assert!(blocked > 0.0 && blocked < 3600.0, "{blocked}");
    assert!(value("slab_rudp_wakeups_total") > 0.0);
    // Once no late acknowledgement comes between two readings.
    let (trips, now) = loop {
        let before = server.stats();
        let now = Page::parse(&exporter.scrape());
        if server.stats() == before {
            break (before.round_trips, now);
        }
        tokio::task::yield_now().await;
    };
    let endpoint = ("endpoint", "a");
    let bounds = slab_metrics::RTT_SECONDS_BOUNDS.iter();
    let bounds = bounds.map(f64::to_string).chain(["+Inf".into()]);
    let mut below = 0;
    for (bound, count) in bounds.zip(trips.counts()) {
        below += count;
        let bucket = now.value("slab_rudp_rtt_seconds_bucket", &[endpoint, ("le", &bound)]);
        assert_eq!(bucket, below as f64, "{bound}");
    }
    assert!(below >= 1);
    let count = now.value("slab_rudp_rtt_seconds_count", &[endpoint]);
    assert_eq!(count, below as f64);
    let sum = now.value("slab_rudp_rtt_seconds_sum", &[endpoint]);
    assert_eq!(sum, trips.sum().as_nanos() as f64 / 1e9);
}

#[test]
fn a_packet_pool_has_the_name_of_its_slab_pool() {
    let pool = PacketPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    collector.register_packet_pool(&pool).unwrap();
    let (kind, name) = (SourceKind::Pool, "rx".to_owned());
    let twice = Err(RegisterError::DuplicateName { kind, name });
    assert_eq!(collector.register_pool(pool.slab()), twice);
    assert_eq!(collector.register_packet_pool(&pool), twice);
    assert!(collector.unregister(kind, "rx"));
    assert!(!Exporter::new(collector).scrape().contains("\"rx\""));
}

#[test]
fn held_packets_are_exported_with_the_memory_that_they_pin() {
    let pool = PacketPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    collector.register_packet_pool(&pool).unwrap();
    let exporter = Exporter::new(collector);
    let mut buf = pool.try_alloc(65_536).unwrap();
    buf.extend_from_slice(b"alone");
    let held = pool.hold(buf.freeze());
    let page = || Page::parse(&exporter.scrape());
    let value = |name: &str| page().value(name, &[("pool", "rx")]);
    assert_eq!(value("slab_net_held_packets"), 1.0);
    assert_eq!(value("slab_net_held_bytes"), 5.0);
    // Holding compacted it into a chunk of 64 bytes.
    assert_eq!(value("slab_pool_pinned_bytes"), 59.0);
    assert_eq!(value("slab_net_compacted_packets_total"), 1.0);
    drop(held);
    assert_eq!(value("slab_net_held_packets"), 0.0);
    assert_eq!(value("slab_pool_pinned_bytes"), 0.0);
}

#[test]
fn memory_that_held_packets_share_is_pinned_by_each() {
    let pool = PacketPool::builder().name("rx").compact_ratio(u32::MAX);
    let pool = pool.build().unwrap();
    let collector = Collector::new();
    collector.register_packet_pool(&pool).unwrap();
    let mut buf = pool.try_alloc(65_536).unwrap();
    buf.extend_from_slice(b"ten packets");
    let packet = buf.freeze();
    let held: Vec<_> = (0..10).map(|at| pool.hold(packet.slice(at..=at))).collect();
    let page = Page::parse(&Exporter::new(collector).scrape());
    let rx = ("pool", "rx");
    assert_eq!(page.sum("slab_pool_in_use_bytes", &[rx]), 65_536.0);
    let pinned = "slab_pool_pinned_bytes";
    assert_eq!(page.value(pinned, &[rx]), 10.0 * 65_535.0);
    assert!(page.families[pinned].help.contains("counts for each"));
    drop(held);
}

#[tokio::test]
async fn peers_who_all_need_a_cookie_are_not_refused_before_they_have_it() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let config = EndpointConfig::new(SessionConfig::fast());
    let bind = |config| Endpoint::bind("127.0.0.1:0".parse().unwrap(), &pool, config).unwrap();
    let server = bind(config.clone().require_cookie(true));
    let collector = Collector::new();
    collector
        .register_rudp_endpoint("rx", server.monitor())
        .unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    client.send_slice(b"hello").await.unwrap();
    server.accept().await.unwrap();

    let page = Page::parse(&Exporter::new(collector).scrape());
    let (endpoint, reason) = (("endpoint", "rx"), ("reason", "half_open"));
    let (cookies, refused) = (
        "slab_rudp_sent_cookies_total",
        "slab_rudp_refused_sessions_total",
    );
    assert!(page.value(cookies, &[endpoint]) >= 1.0);
    assert_eq!(page.value(refused, &[endpoint, reason]), 0.0);
    assert_eq!(
        page.value("slab_rudp_opened_sessions_total", &[endpoint]),
        1.0
    );
    assert!(page.families[cookies].help.contains("because all need one"));
    assert!(page.families[refused].help.contains("each datagram"));
}
