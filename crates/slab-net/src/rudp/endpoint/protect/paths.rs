//! [`Paths`]: error correction, by the address of the peer: what is counted through is the shards
//! between two sockets, whatever sessions they are of. A parity shard names no session.

use crate::packet::PacketPool;
use crate::rudp::budget::MemoryBudget;
use crate::rudp::config::SessionConfig;
use crate::rudp::fec::{Code, FEC_HEADER_BYTES, FecDecoder, FecEncoder, FecShards, FecStats};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest shard that is taken from a peer, if its MTU is larger than ours.
const ETHERNET_SHARD: usize = 1500;

pub(super) struct Paths {
    code: Arc<Code>,
    longest_sent: usize,
    longest_received: usize,
    pool: PacketPool,
    budget: MemoryBudget,
    /// Locked for a look-up only; nothing else is locked meanwhile.
    paths: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// No more than there are sessions, which are limited.
    paths: HashMap<SocketAddr, Entry>,
    /// What those did that are gone.
    past: FecStats,
}

struct Entry {
    path: Arc<Path>,
    sessions: usize,
}

pub(super) struct Path {
    encoder: Mutex<FecEncoder>,
    decoder: Mutex<FecDecoder>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves it as it was between two shards, or is a bug that the next one shows again.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Path {
    pub(super) fn encoder(&self) -> MutexGuard<'_, FecEncoder> {
        lock(&self.encoder)
    }

    pub(super) fn decoder(&self) -> MutexGuard<'_, FecDecoder> {
        lock(&self.decoder)
    }

    fn stats(&self) -> FecStats {
        let mut stats = self.encoder().stats();
        stats += &self.decoder().stats();
        stats
    }
}

impl Paths {
    pub(super) fn new(
        shards: FecShards,
        session: &SessionConfig,
        pool: &PacketPool,
        budget: &MemoryBudget,
    ) -> Self {
        let longest_sent = session.mtu + FEC_HEADER_BYTES;
        Self {
            code: Arc::new(Code::new(shards)),
            longest_sent,
            longest_received: longest_sent.max(ETHERNET_SHARD),
            pool: pool.clone(),
            budget: budget.clone(),
            paths: Mutex::default(),
        }
    }

    pub(super) fn get(&self, peer: SocketAddr) -> Option<Arc<Path>> {
        let known = lock(&self.paths);
        known.paths.get(&peer).map(|entry| Arc::clone(&entry.path))
    }

    pub(super) fn join(&self, peer: SocketAddr) {
        let (pool, budget) = (&self.pool, &self.budget);
        let code = || Arc::clone(&self.code);
        let mut known = lock(&self.paths);
        let entry = known.paths.entry(peer).or_insert_with(|| Entry {
            path: Arc::new(Path {
                encoder: FecEncoder::with_code(code(), self.longest_sent, pool, budget).into(),
                decoder: FecDecoder::with_code(code(), self.longest_received, pool, budget).into(),
            }),
            sessions: 0,
        });
        entry.sessions += 1;
        let path = Arc::clone(&entry.path);
        drop(known);
        // A peer that has begun anew counts from zero again.
        path.decoder().clear();
    }

    pub(super) fn leave(&self, peer: SocketAddr) {
        let mut known = lock(&self.paths);
        let Some(entry) = known.paths.get_mut(&peer) else {
            return;
        };
        entry.sessions -= 1;
        if entry.sessions > 0 {
            return;
        }
        let gone = known.paths.remove(&peer);
        drop(known);
        // Whoever uses it now is done before the counts are read, or has them lost.
        if let Some(Entry { path, .. }) = gone {
            let stats = path.stats();
            lock(&self.paths).past += &stats;
        }
    }

    pub(super) fn stats(&self) -> FecStats {
        let known = lock(&self.paths);
        let mut stats = known.past;
        let paths: Vec<_> = known.paths.values().map(|e| Arc::clone(&e.path)).collect();
        drop(known);
        for path in paths {
            stats += &path.stats();
        }
        stats
    }
}
