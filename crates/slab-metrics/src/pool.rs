//! A pool's statistics as series.

use crate::json::Json;
use crate::names::*;
use crate::series::{Describe, Label, Row, Source, describe_rows, nanos, read_rows};
#[cfg(feature = "allocator-api2")]
use slab_core::SlabAllocator;
use slab_core::{ClassStats, PoolStats, Slab, SlabPool, WaitTimes};
use std::sync::{Mutex, PoisonError};

/// Something with a pool's statistics.
pub(crate) trait ReadPool: Send + Sync {
    fn stats(&self) -> PoolStats;
    /// Returns how long callers waited for chunks of a class; `None` if nobody can wait.
    fn wait_times(&self, class: usize) -> Option<WaitTimes>;
    /// Returns the resident bytes; `None` if they are not known.
    fn resident_bytes(&self) -> Option<usize>;
}

impl ReadPool for SlabPool {
    fn stats(&self) -> PoolStats {
        self.stats()
    }

    fn wait_times(&self, class: usize) -> Option<WaitTimes> {
        self.wait_times(class)
    }

    fn resident_bytes(&self) -> Option<usize> {
        self.resident_bytes()
    }
}

impl<T, Tag> ReadPool for Slab<T, Tag> {
    fn stats(&self) -> PoolStats {
        self.stats()
    }

    fn wait_times(&self, _only: usize) -> Option<WaitTimes> {
        Some(self.wait_times())
    }

    fn resident_bytes(&self) -> Option<usize> {
        self.resident_bytes()
    }
}

#[cfg(feature = "allocator-api2")]
impl ReadPool for SlabAllocator {
    fn stats(&self) -> PoolStats {
        self.stats()
    }

    /// An allocator refuses and never waits.
    fn wait_times(&self, _class: usize) -> Option<WaitTimes> {
        None
    }

    fn resident_bytes(&self) -> Option<usize> {
        self.resident_bytes()
    }
}

/// The series of a pool.
const ROWS: &[Row<PoolStats>] = &[
    Row(&POOL_CAPACITY_BYTES, None, |s| s.max_memory as u64),
    Row(&POOL_UNASSIGNED_BYTES, None, |s| {
        let assigned: usize = s.classes().iter().map(|c| c.committed_bytes).sum();
        s.committed_bytes.saturating_sub(assigned) as u64
    }),
    Row(&POOL_THREAD_CACHES, None, |s| s.thread_caches as u64),
    Row(&POOL_SLOW_CLASSES, None, |s| s.slow_classes as u64),
    Row(&POOL_TOO_LARGE_TOTAL, None, |s| s.too_large),
    Row(&POOL_OVERSIZE_BYTES, None, |s| s.oversize_bytes as u64),
    Row(&POOL_OVERSIZE_ALLOCS_TOTAL, None, |s| s.oversize_allocs),
    Row(&POOL_OVERSIZE_REFUSED_TOTAL, None, |s| s.oversize_refused),
    Row(&POOL_COMMIT_FAILURES_TOTAL, None, |s| s.commit_failures),
];

/// One class of a snapshot.
struct Class {
    stats: ClassStats,
    totals: Totals,
}

/// The series of a class of a pool.
const CLASS_ROWS: &[Row<Class>] = &[
    Row(&POOL_COMMITTED_BYTES, None, |c| {
        c.stats.committed_bytes as u64
    }),
    Row(&POOL_IN_USE_BYTES, None, |c| c.stats.in_use_bytes()),
    Row(&POOL_CACHED_BYTES, Some(("place", "magazine")), |c| {
        c.stats.in_magazines * c.stats.chunk_bytes as u64
    }),
    Row(&POOL_CACHED_BYTES, Some(("place", "depot")), |c| {
        c.stats.in_depot * c.stats.chunk_bytes as u64
    }),
    Row(&POOL_CHUNKS, Some(("state", "in_use")), |c| c.stats.in_use),
    Row(&POOL_CHUNKS, Some(("state", "magazine")), |c| {
        c.stats.in_magazines
    }),
    Row(&POOL_CHUNKS, Some(("state", "depot")), |c| c.stats.in_depot),
    Row(&POOL_CHUNKS, Some(("state", "free")), |c| c.stats.in_slabs),
    Row(&POOL_IN_USE_CHUNKS_PEAK, None, |c| c.stats.in_use_peak),
    Row(&POOL_ALLOCS_TOTAL, Some(("source", "magazine")), |c| {
        c.totals.allocs_magazine
    }),
    Row(&POOL_ALLOCS_TOTAL, Some(("source", "depot")), |c| {
        c.stats.allocs_from_depot
    }),
    Row(&POOL_ALLOCS_TOTAL, Some(("source", "slab")), |c| {
        c.stats.allocs_from_slab
    }),
    Row(&POOL_FREES_TOTAL, Some(("path", "local")), |c| {
        c.totals.frees_local
    }),
    Row(&POOL_FREES_TOTAL, Some(("path", "remote")), |c| {
        c.totals.frees_remote
    }),
    Row(&POOL_EXHAUSTED_TOTAL, Some(("outcome", "rejected")), |c| {
        c.stats.exhausted
    }),
    Row(&POOL_EXHAUSTED_TOTAL, Some(("outcome", "waited")), |c| {
        c.stats.waits
    }),
    Row(
        &POOL_EXHAUSTED_TOTAL,
        Some(("outcome", "too_many_waiters")),
        |c| c.stats.waiters_refused,
    ),
    Row(&POOL_WAITERS, None, |c| c.stats.waiting),
    Row(&POOL_SLAB_COMMITS_TOTAL, None, |c| c.stats.slab_commits),
    Row(&POOL_SLAB_REBALANCES_TOTAL, None, |c| {
        c.stats.slab_rebalances
    }),
    Row(&POOL_SLAB_TRIMS_TOTAL, None, |c| c.stats.slab_trims),
];

