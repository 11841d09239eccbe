//! The lines on the terminal: one per second, and the summary.

use crate::options::{Mode, Options};
use crate::process;
use crate::run::Outcome;
use crate::server::Server;
use crate::totals::{Drops, Totals};
use packet_slab::slab_core::PoolStats;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

/// Prints a line. If the reader is gone, the program goes on.
pub(crate) fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// Prints a line to stderr.
pub(crate) fn print_error(line: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "udp_pipeline: {line}");
}

/// Turns totals into differences since the previous line.
pub(crate) struct Ticker {
    started: Instant,
    last: Instant,
    before: Totals,
    kernel_before: u64,
    pub(crate) peaks: Peaks,
}

/// The most that any line saw.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Peaks {
    pub(crate) resident: Option<u64>,
    pub(crate) pool_committed: u64,
}

impl Ticker {
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        Self {
            started: now,
            last: now,
            before: Totals::default(),
            kernel_before: 0,
            peaks: Peaks::default(),
        }
    }

    /// Prints one line about the time since the previous one.
    pub(crate) fn line(&mut self, server: &dyn Server) -> String {
        let (totals, now) = (server.totals(), Instant::now());
        let seconds = now.duration_since(self.last).as_secs_f64().max(1e-9);
        let per_second = |now: u64, before: u64| (now - before) as f64 / seconds;
        let mut line = format!(
            "{:>4.0} s  {:>9} packets/s  {:>6.2} Gbit/s  {:>7} echoed/s  dropped/s",
            now.duration_since(self.started).as_secs_f64(),
            thousands(per_second(totals.received, self.before.received) as u64),
            per_second(totals.received_bytes, self.before.received_bytes) * 8e-9,
            thousands(per_second(totals.echoed, self.before.echoed) as u64),
        );
        let drops = |of: fn(&Drops) -> u64| {
            thousands(per_second(of(&totals.drops), of(&self.before.drops)) as u64)
        };
        // Writing to a string cannot fail.
        let _ = write!(
            line,
            ": queue full {}, no memory {}, truncated {}",
            drops(|d| d.queue_full),
            drops(|d| d.no_memory),
            drops(|d| d.truncated),
        );
        let _ = match process::kernel_drops(server.address()) {
            Some(kernel) => {
                let new = per_second(kernel, self.kernel_before.min(kernel));
                self.kernel_before = kernel;
                write!(line, ", kernel {} buffers", thousands(new as u64))
            }
            None => write!(line, ", kernel n/a"),
        };
        if let Some(pool) = server.pool() {
            let stats = pool.slab().stats();
            let _ = write!(line, "  pool {}", pool_use(&stats));
            let committed = &mut self.peaks.pool_committed;
            *committed = (*committed).max(stats.committed_bytes as u64);
        }
        let resident = process::resident_bytes();
        let _ = write!(line, "  resident {}", mib_or_unknown(resident));
        self.peaks.resident = self.peaks.resident.max(resident);
        self.last = now;
        self.before = totals;
        line
    }
}

/// Formats how much of the cap is in use, and by which size classes.
fn pool_use(stats: &PoolStats) -> String {
    let (in_use, cap) = (stats.in_use_bytes() as u64, stats.max_memory as u64);
    let mut text = format!("{} of {} in use", mib(in_use), mib(cap));
    let used = stats.classes().iter().filter(|class| class.in_use > 0);
    for (number, class) in used.enumerate() {
        let before = if number == 0 { " (" } else { ", " };
        let _ = write!(text, "{before}{} of {} B", class.in_use, class.chunk_bytes);
    }
    if in_use > 0 {
        text.push(')');
    }
    text
}

