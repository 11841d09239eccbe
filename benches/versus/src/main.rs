//! Ours against each peer, interleaved in one process: see `benches/README.md`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod alloc;
mod cpu;
mod heap;
mod machine;
mod measure;
mod metrics;
mod packet;
mod report;
mod results;
mod rudp;
mod scaling;
mod udp;

use clap::{Parser, ValueEnum};
use machine::Watch;
use measure::Plan;
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static HEAP: heap::ChosenHeap = heap::ChosenHeap;

/// Compares this project with each peer: measures both sides in turn and prints the ratios.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Group of cases to run; all groups if omitted.
    #[arg(value_enum)]
    group: Option<Group>,
    /// Take short samples: each group finishes within 45 s.
    #[arg(long)]
    quick: bool,
    /// Run only rows whose `case/peer` contains PATTERN.
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Also write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run PEER in place of our side; a peer compared with itself shows the error of the harness.
    #[arg(long, value_name = "PEER")]
    ours: Option<String>,
    /// Measure nothing; print the results page of FILE.., written earlier by `--json`.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    page: Option<Vec<PathBuf>>,
    /// Measure scaling instead: write `scaling.json`, plots and a page to FOLDER.
    #[arg(long, value_name = "FOLDER")]
    scaling: Option<PathBuf>,
    /// Measure nothing; draw the plots and the page of FOLDER/scaling.json again.
    #[arg(long, value_name = "FOLDER")]
    draw: Option<PathBuf>,
    /// Measure one resident-memory scenario in this process and print it: how a run starts its
    /// child processes.
    #[arg(long, hide = true, num_args = 3, value_names = ["SCENARIO", "PEER", "OBJECTS"])]
    child: Option<Vec<String>>,
    /// Count the allocations of one run of a group in this process and print them: how a run starts
    /// its child processes.
    #[arg(long, hide = true, num_args = 2..)]
    count: Option<Vec<String>>,
    /// Measure nothing; copy stdin to stdout, and write it to FILE as JSON, with a description of the
    /// machine.
    #[arg(long, value_name = "FILE")]
    keep_output: Option<PathBuf>,
    /// Measure the group `packet` on the allocator that this process has and print it as JSON: how a
    /// run starts its child processes.
    #[arg(long, hide = true)]
    in_this_process: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Memory: allocating and freeing.
    Alloc,
    /// Packets: filling, freezing, cloning, splitting.
    Packet,
    /// UDP: receiving, handing over to a consumer, sending.
    Udp,
    /// RUDP: reliable sessions.
    Rudp,
    /// Metrics: the cost of exporting them.
    Metrics,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(arguments) = &options.child {
        return alloc::child(arguments);
    }
    if let Some(arguments) = &options.count {
        let counted = match &arguments[0][..] {
            "udp" => udp::child(&arguments[1..]),
            "metrics" => metrics::child(&arguments[1..]),
            "sessions" => rudp::sessions(&arguments[1..]),
            _ => rudp::child(&arguments[1..]),
        };
        return exit_code(counted.ok_or_else(|| "--count does not know these arguments".into()));
    }
    if let Some(file) = &options.keep_output {
        return exit_code(results::keep_output(file));
    }
    if let Some(files) = &options.page {
        return exit_code(results::page(files).map(|page| print!("{page}")));
    }
    if let Some(folder) = &options.scaling {
        return exit_code(scaling::run(folder));
    }
    if let Some(folder) = &options.draw {
        return exit_code(scaling::draw(folder));
    }
    let plan = if options.quick {
        Plan::quick()
    } else {
        Plan::full()
    };
    let ours = |group| match (&options.ours, group) {
        (Some(peer), _) => peer.as_str(),
        (None, Group::Alloc) => alloc::OURS,
        (None, Group::Packet) => packet::OURS,
        (None, Group::Udp) => udp::OURS,
        (None, Group::Rudp) => rudp::OURS,
        (None, Group::Metrics) => metrics::OURS,
    };
    let groups = match options.group {
        Some(group) => vec![group],
        None => Group::value_variants().to_vec(),
    };
    let mut names: Vec<&str> = groups.iter().map(|&group| ours(group)).collect();
    names.dedup();
    let mut report = Report::new(names.join(", "), options.quick);
    let filter = report::Filter::new(options.only.clone());
    if options.in_this_process {
        packet::in_this_process(ours(Group::Packet), &plan, &filter, &mut report);
        print!("{}", report.json());
        return ExitCode::SUCCESS;
    }
    let watch = Watch::start();
    let outcome = groups.iter().try_for_each(|&group| match group {
        Group::Alloc => alloc::run(ours(group), &plan, &filter, &mut report),
        Group::Packet => packet::run(ours(group), options.quick, &filter, &mut report),
        Group::Udp => udp::run(ours(group), &plan, &filter, &mut report),
        Group::Rudp => rudp::run(ours(group), options.quick, &filter, &mut report),
        Group::Metrics => metrics::run(ours(group), options.quick, &filter, &mut report),
    });
    if outcome.is_err() {
        return exit_code(outcome);
    }
    // Only once, since both report the same.
    report.warn(watch.warning());
    print!("{}", report.markdown());
    if let Some(path) = options.json
        && let Err(error) = std::fs::write(&path, report.json())
    {
        eprintln!("versus: cannot write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Exits with one line on stderr and status 2 if something failed.
fn exit_code(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("versus: {problem}");
            ExitCode::from(2)
        }
    }
}
