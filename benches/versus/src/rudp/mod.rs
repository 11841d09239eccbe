//! The group `rudp`: reliable sessions over UDP, ours against other libraries.
//!
//! A round runs ours and then each peer once, so that one sample of ours is compared with all of them: a
//! sample is expensive here, because it opens sessions and waits for paths.

mod enet;
mod go;
mod path;
mod resident;
mod scenario;
mod streams;
mod targets;
mod transports;

use crate::alloc::scaling::Run;
use crate::cpu::Cpus;
use crate::heap::{self, Choice};
use crate::measure::{catch_panic, compare};
use crate::report::{Filter, Report, Row};
use crate::scaling::point::Point;
use scenario::{Figure, Scenario, Size};
use std::process::{Command, Stdio};
use std::time::Duration;
use transports::{ENCRYPTED, Ours, Quinn, TokioKcp, UNENCRYPTED, WITH_FEC};

pub(crate) use resident::child as sessions;
pub(crate) use targets::of as targets_of;

/// The name of our own peer.
pub(crate) const OURS: &str = "slab-net";

/// Ours without GSO and GRO, so that the kernel does the same for it as for the others.
const PLAIN: &str = "slab-net-plain";

const PEERS: [&str; 4] = ["tokio_kcp", "quinn", "kcp-go", "rusty_enet"];

impl Scenario {
    fn peers(self) -> &'static [&'static str] {
        match self {
            Self::ToKcpGo | Self::WithFec => &[PLAIN, "kcp-go"],
            Self::Encrypted => &[PLAIN, "quinn"],
            // Neither depends on system calls.
            Self::Counted(_) => &["tokio_kcp", "kcp-go"],
            Self::Idle => &["tokio_kcp", "kcp-go"],
            Self::Resident => &["tokio_kcp", "quinn"],
            Self::Paced => &[PLAIN, "tokio_kcp", "quinn", "kcp-go"],
            // Five hundred TLS handshakes per sample take quinn too long.
            Self::Fanout => &[PLAIN, "tokio_kcp", "kcp-go", "rusty_enet"],
            _ => &[PLAIN, "tokio_kcp", "quinn", "kcp-go", "rusty_enet"],
        }
    }

    /// Runs it once and returns its figures.
    fn run(self, peer: &str, size: &Size, seed: u64) -> Result<Vec<f64>, String> {
        if self == Self::ToKcpGo || peer == "kcp-go" {
            go::available()?;
        }
        catch_panic(|| match (self, peer) {
            (Self::Counted(_), OURS | PLAIN | "tokio_kcp") if !heap::is_counted() => {
                in_child(self, peer, size, seed)
            }
            (Self::Resident, _) => resident::in_child(peer, size),
            (_, "kcp-go") => go::run(self, size, seed),
            (_, "rusty_enet") => enet::run(self, size, seed),
            (_, "tokio_kcp") => streams::run::<TokioKcp>(self, size, seed),
            (_, "quinn") => streams::run::<Quinn>(self, size, seed),
            (_, PLAIN) => self.run_ours::<false>(size, seed),
            _ => self.run_ours::<true>(size, seed),
        })
    }

    /// With GSO and GRO, or without.
    fn run_ours<const OFFLOAD: bool>(self, size: &Size, seed: u64) -> Vec<f64> {
        match self {
            Self::ToKcpGo => go::with_sink(|address| {
                streams::send_to::<Ours<UNENCRYPTED, OFFLOAD>>(address, size.window)
            }),
            Self::Encrypted => streams::run::<Ours<ENCRYPTED, OFFLOAD>>(self, size, seed),
            Self::WithFec => streams::run::<Ours<WITH_FEC, OFFLOAD>>(self, size, seed),
            _ => streams::run::<Ours<UNENCRYPTED, OFFLOAD>>(self, size, seed),
        }
    }
}

