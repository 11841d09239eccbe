//! From the socket to the server.
//!
//! Datagrams lie in the pool until the server has them: in the queue as whole batches, in the client's
//! channel and buffer as payloads. If the server is slow or gone, `publish` waits, then the queue grows,
//! then the pool reaches its cap; from there on the receivers drop what arrives and count it as
//! `no_memory`. Nothing grows beyond the cap, and datagrams flow again when the server is back.
//!
//! A payload that the client refuses (larger than the server's `max_payload`) is dropped, counted and
//! logged; the following ones are published. If a publisher or a receiver ends by itself, the gateway ends
//! too: it is better restarted than run without one of them.

use crate::options::Options;
use async_nats::client::PublishErrorKind;
use async_nats::{Client, Subject};
use futures_util::StreamExt;
use packet_slab::slab_metrics::{Collector, Exporter, MetricsServer};
use packet_slab::slab_net::PacketPool;
use packet_slab::slab_net::pipeline::{
    Forwarded, Overflow, QueueMonitor, QueueReceiver, forward, queue,
};
use packet_slab::slab_net::udp::{BindError, UdpReceiver};
use std::error::Error;
use std::fmt;
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The socket buffer requested per shard; the kernel may grant less.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Payloads that may wait in the client of one connection, at most.
const CLIENT_PAYLOADS: usize = 1024;
/// The example's own counter, on the page after the series of the pool and the sockets.
const REFUSED: &str = "gateway_refused_datagrams_total";
/// How long the server may take at the end to read what is left.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A running gateway.
pub(crate) struct Gateway {
    address: SocketAddr,
    metrics_address: SocketAddr,
    queue: QueueMonitor,
    receivers: JoinSet<Forwarded>,
    publishers: JoinSet<Published>,
    /// The outcome of the tasks that have ended so far.
    outcome: Outcome,
    stop: watch::Sender<bool>,
}

/// What one publisher did.
#[derive(Debug, Clone, Copy, Default)]
struct Published {
    /// Payloads that the server confirmed to have read.
    confirmed: u64,
    /// Payloads taken from the queue without such a confirmation.
    unconfirmed: u64,
    /// Payloads that the client refused.
    refused: u64,
}

impl Gateway {
    /// Connects to the server and starts receiving.
    pub(crate) async fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
        let several = options.shards.get() > 1;
        let mut address = options.listen;
        if several && !options.reuse_port {
            // SO_REUSEPORT, which the shards need, would share the address with other programs, so try without
            // it first.
            let alone = UdpSocket::bind(address).and_then(|socket| socket.local_addr());
            address = alone.map_err(|error| BindError::Socket { address, error })?;
        }
        let pool = PacketPool::builder()
            .name("rx")
            .max_memory(options.max_memory_bytes())
            .build()?;
        let collector = Collector::new();
        collector.register_packet_pool(&pool)?;

        // A batch can be one datagram, in a chunk of its own size. With room for one batch per KiB, the
        // pool's cap limits the queue, unless all datagrams are tiny.
        let batches = options.max_memory_bytes() >> 10;
        let (to_publishers, batches) = queue(batches.try_into()?, Overflow::DropNewest);
        let queue = batches.monitor();
        collector.register_queue("publish", queue.clone())?;

        let stop = watch::Sender::new(false);
        let mut publishers = JoinSet::new();
        for _ in 0..options.shards.get() {
            let client = options
                .connect_options()
                .client_capacity(CLIENT_PAYLOADS)
                .connect(&options.nats)
                .await
                .map_err(|error| format!("cannot connect to {}: {error}", options.server()))?;
            let subject = options.subject.clone();
            publishers.spawn(publish(batches.clone(), client, subject, stop.subscribe()));
        }
        drop(batches);

        let mut receivers = JoinSet::new();
        for shard in 0..options.shards.get() {
            let receiver = UdpReceiver::builder(&pool)
                .reuse_port(options.reuse_port || several)
                .receive_buffer_bytes(RECEIVE_BUFFER_BYTES)
                .bind(address)?;
            // The other shards use the port that the system chose.
            address = receiver.local_addr();
            collector.register_socket(shard.to_string(), receiver.monitor())?;
            let mut stopped = stop.subscribe();
            receivers.spawn(forward(receiver, to_publishers.clone(), async move {
                // An error means that the gateway is gone, which also ends this.
                let _ = stopped.wait_for(|&stop| stop).await;
            }));
        }

