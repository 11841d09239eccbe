//! Issue 5's targets for the rows.

use crate::report::{Bound, Target, TargetRow};

const ON_ANY: &[&str] = &["bytes-glibc", "bytes-mimalloc", "bytes-jemalloc"];

const TARGETS: &[TargetRow] = &[
    (
        5,
        "alloc-write-freeze-clone-drop",
        &["bytes-glibc"],
        Bound::Ratio(6.0),
    ),
    (
        5,
        "alloc-write-freeze-clone-drop",
        &["bytes-mimalloc"],
        Bound::Ratio(2.5),
    ),
    (5, "clone-drop", ON_ANY, Bound::Ratio(1.0)),
    (5, "split-40", ON_ANY, Bound::Ratio(1.0)),
    // Within 5 %.
    (5, "buf-read", ON_ANY, Bound::Ratio(0.95)),
    (5, "buf-write", ON_ANY, Bound::Ratio(0.95)),
    (
        2,
        "allocs-alloc-write-freeze-drop",
        &["bytes"],
        Bound::Ours(0.0),
    ),
    (
        2,
        "allocs-alloc-write-freeze-clone-drop",
        &["bytes"],
        Bound::Ours(0.0),
    ),
    (2, "allocs-split-40", &["bytes"], Bound::Ours(0.0)),
    // "One small allocation inside `Bytes::from_owner`".
    (5, "allocs-to-bytes", &["bytes"], Bound::Ours(1.0)),
];

pub(crate) fn of(case: &str, peer: &str) -> Vec<Target> {
    crate::report::targets_for(TARGETS, case, peer)
}

/// Returns each row that a line names.
#[cfg(test)]
pub(super) fn rows_with_target() -> impl Iterator<Item = (&'static str, &'static str)> {
    crate::report::rows_with_target(TARGETS)
}
