//! A pool's statistics as series.

use crate::json::Json;
use crate::names::*;
use crate::series::{Registrar, Series, Source, float};
use metrics::{Counter, Gauge, SharedString};
use slab_core::{ClassStats, PoolStats, SlabPool};
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub(crate) struct PoolSource {
    pub(crate) pool: SlabPool,
    /// One entry a size class. With the source and not with a recorder's handles, so that every
    /// recorder, also one that is made later, sees the same totals.
    totals: Mutex<Box<[Totals]>>,
}

impl PoolSource {
    pub(crate) fn new(pool: SlabPool) -> Self {
        let classes = pool.size_classes().sizes().len();
        Self {
            pool,
            totals: Mutex::new(vec![Totals::default(); classes].into()),
        }
    }

    /// Reads the pool; `each` gets every class with its totals.
    fn read(&self, mut each: impl FnMut(usize, &ClassStats, &Totals)) -> PoolStats {
        // Read under the lock: what two scrapes read then reaches the totals in that order. A
        // panic in between leaves totals that are at worst old.
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = self.pool.stats();
        for (index, (total, class)) in totals.iter_mut().zip(stats.classes()).enumerate() {
            total.advance(class);
            each(index, class, total);
        }
        stats
    }
}

/// Totals of one class that slab-core derives from others, and that may therefore fall in its
/// snapshots. A counter on a page must not: Prometheus would take that for a restart, and count
/// everything before it a second time.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    allocs_magazine: u64,
    frees_local: u64,
    frees_remote: u64,
}

impl Totals {
    /// Brings each total up to the snapshot and none down. What was freed is split anew, by as
    /// much as was freed since: local and remote stay what was freed, exactly.
    fn advance(&mut self, class: &ClassStats) {
        self.allocs_magazine = self.allocs_magazine.max(class.allocs_from_magazine());
        let frees = class.frees.max(self.frees_local + self.frees_remote);
        // A thread's frees beyond its allocations become fewer when it allocates.
        let at_most = frees - self.frees_local;
        self.frees_remote = self.frees_remote.max(class.frees_remote.min(at_most));
        self.frees_local = frees - self.frees_remote;
    }

    fn allocs(&self, class: &ClassStats) -> u64 {
        self.allocs_magazine + class.allocs_from_depot + class.allocs_from_slab
    }
}

impl Source for PoolSource {
    fn register(self: Arc<Self>, to: &mut Registrar<'_>) -> Box<dyn Series> {
        let name: SharedString = self.pool.name().to_owned().into();
        let pool = [("pool", name.clone())];
        let info = [
            ("pool", name.clone()),
            ("version", env!("CARGO_PKG_VERSION").into()),
        ];
        Box::new(PoolSeries {
            info: to.gauge(&POOL_INFO, &info),
            capacity: to.gauge(&POOL_CAPACITY_BYTES, &pool),
            resident: self
                .pool
                .resident_bytes()
                .map(|_| to.gauge(&POOL_RESIDENT_BYTES, &pool)),
            unassigned: to.gauge(&POOL_UNASSIGNED_BYTES, &pool),
            thread_caches: to.gauge(&POOL_THREAD_CACHES, &pool),
            too_large: to.counter(&POOL_TOO_LARGE_TOTAL, &pool),
            oversize_bytes: to.gauge(&POOL_OVERSIZE_BYTES, &pool),
            oversize_allocs: to.counter(&POOL_OVERSIZE_ALLOCS_TOTAL, &pool),
            oversize_refused: to.counter(&POOL_OVERSIZE_REFUSED_TOTAL, &pool),
            commit_failures: to.counter(&POOL_COMMIT_FAILURES_TOTAL, &pool),
            classes: self
                .pool
                .size_classes()
                .sizes()
                .iter()
                .map(|&bytes| ClassSeries::register(to, &name, bytes))
                .collect(),
            source: Arc::downgrade(&self),
        })
    }

