//! A pool's statistics as series.

use crate::json::Json;
use crate::names::*;
use crate::series::{Describe, Label, Row, Source, describe_rows, nanos, read_rows, rows};
use slab_core::{ClassStats, PoolStats, SlabPool, WaitTimes};

/// The series of a pool.
const ROWS: &[Row<PoolStats>] = rows! { |s|
    POOL_CAPACITY_BYTES: s.max_memory as u64;
    POOL_TOUCHED_BYTES: s.touched_bytes as u64;
    POOL_UNASSIGNED_BYTES: unassigned_bytes(s) as u64;
    POOL_THREAD_CACHES: s.thread_caches as u64;
    POOL_SLOW_CLASSES: s.slow_classes as u64;
    POOL_TOO_LARGE_TOTAL: s.too_large;
    POOL_OVERSIZE_BYTES: s.oversize_bytes as u64;
    POOL_OVERSIZE_ALLOCS_TOTAL: s.oversize_allocs;
    POOL_OVERSIZE_REFUSED_TOTAL: s.oversize_refused;
    POOL_COMMIT_FAILURES_TOTAL: s.commit_failures;
};

fn unassigned_bytes(pool: &PoolStats) -> usize {
    let assigned: usize = pool.classes().iter().map(|c| c.committed_bytes).sum();
    pool.committed_bytes.saturating_sub(assigned)
}

/// The series of a class of a pool.
const CLASS_ROWS: &[Row<ClassStats>] = rows! { |c|
    POOL_COMMITTED_BYTES: c.committed_bytes as u64;
    POOL_IN_USE_BYTES: c.in_use_bytes() as u64;
    POOL_CACHED_BYTES place="magazine": c.in_magazines * c.chunk_bytes as u64;
    POOL_CACHED_BYTES place="depot": c.in_depot * c.chunk_bytes as u64;
    POOL_CHUNKS state="in_use": c.in_use;
    POOL_CHUNKS state="magazine": c.in_magazines;
    POOL_CHUNKS state="depot": c.in_depot;
    POOL_CHUNKS state="free": c.in_slabs;
    POOL_IN_USE_CHUNKS_PEAK: c.in_use_peak;
    POOL_ALLOCS_TOTAL source="magazine": c.allocs_from_magazine;
    POOL_ALLOCS_TOTAL source="depot": c.allocs_from_depot;
    POOL_ALLOCS_TOTAL source="slab": c.allocs_from_slab;
    POOL_FREES_TOTAL path="local": c.frees.saturating_sub(c.frees_remote);
    POOL_FREES_TOTAL path="remote": c.frees_remote;
    POOL_EXHAUSTED_TOTAL outcome="rejected": c.exhausted;
    POOL_EXHAUSTED_TOTAL outcome="waited": c.waits;
    POOL_EXHAUSTED_TOTAL outcome="too_many_waiters": c.waiters_refused;
    POOL_WAITERS: c.waiting;
    POOL_SLAB_COMMITS_TOTAL: c.slab_commits;
    POOL_SLAB_REBALANCES_TOTAL: c.slab_rebalances;
    POOL_SLAB_TRIMS_TOTAL: c.slab_trims;
};

pub(crate) struct PoolSource {
    pool: SlabPool,
    has_resident_bytes: bool,
}

impl PoolSource {
    pub(crate) fn new(pool: SlabPool) -> Self {
        let has_resident_bytes = pool.resident_bytes().is_some();
        Self {
            pool,
            has_resident_bytes,
        }
    }

    /// Returns the waiting times of each class.
    fn wait_times(&self) -> impl Iterator<Item = WaitTimes> + '_ {
        (0..).map_while(|class| self.pool.wait_times(class))
    }
}

