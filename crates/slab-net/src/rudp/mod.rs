//! RUDP: reliable, ordered sessions over UDP that speak the KCP protocol, on pool memory.
//!
//! An [`Endpoint`] is a socket with sessions; a [`Connection`] is one of them, for messages; a
//! [`Stream`] the same for bytes. Below them is [`Session`], the protocol without socket or clock,
//! for those who bring their own. Peers may be of any implementation of KCP.
//!
//! | module | what |
//! |---|---|
//! | [`wire`] | segments, parsed and written |
//! | `core` | [`Session`] |
//! | `endpoint` | [`Endpoint`], [`Connection`], [`Stream`] |
//! | `budget` | [`MemoryBudget`]: what sessions may promise and use |
//! | `fec`, `crypto` | lost datagrams computed from others; encryption: features `fec`, `aes-gcm` |
//! | `measures` | what the sessions of an endpoint measure together |
//! | `config`, `error`, `stats`, `time` | what they say |

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
pub use endpoint::{Connection, Endpoint, EndpointConfig, EndpointStats, OpenError, Stream};
pub use error::{CloseReason, Rejection, SendError, Unsent};
pub use measures::RoundTripTimes;
pub use stats::RudpStats;
pub use time::Time;
