//! A UDP pipeline that runs as fast as it can, in alternating seconds with and without a scrape. Its page
//! has 8 pools with 11 classes and is requested as Prometheus does: over HTTP, in OpenMetrics, with gzip.
//! The cost of a packet is the CPU time of the threads that receive, consume and serve the page; the
//! scraper's does not count, because Prometheus runs elsewhere.

use super::Size;
use slab_core::SizeClasses;
use slab_metrics::{Collector, Exporter, MetricsServer};
use slab_net::PacketPool;
use slab_net::pipeline::{Overflow, QueueMonitor, QueueReceiver, queue};
use slab_net::udp::{Transmit, UdpReceiver};
use std::error::Error;
use std::io::{Read, Write};
use std::iter::successors;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
    accept: application/openmetrics-text;version=1.0.0\r\naccept-encoding: gzip\r\n\r\n";
/// The time until everything is warm.
const WARM_UP: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);
const ANY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

/// Nanoseconds of CPU per packet: with a scrape each second, and without.
pub(super) fn watched(size: &Size) -> Result<Vec<(f64, f64)>, String> {
    let pipeline = Pipeline::start().map_err(with_causes)?;
    sleep(WARM_UP);
    let rounds = (0..size.pairs).map(|pair| {
        // Each kind comes first in every other pair.
        let scraped_first = pair % 2 == 0;
        let first = pipeline.measure_second(scraped_first)?;
        let other = pipeline.measure_second(!scraped_first)?;
        Ok(if scraped_first {
            (first, other)
        } else {
            (other, first)
        })
    });
    let rounds: Result<_, Box<dyn Error>> = rounds.collect();
    pipeline.stop();
    rounds.map_err(with_causes)
}

fn with_causes(error: Box<dyn Error>) -> String {
    let chain = successors(Some(&*error), |&error| error.source());
    let texts: Vec<_> = chain.map(ToString::to_string).collect();
    texts.join(": ")
}

struct Pipeline {
    page: SocketAddr,
    queue: QueueMonitor,
    threads: Vec<Worker>,
    stop: watch::Sender<bool>,
}

struct Worker {
    /// The id by which the system knows the thread.
    id: String,
    thread: JoinHandle<()>,
}

impl Pipeline {
    fn start() -> Result<Self, Box<dyn Error>> {
        let sizes: Vec<usize> = (6..=16).map(|log2| 1 << log2).collect();
        let classes = SizeClasses::explicit(&sizes)?;
        let collector = Collector::new();
        for number in 0..7 {
            let pool = PacketPool::builder()
                .name(format!("pool{number}"))
                .size_classes(classes.clone())
                .build()?;
            collector.register_packet_pool(&pool)?;
        }
        let rx = PacketPool::builder()
            .name("rx")
            .size_classes(classes)
            .build()?;
        collector.register_packet_pool(&rx)?;
        let (to_consumer, batches) = queue(64.try_into()?, Overflow::Wait);
        let monitor = batches.monitor();
        collector.register_queue("rx", monitor.clone())?;
        let (stop, stopped) = watch::channel(false);

        let consume = Worker::start(|| drain(batches))?;
        let (bound, page) = channel();
        let (exporter, mut until) = (Exporter::new(collector.clone()), stopped.clone());
        let serve = Worker::start(move || async move {
            let builder = MetricsServer::builder(exporter).address(ANY.into());
            let server = builder.bind().await.expect("a port is free");
            let _ = bound.send(server.local_addr());
            let stopped = async { drop(until.wait_for(|stop| *stop).await) };
            server.serve(stopped).await;
        })?;
        let receive = Worker::start(move || async move {
            let mut receiver = UdpReceiver::bind(ANY.into(), &rx).expect("a port is free");
            let monitor = receiver.monitor();
            collector.register_socket("0", monitor).expect("the first");
            let (sender, to) = (receiver.sender(), receiver.local_addr());
            let payload = vec![7; 36_000];
            while !*stopped.borrow() {
                let thirty = Transmit::new(&payload, to).segment_size(1200);
                sender.send(&thirty).await.expect("loopback takes it");
                let batch = receiver.recv_batch().await.expect("loopback brings it");
                if to_consumer.send(batch).await.is_err() {
                    break;
                }
            }
        })?;
        Ok(Self {
            page: page.recv()?,
            queue: monitor,
            threads: vec![serve, receive, consume],
            stop,
        })
    }

    /// Returns the nanoseconds of CPU per packet in one second.
    fn measure_second(&self, scraped: bool) -> Result<f64, Box<dyn Error>> {
        let begin = Instant::now();
        let (cpu, delivered) = (self.cpu_nanos()?, self.queue.stats().delivered);
        sleep(SECOND / 2);
        if scraped {
            scrape(self.page)?;
        }
        sleep(SECOND.saturating_sub(begin.elapsed()));
        let cpu = self.cpu_nanos()? - cpu;
        let delivered = self.queue.stats().delivered - delivered;
        Ok(cpu as f64 / delivered.max(1) as f64)
    }

    /// Returns the CPU time of the threads, as the scheduler counts it.
    fn cpu_nanos(&self) -> Result<u64, Box<dyn Error>> {
        let mut sum = 0;
        for Worker { id, .. } in &self.threads {
            let text = std::fs::read_to_string(format!("/proc/self/task/{id}/schedstat"))?;
            sum += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(sum)
    }

    fn stop(self) {
        self.stop.send_replace(true);
        for worker in self.threads {
            // A thread that panicked has reported it.
            let _ = worker.thread.join();
        }
    }
}

impl Worker {
    /// Starts a thread with a runtime of its own.
    fn start<F: Future<Output = ()>>(
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self, Box<dyn Error>> {
        let (started, id) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = thread::spawn(move || {
            let _ = started.send(std::fs::read_link("/proc/thread-self"));
            runtime.block_on(work());
        });
        let link = id.recv()??;
        let id = link.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            id: id.into_owned(),
            thread,
        })
    }
}

async fn drain(batches: QueueReceiver) {
    while let Some(batch) = batches.recv().await {
        batch.into_packets().for_each(drop);
    }
}

fn scrape(page: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(page)?;
    stream.write_all(REQUEST)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    match answer.starts_with(b"HTTP/1.1 200 ") {
        true => Ok(()),
        false => Err("the page was not served".into()),
    }
}
