//! [`Datagram`]: one packet and its metadata from the kernel.

use super::transmit::Transmit;
use crate::packet::Packet;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, SystemTime};

/// One received datagram: its payload, owned as a [`Packet`] or borrowed as `&[u8]`, and its
/// metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagram<P = Packet> {
    /// The payload; empty for a datagram of length zero.
    pub packet: P,
    /// The sender. A socket of both families, such as one bound to `[::]`, reports an IPv4 peer in mapped form,
    /// `::ffff:192.0.2.1`, and sends to either form: see [`IpAddr::to_canonical`].
    pub source: SocketAddr,
    /// The address that the datagram was sent to, if the system reports it. That may be a multicast or
    /// broadcast address, from which nothing can be sent; [`reply_with`](Self::reply_with) and
    /// [`Outgoing::reply_to`](super::Outgoing::reply_to) answer from it only if it is an address of this host.
    pub destination_ip: Option<IpAddr>,
    /// The ECN codepoint; `None` if the sender does not use ECN, or if the system does not report it, as where
    /// [only the source](crate::udp::UdpReceiverBuilder::source_only) was asked for.
    pub ecn: Option<Ecn>,
    /// The index of the interface that the datagram arrived on, if the system reports it.
    pub interface: Option<u32>,
    /// The time when the kernel received the datagram, if
    /// [`timestamps`](crate::udp::UdpReceiverBuilder::timestamps) were requested and the system reports
    /// them (Linux).
    pub timestamp: Option<SystemTime>,
    /// Whether the datagram was longer than the receiver's buffers. The payload is then its beginning.
    /// Only with [`deliver_truncated`](crate::udp::UdpReceiverBuilder::deliver_truncated).
    pub truncated: bool,
    destination_is_unicast: bool,
}

impl<P> Datagram<P> {
    /// Returns a transmit of `contents` to the sender of this datagram, from the address that it was sent
    /// to unless that is a multicast or broadcast address.
    /// [`PacketBatch::reply`](super::PacketBatch::reply) sends what was received itself back;
    /// [`Outgoing::reply_to`](super::Outgoing::reply_to) is the same for a sink. That an answer is refused may be
    /// the peer's fault, as it says at `reply`.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let mut client = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let mut server = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// # client.sender().send(&Transmit::new(b"ping", server.local_addr())).await?;
    /// let sender = server.sender();
    /// for datagram in &server.recv_batch().await? {
    ///     let answer = if datagram.packet == b"ping" { "pong" } else { "what?" };
    ///     sender.send(&datagram.reply_with(answer.as_bytes())).await?;
    /// }
    /// # assert_eq!(client.recv_batch().await?.contents(), b"pong");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn reply_with<'a>(&self, contents: &'a [u8]) -> Transmit<'a> {
        Transmit::new(contents, self.source).source(self.reply_source())
    }

    /// As [`PacketBatch::reply_source`](super::PacketBatch::reply_source).
    pub(super) fn reply_source(&self) -> Option<SocketAddr> {
        let destination = self.destination_ip.filter(|_| self.destination_is_unicast);
        reply_source(destination, self.interface)
    }
}

/// Returns the local address to answer from what was sent to this address of ours. It has no port, and the
/// interface only if it is link-local: a peer that uses such an address may have another address itself,
/// which would not tell the interface.
fn reply_source(destination: Option<IpAddr>, interface: Option<u32>) -> Option<SocketAddr> {
    Some(match destination? {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, 0, 0, interface.unwrap_or(0)).into()
        }
        ip => (ip, 0).into(),
    })
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
    /// Decodes the two lowest bits of the type of service or traffic class.
    pub(super) fn from_bits(bits: u8) -> Option<Self> {
        match bits & 0b11 {
            0b01 => Some(Self::Ect1),
            0b10 => Some(Self::Ect0),
            0b11 => Some(Self::Ce),
            _ => None,
        }
    }

    pub(super) fn bits(self) -> u8 {
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
    /// Whether the destination is an address of this host, not a multicast or broadcast address. An
    /// answer can then come from it.
    pub(super) destination_is_unicast: bool,
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
            destination_is_unicast: false,
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
            destination_ip: self.destination,
            ecn: self.ecn,
            interface: self.interface,
            timestamp: self.timestamp(),
            truncated: self.truncated,
            destination_is_unicast: self.destination_is_unicast,
        }
    }

    /// Returns the local address to answer from; `None` for what was sent to a multicast or broadcast
    /// address.
    pub(super) fn reply_source(&self) -> Option<SocketAddr> {
        let destination = self.destination.filter(|_| self.destination_is_unicast);
        reply_source(destination, self.interface)
    }
}
