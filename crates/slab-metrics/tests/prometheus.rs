//! A real Prometheus scrapes a server under load and answers every query of the README, the dashboard and
//! the rules. Needs Debian's package `prometheus`; `ci/prometheus` installs it and runs this:
//!
//!     cargo test -p slab-metrics --features fec --test prometheus -- --ignored

#![cfg(feature = "fec")]

use serde_json::Value;
use slab_core::SlabPool;
use slab_metrics::{Collector, Exporter, MetricsServer};
use slab_net::PacketPool;
use slab_net::pipeline::{Overflow, queue};
use slab_net::rudp::{Endpoint, EndpointConfig};
use slab_net::udp::{Transmit, UdpReceiver};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const README: &str = include_str!("../README.md");
const DASHBOARD: &str = include_str!("../dashboards/grafana.json");
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards/rules.yml");

/// A label that needs escaping: quotes, a backslash, a newline, braces, PromQL's special characters.
const HOSTILE: &str = "a\"b\\c\nd{e=\"f\"} 1 # é $x";

/// How long anything may take to arrive before the test gives up; no time is asserted.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A Prometheus with a directory of its own; dropping this ends the process and removes the directory.
struct Prometheus {
    process: Child,
    address: SocketAddr,
    directory: PathBuf,
}

impl Prometheus {
    fn start(target: SocketAddr) -> Self {
        let directory = std::env::temp_dir().join(format!("slab-metrics-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let config = directory.join("prometheus.yml");
        let yaml = format!(
            "global:\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n  \
             evaluation_interval: 500ms\nrule_files: [{RULES:?}]\nscrape_configs:\n  \
             - job_name: packet-slab\n    static_configs:\n      - targets: [\"{target}\"]\n"
        );
        std::fs::write(&config, yaml).unwrap();
        let log = std::fs::File::create(directory.join("log")).unwrap();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("data").display()
            ))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("Debian's package prometheus is not installed: see ci/prometheus");
        let mut this = Self {
            process,
            address: ([127, 0, 0, 1], 0).into(),
            directory,
        };
        let start = Instant::now();
        while !this.is_ready() {
            let ended = this.process.try_wait().unwrap().is_some();
            if ended || start.elapsed() > TIMEOUT {
                panic!("Prometheus did not start:\n{}", this.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        this
    }

    /// Returns whether it answers; finds out in its log which port it got.
    fn is_ready(&mut self) -> bool {
        let log = self.log();
        let listens = log
            .lines()
            .find(|line| line.contains("msg=\"Listening on\""));
        let address = listens.and_then(|line| line.split_once("address="));
        if let Some(address) = address.and_then(|(_, address)| address.trim().parse().ok()) {
            self.address = address;
        }
        self.address.port() != 0 && self.get("/-/ready").contains("Ready")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // HTTP/1.0, so that the answer is not chunked.
        write!(stream, "GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        body.to_owned()
    }

    /// Returns the `data` of an answer of the API; panics with the answer if it is an error.
    fn api(&self, path: &str) -> Value {
        let text = self.get(&format!("/api/v1/{path}"));
        let mut answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}"));
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].take()
    }

    fn query(&self, promql: &str) -> Vec<Value> {
        let mut path = String::from("query?query=");
        for byte in promql.bytes() {
            if byte.is_ascii_alphanumeric() {
                path.push(byte.into());
            } else {
                path.push_str(&format!("%{byte:02x}"));
            }
        }
        match self.api(&path)["result"].take() {
            Value::Array(samples) => samples,
            other => panic!("{promql}: {other}"),
        }
    }

    /// Returns the single value of an expression.
    fn value(&self, promql: &str) -> f64 {
        let samples = self.query(promql);
        assert_eq!(samples.len(), 1, "{promql}: {samples:?}");
        samples[0]["value"][1].as_str().unwrap().parse().unwrap()
    }

    /// Repeats a query until it has an answer.
    fn until<T>(&self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            if start.elapsed() > TIMEOUT {
                panic!(
                    "not within {TIMEOUT:?}: {what}\n{}\n{}",
                    self.api("targets"),
                    self.log()
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Name and type of every metric, from the README: `table.rs` keeps that equal to the page.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let rows = README.lines().filter(|line| line.starts_with("| `slab_"));
    let parts = rows.map(|line| {
        let mut cells = line.split('|').map(|cell| cell.trim().trim_matches('`'));
        (cells.nth(1).unwrap(), cells.next().unwrap())
    });
    parts.collect()
}

fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let filled = [
                ("$job", "packet-slab"),
                ("$instance", ".*"),
                ("$pool", ".*"),
                ("$__rate_interval", "10s"),
            ]
            .into_iter()
            .fold(query.to_owned(), |q, (from, to)| q.replace(from, to));
            assert!(!filled.contains('$'), "a variable is not filled: {filled}");
            queries.push(filled);
        }
    }
    queries
}

/// Returns the queries that answer the README's questions.
fn readme_queries() -> Vec<&'static str> {
    let (_, questions) = README.split_once("| question | PromQL |").unwrap();
    let rows = questions.lines().skip(2);
    let cells = rows.map_while(|row| row.strip_prefix("| ")?.split_once("? | "));
    cells
        .flat_map(|(_, queries)| queries.split('`').skip(1).step_by(2))
        .collect()
}

/// The totals sent, over all senders.
#[derive(Default)]
struct Sent {
    datagrams: AtomicU64,
    bytes: AtomicU64,
}

#[test]
#[ignore = "needs a Prometheus: ci/prometheus"]
fn a_real_prometheus_answers_every_documented_query() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let rx = PacketPool::builder().name("rx").build().unwrap();
    let hostile = SlabPool::builder().name(HOSTILE).build().unwrap();
    // At its cap, all the time.
    let full = SlabPool::builder()
        .name("full")
        .max_memory(1 << 20)
        .build()
        .unwrap();
    let _held: Vec<_> = std::iter::from_fn(|| full.try_alloc(2048).ok()).collect();
    // Pools until there are more size classes than the process has fast ones.
    let open = || SlabPool::builder().name("slow").build().unwrap();
    let mut many = vec![open()];
    while many.last().unwrap().stats().slow_classes == 0 {
        many.push(open());
    }

