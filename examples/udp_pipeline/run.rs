//! One run of one mode, from the first socket to the summary.

use crate::allocations;
use crate::bytesmut_batch::BytesMutBatches;
use crate::bytesmut_packet::BytesMutPackets;
use crate::channels::ChannelServer;
use crate::interruption::interruption;
use crate::load::{Load, Sent};
use crate::options::{Metrics, Mode, Options, Rate};
use crate::pool::PoolServer;
use crate::process;
use crate::report::{self, Peaks, Ticker, say};
use crate::server::{Kept, Server, THREAD_NAMES};
use crate::totals::Totals;
use packet_slab::slab_core::ClassStats;
use packet_slab::slab_metrics::{Collector, Exporter, MetricsServer};
use std::error::Error;
use std::future::pending;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{interval_at, sleep};

/// The time at the beginning that does not belong to the steady state.
const WARM_UP: Duration = Duration::from_secs(1);
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Everything that the summary reports.
pub(crate) struct Outcome {
    pub(crate) totals: Totals,
    pub(crate) kernel_drops: Option<u64>,
    pub(crate) load: Option<Sent>,
    pub(crate) steady: Steady,
    pub(crate) resident: Resident,
    pub(crate) kept: KeptPackets,
    pub(crate) pool: Option<PoolFigures>,
}

/// The time after the warm-up and before the end.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Steady {
    pub(crate) time: Duration,
    pub(crate) packets: u64,
    pub(crate) allocations: u64,
    /// Of the threads that receive and consume; `None` if the system does not report it.
    pub(crate) cpu: Option<Duration>,
}

impl Steady {
    /// `None` if there was no packet to divide by.
    pub(crate) fn allocations_per_packet(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.allocations as f64 / self.packets as f64)
    }

    /// Likewise.
    pub(crate) fn cpu_nanos_per_packet(&self) -> Option<f64> {
        let cpu = self.cpu.filter(|_| self.packets > 0)?;
        Some(cpu.as_nanos() as f64 / self.packets as f64)
    }
}

/// Resident memory of the process in bytes, if the system reports it.
pub(crate) struct Resident {
    pub(crate) before: Option<u64>,
    pub(crate) peak: Option<u64>,
    /// After everything has stopped, with only the packets that consumers keep.
    pub(crate) with_kept: Option<u64>,
}

pub(crate) struct KeptPackets {
    pub(crate) packets: usize,
    pub(crate) payload_bytes: u64,
}

/// The pool's memory in bytes.
pub(crate) struct PoolFigures {
    pub(crate) cap: u64,
    pub(crate) committed: u64,
    /// The peaks of all size classes, which need not have been at the same time.
    pub(crate) peak_in_use: u64,
    pub(crate) in_use_with_kept: u64,
    /// Committed but free, with only the packets that consumers keep in use.
    pub(crate) caches: u64,
    /// Chunks in use after those had been dropped too.
    pub(crate) chunks_left: u64,
}

impl Outcome {
    pub(crate) fn summary_line(&self) -> String {
        let totals = &self.totals;
        format!(
            "summary received={} delivered={} dropped={} echoed={} heap_allocs_per_packet={} pool_in_use={}",
            totals.received,
            totals.delivered,
            totals.drops.sum(),
            totals.echoed,
            report::three_decimals(self.steady.allocations_per_packet()),
            self.pool.as_ref().map_or(0, |pool| pool.chunks_left),
        )
    }

    /// Checks what this program promises for every run.
    ///
    /// # Errors
    /// The promise that was broken.
    pub(crate) fn check(&self) -> Result<(), String> {
        let totals = &self.totals;
        if totals.received != totals.delivered + totals.drops.sum() {
            return Err(
                "the packets received are not the sum of those delivered and dropped".into(),
            );
        }
        let Some(pool) = &self.pool else {
            return Ok(());
        };
        if pool.committed > pool.cap {
            return Err("the pool exceeded its cap".into());
        }
        match pool.chunks_left {
            0 => Ok(()),
            left => Err(format!("{left} chunks did not come back to the pool")),
        }
    }
}

/// Runs until the time is up or Ctrl-C.
///
/// # Errors
/// The failure that kept it from starting.
pub(crate) fn run(options: &Options) -> Result<Outcome, Box<dyn Error>> {
    // For the metrics page, the report and signals, which stay out of the server's threads.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let interrupted = {
        let _runtime = runtime.enter();
        interruption()?
    };
    // Everything that can fail happens before the first packet.
    let collector = Collector::new();
    let page = bind_page(options, &runtime, &collector)?;
    let load = match options.no_load {
        true => None,
        false => Some(Load::bind(options)?),
    };
    let mut server = start(options)?;
    server.register(&collector)?;
    announce(options, &*server, page.as_ref());

    if let Some(page) = page {
        runtime.spawn(page.serve(pending()));
    }
    let before = process::resident_bytes();
    let load = load.map(|load| load.start(server.address())).transpose()?;
    let (steady, peaks) = runtime.block_on(watch(options, &*server, interrupted));

    // Stop the load first, so that everything it sent can be accounted for.
    let load = load.map(|load| load.stop());
    let kept = server.stop();
    Ok(measure_outcome(&*server, kept, load, steady, before, peaks))
}