/// Runs the cases that the filter selects. `ours` is normally [`OURS`].
///
/// # Errors
/// `ours` is not the name of a peer.
pub(crate) fn run(
    ours: &str,
    quick: bool,
    filter: &Filter,
    report: &mut Report,
) -> Result<(), String> {
    if ours != OURS && ours != PLAIN && !PEERS.contains(&ours) {
        return Err(format!("no peer is called {ours}"));
    }
    // Two runtime threads, or processes, share the CPUs freely.
    Cpus::choose().unpin();
    let size = if quick { Size::quick() } else { Size::full() };
    for scenario in Scenario::ALL {
        let wanted = |peer: &&&'static str| {
            let mut figures = scenario.figures().into_iter();
            figures.any(|figure| filter.matches(figure.case, peer))
        };
        let peers: Vec<&'static str> = scenario.peers().iter().filter(wanted).copied().collect();
        if peers.is_empty() {
            continue;
        }
        eprintln!("{scenario:?} against {}", peers.join(", "));
        let rounds = rounds(scenario, ours, &peers, &size);
        for (nth, figure) in scenario.figures().into_iter().enumerate() {
            for (peer, rounds) in peers.iter().zip(&rounds) {
                if filter.matches(figure.case, peer) {
                    add_row(report, ours, peer, &figure, nth, rounds);
                }
            }
        }
    }
    Ok(())
}

/// Runs a [`Scenario::Counted`] in a process of its own, whose global allocator counts.
///
/// # Panics
/// If the process fails.
fn in_child(scenario: Scenario, peer: &str, size: &Size, seed: u64) -> Vec<f64> {
    let loss = scenario
        .path_conditions()
        .map_or(0.0, |conditions| conditions.loss);
    let (start, window) = size.windows(scenario);
    let arguments = [
        "rudp".to_owned(),
        peer.to_owned(),
        loss.to_string(),
        seed.to_string(),
        start.as_millis().to_string(),
        window.as_millis().to_string(),
    ];
    let mut command = child_command();
    command.env(heap::VARIABLE, Choice::Counting.name());
    figure_of_child(command.args(arguments))
}

/// This program as a process that prints one figure, without the arguments that name the figure.
fn child_command() -> Command {
    let program = std::env::current_exe().expect("it has a name");
    let mut command = Command::new(program);
    command.arg("--count").stderr(Stdio::inherit());
    command
}

/// # Panics
/// If the process fails.
fn figure_of_child(process: &mut Command) -> Vec<f64> {
    let output = process.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    vec![text.trim().parse().expect("a figure")]
}

/// The child's side of a run that counts: prints the figure.
pub(crate) fn child(arguments: &[String]) -> Option<()> {
    let [peer, numbers @ ..] = arguments else {
        return None;
    };
    let numbers: Option<Vec<u64>> = numbers.iter().map(|number| number.parse().ok()).collect();
    let [loss, seed, start, window] = numbers?[..] else {
        return None;
    };
    let size = Size {
        lossy_start: Duration::from_millis(start) / 4,
        lossy_window: Duration::from_millis(window),
        ..Size::quick()
    };
    let scenario = Scenario::Counted(u8::try_from(loss).ok()?);
    let figures = scenario.run(peer, &size, seed).ok()?;
    println!("{}", figures.first()?);
    Some(())
}

/// Runs so many sessions that send as fast as they can, for the plots; returns MB/s and CPU seconds per
/// gigabyte.
///
/// # Errors
/// There is no such peer.
pub(crate) fn scaling(peer: &str, sessions: usize, ops: u64) -> Result<Run, String> {
    // A window as long as that many operations of a microsecond.
    let window = Duration::from_micros(ops);
    let run: fn(usize, Duration) -> Point = match peer {
        OURS => streams::many_sessions::<Ours>,
        "tokio_kcp" => streams::many_sessions::<TokioKcp>,
        "quinn" => streams::many_sessions::<Quinn>,
        _ => return Err("it has no such case".into()),
    };
    Ok(Box::new(move || run(sessions, window)))
}

