//! Serves the metrics of a pool under a little load: something to point a Prometheus at.
//!
//!     cargo run -p slab-metrics --example metrics_page -- 127.0.0.1:9465 [KEPT]
//!
//! Until Ctrl-C it sends itself a few hundred datagrams of 1200 bytes per second. Its consumer keeps the
//! last KEPT packets, by default 100; with 10000 the pool is soon at its cap. A failure to start is one line on
//! stderr and exit status 2.

use slab_metrics::{Collector, DEFAULT_ADDRESS, Exporter, MetricsServer};
use slab_net::PacketPool;
use slab_net::pipeline::{Overflow, queue};
use slab_net::udp::{Transmit, UdpReceiver};
use std::collections::VecDeque;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = std::iter::successors(Some(&*error), |&error| error.source());
            let texts: Vec<_> = causes.map(ToString::to_string).collect();
            // If the reader is gone, nobody can be told.
            let _ = writeln!(io::stderr(), "metrics_page: {}", texts.join(": "));
            ExitCode::from(2)
        }
    }
}

/// The next argument, or what there is without one.
fn argument<T: FromStr>(given: Option<OsString>, default: T) -> Result<T, String> {
    let Some(given) = given else {
        return Ok(default);
    };
    let usage = "expected an address such as 127.0.0.1:9465, then how many packets to keep";
    let parsed = given.to_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| format!("{usage}, not {given:?}"))
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let address = argument(arguments.next(), DEFAULT_ADDRESS)?;
    let to_keep = argument(arguments.next(), 100)?;
    let pool = PacketPool::builder()
        .name("rx")
        .max_memory(4 << 20)
        .build()?;
    let mut receiver = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    let (to_consumer, batches) = queue(64.try_into()?, Overflow::DropNewest);

    let collector = Collector::new();
    collector.register_packet_pool(&pool)?;
    collector.register_socket("0", receiver.monitor())?;
    collector.register_queue("handoff", batches.monitor())?;
    let server = MetricsServer::builder(Exporter::new(collector))
        .address(address)
        .bind()
        .await?;
    writeln!(io::stdout(), "http://{}/metrics", server.local_addr())?;

    let (sender, destination) = (receiver.sender(), receiver.local_addr());
    tokio::spawn(async move {
        let payload = [0; 12_000];
        loop {
            let ten = Transmit::new(&payload, destination).segment_size(1200);
            if sender.send(&ten).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    tokio::spawn(async move {
        while let Ok(batch) = receiver.recv_batch().await {
            if to_consumer.send(batch).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let mut kept = VecDeque::new();
        while let Some(batch) = batches.recv().await {
            for packet in batch.into_packets() {
                kept.push_back(packet);
                if kept.len() > to_keep {
                    kept.pop_front();
                }
            }
        }
    });
    server.serve(std::future::pending()).await;
    Ok(())
}
