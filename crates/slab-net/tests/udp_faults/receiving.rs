//! Whatever arrives: each datagram is delivered once, in order and as it was, or counted as dropped for one
//! reason; each error is returned once; who waits is woken; all memory comes back.

use crate::HANG;
use crate::kernel::{Arrival, Arrived, install, kernel, uninstall};
use crate::programs::{self, Random, Woken};
use bytes::BytesMut;
use slab_net::PacketPool;
use slab_net::pipeline::{Ended, Overflow, forward, queue};
use slab_net::slab_core::Chunk;
use slab_net::udp::{
    BytesMutReceiver, Coalescing, Datagram, PacketBatch, SocketMonitor, UdpReceiver,
    UdpReceiverBuilder,
};
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

const STEPS: usize = 150;

enum Receiver {
    Pool(Box<UdpReceiver>),
    BytesMut(Box<BytesMutReceiver>),
}

/// What one call returned.
enum Got {
    Batch(PacketBatch),
    Datagram(Datagram),
    BytesMut(Datagram<BytesMut>),
    Error(io::Error),
    /// There is nothing now.
    Nothing,
    Pending,
}

/// What is kept of what was received, and what it has to contain.
enum Held {
    Batch(PacketBatch, Vec<u8>),
    Packet(Datagram, Vec<u8>),
    BytesMut(BytesMut, Vec<u8>),
}

struct Program {
    random: Random,
    receiver: Receiver,
    pool: PacketPool,
    monitor: SocketMonitor,
    max_datagram: usize,
    deliver_truncated: bool,
    is_coalescing: bool,
    /// What has arrived, and is neither delivered nor known to be dropped.
    expected: VecDeque<(SocketAddr, Vec<u8>)>,
    skipped: u64,
    delivered: (u64, u64),
    errors: u64,
    /// All memory that the program holds back.
    taken: Vec<Chunk>,
    was_exhausted: bool,
    held: Vec<Held>,
    woken: Arc<Woken>,
    next_port: u16,
}

fn poll<T>(poll: Poll<io::Result<T>>, got: impl FnOnce(T) -> Got) -> Got {
    match poll {
        Poll::Pending => Got::Pending,
        Poll::Ready(Ok(one)) => got(one),
        Poll::Ready(Err(error)) => Got::Error(error),
    }
}

impl Program {
    fn arrive(&mut self) {
        if self.random.chance(80) {
            let code = self.random.pick(&[
                libc::ECONNREFUSED,
                libc::EHOSTUNREACH,
                libc::ENOMEM,
                libc::ENETDOWN,
            ]);
            return kernel(|kernel| kernel.arrive(Arrival::Error(code)));
        }
        let mut len = self.random.pick(&[0, 1, 40, 40, 700, 1200, 1500, 9000]);
        let mut stride = None;
        if self.is_coalescing && self.random.chance(500) {
            let size = self.random.pick(&[1, 8, 100, 999, 1200]);
            let count = 1 + self.random.below(50) as usize;
            len = size * count - self.random.below(size as u64) as usize;
            // Now and then one that makes no sense: then it is one datagram.
            stride = Some(match self.random.below(20) {
                0 => 0,
                1 => -1,
                2 => i32::MAX,
                _ => size as i32,
            });
        }
        let bytes = (0..len).map(|_| self.random.next() as u8).collect();
        self.next_port = self.next_port % 60_000 + 1;
        let source = SocketAddr::from((Ipv4Addr::LOCALHOST, self.next_port));
        let arrived = Arrived {
            bytes,
            stride,
            source,
            ecn: 0,
        };
        let room = self.max_datagram;
        for datagram in arrived.datagrams(len) {
            let cut = &datagram[..datagram.len().min(room)];
            self.expected.push_back((source, cut.to_vec()));
        }
        kernel(|kernel| kernel.arrive(Arrival::Datagrams(arrived)));
    }

    /// One datagram was delivered: those before it, which were not, are dropped.
    fn deliver(&mut self, source: SocketAddr, bytes: &[u8]) {
        self.delivered.0 += 1;
        self.delivered.1 += bytes.len() as u64;
        loop {
            let (from, expected) = self.expected.pop_front().expect("it never arrived");
            if from == source && expected == bytes {
                return;
            }
            self.skipped += 1;
        }
    }

