//! The operating system's part of a socket, behind one interface.
//!
//! | module | what |
//! |---|---|
//! | `linux` | recvmmsg, sendmmsg: with `options` and `uring` the system calls of this crate, and their `unsafe` |
//! | `options` | options of a socket, the kernel's count of drops |
//! | `errno` | which errors mean what |
//! | `uring` | io_uring (feature `io-uring`) |
//! | `decode` | the metadata that Linux returns with a payload |
//! | `cmsg`, `address` | its formats, read and written as plain bytes |
//! | `buffer` | memory that the kernel writes to |
//! | `portable` | the same interface over quinn-udp, for all other systems |
//!
//! Linux has system calls of its own because quinn-udp's recvmmsg reports neither truncation
//! (MSG_TRUNC) nor the kernel's drops (SO_RXQ_OVFL), has no room for a timestamp beside the other
//! metadata, and switches GRO on before the caller can prevent it.

#[cfg(target_os = "linux")]
mod address;
mod buffer;
#[cfg(target_os = "linux")]
mod cmsg;
#[cfg(target_os = "linux")]
mod decode;
#[cfg(target_os = "linux")]
mod errno;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod options;
#[cfg(any(test, not(target_os = "linux")))]
mod portable;
#[cfg(all(target_os = "linux", feature = "io-uring"))]
pub(super) mod uring;

#[cfg(not(target_os = "linux"))]
pub(super) use portable::*;
#[cfg(target_os = "linux")]
pub(super) use {errno::*, linux::*, options::*};

pub(super) use buffer::Buffer;

use super::batch::segments;
use super::datagram::{Ecn, Metadata};
use super::tally::Amount;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The most buffers in one receive call, and the most messages in one send call.
pub(super) const MAX_BATCH: usize = 32;

/// Options of a socket beyond sending and receiving.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Features {
    /// GRO.
    pub(super) coalesce: bool,
    /// The time of arrival of each buffer.
    pub(super) timestamps: bool,
    /// No destination, interface or ECN.
    pub(super) source_only: bool,
    /// Whether the system divides datagrams that are longer than the path takes.
    pub(super) fragment: bool,
}

/// The result of one system call for one buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    /// The number of bytes written to the buffer.
    pub(super) len: usize,
    /// The length of each datagram except the last.
    pub(super) stride: usize,
    /// The kernel's count of all drops of this socket so far (it wraps), if the kernel reported it.
    pub(super) kernel_drops: Option<u32>,
    pub(super) meta: Metadata,
}

impl Received {
    /// The result for a buffer that nothing was written to.
    pub(super) const NOTHING: Self = Self {
        len: 0,
        stride: 0,
        kernel_drops: None,
        meta: Metadata::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)),
    };

    /// The datagrams and bytes received.
    pub(super) fn amount(&self) -> Amount {
        let datagrams = segments(self.len, self.stride);
        Amount::new(datagrams as u64, self.len as u64)
    }
}

/// A message for the kernel: one datagram, or several with GSO.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    /// The parts of the payload.
    pub(super) parts: &'a [IoSlice<'a>],
    pub(super) destination: SocketAddr,
    pub(super) source_ip: Option<IpAddr>,
    /// The interface to send on: one that was chosen, or that of an IPv6 source that is only valid on one; 0 otherwise.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "not asked for"))]
    pub(super) interface: u32,
    pub(super) ecn: Option<Ecn>,
    /// The length of the datagrams that the message is cut into.
    pub(super) segment_size: Option<u16>,
}

#[cfg(target_os = "linux")]
impl Message<'_> {
    /// The payload, if it lies in one piece and there is nothing else to tell the kernel but its destination.
    fn as_plain(&self) -> Option<&[u8]> {
        match self {
            Self {
                parts: [payload],
                source_ip: None,
                interface: 0,
                ecn: None,
                segment_size: None,
                ..
            } => Some(payload),
            _ => None,
        }
    }
}
