//! `--mode all`: each mode in a process of its own, so that no mode inherits another's memory, and
//! then a table.

use crate::options::Mode;
use crate::report::{self, Figures, say};
use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

const MODES: [Mode; 3] = [Mode::Pool, Mode::BytesmutBatch, Mode::BytesmutPacket];

/// Runs all modes with the options of this process.
///
/// # Errors
/// The program cannot start itself.
pub(crate) fn run() -> Result<ExitCode, Box<dyn Error>> {
    // Ctrl-C reaches the child too, which drains and prints its summary. We only have to outlive
    // it, and start no other.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let interrupted = runtime.spawn(tokio::signal::ctrl_c());

    let mut rows = Vec::new();
    let mut pool_summary = None;
    for mode in MODES {
        let (status, lines) = run_child(mode)?;
        if !status.success() {
            // The child has said why.
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(ExitCode::from(code.unwrap_or(1)));
        }
        rows.extend(lines.iter().find_map(|line| Figures::parse(line)));
        if mode == Mode::Pool {
            pool_summary = lines.last().cloned();
        }
        say("");
        if interrupted.is_finished() {
            break;
        }
    }
    table(&rows);
    if let Some(summary) = pool_summary {
        say(summary);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one mode; returns what it printed, after passing it on.
fn run_child(mode: Mode) -> Result<(std::process::ExitStatus, Vec<String>), Box<dyn Error>> {
    let mut arguments: Vec<_> = env::args_os().skip(1).collect();
    // The last one given counts.
    arguments.push(format!("--mode={}", mode.name()).into());
    let mut child = Command::new(env::current_exe()?)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            say(&line);
            lines.push(line);
        }
    }
    Ok((child.wait()?, lines))
}

fn table(rows: &[Figures]) {
    say(
        "mode              packets/s  resident growth  payload held  growth/payload  less the pool's caches  heap allocs/packet  CPU ns/packet",
    );
    for row in rows {
        let ratio = |growth: Option<u64>| match growth {
            Some(growth) if row.payload_held > 0 => {
                format!("{:.2}", growth as f64 / row.payload_held as f64)
            }
            _ => "n/a".into(),
        };
        let less_caches = row
            .resident_growth
            .zip(row.caches)
            .map(|(growth, caches)| growth.saturating_sub(caches));
        say(format_args!(
            "{:<16} {:>10}  {:>15}  {:>12}  {:>14}  {:>22}  {:>18}  {:>13}",
            row.mode,
            report::thousands(row.packets_per_second as u64),
            report::mib_or_unknown(row.resident_growth),
            report::mib(row.payload_held),
            ratio(row.resident_growth),
            ratio(less_caches),
            report::thousandth(row.heap_allocs_per_packet),
            row.cpu_nanos_per_packet
                .map_or("n/a".into(), report::thousands),
        ));
    }
}
