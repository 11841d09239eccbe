//! [`UdpReceiver`]: from the socket into pool memory.

use super::batch::PacketBatch;
use super::builder::{Coalescing, UdpReceiverBuilder};
use super::datagram::Datagram;
use super::error::BindError;
use super::reader::Reader;
use super::sender::UdpSender;
use super::socket::Socket;
use super::stats::SocketMonitor;
use super::sys;
#[cfg(all(target_os = "linux", feature = "io-uring"))]
use super::uring::Uring;
use crate::packet::PacketPool;
use futures_core::Stream;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::Interest;

/// Receives datagrams into the memory of a [`PacketPool`].
///
/// * **Cancel-safe**: buffers and batches live in the receiver. A future that is dropped loses
///   nothing.
/// * **Bounded**: it holds at most 8 super-buffers, or 32 buffers of single datagrams, as many smaller
///   copies, and nothing while it waits for the socket; [`held_bytes`](Self::held_bytes) says how much
///   now.
/// * **Adaptive**: two buffers a call while little arrives, twice as many after each call that
///   filled all of them.
/// * **When the pool is exhausted** it goes on reading, to nowhere, counts what it read as
///   `no_memory` and drops it: what the kernel would drop in its stead, nobody would see. Once
///   memory is back, so is the receiver.
///
/// An error of the system does not end it either: call again. As a [`Stream`] it therefore never
/// ends.
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::udp::{Transmit, UdpReceiver};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let mut server = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
/// let client = UdpReceiver::builder(&pool).connect(server.local_addr()).bind("127.0.0.1:0".parse()?)?;
///
/// client.sender().send(&Transmit::new(b"hello", server.local_addr())).await?;
/// let batch = server.recv_batch().await?;
/// assert_eq!(batch.source(), client.local_addr());
/// assert_eq!(batch.contents(), b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct UdpReceiver {
    socket: Arc<Socket>,
    reader: Reader,
    coalescing: Coalescing,
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    uring: Option<Box<Uring>>,
}

impl UdpReceiver {
    pub(super) fn new(socket: Arc<Socket>, reader: Reader, coalescing: Coalescing) -> Self {
        Self {
            socket,
            reader,
            coalescing,
            #[cfg(all(target_os = "linux", feature = "io-uring"))]
            uring: None,
        }
    }

    /// Receives by io_uring from now on, if the system lets it.
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(super) fn with_uring(mut self) -> Self {
        self.uring = Uring::start(&self.socket, &mut self.reader);
        self
    }

    /// Only Linux has io_uring.
    #[cfg(all(not(target_os = "linux"), feature = "io-uring"))]
    pub(super) fn with_uring(self) -> Self {
        static WARNING: std::sync::Once = std::sync::Once::new();
        WARNING.call_once(|| tracing::warn!("no io_uring, receiving by readiness"));
        self
    }

    /// Goes back to readiness; what the ring has read is ready then.
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    fn stop_uring(&mut self) -> io::Result<()> {
        match self.uring.take() {
            Some(uring) => uring.stop(&self.socket, &mut self.reader),
            None => Ok(()),
        }
    }

    /// Does it receive by io_uring? `false` if that was not
    /// [asked for](UdpReceiverBuilder::io_uring), or the system has none, and after
    /// [`stop`](Self::stop).
    ///
    /// Feature `io-uring`.
    #[cfg(feature = "io-uring")]
    #[must_use]
    pub fn uses_io_uring(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.uring.is_some();
        #[cfg(not(target_os = "linux"))]
        return false;
    }

