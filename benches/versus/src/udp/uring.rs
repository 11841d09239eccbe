//! `uring`: ours by io_uring against ours by readiness, with a live sender on another CPU. If the queue
//! were filled first, the kernel's part of io_uring would be done before the clock runs.

use super::OURS;
use super::paced;
use super::rig::{Filler, Wire, our_receiver_with_metadata, pool, runtime, uring_receiver};
use crate::cpu::{ThreadClock, pin};
use crate::measure::Sampler;
use slab_net::udp::{PacketBatch, UdpReceiver};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use tokio::runtime::Runtime;

/// Ours by readiness, which is its default.
const READINESS: &str = "slab-net-readiness";

pub(super) const PEERS: &[&str] = &[READINESS];
pub(super) const PACED_PEERS: &[&str] = &[READINESS, "tokio-fresh"];

/// Datagrams sent at once, and the most that may be under way.
const BURST: usize = 50;
const WINDOW: u64 = 512;

/// As many datagrams as the receiver can take.
///
/// # Errors
/// io_uring cannot be used here, or there is no such peer.
pub(super) fn sampler(peer: &str, wire: Wire, other_cpu: usize) -> Result<Sampler, String> {
    let runtime = runtime();
    let receiver = {
        let _inside = runtime.enter();
        match peer {
            OURS => uring_receiver(wire)?,
            READINESS => our_receiver_with_metadata(&pool(), wire),
            _ => return Err("it has no such case".into()),
        }
    };
    Ok(sampler_under_load(runtime, receiver, wire, other_cpu))
}

/// One datagram every 10 us.
///
/// # Errors
/// As [`sampler`].
pub(super) fn paced(peer: &str, other_cpu: usize) -> Result<Sampler, String> {
    match peer {
        OURS => paced::uring_sampler(other_cpu),
        READINESS => paced::sampler(OURS, other_cpu),
        _ => paced::sampler(peer, other_cpu),
    }
}

fn sampler_under_load(
    runtime: Runtime,
    mut receiver: UdpReceiver,
    wire: Wire,
    cpu: usize,
) -> Sampler {
    let address = receiver.local_addr();
    let mut batches: Vec<PacketBatch> = Vec::with_capacity(32);
    Sampler::timed(move |ops| {
        let (receiver, batches) = (&mut receiver, &mut batches);
        let load = Load::start(address, wire, cpu);
        let elapsed = runtime.block_on(async {
            // Before the first datagrams arrive, the receiver waits for a thread to start.
            let (mut received, mut clock) = (0, None);
            loop {
                receiver.recv_batches(batches).await.expect("loopback");
                for batch in batches.drain(..) {
                    assert_eq!(batch.contents()[0], 7);
                    received += batch.datagrams() as u64;
                }
                load.set_received(received);
                let (from, clock) = clock.get_or_insert_with(|| (received, ThreadClock::start()));
                if received - *from >= ops {
                    break clock.elapsed_ns() / (received - *from) as f64;
                }
            }
        });
        drop(load);
        while receiver.try_recv_batch().expect("loopback").is_some() {}
        elapsed.into()
    })
}

/// Keeps datagrams under way until dropped.
struct Load {
    /// Datagrams that the receiver has; [`STOP`] ends the thread.
    received: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

const STOP: u64 = u64::MAX;

impl Load {
    fn start(to: SocketAddr, wire: Wire, cpu: usize) -> Self {
        let received = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&received);
        let thread = std::thread::spawn(move || {
            pin(cpu);
            let filler = Filler::new(1200, BURST);
            let mut sent = 0;
            loop {
                match seen.load(Ordering::Relaxed) {
                    STOP => break,
                    received if sent + BURST as u64 > received + WINDOW => std::thread::yield_now(),
                    _ => {
                        filler.fill(to, wire);
                        sent += BURST as u64;
                    }
                }
            }
        });
        Self {
            received,
            thread: Some(thread),
        }
    }

    fn set_received(&self, received: u64) {
        self.received.store(received, Ordering::Relaxed);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.set_received(STOP);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
