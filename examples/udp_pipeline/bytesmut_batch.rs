//! The mode `bytesmut-batch`: what programs, quinn among them, do today after reading with GRO.
//!
//! Each kernel buffer is copied to a `BytesMut`, from which packets are split and frozen. They share its
//! memory: keeping one of them keeps all of it.

use crate::options::Options;
use crate::server::{
    ECHO_EVERY, Kept, MAX_READS_AFTER_STOP, Retainer, Server, Threads, pause, stop_requested,
};
use crate::sockets;
use crate::totals::{self, Consumed, Received, Totals, add};
use bytes::{Bytes, BytesMut};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use std::collections::VecDeque;
use std::error::Error;
use std::io::{self, IoSliceMut};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// The most bytes that the kernel coalesces.
const SUPER_BUFFER: usize = 64 << 10;
/// Super-buffers in one call, as many as the mode `pool` offers.
const SLOTS: usize = 8;

/// What one kernel buffer held.
struct Batch {
    contents: BytesMut,
    stride: usize,
    source: SocketAddr,
    destination: Option<IpAddr>,
}

impl Batch {
    fn datagrams(&self) -> u64 {
        self.contents.len().div_ceil(self.stride.max(1)).max(1) as u64
    }
}

struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
}

impl Socket {
    async fn recv(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        let read = || self.state.recv((&self.io).into(), buffers, metas);
        self.io.async_io(Interest::READABLE, read).await
    }

    async fn reply(&self, batch: &Batch) -> io::Result<()> {
        let transmit = Transmit {
            destination: batch.source,
            ecn: None,
            contents: &batch.contents,
            segment_size: Some(batch.stride).filter(|_| batch.datagrams() > 1),
            src_ip: batch.destination,
        };
        let send = || self.state.try_send((&self.io).into(), &transmit);
        self.io.async_io(Interest::WRITABLE, send).await
    }
}

pub(crate) struct BytesMutBatchServer {
    address: SocketAddr,
    received: Vec<Arc<Received>>,
    consumed: Vec<Arc<Consumed>>,
    consumers: JoinSet<VecDeque<Bytes>>,
    receivers: JoinSet<()>,
    /// Kept open until the last report.
    _sockets: Vec<Arc<Socket>>,
    threads: Threads,
}

impl BytesMutBatchServer {
    /// Starts receiving.
    pub(crate) fn start(options: &Options) -> Result<Self, Box<dyn Error>> {
        let threads = Threads::start(options)?;
        let mut sockets = Vec::new();
        {
            let _runtime = threads.receive.enter();
            for socket in sockets::bind_shards(options)? {
                let io = UdpSocket::from_std(socket)?;
                let state = UdpSocketState::new((&io).into())?;
                sockets.push(Arc::new(Socket { io, state }));
            }
        }
        let address = sockets[0].io.local_addr()?;

        // A channel has one consumer, so each consumer gets its own and they divide the capacity.
        let room = options.queued_batches() / usize::from(options.consumers);
        let mut to_consumers = Vec::new();
        let mut consumed = Vec::new();
        let mut consumers = JoinSet::new();
        for number in 0..usize::from(options.consumers) {
            let (to_consumer, batches) = mpsc::channel(room.max(1));
            to_consumers.push(to_consumer);
            let counters = Arc::<Consumed>::default();
            consumed.push(Arc::clone(&counters));
            let consumer = Consumer {
                batches,
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
    socket: Arc<Socket>,
    to_consumers: Vec<mpsc::Sender<Batch>>,
    next: usize,
    counters: Arc<Received>,
}

impl Shard {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut memory = vec![0; SLOTS * SUPER_BUFFER];
        let mut metas = [RecvMeta::default(); SLOTS];
        let mut last_reads = MAX_READS_AFTER_STOP;
        let mut stopping = false;
        while !stopping || last_reads > 0 {
            let mut slots = memory.chunks_exact_mut(SUPER_BUFFER);
            let mut buffers: [_; SLOTS] =
                std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
            let read = if stopping {
                last_reads -= 1;
                tokio::select! {
                    biased;
                    read = self.socket.recv(&mut buffers, &mut metas) => read,
                    () = std::future::ready(()) => return,
                }
            } else {
                tokio::select! {
                    biased;
                    () = stop_requested(&mut stop) => {
                        stopping = true;
                        continue;
                    }
                    read = self.socket.recv(&mut buffers, &mut metas) => read,
                }
            };
            let Ok(read) = read else {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            };
            for (meta, buffer) in metas.iter().zip(&buffers).take(read) {
                self.hand_over(Batch {
                    contents: BytesMut::from(&buffer[..meta.len]),
                    stride: meta.stride,
                    source: meta.addr,
                    destination: meta.dst_ip,
                });
            }
        }
    }

    /// Sends a batch to the consumer whose turn it is, or to another one if that channel is full.
    fn hand_over(&mut self, mut batch: Batch) {
        let datagrams = batch.datagrams();
        add(&self.counters.datagrams, datagrams);
        add(&self.counters.bytes, batch.contents.len() as u64);
        for _ in 0..self.to_consumers.len() {
            self.next = (self.next + 1) % self.to_consumers.len();
            match self.to_consumers[self.next].try_send(batch) {
                Ok(()) => return,
                Err(refused) => batch = refused.into_inner(),
            }
        }
        add(&self.counters.queue_full, datagrams);
    }
}

struct Consumer {
    batches: mpsc::Receiver<Batch>,
    echo: Arc<Socket>,
    retainer: Retainer<Bytes>,
    pause: Option<Duration>,
    counters: Arc<Consumed>,
    stop: watch::Receiver<bool>,
}

impl Consumer {
    async fn run(mut self) -> VecDeque<Bytes> {
        let mut number = 0;
        while let Some(batch) = self.batches.recv().await {
            number += 1;
            if number % ECHO_EVERY == 0 {
                let counter = match self.echo.reply(&batch).await {
                    Ok(()) => &self.counters.echoed,
                    Err(_) => &self.counters.echo_failed,
                };
                add(counter, batch.datagrams());
            }
            self.consume(batch);
            pause(self.pause, &mut self.stop).await;
        }
        self.retainer.into_packets()
    }

    fn consume(&mut self, mut batch: Batch) {
        for _ in 0..batch.datagrams() {
            let len = batch.stride.min(batch.contents.len());
            let packet = batch.contents.split_to(len).freeze();
            self.retainer.offer(packet, |packet| packet);
            add(&self.counters.delivered, 1);
        }
    }
}

impl Server for BytesMutBatchServer {
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
