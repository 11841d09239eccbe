//! Instructions of an allocation and its free in a pool that is registered and was scraped, and in one that
//! is not registered, counted by callgrind. Unless the numbers are equal, metrics cost something.

use super::{OURS, Size};
use slab_core::SlabPool;
use slab_metrics::{Collector, Exporter};
use std::hint::black_box;
use std::process::Command;

const PAIRS: u32 = 1_000_000;

pub(super) fn pair(_: &Size) -> Result<Vec<(f64, f64)>, String> {
    Ok(vec![(count(OURS)?, count("unwatched")?)])
}

/// Starts this program again under callgrind.
fn count(side: &str) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=versus::metrics::instructions::counted*")
        .arg(program)
        .args(["--count", "metrics", "pairs", side])
        .output()
        .map_err(|error| format!("valgrind does not start: {error}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    let collected = log.lines().find_map(|line| {
        let (_, count) = line.split_once("Collected : ")?;
        count.trim().parse::<f64>().ok()
    });
    match collected {
        // No instructions, or hardly any: the function was not found.
        Some(count) if count > f64::from(PAIRS) => Ok(count / f64::from(PAIRS)),
        _ => Err(format!("callgrind collected nothing: {}", log.trim())),
    }
}

/// The function that runs under callgrind.
pub(super) fn child(side: &str) -> Option<()> {
    let pool = SlabPool::builder().name("rx").build().ok()?;
    // The first pairs fill the thread's magazine.
    pairs(&pool, 1000);
    let collector = Collector::new();
    if side == OURS {
        collector.register_pool(&pool).ok()?;
    }
    let exporter = Exporter::new(collector);
    black_box(exporter.scrape());
    counted(&pool);
    black_box(exporter.scrape());
    Some(())
}

#[inline(never)]
fn counted(pool: &SlabPool) {
    pairs(pool, PAIRS);
}

#[inline(always)]
fn pairs(pool: &SlabPool, count: u32) {
    for _ in 0..count {
        drop(black_box(pool.try_alloc(black_box(2048))));
    }
}
