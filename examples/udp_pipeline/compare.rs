//! `--mode all`: runs each mode in a process of its own, so that no mode inherits another's memory, and
//! prints a table.

use crate::interruption::interruption;
use crate::options::Mode;
use crate::report::{self, Figures, say};
use std::env;
use std::error::Error;
use std::pin::{Pin, pin};
use std::process::{ExitCode, ExitStatus, Stdio};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const MODES: [Mode; 3] = [Mode::Pool, Mode::BytesmutBatch, Mode::BytesmutPacket];

/// Runs all modes with the options of this process.
///
/// # Errors
/// The program cannot start itself.
pub(crate) fn run() -> Result<ExitCode, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(all())
}

async fn all() -> Result<ExitCode, Box<dyn Error>> {
    let mut interrupted = pin!(interruption()?);
    let mut is_interrupted = false;
    let mut rows = Vec::new();
    let mut pool_summary = None;
    for mode in MODES {
        let (status, lines) = run_child(mode, interrupted.as_mut(), &mut is_interrupted).await?;
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
        if is_interrupted {
            break;
        }
    }
    table(&rows);
    if let Some(summary) = pool_summary {
        say(summary);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one mode, and prints and returns its output.
async fn run_child(
    mode: Mode,
    mut interrupted: Pin<&mut impl Future<Output = ()>>,
    is_interrupted: &mut bool,
) -> Result<(ExitStatus, Vec<String>), Box<dyn Error>> {
    let mut arguments: Vec<_> = env::args_os().skip(1).collect();
    // Of a repeated option the last one counts.
    arguments.push(format!("--mode={}", mode.name()).into());
    let mut child = Command::new(env::current_exe()?)
        .args(arguments)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = child.stdout.take().ok_or("no output")?;
    let mut child_lines = BufReader::new(stdout).lines();
    let mut lines = Vec::new();
    loop {
        tokio::select! {
            line = child_lines.next_line() => match line? {
                Some(line) => {
                    say(&line);
                    lines.push(line);
                }
                None => break,
            },
            () = interrupted.as_mut(), if !*is_interrupted => {
                *is_interrupted = true;
                terminate(&child);
            }
        }
    }
    Ok((child.wait().await?, lines))
}

/// Lets the child drain and print its summary. The terminal's Ctrl-C reaches the child as well, and a second
/// signal does no harm; a signal from a service manager, or by `kill`, does not reach it.
fn terminate(child: &Child) {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        // The child has not been waited for, so its id is still its own, even if it has ended.
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
    }
    #[cfg(not(unix))]
    let _ = child;
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
            report::three_decimals(row.heap_allocs_per_packet),
            row.cpu_nanos_per_packet
                .map_or("n/a".into(), report::thousands),
        ));
    }
}
