//! io_uring against readiness and against plain tokio: `cargo bench -p slab-net --features io-uring
//! --bench uring`.
//!
//! CPU time of the receiving thread for each datagram, in turns in one process; another thread
//! sends. Under load it keeps a window of datagrams under way; paced, it sends one at a time and
//! sleeps in between, so that the receiver waits for each.
#![allow(clippy::print_stdout, missing_docs)]

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("io_uring is Linux's");
}

#[cfg(target_os = "linux")]
mod linux {
    use bytes::BytesMut;
    use slab_net::udp::{Coalescing, Transmit, UdpReceiver, UdpSender};
    use slab_net::{PacketPool, SizeClasses};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;
    use tokio::runtime::Runtime;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    const WINDOW: u64 = 512;
    const RUN: usize = 50;
    const LEN: usize = 1200;

    #[derive(Clone, Copy, PartialEq)]
    enum Load {
        Coalesced,
        Single,
        Paced,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum How {
        Readiness,
        Uring,
        Tokio,
    }

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    }

    fn thread_cpu_ns() -> f64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the time is written to where it says.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(result, 0);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    }

    /// Sends to `to` for as long as it is not stopped, never more than a window ahead of `got`.
    fn send(to: SocketAddr, load: Load, got: &AtomicU64, stop: &AtomicBool) {
        let runtime = runtime();
        runtime.block_on(async {
            let sender = UdpSender::bind(ANY).expect("a socket");
            let payload = vec![7; RUN * LEN];
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                if sent - got.load(Ordering::Relaxed) > WINDOW - RUN as u64 {
                    std::thread::yield_now();
                    continue;
                }
                let transmit = match load {
                    Load::Coalesced => Transmit::new(&payload, to).segment_size(LEN),
                    Load::Single | Load::Paced => Transmit::new(&payload[..LEN], to),
                };
                sent += sender.send(&transmit).await.expect("loopback") as u64;
                if load == Load::Paced {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
    }

    /// Nanoseconds of the receiving thread for each of `count` datagrams.
    fn sample(how: How, load: Load, count: u64) -> f64 {
        let got = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let runtime = runtime();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None);
        let socket = socket.expect("a socket");
        socket.bind(&ANY.into()).expect("loopback");
        socket.set_recv_buffer_size(4 << 20).expect("a buffer");
        socket.set_nonblocking(true).expect("non-blocking");
        let socket: std::net::UdpSocket = socket.into();
        let to = socket.local_addr().expect("bound");
        let sender = {
            let (got, stop) = (Arc::clone(&got), Arc::clone(&stop));
            std::thread::spawn(move || send(to, load, &got, &stop))
        };
        let warm_up = count / 10;
        let (mut seen, mut from) = (0, None);
        let mut saw = |n: usize| {
            seen += n as u64;
            got.store(seen, Ordering::Relaxed);
            if seen >= warm_up && from.is_none() {
                from = Some((seen, thread_cpu_ns()));
            }
            seen < warm_up + count
        };
        runtime.block_on(async {
            if how == How::Tokio {
                let socket = tokio::net::UdpSocket::from_std(socket).expect("a runtime");
                loop {
                    let mut buffer = BytesMut::with_capacity(2048);
                    socket.recv_buf_from(&mut buffer).await.expect("loopback");
                    assert_eq!(buffer.freeze()[0], 7);
                    if !saw(1) {
                        break;
                    }
                }
                return;
            }
            let mut sizes = SizeClasses::network().sizes().to_vec();
            sizes.push(66 << 10);
            let classes = SizeClasses::explicit(&sizes).expect("ascending");
            let pool = PacketPool::builder().max_memory(64 << 20);
            let pool = pool.size_classes(classes).build().expect("a pool");
            let coalescing = match load {
                Load::Coalesced => Coalescing::On,
                Load::Single | Load::Paced => Coalescing::Off { max_datagram: 1500 },
            };
            let builder = UdpReceiver::builder(&pool).coalescing(coalescing);
            let builder = builder.io_uring(how == How::Uring);
            let mut receiver = builder.from_std(socket).expect("a receiver");
            assert_eq!(receiver.uses_io_uring(), how == How::Uring, "no io_uring");
            let mut batches = Vec::with_capacity(32);
            loop {
                receiver.recv_batches(&mut batches).await.expect("loopback");
                let datagrams = batches.iter().map(|batch| {
                    assert_eq!(batch.contents()[0], 7);
                    batch.datagrams()
                });
                let datagrams = datagrams.sum();
                batches.clear();
                if !saw(datagrams) {
                    break;
                }
            }
        });
        let (start, begun) = from.expect("the warm-up is behind us");
        let found = (thread_cpu_ns() - begun) / (seen - start) as f64;
        stop.store(true, Ordering::Relaxed);
        got.store(u64::MAX / 2, Ordering::Relaxed);
        sender.join().expect("the sender");
        found
    }

    fn median(values: &mut [f64]) -> f64 {
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    }

    pub(super) fn main() {
        // Cargo runs benchmarks as tests, too, and wants to know that they work.
        let rounds = if std::env::args().any(|a| a == "--bench") {
            15
        } else {
            1
        };
        // As the README has it.
        println!("| {LEN} B, ns of CPU each | io_uring | the other | times better |");
        println!("|---|---|---|---|");
        for (name, load, peer, count) in [
            (
                "coalesced, under load, against readiness",
                Load::Coalesced,
                How::Readiness,
                200_000,
            ),
            (
                "single, under load, against readiness",
                Load::Single,
                How::Readiness,
                40_000,
            ),
            (
                "paced, against readiness",
                Load::Paced,
                How::Readiness,
                2_000,
            ),
            (
                "paced, against tokio's `recv_buf_from`",
                Load::Paced,
                How::Tokio,
                2_000,
            ),
        ] {
            let count = if rounds == 1 { count / 20 } else { count };
            let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rounds {
                let (a, b) = (sample(peer, load, count), sample(How::Uring, load, count));
                ours.push(b);
                theirs.push(a);
                ratios.push(a / b);
            }
            let ratio = median(&mut ratios);
            println!(
                "| {name} | {:.0} | {:.0} | {ratio:.2} ({:.2} .. {:.2}) |",
                median(&mut ours),
                median(&mut theirs),
                ratios[0],
                ratios[rounds - 1],
            );
        }
    }
}
