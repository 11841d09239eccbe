//! RUDP: reliable, ordered sessions over UDP that speak the KCP protocol, on pool memory.
//!
//! An [`Endpoint`] is a socket with sessions. A [`Connection`] is one session, used for messages; a [`Stream`] is
//! one used for bytes. Below them is [`Session`], the protocol without socket or clock, for callers who bring their
//! own. Peers may run any implementation of KCP.
//!
//! | module | what |
//! |---|---|
//! | [`wire`] | segments, parsed and written |
//! | `core` | [`Session`] |
//! | `endpoint` | [`Endpoint`], [`Connection`], [`Stream`] |
//! | `budget` | [`MemoryBudget`]: what sessions may promise and use |
//! | `fec`, `crypto` | recovery of lost datagrams from others; encryption: features `fec`, `aes-gcm` |
//! | `measures` | what all sessions of an endpoint measure together |
//! | `config`, `error`, `stats`, `time` | settings, errors, counters, the clock as a number |

mod budget;
mod config;
mod core;
#[cfg(feature = "aes-gcm")]
pub mod crypto;
mod endpoint;
mod error;
#[cfg(feature = "fec")]
pub mod fec;
mod measures;
mod stats;
mod time;
pub mod wire;

pub use self::core::{Outgoing, Session, Side};
pub use budget::MemoryBudget;
pub use config::{Congestion, SessionConfig, SessionConfigError};
pub use endpoint::{Connection, Endpoint, EndpointConfig, EndpointMonitor, EndpointStats, Stream};
pub use error::{CloseReason, OpenError, Rejection, SendError, Unsent};
pub use measures::RoundTripTimes;
pub use stats::SessionStats;
pub use time::Time;
