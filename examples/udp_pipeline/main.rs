//! A UDP server on one bounded pool, with a load generator to show what it does.
//!
//!     cargo run --release --example udp_pipeline
//!     cargo run --release --example udp_pipeline -- --mode all --retain 50
//!     cargo run --release --example udp_pipeline -- --listen 0.0.0.0:9000 --no-load
//!
//! | file | what |
//! |---|---|
//! | `pool` | the server: **start reading here** |
//! | `bytesmut_batch`, `bytesmut_packet` | the same without a pool, for comparison |
//! | `server`, `totals` | what these three have in common |
//! | `channels`, `sockets` | what the two without a pool have in common |
//! | `load` | the load generator |
//! | `run`, `compare` | one run from the first socket to the summary; all modes in turn |
//! | `report`, `process`, `allocations` | what is printed and where it is measured |
//! | `options` | the command line |
//!
//! A failure to start is one line on stderr and exit status 2; a broken promise (a packet unaccounted for, a
//! chunk that did not come back) is one line and status 1.

mod allocations;
mod bytesmut_batch;
mod bytesmut_packet;
mod channels;
mod compare;
#[path = "../common/interruption.rs"]
mod interruption;
mod load;
mod options;
mod pool;
mod process;
mod report;
mod run;
mod server;
mod sockets;
mod totals;

use options::{Mode, Options};
use std::error::Error;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

fn main() -> ExitCode {
    show_events();
    match start() {
        Ok(status) => status,
        Err(error) => {
            report::print_error(with_causes(&*error));
            ExitCode::from(2)
        }
    }
}

/// The error and its causes, in one line.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<_> = chain.map(ToString::to_string).collect();
    texts.join(": ")
}

/// Shows the library's log events, such as the begin and end of drops.
fn show_events() {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .without_time();
    tracing_subscriber::registry()
        .with(lines.with_filter(LevelFilter::WARN))
        .init();
}

fn start() -> Result<ExitCode, Box<dyn Error>> {
    let options = Options::from_command_line()?;
    if options.mode == Mode::All {
        return compare::run();
    }
    let outcome = run::run(&options)?;
    report::summary(&options, &outcome);
    Ok(match outcome.check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(broken) => {
            report::print_error(broken);
            ExitCode::FAILURE
        }
    })
}
