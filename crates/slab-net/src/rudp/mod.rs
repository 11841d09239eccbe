//! RUDP: reliable, ordered sessions over UDP that speak the KCP protocol, on pool memory.

mod budget;
mod config;
mod core;
mod error;
mod stats;
mod time;
pub mod wire;

pub use self::core::{Outgoing, Session, Side};
pub use budget::MemoryBudget;
pub use config::{Congestion, SessionConfig, SessionConfigError};
pub use error::{CloseReason, Rejection, SendError, Unsent};
pub use stats::RudpStats;
pub use time::Time;
