//! RUDP's figures on a path with delay, loss and reordering, in virtual time: the same numbers on every
//! machine, printed by
//!
//!     cargo test --release -p slab-net --test rudp_figures -- --nocapture
//!
//! 10 ms each way, 2 % of the datagrams delayed by up to 10 ms more, nodelay 1, interval 10, resend 2,
//! nc 1, windows of 1024, MTU 1400, timers of 1 ms as tokio's. Median of five seeds; without `--release`
//! one, and shorter.

#[path = "rudp/common/mod.rs"]
mod common;

use common::lossy::{Conditions, Lossy};
use slab_net::rudp::{Session, SessionConfig, Time};
use std::time::Duration;

const SEEDS: u64 = if cfg!(debug_assertions) { 1 } else { 5 };

fn config() -> SessionConfig {
    SessionConfig::fast().window(1024, 1024)
}

fn path(lost: u64) -> Conditions {
    Conditions {
        delay: Duration::from_millis(10),
        lost,
        reordered: 20,
        bottleneck: None,
    }
}

#[expect(clippy::print_stdout, reason = "figures are to be seen")]
fn report(what: &str, lost: u64, mut values: Vec<f64>, unit: &str) -> f64 {
    values.sort_by(f64::total_cmp);
    let (median, last) = (values[values.len() / 2], values.len() - 1);
    println!(
        "{what}, {} % lost: {median:.1} {unit} ({:.1} .. {:.1})",
        lost / 10,
        values[0],
        values[last]
    );
    median
}

/// The throughput of a stream once the windows have grown, in megabytes a second.
fn bulk(lost: u64, seed: u64) -> f64 {
    match cfg!(debug_assertions) {
        true => between(400, 800, lost, seed),
        false => between(500, 2000, lost, seed),
    }
}

/// The throughput of a stream between two times, in milliseconds after its first byte; in megabytes a second.
fn between(warm: u64, end: u64, lost: u64, seed: u64) -> f64 {
    let mut world = Lossy::new(&config().stream(true), path(lost), seed);
    let [warm, end] = [warm, end].map(|ms| Time::from_micros(ms * 1000));
    let piece = [7; 16 << 10];
    let mut received = 0;
    let write = |session: &mut Session| while session.write(&piece).is_ok() {};
    write(&mut world.ends[0]);
    world.settle(0);
    world.settle(1);
    while let Some(end) = world.step(end) {
        write(&mut world.ends[0]);
        // As an endpoint does: it answers what came, and only then does the reader run.
        world.settle(end);
        while let Some(bytes) = world.ends[1].read() {
            if world.now >= warm {
                received += bytes.len();
            }
        }
        if end == 1 {
            // Reading may have opened the window.
            world.settle(1);
        }
    }
    received as f64 / 1e6 / end.since(warm).as_secs_f64()
}

/// The 99th percentile of the latency of messages of 1 KiB, one every 5 ms, in milliseconds.
fn latency(mut world: Lossy) -> f64 {
    let count = if cfg!(debug_assertions) {
        1000_u32
    } else {
        4000
    };
    let every = Duration::from_millis(5);
    let mut times = Vec::new();
    for number in 0..count {
        let at = Time::ZERO + every * number;
        while let Some(end) = world.step(at) {
            while let Some(message) = world.ends[1].recv() {
                let sent = u64::from_le_bytes(*message.first_chunk().unwrap());
                times.push(world.now.since(Time::from_micros(sent)));
            }
            world.settle(end);
        }
        world.now = at;
        let mut message = [1; 1024];
        message[..8].copy_from_slice(&at.as_micros().to_le_bytes());
        world.ends[0].send_slice(&message).unwrap();
        world.settle(0);
    }
    times.sort();
    times[times.len() * 99 / 100].as_secs_f64() * 1e3
}

#[test]
fn bulk_over_a_lossy_path() {
    for (lost, at_least) in [(10, 1.15 * 32.0), (50, 1.25 * 21.0)] {
        let rates = (0..SEEDS).map(|seed| bulk(lost, seed)).collect();
        let median = report("bulk", lost, rates, "MB/s");
        assert!(median >= at_least, "{median} of {at_least} MB/s");
    }
}

/// Windows are open within two round trips, whatever is lost. If they doubled in each round trip, these figures
/// would be 14, 10 and 6 MB/s.
#[test]
fn the_first_round_trips_over_a_lossy_path() {
    for (lost, at_least) in [(0, 36.0), (10, 1.15 * 27.0), (50, 1.25 * 16.0)] {
        let rates = (0..5).map(|seed| between(60, 160, lost, seed)).collect();
        let median = report("bulk, 60 to 160 ms", lost, rates, "MB/s");
        assert!(median >= at_least, "{median} of {at_least} MB/s");
    }
}

#[test]
fn messages_over_a_lossy_path() {
    for (lost, at_most) in [(10, 46.0), (50, 70.0)] {
        let times = (0..SEEDS)
            .map(|seed| latency(Lossy::new(&config(), path(lost), seed)))
            .collect();
        let median = report("1 KiB each 5 ms, p99", lost, times, "ms");
        assert!(median <= at_most, "{median} of {at_most} ms");
    }
}

/// With two datagrams of parity to two of data. The `25.5` is the issue's; kcp-go has 25 there.
#[cfg(feature = "fec")]
#[test]
fn messages_over_a_lossy_path_with_error_correction() {
    use slab_net::rudp::fec::FecShards;
    let shards = FecShards::new(2, 2).unwrap();
    // The MTU of 1400 includes the header of error correction.
    let config = config().mtu(1400 - slab_net::rudp::fec::FEC_HEADER_BYTES);
    for lost in [10, 50] {
        let times = (0..SEEDS)
            .map(|seed| latency(Lossy::new(&config, path(lost), seed).with_correction(shards)))
            .collect();
        let median = report("1 KiB each 5 ms with FEC(2,2), p99", lost, times, "ms");
        assert!(median <= 25.5, "{median} of 25.5 ms");
    }
}
