//! Random programs over several receivers that share a small pool, by readiness and by io_uring: who receives
//! how, who holds what for how long, when memory runs out and comes back, when the thread of a request ends,
//! when a receiver stops or goes. Each datagram is delivered once, in order and as it was, or counted; nobody
//! is left waiting; all memory is accounted for, and comes back.
//!
//! A failure names its seed: see `programs`.
#![cfg(target_os = "linux")]

mod programs;
#[path = "udp/common/mod.rs"]
mod udp_common;

use programs::{Random, Woken};
use slab_net::slab_core::Chunk;
use slab_net::udp::{Coalescing, PacketBatch, SocketMonitor, Transmit, UdpReceiver, UdpSender};
use slab_net::{PacketPool, SizeClasses};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use udp_common::{HANG, LOOPBACK};

const STEPS: usize = 120;
/// What may be queued in a socket, by a generous estimate of what the kernel counts, so that it drops none.
const MOST_QUEUED: usize = 300_000;

/// A receiver, and what was sent to it.
struct Endpoint {
    receiver: UdpReceiver,
    monitor: SocketMonitor,
    is_coalescing: bool,
    max_datagram: usize,
    deliver_truncated: bool,
    is_stopped: bool,
    /// Neither delivered nor known to be dropped.
    expected: VecDeque<Vec<u8>>,
    sent: u64,
    delivered: (u64, u64),
    skipped: u64,
    queued: usize,
    woken: Arc<Woken>,
}

impl Endpoint {
    fn new(random: &mut Random, pool: &PacketPool, io_uring: bool) -> Self {
        let is_coalescing = random.chance(400);
        let max_datagram = random.pick(&[64, 1500, 1500]);
        let deliver_truncated = random.chance(300);
        let builder = UdpReceiver::builder(pool)
            .coalescing(match is_coalescing {
                true => Coalescing::On,
                false => Coalescing::Off { max_datagram },
            })
            .deliver_truncated(deliver_truncated)
            .source_only(random.chance(300))
            .receive_buffer_bytes(1 << 20);
        #[cfg(feature = "io-uring")]
        let builder = builder.io_uring(io_uring);
        #[cfg(not(feature = "io-uring"))]
        let _ = io_uring;
        let receiver = builder.bind(LOOPBACK).unwrap();
        Self {
            monitor: receiver.monitor(),
            receiver,
            is_coalescing,
            max_datagram: if is_coalescing { 1 << 16 } else { max_datagram },
            deliver_truncated,
            is_stopped: false,
            expected: VecDeque::new(),
            sent: 0,
            delivered: (0, 0),
            skipped: 0,
            queued: 0,
            woken: Arc::default(),
        }
    }

    /// Those before it, which were not delivered, are dropped.
    fn deliver(&mut self, bytes: &[u8]) {
        self.delivered.0 += 1;
        self.delivered.1 += bytes.len() as u64;
        loop {
            let expected = self.expected.pop_front().expect("it was never sent");
            if expected == bytes {
                return;
            }
            self.skipped += 1;
        }
    }

    fn deliver_batch(&mut self, batch: &PacketBatch) {
        assert!(self.deliver_truncated || !batch.is_truncated());
        for datagram in batch {
            assert!(datagram.packet.len() <= self.max_datagram);
            self.deliver(datagram.packet);
        }
    }

    fn poll(&mut self) -> Poll<PacketBatch> {
        self.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        let polled = self
            .receiver
            .poll_recv_batch(&mut Context::from_waker(&waker));
        polled.map(|batch| batch.expect("no error was caused"))
    }

    fn check(&self) {
        let stats = self.monitor.stats();
        assert_eq!(stats.kernel_dropped_datagrams, 0);
        assert!(stats.received_datagrams <= self.sent);
        assert!(self.delivered.0 + stats.dropped() <= stats.received_datagrams);
    }

    /// Everything that was sent has been received, and what of it there is has been taken.
    fn settle(&mut self) {
        let stats = self.monitor.stats();
        assert_eq!(stats.received_datagrams, self.sent);
        assert_eq!(self.delivered.0 + stats.dropped(), self.sent);
        let bytes = self.delivered.1 + stats.dropped_bytes();
        assert_eq!(bytes, stats.received_bytes);
        self.skipped += self.expected.len() as u64;
        self.expected.clear();
        assert_eq!(self.skipped, stats.dropped());
        self.queued = 0;
    }
}

