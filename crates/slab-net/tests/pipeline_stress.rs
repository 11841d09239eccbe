//! Real sockets under more load than the consumers take: memory stays at its cap, and every datagram is
//! counted as delivered, dropped by us (by reason), or dropped by the kernel.
//!
//! `SLAB_NET_STRESS_SECONDS` makes the floods longer than in the short form that CI runs.

use slab_net::PacketPool;
use slab_net::pipeline::{Ended, Forwarded, Overflow, QueueMonitor, QueueReceiver, forward, queue};
use slab_net::udp::{Coalescing, PacketBatch, SocketMonitor, Transmit, UdpReceiver, UdpSender};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The ratio of datagrams sent to datagrams consumed.
const FLOOD: u64 = 5;
/// Limits only how long a broken test takes to fail.
const HANG: Duration = Duration::from_secs(30);
/// The most datagrams that queue, socket and consumer hold when a flood ends.
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

const LONGEST: usize = 1200;
/// Of this many successive datagrams, all but the last three have the same length.
const TURN: u64 = 33;

/// Returns the length of a datagram from its number: most are full, so that they can coalesce.
fn len_of(number: u64) -> usize {
    match number % TURN {
        30 => 8,
        31 => 300,
        _ => LONGEST,
    }
}

/// Writes the number, followed by a byte that depends on it.
fn write_datagram(number: u64, out: &mut Vec<u8>) {
    out.extend(number.to_le_bytes());
    let end = out.len() + len_of(number) - 8;
    out.resize(end, (number * 37) as u8);
}

/// Checks that a consumer gets each datagram of a flood at most once, whole, and in order.
#[derive(Default)]
struct Checker {
    next: u64,
    count: u64,
}

impl Checker {
    fn check(&mut self, batch: &PacketBatch) {
        for datagram in batch {
            let (number, rest) = datagram.packet.split_first_chunk().expect("cut");
            let number = u64::from_le_bytes(*number);
            assert!(number >= self.next, "{number} behind {}", self.next);
            assert_eq!(datagram.packet.len(), len_of(number));
            let expected = [(number * 37) as u8; LONGEST];
            assert!(rest == &expected[..rest.len()], "{number} is damaged");
            self.next = number + 1;
            self.count += 1;
        }
    }
}

/// A thread that sends as fast as it can: single datagrams, and runs that coalesce.
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
            let sender = UdpSender::bind(LOOPBACK).unwrap();
            let mut bytes = Vec::new();
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                let run = if !singles_only && sent % TURN == 0 {
                    30
                } else {
                    1
                };
                bytes.clear();
                (sent..sent + run).for_each(|number| write_datagram(number, &mut bytes));
                let transmit = Transmit::new(&bytes, to).segment_size(len_of(sent));
                assert_eq!(sender.send(&transmit).await.unwrap() as u64, run);
                sent += run;
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

    /// Ends the flood; returns how many datagrams it sent.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Waits until something is so, which must happen sooner or later.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < HANG, "{what} never comes about");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A socket, the task that reads it, and its queue.
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
            .bind(LOOPBACK)
            .unwrap();
        let (address, socket) = (receiver.local_addr(), receiver.monitor());
        let (sender, batches) = queue(16.try_into().unwrap(), overflow);
        let queue = batches.monitor();
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

