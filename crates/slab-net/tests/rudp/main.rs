//! Reliable UDP: sessions by themselves, in virtual time, and endpoints on loopback.

mod address;
mod attacks;
mod close;
mod common;
mod counts;
#[cfg(feature = "aes-gcm")]
mod crypto;
mod datagrams;
mod endpoint;
#[cfg(feature = "fec")]
mod fec;
mod finish;
mod half_close;
#[cfg(not(any(miri, slab_tsan)))]
mod interop;
mod limits;
mod memory;
#[cfg(target_os = "linux")]
mod narrow;
mod needless;
mod options;
#[cfg(all(feature = "fec", feature = "aes-gcm"))]
mod protected;
#[cfg(all(feature = "fec", feature = "aes-gcm"))]
mod protected_limits;
mod recovery;
mod reordering;
mod restart;
mod room;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod send_errors;
mod short;
mod stall;
mod stream_memory;
mod tasks;
#[cfg(target_os = "linux")]
#[path = "../udp/common/mod.rs"]
mod udp_common;
mod unproved;
mod waits;
mod window;
