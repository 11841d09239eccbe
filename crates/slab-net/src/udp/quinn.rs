//! [`QuinnSocket`]: our socket under quinn 0.11.

use super::datagram::Ecn;
use super::io::Wait;
use super::receiver::UdpReceiver;
use super::sender::UdpSender;
use super::socket::Socket;
use super::stats::SocketMonitor;
use super::sys::{self, Buffer, MAX_BATCH, Received};
use super::tally::Amount;
use super::transmit::Transmit;
use arrayvec::ArrayVec;
use core::fmt;
use quinn::udp::{EcnCodepoint, RecvMeta};
use std::error::Error as _;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

/// The most that the kernel coalesces, in datagrams of 1200 bytes. quinn multiplies this by its largest
/// datagram, which is never smaller, so each of its buffers holds at least 64 KiB.
///
/// The same for a socket that does not coalesce: an endpoint makes its buffers once, and may rebind to one that
/// does. What is not used of them is never touched.
const MAX_COALESCED_DATAGRAMS: usize = (64_usize << 10).div_ceil(1200);

/// A socket for [`quinn::Endpoint::new_with_abstract_socket`], made by [`UdpReceiver::into_quinn`].
///
/// **What it provides**: the same [counters](SocketMonitor) as every other socket of this crate, with
/// the kernel's drops, and so the same metrics. A datagram that the system does not accept for sending is
/// counted as [lost](super::SocketStats::send_lost_datagrams), where quinn's own socket is silent. A
/// truncated datagram is dropped and counted, never taken for a whole one. Segmentation offload that
/// the system refuses is given up for good, with one log event. The socket options of
/// [`UdpReceiverBuilder`](super::UdpReceiverBuilder) apply.
///
/// **Shards** have an endpoint each, which knows its own connections alone, and the kernel chooses a shard by the
/// peer's address. So a connection whose peer changes it (by migration, or because a NAT forgot it) can be lost: with
/// two shards half of them are. Serve with one endpoint where that is not acceptable.
///
/// **What it does not provide: pool memory on the receive path.** quinn owns its receive buffers (32 of
/// 64 KiB or more for each endpoint), and copies each datagram to a `BytesMut` before looking at it:
/// [`quinn_proto`]'s `Endpoint::handle` takes exactly that type, which no foreign memory can back. No
/// pool's cap bounds quinn's buffers, and no copy is saved. A server that drives `quinn_proto` itself
/// can avoid the copy: see [`BytesMutReceiver`](super::BytesMutReceiver).
///
/// quinn makes these buffers once, as long as the endpoint's first socket requires. Where that was this socket or
/// quinn's own, an endpoint can be rebound to any of either; what a buffer of a third kind of socket is too short
/// for is dropped and counted as truncated.
///
/// [`quinn_proto`]: https://docs.rs/quinn-proto/0.11
///
/// `TokioRuntime` needs quinn's feature `runtime-tokio`, which this crate does not enable.
///
/// ```no_run
/// use quinn::{Endpoint, EndpointConfig, TokioRuntime};
/// use slab_net::PacketPool;
/// use slab_net::udp::UdpReceiver;
/// use std::sync::Arc;
///
/// # async fn serve(config: quinn::ServerConfig) -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?.into_quinn();
/// let monitor = socket.monitor();
/// let endpoint = Endpoint::new_with_abstract_socket(
///     EndpointConfig::default(),
///     Some(config),
///     Arc::new(socket),
///     Arc::new(TokioRuntime),
/// )?;
/// # drop(endpoint);
/// println!("{} datagrams", monitor.stats().received_datagrams);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct QuinnSocket {
    socket: Arc<Socket>,
    sender: UdpSender,
}

impl UdpReceiver {
    /// Turns the receiver into a socket for quinn 0.11. Batches that it has read but not yet returned
    /// are dropped and counted as `closed`.
    ///
    /// Feature `quinn`.
    #[must_use]
    pub fn into_quinn(self) -> QuinnSocket {
        QuinnSocket {
            socket: Arc::clone(&self.socket),
            sender: self.sender(),
        }
    }
}

impl QuinnSocket {
    /// Returns a handle that reads the socket's counters, even after quinn has dropped the socket.
    #[must_use]
    pub fn monitor(&self) -> SocketMonitor {
        self.sender.monitor()
    }

