//! The load generator: one thread with several sockets (the kernel spreads senders over shards), which sends
//! many datagrams per call by GSO, and reads and counts the echoes.

use crate::options::{Options, Rate};
use packet_slab::slab_net::PacketPool;
use packet_slab::slab_net::udp::{Transmit, UdpReceiver};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Source sockets.
const SOURCES: usize = 8;
/// The most bytes that one call sends.
const MAX_CALL_BYTES: usize = 65_507;
/// The most segments that the kernel takes in one call.
const MAX_SEGMENTS: usize = 64;
/// How often a paced source sends.
const TICK: Duration = Duration::from_millis(2);
/// A source that was delayed makes up for at most this.
const MAX_CATCH_UP: Duration = Duration::from_millis(20);

/// Open sockets that have sent nothing so far.
pub(crate) struct Load {
    runtime: Runtime,
    sockets: Vec<UdpReceiver>,
    payload: usize,
    rate: Rate,
}

impl Load {
    pub(crate) fn bind(options: &Options) -> Result<Self, Box<dyn Error>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        // For the echoes; separate from the server's pool, and not on its metrics page.
        let pool = PacketPool::builder()
            .name("load")
            .max_memory(8 << 20)
            .build()?;
        let any: IpAddr = match options.listen {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let _runtime = runtime.enter();
        let bind = |_| UdpReceiver::bind((any, 0).into(), &pool);
        let sockets = (0..SOURCES).map(bind).collect::<Result<_, _>>()?;
        drop(_runtime);
        Ok(Self {
            runtime,
            sockets,
            payload: options.payload.into(),
            rate: options.rate,
        })
    }

    /// Starts sending to the server.
    pub(crate) fn start(self, server: SocketAddr) -> std::io::Result<RunningLoad> {
        let stop = Arc::<AtomicBool>::default();
        let told = Arc::clone(&stop);
        let thread = thread::Builder::new().name("load".into()).spawn(move || {
            let server = reachable(server);
            let sources = self
                .sockets
                .into_iter()
                .enumerate()
                .map(|(number, socket)| {
                    let source = Source::new(number, socket, self.payload, self.rate);
                    self.runtime.spawn(source.run(server, Arc::clone(&told)))
                });
            let sources: Vec<_> = sources.collect();
            self.runtime.block_on(async {
                let mut sent = Sent::default();
                for source in sources {
                    // A source that panicked has reported it on stderr.
                    let one = source.await.unwrap_or_default();
                    sent.datagrams += one.datagrams;
                    sent.echoes += one.echoes;
                    sent.failed += one.failed;
                }
                sent
            })
        })?;
        Ok(RunningLoad { stop, thread })
    }
}

/// What the load generator did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    pub(crate) datagrams: u64,
    pub(crate) echoes: u64,
    /// Datagrams that the system would not send.
    pub(crate) failed: u64,
}

pub(crate) struct RunningLoad {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Sent>,
}

impl RunningLoad {
    /// Stops sending.
    pub(crate) fn stop(self) -> Sent {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Returns loopback for a server that listens on all addresses.
fn reachable(mut server: SocketAddr) -> SocketAddr {
    if server.ip().is_unspecified() {
        server.set_ip(match server {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    server
}

struct Source {
    socket: UdpReceiver,
    contents: Vec<u8>,
    payload: usize,
    /// Datagrams per second; `None` for as many as possible.
    rate: Option<f64>,
    sent: Sent,
}

impl Source {
    fn new(number: usize, socket: UdpReceiver, payload: usize, rate: Rate) -> Self {
        let segments = (MAX_CALL_BYTES / payload).clamp(1, MAX_SEGMENTS);
        Self {
            socket,
            contents: vec![number as u8; payload * segments],
            payload,
            rate: match rate {
                Rate::PerSecond(rate) => Some(f64::from(rate) / SOURCES as f64),
                Rate::Max => None,
            },
            sent: Sent::default(),
        }
    }

    async fn run(mut self, server: SocketAddr, stop: Arc<AtomicBool>) -> Sent {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut since = Instant::now();
        let mut due = 0.0;
        while !stop.load(Ordering::Relaxed) {
            match self.rate {
                Some(rate) => {
                    ticks.tick().await;
                    let now = Instant::now();
                    let passed = now.saturating_duration_since(since).min(MAX_CATCH_UP);
                    since = now;
                    due += rate * passed.as_secs_f64();
                    // If the rate is more than can be sent, what is too late is not sent, and the end is noticed. The
                    // one is for a rate so low that nothing would ever be due.
                    due = due.min(1.0 + rate * MAX_CATCH_UP.as_secs_f64());
                    while due >= 1.0 && self.is_call_due(due, rate) && now.elapsed() < MAX_CATCH_UP
                    {
                        due -= self.send(server, due as usize).await as f64;
                    }
                }
                None => {
                    self.send(server, MAX_SEGMENTS).await;
                    tokio::task::yield_now().await;
                }
            }
            self.count_echoes();
        }
        self.sent
    }

    /// Returns whether enough is due for a call: a full one, unless that takes more than a few ticks to fill.
    fn is_call_due(&self, due: f64, rate: f64) -> bool {
        let full = (self.contents.len() / self.payload) as f64;
        due >= full.min(rate * MAX_CATCH_UP.as_secs_f64() / 2.0)
    }

    /// Sends at most so many datagrams in one call; returns how many it tried to send.
    async fn send(&mut self, server: SocketAddr, most: usize) -> usize {
        let bytes = self.payload.saturating_mul(most).min(self.contents.len());
        let transmit = Transmit::new(&self.contents[..bytes], server).segment_size(self.payload);
        let datagrams = transmit.datagrams();
        match self.socket.sender().send(&transmit).await {
            Ok(sent) => self.sent.datagrams += sent as u64,
            Err(error) => {
                self.sent.datagrams += error.sent() as u64;
                self.sent.failed += (datagrams - error.sent()) as u64;
                // Whatever the error is, give it a moment to pass.
                tokio::time::sleep(TICK).await;
            }
        }
        datagrams
    }

    fn count_echoes(&mut self) {
        while let Ok(Some(echo)) = self.socket.try_recv_batch() {
            self.sent.echoes += echo.datagrams() as u64;
        }
    }
}
