//! Models for loom of parts of `slab-net`, whose source is compiled here over loom's atomics: packets,
//! over a `slab-core` whose atomics are loom's too; the queue; the nonces of RUDP. (Not `slab-net` as a
//! whole: tokio has models of its own behind the same cfg.)
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --manifest-path crates/slab-net/loom/Cargo.toml`, by
//! `ci/loom`.
//!
//! Loom does not see the bytes of a packet. A cell beside them stands for each part of a chunk, and is
//! read and written where the program reads and writes the part: loom reports an access that is not
//! ordered after the one before.
#![cfg(loom)]

extern crate self as crossbeam_queue;
extern crate self as ring;
extern crate self as tokio;

mod array_queue;
#[path = "../../src/finish.rs"]
mod finish;
mod notify;

pub use array_queue::ArrayQueue;

mod atomics {
    pub(crate) use loom::sync::atomic::*;
}

/// What queues use of tokio.
pub mod sync {
    pub use crate::notify::Notify;
}

/// As above.
pub mod task {
    pub async fn consume_budget() {}
}

/// What packets use of tokio; no model does.
pub mod time {
    /// Never times out: there is no clock.
    pub async fn timeout<F: Future>(_: core::time::Duration, future: F) -> Result<F::Output, ()> {
        Ok(future.await)
    }
}

/// What nonces use of ring.
pub mod error {
    /// Never returned.
    #[derive(Debug)]
    pub struct Unspecified;
}

/// As above.
pub mod rand {
    use super::error::Unspecified;

    pub trait SecureRandom {
        fn fill(&self, dest: &mut [u8]) -> Result<(), Unspecified>;
    }

    /// Random bytes of which none is zero, as the nonces are before they are drawn.
    pub struct SystemRandom(());

    impl SystemRandom {
        #[expect(clippy::new_without_default, reason = "as ring has it")]
        pub fn new() -> Self {
            Self(())
        }
    }

    impl SecureRandom for SystemRandom {
        fn fill(&self, dest: &mut [u8]) -> Result<(), Unspecified> {
            dest.fill(0x55);
            Ok(())
        }
    }
}

const NONCE_BYTES: usize = 12;

#[allow(dead_code, reason = "what keys use")]
#[path = "../../src/rudp/crypto/nonces.rs"]
mod nonces;
mod process {
    use ring::error::Unspecified;

    /// Which process makes no difference to its threads.
    pub(crate) fn this_process() -> Result<u64, Unspecified> {
        Ok(1)
    }
}
#[allow(dead_code, unused_imports, reason = "what the rest of slab-net uses")]
#[path = "../../src/packet/mod.rs"]
mod packet;
#[allow(dead_code, reason = "what the rest of slab-net uses")]
mod pipeline;
#[allow(dead_code, reason = "as above")]
mod udp;

#[cfg(test)]
mod model;
#[cfg(test)]
mod model_nonces;
