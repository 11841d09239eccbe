//! `paced`: a live sender on another CPU, so slow that the queue is short; counts the receiver's CPU time.

use super::payload::check;
use super::rig::{ANY, DATAGRAM_BUFFER, Wire};
use super::rig::{our_receiver, our_receiver_with_metadata, pool, runtime, their_socket};
use super::rig::{uring_available, uring_receiver};
use crate::cpu::{ThreadClock, pin};
use crate::measure::Sampler;
use bytes::BytesMut;
use slab_net::udp::UdpReceiver;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The time between two datagrams.
const PACE: Duration = Duration::from_micros(10);

pub(super) fn sampler(peer: &str, other_cpu: usize) -> Result<Sampler, String> {
    match peer {
        super::OURS => Ok(ours(other_cpu, || our_receiver(Wire::Plain))),
        "slab-net-metadata" => Ok(ours(other_cpu, || {
            our_receiver_with_metadata(&pool(), Wire::Plain)
        })),
        "tokio-fresh" => Ok(recv_buf_from(other_cpu)),
        _ => Err("it has no such case".into()),
    }
}

/// Ours by io_uring.
///
/// # Errors
/// io_uring cannot be used here.
pub(super) fn uring_sampler(other_cpu: usize) -> Result<Sampler, String> {
    uring_available()?;
    let receiver = || uring_receiver(Wire::Plain).expect("it was there before");
    Ok(ours(other_cpu, receiver))
}

/// Sends at its pace until dropped; it does not make up for what it misses while preempted.
struct Pacer {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Pacer {
    fn start(to: SocketAddr, cpu: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            pin(cpu);
            let socket = UdpSocket::bind(ANY).expect("a socket on loopback");
            let mut next = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                socket.send_to(&[7; 1200], to).expect("loopback takes it");
                next = Instant::now().max(next + PACE);
                while Instant::now() < next {
                    std::hint::spin_loop();
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ours(cpu: usize, open: fn() -> UdpReceiver) -> Sampler {
    let runtime = runtime();
    let mut receiver = {
        let _inside = runtime.enter();
        open()
    };
    let address = receiver.local_addr();
    Sampler::timed(move |ops| {
        let receiver = &mut receiver;
        while receiver.try_recv_batch().expect("loopback").is_some() {}
        timed(&runtime, address, cpu, ops, async move {
            let mut got = 0;
            while got < ops {
                let batch = receiver.recv_batch().await.expect("loopback");
                for packet in batch.into_packets() {
                    check(&packet);
                    got += 1;
                }
            }
        })
    })
}

fn recv_buf_from(cpu: usize) -> Sampler {
    let runtime = runtime();
    let socket = {
        let _inside = runtime.enter();
        their_socket()
    };
    let address = socket.local_addr().expect("bound");
    Sampler::timed(move |ops| {
        let socket = &socket;
        let mut scratch = [0; DATAGRAM_BUFFER];
        while socket.try_recv(&mut scratch).is_ok() {}
        timed(&runtime, address, cpu, ops, async move {
            for _ in 0..ops {
                let mut buffer = BytesMut::with_capacity(DATAGRAM_BUFFER);
                socket.recv_buf_from(&mut buffer).await.expect("loopback");
                check(&buffer.freeze());
            }
        })
    })
}

fn timed(
    runtime: &Runtime,
    to: SocketAddr,
    cpu: usize,
    ops: u64,
    receive: impl Future<Output = ()>,
) -> crate::measure::Reading {
    let pacer = Pacer::start(to, cpu);
    let clock = ThreadClock::start();
    runtime.block_on(receive);
    let elapsed = clock.elapsed_ns();
    drop(pacer);
    (elapsed / ops as f64).into()
}
