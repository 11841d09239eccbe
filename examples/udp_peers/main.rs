//! A task for each peer: one task receives, and hands what a peer sends to that peer's own task, which echoes it.
//!
//!     cargo run --example udp_peers                              # brings 100 clients along
//!     cargo run --example udp_peers -- --listen 127.0.0.1:9999   # until Ctrl-C; try `nc -u 127.0.0.1 9999`
//!
//! Everything has a limit, and a count of what was dropped because of it: the memory (the pool's), the peers, and what
//! waits for each of them. A peer that is silent for a while is forgotten. A wrong option is explained on stderr, any
//! other failure is one line there, and the exit status is 2.

#[path = "../common/address.rs"]
mod address;

use address::address;
use clap::Parser;
use slab_net::PacketPool;
use slab_net::udp::{PacketBatch, UdpReceiver, UdpSender};
use std::collections::HashMap;
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinSet;

/// The most batches that wait for one peer's task.
const WAITING: usize = 16;

/// UDP echo server with a task for each peer
#[derive(Debug, Parser)]
#[command(name = "udp_peers")]
struct Options {
    /// Serve this address until Ctrl-C, instead of 100 clients of its own
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    listen: Option<SocketAddr>,
    /// The most peers at a time; datagrams of others are refused
    #[arg(long, default_value_t = 1000)]
    max_peers: usize,
    /// Forget a peer that has been silent for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    idle: u64,
}

/// What the peers' tasks are handed.
struct Peers {
    sender: UdpSender,
    max: usize,
    by_address: HashMap<SocketAddr, Peer>,
    /// As many as there are peers, and those of forgotten peers that are not done yet.
    tasks: JoinSet<Echoed>,
    counts: Counts,
}

struct Peer {
    batches: mpsc::Sender<PacketBatch>,
    last_heard: Instant,
}

/// Peers, and datagrams.
#[derive(Default)]
struct Counts {
    peers: usize,
    /// Of peers beyond the limit.
    refused: usize,
    /// Of peers whose task has enough waiting.
    dropped: usize,
    echoed: Echoed,
}

/// What a peer's task did.
#[derive(Default)]
struct Echoed {
    sent: usize,
    /// The system refused to send them.
    unsent: usize,
}

impl AddAssign for Echoed {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.unsent += other.unsent;
    }
}

impl Peers {
    fn new(sender: UdpSender, max: usize) -> Self {
        Self {
            sender,
            max,
            by_address: HashMap::new(),
            tasks: JoinSet::new(),
            counts: Counts::default(),
        }
    }

    /// Hands a batch, which is of one peer, to that peer's task. Does not wait: one peer must not hold up the others.
    fn hand_over(&mut self, batch: PacketBatch, now: Instant) {
        let (address, datagrams) = (batch.source(), batch.datagrams());
        if !self.by_address.contains_key(&address) {
            if self.tasks.len() >= self.max {
                self.counts.refused += datagrams;
                return;
            }
            let (batches, receiver) = mpsc::channel(WAITING);
            self.tasks.spawn(echo(self.sender.clone(), receiver));
            self.counts.peers += 1;
            let peer = Peer {
                batches,
                last_heard: now,
            };
            self.by_address.insert(address, peer);
        }
        let Some(peer) = self.by_address.get_mut(&address) else {
            return;
        };
        peer.last_heard = now;
        if let Err(error) = peer.batches.try_send(batch) {
            self.counts.dropped += datagrams;
            if matches!(error, TrySendError::Closed(_)) {
                // Its task has ended. The next datagram begins another.
                self.by_address.remove(&address);
            }
        }
    }

    /// Forgets peers that were not heard of since then. Their tasks end when they have done what still waits.
    fn forget_silent(&mut self, since: Instant) {
        self.by_address.retain(|_, peer| peer.last_heard >= since);
    }

    /// Lets all tasks finish.
    async fn finish(mut self) -> Counts {
        self.by_address.clear();
        while let Some(ended) = self.tasks.join_next().await {
            self.counts.echoed += ended.unwrap_or_default();
        }
        self.counts
    }
}

