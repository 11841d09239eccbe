//! A path between two ends: a thread with sockets that delays, loses and reorders datagrams.
//!
//! A network does not wait until the ends leave it a CPU. So the thread of a path that is to carry all that its ends
//! can send runs in real time: otherwise the end that a datagram wakes takes the CPU before the next one is sent, and
//! a burst of 300 takes milliseconds.

use crate::cpu::run_in_real_time;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::Timespec;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What happens on a path, in each direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathConditions {
    pub(super) delay: Duration,
    /// Percentage of datagrams lost.
    pub(super) loss: f64,
    /// Percentage of datagrams that take a quarter of the delay plus 1 ms longer than the others.
    pub(super) reordered: f64,
}

impl PathConditions {
    /// The path that issue 7 specifies, with this percentage lost.
    pub(super) fn lossy(percent: u8) -> Self {
        Self {
            delay: Duration::from_millis(10),
            loss: f64::from(percent),
            reordered: 2.0,
        }
    }
}

/// So many paths to one server, which exist as long as this value.
pub(super) struct Paths {
    /// The addresses at which clients find the server, one per client.
    pub(super) addresses: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Paths {
    /// Opens the paths. The same `seed` loses the same datagrams, by their number.
    pub(super) fn open(
        server: SocketAddr,
        count: usize,
        conditions: PathConditions,
        seed: u64,
    ) -> Self {
        let mut paths: Vec<ClientPath> = (0..count as u64)
            .map(|path| ClientPath::open(server, conditions, seed * 1000 + path))
            .collect();
        let address = |path: &ClientPath| path.client_socket.local_addr().expect("it is bound");
        let addresses = paths.iter().map(address).collect();
        let epoll = watch(&paths).expect("an epoll");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            // Many paths, whose datagrams come one by one, would take the ends' CPUs too often.
            if paths.len() == 1 {
                run_in_real_time();
            }
            let mut buffer = vec![0; 65536];
            let mut events = Vec::with_capacity(2 * paths.len());
            while !stopped.load(Ordering::Relaxed) {
                wait(&epoll, &paths, &mut events);
                for event in events.drain(..) {
                    let number = event.data.u64() as usize;
                    paths[number / 2].receive(number % 2 == 1, &mut buffer);
                }
                for path in &mut paths {
                    path.forward();
                }
            }
        });
        Self {
            addresses,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Has both sockets of each path watched: those of path `n` are number `2 * n`, the client's, and the next.
fn watch(paths: &[ClientPath]) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let sockets = paths
        .iter()
        .flat_map(|path| [&path.client_socket, &path.server_socket]);
    for (number, socket) in sockets.enumerate() {
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&epoll, socket, data, epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

/// Waits until a datagram has arrived or is due.
fn wait(epoll: &OwnedFd, paths: &[ClientPath], events: &mut Vec<epoll::Event>) {
    let now = Instant::now();
    let next = paths.iter().filter_map(ClientPath::due).min();
    let left = next.map(|at| at.saturating_duration_since(now));
    // Often enough to notice that it must stop.
    let left = left.unwrap_or(MAX_WAIT).min(MAX_WAIT);
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: left.subsec_nanos().into(),
    };
    match epoll::wait(epoll, spare_capacity(events), Some(&timeout)) {
        // Interrupted, it has waited long enough.
        Ok(_) | Err(Errno::INTR) => {}
        // Not to be tried again and again: this may be the only thread that gets the CPU.
        Err(error) => panic!("epoll_pwait2, which Linux has since 5.11: {error}"),
    }
}

/// Datagrams per path for which memory is allocated beforehand: more than the windows allow.
const SPARE_BUFFERS: usize = 4096;
/// The size of each of these in bytes.
const SPARE_BUFFER_BYTES: usize = 1536;

const MAX_WAIT: Duration = Duration::from_millis(20);

/// A datagram on its way: when it is due, its number, whether it goes to the client, its bytes.
type Delayed = (Instant, u64, bool, Vec<u8>);

/// One client's path.
struct ClientPath {
    conditions: PathConditions,
    /// Clients send here.
    client_socket: UdpSocket,
    /// Connected to the server.
    server_socket: UdpSocket,
    client: Option<SocketAddr>,
    waiting: BinaryHeap<Reverse<Delayed>>,
    /// Memory of datagrams that have passed, for reuse: where allocations are counted, none must be the
    /// path's.
    spare_buffers: Vec<Vec<u8>>,
    sequence: u64,
    random: u64,
}

impl ClientPath {
    fn open(server: SocketAddr, conditions: PathConditions, seed: u64) -> Self {
        let server_socket = socket().expect("a socket on loopback");
        server_socket.connect(server).expect("loopback");
        Self {
            conditions,
            client_socket: socket().expect("a socket on loopback"),
            server_socket,
            client: None,
            waiting: BinaryHeap::with_capacity(SPARE_BUFFERS),
            spare_buffers: (0..SPARE_BUFFERS)
                .map(|_| Vec::with_capacity(SPARE_BUFFER_BYTES))
                .collect(),
            sequence: 0,
            random: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    fn chance(&mut self, percent: f64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) as f64) < percent / 100.0 * (1_u64 << 53) as f64
    }

    fn delay_or_lose(&mut self, datagram: &[u8], to_client: bool) {
        if self.chance(self.conditions.loss) {
            return;
        }
        let mut delay = self.conditions.delay;
        if self.chance(self.conditions.reordered) {
            delay += delay / 4 + Duration::from_millis(1);
        }
        self.sequence += 1;
        let due = Instant::now() + delay;
        let mut bytes = self.spare_buffers.pop().unwrap_or_default();
        bytes.extend_from_slice(datagram);
        let waiting = (due, self.sequence, to_client, bytes);
        self.waiting.push(Reverse(waiting));
    }

    fn due(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse((at, ..))| *at)
    }

    /// Receives what the client, or the server, has sent.
    fn receive(&mut self, to_client: bool, buffer: &mut [u8]) {
        if to_client {
            while let Ok(len) = self.server_socket.recv(buffer) {
                self.delay_or_lose(&buffer[..len], true);
            }
        } else {
            while let Ok((len, from)) = self.client_socket.recv_from(buffer) {
                self.client = Some(from);
                self.delay_or_lose(&buffer[..len], false);
            }
        }
    }

    /// Forwards the datagrams that are due.
    fn forward(&mut self) {
        let now = Instant::now();
        while self.due().is_some_and(|at| at <= now)
            && let Some(Reverse((_, _, to_client, mut datagram))) = self.waiting.pop()
        {
            // An end that is gone, or whose queue is full, counts as loss.
            let _ = match (to_client, self.client) {
                (true, Some(client)) => self.client_socket.send_to(&datagram, client),
                (true, None) => Ok(0),
                (false, _) => self.server_socket.send(&datagram),
            };
            datagram.clear();
            self.spare_buffers.push(datagram);
        }
    }
}

fn socket() -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // As large as the system allows: datagrams that do not fit would be lost in addition.
    socket.set_recv_buffer_size(8 << 20)?;
    socket.set_nonblocking(true)?;
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    socket.bind(&any.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends this many datagrams through a path; returns how many arrive.
    fn arrived(count: u32, conditions: PathConditions, seed: u64) -> Vec<u32> {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let timeout = Some(Duration::from_millis(500));
        server.set_read_timeout(timeout).unwrap();
        let paths = Paths::open(server.local_addr().unwrap(), 1, conditions, seed);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for number in 0..count {
            let datagram = number.to_le_bytes();
            client.send_to(&datagram, paths.addresses[0]).unwrap();
        }
        let mut buffer = [0; 4];
        let mut numbers = Vec::new();
        while server.recv(&mut buffer).is_ok() {
            numbers.push(u32::from_le_bytes(buffer));
        }
        numbers
    }

    #[test]
    fn a_path_loses_its_share_and_the_same_seed_loses_the_same() {
        let conditions = PathConditions {
            delay: Duration::from_millis(1),
            reordered: 0.0,
            loss: 20.0,
        };
        // No more than fit in the server's queue.
        let numbers = arrived(150, conditions, 3);
        assert!((90..145).contains(&numbers.len()), "{}", numbers.len());
        assert_eq!(arrived(150, conditions, 3), numbers);
    }

    #[test]
    fn a_path_reorders_datagrams() {
        let conditions = PathConditions {
            delay: Duration::from_millis(20),
            loss: 0.0,
            reordered: 10.0,
        };
        let numbers = arrived(100, conditions, 5);
        assert_eq!(numbers.len(), 100);
        assert!(!numbers.is_sorted());
    }
}
