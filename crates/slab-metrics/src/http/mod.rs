//! The metrics server: a few paths, bounded in every direction.
//!
//! | what | bound |
//! |---|---|
//! | connections at once | a limit; beyond it a connection gets 503 and is closed |
//! | a request's header | 8 KiB and 100 fields, then 431 |
//! | time to send a header, the first or the next | a timeout, then the connection is closed |
//! | a connection's life | one minute, so that one that does not read its answer ends as well |
//! | a request's body | not read |

mod negotiate;
mod respond;
mod server;
mod stats;
#[cfg(test)]
mod tests;

pub use server::{DEFAULT_ADDRESS, MetricsServer, MetricsServerBuilder};
