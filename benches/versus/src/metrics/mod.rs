//! The group `metrics`: the cost of being watched. A scrape against the same page from a recorder, and a
//! pipeline, an allocation and a free with and without metrics.

mod instructions;
mod pipeline;
mod scrape;
mod targets;

use crate::heap::{Choice, VARIABLE};
use crate::measure::{Better, Comparison, catch_panic, compare};
use crate::report::{Filter, Report, Row};
use std::process::{Command, Stdio};

pub(crate) use targets::of as targets_of;

/// The name of our own peer.
pub(crate) const OURS: &str = "slab-metrics";

const GROUP: &str = "metrics";

/// How much to measure.
struct Size {
    rounds: usize,
    /// Scrapes per sample.
    scrapes: u32,
    /// Pairs of one second with a scrape and one without.
    pairs: usize,
}

/// Measures one row.
type Measure = fn(&Size) -> Result<Vec<(f64, f64)>, String>;

/// Case, peer, unit, and the function that measures; less is better in all of them.
const ROWS: &[(&str, &str, &str, Measure)] = &[
    ("scrape", "recorder", "us/scrape", scrape::page),
    ("scrape-gzip", "recorder", "us/scrape", scrape::compressed),
    ("scrape-allocs", "one-class", "allocs/scrape", |size| {
        counted(size, "one-class")
    }),
    ("scrape-allocs", "recorder", "allocs/scrape", |size| {
        counted(size, "recorder")
    }),
    ("pipeline", "unwatched", "ns/packet", pipeline::watched),
    (
        "pair-instructions",
        "unwatched",
        "instr/pair",
        instructions::pair,
    ),
];

/// Runs the cases that the filter selects.
///
/// # Errors
/// `ours` is not the name of a peer.
pub(crate) fn run(
    ours: &str,
    quick: bool,
    filter: &Filter,
    report: &mut Report,
) -> Result<(), String> {
    if ours != OURS {
        return Err(format!("no peer is called {ours}"));
    }
    let size = if quick {
        Size {
            rounds: 7,
            scrapes: 20,
            pairs: 14,
        }
    } else {
        Size {
            rounds: 15,
            scrapes: 100,
            pairs: 45,
        }
    };
    for &(case, peer, unit, measure) in ROWS {
        if !filter.matches(case, peer) {
            continue;
        }
        match catch_panic(|| measure(&size)).and_then(|rounds| rounds) {
            Ok(rounds) => report.add(Row {
                group: GROUP,
                case: case.into(),
                peer,
                unit,
                found: less_is_better(&rounds),
                targets: targets::of(case, peer),
            }),
            Err(reason) => report.leave_out(format!("{case}/{peer}"), reason),
        }
    }
    Ok(())
}

fn less_is_better(rounds: &[(f64, f64)]) -> Comparison {
    compare(rounds, Better::Less, 0.0)
}

/// Heap allocations per scrape, of ours and of that peer, each in a process that counts them.
fn counted(_: &Size, peer: &str) -> Result<Vec<(f64, f64)>, String> {
    let of = |side: &str| {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let output = Command::new(program)
            .args(["--count", "metrics", "scrape", side])
            .env(VARIABLE, Choice::Counting.name())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().map_err(|_| format!("no count: {text}"))
    };
    Ok(vec![(of(OURS)?, of(peer)?)])
}

/// The child's side of a run that counts: prints the figure, or runs what is counted.
pub(crate) fn child(arguments: &[String]) -> Option<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["scrape", side] => println!("{}", scrape::allocations(side)?),
        ["pairs", side] => instructions::child(side)?,
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_names_an_existing_row() {
        for (case, peer) in targets::rows_with_target() {
            let known = ROWS.iter().any(|row| (row.0, row.1) == (case, peer));
            assert!(known, "{case}/{peer}");
        }
    }

    #[test]
    fn a_scrape_and_a_watched_pipeline_are_measured() {
        let size = Size {
            rounds: 1,
            scrapes: 1,
            pairs: 1,
        };
        for measure in [scrape::page, scrape::compressed, pipeline::watched] {
            let rounds = measure(&size).unwrap();
            assert!(
                rounds
                    .iter()
                    .all(|&(ours, theirs)| ours > 0.0 && theirs > 0.0)
            );
        }
    }
}
