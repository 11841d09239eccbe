//! The mode `bytesmut-packet`: what tokio's documentation suggests, a fresh `BytesMut` for each datagram,
//! frozen and sent through a channel.

use crate::options::Options;
use crate::server::{
    ECHO_EVERY, Kept, MAX_READS_AFTER_STOP, Retainer, Server, Threads, pause, stop_requested,
};
use crate::sockets;
use crate::totals::{self, Consumed, Received, Totals, add};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Holds a datagram of any Ethernet MTU. The system cuts a longer one, and tokio does not say so.
const BUFFER: usize = 2048;
/// Packets taken from the channel at once; a slow consumer pauses after as many.
const PACKETS_PER_BATCH: usize = 32;

struct Datagram {
    packet: Bytes,
    source: SocketAddr,
}

pub(crate) struct BytesMutPacketServer {
    address: SocketAddr,
    received: Vec<Arc<Received>>,
    consumed: Vec<Arc<Consumed>>,
    consumers: JoinSet<VecDeque<Bytes>>,
    receivers: JoinSet<()>,
    /// Kept open until the last report.
    _sockets: Vec<Arc<UdpSocket>>,
    threads: Threads,
}

impl BytesMutPacketServer {
    /// Starts receiving.
    pub(crate) fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
        let threads = Threads::start(options)?;
        let mut sockets = Vec::new();
        {
            let _runtime = threads.receive.enter();
            for socket in sockets::bind_shards(options)? {
                sockets.push(Arc::new(UdpSocket::from_std(socket)?));
            }
        }
        let address = sockets[0].local_addr()?;
        let buffer_bytes = BUFFER.max(usize::from(options.payload));

        // As many bytes as the other modes may queue, in buffers of this mode's size.
        let room = options.max_memory / buffer_bytes / usize::from(options.consumers);
        let mut to_consumers = Vec::new();
        let mut consumed = Vec::new();
        let mut consumers = JoinSet::new();
        for number in 0..usize::from(options.consumers) {
            let (to_consumer, datagrams) = mpsc::channel(room.max(1));
            to_consumers.push(to_consumer);
            let counters = Arc::<Consumed>::default();
            consumed.push(Arc::clone(&counters));
            let consumer = Consumer {
                datagrams,
                echo: Arc::clone(&sockets[number % sockets.len()]),
                retainer: Retainer::new(options),
                pause: options.slow_consumer,
                counters,
                stop: threads.stop.subscribe(),
            };
            consumers.spawn_on(consumer.run(), threads.consume.handle());
        }
        let mut received = Vec::new();
        let mut receivers = JoinSet::new();
        for socket in &sockets {
            let counters = Arc::<Received>::default();
            received.push(Arc::clone(&counters));
            let shard = Shard {
                socket: Arc::clone(socket),
                buffer_bytes,
                to_consumers: to_consumers.clone(),
                next: 0,
                counters,
            };
            let task = shard.run(threads.stop.subscribe());
            receivers.spawn_on(task, threads.receive.handle());
        }
        Ok(Self {
            address,
            received,
            consumed,
            consumers,
            receivers,
            _sockets: sockets,
            threads,
        })
    }
}

struct Shard {
    socket: Arc<UdpSocket>,
    buffer_bytes: usize,
    to_consumers: Vec<mpsc::Sender<Datagram>>,
    next: usize,
    counters: Arc<Received>,
}

impl Shard {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let mut buffer = BytesMut::with_capacity(self.buffer_bytes);
            let read = tokio::select! {
                biased;
                () = stop_requested(&mut stop) => break,
                read = self.socket.recv_buf_from(&mut buffer) => read,
            };
            match read {
                Ok((_, source)) => self.hand_over(buffer, source),
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        for _ in 0..MAX_READS_AFTER_STOP * PACKETS_PER_BATCH {
            let mut buffer = BytesMut::with_capacity(self.buffer_bytes);
            match self.socket.try_recv_buf_from(&mut buffer) {
                Ok((_, source)) => self.hand_over(buffer, source),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {}
            }
        }
    }

    /// Sends a packet to the consumer whose turn it is, or to another one if that channel is full.
    fn hand_over(&mut self, buffer: BytesMut, source: SocketAddr) {
        add(&self.counters.datagrams, 1);
        add(&self.counters.bytes, buffer.len() as u64);
        let packet = buffer.freeze();
        let mut datagram = Datagram { packet, source };
        for _ in 0..self.to_consumers.len() {
            self.next = (self.next + 1) % self.to_consumers.len();
            match self.to_consumers[self.next].try_send(datagram) {
                Ok(()) => return,
                Err(refused) => datagram = refused.into_inner(),
            }
        }
        add(&self.counters.queue_full, 1);
    }
}

struct Consumer {
    datagrams: mpsc::Receiver<Datagram>,
    echo: Arc<UdpSocket>,
    retainer: Retainer<Bytes>,
    pause: Option<Duration>,
    counters: Arc<Consumed>,
    stop: watch::Receiver<bool>,
}

impl Consumer {
    async fn run(mut self) -> VecDeque<Bytes> {
        let mut number = 0;
        let mut batch = Vec::with_capacity(PACKETS_PER_BATCH);
        while self
            .datagrams
            .recv_many(&mut batch, PACKETS_PER_BATCH)
            .await
            > 0
        {
            for datagram in batch.drain(..) {
                number += 1;
                if number % ECHO_EVERY == 0 {
                    let sent = self.echo.send_to(&datagram.packet, datagram.source).await;
                    let counter = match sent {
                        Ok(_) => &self.counters.echoed,
                        Err(_) => &self.counters.echo_failed,
                    };
                    add(counter, 1);
                }
                add(&self.counters.delivered, 1);
                self.retainer.offer(datagram.packet, |packet| packet);
            }
            pause(self.pause, &mut self.stop).await;
        }
        self.retainer.into_packets()
    }
}

impl Server for BytesMutPacketServer {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn totals(&self) -> Totals {
        totals::sum(&self.received, &self.consumed)
    }

    fn stop(&mut self) -> Kept {
        self.threads.stop.send_replace(true);
        let receivers = mem::take(&mut self.receivers);
        self.threads.receive.block_on(receivers.join_all());
        Kept::collect(&self.threads.consume, mem::take(&mut self.consumers))
    }
}