/// A peer's task: what a server knows of a peer would live here, without a lock. Here it is two numbers.
async fn echo(sender: UdpSender, mut batches: mpsc::Receiver<PacketBatch>) -> Echoed {
    let mut echoed = Echoed::default();
    while let Some(batch) = batches.recv().await {
        // All datagrams of the batch in one system call, out of the memory into which they were received.
        let sent = match sender.send(&batch.reply()).await {
            Ok(sent) => sent,
            Err(error) => error.sent(),
        };
        echoed += Echoed {
            sent,
            unsent: batch.datagrams() - sent,
        };
    }
    echoed
}

/// Receives until `stop` completes.
async fn serve(
    receiver: &mut UdpReceiver,
    options: &Options,
    stop: impl Future<Output = ()>,
) -> std::io::Result<Counts> {
    let mut peers = Peers::new(receiver.sender(), options.max_peers);
    let idle = Duration::from_secs(options.idle);
    let mut every_second = tokio::time::interval(Duration::from_secs(1));
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            batch = receiver.recv_batch() => peers.hand_over(batch?, Instant::now()),
            Some(ended) = peers.tasks.join_next() => peers.counts.echoed += ended.unwrap_or_default(),
            _ = every_second.tick() => {
                if let Some(since) = Instant::now().checked_sub(idle) {
                    peers.forget_silent(since);
                }
            }
            () = &mut stop => break,
        }
    }
    // What has arrived is still served; what comes now, the kernel drops (where it can be told to: on Linux).
    let most = receiver.stop().map_or(1000, |()| usize::MAX);
    for _ in 0..most {
        let Some(batch) = receiver.try_recv_batch()? else {
            break;
        };
        peers.hand_over(batch, Instant::now());
    }
    Ok(peers.finish().await)
}

/// Sends ten datagrams, one after the other, and returns how many came back.
async fn client(server: SocketAddr) -> std::io::Result<usize> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.connect(server).await?;
    let mut echoes = 0;
    for n in 0..10_u32 {
        socket.send(&n.to_le_bytes()).await?;
        let mut echo = [0; 4];
        let answer = tokio::time::timeout(Duration::from_secs(5), socket.recv(&mut echo)).await;
        echoes += usize::from(matches!(answer, Ok(Ok(4))) && echo == n.to_le_bytes());
    }
    Ok(echoes)
}

async fn clients(server: SocketAddr) -> usize {
    let clients: JoinSet<_> = (0..100).map(|_| client(server)).collect();
    let echoes = clients.join_all().await;
    echoes.into_iter().map(|echoes| echoes.unwrap_or(0)).sum()
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let pool = PacketPool::builder().max_memory(16 << 20).build()?;
    let address = options.listen.unwrap_or_else(|| ([127, 0, 0, 1], 0).into());
    let mut receiver = UdpReceiver::bind(address, &pool)?;
    let server = receiver.local_addr();
    let mut out = std::io::stdout();
    writeln!(out, "serving {server}")?;
    let (mut echoes, mut interrupted) = (0, Ok(()));
    let counts = match options.listen {
        Some(_) => {
            let stop = async { interrupted = tokio::signal::ctrl_c().await };
            serve(&mut receiver, &options, stop).await?
        }
        None => {
            let stop = async { echoes = clients(server).await };
            serve(&mut receiver, &options, stop).await?
        }
    };
    interrupted?;
    if options.listen.is_none() {
        writeln!(out, "100 clients had {echoes} echoes for 1000 datagrams")?;
    }
    let received = receiver.monitor().stats();
    drop(receiver);
    let Counts {
        peers,
        refused,
        dropped,
        echoed,
    } = counts;
    writeln!(
        out,
        "summary received={} lost_by_receiver={} peers={peers} refused={refused} dropped={dropped} echoed={} unsent={} \
         pool_in_use={}",
        received.received_datagrams,
        received.dropped(),
        echoed.sent,
        echoed.unsent,
        pool.slab().stats().in_use(),
    )?;
    Ok(())
}

fn main() -> ExitCode {
    let options = Options::parse();
    let ended = tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run(options)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "udp_peers: {}", with_causes(&*error));
            ExitCode::from(2)
        }
    }
}

/// The error and its causes, in one line.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<_> = chain.map(ToString::to_string).collect();
    texts.join(": ")
}
