//! Ours against each peer, interleaved in one process: see `benches/README.md`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod alloc;
mod cpu;
mod machine;
mod measure;
mod report;

use clap::{Parser, ValueEnum};
use measure::Plan;
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs ours and each peer in turn and compares them.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// The group of cases to run; all of them if left out.
    #[arg(value_enum)]
    group: Option<Group>,
    /// Short samples: a group ends within 45 s.
    #[arg(long)]
    quick: bool,
    /// Only rows whose `case/peer` contains this.
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Write the rows to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Put this peer in our place: a peer against itself shows what the harness adds.
    #[arg(long, value_name = "PEER", default_value = alloc::OURS)]
    ours: String,
    /// Measure one resident-memory scenario in this process and print it: how a run starts its
    /// child processes.
    #[arg(long, hide = true, num_args = 3, value_names = ["SCENARIO", "PEER", "OBJECTS"])]
    child: Option<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Allocating and freeing.
    Alloc,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(arguments) = &options.child {
        return alloc::child(arguments);
    }
    let plan = if options.quick {
        Plan::quick()
    } else {
        Plan::full()
    };
    let mut report = Report::new(options.ours.clone());
    let filter = report::Filter::new(options.only);
    let group = options.group.unwrap_or(Group::Alloc);
    let outcome = match group {
        Group::Alloc => alloc::run(&options.ours, &plan, &filter, &mut report),
    };
    if let Err(problem) = outcome {
        eprintln!("versus: {problem}");
        return ExitCode::from(2);
    }
    print!("{}", report.markdown());
    if let Some(path) = options.json
        && let Err(error) = std::fs::write(&path, report.json())
    {
        eprintln!("versus: cannot write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
