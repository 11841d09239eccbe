//! Pooled packet memory for UDP servers on tokio.
//!
//! This crate only re-exports the three that do the work:
//! [`slab_core`] (memory), [`slab_net`] (packets, UDP) and [`slab_metrics`] (statistics).

pub use slab_core;
pub use slab_metrics;
pub use slab_net;

/// The README's code, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