    fn write_json(&self, json: &mut Json) {
        json.key("classes");
        let stats = json.array(|json| {
            self.read(|_, class, totals| {
                json.object(|json| {
                    json.number("chunk_bytes", class.chunk_bytes);
                    json.number("committed_bytes", class.committed_bytes);
                    json.number("in_use", class.in_use);
                    json.number("magazine", class.in_magazines);
                    json.number("depot", class.in_depot);
                    json.number("free", class.in_slabs);
                    json.number("in_use_peak", class.in_use_peak);
                    json.number("allocs", totals.allocs(class));
                    json.number("frees", totals.frees_local + totals.frees_remote);
                    json.number("frees_remote", totals.frees_remote);
                    json.number("exhausted", class.exhausted);
                    json.number("waits", class.waits);
                    json.number("waiting", class.waiting);
                    json.number("waiters_refused", class.waiters_refused);
                });
            })
        });
        // The classes' figures and these are of one snapshot.
        json.number("capacity_bytes", stats.max_memory);
        json.number("committed_bytes", stats.committed_bytes);
        if let Some(bytes) = self.pool.resident_bytes() {
            json.number("resident_bytes", bytes);
        }
        json.number("thread_caches", stats.thread_caches);
        json.number("too_large", stats.too_large);
        json.number("oversize_bytes", stats.oversize_bytes);
        json.number("oversize_refused", stats.oversize_refused);
        json.number("commit_failures", stats.commit_failures);
    }
}

struct PoolSeries {
    source: Weak<PoolSource>,
    info: Gauge,
    capacity: Gauge,
    /// Where the system says.
    resident: Option<Gauge>,
    unassigned: Gauge,
    thread_caches: Gauge,
    too_large: Counter,
    oversize_bytes: Gauge,
    oversize_allocs: Counter,
    oversize_refused: Counter,
    commit_failures: Counter,
    classes: Box<[ClassSeries]>,
}

impl Series for PoolSeries {
    fn update(&self) -> bool {
        let Some(source) = self.source.upgrade() else {
            return false;
        };
        let stats = source.read(|index, class, totals| self.classes[index].update(class, totals));
        let assigned: usize = stats.classes().iter().map(|c| c.committed_bytes).sum();
        self.info.set(1.0);
        if let (Some(resident), Some(bytes)) = (&self.resident, source.pool.resident_bytes()) {
            resident.set(float(bytes));
        }
        self.capacity.set(float(stats.max_memory));
        self.unassigned
            .set(float(stats.committed_bytes.saturating_sub(assigned)));
        self.thread_caches.set(float(stats.thread_caches));
        self.too_large.absolute(stats.too_large);
        self.oversize_bytes.set(float(stats.oversize_bytes));
        self.oversize_allocs.absolute(stats.oversize_allocs);
        self.oversize_refused.absolute(stats.oversize_refused);
        self.commit_failures.absolute(stats.commit_failures);
        true
    }
}

struct ClassSeries {
    committed_bytes: Gauge,
    in_use_bytes: Gauge,
    magazine_bytes: Gauge,
    depot_bytes: Gauge,
    in_use: Gauge,
    magazine: Gauge,
    depot: Gauge,
    free: Gauge,
    in_use_peak: Gauge,
    allocs_magazine: Counter,
    allocs_depot: Counter,
    allocs_slab: Counter,
    frees_local: Counter,
    frees_remote: Counter,
    exhausted_rejected: Counter,
    exhausted_waited: Counter,
    exhausted_too_many_waiters: Counter,
    waiters: Gauge,
    slab_commits: Counter,
    slab_rebalances: Counter,
    slab_trims: Counter,
}

