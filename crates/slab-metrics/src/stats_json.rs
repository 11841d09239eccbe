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
}
