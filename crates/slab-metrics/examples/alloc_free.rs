//! A million pairs of allocation and free, in a pool that is scraped or in one that is not.
//! `ci/metrics-cost` counts the instructions of both and expects the same number.
//!
//!     cargo run --release -p slab-metrics --example alloc_free -- alone
//!     cargo run --release -p slab-metrics --example alloc_free -- scraped

use slab_core::SlabPool;
use slab_metrics::{Collector, Exporter};
use std::error::Error;
use std::ffi::OsStr;
use std::hint::black_box;
use std::io::{self, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let scraped = match std::env::args_os()
        .nth(1)
        .as_deref()
        .and_then(OsStr::to_str)
    {
        Some("alone") => false,
        Some("scraped") => true,
        _ => return Err("say whether: alone or scraped".into()),
    };
    let pool = SlabPool::builder().name("rx").build()?;
    // The first pairs fill the thread's magazine.
    pairs(&pool, 1000);
    let collector = Collector::new();
    if scraped {
        collector.register_pool(&pool)?;
    }
    let exporter = Exporter::new(collector);
    let before = exporter.scrape();
    counted(&pool);
    let after = exporter.scrape();
    let (before, after) = (before.len(), after.len());
    writeln!(io::stdout(), "{before} bytes of metrics, then {after}")?;
    Ok(())
}

/// The function whose instructions are counted.
#[inline(never)]
fn counted(pool: &SlabPool) {
    pairs(pool, 1_000_000);
}

#[inline(always)]
fn pairs(pool: &SlabPool, count: usize) {
    for _ in 0..count {
        drop(black_box(pool.try_alloc(black_box(2048))));
    }
}
