//! Models for loom of the packets themselves: the source of `slab-net`'s packets, compiled here over
//! a `slab-core` whose atomics are loom's. (Not `slab-net` as a whole: tokio has models of its own
//! behind the same cfg.)
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --manifest-path crates/slab-net/loom/Cargo.toml`, by
//! `ci/loom`.
//!
//! Loom does not see the bytes of a packet. A cell beside them stands for each part of a chunk, and is
//! read and written where the program reads and writes the part: loom reports an access that is not
//! ordered after the one before.
#![cfg(loom)]

extern crate self as tokio;

/// All that packets want of tokio, which no model does.
pub mod time {
    /// Without a clock, nobody's time is ever up.
    pub async fn timeout<F: Future>(_: core::time::Duration, future: F) -> Result<F::Output, ()> {
        Ok(future.await)
    }
}

#[allow(dead_code, unused_imports, reason = "what the rest of slab-net uses")]
#[path = "../../src/packet/mod.rs"]
mod packet;

#[cfg(test)]
mod model;
