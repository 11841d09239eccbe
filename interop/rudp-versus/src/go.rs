//! kcp-go, in a process of its own.

use crate::{Bulk, ECHOES, Echo};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) struct Program(PathBuf);

impl Program {
    /// `None` without Go.
    pub(crate) fn build() -> Option<Self> {
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../kcp-go");
        let program = std::env::temp_dir().join(format!("kcp-go-peer-{}", std::process::id()));
        let mut build = Command::new("go");
        build
            .current_dir(sources)
            .args(["build", "-o"])
            .arg(&program)
            .arg(".");
        match build.status() {
            Ok(status) if status.success() => Some(Self(program)),
            _ => None,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command.arg("-stream").stdout(Stdio::piped());
        command
    }

    /// The numbers that a mode prints.
    fn numbers(&self, args: &[String]) -> Vec<f64> {
        let output = self.command().args(args).output().expect("it was built");
        assert!(output.status.success(), "kcp-go failed");
        let text = String::from_utf8_lossy(&output.stdout);
        text.split_whitespace()
            .map(|number| number.parse().expect("a number"))
            .collect()
    }

    /// Both ends of kcp-go.
    pub(crate) fn bulk(&self, megabytes: usize) -> Bulk {
        let size = format!("-megabytes={megabytes}");
        let numbers = self.numbers(&[size, "bulk".into(), "127.0.0.1:0".into()]);
        Bulk {
            mb_per_s: numbers[0],
            cpu_s_per_gb: numbers[1],
        }
    }

    pub(crate) fn echo(&self) -> Echo {
        let count = format!("-echoes={ECHOES}");
        let numbers = self.numbers(&[count, "pingpong".into(), "127.0.0.1:0".into()]);
        Echo {
            p50: Duration::from_secs_f64(numbers[0] / 1e6),
            p99: Duration::from_secs_f64(numbers[1] / 1e6),
        }
    }

    /// Runs `act` with the address of a sink.
    pub(crate) fn sink<T>(&self, act: impl FnOnce(SocketAddr) -> T) -> T {
        let mut sink = self
            .command()
            .args(["sink", "127.0.0.1:0"])
            .spawn()
            .expect("it was built");
        let mut line = String::new();
        let out = sink.stdout.take().expect("piped");
        BufReader::new(out)
            .read_line(&mut line)
            .expect("its address");
        let result = act(line.trim().parse().expect("an address"));
        let _ = sink.kill();
        let _ = sink.wait();
        result
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
