//! The scenarios for any library whose sessions are byte streams on tokio.

use super::path::PathConditions;
use super::path::Paths;
use super::scenario::{
    FANOUT_MESSAGE, FANOUT_RATE, MESSAGE, PACE, PACED_LOSS, Scenario, Size, Transfer,
};
use crate::cpu::process_cpu_ns;
use crate::heap::allocations;
use crate::scaling::point::Point;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// A library, configured as `benches/README.md` says.
pub(super) trait Transport: 'static {
    type Listener: Send + 'static;
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The client side, from which many sessions can be opened.
    type Client: Send + Sync + 'static;

    /// Opens a server in the current runtime, on loopback.
    fn listen() -> impl Future<Output = (Self::Listener, SocketAddr)> + Send;

    /// Accepts the next session, which exists once the other end has sent something.
    fn accept(listener: &mut Self::Listener) -> impl Future<Output = Self::Stream> + Send;

    /// Opens a session from a socket of its own.
    fn connect(to: SocketAddr) -> impl Future<Output = Self::Stream> + Send;

    /// Opens a client in the current runtime.
    fn client() -> Self::Client;

    /// Opens a session from the client's socket, or from its own if the library cannot share one.
    fn connect_from(
        client: &Self::Client,
        to: SocketAddr,
    ) -> impl Future<Output = Self::Stream> + Send;

    /// Waits until everything written is delivered.
    fn wait_until_delivered(stream: &mut Self::Stream) -> impl Future<Output = ()> + Send {
        async { stream.shutdown().await.expect("delivered") }
    }

    /// Returns the bytes of memory in use outside the heap.
    fn pool_bytes_in_use() -> usize {
        0
    }
}

/// Threads of the runtime.
const THREADS: usize = 2;
/// How long a thread waits for the others.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_millis(100);
/// A run that takes longer is taken for hung.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);
/// The length of a read and of a write of `Bulk` and `Lossy`.
const PIECE: usize = 64 << 10;

