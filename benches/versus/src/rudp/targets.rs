//! Issue 7's targets for the rows.

use crate::report::{Bound, Target, TargetRow};

const TARGETS: &[TargetRow] = &[
    (7, "bulk", &["kcp-go"], Bound::Ratio(6.0)),
    (7, "bulk", &["tokio_kcp"], Bound::Ratio(12.0)),
    (7, "bulk", &["quinn"], Bound::Ratio(4.5)),
    (7, "cpu-per-gb", &["kcp-go"], Bound::Ratio(1.0 / 0.18)),
    (7, "cpu-per-gb", &["tokio_kcp"], Bound::Ratio(1.0 / 0.09)),
    (7, "echo-p50", &["kcp-go"], Bound::Ratio(1.0 / 0.6)),
    (7, "echo-p99", &["kcp-go"], Bound::Ratio(1.0 / 0.5)),
    (7, "to-kcp-go", &["kcp-go"], Bound::Ours(0.25)),
    (7, "loss1", &["kcp-go"], Bound::Ratio(1.15)),
    (7, "loss5", &["kcp-go"], Bound::Ratio(1.25)),
    (
        7,
        "paced1-p99",
        &["tokio_kcp", "quinn", "kcp-go"],
        Bound::Ours(46.0),
    ),
    (
        7,
        "paced5-p99",
        &["tokio_kcp", "quinn", "kcp-go"],
        Bound::Ours(70.0),
    ),
    (7, "fanout-cpu", &["tokio_kcp"], Bound::Ratio(1.0 / 0.45)),
    (7, "fanout-cpu", &["kcp-go"], Bound::Ratio(1.0 / 0.25)),
    (7, "aes-cpu-per-gb", &["quinn"], Bound::Ratio(1.0 / 0.85)),
    (7, "paced5-fec-p99", &["kcp-go"], Bound::Ours(25.5)),
    // 0.000.
    (7, "allocs", &["tokio_kcp", "kcp-go"], Bound::Ours(0.0005)),
    (
        7,
        "allocs-loss5",
        &["tokio_kcp", "kcp-go"],
        Bound::Ours(0.0005),
    ),
    // 100 000 in 200 MB.
    (
        7,
        "many-resident",
        &["tokio_kcp", "quinn"],
        Bound::Ours(2000.0),
    ),
    // 1.5 KB.
    (
        7,
        "idle-heap",
        &["tokio_kcp", "kcp-go"],
        Bound::Ours(1500.0),
    ),
    (7, "idle-cpu", &["tokio_kcp"], Bound::Ratio(100.0)),
];

pub(crate) fn of(case: &str, peer: &str) -> Vec<Target> {
    crate::report::targets_for(TARGETS, case, peer)
}

/// Returns each row that a line names.
#[cfg(test)]
pub(super) fn rows_with_target() -> impl Iterator<Item = (&'static str, &'static str)> {
    crate::report::rows_with_target(TARGETS)
}
