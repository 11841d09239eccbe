//! UDP straight into pool memory.

mod stats;

pub use stats::{SocketMonitor, SocketStats};