    let mut receiver = UdpReceiver::bind("127.0.0.1:0".parse().unwrap(), &rx).unwrap();
    let (to_consumer, batches) = queue(64.try_into().unwrap(), Overflow::DropNewest);
    let collector = Collector::new();
    collector.register_packet_pool(&rx).unwrap();
    collector.register_pool(&hostile).unwrap();
    collector.register_pool(&full).unwrap();
    collector.register_pool(many.last().unwrap()).unwrap();
    collector.register_socket("0", receiver.monitor()).unwrap();
    collector
        .register_queue("handoff", batches.monitor())
        .unwrap();
    let endpoint = Endpoint::bind(
        "127.0.0.1:0".parse().unwrap(),
        &rx,
        EndpointConfig::default(),
    )
    .unwrap();
    collector
        .register_rudp_endpoint("0", endpoint.monitor())
        .unwrap();
    let collector_of_waits = collector.clone();
    let server = MetricsServer::builder(Exporter::new(collector))
        .address(([127, 0, 0, 1], 0).into())
        .bind();
    let server = runtime.block_on(server).unwrap();
    let target = server.local_addr();
    runtime.spawn(server.serve(std::future::pending()));

    static STOP: AtomicBool = AtomicBool::new(false);
    let sent = std::sync::Arc::new(Sent::default());
    let load = runtime.spawn({
        let sent = std::sync::Arc::clone(&sent);
        let (sender, to) = (receiver.sender(), receiver.local_addr());
        let payload = [7; 10_000];
        async move {
            for round in 0.. {
                if STOP.load(Ordering::Relaxed) {
                    return;
                }
                // Some whole, some with a rest: 3 to 8 datagrams of up to 1200 bytes.
                let bytes = &payload[..3000 + round % 7 * 1000];
                let transmit = Transmit::new(bytes, to).segment_size(1200);
                sender.send(&transmit).await.unwrap();
                let datagrams = bytes.len().div_ceil(1200) as u64;
                sent.datagrams.fetch_add(datagrams, Ordering::Relaxed);
                sent.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                assert!(full.try_alloc(2048).is_err());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    // Somebody waits for memory now and then, and gets it.
    let scarce = SlabPool::builder()
        .name("scarce")
        .max_memory(1 << 20)
        .build()
        .unwrap();
    collector_of_waits.register_pool(&scarce).unwrap();
    runtime.spawn(async move {
        loop {
            let mut all: Vec<_> = std::iter::from_fn(|| scarce.try_alloc(65536).ok()).collect();
            let give_back = async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                all.pop();
            };
            let (waited, ()) = tokio::join!(scarce.alloc(65536), give_back);
            drop((waited.unwrap(), all));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    runtime.spawn(async move {
        while let Ok(batch) = receiver.recv_batch().await {
            to_consumer.send(batch).await.unwrap();
        }
    });
    runtime.spawn(async move {
        while let Some(batch) = batches.recv().await {
            drop(batch.into_packets());
        }
    });

    let prometheus = Prometheus::start(target);
    // Enough scrapes that there are rates.
    prometheus.until("8 scrapes", || {
        let scrapes = prometheus.query("count_over_time(up{job=\"packet-slab\"}[1m])");
        let count = scrapes.first()?["value"][1].as_str()?.parse::<u64>();
        (count.unwrap() >= 8).then_some(())
    });
    assert_eq!(prometheus.value("up"), 1.0);

    // Every metric of the README's table is there, with its type.
    let types = prometheus.api("metadata");
    let documented = documented();
    assert!(documented.len() > 30);
    for (name, kind) in documented {
        let series = match kind {
            "histogram" => ["_bucket", "_sum", "_count"].as_slice(),
            _ => &[""],
        };
        for suffix in series {
            let data = prometheus.query(&format!("{name}{suffix}"));
            assert!(!data.is_empty(), "{name}{suffix}: no data");
        }
        // In OpenMetrics, a counter's family has no suffix.
        let family = name.strip_suffix("_total").unwrap_or(name);
        let entry = match &types[name] {
            Value::Null => &types[family],
            entry => entry,
        };
        assert_eq!(entry[0]["type"], kind, "{name}: {types}");
        assert_ne!(entry[0]["help"], "", "{name}");
    }

    // Every query of the dashboard and of the README has data.
    let mut queries = dashboard_queries();
    assert!(queries.len() > 30);
    let questions = readme_queries();
    assert!(questions.len() > 7, "{questions:?}");
    queries.extend(questions.into_iter().map(str::to_owned));
    for query in queries {
        assert!(!prometheus.query(&query).is_empty(), "no data: {query}");
    }

    // Every rule was evaluated without an error and has data, or is an alert on metrics that have.
    let rules = prometheus.until("rules evaluated", || {
        let groups = prometheus.api("rules")["groups"].take();
        let rules: Vec<Value> = groups
            .as_array()?
            .iter()
            .flat_map(|group| group["rules"].as_array().unwrap().clone())
            .collect();
        let all = rules.iter().all(|rule| rule["health"] != "unknown");
        (all && !rules.is_empty()).then_some(rules)
    });
    let (mut records, mut alerts) = (0, 0);
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        let name = rule["name"].as_str().unwrap();
        match rule["type"].as_str().unwrap() {
            "recording" => {
                records += 1;
                assert!(!prometheus.query(name).is_empty(), "{name}: no data");
            }
            _ => alerts += 1,
        }
    }
    assert!(records > 5 && alerts > 10, "{records} {alerts}");

    // Alerts are pending for the pools at their cap, and only for these.
    let raised = prometheus.until("an alert", || {
        let alerts = prometheus.api("alerts")["alerts"].take();
        let alerts = alerts.as_array()?.clone();
        let named = |name: &str| {
            let mut labels = alerts.iter().map(|alert| &alert["labels"]);
            labels.any(|l| l["alertname"] == name && l["pool"] == "full")
        };
        (named("SlabPoolExhausted") && named("SlabPoolNearCap")).then_some(alerts)
    });
    for alert in raised {
        let pool = alert["labels"]["pool"].as_str().unwrap();
        assert!(matches!(pool, "full" | "scarce"), "{alert}");
        assert_ne!(alert["annotations"]["runbook"], Value::Null, "{alert}");
    }

    // Every wait took at least 2 ms.
    let waits = "slab_pool_wait_seconds_count{pool=\"scarce\"}";
    assert!(prometheus.value(waits) > 1.0);
    let short = "slab_pool_wait_seconds_bucket{pool=\"scarce\", le=\"0.001\"}";
    assert_eq!(prometheus.value(short), 0.0);

    let pools = prometheus.api("label/pool/values");
    assert!(
        pools.as_array().unwrap().contains(&HOSTILE.into()),
        "{pools}"
    );

    // When all is quiet, what arrived is what was sent, to the datagram and the byte.
    STOP.store(true, Ordering::Relaxed);
    runtime.block_on(load).unwrap();
    let (datagrams, bytes) = (
        sent.datagrams.load(Ordering::Relaxed) as f64,
        sent.bytes.load(Ordering::Relaxed) as f64,
    );
    assert!(datagrams > 100.0);
    prometheus.until("all that was sent", || {
        let delivered = prometheus.value("slab_net_queue_delivered_datagrams_total");
        (delivered >= datagrams).then_some(())
    });
    for (query, expected) in [
        ("slab_net_sent_datagrams_total", datagrams),
        ("slab_net_sent_bytes_total", bytes),
        ("slab_net_received_datagrams_total", datagrams),
        ("slab_net_received_bytes_total", bytes),
        ("slab_net_queue_enqueued_datagrams_total", datagrams),
        ("slab_net_queue_delivered_datagrams_total", datagrams),
        ("slab_net_queue_enqueued_bytes_total", bytes),
        ("slab_net_queue_delivered_bytes_total", bytes),
        ("slab_net_queue_datagrams", 0.0),
        ("slab_net_queue_bytes", 0.0),
        ("sum(slab_net_dropped_datagrams_total)", 0.0),
        ("sum(slab_net_queue_dropped_datagrams_total)", 0.0),
        ("sum(slab_net_dropped_bytes_total)", 0.0),
        ("sum(slab_net_queue_dropped_bytes_total)", 0.0),
    ] {
        assert_eq!(prometheus.value(query), expected, "{query}");
    }
}

/// The text format, which Prometheus does not request where OpenMetrics is offered.
#[test]
#[ignore = "needs promtool: ci/prometheus"]
fn promtool_accepts_the_page() {
    let pool = SlabPool::builder().name(HOSTILE).build().unwrap();
    let rx = PacketPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    collector.register_pool(&pool).unwrap();
    collector.register_packet_pool(&rx).unwrap();
    let page = Exporter::new(collector).scrape();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is not installed: see ci/prometheus");
    let mut input = promtool.stdin.take().unwrap();
    input.write_all(page.as_bytes()).unwrap();
    drop(input);
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8([output.stderr, output.stdout].concat()).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
}
