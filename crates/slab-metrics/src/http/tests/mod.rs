//! The server against clients that write raw bytes. No test asserts how long something took; a server
//! that waits for ever makes a test hang.

mod limits;

use super::stats::{End, ServerStats};
use super::{MetricsServer, MetricsServerBuilder};
use crate::{Collector, Exporter, SourceKind};
use slab_core::{SizeClasses, SlabPool};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server in a task, on a port of its own.
struct Running {
    address: SocketAddr,
    stats: Arc<ServerStats>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(configure: impl FnOnce(&mut MetricsServerBuilder)) -> Self {
        Self::start_with(Exporter::new(Collector::new()), configure).await
    }

    async fn start_with(
        exporter: Exporter,
        configure: impl FnOnce(&mut MetricsServerBuilder),
    ) -> Self {
        let mut builder = MetricsServer::builder(exporter).address(([127, 0, 0, 1], 0).into());
        configure(&mut builder);
        let server = builder.bind().await.unwrap();
        let address = server.local_addr();
        let stats = Arc::clone(&server.stats);
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.serve(async { drop(stopped.await) }));
        Self {
            address,
            stats,
            stop,
            task,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends raw bytes and reads until the server closes.
    async fn exchange(&self, request: &[u8]) -> String {
        let mut client = self.connect().await;
        client.write_all(request).await.unwrap();
        read_to_end(&mut client).await
    }

    async fn get(&self, path: &str) -> String {
        self.exchange(request("GET", path).as_bytes()).await
    }

    /// As [`get`](Self::get), with a line of the request's head, such as `accept: text/plain\r\n`. Returns the answer's
    /// head and its body.
    async fn get_with(&self, path: &str, line: &str) -> (String, Vec<u8>) {
        let mut client = self.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{line}\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let body = answer.split_off(end);
        (String::from_utf8(answer).unwrap(), body)
    }

    async fn until_ended(&self, end: End, count: u64) {
        while self.stats.count(end) < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(self.stats.count(end), count, "{end:?}");
    }

    async fn until_open(&self, count: u64) {
        while self.stats.open() != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
        assert_eq!(self.stats.open(), 0);
    }
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
}

/// Returns what arrived, even if the connection was reset afterwards.
async fn read_to_end(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    if let Err(error) = client.read_to_end(&mut answer).await {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    String::from_utf8(answer).unwrap()
}

/// Reads one answer on a connection that stays open.
async fn read_answer(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    loop {
        let mut byte = [0];
        assert_eq!(client.read(&mut byte).await.unwrap(), 1, "closed too early");
        answer.push(byte[0]);
        if answer.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let head = String::from_utf8(answer).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .unwrap()
        .parse()
        .unwrap();
    let mut body = vec![0; length];
    client.read_exact(&mut body).await.unwrap();
    head + core::str::from_utf8(&body).unwrap()
}

/// A collector with answers larger than the kernel's buffers.
fn large() -> Collector {
    let collector = Collector::new();
    let sizes: Vec<usize> = (1..=slab_core::MAX_CLASSES).map(|n| n * 64).collect();
    for name in 0..150 {
        let pool = SlabPool::builder()
            .name(name.to_string())
            .max_memory(4 << 20)
            .size_classes(SizeClasses::explicit(&sizes).unwrap())
            .build()
            .unwrap();
        collector.register_pool(&pool).unwrap();
    }
    collector
}

#[tokio::test]
async fn a_scrape_is_current_and_in_prometheus_text_format() {
    let pool = SlabPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    collector.register_pool(&pool).unwrap();
    let server = Running::start_with(Exporter::new(collector), |_| ()).await;
    let chunk = pool.try_alloc(1500).unwrap();

    let answer = server.get("/metrics").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{head}"
    );
    let size_class = chunk.capacity();
    let in_use =
        format!("slab_pool_chunks{{pool=\"rx\",size_class=\"{size_class}\",state=\"in_use\"}} 1\n");
    assert!(body.contains(&in_use), "{body}");
    drop(chunk);
    // Current at the scrape, not at an earlier one.
    let answer = server.get("/metrics?x=1").await;
    assert!(answer.contains(&in_use.replace("} 1\n", "} 0\n")));
    // The first scrape was counted by the second.
    assert!(answer.contains("slab_metrics_requests_total{status=\"200\"} 1\n"));
    server.stop().await;
}

#[tokio::test]
async fn a_client_gets_the_format_that_it_asks_for() {
    let pool = SlabPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    collector.register_pool(&pool).unwrap();
    let server = Running::start_with(Exporter::new(collector), |_| ()).await;
    let ask = async |line: &str| server.get_with("/metrics", line).await;
    let (head, body) = ask("accept: application/openmetrics-text;version=1.0.0\r\n").await;
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(head.contains("vary: accept, accept-encoding\r\n"));
    assert!(body.ends_with(b"\n# EOF\n"));
    assert!(!head.contains("content-encoding"));

    let (head, plain) = ask("accept: text/plain\r\n").await;
    assert!(head.contains("content-type: text/plain; version=0.0.4"));
    let (head, packed) = ask("accept-encoding: deflate, gzip\r\n").await;
    assert!(head.contains("content-encoding: gzip\r\n"));
    assert!(head.contains("content-type: text/plain; version=0.0.4"));
    assert!(packed.len() * 5 < plain.len(), "{}", packed.len());
    let mut unpacked = String::new();
    io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&*packed), &mut unpacked).unwrap();
    assert!(unpacked.contains("slab_metrics_requests_total{status=\"200\"} 2\n"));
    let samples = |page: &str| page.lines().count();
    assert_eq!(
        samples(&unpacked),
        samples(core::str::from_utf8(&plain).unwrap())
    );
    server.stop().await;
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let server = Running::start(|_| ()).await;
    let healthy = server.get("/healthz").await;
    assert!(healthy.starts_with("HTTP/1.1 200 ") && healthy.ends_with("\r\n\r\nok\n"));
    for path in [
        "/x",
        "//",
        "/metrics/",
        "/metrics/../etc/passwd",
        "/METRICS",
        "*",
    ] {
        let answer = server.get(path).await;
        let refused = answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.1 400 ");
        assert!(refused, "{path}: {answer}");
    }
    let page = server.get("/").await;
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("content-type: text/html"));
    assert!(page.contains("content-security-policy: default-src 'none'"));
    assert!(page.contains("cache-control: no-store\r\n"));
    assert!(page.contains("x-content-type-options: nosniff\r\n"));
    let json = server.get("/stats.json").await;
    assert!(json.contains("content-type: application/json"));
    let (_, body) = json.split_once("\r\n\r\n").unwrap();
    serde_json::from_str::<serde_json::Value>(body).unwrap();
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let answer = server
            .exchange(request(method, "/metrics").as_bytes())
            .await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method}: {answer}");
        assert!(answer.contains("allow: GET, HEAD\r\n"));
    }
    let body = "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\nabc";
    let mut client = server.connect().await;
    client.write_all(body.as_bytes()).await.unwrap();
    assert!(read_answer(&mut client).await.starts_with("HTTP/1.1 405 "));
    drop(client);
    let head = server
        .exchange(request("HEAD", "/healthz").as_bytes())
        .await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"));
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_is_not_http_gets_400_and_is_counted() {
    let server = Running::start(|_| ()).await;
    let garbage: [&[u8]; 4] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
    ];
    for (count, bytes) in (1..).zip(garbage) {
        let answer = server.exchange(bytes).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{bytes:?}: {answer}");
        server.until_ended(End::Malformed, count).await;
    }
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    server.stop().await;
}