fn start(options: &Options) -> Result<Box<dyn Server>, Box<dyn Error>> {
    Ok(match options.mode {
        Mode::Pool => Box::new(PoolServer::start(options)?),
        Mode::BytesmutBatch => {
            let room = options.queued_batches();
            Box::new(ChannelServer::<BytesMutBatches>::start(options, room)?)
        }
        Mode::BytesmutPacket => {
            let room = BytesMutPackets::queued_packets(options);
            Box::new(ChannelServer::<BytesMutPackets>::start(options, room)?)
        }
        Mode::All => unreachable!("runs each of the others in a child process"),
    })
}

fn bind_page(
    options: &Options,
    runtime: &Runtime,
    collector: &Collector,
) -> Result<Option<MetricsServer>, String> {
    let Metrics::At(address) = options.metrics else {
        return Ok(None);
    };
    let page = MetricsServer::builder(Exporter::new(collector.clone())).address(address);
    let page = runtime.block_on(page.bind()).map_err(|error| {
        format!("{error}; choose another address with --metrics ADDR, or use --metrics off")
    })?;
    Ok(Some(page))
}

fn announce(options: &Options, server: &dyn Server, page: Option<&MetricsServer>) {
    say(format_args!(
        "mode {}: receiving at {} (shards: {}, consumers: {})",
        options.mode.name(),
        server.address(),
        options.shards,
        options.consumers,
    ));
    if !options.no_load {
        let rate = match options.rate {
            Rate::PerSecond(rate) => format!("{} datagrams/s", report::thousands(rate.into())),
            Rate::Max => "as many datagrams as possible,".into(),
        };
        say(format_args!("load: {rate} of {} bytes", options.payload));
    }
    if let Some(page) = page {
        let address = page.local_addr();
        say(format_args!(
            "metrics: http://{address}/metrics, live page: http://{address}/"
        ));
    }
    match options.run_time() {
        Some(time) => say(format_args!(
            "runs for {}, or until Ctrl-C",
            report::seconds(time)
        )),
        None => say("runs until Ctrl-C"),
    }
}

/// The counters at one end of the steady state.
struct Mark {
    at: Instant,
    packets: u64,
    allocations: u64,
    cpu: Option<Duration>,
}

impl Mark {
    fn now(server: &dyn Server) -> Self {
        Self {
            at: Instant::now(),
            packets: server.totals().received,
            allocations: allocations::allocation_count(),
            cpu: process::cpu_time(&THREAD_NAMES),
        }
    }

    fn until(&self, end: Self) -> Steady {
        Steady {
            time: end.at - self.at,
            packets: end.packets - self.packets,
            allocations: end.allocations - self.allocations,
            cpu: end
                .cpu
                .zip(self.cpu)
                .and_then(|(end, start)| end.checked_sub(start)),
        }
    }
}

/// Prints a line per second until the end, and measures the steady state.
async fn watch(
    options: &Options,
    server: &dyn Server,
    interrupted: impl Future<Output = ()>,
) -> (Steady, Peaks) {
    let run_time = options.run_time();
    let end = async {
        match run_time {
            Some(time) => sleep(time).await,
            None => pending().await,
        }
    };
    let warm_up = run_time.map_or(WARM_UP, |time| WARM_UP.min(time / 4));
    tokio::pin!(end, interrupted);
    let warm = sleep(warm_up);
    tokio::pin!(warm);
    let mut from = None;
    let mut ticker = Ticker::start();
    let mut lines = interval_at(tokio::time::Instant::now() + LINE_INTERVAL, LINE_INTERVAL);
    loop {
        tokio::select! {
            () = &mut warm, if from.is_none() => {
                from = Some(Mark::now(server));
            }
            _ = lines.tick() => say(ticker.line(server)),
            () = &mut end => break,
            () = &mut interrupted => break,
        }
    }
    let steady = from.map(|from| from.until(Mark::now(server)));
    // Only for the peaks; not printed.
    ticker.line(server);
    (steady.unwrap_or_default(), ticker.peaks)
}

/// Measures what remains once everything has stopped.
fn measure_outcome(
    server: &dyn Server,
    kept: Kept,
    load: Option<Sent>,
    steady: Steady,
    before: Option<u64>,
    peaks: Peaks,
) -> Outcome {
    let with_kept = process::resident_bytes();
    let packets = KeptPackets {
        packets: kept.packets,
        payload_bytes: kept.payload_bytes,
    };
    let held = server.pool().map(|pool| pool.slab().stats());
    drop(kept);
    let pool = held.zip(server.pool()).map(|(held, pool)| {
        let (committed, in_use) = (held.committed_bytes as u64, held.in_use_bytes() as u64);
        let peak = |class: &ClassStats| class.in_use_peak * class.chunk_bytes as u64;
        PoolFigures {
            cap: held.max_memory as u64,
            committed: committed.max(peaks.pool_committed),
            peak_in_use: held
                .classes()
                .iter()
                .map(peak)
                .sum::<u64>()
                .min(held.max_memory as u64),
            in_use_with_kept: in_use,
            caches: committed.saturating_sub(in_use),
            chunks_left: pool.slab().stats().in_use(),
        }
    });
    Outcome {
        totals: server.totals(),
        kernel_drops: process::kernel_drops(server.address()),
        load,
        steady,
        resident: Resident {
            before,
            peak: peaks.resident.max(with_kept),
            with_kept,
        },
        kept: packets,
        pool,
    }
}
