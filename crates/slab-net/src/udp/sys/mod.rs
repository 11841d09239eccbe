//! What the operating system does for a socket, behind one interface.
//!
//! | module | what |
//! |---|---|
//! | `linux` | recvmmsg, sendmmsg, socket options: all system calls of this crate, and its `unsafe` for them |
//! | `uring` | io_uring (feature `io-uring`) |
//! | `decode` | what Linux says beside a payload |
//! | `cmsg`, `address` | the forms it says that in, read and written as plain bytes |
//! | `buffer` | memory that the kernel writes to |
//! | `portable` | the same over quinn-udp, for every other system |
//!
//! Linux has calls of its own because quinn-udp's recvmmsg tells neither a cut datagram (MSG_TRUNC)
//! nor what the kernel dropped (SO_RXQ_OVFL), has no room for a timestamp beside the rest, and
//! switches GRO on before it can be asked not to.

#[cfg(target_os = "linux")]
mod address;
mod buffer;
#[cfg(target_os = "linux")]
mod cmsg;
#[cfg(target_os = "linux")]
mod decode;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(test, not(target_os = "linux")))]
mod portable;
#[cfg(all(target_os = "linux", feature = "io-uring"))]
pub(super) mod uring;

#[cfg(target_os = "linux")]
pub(super) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(super) use portable::*;

pub(super) use buffer::Buffer;

use super::batch::segments;
use super::datagram::{Ecn, Metadata};
use super::tally::Amount;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The most buffers in one call to receive, and messages in one call to send.
pub(super) const MAX_BATCH: usize = 32;

/// What a socket is to do beyond sending and receiving.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Features {
    /// GRO.
    pub(super) coalesce: bool,
    /// The time of arrival with each buffer.
    pub(super) timestamps: bool,
    /// Neither destination, interface nor ECN.
    pub(super) source_only: bool,
}

/// What one call said about one buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    /// Bytes written to the buffer.
    pub(super) len: usize,
    /// The length of each datagram but the last.
    pub(super) stride: usize,
    /// All that the kernel has dropped of this socket's so far (it wraps), as far as it says so.
    pub(super) kernel_drops: Option<u32>,
    pub(super) meta: Metadata,
}

impl Received {
    /// Of a buffer that nothing was written to.
    pub(super) const NOTHING: Self = Self {
        len: 0,
        stride: 0,
        kernel_drops: None,
        meta: Metadata::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)),
    };

    /// What it brought.
    pub(super) fn amount(&self) -> Amount {
        let datagrams = segments(self.len, self.stride);
        Amount::new(datagrams as u64, self.len as u64)
    }
}

/// One message to the kernel: a datagram, or several with GSO.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    /// The payload, in pieces.
    pub(super) parts: &'a [IoSlice<'a>],
    pub(super) destination: SocketAddr,
    pub(super) source_ip: Option<IpAddr>,
    /// That of a source by IPv6 which is an interface's only.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "not asked for"))]
    pub(super) source_interface: Option<u32>,
    pub(super) ecn: Option<Ecn>,
    /// To be cut to datagrams of this length.
    pub(super) segment_size: Option<u16>,
}
