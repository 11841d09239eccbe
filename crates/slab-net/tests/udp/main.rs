//! Datagrams over real sockets.

mod batch;
mod bytes_mut;
mod common;
mod exhaustion;
#[cfg(target_os = "linux")]
mod full;
#[cfg(not(miri))]
mod metadata;
#[cfg(unix)]
mod options;
#[cfg(all(feature = "quinn", not(miri)))]
mod quinn;
mod receive;
mod recv;
mod send;
#[cfg(target_os = "linux")]
mod system;
