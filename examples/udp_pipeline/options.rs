//! The command line.

#[path = "../common/address.rs"]
mod address;

use address::address;
use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use std::net::SocketAddr;
use std::time::Duration;

/// Receives UDP datagrams into pooled memory, hands owned packets to consumers on other threads, echoes
/// some of them and serves its metrics. By default it also generates the load.
#[derive(Debug, Clone, Parser)]
#[command(name = "udp_pipeline", version, args_override_self = true)]
pub(crate) struct Options {
    /// How packets are stored; `all` runs the three modes in turn, each in its own process, prints a
    /// comparison, and ends with the summary of mode `pool`
    #[arg(long, value_enum, default_value_t = Mode::Pool)]
    pub(crate) mode: Mode,

    /// Address to receive on; port 0 picks any free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = address)]
    pub(crate) listen: SocketAddr,

    /// Generate no load; wait for real traffic
    #[arg(long)]
    pub(crate) no_load: bool,

    /// How long to run, such as 8s, 500ms or 2m; Ctrl-C stops earlier [default: 10s; with --no-load
    /// until Ctrl-C]
    #[arg(long, value_parser = duration)]
    pub(crate) duration: Option<Duration>,

    /// Payload bytes of each generated datagram
    #[arg(long, value_name = "BYTES", default_value_t = 1200,
          value_parser = clap::value_parser!(u16).range(1..=65507))]
    pub(crate) payload: u16,

    /// Generated datagrams per second, or `max` for as many as possible
    #[arg(long, value_name = "N|max", default_value = "400000", value_parser = rate)]
    pub(crate) rate: Rate,

    /// Receiving sockets, each with its own thread, which share the address by SO_REUSEPORT
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) shards: u16,

    /// Consumer tasks, each on its own thread
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) consumers: u16,

    /// The pool's memory cap, such as 64MiB; the queue holds one batch for each 64 KiB of it
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    pub(crate) max_memory: usize,

    /// Switch GRO off and receive datagrams of at most this length; longer ones are counted as
    /// truncated (mode `pool` only)
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_datagram: Option<usize>,

    /// Keep every Nth packet, at most the newest 10000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) retain: Option<u32>,

    /// Make each consumer pause this long after every batch, such as 5ms
    #[arg(long, value_name = "PAUSE", value_parser = duration)]
    pub(crate) slow_consumer: Option<Duration>,

    /// Address to serve /metrics and the live page on, or `off`
    #[arg(long, value_name = "ADDR|off", default_value_t = Metrics::default(), value_parser = metrics)]
    pub(crate) metrics: Metrics,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Packets in the memory of one bounded pool
    Pool,
    /// Each 64 KiB GRO buffer copied to a `BytesMut`, from which packets are split
    BytesmutBatch,
    /// A `BytesMut` of 2 KiB per packet, or of `--payload` if that is more; longer datagrams are cut,
    /// which is not counted
    BytesmutPacket,
    /// All three, one after the other, and a comparison
    All,
}

impl Mode {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::BytesmutBatch => "bytesmut-batch",
            Self::BytesmutPacket => "bytesmut-packet",
            Self::All => "all",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rate {
    PerSecond(u32),
    Max,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metrics {
    At(SocketAddr),
    Off,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::At(packet_slab::slab_metrics::DEFAULT_ADDRESS)
    }
}

impl std::fmt::Display for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::Off => f.write_str("off"),
        }
    }
}

impl Options {
    /// The options that the program was started with.
    ///
    /// # Errors
    /// What is wrong with them, in one line.
    pub(crate) fn from_command_line() -> Result<Self, String> {
        Self::try_parse().map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
            _ => one_line(&error.to_string()),
        })
    }

    /// How many batches may wait between receivers and consumers: as many as the pool has buffers
    /// for, so that the cap is what limits them.
    pub(crate) fn queued_batches(&self) -> usize {
        (self.max_memory >> 16).max(1)
    }

    /// How long to run; `None` until Ctrl-C.
    pub(crate) fn run_time(&self) -> Option<Duration> {
        let with_load = || (!self.no_load).then_some(Duration::from_secs(10));
        self.duration.or_else(with_load)
    }
}

/// The first paragraph of what clap says, which explains the error; the rest is advice.
fn one_line(message: &str) -> String {
    let paragraph = message.lines().map(str::trim).take_while(|l| !l.is_empty());
    let line = paragraph.collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let micros_per_unit: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err("expected a whole number and us, ms, s, m or h, such as 8s".into()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a whole number before the unit, such as 8s")?;
    // A thousand years and more overflow the clock.
    let micros = number.checked_mul(micros_per_unit);
    match micros.filter(|&micros| micros < u64::MAX / 1_000) {
        Some(0) => Err("must be longer than 0".into()),
        Some(micros) => Ok(Duration::from_micros(micros)),
        None => Err("too long".into()),
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = split_unit(text);
    let per_unit: usize = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err("expected a whole number and B, KiB, MiB or GiB, such as 64MiB".into()),
    };
    let number: usize = number
        .parse()
        .map_err(|_| "expected a whole number before the unit, such as 64MiB")?;
    number
        .checked_mul(per_unit)
        .ok_or_else(|| "more bytes than can be addressed".into())
}

fn rate(text: &str) -> Result<Rate, String> {
    match text {
        "max" => Ok(Rate::Max),
        _ => match text.parse() {
            Ok(0) | Err(_) => Err("expected a whole number above 0, or max".into()),
            Ok(rate) => Ok(Rate::PerSecond(rate)),
        },
    }
}

fn metrics(text: &str) -> Result<Metrics, String> {
    match text {
        "off" => Ok(Metrics::Off),
        _ => text
            .parse()
            .map(Metrics::At)
            .map_err(|_| "expected an address such as 127.0.0.1:9465, or off".into()),
    }
}
