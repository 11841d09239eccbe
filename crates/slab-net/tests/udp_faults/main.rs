//! Random programs over a kernel that misbehaves: this program's own `sendmmsg`, `sendto`, `recvmmsg` and `recvfrom`,
//! which the linker takes instead of libc's. Errors come before, between and after datagrams; segmentation
//! offload is refused for a reason or without; datagrams are too long; calls are interrupted; the memory for
//! what is received runs out.
//!
//! | file | what |
//! |---|---|
//! | `kernel` | the four system calls |
//! | `sending` | each datagram is sent once, in order, or reported |
//! | `receiving` | each datagram is delivered once, in order, or counted under the right reason |
//! | `quinn_receiving` | the same for what quinn gets (feature `quinn`) |
//!
//! A failure names its seed: see `programs`.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod kernel;
#[path = "../programs/mod.rs"]
mod programs;
#[cfg(feature = "quinn")]
mod quinn_receiving;
mod receiving;
mod sending;

use std::time::Duration;

/// Limits only how long a broken test takes to fail.
const HANG: Duration = Duration::from_secs(20);
