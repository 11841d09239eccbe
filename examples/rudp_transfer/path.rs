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
struct PathConditions {
    loss: f64,
    reorder: f64,
    delay: Duration,
}

/// Opens a path to `server`; the client talks to the address it returns.
pub(crate) async fn open(
    server: SocketAddr,
    options: &Options,
) -> io::Result<(SocketAddr, Counts)> {
    let client_socket = Arc::new(socket()?);
    let server_socket = Arc::new(socket()?);
    server_socket.connect(server).await?;
    let address = client_socket.local_addr()?;
    let conditions = PathConditions {
        loss: options.loss / 100.0,
        reorder: options.reorder / 100.0,
        delay: options.delay,
    };
    let counts = Counts::default();
    let (client, known) = watch::channel(None);
    tokio::spawn(client_to_server(
        Arc::clone(&client_socket),
        Arc::clone(&server_socket),
        conditions,
        counts.clone(),
        client,
    ));
    tokio::spawn(server_to_client(
        client_socket,
        server_socket,
        conditions,
        counts.clone(),
        known,
    ));
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
async fn client_to_server(
    client_socket: Arc<UdpSocket>,
    server_socket: Arc<UdpSocket>,
    conditions: PathConditions,
    counts: Counts,
    client: watch::Sender<Option<SocketAddr>>,
) {
    let mut line = DelayLine::new(conditions, counts, 1);
    let mut buf = vec![0; 65536];
    loop {
        tokio::select! {
            received = client_socket.recv_from(&mut buf) => {
                let Ok((len, from)) = received else { continue };
                client.send_if_modified(|known| {
                    let changed = *known != Some(from);
                    *known = Some(from);
                    changed
                });
                line.delay_or_lose(&buf[..len]);
                while let Ok((len, _)) = client_socket.try_recv_from(&mut buf) {
                    line.delay_or_lose(&buf[..len]);
                }
            }
            () = line.due() => {}
        }
        while let Some(datagram) = line.next() {
            // A server that is gone is treated as one that loses everything.
            let _ = server_socket.send(&datagram).await;
        }
    }
}

/// Forwards from the server to the client.
async fn server_to_client(
    client_socket: Arc<UdpSocket>,
    server_socket: Arc<UdpSocket>,
    conditions: PathConditions,
    counts: Counts,
    client: watch::Receiver<Option<SocketAddr>>,
) {
    let mut line = DelayLine::new(conditions, counts, 2);
    let mut buf = vec![0; 65536];
    loop {
        tokio::select! {
            received = server_socket.recv(&mut buf) => {
                let Ok(len) = received else { continue };
                line.delay_or_lose(&buf[..len]);
                while let Ok(len) = server_socket.try_recv(&mut buf) {
                    line.delay_or_lose(&buf[..len]);
                }
            }
            () = line.due() => {}
        }
        let to = *client.borrow();
        while let Some(datagram) = line.next() {
            if let Some(to) = to {
                let _ = client_socket.send_to(&datagram, to).await;
            }
        }
    }
}

/// Datagrams on their way in one direction.
struct DelayLine {
    conditions: PathConditions,
    counts: Counts,
    delayed: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    sequence: u64,
    random: u64,
}

impl DelayLine {
    fn new(conditions: PathConditions, counts: Counts, seed: u64) -> Self {
        Self {
            conditions,
            counts,
            delayed: BinaryHeap::new(),
            sequence: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    fn delay_or_lose(&mut self, datagram: &[u8]) {
        if self.chance(self.conditions.loss) {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut delay = self.conditions.delay;
        if self.chance(self.conditions.reorder) {
            delay += delay / 4 + Duration::from_millis(1);
        }
        self.sequence += 1;
        let due = Instant::now() + delay;
        self.delayed
            .push(Reverse((due, self.sequence, datagram.to_vec())));
    }

    /// Waits until a datagram has arrived.
    async fn due(&self) {
        match self.delayed.peek() {
            Some(Reverse((at, _, _))) => sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }

    /// Returns the next datagram that has arrived.
    fn next(&mut self) -> Option<Vec<u8>> {
        let Reverse((at, _, _)) = self.delayed.peek()?;
        if *at > Instant::now() {
            return None;
        }
        self.delayed.pop().map(|Reverse((_, _, datagram))| datagram)
    }
}
