//! kcp-go, in a process of its own (`interop/kcp-go`), which is built if Go is installed.

use super::path::{PathConditions, Paths};
use super::scenario::{PACED_LOSS, Scenario, Size, Transfer};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Where the program was built, or why it could not be.
fn program() -> Result<&'static PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = PROGRAM.get_or_init(build);
    built.as_ref().map_err(Clone::clone)
}

fn build() -> Result<PathBuf, String> {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/kcp-go");
    // Beside this program, so that it is built only once.
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = this.with_file_name("kcp-go-peer");
    let mut command = Command::new("go");
    command
        .current_dir(sources)
        // The checkout may belong to another user, and then git tells Go nothing about it.
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .arg(".");
    match command.stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(program),
        Ok(_) => Err("its program cannot be built here".into()),
        Err(_) => Err("there is no Go here".into()),
    }
}

/// Builds the program if Go is installed.
///
/// # Errors
/// Why it cannot be built.
pub(super) fn available() -> Result<(), String> {
    program().map(|_| ())
}

/// Runs a scenario once and returns its figures.
///
/// # Panics
/// If the program fails.
pub(super) fn run(scenario: Scenario, size: &Size, seed: u64) -> Vec<f64> {
    let (mode, sessions) = match scenario {
        Scenario::Bulk | Scenario::Encrypted | Scenario::Lossy(_) | Scenario::Counted(_) => {
            ("bulk", 1)
        }
        Scenario::Echo => ("pingpong", 1),
        Scenario::Paced | Scenario::WithFec => ("paced", size.paced_sessions),
        Scenario::Fanout => ("fanout", size.fanout_sessions),
        Scenario::Idle => ("idle", size.idle_sessions),
        Scenario::Resident => panic!("it has no such case"),
        Scenario::ToKcpGo => return vec![send(size.window)],
    };
    let (start, window) = size.windows(scenario);
    let mut process = Process::start(&[
        format!("-echoes={}", size.echoes),
        format!("-messages={}", size.paced_messages),
        format!(
            "-parity={}",
            if scenario == Scenario::WithFec { 2 } else { 0 }
        ),
        format!("-after={}ms", start.as_millis()),
        format!("-for={}ms", window.as_millis()),
        mode.into(),
        "127.0.0.1:0".into(),
    ]);
    let address = process.read_line().parse().expect("an address");
    let path_conditions = match scenario {
        Scenario::Paced | Scenario::WithFec => PACED_LOSS.map(PathConditions::lossy).to_vec(),
        _ => Vec::from_iter(scenario.path_conditions()),
    };
    let paths: Vec<Paths> = path_conditions
        .into_iter()
        .map(|conditions| Paths::open(address, sessions, conditions, seed))
        .collect();
    let mut to: Vec<SocketAddr> = paths.iter().flat_map(|p| p.addresses.clone()).collect();
    if to.is_empty() {
        to = vec![address; sessions];
    }
    let to: Vec<String> = to.iter().map(SocketAddr::to_string).collect();
    process.write_line(&to.join(" "));
    let line = process.read_line();
    let figures: Vec<f64> = line
        .split_whitespace()
        .map(|figure| figure.parse().expect("a figure"))
        .collect();
    match (mode, &figures[..]) {
        ("bulk", &[bytes, seconds, cpu_ns, allocations]) => scenario.of_transfer(&Transfer {
            bytes,
            seconds,
            cpu_ns,
            allocations,
        }),
        _ => figures,
    }
}

/// Measures its sending end, with a sink in another process.
fn send(window: Duration) -> f64 {
    with_sink(|address| {
        let window = format!("-for={}ms", window.as_millis());
        let mut process = Process::start(&[window, "send".into(), address.to_string()]);
        process.read_line().parse().expect("a figure")
    })
}

/// Calls `run` with the address of a sink of kcp-go.
///
/// # Panics
/// If the program fails.
pub(super) fn with_sink<T>(run: impl FnOnce(SocketAddr) -> T) -> T {
    let mut sink = Process::start(&["sink".into(), "127.0.0.1:0".into()]);
    run(sink.read_line().parse().expect("an address"))
}

/// Killed when dropped.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(arguments: &[String]) -> Self {
        let program = program().expect("it was available");
        let mut child = Command::new(program)
            .arg("-stream")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was built");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, output }
    }

    fn write_line(&mut self, line: &str) {
        let mut input = self.child.stdin.take().expect("piped");
        writeln!(input, "{line}").expect("it reads");
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes");
        line.trim().into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
