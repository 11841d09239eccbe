//! The group `alloc`: allocating and freeing, ours against each peer.

mod bulk;
mod cross;
mod local;
mod lookup;
mod mixed;
mod peers;
mod resident;
pub(crate) mod scaling;
mod stats;
mod targets;
mod threads;

use crate::cpu::{Cpus, pin};
use crate::measure::{Plan, Sampler, catch_panic, interleave};
use crate::report::{Filter, Report, Row};
use cross::{Cross, Crossing};
use local::{Local, Shape};
use mixed::Mixed;
use resident::Scenario;
use threads::{ParallelThreads, ThreadsCase};

pub(crate) use resident::child;

pub(crate) use targets::of as targets_of;

/// The name of our own peer.
pub(crate) const OURS: &str = "slab-core";

/// What is measured, apart from the peer.
enum Case {
    Local(Shape, usize),
    Bulk(usize),
    Mixed,
    ParallelThreads(ThreadsCase),
    Cross(Crossing, usize),
    Resident(Scenario),
    Stats {
        busy: bool,
    },
    /// The class of a length, above 64 KiB or up to it.
    Lookup {
        large: bool,
    },
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        cases.extend([64, 256, 2048, 65_536].map(|len| Self::Local(Shape::Pair, len)));
        cases.extend([64, 2048, 65_536].map(|len| Self::Local(Shape::Batch, len)));
        cases.extend([64, 2048, 65_536].map(|len| Self::Local(Shape::Random, len)));
        cases.extend([
            Self::Bulk(2048),
            Self::Mixed,
            Self::ParallelThreads(ThreadsCase::Scaling),
        ]);
        cases.extend(
            [1, 2, 4, 16, 64].map(|count| Self::ParallelThreads(ThreadsCase::Threads(count))),
        );
        cases.extend([64, 2048].map(|len| Self::Cross(Crossing::Stream, len)));
        cases.extend([64, 2048].map(|len| Self::Cross(Crossing::RemoteFree, len)));
        cases.extend(Scenario::ALL.map(Self::Resident));
        cases.extend([false, true].map(|busy| Self::Stats { busy }));
        cases.extend([false, true].map(|large| Self::Lookup { large }));
        cases
    }

    fn name(&self) -> String {
        match self {
            Self::Local(Shape::Pair, len) => format!("pair-{len}"),
            Self::Local(Shape::Batch, len) => format!("batch-{len}"),
            Self::Local(Shape::Random, len) => format!("random-{len}"),
            // Not a case of its own: the peers' side of `bulk`.
            Self::Local(Shape::Bulk, len) | Self::Bulk(len) => format!("bulk-{len}"),
            Self::Mixed => "mixed".into(),
            Self::ParallelThreads(ThreadsCase::Scaling) => "scaling-2".into(),
            Self::ParallelThreads(ThreadsCase::Threads(count)) => format!("threads-{count}"),
            Self::Cross(Crossing::Stream, len) => format!("cross-{len}"),
            Self::Cross(Crossing::RemoteFree, len) => format!("remote-free-{len}"),
            Self::Resident(scenario) => scenario.name(),
            Self::Stats { busy: false } => "stats".into(),
            Self::Stats { busy: true } => "stats-busy".into(),
            Self::Lookup { large: false } => "class-lookup".into(),
            Self::Lookup { large: true } => "class-lookup-large".into(),
        }
    }

    fn unit(&self) -> &'static str {
        match self {
            Self::Resident(scenario) => scenario.unit(),
            Self::ParallelThreads(ThreadsCase::Scaling) => "x alone",
            _ => "ns/op",
        }
    }

    fn peers(&self) -> Vec<&'static str> {
        match self {
            Self::Local(Shape::Pair, 2048) => {
                [&peers::FLOORS, peers::LOCAL, &[peers::UNCOUNTED]].concat()
            }
            Self::Local(..) => [&peers::FLOORS, peers::LOCAL].concat(),
            Self::Bulk(_) => peers::BULK.to_vec(),
            Self::Mixed => peers::ANY_LENGTH.to_vec(),
            Self::ParallelThreads(ThreadsCase::Scaling) => {
                [&[peers::NO_ALLOC], peers::MULTITHREADED].concat()
            }
            Self::ParallelThreads(ThreadsCase::Threads(_)) => peers::MULTITHREADED.to_vec(),
            Self::Cross(Crossing::Stream, _) => [&[peers::NO_ALLOC], peers::SHARED].concat(),
            Self::Cross(Crossing::RemoteFree, _) => peers::SHARED.to_vec(),
            Self::Resident(scenario) => scenario.peers().to_vec(),
            Self::Stats { .. } => vec!["glibc"],
            Self::Lookup { .. } => lookup::PEERS.to_vec(),
        }
    }

    /// Returns one side of the comparison, or why there is none.
    fn sampler(&self, peer: &str, plan: &Plan, cpus: Cpus) -> Result<Sampler, String> {
        let found = match *self {
            Self::Local(shape, len) => peers::visit(peer, len, Local { shape, len }),
            Self::Bulk(len) => bulk::sampler(peer, len),
            Self::Mixed => peers::visit_any_length(peer, mixed::LONGEST, Mixed),
            Self::ParallelThreads(case) => {
                let together = ParallelThreads {
                    case,
                    len: 2048,
                    main: cpus.main,
                    other: cpus.other.ok_or("it needs two CPUs")?,
                };
                peers::visit_shared(peer, together)
            }
            Self::Cross(crossing, len) => {
                let cross = Cross::new(crossing, len, cpus).ok_or("it needs two CPUs")?;
                peers::visit_shared(peer, cross)
            }
            Self::Resident(scenario) => return scenario.sampler(peer, plan),
            Self::Stats { busy } => stats::sampler(peer, busy, cpus),
            Self::Lookup { large } => lookup::sampler(peer, large),
        };
        found.map_err(|missing| missing.to_string())
    }
}

