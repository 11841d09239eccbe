//! Real sockets under more than the consumers take: memory stays at its cap, and every datagram is
//! accounted for as delivered, dropped by us (by reason), or dropped by the kernel.
//!
//! `SLAB_NET_STRESS_SECONDS` makes the floods longer than the short form that CI runs.

use slab_net::PacketPool;
use slab_net::pipeline::{Ended, Forwarded, Overflow, QueueMonitor, QueueReceiver, forward, queue};
use slab_net::udp::{Coalescing, SocketMonitor, Transmit, UdpReceiver, UdpSender};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// How many times as much is sent as is taken.
const FLOOD: u64 = 5;
/// Datagrams that queue, socket and consumer have in hand when a flood ends, at most.
const MOST_LEFT: u64 = 1500;

fn flood_time(short: Duration) -> Duration {
    match std::env::var("SLAB_NET_STRESS_SECONDS") {
        Ok(seconds) => Duration::from_secs(seconds.parse().expect("a number of seconds")),
        Err(_) => short,
    }
}

fn small_pool() -> PacketPool {
    PacketPool::builder().max_memory(2 << 20).build().unwrap()
}

/// A thread that sends as fast as it can: singles, and runs that coalesce.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<u64>,
}

impl Flood {
    fn start(to: SocketAddr, singles_only: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let so_far = Arc::<AtomicU64>::default();
        let count = Arc::clone(&so_far);
        let run = async move {
            let sender = UdpSender::bind(ANY).unwrap();
            let bytes = vec![7; 30 * 1200];
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                if !singles_only {
                    let run = Transmit::new(&bytes, to).segment_size(1200);
                    sent += sender.send(&run).await.unwrap() as u64;
                }
                for len in [1, 300, 1200] {
                    sent += sender
                        .send(&Transmit::new(&bytes[..len], to))
                        .await
                        .unwrap() as u64;
                }
                count.store(sent, Ordering::Relaxed);
            }
            sent
        };
        let thread = std::thread::spawn(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()
                .unwrap()
                .block_on(run)
        });
        Self {
            stop,
            sent: so_far,
            thread,
        }
    }

    /// How many datagrams it sent.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A socket, the task behind it, and its queue.
struct Server {
    pool: PacketPool,
    address: SocketAddr,
    socket: SocketMonitor,
    queue: QueueMonitor,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Forwarded>,
}

impl Server {
    fn start(coalescing: Coalescing, overflow: Overflow) -> (Self, QueueReceiver) {
        let pool = small_pool();
        let receiver = UdpReceiver::builder(&pool)
            .coalescing(coalescing)
            .receive_buffer_bytes(1 << 18)
            .bind(ANY)
            .unwrap();
        let (address, socket) = (receiver.local_addr(), receiver.monitor());
        let (sender, batches) = queue(16.try_into().unwrap(), overflow);
        let queue = sender.monitor();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(forward(receiver, sender, async {
            stopped.await.unwrap_or(());
        }));
        let server = Self {
            pool,
            address,
            socket,
            queue,
            stop,
            task,
        };
        (server, batches)
    }
}

