//! RUDP against tokio_kcp and kcp-go on loopback: bulk and echo, interleaved.
//!
//!     cd interop/rudp-versus && cargo run --release -- [ROUNDS] [MEGABYTES] [PEER]
//!
//! PEER is one of `ours`, `tokio_kcp`, `kcp-go`, to see that one alone.
//!
//! All with nodelay 1, interval 10, resend 2, nc 1, window 1024, MTU 1400, 4 MiB of socket buffers,
//! stream mode; both ends in one process with two threads. Bulk is timed from the first byte written
//! to the last one read, and the CPU time is the process's. kcp-go runs in a process of its own
//! (`interop/kcp-go`), and is left out where there is no Go.

mod cpu;
mod go;
mod ours;
mod theirs;

use std::fmt;
use std::time::Duration;

/// What a bulk transfer took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bulk {
    pub(crate) mb_per_s: f64,
    pub(crate) cpu_s_per_gb: f64,
}

/// What echoes of 1 KiB took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Echo {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

impl Echo {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        Self {
            p50: times[times.len() / 2],
            p99: times[times.len() * 99 / 100],
        }
    }
}

pub(crate) const ECHOES: usize = 20_000;

/// All samples of one case of one peer.
#[derive(Default)]
struct Samples(Vec<f64>);

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => write!(f, "-"),
            n => write!(
                f,
                "{:.2} ({:.2} .. {:.2})",
                sorted[n / 2],
                sorted[0],
                sorted[n - 1]
            ),
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default| {
        args.next()
            .map_or(default, |arg| arg.parse().expect("a number"))
    };
    let (rounds, megabytes): (usize, usize) = (number(5), number(512));
    let only = args.next();
    let wanted = |peer| only.as_deref().is_none_or(|only| only == peer);
    let go = wanted("kcp-go").then(go::Program::build).flatten();
    let names = ["ours", "tokio_kcp", "kcp-go", "ours to kcp-go"];
    let mut table: [[Samples; 4]; 4] = Default::default();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut bulk = |peer: usize, bulk: Bulk| {
            table[peer][0].0.push(bulk.mb_per_s);
            table[peer][1].0.push(bulk.cpu_s_per_gb);
        };
        if wanted("ours") {
            bulk(0, run(ours::bulk(megabytes)));
        }
        if wanted("tokio_kcp") {
            // It is slow enough with less.
            bulk(1, run(theirs::bulk(megabytes.div_ceil(4))));
        }
        if let Some(go) = &go {
            bulk(2, go.bulk(megabytes.div_ceil(2)));
            bulk(
                3,
                go.sink(|address| run(ours::to(address, megabytes.div_ceil(2)))),
            );
        }
        let mut echo = |peer: usize, echo: Echo| {
            table[peer][2].0.push(echo.p50.as_secs_f64() * 1e6);
            table[peer][3].0.push(echo.p99.as_secs_f64() * 1e6);
        };
        if wanted("ours") {
            echo(0, run(ours::echo()));
        }
        if wanted("tokio_kcp") {
            echo(1, run(theirs::echo()));
        }
        if let Some(go) = &go {
            echo(2, go.echo());
        }
    }
    println!("median (lowest .. highest) of {rounds}");
    println!("| | bulk MB/s | CPU s/GB | 1 KiB echo p50 us | p99 us |\n|---|---|---|---|---|");
    for (name, [rate, cpu, p50, p99]) in names.iter().zip(&table) {
        println!("| {name} | {rate} | {cpu} | {p50} | {p99} |");
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}
