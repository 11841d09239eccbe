//! The group `udp`: from the socket to whoever consumes, ours against what one would write by hand.

mod channel;
mod echo;
mod inplace;
mod link;
mod paced;
mod peers;
mod rig;
mod targets;

use crate::cpu::{Cpus, pin};
use crate::measure::{Plan, Sampler, interleave};
use crate::report::{Filter, Report, Row};
use rig::Wire;

pub(crate) use targets::of as targets_of;

/// The name of our own entry.
pub(crate) const OURS: &str = "slab-net";

/// What is measured, without by whom.
#[derive(Debug, Clone, Copy)]
enum Case {
    /// Owned packets, or whole batches, over a channel to another task on the same CPU.
    SameCore(Wire, Unit),
    /// The same to another thread on another CPU; the CPU time of both.
    TwoCores(Wire, Unit),
    /// Looked at where they lie, without a channel.
    InPlace(Wire),
    /// One datagram every 10 us, from another CPU.
    Paced,
    /// Sent back to where they came from; payloads of this many bytes.
    Echo(usize),
}

/// What ours hands over. Peers hand over what they have.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    /// One by one, by tokio's channel.
    Packets,
    /// Whole, by tokio's channel; the consumer looks at them where they lie.
    Batches,
    /// Whole, by our own queue; the consumer makes packets of them.
    Queue,
    /// One by one as [`bytes::Bytes`], by tokio's channel.
    Bytes,
}

impl Case {
    const ALL: [Self; 15] = [
        Self::SameCore(Wire::Coalesced, Unit::Packets),
        Self::SameCore(Wire::Coalesced, Unit::Queue),
        Self::SameCore(Wire::Coalesced, Unit::Batches),
        Self::SameCore(Wire::Coalesced, Unit::Bytes),
        Self::SameCore(Wire::Single, Unit::Packets),
        Self::SameCore(Wire::SingleIntoGro, Unit::Packets),
        Self::TwoCores(Wire::Coalesced, Unit::Packets),
        Self::TwoCores(Wire::Coalesced, Unit::Queue),
        Self::TwoCores(Wire::Coalesced, Unit::Batches),
        Self::TwoCores(Wire::Single, Unit::Packets),
        Self::TwoCores(Wire::Single, Unit::Queue),
        Self::InPlace(Wire::Coalesced),
        Self::Paced,
        Self::Echo(1200),
        Self::Echo(64),
    ];

    fn name(self) -> String {
        let unit = |unit| match unit {
            Unit::Packets => "packets",
            Unit::Queue => "queue",
            Unit::Batches => "batches",
            Unit::Bytes => "bytes",
        };
        match self {
            Self::SameCore(wire, of) => format!("same-core-{}-{}", wire.name(), unit(of)),
            Self::TwoCores(wire, of) => format!("two-cores-{}-{}", wire.name(), unit(of)),
            Self::InPlace(wire) => format!("in-place-{}", wire.name()),
            Self::Paced => "paced-100k".into(),
            Self::Echo(bytes) => format!("echo-{bytes}"),
        }
    }

    fn peers(self) -> &'static [&'static str] {
        match self {
            // What it costs to hand out another type than our own.
            Self::SameCore(_, Unit::Bytes) => &["slab-net-packets"],
            Self::SameCore(Wire::Coalesced, _) | Self::TwoCores(Wire::Coalesced, _) => &[
                "fresh-bytesmut",
                "recv-from-copy",
                "reserve-split",
                "quinn-copy-split",
                "bytesmut-ring",
                "bytesmut-ring-many",
            ],
            Self::SameCore(Wire::SingleIntoGro, _) => &["keep-buffer"],
            Self::SameCore(Wire::Single, _) | Self::TwoCores(Wire::Single, _) => {
                &["fresh-bytesmut", "recv-from-copy", "reserve-split"]
            }
            Self::TwoCores(Wire::SingleIntoGro, _) => &[],
            Self::InPlace(_) => &["quinn-udp"],
            Self::Paced => &["recv-buf-from"],
            Self::Echo(_) => &["tokio"],
        }
    }

    fn sampler(self, peer: &str, cpus: Cpus) -> Result<Sampler, String> {
        match self {
            Self::SameCore(wire, unit) => channel::sampler(peer, wire, unit, None),
            Self::TwoCores(wire, unit) => {
                let other = cpus.other.ok_or("it needs two CPUs")?;
                channel::sampler(peer, wire, unit, Some(other))
            }
            Self::InPlace(wire) => inplace::sampler(peer, wire),
            Self::Paced => paced::sampler(peer, cpus.other.ok_or("it needs two CPUs")?),
            Self::Echo(bytes) => echo::sampler(peer, bytes),
        }
    }
}

/// Runs what the filter takes. `ours` is normally [`OURS`].
///
/// # Errors
/// `ours` is the name of no peer.
pub(crate) fn run(
    ours: &str,
    plan: &Plan,
    filter: &Filter,
    report: &mut Report,
) -> Result<(), String> {
    let known = Case::ALL.iter().flat_map(|case| case.peers());
    if ours != OURS && !known.clone().any(|&peer| peer == ours) {
        return Err(format!("no peer is called {ours}"));
    }
    let cpus = Cpus::choose();
    pin(cpus.main);
    for case in Case::ALL {
        let name = case.name();
        for &peer in case.peers() {
            if !filter.takes(&name, peer) {
                continue;
            }
            eprintln!("{name} against {peer}");
            match row(case, ours, peer, plan, cpus) {
                Ok(row) => report.add(row),
                Err(reason) => report.leave_out(format!("{name}/{peer}"), reason),
            }
        }
    }
    Ok(())
}

fn row(case: Case, ours: &str, peer: &'static str, plan: &Plan, cpus: Cpus) -> Result<Row, String> {
    let mut our_side = case
        .sampler(ours, cpus)
        .map_err(|reason| format!("{ours}: {reason}"))?;
    let mut their_side = case.sampler(peer, cpus)?;
    let plan = match case {
        // Two threads, or a clock to wait for: short samples would scatter.
        Case::TwoCores(..) | Case::Paced => plan.with_longer_samples(4),
        _ => *plan,
    };
    let found = interleave(&plan, &mut our_side, &mut their_side);
    Ok(Row {
        group: "udp",
        case: case.name(),
        peer,
        unit: "ns/packet",
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

    #[test]
    fn every_target_speaks_about_a_row_that_exists() {
        for (case, peer) in targets::spoken_of() {
            let exists = |c: &Case| c.name() == case && c.peers().contains(&peer);
            assert!(Case::ALL.iter().any(exists), "{case}/{peer}");
        }
    }

    #[test]
    fn every_peer_runs_every_case_that_names_it() {
        let (plan, cpus) = (Plan::smallest(), Cpus::choose());
        for case in Case::ALL {
            for &peer in case.peers().iter().chain([&OURS]) {
                match case.sampler(peer, cpus) {
                    Ok(mut sampler) => {
                        let found = interleave(&plan, &mut sampler, &mut Sampler::whole(|| 1.0));
                        assert!(found.ours.min > 0.0, "{}/{peer}", case.name());
                    }
                    Err(reason) => {
                        assert!(reason.contains("two CPUs"), "{}: {reason}", case.name());
                    }
                }
            }
        }
        cpus.unpin();
    }
}
