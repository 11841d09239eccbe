//! [`UdpSink`]: a `Sink` of owned packets.

use super::datagram::{Datagram, Ecn};
use super::error::SendError;
use super::io::Wait;
use super::sender::UdpSender;
use super::transmit::Transmit;
use crate::packet::Packet;
use arrayvec::ArrayVec;
use core::fmt;
use futures_sink::Sink;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::task::coop::poll_proceed;

/// The most packets that a sink holds.
const CAPACITY: usize = 64;

/// A datagram to be sent: its owned payload, an optional header, and the destination.
///
/// ```
/// use futures_util::SinkExt;
/// # use slab_net::PacketPool;
/// use slab_net::Packet;
/// use slab_net::udp::{Ecn, Outgoing, UdpReceiver};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// # let mut peer = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
/// let socket = UdpReceiver::bind("0.0.0.0:0".parse()?, &pool)?;
/// let payload = pool.try_copy_from_slice(b"payload")?; // perhaps for many, each with a header of its own
/// let packet = Outgoing::new(payload, peer.local_addr())
///     .header(Packet::from_static(b"header "))
///     .source_ip("127.0.0.1".parse()?)
///     .ecn(Ecn::Ect0);
/// println!("{} bytes to {}", packet.payload().len(), packet.destination());
/// socket.sender().sink().send(packet).await?;
///
/// let received = peer.recv().await?;
/// assert_eq!((received.packet, received.ecn), (Packet::from("header payload"), Some(Ecn::Ect0)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Empty if there is none.
    header: Packet,
    payload: Packet,
    destination: SocketAddr,
    /// Without a port; with the interface of a link-local address, if that is known.
    source: Option<SocketAddr>,
    interface: u32,
    ecn: Option<Ecn>,
}

impl Outgoing {
    /// Makes a datagram without a header.
    #[must_use]
    pub fn new(payload: Packet, destination: SocketAddr) -> Self {
        Self {
            header: Packet::new(),
            payload,
            destination,
            source: None,
            interface: 0,
            ecn: None,
        }
    }

    /// Makes an answer: what [`Datagram::reply_with`] is for a sender, this is for a sink.
    ///
    /// ```
    /// use futures_util::SinkExt;
    /// # use slab_net::PacketPool;
    /// use slab_net::udp::{Outgoing, UdpReceiver};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use slab_net::udp::Transmit;
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let mut client = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let mut server = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// # client.sender().send(&Transmit::new(b"ping", server.local_addr())).await?;
    /// let mut sink = server.sender().sink();
    /// for datagram in &server.recv_batch().await? {
    ///     let answer = pool.try_copy_from_slice(b"pong")?;
    ///     sink.feed(Outgoing::reply_to(&datagram, answer)).await?;
    /// }
    /// sink.flush().await?;
    /// # assert_eq!(client.recv_batch().await?.contents(), b"pong");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn reply_to<P>(datagram: &Datagram<P>, payload: Packet) -> Self {
        Self {
            source: datagram.reply_source(),
            ..Self::new(payload, datagram.source)
        }
    }

    /// Puts a header in front of the payload; the kernel gathers the two.
    #[must_use]
    pub fn header(mut self, header: Packet) -> Self {
        self.header = header;
        self
    }

    /// As [`Transmit::source_ip`].
    #[must_use]
    pub fn source_ip(mut self, ip: IpAddr) -> Self {
        self.source = Some(SocketAddr::new(ip, 0));
        self
    }

    /// As [`Transmit::interface`].
    #[must_use]
    pub fn interface(mut self, index: u32) -> Self {
        self.interface = index;
        self
    }

    /// As [`Transmit::ecn`].
    #[must_use]
    pub fn ecn(mut self, ecn: Ecn) -> Self {
        self.ecn = Some(ecn);
        self
    }

    /// Where it goes.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// What it carries, without the [header](Self::header).
    #[must_use]
    pub fn payload(&self) -> &Packet {
        &self.payload
    }

    fn transmit<'a>(&self, parts: &'a [IoSlice<'a>; 2]) -> Transmit<'a> {
        let parts = match self.header.is_empty() {
            true => &parts[1..],
            false => &parts[..],
        };
        let mut transmit = Transmit::gather(parts, self.destination)
            .source(self.source)
            .interface(self.interface);
        if let Some(ecn) = self.ecn {
            transmit = transmit.ecn(ecn);
        }
        transmit
    }
}

