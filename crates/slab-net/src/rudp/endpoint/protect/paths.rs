//! [`Paths`]: error correction, by the address of the peer. Shards are numbered between two sockets, whatever
//! sessions they belong to, and a parity shard names no session.

use crate::packet::PacketPool;
use crate::rudp::budget::MemoryBudget;
use crate::rudp::config::SessionConfig;
use crate::rudp::fec::{Code, FEC_HEADER_BYTES, FecDecoder, FecEncoder, FecStats};
use crate::rudp::time::Time;
use core::hash::BuildHasher;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::collections::hash_map::{self, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The longest shard that a peer may send where its MTU may be larger than ours.
const ETHERNET_SHARD: usize = 1500;
/// How often busy paths are checked for being at rest.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The longest shard that is sent, and the longest that is taken, in bytes.
pub(super) fn longest_shards(session: &SessionConfig) -> [usize; 2] {
    let sent = session.mtu + FEC_HEADER_BYTES;
    [sent, sent.max(ETHERNET_SHARD)]
}

pub(super) struct Paths {
    code: Arc<Code>,
    longest_sent: usize,
    longest_received: usize,
    pool: PacketPool,
    budget: MemoryBudget,
    /// Locked for look-ups only; nothing else is locked meanwhile.
    paths: Mutex<PathTable>,
    /// Where each path begins to number its shards: at random. The peer may still have shards of an earlier path between
    /// the two sockets. If those had the same numbers, it would compute datagrams from both that nobody has sent.
    random: RandomState,
    /// A path became busy while no check was scheduled, and nobody has scheduled one since.
    unscheduled: AtomicBool,
}

#[derive(Default)]
struct PathTable {
    /// No more than there are sessions, which are limited.
    paths: HashMap<SocketAddr, Entry>,
    /// The counters of paths that are gone.
    removed_stats: FecStats,
    /// Paths used since they last freed their memory, and when to check whether they are at rest.
    busy: Vec<Weak<Path>>,
    next_check: Option<Time>,
    /// Sessions that have joined, with whatever address.
    joins: u64,
}

struct Entry {
    path: Arc<Path>,
    sessions: usize,
    /// Which of all joins was the last with this address.
    last_join: u64,
}

pub(super) struct Path {
    encoder: Mutex<FecEncoder>,
    decoder: Mutex<FecDecoder>,
    /// Is it in the list of busy paths?
    busy: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves it as it was between two shards, or is a bug that the next shard shows again.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Path {
    pub(super) fn encoder(&self) -> MutexGuard<'_, FecEncoder> {
        lock(&self.encoder)
    }

    pub(super) fn decoder(&self) -> MutexGuard<'_, FecDecoder> {
        lock(&self.decoder)
    }

    /// When to check it again, if it holds memory.
    fn free_idle(&self, now: Time) -> Option<Time> {
        let at = self.encoder().handle_timeout(now);
        at.max(self.decoder().handle_timeout(now))
    }

    fn stats(&self) -> FecStats {
        let mut stats = self.encoder().stats();
        stats += &self.decoder().stats();
        stats
    }
}

impl Paths {
    pub(super) fn new(
        code: &Arc<Code>,
        session: &SessionConfig,
        pool: &PacketPool,
        budget: &MemoryBudget,
    ) -> Self {
        let [longest_sent, longest_received] = longest_shards(session);
        Self {
            code: Arc::clone(code),
            longest_sent,
            longest_received,
            pool: pool.clone(),
            budget: budget.clone(),
            paths: Mutex::default(),
            random: RandomState::new(),
            unscheduled: AtomicBool::new(false),
        }
    }

    /// Returns `true`, once, if [`free_idle`](Self::free_idle) has to be called although it asked for no other call.
    pub(super) fn take_unscheduled(&self) -> bool {
        self.unscheduled.load(Ordering::Relaxed) && self.unscheduled.swap(false, Ordering::Relaxed)
    }

    pub(super) fn get(&self, peer: SocketAddr) -> Option<Arc<Path>> {
        let mut table = lock(&self.paths);
        let path = Arc::clone(&table.paths.get(&peer)?.path);
        // Release: `free_idle` sees that we have a reference.
        if !path.busy.swap(true, Ordering::Release) {
            table.busy.push(Arc::downgrade(&path));
            if table.next_check.is_none() {
                self.unscheduled.store(true, Ordering::Relaxed);
            }
        }
        Some(path)
    }

