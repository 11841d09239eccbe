//! What a scrape each second costs a UDP pipeline: seconds with one and seconds without in turn, and
//! of each how many datagrams a second of CPU brought through (of the threads that receive, consume
//! and serve the page; the scraper's own is not counted, for Prometheus runs elsewhere). The page is
//! one of 8 pools with 11 classes, asked for as Prometheus does: over HTTP, OpenMetrics, gzip.
//!
//!     cargo bench -p slab-metrics --bench pipeline -- [PAIRS, 20 unless told]

#![allow(clippy::print_stdout)]

use slab_core::{SizeClasses, SlabPool};
use slab_metrics::{Collector, Exporter, MetricsServer};
use slab_net::PacketPool;
use slab_net::pipeline::{Overflow, QueueMonitor, QueueReceiver, queue};
use slab_net::udp::{Transmit, UdpReceiver};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
    accept: application/openmetrics-text;version=1.0.0\r\naccept-encoding: gzip\r\n\r\n";

fn main() {
    let pairs = std::env::args().find_map(|argument| argument.parse().ok());
    let pairs: usize = pairs.unwrap_or(20);
    let (address, queue, threads) = start();
    // Until everything is warm.
    sleep(Duration::from_secs(1));
    let second = |scraped: bool| {
        let (cpu, delivered, start) = (
            cpu_seconds(&threads),
            queue.stats().delivered,
            Instant::now(),
        );
        sleep(Duration::from_millis(500));
        let bytes = if scraped { scrape(address) } else { 0 };
        sleep(Duration::from_secs(1).saturating_sub(start.elapsed()));
        let cpu = cpu_seconds(&threads) - cpu;
        let datagrams = (queue.stats().delivered - delivered) as f64;
        (
            datagrams / cpu,
            datagrams / start.elapsed().as_secs_f64(),
            bytes,
        )
    };
    let (mut by_cpu, mut by_clock, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let serving = || cpu_seconds(&threads[..1]);
    let served = serving();
    let mut bytes = 0;
    for pair in 0..pairs {
        // Each comes first in every other pair.
        let first = second(pair % 2 == 0);
        let other = second(pair % 2 != 0);
        let (with, without) = if pair % 2 == 0 {
            (first, other)
        } else {
            (other, first)
        };
        bytes = with.2;
        by_cpu.push(with.0 / without.0);
        by_clock.push(with.1 / without.1);
        rates.push(without.0);
    }
    let per_scrape = (serving() - served) * 1e6 / pairs as f64;
    println!("{pairs} pairs of seconds, a scrape of {bytes} bytes in one of each");
    println!(
        "{:.0} datagrams a second of CPU without",
        middle(&mut rates).1
    );
    println!("{per_scrape:.0} us of CPU a scrape, of the thread that serves it");
    for (what, mut ratios) in [("CPU", by_cpu), ("the clock", by_clock)] {
        let (low, median, high) = middle(&mut ratios);
        println!(
            "with / without by {what:<9} {median:.4} (half of the pairs {low:.4} .. {high:.4})"
        );
    }
}

/// A pipeline that runs as fast as its consumer and its own sender let it; where its page is, its
/// queue, and its threads, of which the first serves the page.
fn start() -> (SocketAddr, QueueMonitor, Vec<String>) {
    let sizes: Vec<usize> = (6..17).map(|log2| 1 << log2).collect();
    let classes = SizeClasses::explicit(&sizes).unwrap();
    let collector = Collector::new();
    for name in 0..7 {
        let pool = SlabPool::builder()
            .name(format!("pool{name}"))
            .size_classes(classes.clone())
            .build()
            .unwrap();
        collector.register_pool(&pool).unwrap();
    }
    let rx = PacketPool::builder()
        .name("rx")
        .size_classes(classes)
        .build()
        .unwrap();
    collector.register_packet_pool(&rx).unwrap();
    let (to_consumer, batches) = queue(64.try_into().unwrap(), Overflow::Wait);
    let monitor = to_consumer.monitor();
    collector.register_queue("rx", monitor.clone()).unwrap();

    let consume = spawn("consume", Box::new(move || on_this_thread(take(batches))));
    let (bound, address) = channel();
    let exporter = Exporter::new(collector.clone());
    let serve = spawn(
        "serve",
        Box::new(move || {
            on_this_thread(async move {
                let any = "127.0.0.1:0".parse().unwrap();
                let server = MetricsServer::builder(exporter)
                    .address(any)
                    .bind()
                    .await
                    .unwrap();
                bound.send(server.local_addr()).unwrap();
                server.serve(std::future::pending()).await;
            });
        }),
    );
    let receive = spawn(
        "receive",
        Box::new(move || {
            on_this_thread(async move {
                let mut receiver = UdpReceiver::bind("127.0.0.1:0".parse().unwrap(), &rx).unwrap();
                collector.register_socket("0", receiver.monitor()).unwrap();
                let (sender, to) = (receiver.sender(), receiver.local_addr());
                let payload = vec![7; 36_000];
                loop {
                    let thirty = Transmit::new(&payload, to).segment_size(1200);
                    sender.send(&thirty).await.unwrap();
                    let batch = receiver.recv_batch().await.unwrap();
                    to_consumer.send(batch).await.unwrap();
                }
            });
        }),
    );
    let threads = vec![serve, receive, consume];
    (address.recv().unwrap(), monitor, threads)
}

/// Starts a thread; returns the number that the system knows it by.
fn spawn(name: &str, work: Box<dyn FnOnce() + Send>) -> String {
    let (started, id) = channel();
    let work = move || {
        started.send(thread_id()).unwrap();
        work();
    };
    let builder = std::thread::Builder::new().name(name.into());
    builder.spawn(work).unwrap();
    id.recv().unwrap()
}

async fn take(batches: QueueReceiver) {
    while let Some(batch) = batches.recv().await {
        batch.into_packets().for_each(drop);
    }
}

fn on_this_thread(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work);
}

fn thread_id() -> String {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().to_owned()
}

/// What the threads have taken of the processor, as the scheduler counts it.
fn cpu_seconds(threads: &[String]) -> f64 {
    let of_thread = |id: &String| {
        let text = std::fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).unwrap();
        let nanos: u64 = text.split(' ').next().unwrap().parse().unwrap();
        nanos as f64 / 1e9
    };
    threads.iter().map(of_thread).sum()
}

/// Returns how many bytes came.
fn scrape(address: SocketAddr) -> usize {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(REQUEST).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    answer.len()
}

/// Lower quartile, median, upper quartile.
fn middle(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
    (at(1), at(2), at(3))
}
