//! What a pool does only if it is asked to: catch misuse, find leaks, and say which size classes would fit.

pub(crate) mod advisor;
pub(crate) mod hardening;
pub(crate) mod recorder;
#[cfg(feature = "leak-tracking")]
pub(crate) mod track;
pub(crate) mod unit_set;
