//! The path between client and server: two sockets, and tasks that delay, lose and reorder datagrams.

use crate::options::Options;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What happened on the path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    lost: Arc<AtomicU64>,
}

impl Counts {
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone, Copy)]
struct Conduct {
    loss: f64,
    reorder: f64,
    delay: Duration,
}

/// Opens a path to `server`; the client talks to the address it returns.
pub(crate) async fn open(
    server: SocketAddr,
    options: &Options,
) -> io::Result<(SocketAddr, Counts)> {
    let front = Arc::new(socket()?);
    let back = Arc::new(socket()?);
    back.connect(server).await?;
    let address = front.local_addr()?;
    let conduct = Conduct {
        loss: options.loss / 100.0,
        reorder: options.reorder / 100.0,
        delay: options.delay,
    };
    let counts = Counts::default();
    let (client, known) = watch::channel(None);
    tokio::spawn(there(
        Arc::clone(&front),
        Arc::clone(&back),
        conduct,
        counts.clone(),
        client,
    ));
    tokio::spawn(home(front, back, conduct, counts.clone(), known));
    Ok((address, counts))
}

fn socket() -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // As large as the system allows: datagrams that do not fit would be lost in addition.
    socket.set_recv_buffer_size(8 << 20)?;
    socket.set_nonblocking(true)?;
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    socket.bind(&any.into())?;
    UdpSocket::from_std(socket.into())
}

/// Forwards from the client to the server.
async fn there(
    front: Arc<UdpSocket>,
    back: Arc<UdpSocket>,
    conduct: Conduct,
    counts: Counts,
    client: watch::Sender<Option<SocketAddr>>,
) {
    let mut line = Line::new(conduct, counts, 1);
    let mut buf = vec![0; 65536];
    loop {
        tokio::select! {
            received = front.recv_from(&mut buf) => {
                let Ok((len, from)) = received else { continue };
                client.send_if_modified(|known| {
                    let news = *known != Some(from);
                    *known = Some(from);
                    news
                });
                line.take(&buf[..len]);
                while let Ok((len, _)) = front.try_recv_from(&mut buf) {
                    line.take(&buf[..len]);
                }
            }
            () = line.due() => {}
        }
        while let Some(datagram) = line.next() {
            // A server that is gone is treated as one that loses everything.
            let _ = back.send(&datagram).await;
        }
    }
}

/// Forwards from the server to the client.
async fn home(
    front: Arc<UdpSocket>,
    back: Arc<UdpSocket>,
    conduct: Conduct,
    counts: Counts,
    client: watch::Receiver<Option<SocketAddr>>,
) {
    let mut line = Line::new(conduct, counts, 2);
    let mut buf = vec![0; 65536];
    loop {
        tokio::select! {
            received = back.recv(&mut buf) => {
                let Ok(len) = received else { continue };
                line.take(&buf[..len]);
                while let Ok(len) = back.try_recv(&mut buf) {
                    line.take(&buf[..len]);
                }
            }
            () = line.due() => {}
        }
        let to = *client.borrow();
        while let Some(datagram) = line.next() {
            if let Some(to) = to {
                let _ = front.send_to(&datagram, to).await;
            }
        }
    }
}

/// Datagrams on their way in one direction.
struct Line {
    conduct: Conduct,
    counts: Counts,
    waiting: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    order: u64,
    random: u64,
}

impl Line {
    fn new(conduct: Conduct, counts: Counts, seed: u64) -> Self {
        Self {
            conduct,
            counts,
            waiting: BinaryHeap::new(),
            order: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    fn chance(&mut self, of: f64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) as f64) < of * (1_u64 << 53) as f64
    }

    fn take(&mut self, datagram: &[u8]) {
        if self.chance(self.conduct.loss) {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut delay = self.conduct.delay;
        if self.chance(self.conduct.reorder) {
            delay += delay / 4 + Duration::from_millis(1);
        }
        self.order += 1;
        let due = Instant::now() + delay;
        self.waiting
            .push(Reverse((due, self.order, datagram.to_vec())));
    }

    /// Waits until a datagram has arrived.
    async fn due(&self) {
        match self.waiting.peek() {
            Some(Reverse((at, _, _))) => sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }

    /// Returns the next datagram that has arrived.
    fn next(&mut self) -> Option<Vec<u8>> {
        let Reverse((at, _, _)) = self.waiting.peek()?;
        if *at > Instant::now() {
            return None;
        }
        self.waiting.pop().map(|Reverse((_, _, datagram))| datagram)
    }
}
