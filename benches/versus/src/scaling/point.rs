//! One point of a plot.

/// The reading of one sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// Throughput of all threads, in the unit of the plot.
    pub(super) throughput: f64,
    /// CPU time per operation, of all threads, likewise.
    pub(super) cpu: f64,
}

impl Point {
    /// Converts so many operations to millions per second and nanoseconds each.
    pub(crate) fn new(ops: u64, wall_seconds: f64, cpu_ns: f64) -> Self {
        Self::of(ops as f64 / 1e6 / wall_seconds, cpu_ns / ops as f64)
    }

    pub(crate) fn of(throughput: f64, cpu: f64) -> Self {
        Self { throughput, cpu }
    }
}
