//! The group `udp`: from the socket to the consumer, ours against what one would write by hand.

mod channel;
mod echo;
mod inplace;
mod link;
mod memory;
mod paced;
mod payload;
mod peers;
mod rig;
mod targets;
mod uring;

use crate::cpu::{Cpus, pin};
use crate::measure::{Plan, Sampler, catch_panic, interleave};
use crate::report::{Filter, Report, Row};
use rig::Wire;

pub(crate) use targets::of as targets_of;

/// The name of our own peer.
pub(crate) const OURS: &str = "slab-net";

/// What is measured, apart from the peer.
#[derive(Debug, Clone, Copy)]
enum Case {
    /// Owned packets, or whole batches, over a channel to another task on the same CPU; with payloads of
    /// this many bytes.
    Recv(Wire, Unit, usize),
    /// The same to another thread on another CPU; the CPU time of both threads.
    Xcore(Wire, Unit),
    /// Read in place, without a channel.
    Batch(Wire),
    /// One datagram every 10 us, from another CPU.
    Paced,
    /// Ours by io_uring: as many datagrams from another CPU as it can receive, dropped at once.
    Uring(Wire),
    /// The same at the pace of `Paced`.
    UringPaced,
    /// Sent back to their sender; with payloads of this many bytes.
    Echo(usize),
    /// As `Recv`, coalesced: heap allocations.
    Allocations(Unit),
    /// Memory that kept datagrams pin which arrived one by one.
    Pinned,
    /// Memory that an idle receiver holds.
    IdleReceiver,
}

/// What ours hands over; peers hand over their own types.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    /// Packets one by one, through tokio's channel.
    Packets,
    /// Whole batches, through tokio's channel; the consumer reads them in place.
    Batches,
    /// Whole batches, through our own queue; the consumer makes packets of them.
    Queue,
    /// Whole batches, through our own queue; the consumer makes [`bytes::Bytes`] of them.
    QueueOfBytes,
    /// [`bytes::Bytes`] one by one, through tokio's channel.
    Bytes,
}

impl Unit {
    /// Returns the suffix in a case's name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Packets => "",
            Self::Queue => "-queue",
            Self::QueueOfBytes => "-queue-bytes",
            Self::Batches => "-batches",
            Self::Bytes => "-bytes",
        }
    }
}

impl Case {
    const ALL: [Self; 24] = [
        Self::Recv(Wire::Coalesced, Unit::Packets, 1200),
        Self::Recv(Wire::Coalesced, Unit::Queue, 1200),
        Self::Recv(Wire::Coalesced, Unit::Batches, 1200),
        Self::Recv(Wire::Coalesced, Unit::Bytes, 1200),
        Self::Recv(Wire::Plain, Unit::Packets, 1200),
        Self::Recv(Wire::Plain, Unit::Packets, 64),
        Self::Recv(Wire::PlainIntoGro, Unit::Packets, 1200),
        Self::Xcore(Wire::Coalesced, Unit::Packets),
        Self::Xcore(Wire::Coalesced, Unit::Queue),
        Self::Xcore(Wire::Coalesced, Unit::Batches),
        Self::Xcore(Wire::Plain, Unit::Packets),
        Self::Xcore(Wire::Plain, Unit::Queue),
        Self::Batch(Wire::Coalesced),
        Self::Batch(Wire::Plain),
        Self::Paced,
        Self::Uring(Wire::Coalesced),
        Self::Uring(Wire::Plain),
        Self::UringPaced,
        Self::Echo(1200),
        Self::Echo(64),
        Self::Allocations(Unit::Queue),
        Self::Allocations(Unit::QueueOfBytes),
        Self::Pinned,
        Self::IdleReceiver,
    ];

    fn name(self) -> String {
        let wire = |wire| match wire {
            Wire::Coalesced => "coalesced",
            Wire::Plain => "plain",
            Wire::PlainIntoGro => "plain-into-gro",
        };
        match self {
            Self::Recv(on, of, bytes) => format!("recv-{bytes}-{}{}", wire(on), of.suffix()),
            Self::Xcore(Wire::Coalesced, Unit::Batches) => "xcore-1200-batch".into(),
            Self::Xcore(on, of) => format!("xcore-1200-{}{}", wire(on), of.suffix()),
            Self::Batch(on) => format!("batch-1200-{}", wire(on)),
            Self::Paced => "paced-1200-plain".into(),
            Self::Uring(on) => format!("uring-1200-{}", wire(on)),
            Self::UringPaced => "uring-paced-1200-plain".into(),
            Self::Echo(bytes) => format!("echo-{bytes}"),
            Self::Allocations(of) => format!("allocs-recv-1200-coalesced{}", of.suffix()),
            Self::Pinned => "pinned-1200-plain-into-gro".into(),
            Self::IdleReceiver => "idle-receiver".into(),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Allocations(_) => "allocs/packet",
            Self::Pinned => "x payload",
            Self::IdleReceiver => "bytes",
            _ => "ns/packet",
        }
    }