/// A [`Sink`] that collects packets and sends many per system call, when it is flushed or holds 64.
///
/// Made by [`UdpSender::sink`]. Successive packets of the same length and destination leave with GSO. A
/// packet that the system refuses is dropped and reported once: by the flush that met the error and
/// ends there, or, if a full sink met it, by the next `feed` or `send`, whose own packet is
/// nevertheless accepted. Sending then continues with the packet after it.
///
/// So `StreamExt::forward` into a sink, which ends with the first error, is not for answers: a peer can cause
/// one, for example by a forged source port of 0, to which nothing can be sent.
///
/// Sending the queue counts once against tokio's cooperative budget, however many system calls it takes.
/// Dropping the sink drops packets that were not flushed.
///
/// ```
/// use futures_util::SinkExt;
/// use slab_net::PacketPool;
/// use slab_net::udp::{Outgoing, UdpReceiver};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
/// let mut sink = socket.sender().sink();
/// for text in ["one", "two", "six"] {
///     let payload = pool.try_copy_from_slice(text.as_bytes())?;
///     sink.feed(Outgoing::new(payload, socket.local_addr())).await?;
/// }
/// assert_eq!(sink.queued(), 3);
/// sink.flush().await?;
/// let mut got = Vec::new();
/// while got.len() < 9 {
///     got.extend_from_slice(socket.recv_batch().await?.contents());
/// }
/// assert_eq!(got, b"onetwosix");
/// # Ok(())
/// # }
/// ```
pub struct UdpSink {
    sender: UdpSender,
    queued: VecDeque<Outgoing>,
    /// Set while the send buffer is full.
    waiting: Option<Wait>,
    /// The error of a packet that is gone, not yet reported.
    failed: Option<SendError>,
}

impl UdpSink {
    pub(super) fn new(sender: UdpSender) -> Self {
        Self {
            sender,
            queued: VecDeque::new(),
            waiting: None,
            failed: None,
        }
    }

    /// The number of packets that wait to be flushed.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Sends queued packets until the send buffer is full or a packet is refused.
    fn send_queued(&mut self) -> Result<(), SendError> {
        // In two steps, because a transmit borrows its parts.
        let mut parts: ArrayVec<[IoSlice<'_>; 2], CAPACITY> = ArrayVec::new();
        parts.extend(
            self.queued
                .iter()
                .map(|item| [IoSlice::new(&item.header), IoSlice::new(&item.payload)]),
        );
        let mut transmits: ArrayVec<Transmit<'_>, CAPACITY> = ArrayVec::new();
        transmits.extend(
            self.queued
                .iter()
                .zip(&parts)
                .map(|(item, parts)| item.transmit(parts)),
        );
        let result = self.sender.try_send_many(&transmits);
        drop(transmits);
        drop(parts);
        // Each item is one datagram.
        let consumed = match &result {
            Ok(sent) => *sent,
            Err(error) => error.sent() + 1,
        };
        self.queued.drain(..consumed.min(self.queued.len()));
        result.map(drop)
    }

    fn poll_send_queued(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        while !self.queued.is_empty() {
            if let Some(waiting) = &mut self.waiting {
                let room = ready!(waiting.as_mut().poll(cx));
                self.waiting = None;
                room.map_err(SendError::from_runtime)?;
            }
            // A sink that never has to wait must let other tasks run too.
            let coop = ready!(poll_proceed(cx));
            coop.made_progress();
            self.send_queued()?;
            if !self.queued.is_empty() {
                self.waiting = Some(Box::pin(self.sender.writable()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Sink<Outgoing> for UdpSink {
    type Error = SendError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        if self.queued.len() < CAPACITY {
            return Poll::Ready(Ok(()));
        }
        match ready!(self.poll_send_queued(cx)) {
            // The refused packet has made room. An error reported here would cost the caller the packet
            // that it is about to send.
            Err(error) if self.queued.len() < CAPACITY => {
                self.failed = Some(error);
                Poll::Ready(Ok(()))
            }
            result => Poll::Ready(result),
        }
    }

    /// # Errors
    /// The system's error for an earlier packet; `item` is queued nevertheless.
    ///
    /// # Panics
    /// If the sink is full because [`poll_ready`](Sink::poll_ready) was not awaited.
    fn start_send(mut self: Pin<&mut Self>, item: Outgoing) -> Result<(), SendError> {
        assert!(
            self.queued.len() < CAPACITY,
            "start_send called before poll_ready returned Ready"
        );
        self.queued.push_back(item);
        self.failed.take().map_or(Ok(()), Err)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        self.poll_send_queued(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.poll_flush(cx)
    }
}

impl fmt::Debug for UdpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSink")
            .field("sender", &self.sender)
            .field("queued", &self.queued.len())
            .finish_non_exhaustive()
    }
}
