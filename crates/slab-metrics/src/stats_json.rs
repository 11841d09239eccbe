//! `/stats.json`: the same statistics as the page for Prometheus, for people and small scripts.

use crate::collector::Collector;
use crate::error::SourceKind;
use crate::json::Json;

/// Renders the statistics of everything registered as one JSON object:
///
/// ```json
/// {"version":"0.1.0","uptime_ms":1234,"pools":[..],"sockets":[..],"queues":[..],"endpoints":[..]}
/// ```
///
/// `uptime_ms` is the time of reading, by a monotonic clock: rates are differences over it.
pub(crate) fn render(collector: &Collector, uptime_ms: u64) -> String {
    let mut json = Json::default();
    json.object(|json| {
        json.text("version", env!("CARGO_PKG_VERSION"));
        json.number("uptime_ms", uptime_ms);
        for (key, kind) in [
            ("pools", SourceKind::Pool),
            ("sockets", SourceKind::Socket),
            ("queues", SourceKind::Queue),
            ("endpoints", SourceKind::RudpEndpoint),
        ] {
            json.key(key);
            json.array(|json| {
                for (name, registered) in collector.sources_of_kind(kind) {
                    json.object(|json| {
                        json.text("name", &name);
                        registered.source.write_json(json);
                    });
                }
            });
        }
    });
    json.text
}

#[cfg(test)]
mod tests {
    use super::*;
    use slab_core::{SizeClasses, SlabPool};

    #[test]
    fn a_pool_with_any_name_is_valid_json() {
        let name = "a\"b\\c\nd\u{1}é{[:,";
        let pool = SlabPool::builder()
            .name(name)
            .size_classes(SizeClasses::explicit(&[256, 1536]).unwrap())
            .max_memory(1 << 20)
            .build()
            .unwrap();
        let _held = pool.try_alloc(1500).unwrap();
        let collector = Collector::new();
        assert_eq!(
            render(&collector, 5),
            concat!(
                "{\"version\":\"",
                env!("CARGO_PKG_VERSION"),
                "\",\"uptime_ms\":5,\"pools\":[],\"sockets\":[],\"queues\":[],\"endpoints\":[]}"
            )
        );
        collector.register_pool(&pool).unwrap();
        let text = render(&collector, 5);
        let json: serde_json::Value = serde_json::from_str(&text).expect(&text);
        let read = &json["pools"][0];
        assert_eq!(read["name"], name);
        assert_eq!(read["capacity_bytes"], 1 << 20);
        assert_eq!(read["classes"][0]["in_use"], 0);
        let class = &read["classes"][1];
        assert_eq!(class["chunk_bytes"], 1536);
        assert_eq!(class["in_use"], 1);
        assert_eq!(class["allocs"], 1);
        let sum: u64 = ["in_use", "magazine", "depot", "free"]
            .iter()
            .map(|state| class[state].as_u64().unwrap())
            .sum();
        assert_eq!(sum, pool.stats().classes()[1].committed_chunks);
    }