    /// A receiver with the defaults of [`builder`](Self::builder).
    ///
    /// # Errors
    /// As [`UdpReceiverBuilder::bind`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub fn bind(address: SocketAddr, pool: &PacketPool) -> Result<Self, BindError> {
        Self::builder(pool).bind(address)
    }

    /// Starts the configuration of a receiver that fills this pool's memory.
    pub fn builder(pool: &PacketPool) -> UdpReceiverBuilder {
        UdpReceiverBuilder::new(pool)
    }

    /// The next batch, once there is one.
    ///
    /// Cancel-safe. Each call to the kernel counts against tokio's cooperative budget.
    ///
    /// # Errors
    /// What the system says; datagrams that are in the receiver stay there.
    pub async fn recv_batch(&mut self) -> io::Result<PacketBatch> {
        poll_fn(|cx| self.poll_recv_batch(cx)).await
    }

    /// [`recv_batch`](Self::recv_batch) for a future of one's own. Wakes the task of the last call.
    ///
    /// # Errors
    /// As [`recv_batch`](Self::recv_batch).
    pub fn poll_recv_batch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<PacketBatch>> {
        loop {
            if let Some(batch) = self.reader.ready.pop_front() {
                return Poll::Ready(Ok(batch));
            }
            ready!(self.poll_fill(cx))?;
        }
    }

    /// The next datagram, once there is one; those that came with it stay here for the next call,
    /// whatever that asks for.
    ///
    /// Cancel-safe. Each call to the kernel counts against tokio's cooperative budget.
    ///
    /// Costs an addition to a reference count for each datagram, where
    /// [`recv_batch`](Self::recv_batch) and [`into_packets`](PacketBatch::into_packets) cost one for
    /// all that came together.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let two = Transmit::new(b"onetwo", socket.local_addr()).segment_size(3);
    /// socket.sender().send(&two).await?;
    /// let one = socket.recv().await?;
    /// assert_eq!((&one.packet[..], one.source), (&b"one"[..], socket.local_addr()));
    /// assert_eq!(&socket.recv().await?.packet[..], b"two");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`recv_batch`](Self::recv_batch).
    pub async fn recv(&mut self) -> io::Result<Datagram> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// [`recv`](Self::recv) for a future of one's own. Wakes the task of the last call.
    ///
    /// # Errors
    /// As [`recv_batch`](Self::recv_batch).
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Datagram>> {
        loop {
            if let Some(datagram) = self.reader.pop_datagram() {
                return Poll::Ready(Ok(datagram));
            }
            ready!(self.poll_fill(cx))?;
        }
    }

    /// Appends all batches at hand, at least one once there is one, and returns how many. Saves
    /// waking a consumer for each.
    ///
    /// Cancel-safe. Each call to the kernel counts against tokio's cooperative budget. Appends at
    /// most 32 batches.
    ///
    /// # Errors
    /// What the system says; `out` is as before then.
    pub async fn recv_batches(&mut self, out: &mut Vec<PacketBatch>) -> io::Result<usize> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        let count = self.reader.ready.len();
        out.extend(self.drain_ready());
        Ok(count)
    }

    /// Waits until there is a batch to [drain](Self::drain_ready).
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.reader.ready.is_empty() {
            true => self.poll_fill(cx),
            false => Poll::Ready(Ok(())),
        }
    }

    /// While the pool is exhausted, reads to two buffers of its own. What is in them is to be let
    /// go of before the next read, or they become more, of 1 MiB together at most.
    pub(crate) fn keep_spare(&mut self) {
        self.reader.spare().wanted = true;
    }

    /// Are the batches of the last read in such buffers?
    pub(crate) fn used_spare(&mut self) -> bool {
        self.reader.spare().in_use
    }

    /// All batches at hand.
    pub(crate) fn drain_ready(&mut self) -> impl Iterator<Item = PacketBatch> + Send {
        self.reader.ready.drain(..)
    }

    /// The next batch if there is one right now. While the pool is exhausted it reads, and drops, all
    /// that is there, as long as more comes.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_recv_batch(&mut self) -> io::Result<Option<PacketBatch>> {
        let mut is_drained = false;
        loop {
            if let Some(batch) = self.reader.ready.pop_front() {
                return Ok(Some(batch));
            }
            if is_drained {
                return Ok(None);
            }
            match self.try_fill() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => is_drained = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes what is there right now to `ready`, or drops it; `WouldBlock` if there is no more.
    fn try_fill(&mut self) -> io::Result<()> {
        let Self { socket, reader, .. } = self;
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        if let Some(uring) = &mut self.uring {
            return uring.try_fill(socket, reader);
        }
        // Tokio may not have heard of a datagram that is there already, and would not ask.
        let mut has_asked = false;
        let mut read = || {
            has_asked = true;
            reader.read(socket)
        };
        let outcome = socket.io.try_io(Interest::READABLE, &mut read);
        if has_asked {
            outcome
        } else {
            reader.read(socket)
        }
    }

    /// Waits for the socket until there is a batch in `ready`, which is empty before.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, reader, .. } = self;
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        if let Some(uring) = &mut self.uring {
            return uring.poll_fill(socket, reader, cx);
        }
        loop {
            // Takes from tokio's budget at each turn, so that reads of which nothing remains (all
            // dropped) cannot keep a thread for themselves.
            ready!(socket.io.poll_recv_ready(cx))?;
            let read = socket.io.try_io(Interest::READABLE, || reader.read(socket));
            if !reader.ready.is_empty() {
                return Poll::Ready(Ok(()));
            }
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(()) => {
                    // Let those run who can give memory back.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Stops receiving: makes the kernel drop what arrives from now on, and count it in
    /// [`kernel_dropped_datagrams`](super::SocketStats::kernel_dropped_datagrams). What is queued
    /// can still be received; with [`try_recv_batch`](Self::try_recv_batch), for example, until it
    /// returns `None`. Sending goes on. There is no way back.
    ///
    /// So a server that is to end answers what it has got, and loses nothing unseen; see
    /// [`forward`](crate::pipeline::forward), which does this.
    ///
    /// # Errors
    /// The system cannot do that: only Linux can. Receiving then goes on as before.
    pub fn stop(&mut self) -> io::Result<()> {
        sys::refuse_arrivals(&self.socket.io)?;
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        self.stop_uring()?;
        Ok(())
    }

    /// The socket, for another kind of receiver.
    pub(super) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// What the kernel gets of each buffer.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.reader.buffer_bytes()
    }

    /// Bytes of pool memory that the receiver itself holds at this moment: buffers for the next call,
    /// those lent to io_uring, and what it has read and not been asked for.
    ///
    /// Never more than its buffers are, 8 super-buffers or 32 of single datagrams, at the size of
    /// their class, and beside those as many smaller chunks, to which was copied what fills less than
    /// half of a buffer; by readiness 0 while it waits. What was handed out is not in it.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::UdpReceiver;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// assert!(socket.try_recv_batch()?.is_none());
    /// assert_eq!(socket.held_bytes(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        let lent = self.uring.as_ref().map_or(0, |uring| uring.lent_bytes());
        #[cfg(not(all(target_os = "linux", feature = "io-uring")))]
        let lent = 0;
        self.reader.held_bytes() + lent
    }

    /// The address the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.address
    }

    /// How the receiver was set up.
    #[must_use]
    pub fn coalescing(&self) -> Coalescing {
        self.coalescing
    }

    /// Reads the socket's counters while the receiver runs, and after it is gone.
    #[must_use]
    pub fn monitor(&self) -> SocketMonitor {
        SocketMonitor::new(Arc::clone(&self.socket.counters))
    }

    /// A sender by the same socket: its datagrams come from the address that this one receives at.
    #[must_use]
    pub fn sender(&self) -> UdpSender {
        UdpSender::new(Arc::clone(&self.socket))
    }
}

impl Drop for UdpReceiver {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        if let Err(error) = self.stop_uring() {
            tracing::warn!(%error, "the ring did not end, its buffers are lost");
        }
        self.reader.abandon(&self.socket.counters.receive);
    }
}

/// Batches for ever: an error is an item as well, after which it goes on.
impl Stream for UdpReceiver {
    type Item = io::Result<PacketBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv_batch(cx).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}
