//! The targets of the issues for the rows of `alloc`.

use super::peers::{HEAPS, UNCOUNTED};
use crate::report::{Bound, Target, TargetRow};

const TARGETS: &[TargetRow] = &[
    (2, "pair-2048", &["mimalloc"], Bound::Ratio(4.0)),
    (2, "pair-2048", &["jemalloc"], Bound::Ratio(1.5)),
    // "Best peer" is the best of the heaps, so each of them must be at least that far behind.
    (3, "pair-64", HEAPS, Bound::Ratio(1.6)),
    (3, "pair-256", HEAPS, Bound::Ratio(1.6)),
    (3, "pair-2048", HEAPS, Bound::Ratio(1.8)),
    (3, "pair-2048", &["mimalloc"], Bound::Ratio(4.5)),
    (3, "pair-2048", &["glibc", "BytesMut"], Bound::Ratio(8.0)),
    // With statistics, at most 1.1 times the time without.
    (3, "pair-2048", &[UNCOUNTED], Bound::Ratio(1.0 / 1.1)),
    (3, "pair-65536", HEAPS, Bound::Ratio(2.0)),
    (3, "batch-64", HEAPS, Bound::Ratio(1.8)),
    (3, "batch-2048", HEAPS, Bound::Ratio(2.0)),
    (3, "random-2048", HEAPS, Bound::Ratio(1.8)),
    (3, "random-65536", HEAPS, Bound::Ratio(2.2)),
    (3, "bulk-2048", &["glibc"], Bound::Ours(0.35)),
    // 1.35 times the bare ring's time.
    (3, "cross-2048", &["no-alloc"], Bound::Ratio(1.0 / 1.35)),
    (
        3,
        "cross-2048",
        &["mimalloc", "snmalloc"],
        Bound::Ratio(3.0),
    ),
    (3, "cross-2048", &["jemalloc", "glibc"], Bound::Ratio(12.0)),
    (3, "remote-free-2048", &["ArrayQueue"], Bound::Ratio(3.0)),
    (
        3,
        "remote-free-2048",
        &["mimalloc", "snmalloc", "jemalloc"],
        Bound::Ratio(12.0),
    ),
    (3, "migration-rss", HEAPS, Bound::Ours(1.1)),
    (3, "churn-rss", HEAPS, Bound::Ours(101.0)),
    (3, "scaling-2", &["no-alloc"], Bound::Ours(1.05)),
    (3, "typed-footprint", HEAPS, Bound::Ours(101.5)),
    (3, "churn-rss-64", HEAPS, Bound::Ours(107.0)),
    (3, "churn-growth", HEAPS, Bound::Ours(0.5)),
    (3, "trim-rss", HEAPS, Bound::Ours(2.1)),
    // 5 GiB/s.
    (3, "trim-time", HEAPS, Bound::Ours(200.0)),
    (3, "stats", &["glibc"], Bound::Ours(150.0)),
    (3, "class-lookup", super::lookup::PEERS, Bound::Ours(1.0)),
    (
        3,
        "class-lookup-large",
        super::lookup::PEERS,
        Bound::Ours(1.0),
    ),
    (3, "stats-busy", &["glibc"], Bound::Ours(1000.0)),
];

pub(crate) fn of(case: &str, peer: &str) -> Vec<Target> {
    crate::report::targets_for(TARGETS, case, peer)
}

/// Returns each row that a line names.
#[cfg(test)]
pub(super) fn rows_with_target() -> impl Iterator<Item = (&'static str, &'static str)> {
    crate::report::rows_with_target(TARGETS)
}