        let exporter = Exporter::new(collector);
        exporter.install_global_recorder()?;
        metrics::describe_counter!(REFUSED, "Payloads too large for the server, dropped.");
        metrics::counter!(REFUSED).absolute(0);
        let server = MetricsServer::builder(exporter)
            .address(options.metrics)
            .bind()
            .await?;
        let metrics_address = server.local_addr();
        tokio::spawn(server.serve(std::future::pending()));
        Ok(Self {
            address,
            metrics_address,
            queue,
            receivers,
            publishers,
            outcome: Outcome::default(),
            stop,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn metrics_address(&self) -> SocketAddr {
        self.metrics_address
    }

    /// Waits until a publisher or a receiver ends without being stopped; returns which.
    pub(crate) async fn ended(&mut self) -> String {
        tokio::select! {
            Some(publisher) = self.publishers.join_next() => match publisher {
                Ok(published) => {
                    self.outcome.add_published(published);
                    "a publisher lost its connection for good".into()
                }
                Err(error) => format!("a publisher: {error}"),
            },
            Some(receiver) = self.receivers.join_next() => match receiver {
                Ok(forwarded) => {
                    self.outcome.add_received(&forwarded);
                    format!("a receiver ended: {:?}", forwarded.ended)
                }
                Err(error) => format!("a receiver: {error}"),
            },
        }
    }

    /// Stops receiving, publishes what is left, and returns what became of everything.
    pub(crate) async fn stop(self) -> Outcome {
        self.stop.send_replace(true);
        let mut outcome = self.outcome;
        for forwarded in self.receivers.join_all().await {
            outcome.add_received(&forwarded);
        }
        for published in self.publishers.join_all().await {
            outcome.add_published(published);
        }
        // What publishers did not take from the queue is counted as dropped when the queue is dropped.
        outcome.dropped += self.queue.stats().dropped();
        outcome
    }
}

/// Publishes until the queue has ended or, once the gateway stops, for at most [`DRAIN_TIMEOUT`].
async fn publish(
    batches: QueueReceiver,
    client: Client,
    subject: Subject,
    mut stop: watch::Receiver<bool>,
) -> Published {
    let (mut taken, mut refused) = (0, 0);
    // A connection that is lost takes with it what the server had not read, and nobody says how much that was:
    // of what was taken before the present one, nothing will be confirmed.
    let statistics = client.statistics();
    let connections = || statistics.connects.load(Relaxed);
    let (mut present, mut before) = (connections(), 0);
    let all = async {
        while let Some(batch) = batches.recv().await {
            let now = connections();
            if mem::replace(&mut present, now) != now {
                before = taken - refused;
            }
            // Counted before publishing: this task may end in the middle of a batch.
            taken += batch.datagrams() as u64;
            // One owner for the whole batch; its memory goes back when the last payload is written.
            for payload in batch.into_bytes() {
                let bytes = payload.len();
                // Waits while the client's channel is full: this is where backpressure begins.
                let Err(error) = client.publish(subject.clone(), payload).await else {
                    continue;
                };
                if error.kind() == PublishErrorKind::Send {
                    tracing::error!("cannot publish any more: {error}");
                    return false;
                }
                refused += 1;
                metrics::counter!(REFUSED).increment(1);
                // Not for each payload of a flood.
                if u64::is_power_of_two(refused) {
                    tracing::warn!(bytes, refused, "payload dropped: {error}");
                }
            }
        }
        client.flush().await.is_ok()
    };
    let too_long = async {
        let _ = stop.wait_for(|&stop| stop).await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    let complete = tokio::select! {
        complete = all => complete,
        () = too_long => false,
    };
    // A flush shows that everything was written; only an answer shows that the server read it.
    let answered = complete && matches!(timeout(DRAIN_TIMEOUT, ping(&client)).await, Ok(true));
    let sent = taken - refused;
    let confirmed = match answered && connections() == present {
        true => sent - before,
        false => 0,
    };
    Published {
        confirmed,
        unconfirmed: sent - confirmed,
        refused,
    }
}

/// Returns whether the server has read everything published before by the same connection: it answers in order.
async fn ping(client: &Client) -> bool {
    let inbox = client.new_inbox();
    let Ok(mut answers) = client.subscribe(inbox.clone()).await else {
        return false;
    };
    let sent = client.publish(inbox, bytes::Bytes::new()).await.is_ok();
    sent && answers.next().await.is_some()
}

/// What became of everything that was received.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    received: u64,
    published: u64,
    unconfirmed: u64,
    refused: u64,
    dropped: u64,
}

impl Outcome {
    fn add_received(&mut self, shard: &Forwarded) {
        self.received += shard.socket.received_datagrams;
        self.dropped += shard.socket.dropped();
    }

    fn add_published(&mut self, published: Published) {
        self.published += published.confirmed;
        self.unconfirmed += published.unconfirmed;
        self.refused += published.refused;
    }

    /// Returns whether every datagram is accounted for.
    pub(crate) fn adds_up(&self) -> bool {
        self.received == self.published + self.unconfirmed + self.refused + self.dropped
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "summary received={} published={} unconfirmed={} refused={} dropped={}",
            self.received, self.published, self.unconfirmed, self.refused, self.dropped
        )
    }
}