struct Program {
    random: Random,
    pool: PacketPool,
    io_uring: bool,
    endpoints: Vec<Endpoint>,
    sender: UdpSender,
    /// With what they have to contain.
    held: Vec<(PacketBatch, Vec<u8>)>,
    taken: Vec<Chunk>,
    number: u32,
}

impl Program {
    fn new(mut random: Random, io_uring: bool) -> Self {
        let mut sizes = SizeClasses::network().sizes().to_vec();
        sizes.push(66 << 10);
        let pool = PacketPool::builder()
            .max_memory(random.pick(&[2, 4, 8]) << 20)
            .size_classes(SizeClasses::explicit(&sizes).unwrap())
            .build()
            .unwrap();
        let endpoints = (0..1 + random.below(3))
            .map(|_| Endpoint::new(&mut random, &pool, io_uring))
            .collect();
        Self {
            random,
            pool,
            io_uring,
            endpoints,
            sender: UdpSender::bind(LOOPBACK).unwrap(),
            held: Vec::new(),
            taken: Vec::new(),
            number: 0,
        }
    }

    fn any(&mut self) -> usize {
        self.random.below(self.endpoints.len() as u64) as usize
    }

    async fn send(&mut self) {
        let at = self.any();
        if self.endpoints[at].is_stopped {
            return;
        }
        for _ in 0..1 + self.random.below(6) {
            let size = self.random.pick(&[0, 4, 40, 200, 1200, 1501]);
            let count = match self.random.below(3) {
                0 if size > 0 => 1 + self.random.below(40) as usize,
                _ => 1,
            };
            let len = size * count - self.random.below(size as u64 / 2 + 1) as usize;
            let mut bytes = udp_common::payload(self.number.into(), len);
            // Distinct even if they are short.
            let datagrams = bytes.chunks_mut(size.max(1));
            for (number, datagram) in (self.number..).zip(datagrams) {
                let mark = number.to_le_bytes();
                let marked = datagram.len().min(4);
                datagram[..marked].copy_from_slice(&mark[..marked]);
            }
            self.number += count as u32;
            let one = &mut self.endpoints[at];
            let datagrams = bytes.len().div_ceil(size.max(1)).max(1);
            let cost = match one.is_coalescing {
                true => 4000 + bytes.len() * 3 / 2,
                false => datagrams * 4000,
            };
            if one.queued + cost > MOST_QUEUED {
                return;
            }
            one.queued += cost;
            let to = one.receiver.local_addr();
            let transmit = Transmit::new(&bytes, to).segment_size(size);
            let sent = self.sender.send(&transmit).await.unwrap();
            assert_eq!(sent, datagrams);
            one.sent += sent as u64;
            let room = one.max_datagram;
            let cut = |datagram: &[u8]| datagram[..datagram.len().min(room)].to_vec();
            match bytes.is_empty() {
                true => one.expected.push_back(Vec::new()),
                false => one.expected.extend(bytes.chunks(size).map(cut)),
            }
        }
    }

    fn hold(&mut self, batch: PacketBatch) {
        let contents = batch.contents().to_vec();
        self.held.push((batch, contents));
    }

    /// Drops what is held in random order, but some.
    fn drop_held(&mut self, keep: usize) {
        while self.held.len() > keep {
            let at = self.random.below(self.held.len() as u64) as usize;
            let (batch, contents) = self.held.swap_remove(at);
            assert!(batch.contents() == contents, "overwritten");
        }
    }

    /// Receives once, in one of the ways there are.
    fn receive(&mut self) {
        let at = self.any();
        let one = &mut self.endpoints[at];
        let batch = match self.random.below(6) {
            0 => {
                let waker = Waker::from(Arc::clone(&one.woken));
                let polled = one.receiver.poll_recv(&mut Context::from_waker(&waker));
                if let Poll::Ready(datagram) = polled {
                    one.deliver(&datagram.expect("no error was caused").packet);
                }
                return;
            }
            1 => {
                // The request that this thread makes ends with it.
                let elsewhere = std::thread::scope(|scope| {
                    scope.spawn(|| one.receiver.try_recv_batch()).join()
                });
                elsewhere.unwrap().expect("no error was caused")
            }
            2 | 3 => one.receiver.try_recv_batch().expect("no error was caused"),
            _ => match one.poll() {
                Poll::Ready(batch) => Some(batch),
                Poll::Pending => None,
            },
        };
        if let Some(batch) = batch {
            one.deliver_batch(&batch);
            self.hold(batch);
        }
    }

