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

/// Counts warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicU32>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.is_event()
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
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
    let warnings = Warnings::default();
    let _subscriber = tracing::subscriber::set_default(warnings.clone());
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
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // The only one that is left is the client's end.
    drop(files.pop());
    let mut second = TcpStream::connect(address).await.unwrap();
    while accept_errors(&page(&mut first).await) < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(files);
    let page = page(&mut second).await;
    assert!(page.contains("slab_metrics_connections 2\n"));
    assert!(accept_errors(&page) >= 3);
    assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
}