/// Prints the summary; its last line is for machines.
pub(crate) fn summary(options: &Options, outcome: &Outcome) {
    let Outcome {
        totals,
        kept,
        resident,
        ..
    } = outcome;
    let drops = &totals.drops;
    say(format_args!(
        "received {}, delivered {}, dropped {} (queue full {}, no memory {}, truncated {}, closed {})",
        thousands(totals.received),
        thousands(totals.delivered),
        thousands(drops.sum()),
        thousands(drops.queue_full),
        thousands(drops.no_memory),
        thousands(drops.truncated),
        thousands(drops.closed),
    ));
    // The kernel counts what one call sent as one, however many datagrams it was.
    say(format_args!(
        "dropped by the kernel, because the socket's buffer was full: {} buffers (one datagram each; with GSO, many)",
        outcome.kernel_drops.map_or(NONE.into(), thousands)
    ));
    if totals.receive_errors > 0 {
        say(format_args!(
            "errors while receiving: {}",
            thousands(totals.receive_errors)
        ));
    }
    if totals.echo_failed > 0 {
        say(format_args!(
            "echoes that the system refused to send: {}",
            thousands(totals.echo_failed)
        ));
    }
    if let Some(load) = outcome.load {
        say(format_args!(
            "load: {} datagrams sent, {} refused by the system, {} echoes seen before it stopped",
            thousands(load.datagrams),
            thousands(load.failed),
            thousands(load.echoes)
        ));
    }
    say(format_args!(
        "heap: {} allocations for {} packets in {:.1} s of steady state, on the threads that receive and consume",
        thousands(outcome.steady.allocations),
        thousands(outcome.steady.packets),
        outcome.steady.time.as_secs_f64(),
    ));
    if let Some(nanos) = outcome.steady.cpu_nanos_per_packet() {
        say(format_args!(
            "CPU: {nanos:.0} ns a packet in that time, on the same threads, the kernel's part included"
        ));
    }
    say(format_args!(
        "resident: {} before the first packet, {} at most, {} with {} packets kept ({} of payload)",
        mib_or_unknown(resident.before),
        mib_or_unknown(resident.peak),
        mib_or_unknown(resident.with_kept),
        thousands(kept.packets as u64),
        mib(kept.payload_bytes),
    ));
    if let Some(pool) = &outcome.pool {
        say(format_args!(
            "pool: cap {}, committed {}, in use {} at most, {} by the packets kept, {} free in its caches then",
            mib(pool.cap),
            mib(pool.committed),
            mib(pool.peak_in_use),
            mib(pool.in_use_with_kept),
            mib(pool.caches),
        ));
    }
    say(Figures::of(options.mode, outcome));
    say(outcome.summary_line());
}

/// What `--mode all` compares, passed as a line from child to parent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    pub(crate) mode: String,
    pub(crate) packets_per_second: f64,
    pub(crate) resident_growth: Option<u64>,
    pub(crate) payload_held: u64,
    /// Free memory that the pool keeps in its caches.
    pub(crate) caches: Option<u64>,
    pub(crate) heap_allocs_per_packet: Option<f64>,
    pub(crate) cpu_nanos_per_packet: Option<u64>,
}

const NONE: &str = "n/a";

impl Figures {
    fn of(mode: Mode, outcome: &Outcome) -> Self {
        let resident = &outcome.resident;
        let growth = resident.with_kept.zip(resident.before);
        let steady = &outcome.steady;
        Self {
            mode: mode.name().to_owned(),
            packets_per_second: steady.packets as f64 / steady.time.as_secs_f64().max(1e-9),
            resident_growth: growth.map(|(with, before)| with.saturating_sub(before)),
            payload_held: outcome.kept.payload_bytes,
            caches: outcome.pool.as_ref().map(|pool| pool.caches),
            heap_allocs_per_packet: steady.allocations_per_packet(),
            cpu_nanos_per_packet: steady
                .cpu_nanos_per_packet()
                .map(|nanos| nanos.round() as u64),
        }
    }

    /// Parses the line; `None` for other lines.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut values = line.strip_prefix("figures ")?.split(' ');
        let mut value = |name: &str| values.next()?.strip_prefix(name)?.strip_prefix('=');
        Some(Self {
            mode: value("mode")?.to_owned(),
            packets_per_second: value("packets_per_second")?.parse().ok()?,
            resident_growth: value("resident_growth_bytes")?.parse().ok(),
            payload_held: value("payload_held_bytes")?.parse().ok()?,
            caches: value("pool_cache_bytes")?.parse().ok(),
            heap_allocs_per_packet: value("heap_allocs_per_packet")?.parse().ok(),
            cpu_nanos_per_packet: value("cpu_ns_per_packet")?.parse().ok(),
        })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |value: Option<u64>| value.map_or(NONE.into(), |value| value.to_string());
        write!(
            f,
            "figures mode={} packets_per_second={:.0} resident_growth_bytes={} payload_held_bytes={} pool_cache_bytes={} heap_allocs_per_packet={} cpu_ns_per_packet={}",
            self.mode,
            self.packets_per_second,
            or_none(self.resident_growth),
            self.payload_held,
            or_none(self.caches),
            three_decimals(self.heap_allocs_per_packet),
            or_none(self.cpu_nanos_per_packet),
        )
    }
}

/// Formats with three decimals, or `n/a` if nothing was measured.
pub(crate) fn three_decimals(value: Option<f64>) -> String {
    value.map_or(NONE.into(), |value| format!("{value:.3}"))
}

pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

pub(crate) fn mib_or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or(NONE.into(), mib)
}

/// Formats with a space before each group of three digits.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Formats a duration as on the command line.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}
