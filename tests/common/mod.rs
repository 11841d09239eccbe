//! The `udp_pipeline` example as a child process.

mod example;

use example::example;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long to wait for what must happen; no time is asserted.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the example to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    Command::new(example("udp_pipeline"))
        .args(arguments)
        .output()
        .unwrap()
}

/// The numbers of a run's last line, by name.
pub(crate) struct Summary(HashMap<String, String>);

impl Summary {
    pub(crate) fn parse(stdout: &str) -> Self {
        let last = stdout.lines().last().unwrap_or_default();
        let values = last.strip_prefix("summary ");
        let values = values.unwrap_or_else(|| panic!("no summary at the end of\n{stdout}"));
        let names: Vec<_> = values
            .split(' ')
            .map(|value| value.split_once('=').unwrap())
            .collect();
        assert_eq!(
            names.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            [
                "received",
                "delivered",
                "dropped",
                "echoed",
                "heap_allocs_per_packet",
                "pool_in_use"
            ]
        );
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self(names.into_iter().map(own).collect())
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        &self.0[name]
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap()
    }

    /// Asserts what must hold at the end of every run.
    pub(crate) fn assert_adds_up(&self) {
        assert_eq!(
            self.count("received"),
            self.count("delivered") + self.count("dropped")
        );
        assert_eq!(self.count("pool_in_use"), 0);
    }
}

/// Runs the example, which must succeed, and returns its summary.
pub(crate) fn summary_of(arguments: &[&str]) -> Summary {
    let output = run(arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}\n{stdout}\n{stderr}");
    let summary = Summary::parse(&stdout);
    summary.assert_adds_up();
    summary
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A running example, which is killed if the test ends first.
pub(crate) struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
    printed: String,
}

impl Running {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(example("udp_pipeline"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            lines,
            printed: String::new(),
        }
    }

    /// Reads on to a line with an address between these two strings, and returns the address.
    pub(crate) fn address(&mut self, before: &str, after: &str) -> SocketAddr {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "no address after {before:?} in\n{}", self.printed);
            self.printed.push_str(&line);
            let rest = line.split_once(before).map(|(_, rest)| rest);
            if let Some((address, _)) = rest.and_then(|rest| rest.split_once(after)) {
                return address.parse().unwrap();
            }
        }
    }

    /// Sends Ctrl-C and waits for the end.
    #[cfg(unix)]
    pub(crate) fn interrupt(mut self) -> Summary {
        let kill = format!("kill -INT {}", self.child.id());
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .unwrap()
                .success()
        );
        self.lines.read_to_string(&mut self.printed).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.printed);
        let summary = Summary::parse(&self.printed);
        summary.assert_adds_up();
        summary
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes one HTTP request, as a scraper does.
pub(crate) fn get(server: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer
}

/// Returns the value of one series on the page.
pub(crate) fn metric(server: SocketAddr, series: &str) -> f64 {
    let page = get(server, "/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix(series));
    let value = value.unwrap_or_else(|| panic!("no {series} in\n{page}"));
    value.trim().parse().unwrap()
}

/// Repeats a check until it holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