/// Runs the cases that the filter selects. `ours` is normally [`OURS`].
///
/// # Errors
/// `ours` is not the name of a peer.
pub(crate) fn run(
    ours: &str,
    plan: &Plan,
    filter: &Filter,
    report: &mut Report,
) -> Result<(), String> {
    let known = [&[OURS, peers::NO_ALLOC], peers::LOCAL, peers::SHARED].concat();
    if !known.contains(&ours) {
        return Err(format!("no peer is called {ours}"));
    }
    let cpus = Cpus::choose();
    peers::initialise_heaps();
    for case in Case::all() {
        // A child process must see all CPUs: jemalloc has as many arenas as it sees CPUs.
        match case {
            Case::Resident(_) => cpus.unpin(),
            _ => pin(cpus.main),
        }
        for peer in case.peers() {
            let name = case.name();
            if !filter.matches(&name, peer) {
                continue;
            }
            eprintln!("{name} against {peer}");
            match row(&case, ours, peer, plan, cpus) {
                Ok(row) => report.add(row),
                Err(reason) => report.leave_out(format!("{name}/{peer}"), reason),
            }
        }
    }
    Ok(())
}

/// If a peer, or ours, panics, only its own row is lost.
fn row(
    case: &Case,
    ours: &str,
    peer: &'static str,
    plan: &Plan,
    cpus: Cpus,
) -> Result<Row, String> {
    let mut our_side = catch_panic(|| case.sampler(ours, plan, cpus))
        .and_then(|sampler| sampler)
        .map_err(|reason| format!("{ours}: {reason}"))?;
    let mut their_side =
        catch_panic(|| case.sampler(peer, plan, cpus)).and_then(|sampler| sampler)?;
    let plan = match case {
        // Two threads alternate at varying speed: short samples would scatter.
        Case::Cross(..) | Case::ParallelThreads(ThreadsCase::Scaling) => {
            plan.with_longer_samples(3)
        }
        // Each thread must run more than once.
        Case::ParallelThreads(ThreadsCase::Threads(_)) => plan.with_longer_samples(8),
        Case::Resident(scenario) => plan
            .for_child_processes()
            .with_resolution(scenario.resolution()),
        _ => *plan,
    };
    let found = catch_panic(|| interleave(&plan, &mut our_side, &mut their_side))?;
    Ok(Row {
        group: "alloc",
        case: case.name(),
        peer,
        unit: case.unit(),
        found,
        targets: if ours == OURS {
            targets::of(&case.name(), peer)
        } else {
            Vec::new()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn rows() -> HashSet<(String, &'static str)> {
        let of = |case: Case| {
            let name = case.name();
            case.peers()
                .into_iter()
                .map(move |peer| (name.clone(), peer))
        };
        Case::all().into_iter().flat_map(of).collect()
    }

    #[test]
    fn every_target_names_an_existing_row() {
        let rows = rows();
        for (case, peer) in targets::rows_with_target() {
            assert!(rows.contains(&(case.to_owned(), peer)), "{case}/{peer}");
        }
    }

    #[test]
    fn every_peer_runs_each_of_its_cases() {
        let (plan, cpus) = (Plan::smallest(), Cpus::choose());
        for case in Case::all() {
            // These start this program again, which here is the test.
            if matches!(case, Case::Resident(_)) {
                continue;
            }
            for peer in case.peers().into_iter().chain([OURS]) {
                match case.sampler(peer, &plan, cpus) {
                    Ok(mut sampler) => {
                        let found =
                            interleave(&plan, &mut sampler, &mut Sampler::single_run(|| 1.0));
                        assert!(found.ours.min > 0.0, "{}/{peer}", case.name());
                    }
                    Err(reason) => assert!(
                        ["feature", "has no name", "two CPUs"]
                            .iter()
                            .any(|known| reason.contains(known)),
                        "{}/{peer}: {reason}",
                        case.name()
                    ),
                }
            }
        }
        cpus.unpin();
    }
}
