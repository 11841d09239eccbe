//! What queues carry, and how they count it.

#[path = "../../src/udp/episode.rs"]
mod episode;
#[path = "../../src/udp/tally.rs"]
mod tally;

pub(crate) use episode::DropEpisode;
use std::net::SocketAddr;
pub(crate) use tally::{Amount, Tally};

/// One datagram of one byte.
#[derive(Debug, PartialEq, Eq)]
pub struct PacketBatch(pub u32);

impl PacketBatch {
    pub(crate) fn amount(&self) -> Amount {
        Amount::new(1, 1)
    }

    pub(crate) fn prefetch(&self) {}

    /// No model has several queues.
    pub(crate) fn source(&self) -> SocketAddr {
        ([127, 0, 0, 1], 1).into()
    }
}
