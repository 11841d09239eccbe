//! How throughput and CPU time per operation change with the number of threads, the payload, the number of
//! classes and the number of sessions: measured here, drawn by [`plots`].
//!
//! A round goes through all points of a plot and at each through all peers, so that variations of the
//! machine affect all of them.

mod plots;
pub(crate) mod point;

use crate::cpu::{Cpus, pin};
use crate::machine::{self, Watch};
use crate::measure::{Spread, catch_panic};
use crate::{alloc, rudp};
use point::Point;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// What is varied along a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Threads,
    Payload,
    Classes,
    Sessions,
}

impl Axis {
    const ALL: [Self; 4] = [Self::Threads, Self::Payload, Self::Classes, Self::Sessions];

    fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Payload => "payload",
            Self::Classes => "classes",
            Self::Sessions => "sessions",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Threads => "threads on two CPUs, blocks of 2 KiB in turns of 512",
            Self::Payload => "bytes of a block, in batches of 64, one thread",
            Self::Classes => {
                "classes (lengths that are asked for), 1024 live blocks replaced at random, one thread"
            }
            Self::Sessions => "sessions over UDP on loopback that send as fast as they can",
        }
    }

    /// Returns the units of throughput and of CPU time.
    fn units(self) -> [&'static str; 2] {
        match self {
            Self::Sessions => ["MB/s", "CPU s/GB"],
            _ => ["million pairs/s", "CPU ns/pair"],
        }
    }

    fn positions(self) -> &'static [usize] {
        match self {
            Self::Threads => &[1, 2, 4, 8, 16, 32, 64],
            Self::Payload => &[64, 256, 1024, 4096, 16_384, 65_536],
            Self::Classes => &[1, 2, 4, 8, 16, 24],
            Self::Sessions => &[1, 4, 16, 64, 256],
        }
    }

    /// Returns the peers, ours first.
    fn sides(self) -> &'static [&'static str] {
        match self {
            Self::Threads => &[
                "slab-core",
                "glibc",
                "mimalloc",
                "jemalloc",
                "snmalloc",
                "ArrayQueue",
            ],
            Self::Payload => &[
                "slab-core",
                "glibc",
                "mimalloc",
                "jemalloc",
                "snmalloc",
                "BytesMut",
            ],
            Self::Classes => &["slab-core", "glibc", "mimalloc", "jemalloc", "snmalloc"],
            Self::Sessions => &["slab-net", "tokio_kcp", "quinn"],
        }
    }

    fn run(
        self,
        side: &'static str,
        position: usize,
        ops: u64,
    ) -> Result<alloc::scaling::Run, String> {
        match self {
            // Enough to outlast by far the milliseconds until the last of 64 threads runs.
            Self::Threads => alloc::scaling::threads(side, position, 100 * ops),
            Self::Payload => alloc::scaling::payload(side, position, ops),
            Self::Classes => alloc::scaling::classes(side, position, ops),
            Self::Sessions => rudp::scaling(side, position, 20 * ops),
        }
    }
}

const ROUNDS: usize = 7;
/// Operations per sample of one thread.
const OPS: u64 = 100_000;

/// Measures everything and writes the JSON, the plots and the page into the folder.
///
/// # Errors
/// The folder cannot be written.
pub(crate) fn run(folder: &Path) -> Result<(), String> {
    let mut machine = machine::describe();
    let watch = Watch::start();
    let mut left_out = Map::new();
    let mut points = Vec::new();
    for axis in Axis::ALL {
        measure(axis, ROUNDS, OPS, &mut points, &mut left_out);
    }
    machine.insert("left_out".into(), Value::Object(left_out));
    if let Some(warning) = watch.warning() {
        machine.insert("warning".into(), json!(warning));
    }
    let whole = json!({ "machine": machine, "points": points });
    let file = folder.join("scaling.json");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&file, format!("{whole:#}\n")))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    draw(folder)
}

/// Draws the plots and the page from the folder's JSON.
///
/// # Errors
/// The folder cannot be read or written, or the JSON does not have the form that [`run`] writes.
pub(crate) fn draw(folder: &Path) -> Result<(), String> {
    let file = folder.join("scaling.json");
    let in_file = |problem: &dyn std::fmt::Display| format!("{}: {problem}", file.display());
    let text = fs::read_to_string(&file).map_err(|error| in_file(&error))?;
    let json: Value = serde_json::from_str(&text).map_err(|error| in_file(&error))?;
    for (name, text) in plots::files(&json)? {
        let file = folder.join(name);
        fs::write(&file, text)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}

fn measure(
    axis: Axis,
    rounds: usize,
    ops: u64,
    points: &mut Vec<Value>,
    left_out: &mut Map<String, Value>,
) {
    let cpus = Cpus::choose();
    for &position in axis.positions() {
        eprintln!("{} {position}", axis.name());
        // Otherwise there would be only one CPU to choose.
        cpus.unpin();
        let mut sides = Vec::new();
        for &side in axis.sides() {
            match catch_panic(|| axis.run(side, position, ops)).and_then(|run| run) {
                Ok(run) => sides.push((side, run, Ok(Vec::new()))),
                Err(reason) => {
                    left_out.insert(format!("{}-{position}/{side}", axis.name()), json!(reason));
                }
            }
        }
        match axis {
            Axis::Sessions => cpus.unpin(),
            _ => pin(cpus.main),
        }
        // The first round warms up.
        for round in 0..=rounds {
            for (_, run, found) in &mut sides {
                let Ok(samples) = found else {
                    continue;
                };
                match catch_panic(run) {
                    Ok(sample) if round > 0 => samples.push(sample),
                    Ok(_) => {}
                    Err(reason) => *found = Err(reason),
                }
            }
        }
        for (side, _, found) in sides {
            match found {
                Ok(samples) => points.push(point(axis, side, position, &samples)),
                Err(reason) => {
                    left_out.insert(format!("{}-{position}/{side}", axis.name()), json!(reason));
                }
            }
        }
    }
    cpus.unpin();
}

fn point(axis: Axis, side: &str, position: usize, samples: &[Point]) -> Value {
    let spread = |of: fn(&Point) -> f64| crate::report::spread(&Spread::of(samples.iter().map(of)));
    json!({
        "against": axis.name(),
        "at": position,
        "side": side,
        "throughput": spread(|sample| sample.throughput),
        "cpu": spread(|sample| sample.cpu),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn committed() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../report/scaling")
    }

    #[test]
    fn the_committed_plots_match_the_committed_json() {
        let text = fs::read_to_string(committed().join("scaling.json")).unwrap();
        let files = plots::files(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(files.len(), 2 * Axis::ALL.len() + 1);
        for (name, text) in files {
            let committed = fs::read_to_string(committed().join(&name)).unwrap();
            assert!(
                text == committed,
                "{name}: draw it again: cargo run -p versus -- --draw benches/report/scaling"
            );
        }
    }

    #[test]
    fn each_axis_has_a_point_for_each_available_side() {
        for axis in [Axis::Threads, Axis::Payload, Axis::Classes] {
            let (mut points, mut left_out) = (Vec::new(), Map::new());
            measure(axis, 1, 500, &mut points, &mut left_out);
            let all = axis.positions().len() * axis.sides().len();
            assert_eq!(points.len() + left_out.len(), all);
            let ours = |point: &&Value| point["side"] == axis.sides()[0];
            let ours = points.iter().filter(ours).count();
            let missing = left_out.values().filter(|why| **why == "it needs two CPUs");
            assert!(ours == axis.positions().len() || missing.count() > 0);
        }
    }
}