    /// Takes all memory of the pool but a few chunks.
    fn exhaust(&mut self) {
        let slab = self.pool.slab();
        for &size in slab.size_classes().sizes().iter().rev() {
            while let Ok(chunk) = slab.try_alloc(size) {
                self.taken.push(chunk);
            }
        }
        let back = self.random.below(8);
        self.give_back(back);
    }

    fn give_back(&mut self, count: u64) {
        for _ in 0..count.min(self.taken.len() as u64) {
            let at = self.random.below(self.taken.len() as u64) as usize;
            self.taken.swap_remove(at);
        }
    }

    /// Receives, whenever woken, until nothing is left.
    async fn quiesce(&mut self, at: usize) {
        let since = Instant::now();
        loop {
            let one = &mut self.endpoints[at];
            match one.poll() {
                Poll::Ready(batch) => {
                    one.deliver_batch(&batch);
                    if self.random.chance(300) {
                        self.hold(batch);
                    }
                    continue;
                }
                Poll::Pending => {}
            }
            let is_all = one.monitor.stats().received_datagrams == one.sent;
            // If it dropped what it read, it has woken itself to look for more.
            if is_all && !one.woken.0.load(Ordering::Relaxed) {
                break;
            }
            while !one.woken.0.load(Ordering::Relaxed) {
                assert!(since.elapsed() < HANG, "nobody woke who waits");
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        }
        let one = &mut self.endpoints[at];
        one.settle();
        assert!(self.io_uring || one.receiver.held_bytes() == 0);
    }

    /// The receiver stops, delivers what it has, and another takes its place.
    fn stop(&mut self) {
        let at = self.any();
        let one = &mut self.endpoints[at];
        one.receiver.stop().unwrap();
        one.is_stopped = true;
        while let Some(batch) = one.receiver.try_recv_batch().unwrap() {
            one.deliver_batch(&batch);
        }
        one.settle();
        if self.random.chance(500) {
            self.replace(at);
        }
    }

    fn replace(&mut self, at: usize) {
        let new = Endpoint::new(&mut self.random, &self.pool, self.io_uring);
        let old = std::mem::replace(&mut self.endpoints[at], new);
        let (monitor, delivered) = (old.monitor, old.delivered);
        drop(old.receiver);
        let stats = monitor.stats();
        assert_eq!(delivered.0 + stats.dropped(), stats.received_datagrams);
        assert_eq!(delivered.1 + stats.dropped_bytes(), stats.received_bytes);
    }

    fn check(&self) {
        self.endpoints.iter().for_each(Endpoint::check);
        let receivers = self.endpoints.iter().map(|one| one.receiver.held_bytes());
        let held = self.held.iter().map(|(batch, _)| batch.chunk_bytes());
        let taken = self.taken.iter().map(Chunk::capacity);
        let all: usize = receivers.chain(held).chain(taken).sum();
        assert_eq!(self.pool.slab().stats().in_use_bytes(), all);
    }

    async fn step(&mut self) {
        match self.random.below(100) {
            0..=29 => self.send().await,
            30..=64 => self.receive(),
            65..=74 => {
                let keep = self.random.below(20) as usize;
                self.drop_held(keep);
            }
            75..=78 => self.exhaust(),
            79..=81 => {
                let back = self.random.below(200);
                self.give_back(back);
            }
            82..=85 => self.taken.clear(),
            86..=89 => tokio::task::yield_now().await,
            90 => self.stop(),
            91 => {
                let at = self.any();
                self.replace(at);
            }
            _ => {
                let at = self.any();
                self.quiesce(at).await;
            }
        }
        self.check();
    }
}

fn run(io_uring: bool) {
    programs::run(60, |seed| async move {
        let mut program = Program::new(Random::new(seed), io_uring);
        #[cfg(feature = "io-uring")]
        if io_uring && !program.endpoints[0].receiver.uses_io_uring() {
            return udp_common::skipped("io_uring", &std::io::ErrorKind::Unsupported.into());
        }
        for _ in 0..STEPS {
            program.step().await;
        }
        for at in 0..program.endpoints.len() {
            program.quiesce(at).await;
        }
        program.drop_held(0);
        let Program {
            pool,
            endpoints,
            taken,
            ..
        } = program;
        drop((endpoints, taken));
        assert_eq!(pool.slab().stats().in_use(), 0);
    });
}

#[test]
fn receivers_by_readiness_account_for_every_datagram() {
    run(false);
}

#[cfg(feature = "io-uring")]
#[test]
fn receivers_by_io_uring_account_for_every_datagram() {
    run(true);
}
