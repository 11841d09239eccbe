//! Forward error correction in the format of kcp-go: lost datagrams are computed from others.
//!
//! Every `data` datagrams are followed by `parity` more, which a Reed-Solomon code makes from them. Any `data` of
//! the whole group are enough to compute the others. A datagram of the KCP protocol becomes a data shard, with
//! [`FEC_HEADER_BYTES`] in front, little-endian:
//!
//! | offset | field | bytes | |
//! |---|---|---|---|
//! | 0 | `seqid` | 4 | numbers all shards; a group begins at a multiple of its size |
//! | 4 | `type` | 2 | 0xf1: data, 0xf2: parity |
//! | 6 | `size` | 2 | data shards only: bytes from here on, `size` included |
//! | 8 | | | the datagram |
//!
//! The code covers everything behind `type`, with shorter shards padded with zeros; in a parity shard the code's
//! output is there. `seqid` wraps at the largest multiple of the group's size below 2^32. Encryption is applied
//! around all of this.

mod code;
mod decoder;
mod encoder;
mod stats;

pub(in crate::rudp) use code::Code;
pub use decoder::FecDecoder;
pub(super) use decoder::max_kept_shards;
pub use encoder::FecEncoder;
pub use stats::FecStats;

use core::fmt;
use core::time::Duration;

/// The bytes in front of a datagram that make it a data shard.
pub const FEC_HEADER_BYTES: usize = 8;
/// The bytes of a shard in front of what the code covers.
const COVERED_AT: usize = 6;
/// What the code covers begins with its size, in two bytes.
const LONGEST_SHARD: usize = COVERED_AT + u16::MAX as usize;
/// No parity is sent if this long passed between the last two datagrams of its group: it would come too late.
const MAX_PAUSE: Duration = Duration::from_millis(500);
const DATA: u16 = 0xf1;
const PARITY: u16 = 0xf2;

/// The shard counts: how many datagrams make a group, and how many shards of a group may be lost.
///
/// Both ends need the same counts.
///
/// ```
/// use slab_net::rudp::fec::FecShards;
///
/// let shards = FecShards::new(10, 3)?;
/// assert_eq!((shards.data(), shards.parity()), (10, 3));
/// assert!(FecShards::new(250, 7).is_err());
/// # Ok::<(), slab_net::rudp::fec::FecConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FecShards {
    data: u8,
    parity: u8,
}

impl FecShards {
    /// Adds `parity` datagrams to every `data` datagrams.
    ///
    /// The time that recovery takes grows with more than the square of the losses in a group: of shards of 1400 bytes,
    /// 0.01 ms for 3 with (10, 3), 1.7 ms for 64 with (64, 64), and 8 ms for 128 with (128, 128), on an Intel Xeon. The
    /// endpoint's other sessions wait meanwhile.
    ///
    /// # Errors
    /// One of the counts is zero, or their sum is above 256.
    pub fn new(data: usize, parity: usize) -> Result<Self, FecConfigError> {
        if data == 0 || parity == 0 || data.saturating_add(parity) > 256 {
            return Err(FecConfigError { data, parity });
        }
        // As the other count is at least 1, neither is above 255.
        Ok(Self {
            data: data as u8,
            parity: parity as u8,
        })
    }

    /// Returns the number of data shards in a group.
    #[must_use]
    pub fn data(&self) -> usize {
        self.data.into()
    }

    /// Returns the number of parity shards in a group.
    #[must_use]
    pub fn parity(&self) -> usize {
        self.parity.into()
    }

    fn total(&self) -> u32 {
        u32::from(self.data) + u32::from(self.parity)
    }

    /// The number of groups before `seqid` wraps.
    fn groups(&self) -> u32 {
        u32::MAX / self.total()
    }

    /// The first `seqid` that does not exist.
    fn wrap(&self) -> u32 {
        self.groups() * self.total()
    }
}

/// Shard counts for which there is no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FecConfigError {
    data: usize,
    parity: usize,
}

impl fmt::Display for FecConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} data and {} parity shards: at least 1 of each, and 256 together at most",
            self.data, self.parity
        )
    }
}

impl core::error::Error for FecConfigError {}

/// How error correction treats a datagram, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Framing {
    /// A datagram from a peer without error correction, to be used as it is.
    Plain,
    /// A data shard: the datagram is behind [`FEC_HEADER_BYTES`].
    Data,
    /// A parity shard.
    Parity,
}

impl Framing {
    /// Determines the kind from the type; `None` if there are fewer than [`FEC_HEADER_BYTES`]. A segment is never
    /// taken for a shard: its command is where the type is, and smaller.
    ///
    /// ```
    /// use slab_net::rudp::fec::Framing;
    ///
    /// assert_eq!(Framing::of(&[0, 0, 0, 0, 0xf1, 0, 2, 0]), Some(Framing::Data));
    /// assert_eq!(Framing::of(&[0, 0, 0, 0, 81, 0, 2, 0]), Some(Framing::Plain));
    /// assert_eq!(Framing::of(b"short"), None);
    /// ```
    #[must_use]
    pub fn of(datagram: &[u8]) -> Option<Self> {
        let header: &[u8; FEC_HEADER_BYTES] = datagram.first_chunk()?;
        Some(match u16::from_le_bytes([header[4], header[5]]) {
            DATA => Self::Data,
            PARITY => Self::Parity,
            _ => Self::Plain,
        })
    }
}

/// The `seqid` of a shard.
fn seqid(shard: &[u8]) -> Option<u32> {
    shard.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_statistics_have_every_count() {
        let mut sum = FecStats::default();
        let one = FecStats {
            sent_parity: 1,
            received_parity: 2,
            recovered: 3,
            expired: 4,
            rejected: 5,
            late: 6,
            no_memory: 7,
        };
        sum += &one;
        assert_eq!(sum, one);
    }

    #[test]
    fn counts_for_which_there_is_no_code_are_refused() {
        for (data, parity) in [(0, 1), (1, 0), (256, 1), (129, 128), (1, usize::MAX)] {
            let refused = FecShards::new(data, parity).unwrap_err().to_string();
            let counts = format!("{data} data and {parity} parity shards");
            assert!(refused.starts_with(&counts), "{refused}");
        }
        for (data, parity) in [(1, 1), (255, 1), (1, 255), (128, 128)] {
            assert!(FecShards::new(data, parity).is_ok(), "{data} {parity}");
        }
    }
}
