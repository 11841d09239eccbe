//! The mode `pool`: this is the code to copy from.
//!
//! Shards receive into the memory of one pool, which never exceeds its cap; consumers on other threads own
//! the packets and return them by dropping them. Nothing here allocates per packet.

use crate::options::Options;
use crate::server::{
    ECHO_EVERY, Kept, RECEIVE_BUFFER_BYTES, Retainer, Server, Threads, pause, stop_requested,
};
use crate::totals::{self, Consumed, Drops, Totals, add};
use packet_slab::slab_metrics::{Collector, RegisterError};
use packet_slab::slab_net::pipeline::{
    Forwarded, Overflow, QueueMonitor, QueueReceiver, forward, queue,
};
use packet_slab::slab_net::udp::{BindError, Coalescing, PacketBatch, UdpReceiver, UdpSender};
use packet_slab::slab_net::{Packet, PacketPool};
use std::collections::VecDeque;
use std::error::Error;
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) struct PoolServer {
    address: SocketAddr,
    pool: PacketPool,
    /// One per shard. They keep the sockets open until the last report.
    sockets: Vec<UdpSender>,
    queue: QueueMonitor,
    consumed: Vec<Arc<Consumed>>,
    consumers: JoinSet<VecDeque<Packet>>,
    receivers: JoinSet<Forwarded>,
    /// Known once they have ended.
    receive_errors: u64,
    threads: Threads,
}

impl PoolServer {
    /// Starts receiving.
    pub(crate) fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
        let pool = PacketPool::builder()
            .name("rx")
            .max_memory(options.max_memory)
            .build()?;
        let threads = Threads::start(options)?;
        let shards = {
            // Sockets belong to the runtime that drives them.
            let _runtime = threads.receive.enter();
            bind_shards(options, &pool)?
        };
        let address = shards[0].local_addr();
        let sockets: Vec<_> = shards.iter().map(UdpReceiver::sender).collect();

        // When the queue is full, new datagrams are dropped and counted: if the receiver waited for
        // consumers, the kernel would drop them instead.
        let (to_consumers, batches) =
            queue(options.queued_batches().try_into()?, Overflow::DropNewest);
        let queue = batches.monitor();

        let mut consumed = Vec::new();
        let mut consumers = JoinSet::new();
        for number in 0..usize::from(options.consumers) {
            let counters = Arc::<Consumed>::default();
            consumed.push(Arc::clone(&counters));
            let consumer = Consumer {
                batches: batches.clone(),
                echo: sockets[number % sockets.len()].clone(),
                pool: pool.clone(),
                retainer: Retainer::new(options),
                pause: options.slow_consumer,
                counters,
                stop: threads.stop.subscribe(),
            };
            consumers.spawn_on(consumer.run(), threads.consume.handle());
        }
        let mut receivers = JoinSet::new();
        for shard in shards {
            let mut stop = threads.stop.subscribe();
            let stopped = async move { stop_requested(&mut stop).await };
            // From the socket into the queue; at the end also what the kernel has queued.
            let task = forward(shard, to_consumers.clone(), stopped);
            receivers.spawn_on(task, threads.receive.handle());
        }
        Ok(Self {
            address,
            pool,
            sockets,
            queue,
            consumed,
            consumers,
            receivers,
            receive_errors: 0,
            threads,
        })
    }
}

/// Opens one socket per shard, all at one address.
fn bind_shards(options: &Options, pool: &PacketPool) -> Result<Vec<UdpReceiver>, BindError> {
    let several = options.shards > 1;
    let mut address = options.listen;
    if several {
        // SO_REUSEPORT would share the address with other programs, so try without it first.
        let alone = UdpSocket::bind(address).and_then(|socket| socket.local_addr());
        address = alone.map_err(|error| BindError::Socket { address, error })?;
    }
    let coalescing = match options.max_datagram {
        None => Coalescing::On,
        Some(max_datagram) => Coalescing::Off { max_datagram },
    };
    let bind = |_| {
        UdpReceiver::builder(pool)
            .coalescing(coalescing)
            .reuse_port(several)
            .receive_buffer_bytes(RECEIVE_BUFFER_BYTES)
            .bind(address)
    };
    (0..options.shards).map(bind).collect()
}

struct Consumer {
    batches: QueueReceiver,
    echo: UdpSender,
    pool: PacketPool,
    retainer: Retainer<Packet>,
    pause: Option<Duration>,
    counters: Arc<Consumed>,
    stop: watch::Receiver<bool>,
}

impl Consumer {
    /// Consumes until the receivers are gone and the queue is empty; returns the packets it kept.
    async fn run(mut self) -> VecDeque<Packet> {
        let mut number = 0;
        while let Some(batch) = self.batches.recv().await {
            number += 1;
            if number % ECHO_EVERY == 0 {
                self.reply(&batch).await;
            }
            self.consume(batch);
            pause(self.pause, &mut self.stop).await;
        }
        self.retainer.into_packets()
    }

    async fn reply(&self, batch: &PacketBatch) {
        // The socket counts what was sent.
        if let Err(error) = self.echo.send(&batch.reply()).await {
            let failed = batch.datagrams() - error.sent();
            add(&self.counters.echo_failed, failed as u64);
        }
    }

    fn consume(&mut self, batch: PacketBatch) {
        let packets = batch.into_packets();
        add(&self.counters.delivered, packets.len() as u64);
        for packet in packets {
            // A packet that is kept would pin the 64 KiB that it came in: `compact` copies it to a
            // chunk of its own size.
            let pool = &self.pool;
            self.retainer.offer(packet, |packet| pool.compact(packet));
        }
    }
}

impl Server for PoolServer {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn totals(&self) -> Totals {
        let mut totals = totals::sum(&[], &self.consumed);
        let queue = self.queue.stats();
        let mut drops = Drops {
            queue_full: queue.dropped(),
            ..Drops::default()
        };
        for socket in &self.sockets {
            let socket = socket.monitor().stats();
            totals.received += socket.received_datagrams;
            totals.received_bytes += socket.received_bytes;
            totals.echoed += socket.sent_datagrams;
            drops.no_memory += socket.dropped_no_memory;
            drops.truncated += socket.dropped_truncated;
            drops.closed += socket.dropped_closed;
        }
        Totals {
            drops,
            receive_errors: self.receive_errors,
            ..totals
        }
    }

    fn pool(&self) -> Option<&PacketPool> {
        Some(&self.pool)
    }

    fn register(&self, collector: &Collector) -> Result<(), RegisterError> {
        collector.register_packet_pool(&self.pool)?;
        for (number, socket) in self.sockets.iter().enumerate() {
            collector.register_socket(number.to_string(), socket.monitor())?;
        }
        collector.register_queue("handoff", self.queue.clone())
    }

    fn stop(&mut self) -> Kept {
        self.threads.stop.send_replace(true);
        let receivers = mem::take(&mut self.receivers);
        let reports = self.threads.receive.block_on(receivers.join_all());
        self.receive_errors = reports.iter().map(|report| report.receive_errors).sum();
        // The receivers held the queue's senders: once the queue is empty, consumers return.
        Kept::collect(&self.threads.consume, mem::take(&mut self.consumers))
    }
}