    fn peers(self) -> &'static [&'static str] {
        match self {
            // The cost of handing out another type than our own.
            Self::Recv(_, Unit::Bytes, _) => &["slab-net-packets"],
            Self::Recv(Wire::Coalesced, ..) | Self::Xcore(Wire::Coalesced, _) => &[
                "tokio-fresh",
                "tokio-copy",
                "tokio-split",
                "quinn-copy",
                "bytesmut-ring",
                "bytesmut-ring-many",
            ],
            Self::Recv(Wire::PlainIntoGro, ..) => &["keep-buffer"],
            Self::Recv(Wire::Plain, ..) | Self::Xcore(Wire::Plain, _) => &[
                "tokio-fresh",
                "tokio-copy",
                "tokio-split",
                "slab-net-metadata",
            ],
            Self::Xcore(Wire::PlainIntoGro, _) => &[],
            Self::Batch(_) => &["quinn-udp-raw", "recvmmsg-raw"],
            Self::Paced => &["tokio-fresh", "slab-net-metadata"],
            Self::Uring(_) => uring::PEERS,
            Self::UringPaced => uring::PACED_PEERS,
            Self::Echo(_) => &["tokio"],
            Self::Allocations(_) => &["tokio-fresh"],
            Self::Pinned => &["keep-buffer"],
            Self::IdleReceiver => &["quinn-udp-raw"],
        }
    }

    fn sampler(self, peer: &str, cpus: Cpus) -> Result<Sampler, String> {
        match self {
            Self::Recv(wire, unit, bytes) => channel::sampler(peer, wire, unit, bytes, None),
            Self::Xcore(wire, unit) => {
                let other = cpus.other.ok_or("it needs two CPUs")?;
                channel::sampler(peer, wire, unit, 1200, Some(other))
            }
            Self::Batch(wire) => inplace::sampler(peer, wire),
            Self::Paced => paced::sampler(peer, cpus.other.ok_or("it needs two CPUs")?),
            Self::Uring(wire) => uring::sampler(peer, wire, cpus.other.ok_or("it needs two CPUs")?),
            Self::UringPaced => uring::paced(peer, cpus.other.ok_or("it needs two CPUs")?),
            Self::Echo(bytes) => echo::sampler(peer, bytes),
            Self::Allocations(unit) => memory::counted(peer, unit),
            Self::Pinned => memory::pinned(peer),
            Self::IdleReceiver => memory::idle_receiver(peer),
        }
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
    let known = Case::ALL.iter().flat_map(|case| case.peers());
    if ours != OURS && !known.clone().any(|&peer| peer == ours) {
        return Err(format!("no peer is called {ours}"));
    }
    let cpus = Cpus::choose();
    pin(cpus.main);
    for case in Case::ALL {
        let name = case.name();
        for &peer in case.peers() {
            if !filter.matches(&name, peer) {
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

/// Prints the allocations per datagram, in a process that counts them.
pub(crate) fn child(arguments: &[String]) -> Option<()> {
    let [peer, suffix] = arguments else {
        return None;
    };
    println!("{}", memory::count(peer, suffix)?);
    Some(())
}

fn row(case: Case, ours: &str, peer: &'static str, plan: &Plan, cpus: Cpus) -> Result<Row, String> {
    let mut our_side = catch_panic(|| case.sampler(ours, cpus))
        .and_then(|sampler| sampler)
        .map_err(|reason| format!("{ours}: {reason}"))?;
    let mut their_side = catch_panic(|| case.sampler(peer, cpus)).and_then(|sampler| sampler)?;
    let plan = match case {
        // These have two threads, or wait for a clock: short samples would scatter.
        Case::Xcore(..) | Case::Paced | Case::Uring(_) | Case::UringPaced => {
            plan.with_longer_samples(4)
        }
        Case::Allocations(_) => plan.with_resolution(0.001),
        Case::IdleReceiver => plan.with_resolution(1.0),
        _ => *plan,
    };
    let found = catch_panic(|| interleave(&plan, &mut our_side, &mut their_side))?;
    Ok(Row {
        group: "udp",
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

    #[test]
    fn every_target_names_an_existing_row() {
        for (case, peer) in targets::rows_with_target() {
            let exists = |c: &Case| c.name() == case && c.peers().contains(&peer);
            assert!(Case::ALL.iter().any(exists), "{case}/{peer}");
        }
    }

    #[test]
    fn every_peer_runs_each_of_its_cases() {
        let (plan, cpus) = (Plan::smallest(), Cpus::choose());
        for case in Case::ALL {
            // These start this program again, which here is the test.
            if matches!(case, Case::Allocations(_)) {
                continue;
            }
            for &peer in case.peers().iter().chain([&OURS]) {
                match case.sampler(peer, cpus) {
                    Ok(mut sampler) => {
                        let found =
                            interleave(&plan, &mut sampler, &mut Sampler::single_run(|| 1.0));
                        let nothing = matches!(case, Case::IdleReceiver) && peer == OURS;
                        assert!(nothing || found.ours.min > 0.0, "{}/{peer}", case.name());
                    }
                    Err(reason) => {
                        let known = ["two CPUs", "no io_uring"];
                        let known = known.iter().any(|known| reason.contains(known));
                        assert!(known, "{}: {reason}", case.name());
                    }
                }
            }
        }
        cpus.unpin();
    }
}