impl ClassSeries {
    fn register(to: &mut Registrar<'_>, pool: &SharedString, chunk_bytes: usize) -> Self {
        let class = [
            ("pool", pool.clone()),
            ("size_class", chunk_bytes.to_string().into()),
        ];
        let with = |label: &'static str, value: &'static str| {
            let [pool, size_class] = class.clone();
            [pool, size_class, (label, value.into())]
        };
        Self {
            committed_bytes: to.gauge(&POOL_COMMITTED_BYTES, &class),
            in_use_bytes: to.gauge(&POOL_IN_USE_BYTES, &class),
            magazine_bytes: to.gauge(&POOL_CACHED_BYTES, &with("place", "magazine")),
            depot_bytes: to.gauge(&POOL_CACHED_BYTES, &with("place", "depot")),
            in_use: to.gauge(&POOL_CHUNKS, &with("state", "in_use")),
            magazine: to.gauge(&POOL_CHUNKS, &with("state", "magazine")),
            depot: to.gauge(&POOL_CHUNKS, &with("state", "depot")),
            free: to.gauge(&POOL_CHUNKS, &with("state", "free")),
            in_use_peak: to.gauge(&POOL_IN_USE_CHUNKS_PEAK, &class),
            allocs_magazine: to.counter(&POOL_ALLOCS_TOTAL, &with("source", "magazine")),
            allocs_depot: to.counter(&POOL_ALLOCS_TOTAL, &with("source", "depot")),
            allocs_slab: to.counter(&POOL_ALLOCS_TOTAL, &with("source", "slab")),
            frees_local: to.counter(&POOL_FREES_TOTAL, &with("path", "local")),
            frees_remote: to.counter(&POOL_FREES_TOTAL, &with("path", "remote")),
            exhausted_rejected: to.counter(&POOL_EXHAUSTED_TOTAL, &with("outcome", "rejected")),
            exhausted_waited: to.counter(&POOL_EXHAUSTED_TOTAL, &with("outcome", "waited")),
            exhausted_too_many_waiters: to
                .counter(&POOL_EXHAUSTED_TOTAL, &with("outcome", "too_many_waiters")),
            waiters: to.gauge(&POOL_WAITERS, &class),
            slab_commits: to.counter(&POOL_SLAB_COMMITS_TOTAL, &class),
            slab_rebalances: to.counter(&POOL_SLAB_REBALANCES_TOTAL, &class),
            slab_trims: to.counter(&POOL_SLAB_TRIMS_TOTAL, &class),
        }
    }

    fn update(&self, class: &ClassStats, totals: &Totals) {
        self.committed_bytes.set(float(class.committed_bytes));
        self.in_use_bytes.set(float(class.in_use_bytes()));
        let bytes = |chunks: u64| float(chunks * class.chunk_bytes as u64);
        self.magazine_bytes.set(bytes(class.in_magazines));
        self.depot_bytes.set(bytes(class.in_depot));
        self.in_use.set(float(class.in_use));
        self.magazine.set(float(class.in_magazines));
        self.depot.set(float(class.in_depot));
        self.free.set(float(class.in_slabs));
        self.in_use_peak.set(float(class.in_use_peak));
        self.allocs_magazine.absolute(totals.allocs_magazine);
        self.allocs_depot.absolute(class.allocs_from_depot);
        self.allocs_slab.absolute(class.allocs_from_slab);
        self.frees_local.absolute(totals.frees_local);
        self.frees_remote.absolute(totals.frees_remote);
        self.exhausted_rejected.absolute(class.exhausted);
        self.exhausted_waited.absolute(class.waits);
        self.exhausted_too_many_waiters
            .absolute(class.waiters_refused);
        self.waiters.set(float(class.waiting));
        self.slab_commits.absolute(class.slab_commits);
        self.slab_rebalances.absolute(class.slab_rebalances);
        self.slab_trims.absolute(class.slab_trims);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_never_fall_and_add_up_to_what_was_freed() {
        // (freed, of these remote) in successive snapshots; the second falls where threads that
        // had freed for others allocate.
        let snapshots = [
            (0, 0),
            (10, 10),
            (10, 0),
            (12, 2),
            (40, 25),
            (40, 41),
            (39, 0),
            (60, 60),
        ];
        let mut totals = Totals::default();
        for (frees, frees_remote) in snapshots {
            let mut class = ClassStats::default();
            class.frees = frees;
            class.frees_remote = frees_remote;
            class.allocs = frees;
            let before = totals;
            totals.advance(&class);
            assert!(totals.frees_local >= before.frees_local, "{totals:?}");
            assert!(totals.frees_remote >= before.frees_remote, "{totals:?}");
            assert!(
                totals.allocs_magazine >= before.allocs_magazine,
                "{totals:?}"
            );
            let freed = before.frees_local + before.frees_remote;
            assert_eq!(totals.frees_local + totals.frees_remote, frees.max(freed));
        }
        assert!(totals.frees_remote > 10, "{totals:?}");
    }
}