#[tokio::test]
async fn a_header_too_large_or_with_too_many_fields_gets_431() {
    let server = Running::start(|_| ()).await;
    let long = format!(
        "GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n",
        "a".repeat(100_000)
    );
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(200));
    let path = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    for (count, bytes) in (1..).zip([long, many, path]) {
        let mut client = server.connect().await;
        // The server may close before all is sent.
        let _ = client.write_all(bytes.as_bytes()).await;
        let answer = read_to_end(&mut client).await;
        // A reset may overtake the answer; the refusal is counted in both cases.
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
            "{answer}"
        );
        server.until_ended(End::Malformed, count).await;
    }
    let just_fits = format!(
        "GET /healthz HTTP/1.1\r\nconnection: close\r\nx: {}\r\n\r\n",
        "a".repeat(4000)
    );
    let answer = server.exchange(just_fits.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn one_connection_too_many_is_refused_and_counted() {
    let server = Running::start(|builder| *builder = builder.clone().max_connections(3)).await;
    let mut held = Vec::new();
    for count in 1..=3 {
        held.push(server.connect().await);
        server.until_open(count).await;
    }
    for count in 1..=5 {
        let answer = server.get("/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        server.until_ended(End::Limit, count).await;
    }
    // Open connections are served, and a freed place can be taken.
    let mut one = held.pop().unwrap();
    one.write_all(request("GET", "/metrics").as_bytes())
        .await
        .unwrap();
    let answer = read_to_end(&mut one).await;
    assert!(answer.contains("slab_metrics_ended_connections_total{reason=\"limit\"} 5\n"));
    assert!(answer.contains("slab_metrics_connections 3\n"));
    server.until_open(2).await;
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_finish_its_header_is_disconnected() {
    let soon = Duration::from_millis(50);
    let server = Running::start(|builder| builder.limits.header_read_timeout = soon).await;
    // Clients that send nothing, a part of a header, or a whole request and then nothing.
    let mut silent = server.connect().await;
    let mut partial = server.connect().await;
    partial.write_all(b"GET /metrics HT").await.unwrap();
    let mut idle = server.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(read_answer(&mut idle).await.ends_with("ok\n"));
    for client in [&mut silent, &mut partial, &mut idle] {
        let rest = read_to_end(client).await;
        assert!(!rest.starts_with("HTTP/1.1 200 "), "{rest}");
    }
    server.until_open(0).await;
    // Prometheus keeps its connection, and comes back only after 15 s: nothing is wrong with that.
    assert_eq!(server.stats.count(End::Timeout), 2);
    assert_eq!(server.stats.count(End::Closed), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected() {
    // Answers of about 300 KB, so that a few fill the kernel's buffers.
    let collector = Collector::new();
    let sizes: Vec<usize> = (1..=slab_core::MAX_CLASSES).map(|n| n * 64).collect();
    for name in 0..10 {
        let pool = SlabPool::builder()
            .name(name.to_string())
            .size_classes(SizeClasses::explicit(&sizes).unwrap())
            .build()
            .unwrap();
        collector.register_pool(&pool).unwrap();
    }
    let server = Running::start_with(Exporter::new(collector), |builder| {
        builder.limits.connection_lifetime = Duration::from_secs(2);
        builder.limits.final_response_timeout = Duration::from_millis(100);
        // Too long to matter here.
        builder.limits.header_read_timeout = Duration::from_secs(3600);
    })
    .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(server.address).await.unwrap();
    let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
    client.write_all(requests.as_bytes()).await.unwrap();
    server.until_ended(End::Lifetime, 1).await;
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_gets_the_whole_answer() {
    // Sent in several parts.
    let exporter = Exporter::new(large());
    for path in ["/metrics", "/healthz"] {
        let server = MetricsServer::builder(exporter.clone())
            .address(([127, 0, 0, 1], 0).into())
            .bind()
            .await
            .unwrap();
        let stats = Arc::clone(&server.stats);
        // Everything that the client sends is there before the server reads.
        let mut client = TcpStream::connect(server.local_addr()).await.unwrap();
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.serve(async { drop(stopped.await) }));
        let answer = read_to_end(&mut client).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let length = format!("content-length: {}", body.len());
        assert!(
            head.starts_with("HTTP/1.0 200 ") && head.contains(&length),
            "{head}"
        );
        drop(stop);
        task.await.unwrap();
        assert_eq!(stats.count(End::Closed), 1, "{path}");
    }
    // Nor does a silent client keep its place.
    let server = Running::start(|_| ()).await;
    let mut silent = server.connect().await;
    silent.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut silent).await, "");
    server.until_open(0).await;
    server.stop().await;
}

#[tokio::test]
async fn requests_share_a_connection_until_the_client_is_done() {
    let server = Running::start(|_| ()).await;
    let mut client = server.connect().await;
    for _ in 0..3 {
        client
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let answer = read_answer(&mut client).await;
        assert!(answer.contains("slab_metrics_connections 1\n"));
    }
    drop(client);
    server.until_ended(End::Closed, 1).await;
    server.stop().await;
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_the_port() {
    let server = Running::start(|_| ()).await;
    let mut idle = server.connect().await;
    server.until_open(1).await;
    let address = server.address;
    server.stop().await;
    assert_eq!(read_to_end(&mut idle).await, "");
    let again = TcpStream::connect(address).await;
    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn dropping_the_serve_future_ends_all_connections() {
    let server = Running::start(|_| ()).await;
    let mut client = server.connect().await;
    server.until_open(1).await;
    server.task.abort();
    assert!(server.task.await.unwrap_err().is_cancelled());
    assert_eq!(read_to_end(&mut client).await, "");
    while server.stats.open() != 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.stats.count(End::Closed), 1);
}

#[tokio::test]
async fn a_failed_bind_registers_nothing() {
    let first = Running::start(|_| ()).await;
    let exporter = Exporter::new(Collector::new());
    let bind = |address| {
        MetricsServer::builder(exporter.clone())
            .address(address)
            .bind()
    };
    let error = bind(first.address).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    let named = format!("cannot serve metrics at {}: ", first.address);
    assert!(error.to_string().starts_with(&named), "{error}");
    assert!(!exporter.scrape().contains("slab_metrics_"));

    let server = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let collector = exporter.collector();
    assert!(!collector.unregister(SourceKind::Server, ""), "it serves");
    assert!(exporter.scrape().contains("slab_metrics_connections 0\n"));
    let error = bind(([127, 0, 0, 1], 0).into()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(error.to_string(), "the collector has a server already");
    drop(server);
    assert!(!exporter.scrape().contains("slab_metrics_"));
    first.stop().await;
}

#[cfg(feature = "net")]
#[tokio::test]
async fn binding_with_a_full_collector_fails_with_quota_exceeded() {
    let collector = Collector::new();
    let (_to_consumer, batches) = slab_net::pipeline::queue(
        8.try_into().unwrap(),
        slab_net::pipeline::Overflow::DropNewest,
    );
    for number in 0..crate::MAX_SOURCES {
        let (name, monitor) = (number.to_string(), batches.monitor());
        collector.register_queue(name, monitor).unwrap();
    }
    let server = MetricsServer::builder(Exporter::new(collector))
        .address(([127, 0, 0, 1], 0).into())
        .bind();
    let error = server.await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
}

#[test]
fn the_page_requests_nothing_from_other_hosts() {
    let page = include_str!("../../../page/index.html");
    for outside in ["http:", "https:", "src=", "@import", "url("] {
        // The only link keeps browsers from requesting an icon.
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn the_default_address_is_loopback() {
    assert!(super::DEFAULT_ADDRESS.ip().is_loopback());
    let builder = MetricsServer::builder(Exporter::new(Collector::new()));
    assert!(format!("{builder:?}").contains("127.0.0.1:9465"));
}