/// Runs a scenario once and returns its figures.
///
/// # Panics
/// If the library fails, or is too slow.
pub(super) fn run<T: Transport>(scenario: Scenario, size: &Size, seed: u64) -> Vec<f64> {
    // Dropped at the end, together with all tasks of the library.
    let runtime = runtime();
    runtime.block_on(async {
        let figures = async {
            match scenario {
                Scenario::Bulk
                | Scenario::Encrypted
                | Scenario::Lossy(_)
                | Scenario::Counted(_) => {
                    scenario.of_transfer(&transfer::<T>(scenario, size, seed).await)
                }
                Scenario::Echo => echo::<T>(size).await,
                Scenario::Paced | Scenario::WithFec => paced::<T>(size, seed).await,
                Scenario::Fanout => fanout::<T>(size).await,
                Scenario::Idle => idle::<T>(size).await,
                Scenario::Resident => panic!("it is run by a process of its own"),
                Scenario::ToKcpGo => panic!("it has no sink of kcp-go's"),
            }
        };
        timeout(HANG_TIMEOUT, figures).await.expect("it hangs")
    })
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Both ends of a session that has carried data.
struct Pair<S> {
    client: S,
    server: S,
}

/// Sends a hello and waits until it arrives at the other end.
async fn greet<T: Transport>(
    listener: &mut T::Listener,
    client: impl Future<Output = T::Stream>,
) -> Pair<T::Stream> {
    let hello = async {
        let mut client = client.await;
        client.write_all(&[7]).await.expect("written");
        client.flush().await.expect("written");
        client
    };
    let heard = async {
        let mut server = T::accept(listener).await;
        assert_eq!(server.read_u8().await.expect("a greeting"), 7);
        server
    };
    let (client, server) = tokio::join!(hello, heard);
    Pair { client, server }
}

async fn transfer<T: Transport>(scenario: Scenario, size: &Size, seed: u64) -> Transfer {
    let (mut listener, address) = T::listen().await;
    let paths = scenario
        .path_conditions()
        .map(|conditions| Paths::open(address, 1, conditions, seed));
    let to = paths.as_ref().map_or(address, |paths| paths.addresses[0]);
    let Pair { mut client, server } = greet::<T>(&mut listener, T::connect(to)).await;
    let (start, window) = size.windows(scenario);
    tokio::spawn(async move {
        let piece = vec![7; PIECE];
        while client.write_all(&piece).await.is_ok() {}
    });
    // In a task, like the other end: the main thread would have to be woken each time.
    let reading = tokio::spawn(async move {
        let mut server = server;
        read_for(&mut server, start).await;
        let (cpu, heap) = (process_cpu_ns(), allocations());
        let (bytes, took) = read_for(&mut server, window).await;
        Transfer {
            bytes: bytes as f64,
            seconds: took.as_secs_f64(),
            cpu_ns: process_cpu_ns() - cpu,
            allocations: (allocations() - heap) as f64,
        }
    });
    reading.await.expect("read")
}

/// Returns the CPU seconds of this end per gigabyte sent to a sink elsewhere.
///
/// # Panics
/// If the library fails, or is too slow.
pub(super) fn send_to<T: Transport>(address: SocketAddr, window: Duration) -> Vec<f64> {
    let runtime = runtime();
    runtime.block_on(async {
        let figures = async {
            let mut stream = T::connect(address).await;
            let (begin, cpu) = (Instant::now(), process_cpu_ns());
            let piece = vec![7; PIECE];
            let mut bytes = 0;
            while begin.elapsed() < window {
                stream.write_all(&piece).await.expect("written");
                bytes += PIECE;
            }
            T::wait_until_delivered(&mut stream).await;
            vec![(process_cpu_ns() - cpu) / bytes as f64]
        };
        timeout(HANG_TIMEOUT, figures).await.expect("it hangs")
    })
}

/// Runs so many sessions that send as fast as they can. What comes in the half of a window before the window does not
/// count, as not every library has many sessions going at once.
///
/// # Panics
/// If the library fails, or is too slow.
pub(super) fn many_sessions<T: Transport>(sessions: usize, window: Duration) -> Point {
    let runtime = runtime();
    runtime.block_on(async {
        let point = async {
            let (mut listener, address) = T::listen().await;
            let mut pairs = Vec::with_capacity(sessions);
            for _ in 0..sessions {
                pairs.push(greet::<T>(&mut listener, T::connect(address)).await);
            }
            let received = Arc::new(AtomicU64::new(0));
            for Pair {
                mut client,
                mut server,
            } in pairs
            {
                tokio::spawn(async move {
                    let piece = vec![7; PIECE];
                    while client.write_all(&piece).await.is_ok() {}
                });
                let received = Arc::clone(&received);
                tokio::spawn(async move {
                    let mut buffer = vec![0; PIECE];
                    while let Ok(bytes @ 1..) = server.read(&mut buffer).await {
                        received.fetch_add(bytes as u64, Ordering::Relaxed);
                    }
                });
            }
            sleep(window / 2).await;
            let before = received.load(Ordering::Relaxed);
            let (begin, cpu) = (Instant::now(), process_cpu_ns());
            sleep(window).await;
            let bytes = received.load(Ordering::Relaxed) - before;
            let (wall, cpu) = (begin.elapsed(), process_cpu_ns() - cpu);
            assert!(bytes > 0, "nothing came through");
            let rate = bytes as f64 / 1e6 / wall.as_secs_f64();
            Point::of(rate, cpu / bytes as f64)
        };
        timeout(HANG_TIMEOUT, point).await.expect("it hangs")
    })
}

/// The bytes received within the window, and the window's actual length.
async fn read_for(stream: &mut (impl AsyncRead + Unpin), window: Duration) -> (usize, Duration) {
    let begin = Instant::now();
    let mut buffer = vec![0; PIECE];
    let mut bytes = 0;
    let until_end = async {
        while begin.elapsed() < window {
            bytes += stream.read(&mut buffer).await.expect("bytes");
        }
    };
    // Nothing may arrive for a while: a window that ends meanwhile ends then.
    let _ = timeout(window + window / 8, until_end).await;
    (bytes, begin.elapsed())
}

async fn echo<T: Transport>(size: &Size) -> Vec<f64> {
    let (mut listener, address) = T::listen().await;
    let Pair {
        mut client,
        mut server,
    } = greet::<T>(&mut listener, T::connect(address)).await;
    tokio::spawn(async move {
        let mut buffer = [0; MESSAGE];
        while server.read_exact(&mut buffer).await.is_ok() {
            server.write_all(&buffer).await.expect("written");
            server.flush().await.expect("written");
        }
    });
    let count = size.echoes;
    // In a task, like the other end: the main thread would have to be woken each time.
    let asking = tokio::spawn(async move {
        let mut times = Vec::with_capacity(count);
        let mut buffer = [0; MESSAGE];
        for _ in 0..count + count / 10 {
            let begin = Instant::now();
            client.write_all(&buffer).await.expect("written");
            client.flush().await.expect("written");
            client.read_exact(&mut buffer).await.expect("read");
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        times.split_off(count / 10)
    });
    let mut times = asking.await.expect("answered");
    vec![percentile(&mut times, 50), percentile(&mut times, 99)]
}

/// # Panics
/// If there are no values.
pub(super) fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

/// The time from giving a message to the library until it is read at the other end.
async fn paced<T: Transport>(size: &Size, seed: u64) -> Vec<f64> {
    let (mut listener, address) = T::listen().await;
    let kinds = PACED_LOSS.map(PathConditions::lossy);
    let paths = kinds.map(|conditions| Paths::open(address, size.paced_sessions, conditions, seed));
    let mut connecting = JoinSet::new();
    for (kind, paths) in paths.iter().enumerate() {
        for &to in &paths.addresses {
            connecting.spawn(async move {
                let mut client = T::connect(to).await;
                client.write_all(&[kind as u8]).await.expect("written");
                client.flush().await.expect("written");
                client
            });
        }
    }
    // Accepted in order of arrival, which differs from the clients' order.
    let mut servers = Vec::with_capacity(connecting.len());
    for _ in 0..connecting.len() {
        let mut server = T::accept(&mut listener).await;
        let kind = server.read_u8().await.expect("a greeting");
        servers.push((usize::from(kind), server));
    }
    let clients = connecting.join_all().await;
    let epoch = Instant::now();
    let count = size.paced_messages;
    for mut client in clients {
        tokio::spawn(async move {
            let mut clock = interval(PACE);
            clock.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut message = [0; MESSAGE];
            for _ in 0..count {
                clock.tick().await;
                let sent = epoch.elapsed().as_nanos() as u64;
                message[..8].copy_from_slice(&sent.to_le_bytes());
                client.write_all(&message).await.expect("written");
                client.flush().await.expect("written");
            }
            // Dropping the stream may lose what is on its way.
            std::future::pending::<()>().await;
        });
    }
    let mut reading = JoinSet::new();
    for (kind, mut server) in servers {
        reading.spawn(async move {
            let mut times = Vec::with_capacity(count);
            let mut message = [0; MESSAGE];
            for _ in 0..count {
                server.read_exact(&mut message).await.expect("read");
                times.push(milliseconds_since(epoch, &message));
            }
            (kind, times)
        });
    }
    let mut times = PACED_LOSS.map(|_| Vec::new());
    for (kind, of_session) in reading.join_all().await {
        times[kind].extend(of_session);
    }
    times
        .iter_mut()
        .map(|times| percentile(times, 99))
        .collect()
}

/// Returns the milliseconds since a message was sent, which begins with its sending time.
pub(super) fn milliseconds_since(epoch: Instant, message: &[u8]) -> f64 {
    let sent = message.first_chunk();
    let sent = sent.map_or(0, |sent| u64::from_le_bytes(*sent));
    (epoch.elapsed().as_nanos() as u64 - sent) as f64 / 1e6
}

async fn fanout<T: Transport>(size: &Size) -> Vec<f64> {
    let (mut listener, address) = T::listen().await;
    let mut pairs = Vec::with_capacity(size.fanout_sessions);
    for _ in 0..size.fanout_sessions {
        pairs.push(greet::<T>(&mut listener, T::connect(address)).await);
    }
    let received = Arc::new(AtomicU64::new(0));
    let mut servers = Vec::with_capacity(pairs.len());
    for Pair { mut client, server } in pairs {
        servers.push(server);
        let received = Arc::clone(&received);
        tokio::spawn(async move {
            let mut message = [0; FANOUT_MESSAGE];
            while client.read_exact(&mut message).await.is_ok() {
                received.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let window = size.fanout_window;
    let sending = tokio::spawn(async move {
        // One turn per millisecond: each session sends at another time.
        let turns = 1000 / FANOUT_RATE;
        let mut clock = interval(Duration::from_millis(1));
        clock.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (begin, cpu) = (Instant::now(), process_cpu_ns());
        let mut sent = 0_u64;
        for turn in 0.. {
            clock.tick().await;
            if begin.elapsed() >= window {
                break;
            }
            for server in servers.iter_mut().skip(turn % turns).step_by(turns) {
                server
                    .write_all(&[7; FANOUT_MESSAGE])
                    .await
                    .expect("written");
                server.flush().await.expect("written");
                sent += 1;
            }
        }
        (sent, process_cpu_ns() - cpu, servers)
    });
    let (sent, cpu, _servers) = sending.await.expect("sent");
    while received.load(Ordering::Relaxed) < sent {
        sleep(Duration::from_millis(1)).await;
    }
    vec![cpu / 1e3 / sent as f64]
}

/// The heap of both ends, and the CPU time, of sessions that exchanged one hello and nothing since.
async fn idle<T: Transport>(size: &Size) -> Vec<f64> {
    let (mut listener, address) = T::listen().await;
    // What exists only once does not count: neither the first sessions, nor what each thread of the runtime
    // keeps once it has sent something.
    let client = T::client();
    let arrived = Arc::new(AtomicU64::new(0));
    let mut first = JoinSet::new();
    for _ in 0..THREADS {
        let mut pair = greet::<T>(&mut listener, T::connect_from(&client, address)).await;
        let arrived = Arc::clone(&arrived);
        first.spawn(async move {
            // Each on a thread of its own, which is kept busy until the other has arrived or is late.
            arrived.fetch_add(1, Ordering::Relaxed);
            let begin = Instant::now();
            while arrived.load(Ordering::Relaxed) < THREADS as u64
                && begin.elapsed() < RENDEZVOUS_TIMEOUT
            {
                std::thread::yield_now();
            }
            pair.client.write_all(&[7]).await.expect("written");
            pair.client.flush().await.expect("written");
            assert_eq!(pair.server.read_u8().await.expect("a greeting"), 7);
            pair
        });
    }
    let first = first.join_all().await;
    sleep(size.idle_settle).await;
    let before = memory::<T>();
    let mut pairs = Vec::with_capacity(size.idle_sessions);
    for _ in 0..size.idle_sessions {
        let connecting = T::connect_from(&client, address);
        pairs.push(greet::<T>(&mut listener, connecting).await);
    }
    sleep(size.idle_settle).await;
    let grown = memory::<T>().saturating_sub(before);
    let cpu = process_cpu_ns();
    let begin = Instant::now();
    sleep(size.idle_window).await;
    let cpu = process_cpu_ns() - cpu;
    let seconds = begin.elapsed().as_secs_f64();
    drop((first, &pairs));
    let sessions = size.idle_sessions as f64;
    vec![
        grown as f64 / 2.0 / sessions,
        cpu / 1e3 / sessions / seconds,
    ]
}

/// Returns by how many bytes the process's resident memory grows with so many sessions, both ends, that
/// have exchanged one hello.
///
/// # Panics
/// If the library fails, or is too slow.
pub(super) fn resident_growth<T: Transport>(sessions: usize) -> usize {
    let runtime = runtime();
    runtime.block_on(async {
        let (mut listener, address) = T::listen().await;
        let client = T::client();
        let greeted = greet::<T>(&mut listener, T::connect_from(&client, address)).await;
        let before = resident();
        let mut pairs = Vec::with_capacity(sessions);
        for _ in 0..sessions {
            let connecting = T::connect_from(&client, address);
            pairs.push(greet::<T>(&mut listener, connecting).await);
        }
        let grown = resident().saturating_sub(before);
        drop((greeted, pairs));
        grown
    })
}

/// Returns the resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let kilobytes = status.lines().find_map(|line| {
        let rest = line.strip_prefix("VmRSS:")?;
        rest.split_whitespace().next()?.parse::<usize>().ok()
    });
    1024 * kilobytes.expect("a number of kilobytes")
}

/// Returns the bytes in use.
fn memory<T: Transport>() -> usize {
    heap() + T::pool_bytes_in_use()
}

/// Returns the bytes of glibc's heap in use.
pub(super) fn heap() -> usize {
    // SAFETY: it has no preconditions; it locks the arenas one after the other.
    let heap = unsafe { libc::mallinfo2() };
    heap.uordblks + heap.hblkhd
}