    fn get(&mut self) -> Got {
        let woken = Waker::from(Arc::clone(&self.woken));
        let mut cx = Context::from_waker(&woken);
        match &mut self.receiver {
            Receiver::BytesMut(receiver) => poll(receiver.poll_recv(&mut cx), Got::BytesMut),
            Receiver::Pool(receiver) => match self.random.below(3) {
                0 => poll(receiver.poll_recv_batch(&mut cx), Got::Batch),
                1 => poll(receiver.poll_recv(&mut cx), Got::Datagram),
                _ => match receiver.try_recv_batch() {
                    Ok(Some(batch)) => Got::Batch(batch),
                    Ok(None) => Got::Nothing,
                    Err(error) => Got::Error(error),
                },
            },
        }
    }

    /// Receives once; returns whether there may be more now.
    fn receive(&mut self) -> bool {
        match self.get() {
            Got::Batch(batch) => {
                let whole = batch.contents().to_vec();
                for datagram in &batch {
                    assert!(datagram.packet.len() <= self.max_datagram);
                    self.deliver(datagram.source, datagram.packet);
                }
                assert!(self.deliver_truncated || !batch.is_truncated());
                self.held.push(Held::Batch(batch, whole));
            }
            Got::Datagram(datagram) => {
                let whole = datagram.packet.to_vec();
                self.deliver(datagram.source, &whole);
                self.held.push(Held::Packet(datagram, whole));
            }
            Got::BytesMut(datagram) => {
                let whole = datagram.packet.to_vec();
                self.deliver(datagram.source, &whole);
                self.held.push(Held::BytesMut(datagram.packet, whole));
            }
            Got::Error(error) => {
                assert_ne!(error.kind(), io::ErrorKind::WouldBlock);
                assert_ne!(error.kind(), io::ErrorKind::Interrupted);
                self.errors += 1;
            }
            Got::Nothing | Got::Pending => return false,
        }
        let keep = self.random.below(12) as usize;
        self.drop_held(keep);
        true
    }

    /// Drops the oldest of what is held, which is still what it was.
    fn drop_held(&mut self, keep: usize) {
        let surplus = self.held.len().saturating_sub(keep);
        for held in self.held.drain(..surplus) {
            let (now, before) = match &held {
                Held::Batch(batch, before) => (batch.contents(), before),
                Held::Packet(datagram, before) => (&datagram.packet[..], before),
                Held::BytesMut(bytes, before) => (&bytes[..], before),
            };
            assert!(now == before, "overwritten");
        }
    }

    /// Takes all memory of the pool, or down to a few chunks of some size.
    fn exhaust(&mut self) {
        self.was_exhausted = true;
        let slab = self.pool.slab();
        for &size in slab.size_classes().sizes().iter().rev() {
            while let Ok(chunk) = slab.try_alloc(size) {
                self.taken.push(chunk);
            }
        }
        for _ in 0..self.random.below(6) {
            if !self.taken.is_empty() {
                let at = self.random.below(self.taken.len() as u64) as usize;
                self.taken.swap_remove(at);
            }
        }
    }

    fn check(&self) {
        let stats = self.monitor.stats();
        let (datagrams, bytes) = kernel(|kernel| kernel.received);
        assert_eq!(
            (stats.received_datagrams, stats.received_bytes),
            (datagrams, bytes)
        );
        assert!(stats.dropped_no_memory == 0 || self.was_exhausted || self.is_bytes_mut());
        assert!(self.delivered.0 + stats.dropped() <= datagrams);
    }

    fn is_bytes_mut(&self) -> bool {
        matches!(self.receiver, Receiver::BytesMut(_))
    }

