//! Issue 8's targets for the rows.

use crate::report::{Bound, Target, TargetRow};

const TARGETS: &[TargetRow] = &[
    // 1 ms.
    (8, "scrape", &["recorder"], Bound::Ours(1000.0)),
    (8, "scrape-gzip", &["recorder"], Bound::Ours(1000.0)),
    // Nothing per class: as many as with one class.
    (8, "scrape-allocs", &["one-class"], Bound::Ratio(1.0)),
    // Within 1 %.
    (8, "pipeline", &["unwatched"], Bound::Ratio(0.99)),
    (8, "pair-instructions", &["unwatched"], Bound::Ratio(1.0)),
];

pub(crate) fn of(case: &str, peer: &str) -> Vec<Target> {
    crate::report::targets_for(TARGETS, case, peer)
}

/// Returns each row that a line names.
#[cfg(test)]
pub(super) fn rows_with_target() -> impl Iterator<Item = (&'static str, &'static str)> {
    crate::report::rows_with_target(TARGETS)
}
