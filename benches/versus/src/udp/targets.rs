//! Issue 6's targets for the rows. Targets for owned packets apply to both ways of handing them over: one
//! by one through tokio's channel, and in batches through our own queue.

use crate::report::{Bound, Target, TargetRow};

const TARGETS: &[TargetRow] = &[
    (
        6,
        "recv-1200-coalesced",
        &["tokio-fresh"],
        Bound::Ratio(6.5),
    ),
    (
        6,
        "recv-1200-coalesced",
        &["bytesmut-ring"],
        Bound::Ratio(2.3),
    ),
    (6, "recv-1200-coalesced", &["quinn-copy"], Bound::Ratio(2.9)),
    (
        6,
        "recv-1200-coalesced-queue",
        &["tokio-fresh"],
        Bound::Ratio(6.5),
    ),
    (
        6,
        "recv-1200-coalesced-queue",
        &["bytesmut-ring"],
        Bound::Ratio(2.3),
    ),
    (
        6,
        "recv-1200-coalesced-queue",
        &["quinn-copy"],
        Bound::Ratio(2.9),
    ),
    (
        6,
        "recv-1200-coalesced-bytes",
        &["slab-net-packets"],
        Bound::Ratio(1.0 / 1.15),
    ),
    (
        6,
        "recv-1200-plain-into-gro",
        &["keep-buffer"],
        Bound::Ratio(1.0),
    ),
    (6, "xcore-1200-batch", &["tokio-fresh"], Bound::Ratio(18.0)),
    (6, "xcore-1200-batch", &["quinn-copy"], Bound::Ratio(5.0)),
    (
        6,
        "xcore-1200-coalesced",
        &["bytesmut-ring"],
        Bound::Ratio(1.9),
    ),
    (
        6,
        "xcore-1200-coalesced-queue",
        &["bytesmut-ring"],
        Bound::Ratio(1.9),
    ),
    (
        6,
        "xcore-1200-plain-queue",
        &["tokio-copy"],
        Bound::Ratio(1.9),
    ),
    (
        6,
        "xcore-1200-plain-queue",
        &["tokio-split"],
        Bound::Ratio(1.3),
    ),
    (6, "xcore-1200-plain", &["tokio-copy"], Bound::Ratio(1.9)),
    (6, "xcore-1200-plain", &["tokio-split"], Bound::Ratio(1.3)),
    (
        6,
        "batch-1200-coalesced",
        &["quinn-udp-raw"],
        Bound::Ratio(1.0 / 1.15),
    ),
    (
        6,
        "paced-1200-plain",
        &["tokio-fresh"],
        Bound::Ratio(1.0 / 1.03),
    ),
    // Under load 1.5 times our default, and when idle no slower than 1.05 times plain tokio: where it is
    // slower, it is off by default.
    (
        6,
        "uring-1200-coalesced",
        super::uring::PEERS,
        Bound::Ratio(1.5),
    ),
    (
        6,
        "uring-1200-plain",
        super::uring::PEERS,
        Bound::Ratio(1.5),
    ),
    (
        6,
        "uring-paced-1200-plain",
        &["tokio-fresh"],
        Bound::Ratio(1.0 / 1.05),
    ),
    (6, "echo-1200", &["tokio"], Bound::Ratio(13.0)),
    (6, "echo-64", &["tokio"], Bound::Ratio(30.0)),
    // Exactly 0 over 10^6 packets.
    (
        6,
        "allocs-recv-1200-coalesced-queue",
        &["tokio-fresh"],
        Bound::Ours(0.0),
    ),
    (
        6,
        "allocs-recv-1200-coalesced-queue-bytes",
        &["tokio-fresh"],
        Bound::Ours(0.02),
    ),
    (
        6,
        "pinned-1200-plain-into-gro",
        &["keep-buffer"],
        Bound::Ours(2.0),
    ),
    // 4 KiB.
    (6, "idle-receiver", &["quinn-udp-raw"], Bound::Ours(4096.0)),
];

pub(crate) fn of(case: &str, peer: &str) -> Vec<Target> {
    crate::report::targets_for(TARGETS, case, peer)
}

/// Returns each row that a line names.
#[cfg(test)]
pub(super) fn rows_with_target() -> impl Iterator<Item = (&'static str, &'static str)> {
    crate::report::rows_with_target(TARGETS)
}
