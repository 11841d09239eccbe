//! A process out of file descriptors: the server counts that it cannot accept, says so once, and goes on. Alone in
//! its file, since the limit is the whole process's.

#![cfg(unix)]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use slab_metrics::{Collector, Exporter, MetricsServer};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Counts warnings, and what is said at level `info`.
#[derive(Clone, Default)]
struct Said {
    warnings: Arc<AtomicU32>,
    infos: Arc<AtomicU32>,
}

impl Said {
    fn counts(&self) -> (u32, u32) {
        let [warnings, infos] = [&self.warnings, &self.infos].map(|n| n.load(Ordering::Relaxed));
        (warnings, infos)
    }
}

impl Subscriber for Said {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && [Level::WARN, Level::INFO].contains(metadata.level())
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let count = match *event.metadata().level() {
            Level::WARN => &self.warnings,
            _ => &self.infos,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A page over a connection that stays open.
async fn page(client: &mut TcpStream) -> String {
    let request = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write_all(request).await.unwrap();
    let mut answer = String::new();
    // The server's own series come last.
    while !answer.contains("slab_metrics_requests_total{status=\"405\"}") {
        let mut part = [0; 4096];
        let read = client.read(&mut part).await.unwrap();
        assert_ne!(read, 0, "{answer}");
        answer += std::str::from_utf8(&part[..read]).unwrap();
    }
    answer
}

fn accept_errors(page: &str) -> u32 {
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix("slab_metrics_accept_errors_total "));
    value.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_lack_of_file_descriptors_is_counted_and_said_once() {
    let said = Said::default();
    let _subscriber = tracing::subscriber::set_default(said.clone());
    let server = MetricsServer::builder(Exporter::new(Collector::new()))
        .address(([127, 0, 0, 1], 0).into())
        .bind()
        .await
        .unwrap();
    let address = server.local_addr();
    tokio::spawn(server.serve(std::future::pending()));
    let mut first = TcpStream::connect(address).await.unwrap();
    assert_eq!(accept_errors(&page(&mut first).await), 0);

    let most = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, most).unwrap();
    let mut clients = Vec::new();
    // Once it has recovered, the next lack is said as well.
    for round in 1..=2 {
        let before = accept_errors(&page(&mut first).await);
        let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        // The only one that is left is the client's end.
        drop(files.pop());
        let mut client = TcpStream::connect(address).await.unwrap();
        while accept_errors(&page(&mut first).await) < before + 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(said.counts(), (round, round - 1));
        drop(files);
        let page = page(&mut client).await;
        assert!(page.contains(&format!("slab_metrics_connections {}\n", 1 + round)));
        assert!(accept_errors(&page) >= before + 3);
        assert_eq!(said.counts(), (round, round));
        clients.push(client);
    }
}