    /// Lets paths at rest free their memory; returns when to call it again, if any are busy.
    pub(super) fn free_idle(&self, now: Time) -> Option<Time> {
        // Shards are freed under the locks of their path.
        let _held = slab_core::hold_wakes();
        let mut table = lock(&self.paths);
        if table.busy.is_empty() {
            return None;
        }
        let at = *table.next_check.get_or_insert(now);
        if now < at {
            return Some(at);
        }
        let mut busy = core::mem::take(&mut table.busy);
        drop(table);
        busy.retain(|path| {
            let Some(path) = path.upgrade() else {
                return false;
            };
            // A user that finds the path from here on adds it to the list again. One that found it before may
            // not have used it yet: then there are more references than ours and the table's.
            path.busy.swap(false, Ordering::Acquire);
            let is_found = Arc::strong_count(&path) > 2;
            (is_found || path.free_idle(now).is_some()) && !path.busy.swap(true, Ordering::Relaxed)
        });
        let mut table = lock(&self.paths);
        // Keeps the list that had grown, so that it need not grow again each time.
        busy.append(&mut table.busy);
        table.busy = busy;
        table.next_check = (!table.busy.is_empty()).then(|| now + IDLE_CHECK_INTERVAL);
        table.next_check
    }

    pub(super) fn join(&self, peer: SocketAddr) {
        let (pool, budget) = (&self.pool, &self.budget);
        let code = || Arc::clone(&self.code);
        let mut table = lock(&self.paths);
        table.joins += 1;
        let last_join = table.joins;
        let encoder = || {
            let encoder = FecEncoder::with_code(code(), self.longest_sent, pool, budget);
            encoder.begin_at(self.random.hash_one(last_join))
        };
        let entry = table.paths.entry(peer).or_insert_with(|| Entry {
            path: Arc::new(Path {
                encoder: encoder().into(),
                decoder: FecDecoder::with_code(code(), self.longest_received, pool, budget).into(),
                busy: AtomicBool::new(false),
            }),
            sessions: 0,
            last_join,
        });
        entry.sessions += 1;
        entry.last_join = last_join;
        let path = Arc::clone(&entry.path);
        drop(table);
        path.decoder().clear_if_refused();
    }

    pub(super) fn leave(&self, peer: SocketAddr) {
        let mut table = lock(&self.paths);
        let Some(entry) = table.paths.get_mut(&peer) else {
            return;
        };
        entry.sessions -= 1;
        if entry.sessions > 0 {
            return;
        }
        let (path, last_join) = (Arc::clone(&entry.path), entry.last_join);
        drop(table);
        // A thread that uses the path now finishes before its counters are read, or its counts are lost.
        let stats = path.stats();
        // Moved in one step, so that no reader of the sum misses them. A session may have joined meanwhile; if it is
        // gone, too, the path goes with what it has counted.
        let mut table = lock(&self.paths);
        if let hash_map::Entry::Occupied(entry) = table.paths.entry(peer)
            && entry.get().last_join == last_join
        {
            entry.remove();
            table.removed_stats += &stats;
        }
    }