    /// Reports received datagrams to quinn, and counts them.
    fn fill_metas(&self, received: &[Received], metas: &mut [RecvMeta]) {
        let counters = &self.socket.counters.receive;
        let mut all = Amount::default();
        for (received, meta) in received.iter().zip(metas) {
            let amount = received.amount();
            all += amount;
            *meta = recv_meta(received);
            if received.meta.truncated {
                counters.truncated_dropped.add(amount);
                // quinn does not take an empty buffer for a datagram.
                meta.len = 0;
            }
            if let Some(counted) = received.kernel_drops {
                self.socket.counters.kernel.observe(counted);
            }
        }
        // Atomically: nothing prevents calls of `poll_recv` beside quinn's own task.
        counters.received.add(all);
        counters.calls.fetch_add(1, Ordering::Relaxed);
    }
}

fn recv_meta(received: &Received) -> RecvMeta {
    let meta = &received.meta;
    RecvMeta {
        addr: meta.source,
        len: received.len,
        stride: received.stride,
        ecn: meta.ecn.map(Ecn::bits).and_then(EcnCodepoint::from_bits),
        dst_ip: meta.destination,
    }
}

impl quinn::AsyncUdpSocket for QuinnSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn quinn::UdpPoller>> {
        Box::pin(Writable {
            sender: self.sender.clone(),
            waiting: None,
        })
    }

    /// Any error other than `WouldBlock` counts as the loss of datagrams, not as an error: QUIC
    /// retransmits their contents, whereas an error would end the connection.
    fn try_send(&self, transmit: &quinn::udp::Transmit<'_>) -> io::Result<()> {
        let mut ours = Transmit::new(transmit.contents, transmit.destination);
        if let Some(bytes) = transmit.segment_size {
            ours = ours.segment_size(bytes);
        }
        if let Some(ip) = transmit.src_ip {
            ours = ours.source_ip(ip);
        }
        if let Some(ecn) = transmit.ecn.and_then(|ecn| Ecn::from_bits(ecn as u8)) {
            ours = ours.ecn(ecn);
        }
        let (sent, error) = match self.sender.try_send_many(slice::from_ref(&ours)) {
            Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
            // The rest of the transmit is lost, like any datagram.
            Ok(sent) => (sent, None),
            Err(error) => (error.sent(), Some(error)),
        };
        let lost = (ours.datagrams() - sent) as u64;
        if lost > 0 {
            let counters = &self.socket.counters.send;
            counters.lost.fetch_add(lost, Ordering::Relaxed);
        }
        // Last: a subscriber is foreign code, and may panic.
        if let Some(error) = error {
            let cause = error.source().map(tracing::field::display);
            tracing::debug!(%error, cause, "a datagram from quinn was not sent");
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let io = &self.socket.io;
        let mut received = [Received::NOTHING; MAX_BATCH];
        let most = metas.len().min(MAX_BATCH);
        let buffers = bufs.iter_mut().take(MAX_BATCH).map(|buf| Buffer::new(buf));
        let mut buffers: ArrayVec<Buffer<'_>, MAX_BATCH> = buffers.collect();
        loop {
            let read = io.poll_read(cx, || {
                let received = &mut received[..most];
                self.socket.backend.receive(io, &mut buffers, received)
            });
            match ready!(read) {
                Ok(read) => {
                    self.fill_metas(&received[..read], metas);
                    return Poll::Ready(Ok(read));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // No reason to end; and any host on the path can cause it.
                Err(error) if self.socket.is_caused_by_others(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.socket.address)
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.backend.max_segments()
    }

    fn max_receive_segments(&self) -> usize {
        MAX_COALESCED_DATAGRAMS
    }

    fn may_fragment(&self) -> bool {
        sys::may_fragment(&self.socket.io)
    }
}

/// One of quinn's tasks that waits for room in the send buffer.
struct Writable {
    sender: UdpSender,
    waiting: Option<Wait>,
}

impl quinn::UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { sender, waiting } = &mut *self;
        let wait = waiting.get_or_insert_with(|| Box::pin(sender.writable()));
        let room = ready!(wait.as_mut().poll(cx));
        *waiting = None;
        Poll::Ready(room)
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").finish_non_exhaustive()
    }
}
