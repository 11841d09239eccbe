//! Forward error correction in the format of kcp-go: lost datagrams are computed from others.
//!
//! Every `data` datagrams are followed by `parity` more, made of them by a Reed-Solomon code. Any
//! `data` of the whole group are enough to compute the others. A datagram of the KCP protocol
//! becomes a data shard, with [`FEC_HEADER_BYTES`] in front, little-endian:
//!
//! | offset | field | bytes | |
//! |---|---|---|---|
//! | 0 | `seqid` | 4 | counts all shards; a group begins at a multiple of its size |
//! | 4 | `type` | 2 | 0xf1: data, 0xf2: parity |
//! | 6 | `size` | 2 | data shards only: bytes from here on, `size` included |
//! | 8 | | | the datagram |
//!
//! The code covers everything behind `type`, shorter shards filled up with zeros; a parity shard
//! has what the code makes of it there. `seqid` wraps at the largest multiple of the group's size
//! below 2^32. With encryption, this is inside of it.
//!
//! | module | what |
//! |---|---|
//! | `encoder`, `decoder` | [`FecEncoder`], [`FecDecoder`]: without socket or clock |
//! | `code` | the Reed-Solomon code |
//! | `stats` | [`FecStats`] |

mod code;
mod decoder;
mod encoder;
mod stats;

pub(in crate::rudp) use code::Code;
pub use decoder::FecDecoder;
pub(super) use decoder::most_kept;
pub use encoder::FecEncoder;
pub use stats::FecStats;

use core::fmt;
use core::time::Duration;

/// Bytes in front of a datagram that make it a data shard.
pub const FEC_HEADER_BYTES: usize = 8;
/// Bytes of a shard in front of what the code covers.
const COVERED_AT: usize = 6;
/// Parity that would come this long after the datagram before the last one helps nobody.
const CONTINUOUS: Duration = Duration::from_millis(500);
const DATA: u16 = 0xf1;
const PARITY: u16 = 0xf2;

/// How many datagrams make a group, and how many of them may be lost.
///
/// Both ends need the same.
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
    /// `parity` datagrams more for each `data` of them.
    ///
    /// # Errors
    /// One of them is zero, or their sum is above 256.
    pub fn new(data: usize, parity: usize) -> Result<Self, FecConfigError> {
        if data == 0 || parity == 0 || data.saturating_add(parity) > 256 {
            return Err(FecConfigError { data, parity });
        }
        // With the other at least 1, neither is above 255.
        Ok(Self {
            data: data as u8,
            parity: parity as u8,
        })
    }

    /// Data shards of a group.
    #[must_use]
    pub fn data(&self) -> usize {
        self.data.into()
    }

    /// Parity shards of a group.
    #[must_use]
    pub fn parity(&self) -> usize {
        self.parity.into()
    }

    fn total(&self) -> u32 {
        u32::from(self.data) + u32::from(self.parity)
    }

    /// Groups before `seqid` begins again.
    fn groups(&self) -> u32 {
        u32::MAX / self.total()
    }

    /// The first `seqid` that there is not.
    fn wrap(&self) -> u32 {
        self.groups() * self.total()
    }
}

/// Shard counts that no code exists for.
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

/// What a datagram is to error correction, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// A datagram of a peer without error correction: it is what it is.
    Plain,
    /// A data shard: the datagram is behind [`FEC_HEADER_BYTES`].
    Data,
    /// A parity shard.
    Parity,
}

impl Framing {
    /// Looks at the type. No segment can be taken for a shard: its command is where the type is,
    /// and smaller.
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

fn write_header(shard: &mut [u8], seqid: u32, kind: u16) {
    shard[..4].copy_from_slice(&seqid.to_le_bytes());
    shard[4..COVERED_AT].copy_from_slice(&kind.to_le_bytes());
}
