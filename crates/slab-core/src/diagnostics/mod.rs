//! What a pool does only if it is asked to: catch misuse, find leaks, and say which size classes would fit.

#[cfg(feature = "alloc")]
pub(crate) mod advisor;
pub(crate) mod hardening;
#[cfg(feature = "alloc")]
pub(crate) mod recorder;
#[cfg(feature = "leak-tracking")]
pub(crate) mod track;
pub(crate) mod unit_set;
