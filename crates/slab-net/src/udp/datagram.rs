//! [`Datagram`]: one packet and what the kernel said about it.

use crate::packet::Packet;
use quinn_udp::EcnCodepoint;
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
    /// When the kernel received it, where the system tells: for now on Linux only, over IPv4 and
    /// without coalescing (quinn-udp has no room for it beside the rest).
    pub timestamp: Option<SystemTime>,
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

impl From<EcnCodepoint> for Ecn {
    fn from(codepoint: EcnCodepoint) -> Self {
        match codepoint {
            EcnCodepoint::Ect0 => Self::Ect0,
            EcnCodepoint::Ect1 => Self::Ect1,
            EcnCodepoint::Ce => Self::Ce,
        }
    }
}

impl From<Ecn> for EcnCodepoint {
    fn from(ecn: Ecn) -> Self {
        match ecn {
            Ecn::Ect0 => Self::Ect0,
            Ecn::Ect1 => Self::Ect1,
            Ecn::Ce => Self::Ce,
        }
    }
}

/// The metadata that all datagrams of one kernel buffer share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metadata {
    pub(super) source: SocketAddr,
    pub(super) destination: Option<IpAddr>,
    pub(super) ecn: Option<Ecn>,
    pub(super) interface: Option<u32>,
    pub(super) since_epoch: Option<Duration>,
}

impl Metadata {
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
        }
    }
}

impl From<&quinn_udp::RecvMeta> for Metadata {
    fn from(meta: &quinn_udp::RecvMeta) -> Self {
        Self {
            source: meta.addr,
            destination: meta.dst_ip,
            ecn: meta.ecn.map(Ecn::from),
            interface: meta.interface_index,
            since_epoch: meta.timestamp,
        }
    }
}