    #[tokio::test]
    async fn a_pool_has_its_waits_of_all_classes_and_its_resident_memory() {
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[256, 65536]).unwrap())
            .max_memory(1 << 20)
            .build()
            .unwrap();
        let collector = Collector::new();
        collector.register_pool(&pool).unwrap();
        // More of one class than there are buckets.
        for len in [100; 20].into_iter().chain([60_000]) {
            let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
            let (waited, ()) = tokio::join!(pool.alloc(len), async { all.clear() });
            drop(waited.unwrap());
            pool.trim();
        }
        let mut held = pool.try_alloc(100).unwrap();
        held.fill_zero();
        let json: serde_json::Value = serde_json::from_str(&render(&collector, 5)).unwrap();
        let read = &json["pools"][0];
        assert_eq!(read["waits_ended"], 21);
        let waits = (0..2).map(|class| pool.wait_times(class).unwrap().sum().as_nanos());
        assert_eq!(read["waits_nanos"], waits.sum::<u128>() as u64);
        assert_eq!(
            read["resident_bytes"].as_u64(),
            pool.resident_bytes().map(|b| b as u64)
        );
    }

    /// What the live page and small scripts read, by kind of source.
    #[cfg(feature = "net")]
    #[tokio::test]
    async fn each_kind_of_source_has_its_fields() {
        use slab_net::PacketPool;
        use slab_net::pipeline::{Overflow, queue};
        use slab_net::rudp::{Endpoint, EndpointConfig, SessionConfig};
        use slab_net::udp::{Transmit, UdpReceiver, UdpSender};

        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let mut receiver = UdpReceiver::bind(any, &pool).unwrap();
        let (sender, consumer) = queue(4.try_into().unwrap(), Overflow::DropNewest);
        let config = EndpointConfig::new(SessionConfig::fast());
        let endpoint = Endpoint::bind(any, &pool, config).unwrap();
        let collector = Collector::new();
        collector.register_packet_pool(&pool).unwrap();
        collector.register_socket("s", receiver.monitor()).unwrap();
        collector.register_queue("q", consumer.monitor()).unwrap();
        collector
            .register_rudp_endpoint("e", endpoint.monitor())
            .unwrap();

        let client = UdpSender::bind(any).unwrap();
        let hello = Transmit::new(b"hello", receiver.local_addr());
        client.send(&hello).await.unwrap();
        sender
            .send(receiver.recv_batch().await.unwrap())
            .await
            .unwrap();

        let text = render(&collector, 5);
        let json: serde_json::Value = serde_json::from_str(&text).expect(&text);
        let assert_fields = |object: &serde_json::Value, expected: &str| {
            let fields = object.as_object().unwrap().keys().map(String::as_str);
            // Not every system can tell.
            let mut fields: Vec<_> = fields.filter(|&name| name != "resident_bytes").collect();
            fields.sort_unstable();
            assert_eq!(fields, expected.split_whitespace().collect::<Vec<_>>());
        };
        let (read_pool, read_queue) = (&json["pools"][0], &json["queues"][0]);
        let (socket, endpoint) = (&json["sockets"][0], &json["endpoints"][0]);
        assert_fields(
            &read_pool["classes"][0],
            "allocs chunk_bytes committed_bytes depot exhausted free frees frees_remote \
             in_use in_use_peak magazine waiters_refused waiting waits",
        );
        assert_fields(
            read_pool,
            "capacity_bytes classes commit_failures committed_bytes compact_refused \
             compacted heap_bytes heap_fallbacks heap_refused held_bytes held_packets \
             name oversize_bytes oversize_refused pinned_bytes thread_caches too_large \
             touched_bytes waits_ended waits_nanos",
        );
        assert_fields(
            socket,
            "dropped_bytes dropped_closed dropped_no_memory dropped_truncated \
             kernel_dropped name receive_calls received_bytes received_chunk_bytes \
             received_datagrams send_calls send_lost sent_bytes sent_datagrams",
        );
        assert_fields(
            read_queue,
            "batches bytes capacity_batches datagrams delivered dropped_bytes dropped_closed \
             dropped_policy dropped_queue_full enqueued name",
        );
        assert_fields(
            endpoint,
            "dropped_no_memory half_open memory_blocked_nanos name received_bytes \
             received_segments refused_limits refused_memory refused_unproved \
             rejected_datagrams reserve_limit_bytes reserved_bytes retransmits_fast \
             retransmits_tail retransmits_timeout round_trips round_trips_nanos \
             send_errors sent_bytes sent_segments sessions window_refused",
        );
        assert_eq!(socket["received_datagrams"], 1);
        assert_eq!(socket["received_bytes"], 5);
        assert_eq!(
            (&read_queue["datagrams"], &read_queue["bytes"]),
            (&1.into(), &5.into())
        );
        assert_eq!(
            (&read_queue["batches"], &read_queue["capacity_batches"]),
            (&1.into(), &4.into())
        );
        assert_eq!(endpoint["sessions"], 0);
        drop(consumer);
    }

    #[cfg(feature = "net")]
    #[tokio::test]
    async fn an_endpoint_has_its_round_trips_and_what_it_rejected() {
        use slab_net::PacketPool;
        use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};

        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let config = EndpointConfig::new(SessionConfig::fast());
        let server = Endpoint::bind(any, &pool, config.clone()).unwrap();
        let collector = Collector::new();
        collector
            .register_rudp_endpoint("e", server.monitor())
            .unwrap();
        let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
        client.send_slice(b"hello").await.unwrap();
        let accepted = server.accept().await.unwrap();
        for _ in 0..5 {
            accepted.send_slice(b"hello").await.unwrap();
            client.recv().await.unwrap().unwrap();
        }
        let stranger = tokio::net::UdpSocket::bind(any).await.unwrap();
        stranger.send_to(b"x", server.local_addr()).await.unwrap();
        loop {
            tokio::task::yield_now().await;
            let before = server.stats();
            let json: serde_json::Value = serde_json::from_str(&render(&collector, 5)).unwrap();
            let (trips, rejected) = (before.round_trips, before.total.rejected_datagrams());
            if trips.count() == 0 || rejected == 0 || before != server.stats() {
                continue;
            }
            let read = &json["endpoints"][0];
            assert_eq!(read["round_trips"], trips.count());
            assert_eq!(read["round_trips_nanos"], trips.sum().as_nanos() as u64);
            assert_eq!(read["rejected_datagrams"], rejected);
            return;
        }
    }
}