    pub(super) fn stats(&self) -> FecStats {
        let table = lock(&self.paths);
        let mut stats = table.removed_stats;
        let paths: Vec<_> = table.paths.values().map(|e| Arc::clone(&e.path)).collect();
        drop(table);
        for path in paths {
            stats += &path.stats();
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;
    use crate::rudp::fec::FecShards;
    use core::future::Future;
    use core::pin::Pin;
    use core::task::{Context, Waker};
    use std::task::Wake;

    fn no_paths() -> (PacketPool, MemoryBudget, FecShards, Paths) {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let budget = MemoryBudget::new(8 << 20);
        let shards = FecShards::new(2, 1).unwrap();
        let code = Arc::new(Code::new(shards));
        let paths = Paths::new(&code, &SessionConfig::fast(), &pool, &budget);
        (pool, budget, shards, paths)
    }

    fn peer() -> SocketAddr {
        "192.0.2.1:9".parse().unwrap()
    }

    /// The shards of a group: two of data and one of parity.
    fn group(encoder: &mut FecEncoder) -> [Vec<u8>; 3] {
        let mut data = || {
            let mut shard = vec![7; 100];
            encoder.protect(Time::ZERO, &mut shard);
            shard
        };
        let (first, second) = (data(), data());
        let mut parity = vec![0; 1400];
        let len = encoder.next_parity(&mut parity).unwrap();
        parity.truncate(len);
        [first, second, parity]
    }

    /// All sessions with an address share its shards.
    #[test]
    fn a_session_that_joins_takes_no_shards_from_the_others() {
        let (pool, budget, shards, paths) = no_paths();
        let peer = peer();
        let mut recovered: Vec<Packet> = Vec::new();
        paths.join(peer);
        let path = paths.get(peer).unwrap();
        let mut take = |shard: &[u8]| {
            path.decoder().handle_shard(shard, &mut recovered);
            recovered.drain(..).count()
        };
        let mut encoder = FecEncoder::new(shards, 1400, &pool, &budget);
        for _ in 0..100 {
            let [first, _lost, parity] = group(&mut encoder);
            assert_eq!(take(&first), 0);
            paths.join(peer);
            assert_eq!(take(&parity), 1);
        }
    }

    /// The shard that opens the next session of a peer that has begun anew shows that, however few came before.
    #[test]
    fn what_a_peer_that_has_begun_anew_loses_is_recovered() {
        for groups in [1, 2, 30, 100] {
            let (pool, budget, shards, paths) = no_paths();
            let peer = peer();
            let mut recovered: Vec<Packet> = Vec::new();
            paths.join(peer);
            let path = paths.get(peer).unwrap();
            let mut take = |shard: &[u8]| {
                path.decoder().handle_shard(shard, &mut recovered);
                recovered.drain(..).count()
            };
            let mut encoder = FecEncoder::new(shards, 1400, &pool, &budget);
            for shard in (0..groups).flat_map(|_| group(&mut encoder)) {
                assert_eq!(take(&shard), 0);
            }
            let mut encoder = FecEncoder::new(shards, 1400, &pool, &budget);
            let [first, second, _] = group(&mut encoder);
            assert_eq!(take(&first) + take(&second), 0);
            paths.join(peer);
            let [_lost, second, parity] = group(&mut encoder);
            assert_eq!(take(&second), 0);
            assert_eq!(take(&parity), 1, "after {groups} groups");
        }
    }

    #[test]
    fn a_path_that_begins_anew_numbers_its_shards_differently() {
        let (.., shards, paths) = no_paths();
        let peer = peer();
        let [first, second] = [(); 2].map(|()| {
            paths.join(peer);
            let [shard, ..] = group(&mut paths.get(peer).unwrap().encoder());
            paths.leave(peer);
            u32::from_le_bytes(*shard.first_chunk().unwrap())
        });
        let total = (shards.data() + shards.parity()) as u32;
        assert_eq!((first % total, second % total), (0, 0));
        // There are two thousand million.
        assert!(first.abs_diff(second) > 1000, "{first}, then {second}");
    }

    #[test]
    fn the_counters_do_not_fall_when_a_path_goes() {
        let (.., paths) = no_paths();
        let peer = peer();
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                for _ in 0..5000 {
                    paths.join(peer);
                    group(&mut paths.get(peer).unwrap().encoder());
                    paths.leave(peer);
                }
            });
            let mut before = 0;
            while !sending.is_finished() {
                let sent = paths.stats().sent_parity;
                assert!(before <= sent, "{before}, then {sent}");
                before = sent;
            }
        });
        assert_eq!(paths.stats().sent_parity, 5000);
    }

    /// The last session with an address ends, another begins and ends, and then both look whether the path goes.
    #[test]
    fn a_path_goes_with_the_counts_of_its_last_session() {
        const ROUNDS: u64 = 50;
        let (.., paths) = no_paths();
        let peer = peer();
        let wait_for_sessions = |sessions| {
            while lock(&paths.paths).paths[&peer].sessions != sessions {
                std::thread::yield_now();
            }
            // Until the other thread waits for the decoder.
            std::thread::sleep(Duration::from_millis(1));
        };
        for _ in 0..ROUNDS {
            paths.join(peer);
            let path = paths.get(peer).unwrap();
            std::thread::scope(|scope| {
                let held = path.decoder();
                scope.spawn(|| paths.leave(peer));
                wait_for_sessions(0);
                scope.spawn(|| paths.join(peer));
                wait_for_sessions(1);
                group(&mut path.encoder());
                scope.spawn(|| paths.leave(peer));
                wait_for_sessions(0);
                drop(held);
            });
        }
        assert_eq!(paths.stats().sent_parity, ROUNDS);
        assert!(lock(&paths.paths).paths.is_empty());
    }

    /// A waker of who waits for the memory is foreign code.
    #[test]
    fn the_path_whose_memory_is_freed_can_be_used_by_who_is_woken() {
        struct Looks(Weak<Path>, Mutex<Vec<bool>>);

        impl Wake for Looks {
            fn wake(self: Arc<Self>) {
                let path = self.0.upgrade().unwrap();
                lock(&self.1).push(path.decoder.try_lock().is_ok());
            }
        }

        let (pool, budget, shards, paths) = no_paths();
        let peer = peer();
        paths.join(peer);
        let path = paths.get(peer).unwrap();
        let mut encoder = FecEncoder::new(shards, 1400, &pool, &budget);
        let [first, ..] = group(&mut encoder);
        path.decoder().handle_shard(&first, &mut Vec::new());
        let looks = Arc::new(Looks(Arc::downgrade(&path), Mutex::default()));
        drop(path);
        let slab = pool.slab();
        let sizes = slab.size_classes().sizes();
        let take_all = |&bytes: &usize| core::iter::from_fn(move || slab.try_alloc(bytes).ok());
        let _all: Vec<_> = sizes.iter().rev().flat_map(take_all).collect();
        let waker = Waker::from(Arc::clone(&looks));
        let mut waits: Vec<_> = sizes.iter().map(|&bytes| slab.alloc(bytes)).collect();
        for wait in &mut waits {
            let polled = Pin::new(wait).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        let mut now = Time::ZERO;
        while let Some(at) = paths.free_idle(now) {
            now = at;
        }
        assert_eq!(lock(&looks.1)[..], [true]);
    }

    /// One thread looks whether a path rests that another has found, and not used yet.
    #[test]
    fn a_path_that_is_used_late_gives_its_memory_back() {
        let (_, budget, _, paths) = no_paths();
        let peer = peer();
        paths.join(peer);
        drop(paths.get(peer));
        let found = paths.get(peer).unwrap();
        let mut now = Time::ZERO;
        paths.free_idle(now);
        found.encoder().protect(now, &mut [0; 100]);
        drop(found);
        assert_ne!(budget.reserved(), 0);
        while let Some(at) = paths.free_idle(now) {
            assert!(now < at);
            now = at;
        }
        assert_eq!(budget.reserved(), 0);
    }

    /// One thread looks which paths rest, and meanwhile another finds a path that was not busy.
    #[test]
    fn a_path_that_is_found_during_the_check_gives_its_memory_back() {
        let (_, budget, _, paths) = no_paths();
        let (first, other) = (peer(), "192.0.2.2:9".parse().unwrap());
        paths.join(first);
        paths.join(other);
        let now = Time::ZERO;
        let checked = paths.get(first).unwrap();
        // With its session gone it seems to be nobody's but ours, so the check looks at it, and waits.
        paths.leave(first);
        std::thread::scope(|scope| {
            let held = checked.encoder();
            let checking = scope.spawn(|| paths.free_idle(now));
            while !lock(&paths.paths).busy.is_empty() {
                assert!(!checking.is_finished(), "the check does not wait");
                std::thread::yield_now();
            }
            let found = paths.get(other).unwrap();
            found.encoder().protect(now, &mut [0; 100]);
            drop((found, held));
            assert!(checking.join().unwrap().is_some(), "no other check is due");
        });
        drop(checked);
        assert_ne!(budget.reserved(), 0);
        let mut now = now;
        while let Some(at) = paths.free_idle(now) {
            now = at;
        }
        assert_eq!(budget.reserved(), 0);
    }
}
