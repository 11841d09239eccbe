//! The group `packet`: packets on pool memory against `bytes`, with one allocator per process.
//!
//! `bytes` takes its memory from the global allocator, of which a process has one. So this group starts the
//! program again for each allocator, and collects the rows that come back as JSON.

mod cases;
mod targets;

use crate::cpu::{Cpus, pin};
use crate::heap::{self, Choice};
use crate::measure::{Comparison, Plan, interleave};
use crate::report::{Filter, Report, Row};
use cases::{BYTES, Case, RESOLUTION};
use serde_json::Value;
use std::process::{Command, Stdio};

pub(crate) use targets::of as targets_of;

/// The name of our own peer.
pub(crate) const OURS: &str = "slab-net";

const GROUP: &str = "packet";

/// What one row measures.
#[derive(Clone, Copy)]
struct Measured {
    case: Case,
    /// Heap allocations instead of time.
    counted: bool,
}

impl Measured {
    /// Returns the rows that a process on this allocator measures.
    fn all(heap: Choice) -> Vec<Self> {
        let counted = heap == Choice::Counting;
        let cases: &[Case] = if counted { &Case::COUNTED } else { &Case::ALL };
        cases.iter().map(|&case| Self { case, counted }).collect()
    }

    fn name(self) -> String {
        let prefix = if self.counted { "allocs-" } else { "" };
        format!("{prefix}{}", self.case.name())
    }

    fn unit(self) -> &'static str {
        if self.counted { "allocs/op" } else { "ns/op" }
    }
}

/// Returns the name of the peer, `bytes` on this allocator.
fn peer(heap: Choice) -> &'static str {
    match heap {
        Choice::Glibc => "bytes-glibc",
        Choice::Mimalloc => "bytes-mimalloc",
        Choice::Jemalloc => "bytes-jemalloc",
        Choice::Counting => BYTES,
    }
}

/// Runs the cases that the filter selects, each allocator in a process of its own.
///
/// # Errors
/// `ours` is not the name of a peer.
pub(crate) fn run(
    ours: &str,
    quick: bool,
    filter: &Filter,
    report: &mut Report,
) -> Result<(), String> {
    if ![OURS, BYTES].contains(&ours) {
        return Err(format!("no peer is called {ours}"));
    }
    for heap in Choice::ALL {
        let peer = peer(heap);
        let taken: Vec<Measured> = Measured::all(heap)
            .into_iter()
            .filter(|measured| filter.matches(&measured.name(), peer))
            .collect();
        if taken.is_empty() {
            continue;
        }
        let found = if heap.is_built_in() {
            in_child(heap, ours, quick, filter)
        } else {
            Err(format!(
                "versus was built without its feature `{}`",
                heap.name()
            ))
        };
        for measured in taken {
            let name = measured.name();
            let row = found
                .as_ref()
                .map_err(Clone::clone)
                .and_then(|json| row(json, measured, peer, ours));
            match row {
                Ok(row) => report.add(row),
                Err(reason) => report.leave_out(format!("{name}/{peer}"), reason),
            }
        }
    }
    Ok(())
}

/// Starts this program again on that allocator; returns its results as JSON.
fn in_child(heap: Choice, ours: &str, quick: bool, filter: &Filter) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command
        .args(["packet", "--in-this-process", "--ours", ours])
        .args(quick.then_some("--quick"))
        .args(filter.pattern().map(|pattern| format!("--only={pattern}")))
        .env(heap::VARIABLE, heap.name())
        .stderr(Stdio::inherit());
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("its process ended with {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

fn row(json: &Value, measured: Measured, peer: &'static str, ours: &str) -> Result<Row, String> {
    let case = measured.name();
    let found = json["rows"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["case"] == case.as_str()))
        .and_then(Comparison::from_json)
        .ok_or("its process did not report it")?;
    Ok(Row {
        group: GROUP,
        targets: if ours == OURS {
            targets::of(&case, peer)
        } else {
            Vec::new()
        },
        case,
        peer,
        unit: measured.unit(),
        found,
    })
}

/// The child's side: measures on the allocator that this process has.
pub(crate) fn in_this_process(ours: &str, plan: &Plan, filter: &Filter, report: &mut Report) {
    let heap = Choice::current();
    let peer = peer(heap);
    pin(Cpus::choose().main);
    for measured in Measured::all(heap) {
        let case = measured.name();
        if !filter.matches(&case, peer) {
            continue;
        }
        eprintln!("{case} against {peer}");
        let of = |side| measured.case.sampler(side, measured.counted);
        let (Some(mut our_side), Some(mut their_side)) = (of(ours), of(BYTES)) else {
            continue;
        };
        let plan = if measured.counted {
            plan.with_resolution(RESOLUTION)
        } else {
            *plan
        };
        report.add(Row {
            group: GROUP,
            case,
            peer,
            unit: measured.unit(),
            found: interleave(&plan, &mut our_side, &mut their_side),
            targets: Vec::new(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Sampler;

    #[test]
    fn every_target_names_an_existing_row() {
        for (case, of) in targets::rows_with_target() {
            let exists = Choice::ALL.into_iter().any(|heap| {
                let cases = Measured::all(heap);
                peer(heap) == of && cases.iter().any(|measured| measured.name() == case)
            });
            assert!(exists, "{case}/{of}");
        }
    }

    #[test]
    fn both_sides_run_every_case() {
        for measured in Choice::ALL.into_iter().flat_map(Measured::all) {
            for side in [OURS, BYTES] {
                let mut sampler = measured.case.sampler(side, measured.counted).unwrap();
                let mut one = Sampler::single_run(|| 1.0);
                let found = interleave(&Plan::smallest(), &mut sampler, &mut one);
                // This process does not count.
                let least = if measured.counted {
                    0.0
                } else {
                    f64::MIN_POSITIVE
                };
                assert!(found.ours.min >= least, "{}/{side}", measured.name());
            }
        }
    }

    #[test]
    fn a_row_survives_the_json_of_the_child_process() {
        let mut report = Report::new(OURS.into(), true);
        let measured = Measured {
            case: Case::Split,
            counted: false,
        };
        let sampler = || Sampler::single_run(|| 2.0);
        report.add(Row {
            group: GROUP,
            case: measured.name(),
            peer: peer(Choice::Glibc),
            unit: measured.unit(),
            found: interleave(&Plan::smallest(), &mut sampler(), &mut sampler()),
            targets: Vec::new(),
        });
        let json = serde_json::from_str(&report.json()).unwrap();
        let row = row(&json, measured, peer(Choice::Glibc), OURS).unwrap();
        assert_eq!(row.found.ours.median, 2.0);
        assert_eq!(row.found.ratio.max, 1.0);
        assert!(!row.targets.is_empty(), "targets are the parent's matter");
    }
}
