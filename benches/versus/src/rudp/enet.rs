//! rusty_enet: ENet, a library that is polled, on two threads. It has no stream, so it sends whole
//! messages, and its send queue has no bound, so the sender itself waits for the receiver.

use super::path::{PathConditions, Paths};
use super::scenario::{
    FANOUT_MESSAGE, FANOUT_RATE, MESSAGE, PACE, PACED_LOSS, Scenario, Size, Transfer,
};
use super::streams::{heap, milliseconds_since, percentile};
use super::transports::socket;
use crate::cpu::process_cpu_ns;
use rusty_enet::{Event, Host, HostSettings, Packet, PeerID};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A run that takes longer is taken for hung.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);
/// The length of a message of `Bulk` and `Lossy`.
const PIECE: usize = 64 << 10;
/// The most bytes sent and not yet received: the same as the others' window.
const IN_FLIGHT: u64 = 1024 * 1400;
const CHANNEL: u8 = 0;

/// Runs a scenario once and returns its figures.
///
/// # Panics
/// If the library fails, or is too slow.
pub(super) fn run(scenario: Scenario, size: &Size, seed: u64) -> Vec<f64> {
    match scenario {
        Scenario::Bulk | Scenario::Lossy(_) => bulk(scenario, size, seed),
        Scenario::Echo => echo(size),
        Scenario::Paced => paced(size, seed),
        Scenario::Fanout => fanout(size),
        Scenario::Idle => idle(size),
        Scenario::Encrypted
        | Scenario::WithFec
        | Scenario::Counted(_)
        | Scenario::Resident
        | Scenario::ToKcpGo => panic!("it has no such case"),
    }
}

/// One end, and its deadline.
struct End {
    host: Host<UdpSocket>,
    begin: Instant,
}

/// What arrived.
enum Arrival {
    Connected(PeerID),
    Received(Packet),
}

impl End {
    fn open(peers: usize) -> (Self, SocketAddr) {
        let socket = socket();
        let address = socket.local_addr().expect("an address");
        let settings = HostSettings {
            peer_limit: peers,
            channel_limit: 1,
            ..HostSettings::default()
        };
        let host = Host::new(socket, settings).expect("a host");
        let end = Self {
            host,
            begin: Instant::now(),
        };
        (end, address)
    }

    /// Sends what is queued, and returns what arrived, if anything did.
    fn poll(&mut self) -> Option<Arrival> {
        assert!(self.begin.elapsed() < HANG_TIMEOUT, "it hangs");
        match self.host.service().expect("loopback")? {
            Event::Connect { peer, .. } => Some(Arrival::Connected(peer.id())),
            Event::Receive { packet, .. } => Some(Arrival::Received(packet)),
            Event::Disconnect { .. } => panic!("a session ended"),
        }
    }

    /// Waits for a datagram, for at most a millisecond, which is the resolution of the library's timers.
    fn wait(&self) {
        let mut ready = libc::pollfd {
            fd: self.host.socket().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the pointer points to one entry, which outlives the call.
        unsafe { libc::poll(&raw mut ready, 1, 1) };
    }

    /// Returns the next message, or `None` once `stop` holds.
    fn receive(&mut self, stop: &AtomicBool) -> Option<Packet> {
        while !stop.load(Ordering::Relaxed) {
            match self.poll() {
                Some(Arrival::Received(packet)) => return Some(packet),
                Some(Arrival::Connected(_)) => {}
                None => self.wait(),
            }
        }
        None
    }

    fn send(&mut self, to: PeerID, bytes: &[u8]) {
        let packet = Packet::reliable(bytes);
        let peer = self.host.peer_mut(to);
        peer.send(CHANNEL, &packet).expect("a session");
    }
}

/// Sessions with one end at `client`, and each end's id for them.
fn connect(client: &mut End, server: &mut End, to: &[SocketAddr]) -> (Vec<PeerID>, Vec<PeerID>) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for &address in to {
        client.host.connect(address, 1, 0).expect("a free place");
    }
    while ours.len() < to.len() || theirs.len() < to.len() {
        for (end, known) in [(&mut *client, &mut ours), (&mut *server, &mut theirs)] {
            match end.poll() {
                Some(Arrival::Connected(peer)) => known.push(peer),
                Some(Arrival::Received(_)) => unreachable!("nobody sends yet"),
                None => {}
            }
        }
    }
    (ours, theirs)
}