    /// Receives until it waits and is not woken.
    async fn quiesce(&mut self) {
        let mut fruitless = 0;
        while fruitless < 3 {
            self.woken.0.store(false, Ordering::Relaxed);
            let woken = Waker::from(Arc::clone(&self.woken));
            let mut cx = Context::from_waker(&woken);
            let got = match &mut self.receiver {
                Receiver::BytesMut(receiver) => poll(receiver.poll_recv(&mut cx), Got::BytesMut),
                Receiver::Pool(receiver) => poll(receiver.poll_recv_batch(&mut cx), Got::Batch),
            };
            match got {
                Got::Pending => {
                    for _ in 0..3 {
                        tokio::task::yield_now().await;
                    }
                    if !self.woken.0.load(Ordering::Relaxed) {
                        fruitless += 1;
                        continue;
                    }
                }
                Got::Batch(batch) => {
                    for datagram in &batch {
                        self.deliver(datagram.source, datagram.packet);
                    }
                }
                Got::BytesMut(datagram) => self.deliver(datagram.source, &datagram.packet),
                Got::Error(_) => self.errors += 1,
                Got::Datagram(_) | Got::Nothing => unreachable!(),
            }
            fruitless = 0;
        }
        let left = kernel(|kernel| kernel.arrivals.len());
        assert_eq!(left, 0, "nobody woke who waits");
        assert_eq!(self.errors, kernel(|kernel| kernel.errors));
        let stats = self.monitor.stats();
        assert_eq!(self.delivered.0 + stats.dropped(), stats.received_datagrams);
        assert_eq!(
            self.delivered.1 + stats.dropped_bytes(),
            stats.received_bytes
        );
        // Those not delivered, up to the end, are dropped.
        self.skipped += self.expected.len() as u64;
        self.expected.clear();
        assert_eq!(self.skipped, stats.dropped());
        if let Receiver::Pool(receiver) = &self.receiver {
            assert_eq!(receiver.held_bytes(), 0);
            let in_use = self.held.len() + self.taken.len();
            // Packets of one batch share its chunk.
            assert!(self.pool.slab().stats().in_use() as usize <= in_use);
        }
    }

    async fn step(&mut self) {
        match self.random.below(100) {
            0..=29 => {
                for _ in 0..1 + self.random.below(8) {
                    self.arrive();
                }
            }
            30..=64 => {
                self.receive();
            }
            65..=74 => while self.receive() {},
            75..=79 => self.exhaust(),
            80..=84 => self.taken.clear(),
            85..=89 => tokio::task::yield_now().await,
            90..=94 => self.drop_held(0),
            _ => self.quiesce().await,
        }
        self.check();
    }
}

#[test]
fn each_datagram_is_delivered_once_or_counted() {
    programs::run(80, |seed| async move {
        let mut random = Random::new(seed);
        let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let max_datagram = random.pick(&[1, 100, 1500, 1500]);
        let is_coalescing = random.chance(400);
        let source_only = random.chance(400);
        let deliver_truncated = random.chance(300);
        let coalescing = match is_coalescing {
            true => Coalescing::On,
            false => Coalescing::Off { max_datagram },
        };
        let receiver = UdpReceiver::builder(&pool)
            .coalescing(coalescing)
            .source_only(source_only)
            .deliver_truncated(deliver_truncated)
            .from_std(socket.try_clone().unwrap())
            .unwrap();
        install(receiver.as_fd().as_raw_fd(), socket, random.clone());
        kernel(|kernel| kernel.interrupts = 50);
        let monitor = receiver.monitor();
        let most = random.pick(&[1, 5000, 300_000]);
        let receiver = match random.chance(300) {
            true => Receiver::BytesMut(Box::new(receiver.into_bytes_mut(most))),
            false => Receiver::Pool(Box::new(receiver)),
        };
        let mut program = Program {
            random,
            receiver,
            pool: pool.clone(),
            monitor,
            max_datagram: if is_coalescing {
                usize::MAX
            } else {
                max_datagram
            },
            deliver_truncated,
            is_coalescing,
            expected: VecDeque::new(),
            skipped: 0,
            delivered: (0, 0),
            errors: 0,
            taken: Vec::new(),
            was_exhausted: false,
            held: Vec::new(),
            woken: Arc::default(),
            next_port: 0,
        };
        for _ in 0..STEPS {
            program.step().await;
        }
        // What the receiver has read and nobody took is counted.
        let Program {
            receiver,
            monitor,
            delivered,
            held,
            taken,
            ..
        } = program;
        drop(receiver);
        let stats = monitor.stats();
        assert_eq!(delivered.0 + stats.dropped(), stats.received_datagrams);
        assert_eq!(delivered.1 + stats.dropped_bytes(), stats.received_bytes);
        drop((held, taken));
        assert_eq!(pool.slab().stats().in_use(), 0);
        uninstall();
    });
}