/// Each datagram sent is counted in exactly one place.
fn assert_all_accounted_for(
    sent: u64,
    singles: bool,
    socket: &SocketMonitor,
    queue: &QueueMonitor,
) {
    let (socket, queue) = (socket.stats(), queue.stats());
    if cfg!(target_os = "linux") {
        // The kernel drops up to 64 coalesced datagrams together, and counts them as one.
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
            // Holds some batches for long, and takes a fifth of what is sent.
            let (mut held, mut checker) = (Vec::new(), Checker::default());
            while let Some(batch) = batches.recv().await {
                let taken = counted.fetch_add(batch.datagrams() as u64, Ordering::Relaxed);
                checker.check(&batch);
                assert!(pool.slab().stats().committed_bytes as u64 <= cap);
                held.push(batch);
                if held.len() == 24 {
                    // The batches were not overwritten while they were held.
                    let mut again = Checker::default();
                    held.drain(..).for_each(|batch| again.check(&batch));
                }
                while sent.load(Ordering::Relaxed) < FLOOD * taken
                    && !is_over.load(Ordering::Relaxed)
                {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
        tokio::time::sleep(flood_time(Duration::from_millis(300))).await;
        // Enough that datagrams consumed after the end do not matter.
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
    let received = || server.socket.stats().received_datagrams;
    let mut checker = Checker::default();
    for _ in 0..2 {
        // Nothing is consumed, and a consumer retains what it has received.
        let mut held = Vec::new();
        while held.len() < 4 {
            held.push(batches.recv().await.unwrap());
            checker.check(&held[held.len() - 1]);
        }
        // The receiver goes on reading all the while: in either half, more than queue and receiver can hold.
        let mut at_half = 0;
        for _ in 0..2 {
            at_half = received();
            tokio::time::sleep(pause / 2).await;
            until("reading on", || received() > at_half + 64 * (16 + 8)).await;
        }
        drop(held);
        // The next batch is fresh: everything read in the first half of the pause has been dropped.
        let batch = batches.recv().await.unwrap();
        checker.check(&batch);
        let first = checker.next - batch.datagrams() as u64;
        assert!(first >= at_half, "{first} of {at_half} read by then");
        for _ in 0..100 {
            let next = tokio::time::timeout(HANG, batches.recv()).await;
            checker.check(&next.expect("hangs").unwrap());
        }
    }
    let sent = flood.end();
    server.stop.send(()).unwrap();
    server.task.await.unwrap();
    while let Some(batch) = batches.recv().await {
        checker.check(&batch);
    }
    assert_eq!(server.queue.stats().delivered, checker.count);
    assert_all_accounted_for(sent, false, &server.socket, &server.queue);
    assert_eq!(server.pool.slab().stats().in_use(), 0);
}

/// Of two consumers one panics while it holds batches; the other one gets the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_panics_in_a_flood_takes_nobody_with_it() {
    let (server, batches) = Server::start(Coalescing::On, Overflow::DropNewest);
    let flood = Flood::start(server.address, true);
    let consume = |batches: QueueReceiver, most: u64| async move {
        let (mut held, mut checker) = (Vec::new(), Checker::default());
        while let Some(batch) = batches.recv().await {
            checker.check(&batch);
            held.push(batch);
            if checker.count >= most {
                // Prints nothing, unlike `panic!`.
                std::panic::resume_unwind(Box::new(checker.count));
            }
            held.truncate(4);
        }
        checker.count
    };
    let unlucky = tokio::spawn(consume(batches.clone(), 1000));
    let other = tokio::spawn(consume(batches, u64::MAX));
    let panic = unlucky.await.unwrap_err().into_panic();
    let by_unlucky = *panic.downcast::<u64>().expect("a check failed");
    let before = server.queue.stats().delivered;
    until("going on", || {
        server.queue.stats().delivered > before + 1000
    })
    .await;
    tokio::time::sleep(flood_time(Duration::ZERO)).await;
    let sent = flood.end();
    server.stop.send(()).unwrap();
    assert_eq!(server.task.await.unwrap().ended, Ended::Stopped);
    let by_other = other.await.unwrap();
    assert_eq!(server.queue.stats().delivered, by_unlucky + by_other);
    assert_all_accounted_for(sent, true, &server.socket, &server.queue);
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
        let [is_over, has_stopped] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (counted, stops) = (Arc::clone(&got), Arc::clone(&is_over));
        let stopped = Arc::clone(&has_stopped);
        runtime.spawn(async move {
            let (mut held, mut checker) = (Vec::new(), Checker::default());
            while let Some(batch) = batches.recv().await {
                checker.check(&batch);
                counted.store(checker.count, Ordering::Relaxed);
                held.push(batch);
                held.truncate(8);
                tokio::time::sleep(Duration::from_millis(1)).await;
                if stops.load(Ordering::Relaxed) {
                    // Waits for ever, holding these, with the queue as it is.
                    stopped.store(true, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                }
            }
        });
        let flood = Flood::start(server.address, true);
        let (socket, queue) = (server.socket.clone(), server.queue.clone());
        let sent = runtime.block_on(async {
            until("a flood", || got.load(Ordering::Relaxed) >= 200).await;
            if overflow != Overflow::Wait {
                is_over.store(true, Ordering::Relaxed);
                // Before that it may take one more.
                until("its end", || has_stopped.load(Ordering::Relaxed)).await;
                until("a full queue", || queue.stats().datagrams == 16).await;
            }
            // Nobody counts what is still queued in the kernel when its socket is closed.
            let sent = flood.end();
            let read = || {
                let stats = socket.stats();
                !cfg!(target_os = "linux")
                    || stats.received_datagrams + stats.kernel_dropped_datagrams == sent
            };
            until("all of it read", read).await;
            sent
        });
        runtime.shutdown_timeout(HANG);
        let stats = server.queue.stats();
        assert_eq!(stats.delivered, got.load(Ordering::Relaxed));
        assert_eq!(stats.datagrams, 0, "{stats:?}");
        if overflow != Overflow::Wait {
            assert_eq!(stats.dropped_closed, 16, "{stats:?}");
        }
        assert_all_accounted_for(sent, true, &server.socket, &server.queue);
        assert_eq!(server.pool.slab().stats().in_use(), 0);
    }
}

/// The CPUs that the calling thread may run on, in Linux's format.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_string()
}

/// The last of these CPUs: not CPU 0, if there is another.
fn last_cpu(allowed: &str) -> Option<usize> {
    allowed.rsplit([',', '-']).next()?.parse().ok()
}

/// Threads with runtimes of their own, one of them pinned.
#[cfg(unix)]
#[test]
fn shards_run_in_runtimes_of_their_own() {
    let pool = small_pool();
    let shards = UdpReceiver::builder(&pool)
        .bind_shards(LOOPBACK, 2.try_into().unwrap())
        .unwrap();
    let address = shards[0].local_addr();
    assert_eq!(shards[1].local_addr(), address);
    let (stop, _) = tokio::sync::broadcast::channel::<()>(1);
    let mut threads = Vec::new();
    for shard in shards {
        let mut stopped = stop.subscribe();
        let index = shard.index();
        let cpu = last_cpu(&allowed_cpus()).filter(|_| index == 0);
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
            let (report, got) = tokio::join!(forward(receiver, sender, stop), consume);
            let name = std::thread::current().name().map(str::to_owned);
            assert_eq!(name, Some(format!("udp-shard-{index}")));
            (report, got, allowed_cpus())
        };
        threads.push(shard.spawn_thread(cpu, run).unwrap());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(async {
        for _ in 0..64 {
            let peer = UdpSender::bind(LOOPBACK).unwrap();
            let three = Transmit::new(b"onetwosix", address).segment_size(3);
            peer.send(&three).await.unwrap();
        }
    });
    stop.send(()).unwrap();
    let (mut total, mut all_cpus) = (0, Vec::new());
    for thread in threads {
        let (report, got, cpus) = thread.join().unwrap().unwrap();
        assert_eq!(report.ended, Ended::Stopped);
        all_cpus.push(cpus);
        assert!(got > 0, "the kernel chose one shard for 64 peers");
        total += got;
    }
    assert_eq!(total, 64 * 3);
    if cfg!(target_os = "linux") {
        let last = last_cpu(&allowed_cpus()).unwrap().to_string();
        assert_eq!(all_cpus, [last, allowed_cpus()]);
    }

    let mut shards = UdpReceiver::builder(&pool)
        .bind_shards(LOOPBACK, 1.try_into().unwrap())
        .unwrap();
    let no_such_cpu = shards
        .remove(0)
        .spawn_thread(Some(usize::MAX), |_| async {});
    let error = no_such_cpu.unwrap().join().unwrap().unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with(&format!(
        "cannot restrict the thread to CPU {}: ",
        usize::MAX
    )));
}
