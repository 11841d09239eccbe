//! What is not time: heap allocations per datagram, memory that a kept datagram pins, memory that an idle
//! receiver holds.

use super::rig::{Filler, QUEUED, SUPER_BUFFER, Wire, our_receiver_with_metadata, pool, runtime};
use super::{Case, OURS, Unit};
use crate::cpu::Cpus;
use crate::heap::{self, Choice, allocations};
use crate::measure::Sampler;
use rustix::process::{Resource, getrlimit, setrlimit};
use slab_net::PacketPool;
use slab_net::udp::PacketBatch;
use std::process::{Command, Stdio};

/// Heap allocations per datagram that goes to another task, counted in a process of its own.
pub(super) fn counted(peer: &str, unit: Unit) -> Result<Sampler, String> {
    let peer = peer.to_owned();
    Ok(Sampler::single_run(move || {
        let program = std::env::current_exe().expect("it has a name");
        let output = Command::new(program)
            .args([
                "--count",
                "udp",
                &peer,
                unit.suffix().trim_start_matches('-'),
            ])
            .env(heap::VARIABLE, Choice::Counting.name())
            .stderr(Stdio::inherit())
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().expect("a count")
    }))
}

/// The child's side of [`counted`]; `None` if there is no such thing.
pub(super) fn count(peer: &str, suffix: &str) -> Option<f64> {
    /// Datagrams before counting starts.
    const WARM_UP: u64 = 16 * QUEUED as u64;
    // A little over a million; a peer needs fewer, since its figure is no claim of ours and its datagrams
    // come one by one.
    let counted = QUEUED as u64 * if peer == OURS { 4096 } else { 256 };
    let unit = [Unit::Queue, Unit::QueueOfBytes]
        .into_iter()
        .find(|unit| unit.suffix().trim_start_matches('-') == suffix)?;
    let case = Case::Recv(Wire::Coalesced, unit, 1200);
    let mut sampler = case.sampler(peer, Cpus::choose()).ok()?;
    sampler.run(WARM_UP);
    let before = allocations();
    sampler.run(counted);
    Some((allocations() - before) as f64 / counted as f64)
}

fn in_use(pool: &PacketPool) -> usize {
    let stats = pool.slab().stats();
    let classes = stats.classes().iter();
    let bytes = classes.map(|class| class.in_use as usize * class.chunk_bytes);
    bytes.sum()
}

/// The memory that so many datagrams pin, over their payload, if they arrive one by one at a socket with
/// GRO.
pub(super) fn pinned(peer: &str) -> Result<Sampler, String> {
    let per_datagram = match peer {
        OURS => {
            return Ok(Sampler::single_run(|| {
                let (held, payload) = pinned_by_kept_datagrams();
                held as f64 / payload as f64
            }));
        }
        // Each pins a buffer, by design.
        "keep-buffer" => SUPER_BUFFER as f64 / 1200.0,
        _ => return Err("it has no such case".into()),
    };
    Ok(Sampler::single_run(move || per_datagram))
}

/// Returns the bytes of a pool in use by a round of datagrams that are kept, and their payload.
fn pinned_by_kept_datagrams() -> (usize, usize) {
    let filler = Filler::new(1200, QUEUED);
    let runtime = runtime();
    let pool = pool();
    let mut receiver = {
        let _inside = runtime.enter();
        our_receiver_with_metadata(&pool, Wire::PlainIntoGro)
    };
    filler.fill(receiver.local_addr(), Wire::PlainIntoGro);
    let mut batches: Vec<PacketBatch> = Vec::new();
    let mut kept = Vec::new();
    runtime.block_on(async {
        while kept.len() < QUEUED {
            receiver.recv_batches(&mut batches).await.expect("loopback");
            kept.extend(batches.drain(..).flat_map(PacketBatch::into_packets));
        }
    });
    let held = in_use(&pool);
    drop(receiver);
    (held, kept.iter().map(|packet| packet.len()).sum())
}

/// Raises the limit of open files, or ends the process.
fn allow_files(count: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        limit.current = Some(count);
        limit.maximum = limit.maximum.map(|maximum| maximum.max(count));
        setrlimit(Resource::Nofile, limit).expect("a thousand sockets take as many files");
    }
}

/// Pool memory, or buffers, of a receiver that has received nothing yet.
pub(super) fn idle_receiver(peer: &str) -> Result<Sampler, String> {
    const RECEIVERS: usize = 1000;
    match peer {
        OURS => Ok(Sampler::single_run(|| {
            allow_files(RECEIVERS as u64 + 200);
            let runtime = runtime();
            let _inside = runtime.enter();
            let pool = pool();
            let receivers: Vec<_> = (0..RECEIVERS)
                .map(|_| our_receiver_with_metadata(&pool, Wire::Coalesced))
                .collect();
            let held = in_use(&pool) as f64 / RECEIVERS as f64;
            drop(receivers);
            held
        })),
        // The peer's buffers must exist before it receives.
        "quinn-udp-raw" => Ok(Sampler::single_run(|| {
            (super::rig::BUFFERS * SUPER_BUFFER) as f64
        })),
        _ => Err("it has no such case".into()),
    }
}
