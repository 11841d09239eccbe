//! The command line.

use clap::Parser;
use slab_net::rudp::fec::FecShards;
use std::path::PathBuf;
use std::time::Duration;

/// Moves a file to a server and back over RUDP, through a path that loses and reorders
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// The file to move; random bytes if none is given
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// How much to move if no file is given, in MiB
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(crate) size: u64,
    /// Datagrams lost, each way, in percent
    #[arg(long, default_value = "1", value_parser = percent)]
    pub(crate) loss: f64,
    /// Datagrams overtaken by later ones, each way, in percent
    #[arg(long, default_value = "2", value_parser = percent)]
    pub(crate) reorder: f64,
    /// How long a datagram takes, each way
    #[arg(long, default_value = "10ms", value_parser = duration)]
    pub(crate) delay: Duration,
    /// The windows, in segments
    #[arg(long, default_value_t = 1024)]
    pub(crate) window: u32,
    /// The longest datagram, in bytes
    #[arg(long, default_value_t = 1400)]
    pub(crate) mtu: usize,
    /// Sends so many datagrams of parity to so many of data, and recovers what is lost: 10,3 for example
    #[arg(long, value_name = "DATA,PARITY", value_parser = shards)]
    pub(crate) fec: Option<FecShards>,
    /// Encrypts, with a key made up for this run
    #[arg(long)]
    pub(crate) encrypt: bool,
}

fn shards(text: &str) -> Result<FecShards, String> {
    let numbers = text
        .split_once(',')
        .and_then(|(data, parity)| Some((data.trim().parse().ok()?, parity.trim().parse().ok()?)));
    let (data, parity) = numbers.ok_or("two numbers such as 10,3 are expected")?;
    FecShards::new(data, parity).map_err(|error| error.to_string())
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(value) if (0.0..=50.0).contains(&value) => Ok(value),
        _ => Err("a number from 0 to 50 is expected".into()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    match number.parse::<f64>() {
        Ok(value) if (0.0..=10.0).contains(&(value * unit)) => {
            Ok(Duration::from_secs_f64(value * unit))
        }
        _ => Err("a time such as 10ms or 0.5s is expected, up to 10 s".into()),
    }
}
