//! A bounded queue of batches between the tasks that receive and those that consume.

mod stats;

pub use stats::{QueueMonitor, QueueStats};