/// Every datagram of `sent` is in exactly one place.
fn assert_all_accounted_for(
    sent: u64,
    singles: bool,
    socket: &SocketMonitor,
    queue: &QueueMonitor,
) {
    let (socket, queue) = (socket.stats(), queue.stats());
    if cfg!(target_os = "linux") {
        // What it had coalesced, up to 64 datagrams, the kernel drops and counts as one.
        let most = if singles { 1 } else { 64 };
        let dropped = sent - socket.received_datagrams;
        let counted = socket.kernel_dropped_datagrams;
        assert!(
            counted <= dropped && dropped <= most * counted,
            "{dropped} {socket:?}"
        );
    }
    let offered = socket.received_datagrams - socket.dropped();
    let found = queue.delivered + queue.datagrams + queue.dropped();
    assert_eq!(found, offered, "{socket:?} {queue:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_stays_at_the_cap_and_adds_up() {
    let off = Coalescing::Off { max_datagram: 1500 };
    for (coalescing, overflow, singles) in [
        (Coalescing::On, Overflow::DropNewest, false),
        (Coalescing::On, Overflow::DropNewest, true),
        (off, Overflow::DropOldest, false),
        (Coalescing::On, Overflow::Wait, true),
    ] {
        let (server, batches) = Server::start(coalescing, overflow);
        let cap = server.pool.slab().max_memory() as u64;
        let delivered = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&delivered);
        let pool = server.pool.clone();
        let flood = Flood::start(server.address, singles);
        let (sent, is_over) = (Arc::clone(&flood.sent), Arc::clone(&flood.stop));
        let consumer = tokio::spawn(async move {
            // Holds some for long, and takes a fifth of what is sent.
            let mut held = Vec::new();
            while let Some(batch) = batches.recv().await {
                let taken = counted.fetch_add(batch.datagrams() as u64, Ordering::Relaxed);
                assert!(batch.iter().all(|d| d.packet.iter().all(|&byte| byte == 7)));
                assert!(pool.slab().stats().committed_bytes as u64 <= cap);
                held.push(batch);
                if held.len() == 24 {
                    held.clear();
                }
                while sent.load(Ordering::Relaxed) < FLOOD * taken
                    && !is_over.load(Ordering::Relaxed)
                {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
        tokio::time::sleep(flood_time(Duration::from_millis(300))).await;
        // Enough that what is taken when it is over does not count.
        while flood.sent.load(Ordering::Relaxed) < 10 * MOST_LEFT {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let sent = flood.end();
        server.stop.send(()).unwrap();
        let report = server.task.await.unwrap();
        assert_eq!(report.ended, Ended::Stopped);
        assert_eq!(report.receive_errors, 0);
        consumer.await.unwrap();
        let singles = singles || coalescing != Coalescing::On;
        assert_all_accounted_for(sent, singles, &server.socket, &server.queue);
        let stats = server.queue.stats();
        assert_eq!(stats.delivered, delivered.load(Ordering::Relaxed));
        assert!(stats.delivered > 0);
        assert!(
            stats.delivered <= sent / FLOOD + MOST_LEFT,
            "{coalescing:?} {overflow:?}: no flood: {} of {sent}",
            stats.delivered
        );
        if overflow == Overflow::Wait {
            assert_eq!(stats.dropped(), 0);
        }
        assert_eq!(server.pool.slab().stats().in_use(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_that_pause_come_back_to_a_working_receiver() {
    let (server, batches) = Server::start(Coalescing::On, Overflow::DropOldest);
    let flood = Flood::start(server.address, false);
    let pause = flood_time(Duration::from_millis(300));
    for _ in 0..2 {
        // Nobody takes anything, and a consumer holds on to what it has got.
        let mut held = Vec::new();
        while held.len() < 20 {
            held.push(batches.recv().await.unwrap());
        }
        let before = server.socket.stats().received_datagrams;
        tokio::time::sleep(pause).await;
        let after = server.socket.stats().received_datagrams;
        assert!(after > before, "it goes on reading all the while");
        drop(held);
        // What comes now is fresh, and comes at once.
        let waited = Instant::now();
        for _ in 0..100 {
            batches.recv().await.unwrap();
        }
        assert!(waited.elapsed() < Duration::from_secs(10));
    }
    let sent = flood.end();
    server.stop.send(()).unwrap();
    server.task.await.unwrap();
    while batches.recv().await.is_some() {}
    assert_all_accounted_for(sent, false, &server.socket, &server.queue);
    assert_eq!(server.pool.slab().stats().in_use(), 0);
}

#[test]
fn a_runtime_that_is_shut_down_in_full_flight_leaves_nothing_behind() {
    for overflow in [Overflow::DropNewest, Overflow::Wait] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (server, batches) = {
            let _inside = runtime.enter();
            Server::start(Coalescing::On, overflow)
        };
        let got = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&got);
        runtime.spawn(async move {
            let mut held = Vec::new();
            while let Some(batch) = batches.recv().await {
                counted.fetch_add(batch.datagrams() as u64, Ordering::Relaxed);
                held.push(batch);
                held.truncate(8);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let flood = Flood::start(server.address, false);
        while got.load(Ordering::Relaxed) < 200 {
            std::thread::sleep(Duration::from_millis(5));
        }
        runtime.shutdown_timeout(Duration::from_secs(10));
        let stats = server.queue.stats();
        flood.end();
        assert_eq!(stats.delivered, got.load(Ordering::Relaxed));
        assert_eq!(stats.datagrams, 0, "{stats:?}");
        // How much the kernel dropped after the socket was closed, nobody knows.
        let seen = server.socket.stats().received_datagrams;
        let unseen = server.socket.stats().kernel_dropped_datagrams;
        assert_all_accounted_for(seen + unseen, true, &server.socket, &server.queue);
        assert_eq!(server.pool.slab().stats().in_use(), 0);
    }
}

/// Threads with runtimes of their own, one of them pinned.
#[cfg(unix)]
#[test]
fn shards_run_in_runtimes_of_their_own() {
    let pool = small_pool();
    let shards = UdpReceiver::builder(&pool)
        .bind_shards(ANY, 2.try_into().unwrap())
        .unwrap();
    let address = shards[0].local_addr();
    assert_eq!(shards[1].local_addr(), address);
    let (stop, _) = tokio::sync::broadcast::channel::<()>(1);
    let mut threads = Vec::new();
    for shard in shards {
        let mut stopped = stop.subscribe();
        let cpu = (shard.index() == 0 && cfg!(target_os = "linux")).then_some(0);
        let run = move |receiver: UdpReceiver| async move {
            let (sender, batches) = queue(64.try_into().unwrap(), Overflow::DropNewest);
            let stop = async move {
                let _ = stopped.recv().await;
            };
            let consume = async {
                let mut got = 0;
                while let Some(batch) = batches.recv().await {
                    got += batch.datagrams() as u64;
                }
                got
            };
            tokio::join!(forward(receiver, sender, stop), consume)
        };
        threads.push(shard.spawn_thread(cpu, run).unwrap());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(async {
        for _ in 0..64 {
            let peer = UdpSender::bind(ANY).unwrap();
            let three = Transmit::new(b"onetwosix", address).segment_size(3);
            peer.send(&three).await.unwrap();
        }
    });
    stop.send(()).unwrap();
    let mut total = 0;
    for thread in threads {
        let (report, got) = thread.join().unwrap().unwrap();
        assert_eq!(report.ended, Ended::Stopped);
        assert!(got > 0, "the kernel chose one shard for 64 peers");
        total += got;
    }
    assert_eq!(total, 64 * 3);

    let mut shards = UdpReceiver::builder(&pool)
        .bind_shards(ANY, 1.try_into().unwrap())
        .unwrap();
    let no_such_cpu = shards
        .remove(0)
        .spawn_thread(Some(usize::MAX), |_| async {});
    assert!(no_such_cpu.unwrap().join().unwrap().is_err());
}