/// `try_recv_batch` reads without having waited: what announced the datagram and the error is gone then.
#[tokio::test]
async fn an_error_behind_a_datagram_is_returned_to_who_waits_next() {
    let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
    let mut receiver = install_receiver(&pool, |builder| {
        let off = Coalescing::Off { max_datagram: 100 };
        builder.coalescing(off).source_only(true)
    });
    kernel(|kernel| {
        // Nothing in the socket itself.
        kernel.arrivals.push_back(Arrival::Datagrams(one_byte()));
        kernel
            .arrivals
            .push_back(Arrival::Error(libc::ECONNREFUSED));
    });
    let batch = receiver.try_recv_batch().unwrap().expect("it is there");
    assert_eq!(batch.contents(), [1]);
    let received = tokio::time::timeout(HANG, receiver.recv_batch()).await;
    let error = received.expect("hangs").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(receiver.try_recv_batch().unwrap().is_none(), "once");
    uninstall();
}

/// All of it has arrived before the first read, and nothing that follows announces it again.
#[tokio::test]
async fn a_datagram_behind_an_error_behind_a_datagram_is_delivered() {
    let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
    let mut receiver = install_receiver(&pool, |builder| {
        let off = Coalescing::Off { max_datagram: 100 };
        builder.coalescing(off).source_only(true)
    });
    kernel(|kernel| {
        kernel.arrive(Arrival::Datagrams(one_byte()));
        let refused = Arrival::Error(libc::ECONNREFUSED);
        kernel.arrivals.push_back(refused);
        kernel.arrivals.push_back(Arrival::Datagrams(one_byte()));
    });
    for is_error in [false, true, false] {
        let received = tokio::time::timeout(HANG, receiver.recv_batch()).await;
        assert_eq!(received.expect("hangs").is_err(), is_error);
    }
    uninstall();
}

/// As it ends, `forward` delivers what is queued, however many errors others have caused in front of it, and
/// behind the errors that end it.
#[tokio::test]
async fn what_is_queued_behind_errors_is_delivered_at_the_end() {
    let by_itself = |code| Ended::Failed(io::Error::from_raw_os_error(code).kind());
    // A socket without a peer is not told what others report.
    for (code, is_connected, ended) in [
        (libc::ECONNREFUSED, true, Ended::Stopped),
        (libc::ECONNREFUSED, false, by_itself(libc::ECONNREFUSED)),
        (libc::EIO, true, by_itself(libc::EIO)),
    ] {
        let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
        let receiver = install_receiver(&pool, |builder| builder);
        kernel(|kernel| {
            if is_connected {
                kernel.connect();
            }
            for _ in 0..100 {
                kernel.arrive(Arrival::Error(code));
            }
            kernel.arrivals.push_back(Arrival::Datagrams(one_byte()));
        });
        let (sender, batches) = queue(1.try_into().unwrap(), Overflow::DropNewest);
        let stop = async {
            if ended != Ended::Stopped {
                std::future::pending().await
            }
        };
        let report = tokio::time::timeout(HANG, forward(receiver, sender, stop)).await;
        let report = report.expect("goes on for ever");
        assert_eq!(report.ended, ended);
        assert_eq!(report.receive_errors, 100);
        assert_eq!(batches.recv().await.expect("it is there").contents(), [1]);
        uninstall();
    }
}

