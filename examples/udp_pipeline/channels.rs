//! What the modes without a pool have in common: a task for each shard, which reads a socket, and a channel and
//! a task for each consumer.

use crate::options::Options;
use crate::server::{Kept, Retainer, Server, Threads, pause};
use crate::sockets;
use crate::totals::{self, Consumed, Received, Totals, add};
use bytes::Bytes;
use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// A mode, by what it makes of a socket.
pub(crate) trait Mode: Sized + Send + Sync + 'static {
    /// What a channel carries.
    type Item: Send + 'static;

    fn open(socket: std::net::UdpSocket, options: &Options) -> io::Result<Self>;

    /// Reads and hands over until the server is told to stop.
    fn receive(shard: Shard<Self>, stop: watch::Receiver<bool>) -> impl Future<Output = ()> + Send;

    /// Consumes until the channel ends; returns the packets that are kept.
    fn consume(consumer: Consumer<Self>) -> impl Future<Output = VecDeque<Bytes>> + Send;
}

pub(crate) struct ChannelServer<M> {
    address: SocketAddr,
    received: Vec<Arc<Received>>,
    consumed: Vec<Arc<Consumed>>,
    consumers: JoinSet<VecDeque<Bytes>>,
    receivers: JoinSet<()>,
    /// Kept open until the last report.
    _sockets: Vec<Arc<M>>,
    threads: Threads,
}

impl<M: Mode> ChannelServer<M> {
    /// Starts receiving. All channels together have room for this many items.
    pub(crate) fn start(options: &Options, room: usize) -> Result<Self, Box<dyn Error>> {
        let threads = Threads::start(options)?;
        let bound = sockets::bind_shards(options)?;
        let address = bound[0].local_addr()?;
        let runtime = threads.receive.enter();
        let sockets = bound.into_iter().map(|socket| M::open(socket, options));
        let sockets: Vec<_> = sockets
            .map(|socket| socket.map(Arc::new))
            .collect::<io::Result<_>>()?;
        drop(runtime);

        // A channel has one consumer, so each consumer gets its own and they divide the capacity.
        let room = room / usize::from(options.consumers);
        let mut to_consumers = Vec::new();
        let mut consumed = Vec::new();
        let mut consumers = JoinSet::new();
        for number in 0..usize::from(options.consumers) {
            let (to_consumer, items) = mpsc::channel(room.max(1));
            to_consumers.push(to_consumer);
            let counters = Arc::<Consumed>::default();
            consumed.push(Arc::clone(&counters));
            let consumer = Consumer {
                items,
                echo: Arc::clone(&sockets[number % sockets.len()]),
                retainer: Retainer::new(options),
                counters,
                pause: options.slow_consumer,
                stop: threads.stop.subscribe(),
            };
            consumers.spawn_on(M::consume(consumer), threads.consume.handle());
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
            let task = M::receive(shard, threads.stop.subscribe());
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

pub(crate) struct Shard<M: Mode> {
    pub(crate) socket: Arc<M>,
    to_consumers: Vec<mpsc::Sender<M::Item>>,
    next: usize,
    counters: Arc<Received>,
}

impl<M: Mode> Shard<M> {
    /// Sends an item of so many datagrams and bytes to the consumer whose turn it is, or to another one if that
    /// channel is full.
    pub(crate) fn hand_over(&mut self, mut item: M::Item, datagrams: u64, bytes: usize) {
        add(&self.counters.datagrams, datagrams);
        add(&self.counters.bytes, bytes as u64);
        for _ in 0..self.to_consumers.len() {
            self.next = (self.next + 1) % self.to_consumers.len();
            match self.to_consumers[self.next].try_send(item) {
                Ok(()) => return,
                Err(refused) => item = refused.into_inner(),
            }
        }
        add(&self.counters.queue_full, datagrams);
    }
}

pub(crate) struct Consumer<M: Mode> {
    pub(crate) items: mpsc::Receiver<M::Item>,
    pub(crate) echo: Arc<M>,
    pub(crate) retainer: Retainer<Bytes>,
    counters: Arc<Consumed>,
    pause: Option<Duration>,
    stop: watch::Receiver<bool>,
}

impl<M: Mode> Consumer<M> {
    pub(crate) fn count_echo(&self, is_sent: bool, datagrams: u64) {
        let counter = match is_sent {
            true => &self.counters.echoed,
            false => &self.counters.echo_failed,
        };
        add(counter, datagrams);
    }

    /// Takes a packet as delivered.
    pub(crate) fn consume(&mut self, packet: Bytes) {
        add(&self.counters.delivered, 1);
        self.retainer.offer(packet, |packet| packet);
    }

    pub(crate) async fn pause(&mut self) {
        pause(self.pause, &mut self.stop).await;
    }
}

impl<M: Mode> Server for ChannelServer<M> {
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
