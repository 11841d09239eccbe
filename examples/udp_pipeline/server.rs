//! What the servers of all modes have in common: the interface, the threads, the signal to stop, and the
//! packets that a consumer keeps.

use crate::allocations;
use crate::options::Options;
use crate::totals::Totals;
use packet_slab::slab_metrics::{Collector, RegisterError};
use packet_slab::slab_net::PacketPool;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// One batch in this many is echoed to its sender.
pub(crate) const ECHO_EVERY: u64 = 16;
/// The socket buffer requested per shard; the kernel may grant less.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// How often a shard still reads after it was told to stop, for what the kernel has queued by then.
pub(crate) const MAX_READS_AFTER_STOP: usize = 64;
/// The most packets that all consumers together keep.
const MAX_RETAINED: usize = 10_000;

/// A server that receives packets, in whatever memory.
pub(crate) trait Server {
    /// Returns the address it receives at.
    fn address(&self) -> SocketAddr;

    /// Returns the totals so far.
    fn totals(&self) -> Totals;

    /// Returns the pool, if the mode has one.
    fn pool(&self) -> Option<&PacketPool> {
        None
    }

    /// Registers the server's statistics for the metrics page.
    fn register(&self, _: &Collector) -> Result<(), RegisterError> {
        Ok(())
    }

    /// Stops receiving and waits until the consumers have emptied the queue. Returns the packets
    /// that they keep.
    fn stop(&mut self) -> Kept;
}

/// The names of a server's threads.
const RECEIVE: &str = "receive";
const CONSUME: &str = "consume";
pub(crate) const THREAD_NAMES: [&str; 2] = [RECEIVE, CONSUME];

/// The threads of a server: some that only receive and others that only consume, so that each
/// packet changes threads.
pub(crate) struct Threads {
    pub(crate) receive: Runtime,
    pub(crate) consume: Runtime,
    /// Tells both kinds to stop.
    pub(crate) stop: watch::Sender<bool>,
}

impl Threads {
    pub(crate) fn start(options: &Options) -> std::io::Result<Self> {
        Ok(Self {
            receive: workers(RECEIVE, options.shards)?,
            consume: workers(CONSUME, options.consumers)?,
            stop: watch::Sender::new(false),
        })
    }
}

fn workers(name: &str, count: u16) -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(count.into())
        .thread_name(name)
        .enable_all()
        .on_thread_start(allocations::count_this_thread)
        .build()
}

/// Completes once the server is told to stop.
pub(crate) async fn stop_requested(stop: &mut watch::Receiver<bool>) {
    // An error means that the server is gone, which also ends its tasks.
    let _ = stop.wait_for(|&stop| stop).await;
}

/// Makes a consumer slow, for the demonstration, until the server is told to stop.
pub(crate) async fn pause(pause: Option<Duration>, stop: &mut watch::Receiver<bool>) {
    let Some(pause) = pause else { return };
    if *stop.borrow() {
        return;
    }
    tokio::select! {
        () = stop_requested(stop) => {}
        () = tokio::time::sleep(pause) => {}
    }
}

/// Keeps every Nth packet, and of these only the newest.
pub(crate) struct Retainer<P> {
    every: Option<u32>,
    seen: u32,
    capacity: usize,
    packets: VecDeque<P>,
}

impl<P> Retainer<P> {
    /// Creates one consumer's share.
    pub(crate) fn new(options: &Options) -> Self {
        let capacity = (MAX_RETAINED / usize::from(options.consumers)).max(1);
        let room = if options.retain.is_some() {
            capacity
        } else {
            0
        };
        Self {
            every: options.retain,
            seen: 0,
            capacity,
            packets: VecDeque::with_capacity(room),
        }
    }

    /// Keeps the packet, in the form that `keep` returns, or drops it.
    #[inline]
    pub(crate) fn offer(&mut self, packet: P, keep: impl FnOnce(P) -> P) {
        let Some(every) = self.every else { return };
        self.seen += 1;
        if self.seen < every {
            return;
        }
        self.seen = 0;
        // Remove before adding: the oldest packet's memory is free for the newest.
        if self.packets.len() == self.capacity {
            self.packets.pop_front();
        }
        self.packets.push_back(keep(packet));
    }

    pub(crate) fn into_packets(self) -> VecDeque<P> {
        self.packets
    }
}

/// The packets that consumers keep after the server has stopped.
pub(crate) struct Kept {
    pub(crate) packets: usize,
    /// The sum of their lengths.
    pub(crate) payload_bytes: u64,
    /// Keeps them alive.
    _memory: Box<dyn Send>,
}

impl Kept {
    /// Collects what all consumers have returned.
    pub(crate) fn collect<P: AsRef<[u8]> + Send + 'static>(
        runtime: &Runtime,
        consumers: JoinSet<VecDeque<P>>,
    ) -> Self {
        let packets = runtime.block_on(consumers.join_all());
        let lengths = packets.iter().flatten().map(|p| p.as_ref().len() as u64);
        Self {
            packets: packets.iter().map(VecDeque::len).sum(),
            payload_bytes: lengths.sum(),
            _memory: Box::new(packets),
        }
    }
}
