//! What issue 6 asks of which row. What it asks of owned packets stands at both ways of handing them
//! over: one by one through tokio's channel, and in batches through our own queue.

use crate::report::{Bound, Target};

/// (case, peer, how many times better ours is to be); below 1 it may be that much slower.
const ASKED: &[(&str, &str, f64)] = &[
    ("same-core-coalesced-packets", "fresh-bytesmut", 6.5),
    ("same-core-coalesced-packets", "bytesmut-ring", 2.3),
    ("same-core-coalesced-packets", "quinn-copy-split", 2.9),
    ("same-core-coalesced-queue", "fresh-bytesmut", 6.5),
    ("same-core-coalesced-queue", "bytesmut-ring", 2.3),
    ("same-core-coalesced-queue", "quinn-copy-split", 2.9),
    ("same-core-coalesced-bytes", "slab-net-packets", 1.0 / 1.15),
    ("same-core-single-into-gro-packets", "keep-buffer", 1.0),
    ("two-cores-coalesced-batches", "fresh-bytesmut", 18.0),
    ("two-cores-coalesced-batches", "quinn-copy-split", 5.0),
    ("two-cores-coalesced-packets", "bytesmut-ring", 1.9),
    ("two-cores-coalesced-queue", "bytesmut-ring", 1.9),
    ("two-cores-single-queue", "recv-from-copy", 1.9),
    ("two-cores-single-queue", "reserve-split", 1.3),
    ("two-cores-single-packets", "recv-from-copy", 1.9),
    ("two-cores-single-packets", "reserve-split", 1.3),
    ("in-place-coalesced", "quinn-udp", 1.0 / 1.15),
    ("paced-100k", "recv-buf-from", 1.0 / 1.03),
    ("echo-1200", "tokio", 13.0),
    ("echo-64", "tokio", 30.0),
];

pub(crate) fn of(case: &str, peer: &str) -> Vec<Target> {
    let about = |&&(asked, of, _): &&(&str, &str, f64)| asked == case && of == peer;
    let target = |&(_, _, least): &(&str, &str, f64)| Target {
        issue: 6,
        bound: Bound::Ratio(least),
    };
    ASKED.iter().filter(about).map(target).collect()
}

/// Each row that a line speaks about.
#[cfg(test)]
pub(crate) fn spoken_of() -> impl Iterator<Item = (&'static str, &'static str)> {
    ASKED.iter().map(|&(case, peer, _)| (case, peer))
}