fn bulk(scenario: Scenario, size: &Size, seed: u64) -> Vec<f64> {
    let (mut server, address) = End::open(1);
    let (mut client, _) = End::open(1);
    let paths = scenario
        .path_conditions()
        .map(|conditions| Paths::open(address, 1, conditions, seed));
    let to = paths.as_ref().map_or(address, |paths| paths.addresses[0]);
    let (peers, _) = connect(&mut client, &mut server, &[to]);
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (start, window) = size.windows(scenario);
    let mut begin = Instant::now();
    let mut before = None;
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(packet) = server.receive(&stop) {
                received.fetch_add(packet.data().len() as u64, Ordering::Relaxed);
            }
        });
        let piece = vec![7; PIECE];
        let mut sent = 0;
        loop {
            let got = received.load(Ordering::Relaxed);
            match before {
                None if begin.elapsed() >= start => {
                    before = Some((got, process_cpu_ns()));
                    begin = Instant::now();
                }
                Some(_) if begin.elapsed() >= window => break,
                _ => {}
            }
            if sent - got < IN_FLIGHT {
                client.send(peers[0], &piece);
                sent += PIECE as u64;
            } else if client.poll().is_none() {
                client.wait();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (took, cpu) = (begin.elapsed(), process_cpu_ns());
    let (got, cpu_before) = before.unwrap_or_default();
    scenario.of_transfer(&Transfer {
        bytes: (received.into_inner() - got) as f64,
        seconds: took.as_secs_f64(),
        cpu_ns: cpu - cpu_before,
        allocations: 0.0,
    })
}

fn echo(size: &Size) -> Vec<f64> {
    let (mut server, address) = End::open(1);
    let (mut client, _) = End::open(1);
    let (peers, theirs) = connect(&mut client, &mut server, &[address]);
    let stop = AtomicBool::new(false);
    let mut times = Vec::with_capacity(size.echoes);
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(packet) = server.receive(&stop) {
                server.send(theirs[0], packet.data());
                server.host.flush();
            }
        });
        for _ in 0..size.echoes + size.echoes / 10 {
            let begin = Instant::now();
            client.send(peers[0], &[7; MESSAGE]);
            client.host.flush();
            client.receive(&AtomicBool::new(false));
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let mut times = times.split_off(size.echoes / 10);
    vec![percentile(&mut times, 50), percentile(&mut times, 99)]
}

fn paced(size: &Size, seed: u64) -> Vec<f64> {
    let sessions = PACED_LOSS.len() * size.paced_sessions;
    let (mut server, address) = End::open(sessions);
    let (mut client, _) = End::open(sessions);
    let kinds = PACED_LOSS.map(PathConditions::lossy);
    let paths = kinds.map(|conditions| Paths::open(address, size.paced_sessions, conditions, seed));
    // One kind after the other, so that each session's kind is known.
    let peers = paths
        .each_ref()
        .map(|paths| connect(&mut client, &mut server, &paths.addresses).0);
    let all = sessions * size.paced_messages;
    let (epoch, stop) = (Instant::now(), AtomicBool::new(false));
    let mut times = thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut times = PACED_LOSS.map(|_| Vec::new());
            while times.iter().map(Vec::len).sum::<usize>() < all
                && let Some(packet) = server.receive(&stop)
            {
                let kind = usize::from(packet.data()[KIND_OFFSET]);
                times[kind].push(milliseconds_since(epoch, packet.data()));
            }
            times
        });
        let mut message = [0; MESSAGE];
        let mut next = Instant::now();
        let mut left = size.paced_messages;
        while !reading.is_finished() {
            if left > 0 && Instant::now() >= next {
                for (kind, peers) in peers.iter().enumerate() {
                    message[KIND_OFFSET] = kind as u8;
                    for &peer in peers {
                        let sent = epoch.elapsed().as_nanos() as u64;
                        message[..KIND_OFFSET].copy_from_slice(&sent.to_le_bytes());
                        client.send(peer, &message);
                    }
                }
                client.host.flush();
                next += PACE;
                left -= 1;
            } else if client.poll().is_none() {
                client.wait();
            }
        }
        reading.join().expect("read")
    });
    times
        .iter_mut()
        .map(|times| percentile(times, 99))
        .collect()
}

/// Where a paced message says which kind of path it takes, after the time when it was sent.
const KIND_OFFSET: usize = 8;

fn fanout(size: &Size) -> Vec<f64> {
    let count = size.fanout_sessions;
    let (mut server, address) = End::open(count);
    let (mut client, _) = End::open(count);
    let (_, peers) = connect(&mut client, &mut server, &vec![address; count]);
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let cpu = process_cpu_ns();
    let mut sent = 0_u64;
    thread::scope(|scope| {
        scope.spawn(|| {
            while client.receive(&stop).is_some() {
                received.fetch_add(1, Ordering::Relaxed);
            }
        });
        let turns = 1000 / FANOUT_RATE;
        let mut next = Instant::now();
        let end = next + size.fanout_window;
        let mut turn = 0;
        while Instant::now() < end || received.load(Ordering::Relaxed) < sent {
            let now = Instant::now();
            if now < end && now >= next {
                for &peer in peers.iter().skip(turn % turns).step_by(turns) {
                    server.send(peer, &[7; FANOUT_MESSAGE]);
                    sent += 1;
                }
                server.host.flush();
                turn += 1;
                next += Duration::from_millis(1);
            } else if server.poll().is_none() {
                server.wait();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    vec![(process_cpu_ns() - cpu) / 1e3 / sent as f64]
}

/// The library allocates all its peers at once, so that is what counts.
fn idle(size: &Size) -> Vec<f64> {
    let count = size.idle_sessions;
    let before = heap();
    let (mut server, address) = End::open(count);
    let (mut client, _) = End::open(count);
    let _peers = connect(&mut client, &mut server, &vec![address; count]);
    let grown = heap().saturating_sub(before);
    let (begin, cpu) = (Instant::now(), process_cpu_ns());
    while begin.elapsed() < size.idle_window {
        for end in [&mut server, &mut client] {
            while end.poll().is_some() {}
        }
        client.wait();
    }
    let cpu = process_cpu_ns() - cpu;
    let (sessions, seconds) = (count as f64, begin.elapsed().as_secs_f64());
    vec![
        grown as f64 / 2.0 / sessions,
        cpu / 1e3 / sessions / seconds,
    ]
}