/// The figures of ours and of a peer in each round, or the reason why there are none.
type Rounds = Result<Vec<(Vec<f64>, Vec<f64>)>, String>;

fn rounds(scenario: Scenario, ours: &str, peers: &[&'static str], size: &Size) -> Vec<Rounds> {
    let mut found: Vec<Rounds> = peers.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..size.rounds(scenario) {
        let our_side = scenario.run(ours, size, round as u64);
        for (peer, found) in peers.iter().zip(&mut found) {
            let Ok(rounds) = found else {
                continue;
            };
            let both = our_side
                .clone()
                .map_err(|reason| format!("{ours}: {reason}"))
                .and_then(|ours| Ok((ours, scenario.run(peer, size, round as u64)?)));
            match both {
                Ok(both) => rounds.push(both),
                Err(reason) => *found = Err(reason),
            }
        }
    }
    found
}

fn add_row(
    report: &mut Report,
    ours: &str,
    peer: &'static str,
    figure: &Figure,
    nth: usize,
    rounds: &Rounds,
) {
    let rounds = match rounds {
        Ok(rounds) => rounds,
        Err(reason) => {
            report.leave_out(format!("{}/{peer}", figure.case), reason.clone());
            return;
        }
    };
    let values: Vec<(f64, f64)> = rounds
        .iter()
        .map(|(ours, theirs)| (ours[nth], theirs[nth]))
        .collect();
    report.add(Row {
        group: "rudp",
        case: figure.case.into(),
        peer,
        unit: figure.unit,
        found: compare(&values, figure.better, figure.resolution),
        targets: if ours == OURS {
            targets::of(figure.case, peer)
        } else {
            Vec::new()
        },
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_names_an_existing_row() {
        for (case, peer) in targets::rows_with_target() {
            let exists = |scenario: &Scenario| {
                let mut figures = scenario.figures().into_iter();
                figures.any(|figure| figure.case == case) && scenario.peers().contains(&peer)
            };
            assert!(Scenario::ALL.iter().any(exists), "{case}/{peer}");
        }
    }

    #[test]
    fn every_peer_runs_every_scenario() {
        for scenario in Scenario::ALL {
            // These start this program again, which here is the test.
            if matches!(scenario, Scenario::Counted(_) | Scenario::Resident) {
                continue;
            }
            for &peer in scenario.peers().iter().chain([&OURS]) {
                match scenario.run(peer, &Size::smallest(), 1) {
                    Ok(figures) => {
                        assert_eq!(figures.len(), scenario.figures().len(), "{peer}");
                        let fine = |figure: &f64| figure.is_finite() && *figure >= 0.0;
                        assert!(figures.iter().all(fine), "{scenario:?} {peer} {figures:?}");
                    }
                    Err(reason) => {
                        let known = ["no Go", "cannot be built"];
                        let known = known.iter().any(|known| reason.contains(known));
                        assert!(known, "{scenario:?} {peer}: {reason}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_failing_peer_loses_only_its_own_rows() {
        let found = rounds(
            Scenario::Echo,
            OURS,
            &["tokio_kcp", "rusty_enet"],
            &Size::smallest(),
        );
        assert!(
            found
                .iter()
                .all(|rounds| rounds.as_ref().is_ok_and(|r| r.len() == 1))
        );
        let mut report = Report::new(OURS.into(), true);
        let figure = Scenario::Echo.figures()[0];
        add_row(
            &mut report,
            OURS,
            "quinn",
            &figure,
            0,
            &Err("it is away".into()),
        );
        add_row(&mut report, OURS, "tokio_kcp", &figure, 0, &found[0]);
        let text = report.markdown();
        assert!(
            text.contains("because it is away: echo-p50/quinn"),
            "{text}"
        );
        assert!(text.contains("| echo-p50 | tokio_kcp | us |"), "{text}");
    }
}
