//! The command line.

use clap::Parser;
use slab_net::rudp::fec::FecShards;
use std::path::PathBuf;
use std::time::Duration;

/// Sends a file to a server and back over RUDP, through a simulated path that loses and reorders datagrams
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// File to send; random bytes if omitted
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Size of the random file in MiB, if no file is given
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(crate) size: u64,
    /// Percentage of datagrams lost in each direction
    #[arg(long, default_value = "1", value_parser = percent)]
    pub(crate) loss: f64,
    /// Percentage of datagrams overtaken by later ones in each direction
    #[arg(long, default_value = "2", value_parser = percent)]
    pub(crate) reorder: f64,
    /// One-way delay of the path
    #[arg(long, default_value = "10ms", value_parser = duration)]
    pub(crate) delay: Duration,
    /// Send and receive windows, in segments
    #[arg(long, default_value_t = 1024)]
    pub(crate) window: u32,
    /// Maximum length of a datagram, in bytes
    #[arg(long, default_value_t = 1400)]
    pub(crate) mtu: usize,
    /// Forward error correction: for every DATA datagrams send PARITY more, such as 10,3, to recover lost ones
    #[arg(long, value_name = "DATA,PARITY", value_parser = shards)]
    pub(crate) fec: Option<FecShards>,
    /// Encrypt with AES-GCM and a random key
    #[arg(long)]
    pub(crate) encrypt: bool,
}

fn shards(text: &str) -> Result<FecShards, String> {
    let numbers = text
        .split_once(',')
        .and_then(|(data, parity)| Some((data.trim().parse().ok()?, parity.trim().parse().ok()?)));
    let (data, parity) = numbers.ok_or("expected two numbers such as 10,3")?;
    FecShards::new(data, parity).map_err(|error| error.to_string())
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(value) if (0.0..=50.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 50".into()),
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
        _ => Err("expected a time such as 10ms or 0.5s, up to 10 s".into()),
    }
}
