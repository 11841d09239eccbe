//! Packets: the counterparts of [`bytes::BytesMut`] and [`bytes::Bytes`] over a bounded pool.
//!
//! | module | what |
//! |---|---|
//! | `pool`, `builder` | [`PacketPool`]: a slab pool with headroom, tailroom and a policy for its cap |
//! | `buf`, `room`, `split` | [`PacketBuf`]: exclusive, growable; how it finds more space; its parts |
//! | `frozen` | [`Packet`]: frozen, cheap to clone and to slice |
//! | `chain` | [`PacketChain`]: a sequence of packets, for vectored writes |
//! | `held` | [`HeldPacket`]: a packet that is retained, and counted in the statistics meanwhile |
//! | `convert`, `cmp`, `fmt`, `io`, `serde` | their trait implementations, as in `bytes` |
//! | `stats` | [`PacketPoolStats`]: what a pool counts |
//! | `owner`, `settings` | what keeps the memory alive; how a chunk finds its packet pool |

mod buf;
mod builder;
mod chain;
mod cmp;
mod convert;
mod fmt;
mod frozen;
mod held;
mod io;
mod owner;
mod pool;
mod room;
#[cfg(feature = "serde")]
mod serde;
mod settings;
mod split;
mod stats;

pub use buf::PacketBuf;
pub use builder::{PacketPoolBuilder, PacketPoolError};
pub use chain::PacketChain;
pub use frozen::Packet;
pub use held::HeldPacket;
pub use pool::PacketPool;
pub use stats::PacketPoolStats;

use core::ops::{Bound, RangeBounds};

/// Resolves `range` to start and end within `len` bytes. The panics of packets have the words of `bytes`,
/// which tests may expect.
///
/// # Panics
/// If the start is greater than the end, or the end greater than `len`.
fn resolve(range: impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let next = |n: usize| n.checked_add(1).expect("out of range");
    let start = match range.start_bound() {
        Bound::Included(&n) => n,
        Bound::Excluded(&n) => next(n),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&n) => next(n),
        Bound::Excluded(&n) => n,
        Bound::Unbounded => len,
    };
    assert!(
        start <= end,
        "range start must not be greater than end: {start} <= {end}"
    );
    assert!(end <= len, "range end out of bounds: {end} <= {len}");
    (start, end)
}

/// Compiles and runs the examples of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct ReadmeExamples;