pub(crate) struct PoolSource {
    name: String,
    pool: Box<dyn ReadPool>,
    class_bytes: Box<[usize]>,
    has_resident_bytes: bool,
    /// One entry per size class. Kept by the source rather than by a page or recorder, so that all of
    /// these, also those made later, see the same totals.
    totals: Mutex<Box<[Totals]>>,
}

impl PoolSource {
    pub(crate) fn new(name: &str, pool: impl ReadPool + 'static) -> Self {
        let stats = pool.stats();
        let class_bytes: Box<[usize]> = stats.classes().iter().map(|c| c.chunk_bytes).collect();
        Self {
            name: name.to_owned(),
            has_resident_bytes: pool.resident_bytes().is_some(),
            totals: Mutex::new(vec![Totals::default(); class_bytes.len()].into()),
            class_bytes,
            pool: Box::new(pool),
        }
    }

    /// Returns the waiting times of each class that callers can wait for.
    fn wait_times(&self) -> impl Iterator<Item = WaitTimes> + '_ {
        (0..self.class_bytes.len()).map_while(|class| self.pool.wait_times(class))
    }

    /// Reads the pool and calls `each` with every class and its totals.
    fn read_classes(&self, mut each: impl FnMut(Class)) -> PoolStats {
        // Read under the lock, so that the snapshots of two scrapes reach the totals in the order in which
        // they were taken. A panic in between leaves totals that are at worst old.
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = self.pool.stats();
        for (total, class) in totals.iter_mut().zip(stats.classes()) {
            total.advance(class);
            each(Class {
                stats: *class,
                totals: *total,
            });
        }
        stats
    }
}

/// Totals of one class that slab-core derives from other numbers, so that they may fall from one snapshot
/// to the next. A counter on a page must not fall: Prometheus would take that for a restart and count
/// everything before it a second time.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    allocs_magazine: u64,
    frees_local: u64,
    frees_remote: u64,
}

impl Totals {
    /// Raises each total to the snapshot and lowers none. The frees since the last snapshot are split
    /// between local and remote, so that the two always add up to all frees.
    fn advance(&mut self, class: &ClassStats) {
        self.allocs_magazine = self.allocs_magazine.max(class.allocs_from_magazine());
        let frees = class.frees.max(self.frees_local + self.frees_remote);
        // A thread's excess of frees over allocations shrinks when it allocates.
        let at_most = frees - self.frees_local;
        self.frees_remote = self.frees_remote.max(class.frees_remote.min(at_most));
        self.frees_local = frees - self.frees_remote;
    }

    fn allocs(&self, class: &ClassStats) -> u64 {
        self.allocs_magazine + class.allocs_from_depot + class.allocs_from_slab
    }
}

impl Source for PoolSource {
    fn describe(&self, to: &mut Describe<'_>) {
        let pool: Label = ("pool", self.name.clone().into());
        for bytes in &self.class_bytes {
            let class = [pool.clone(), ("size_class", bytes.to_string().into())];
            describe_rows(CLASS_ROWS, &class, to);
        }
        describe_rows(ROWS, std::slice::from_ref(&pool), to);
        to(&POOL_WAIT_SECONDS, std::slice::from_ref(&pool));
        if self.has_resident_bytes {
            to(&POOL_RESIDENT_BYTES, &[pool]);
        }
    }

    fn read(&self, values: &mut Vec<u64>) {
        let stats = self.read_classes(|class| read_rows(CLASS_ROWS, &class, values));
        read_rows(ROWS, &stats, values);
        // Over all classes: with a label for the class, each would have sixteen lines more.
        let first = values.len();
        values.resize(first + POOL_WAIT_SECONDS.width(), 0);
        for times in self.wait_times() {
            let numbers = times.counts().iter().copied().chain([nanos(times.sum())]);
            for (sum, number) in values[first..].iter_mut().zip(numbers) {
                *sum += number;
            }
        }
        if self.has_resident_bytes {
            values.push(self.pool.resident_bytes().unwrap_or(0) as u64);
        }
    }