#[tokio::test]
async fn errors_with_datagrams_between_them_do_not_end_delivering_at_the_end() {
    let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
    let receiver = install_receiver(&pool, |builder| builder);
    kernel(|kernel| {
        for _ in 0..2 {
            // One more would be too many.
            for _ in 0..63 {
                kernel.arrive(Arrival::Error(libc::EIO));
            }
            kernel.arrive(Arrival::Datagrams(one_byte()));
        }
    });
    let (sender, batches) = queue(2.try_into().unwrap(), Overflow::DropNewest);
    let report = forward(receiver, sender, async {}).await;
    assert_eq!((report.ended, report.receive_errors), (Ended::Stopped, 126));
    assert_eq!(batches.monitor().stats().datagrams, 2);
    uninstall();
}

#[tokio::test]
async fn errors_with_pauses_between_them_do_not_end_forward() {
    let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
    let receiver = install_receiver(&pool, |builder| builder);
    let (sender, _batches) = queue(1.try_into().unwrap(), Overflow::DropNewest);
    let stop = async {
        for error in 1..=100 {
            kernel(|kernel| kernel.arrive(Arrival::Error(libc::EIO)));
            while kernel(|kernel| kernel.errors < error || !kernel.is_drained()) {
                tokio::task::yield_now().await;
            }
        }
    };
    let report = forward(receiver, sender, stop).await;
    assert_eq!((report.ended, report.receive_errors), (Ended::Stopped, 100));
    uninstall();
}

/// By a security module, for example, whose number another cause has too. Neither is it ICMP for a socket that has no
/// peer, nor does `stop` come too late for one that has.
#[tokio::test]
async fn a_socket_that_is_refused_for_good_ends_forward() {
    let failed = Ended::Failed(io::ErrorKind::PermissionDenied);
    for (code, is_connected, ended) in [
        (libc::EPERM, false, failed),
        (libc::EACCES, false, failed),
        (libc::EPERM, true, failed),
        (libc::EACCES, true, Ended::Stopped),
    ] {
        let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
        let receiver = install_receiver(&pool, |builder| builder);
        kernel(|kernel| {
            if is_connected {
                kernel.connect();
            }
            kernel.refuse(code);
        });
        let (sender, batches) = queue(1.try_into().unwrap(), Overflow::DropNewest);
        let stop = async {
            while kernel(|kernel| kernel.errors < 1000) {
                tokio::task::yield_now().await;
            }
        };
        let report = tokio::time::timeout(HANG, forward(receiver, sender, stop)).await;
        let report = report.expect("goes on for ever");
        assert_eq!(report.ended, ended, "{code} {is_connected}");
        assert_eq!(report.receive_errors, kernel(|kernel| kernel.errors));
        if ended == failed {
            // The second time to deliver what is queued.
            assert_eq!(report.receive_errors, 64 + 64);
        }
        assert!(batches.recv().await.is_none());
        uninstall();
    }
}

/// So many errors of others come, at most, before what is queued is given up.
#[tokio::test]
async fn what_is_queued_behind_thousands_of_errors_of_others_is_delivered_at_the_end() {
    let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
    let receiver = install_receiver(&pool, |builder| builder);
    kernel(|kernel| {
        kernel.connect();
        for _ in 0..2 {
            // One more would be too many.
            for _ in 0..4095 {
                let refused = Arrival::Error(libc::ECONNREFUSED);
                kernel.arrivals.push_back(refused);
            }
            kernel.arrivals.push_back(Arrival::Datagrams(one_byte()));
        }
    });
    let (sender, batches) = queue(2.try_into().unwrap(), Overflow::DropNewest);
    let report = forward(receiver, sender, async {}).await;
    assert_eq!(report.receive_errors, 2 * 4095);
    assert_eq!(batches.monitor().stats().datagrams, 2);
    uninstall();
}

fn one_byte() -> Arrived {
    Arrived {
        bytes: vec![1],
        stride: None,
        source: (Ipv4Addr::LOCALHOST, 1).into(),
        ecn: 0,
    }
}

fn install_receiver(
    pool: &PacketPool,
    set: fn(UdpReceiverBuilder) -> UdpReceiverBuilder,
) -> UdpReceiver {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let receiver = set(UdpReceiver::builder(pool))
        .from_std(socket.try_clone().unwrap())
        .unwrap();
    install(receiver.as_fd().as_raw_fd(), socket, Random::new(0));
    receiver
}