impl Source for PoolSource {
    fn describe(&self, to: &mut Describe<'_>) {
        let pool: Label = ("pool", self.pool.name().to_owned().into());
        for bytes in self.pool.size_classes().sizes() {
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
        let stats = self.pool.stats();
        for class in stats.classes() {
            read_rows(CLASS_ROWS, class, values);
        }
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
        let stats = self.pool.stats();
        json.array(|json| {
            for class in stats.classes() {
                json.object(|json| write_class(class, json));
            }
        });
        // The classes' figures and these are of one snapshot.
        write_pool(&stats, json);
        if let Some(bytes) = self.pool.resident_bytes() {
            json.number("resident_bytes", bytes);
        }
        let waited = |of: fn(&WaitTimes) -> u64| self.wait_times().map(|t| of(&t)).sum::<u64>();
        json.number("waits_ended", waited(WaitTimes::count));
        json.number("waits_nanos", waited(|times| nanos(times.sum())));
    }
}

fn write_pool(stats: &PoolStats, json: &mut Json) {
    json.number("capacity_bytes", stats.max_memory);
    json.number("committed_bytes", stats.committed_bytes);
    json.number("touched_bytes", stats.touched_bytes);
    json.number("thread_caches", stats.thread_caches);
    json.number("too_large", stats.too_large);
    json.number("oversize_bytes", stats.oversize_bytes);
    json.number("oversize_refused", stats.oversize_refused);
    json.number("commit_failures", stats.commit_failures);
}

fn write_class(class: &ClassStats, json: &mut Json) {
    json.number("chunk_bytes", class.chunk_bytes);
    json.number("committed_bytes", class.committed_bytes);
    json.number("in_use", class.in_use);
    json.number("magazine", class.in_magazines);
    json.number("depot", class.in_depot);
    json.number("free", class.in_slabs);
    json.number("in_use_peak", class.in_use_peak);
    json.number("allocs", class.allocs);
    json.number("frees", class.frees);
    json.number("frees_remote", class.frees_remote);
    json.number("exhausted", class.exhausted);
    json.number("waits", class.waits);
    json.number("waiting", class.waiting);
    json.number("waiters_refused", class.waiters_refused);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::assert_each_field_has_its_members;
    use crate::series::assert_each_field_has_its_series;

    #[test]
    fn each_series_reads_its_own_field() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let nothing = || {
            let mut stats = pool.stats();
            stats.max_memory = 0;
            stats
        };
        assert_each_field_has_its_series! {
            ROWS, nothing();
            max_memory = 1 => "slab_pool_capacity_bytes";
            touched_bytes = 1 => "slab_pool_touched_bytes";
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
            let mut class = ClassStats::default();
            class.chunk_bytes = 64;
            class
        };
        assert_each_field_has_its_series! {
            CLASS_ROWS, nothing();
            committed_bytes = 1 => "slab_pool_committed_bytes";
            in_use = 1 => "slab_pool_in_use_bytes", "slab_pool_chunks state=in_use";
            in_magazines = 1 => "slab_pool_cached_bytes place=magazine", "slab_pool_chunks state=magazine";
            in_depot = 1 => "slab_pool_cached_bytes place=depot", "slab_pool_chunks state=depot";
            in_slabs = 1 => "slab_pool_chunks state=free";
            in_use_peak = 1 => "slab_pool_in_use_chunks_peak";
            allocs_from_magazine = 1 => "slab_pool_allocs_total source=magazine";
            allocs_from_depot = 1 => "slab_pool_allocs_total source=depot";
            allocs_from_slab = 1 => "slab_pool_allocs_total source=slab";
            frees = 1 => "slab_pool_frees_total path=local";
            frees_remote = 1 => "slab_pool_frees_total path=remote";
            exhausted = 1 => "slab_pool_exhausted_total outcome=rejected";
            waits = 1 => "slab_pool_exhausted_total outcome=waited";
            waiters_refused = 1 => "slab_pool_exhausted_total outcome=too_many_waiters";
            waiting = 1 => "slab_pool_waiters";
            slab_commits = 1 => "slab_pool_slab_commits_total";
            slab_rebalances = 1 => "slab_pool_slab_rebalances_total";
            slab_trims = 1 => "slab_pool_slab_trims_total";
        }
    }

    #[test]
    fn each_member_of_the_json_reads_its_own_field() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let nothing = || {
            let mut stats = pool.stats();
            stats.max_memory = 0;
            stats
        };
        assert_each_field_has_its_members! {
            write_pool, nothing(), others: [];
            max_memory = 1 => "capacity_bytes";
            committed_bytes = 1 => "committed_bytes";
            touched_bytes = 1 => "touched_bytes";
            thread_caches = 1 => "thread_caches";
            too_large = 1 => "too_large";
            oversize_bytes = 1 => "oversize_bytes";
            oversize_refused = 1 => "oversize_refused";
            commit_failures = 1 => "commit_failures";
        }
        assert_each_field_has_its_members! {
            write_class, ClassStats::default(), others: [];
            chunk_bytes = 1 => "chunk_bytes";
            committed_bytes = 1 => "committed_bytes";
            in_use = 1 => "in_use";
            in_magazines = 1 => "magazine";
            in_depot = 1 => "depot";
            in_slabs = 1 => "free";
            in_use_peak = 1 => "in_use_peak";
            allocs = 1 => "allocs";
            frees = 1 => "frees";
            frees_remote = 1 => "frees_remote";
            exhausted = 1 => "exhausted";
            waits = 1 => "waits";
            waiting = 1 => "waiting";
            waiters_refused = 1 => "waiters_refused";
        }
    }
}