    fn write_json(&self, json: &mut Json) {
        json.key("classes");
        let stats = json.array(|json| {
            self.read_classes(
                |Class {
                     stats: class,
                     totals,
                 }| {
                    json.object(|json| {
                        json.number("chunk_bytes", class.chunk_bytes);
                        json.number("committed_bytes", class.committed_bytes);
                        json.number("in_use", class.in_use);
                        json.number("magazine", class.in_magazines);
                        json.number("depot", class.in_depot);
                        json.number("free", class.in_slabs);
                        json.number("in_use_peak", class.in_use_peak);
                        json.number("allocs", totals.allocs(&class));
                        json.number("frees", totals.frees_local + totals.frees_remote);
                        json.number("frees_remote", totals.frees_remote);
                        json.number("exhausted", class.exhausted);
                        json.number("waits", class.waits);
                        json.number("waiting", class.waiting);
                        json.number("waiters_refused", class.waiters_refused);
                    });
                },
            )
        });
        // The classes' figures and these are of one snapshot.
        json.number("capacity_bytes", stats.max_memory);
        json.number("committed_bytes", stats.committed_bytes);
        if let Some(bytes) = self.pool.resident_bytes() {
            json.number("resident_bytes", bytes);
        }
        json.number("thread_caches", stats.thread_caches);
        let waited = |of: fn(&WaitTimes) -> u64| self.wait_times().map(|t| of(&t)).sum::<u64>();
        json.number("waits_ended", waited(WaitTimes::count));
        json.number("waits_nanos", waited(|times| nanos(times.sum())));
        json.number("too_large", stats.too_large);
        json.number("oversize_bytes", stats.oversize_bytes);
        json.number("oversize_refused", stats.oversize_refused);
        json.number("commit_failures", stats.commit_failures);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::assert_each_field_has_its_series;

    #[test]
    fn each_field_is_exported_under_its_own_name() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let nothing = || {
            let mut stats = pool.stats();
            stats.max_memory = 0;
            stats
        };
        assert_each_field_has_its_series! {
            ROWS, nothing();
            max_memory = 1 => "slab_pool_capacity_bytes";
            committed_bytes = 1 => "slab_pool_unassigned_bytes";
            thread_caches = 1 => "slab_pool_thread_caches";
            slow_classes = 1 => "slab_pool_slow_classes";
            too_large = 1 => "slab_pool_too_large_total";
            oversize_bytes = 1 => "slab_pool_oversize_bytes";
            oversize_allocs = 1 => "slab_pool_oversize_allocs_total";
            oversize_refused = 1 => "slab_pool_oversize_refused_total";
            commit_failures = 1 => "slab_pool_commit_failures_total";
        }
        let nothing = || {
            let (mut stats, totals) = (ClassStats::default(), Totals::default());
            stats.chunk_bytes = 64;
            Class { stats, totals }
        };
        assert_each_field_has_its_series! {
            CLASS_ROWS, nothing();
            stats.committed_bytes = 1 => "slab_pool_committed_bytes";
            stats.in_use = 1 => "slab_pool_in_use_bytes", "slab_pool_chunks state=in_use";
            stats.in_magazines = 1 => "slab_pool_cached_bytes place=magazine", "slab_pool_chunks state=magazine";
            stats.in_depot = 1 => "slab_pool_cached_bytes place=depot", "slab_pool_chunks state=depot";
            stats.in_slabs = 1 => "slab_pool_chunks state=free";
            stats.in_use_peak = 1 => "slab_pool_in_use_chunks_peak";
            totals.allocs_magazine = 1 => "slab_pool_allocs_total source=magazine";
            stats.allocs_from_depot = 1 => "slab_pool_allocs_total source=depot";
            stats.allocs_from_slab = 1 => "slab_pool_allocs_total source=slab";
            totals.frees_local = 1 => "slab_pool_frees_total path=local";
            totals.frees_remote = 1 => "slab_pool_frees_total path=remote";
            stats.exhausted = 1 => "slab_pool_exhausted_total outcome=rejected";
            stats.waits = 1 => "slab_pool_exhausted_total outcome=waited";
            stats.waiters_refused = 1 => "slab_pool_exhausted_total outcome=too_many_waiters";
            stats.waiting = 1 => "slab_pool_waiters";
            stats.slab_commits = 1 => "slab_pool_slab_commits_total";
            stats.slab_rebalances = 1 => "slab_pool_slab_rebalances_total";
            stats.slab_trims = 1 => "slab_pool_slab_trims_total";
        }
    }

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
