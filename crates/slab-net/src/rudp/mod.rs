//! RUDP: reliable, ordered sessions over UDP that speak the KCP protocol, on pool memory.
//!
//! An [`Endpoint`] is a socket with sessions. A [`Connection`] is one session, used for messages; a [`Stream`] is
//! one used for bytes. Below them is [`Session`], the protocol without socket or clock, for callers who bring their
//! own. Peers may run any implementation of KCP.
//!
//! | for | see |
//! |---|---|
//! | messages, or bytes as from TCP | [`Endpoint`], [`Connection`], [`Stream`] |
//! | limits, and how sessions behave | [`EndpointConfig`], [`SessionConfig`], [`MemoryBudget`] |
//! | the protocol alone; its segments | [`Session`], [`wire`] |
//! | error correction, encryption | `fec`, `crypto`: features `fec`, `aes-gcm` |
//! | counters | [`EndpointMonitor`], [`EndpointStats`], [`SessionStats`] |

// | module | what |
// |---|---|
// | `core`, `wire` | the protocol; its segments in bytes |
// | `endpoint` | the sockets, tasks and sessions as an application sees them |
// | `fec`, `crypto` | error correction and encryption of datagrams, if configured |
// | `budget` | what sessions may promise and use of a pool's memory |
// | `config`, `error`, `stats` | how a session behaves; errors; counters of a session |
// | `context`, `measures` | what all sessions of an endpoint have in common, and measure together |
// | `time` | the clock as a number |

mod budget;
mod config;
mod context;
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
pub use error::{CloseReason, OpenError, Rejection, SendError, TryRecvError, Unsent};
pub use measures::RoundTripTimes;
pub use stats::SessionStats;
pub use time::Time;
