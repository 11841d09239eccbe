//! The README's tables equal what is exported: names, types, labels, help texts, label values.

#![cfg(feature = "net")]

mod common;

use common::{Page, Sample};
use slab_metrics::{Collector, Exporter, MetricsServer};
use slab_net::PacketPool;
use slab_net::pipeline::{Overflow, queue};
use slab_net::rudp::{Endpoint, EndpointConfig};
use slab_net::udp::UdpReceiver;
use std::collections::{BTreeMap, BTreeSet};

const README: &str = include_str!("../README.md");

/// Type, labels, help.
type Row = (String, BTreeSet<String>, String);

/// The rows of the README's table that has these headings, without backquotes.
fn table(headings: &str) -> Vec<Vec<String>> {
    let (_, after) = README.split_once(headings).expect(headings);
    after
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        // Exported only with the feature.
        .filter(|line| cfg!(feature = "fec") || !line.contains("slab_rudp_fec_"))
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|c| c.trim().replace('`', "")).collect()
        })
        .collect()
}

fn set(list: &str) -> BTreeSet<String> {
    list.split(", ")
        .filter(|item| !item.is_empty())
        .map(Into::into)
        .collect()
}

/// Returns a page with one source of each kind.
async fn page() -> Page {
    let pool = PacketPool::builder().name("rx").build().unwrap();
    let socket = UdpReceiver::bind("127.0.0.1:0".parse().unwrap(), &pool).unwrap();
    let (_to_consumers, batches) = queue(8.try_into().unwrap(), Overflow::DropNewest);
    let collector = Collector::new();
    collector.register_packet_pool(&pool).unwrap();
    collector.register_socket("0", socket.monitor()).unwrap();
    collector
        .register_queue("handoff", batches.monitor())
        .unwrap();
    let endpoint = Endpoint::bind(
        "127.0.0.1:0".parse().unwrap(),
        &pool,
        EndpointConfig::default(),
    )
    .unwrap();
    collector
        .register_rudp_endpoint("0", endpoint.monitor())
        .unwrap();
    let exporter = Exporter::new(collector);
    let _server = MetricsServer::builder(exporter.clone())
        .address(([127, 0, 0, 1], 0).into())
        .bind()
        .await
        .unwrap();
    Page::parse(&exporter.scrape())
}

#[tokio::test]
async fn the_readme_lists_every_metric_as_it_is_exported() {
    let exported: BTreeMap<String, Row> = page()
        .await
        .families
        .into_iter()
        .map(|(name, family)| {
            // A bucket's bound belongs to the type.
            let labels = |sample: &Sample| -> BTreeSet<String> {
                let all = sample.labels.keys().filter(|label| *label != "le");
                all.cloned().collect()
            };
            let first = labels(&family.samples[0]);
            for sample in &family.samples {
                assert_eq!(labels(sample), first, "{name}: labels differ");
            }
            let labels = first;
            (name, (family.kind, labels, family.help))
        })
        .collect();
    let rows = table("| name | type | labels | help | when it moves |");
    let mut documented = BTreeMap::new();
    for row in rows {
        let [name, kind, labels, help, _what_to_do] = row.try_into().unwrap();
        let twice = documented.insert(name.clone(), (kind, set(&labels), help));
        assert!(twice.is_none(), "{name} stands twice");
    }
    for (name, row) in &exported {
        assert_eq!(documented.get(name), Some(row), "{name}");
    }
    for name in documented.keys() {
        assert!(exported.contains_key(name), "{name} is not exported");
    }
}

#[tokio::test]
async fn the_readme_lists_every_value_of_a_bounded_label() {
    let free = [
        "pool",
        "version",
        "profile",
        "os",
        "arch",
        "size_class",
        "socket",
        "queue",
        "endpoint",
    ];
    let mut exported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, family) in page().await.families {
        for (label, value) in family.samples.into_iter().flat_map(|s| s.labels) {
            if free.contains(&label.as_str()) {
                continue;
            }
            // Each family has reasons of its own.
            let key = match label.as_str() {
                "reason" => format!("reason of {name}"),
                "le" => format!("le of {name}"),
                _ => label,
            };
            exported.entry(key).or_default().insert(value);
        }
    }
    let documented: BTreeMap<String, BTreeSet<String>> = table("| label | values |")
        .into_iter()
        .map(|row| (row[0].clone(), set(&row[1])))
        .collect();
    assert_eq!(documented, exported);
}
