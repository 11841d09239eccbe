//! Pooled packet memory for UDP servers on tokio.
//!
//! This crate only re-exports the three that do the work:
//! [`slab_core`] (memory), [`slab_net`] (packets, UDP) and [`slab_metrics`] (statistics).
//!
//! # Features
//!
//! None is on by default. Each turns on the feature of the same name in the crates that have it, whose
//! documentation says more.
//!
//! | feature | what | of |
//! |---|---|---|
//! | `aes-gcm` | encryption of RUDP | `slab-net` |
//! | `allocator-api2` | `Vec`, `Box` and maps in a pool | `slab-core` |
//! | `fec` | error correction of RUDP, and its statistics | `slab-net`, `slab-metrics` |
//! | `io-uring` | receiving by io_uring | `slab-net` |
//! | `leak-tracking` | which chunks and packets are in use, and who asked for them | `slab-core`, `slab-net` |
//! | `quinn` | a socket for quinn 0.11 | `slab-net` |
//! | `serde` | packets as bytes | `slab-net` |

pub use slab_core;
pub use slab_metrics;
pub use slab_net;

/// The README's code, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
