//! The path between the sockets of both ends: loses, duplicates, reorders and delays, by the virtual clock.

use crate::common::{Random, sockets::any};
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// What the path does to each datagram; chances are in thousandths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions {
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) delay: Duration,
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy)]
enum To {
    Server(usize),
    Client(usize),
}

pub(crate) struct Path {
    pub(crate) conditions: Conditions,
    pub(crate) address: SocketAddr,
    /// Nothing arrives before that.
    pub(crate) cut_until: Duration,
    front: UdpSocket,
    server: SocketAddr,
    /// The clients, each with the socket that stands for it towards the server.
    clients: Vec<(SocketAddr, UdpSocket)>,
    wire: BTreeMap<(Duration, u64), (To, Vec<u8>)>,
    order: u64,
    random: Random,
    buffer: Vec<u8>,
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(any()).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn socket_to(server: SocketAddr) -> UdpSocket {
    let socket = socket();
    socket.connect(server).unwrap();
    socket
}

impl Path {
    pub(crate) fn new(server: SocketAddr, conditions: Conditions, seed: u64) -> Self {
        let front = socket();
        Self {
            conditions,
            address: front.local_addr().unwrap(),
            cut_until: Duration::ZERO,
            front,
            server,
            clients: Vec::new(),
            wire: BTreeMap::new(),
            order: 0,
            random: Random::new(seed),
            buffer: vec![0; 65536],
        }
    }

    /// Another server is where the first was, which reaches nobody any more.
    pub(crate) fn replace_server(&mut self, server: SocketAddr) {
        self.server = server;
        for (_, back) in &mut self.clients {
            *back = socket_to(server);
        }
    }

    /// Takes what was sent, and delivers what is due; returns `false` if there was neither.
    pub(crate) fn pump(&mut self, now: Duration) -> bool {
        let mut moved = false;
        while let Ok((len, from)) = self.front.recv_from(&mut self.buffer) {
            let known = self.clients.iter().position(|client| client.0 == from);
            let client = known.unwrap_or_else(|| {
                self.clients.push((from, socket_to(self.server)));
                self.clients.len() - 1
            });
            self.enter(To::Server(client), len, now);
            moved = true;
        }
        for client in 0..self.clients.len() {
            while let Ok(len) = self.clients[client].1.recv(&mut self.buffer) {
                self.enter(To::Client(client), len, now);
                moved = true;
            }
        }
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= now
        {
            // Nobody may listen any more, and a full socket loses it.
            let _ = match entry.remove() {
                (To::Server(client), datagram) => self.clients[client].1.send(&datagram),
                (To::Client(client), datagram) => {
                    self.front.send_to(&datagram, self.clients[client].0)
                }
            };
            moved = true;
        }
        moved
    }

    fn enter(&mut self, to: To, len: usize, now: Duration) {
        let Conditions {
            lost,
            duplicated,
            reordered,
            delay,
        } = self.conditions;
        if self.random.chance(lost) || now < self.cut_until {
            return;
        }
        for _ in 0..1 + u64::from(self.random.chance(duplicated)) {
            let mut at = now + delay;
            if self.random.chance(reordered) {
                at += Duration::from_millis(self.random.below(30));
            }
            self.order += 1;
            let datagram = self.buffer[..len].to_vec();
            self.wire.insert((at, self.order), (to, datagram));
        }
    }
}
