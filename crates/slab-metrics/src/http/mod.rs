//! The metrics server: a few paths, with a limit on everything that a client can use up.
//!
//! | what | bound |
//! |---|---|
//! | concurrent connections | a limit; one more gets 503 and is closed |
//! | a request's header | 8 KiB and 100 fields; a larger one gets 431 |
//! | time to send a header, the first or a later one | 10 s, then the connection is closed |
//! | a connection's life | one minute, so a client that does not read its answer is cut off too |
//! | a request's body | not read |

mod negotiate;
mod respond;
mod server;
mod stats;
#[cfg(test)]
mod tests;

pub use server::{DEFAULT_ADDRESS, MetricsServer, MetricsServerBuilder};
