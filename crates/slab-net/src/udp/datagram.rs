//! [`Datagram`]: one packet and what the kernel said about it.

use crate::packet::Packet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

/// One received datagram: its payload, owned as a [`Packet`] or borrowed as `&[u8]`, and its
/// metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagram<P = Packet> {
    /// The payload; empty for a datagram of length zero.
    pub packet: P,
    /// Who sent it.
    pub source: SocketAddr,
    /// The local address it was sent to, where the system tells.
    pub destination: Option<IpAddr>,
    /// Its ECN codepoint; `None` if the sender does not use ECN.
    pub ecn: Option<Ecn>,
    /// The index of the interface it came in by, where the system tells.
    pub interface: Option<u32>,
    /// When the kernel received it, if
    /// [`timestamps`](crate::udp::UdpReceiverBuilder::timestamps) were asked for and the system
    /// tells (Linux).
    pub timestamp: Option<SystemTime>,
    /// Was it longer than the receiver's buffers? The payload is its beginning then. Only with
    /// [`deliver_truncated`](crate::udp::UdpReceiverBuilder::deliver_truncated).
    pub truncated: bool,
}

/// An ECN codepoint (RFC 3168) other than "not ECN-capable".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// ECN-capable transport, ECT(0).
    Ect0,
    /// ECN-capable transport, ECT(1).
    Ect1,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// From the type of service or traffic class, of which these are the two lowest bits.
    pub(super) fn from_bits(bits: u8) -> Option<Self> {
        match bits & 0b11 {
            0b01 => Some(Self::Ect1),
            0b10 => Some(Self::Ect0),
            0b11 => Some(Self::Ce),
            _ => None,
        }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn bits(self) -> i32 {
        match self {
            Self::Ect1 => 0b01,
            Self::Ect0 => 0b10,
            Self::Ce => 0b11,
        }
    }
}

/// The metadata that all datagrams of one kernel buffer share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metadata {
    pub(super) source: SocketAddr,
    pub(super) destination: Option<IpAddr>,
    /// Is the destination an address of this host, rather than of a group or a whole network? Then
    /// an answer can come from it.
    pub(super) is_to_us_alone: bool,
    pub(super) ecn: Option<Ecn>,
    pub(super) interface: Option<u32>,
    pub(super) since_epoch: Option<Duration>,
    pub(super) truncated: bool,
}

impl Metadata {
    pub(super) const fn new(source: SocketAddr) -> Self {
        Self {
            source,
            destination: None,
            is_to_us_alone: false,
            ecn: None,
            interface: None,
            since_epoch: None,
            truncated: false,
        }
    }

    #[inline]
    pub(super) fn timestamp(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(self.since_epoch?)
    }

    #[inline]
    pub(super) fn datagram<P>(&self, packet: P) -> Datagram<P> {
        Datagram {
            packet,
            source: self.source,
            destination: self.destination,
            ecn: self.ecn,
            interface: self.interface,
            timestamp: self.timestamp(),
            truncated: self.truncated,
        }
    }
}
