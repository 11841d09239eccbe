//! [`UdpReceiver`]: receives from the socket into pool memory.

use super::batch::PacketBatch;
use super::builder::UdpReceiverBuilder;
use super::datagram::Datagram;
use super::error::BindError;
use super::error_watch::ErrorWatch;
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

/// The most reads of [`UdpReceiver::try_recv_batch`] that yield no batch.
const MAX_FRUITLESS_READS: usize = 8;

/// Receives datagrams into the memory of a [`PacketPool`].
///
/// - **Cancel-safe**: buffers and batches live in the receiver. Dropping a future loses nothing.
/// - **Bounded**: it holds at most 8 super-buffers, or 32 buffers of single datagrams, and as many
///   smaller copies; nothing while it waits for the socket, unless it receives by io_uring.
///   [`held_bytes`](Self::held_bytes) returns what it holds now. It keeps that while its task does something else: in a
///   pool of hardly more, of 1 MiB, a task that receives and then waits for memory ([`PacketPool::alloc`]) can wait for
///   itself, and tasks with a receiver each for each other (64 of them in 1.25 MiB). Use
///   [`try_alloc`](PacketPool::try_alloc) there, or a pool of its own for what is sent.
/// - **Adaptive**: a system call gets two buffers while little arrives, and twice as many after each
///   call that filled all of them.
/// - **If the pool is exhausted** it goes on reading, discards what it reads and counts it as
///   `no_memory`; drops left to the kernel would be less visible. It recovers as soon as there is
///   memory.
///
/// System errors do not end it either: call again. As a [`Stream`] it therefore never ends.
///
/// Do not drop it, nor a sender on its socket, in the child of a `fork`: tokio then deregisters the
/// socket that parent and child share, and the parent's receiver is woken no more. A
/// [`Shard`](super::Shard) that is not yet started has no runtime, so it may be dropped there.
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
    pub(super) socket: Arc<Socket>,
    pub(super) reader: Reader,
    errors: ErrorWatch,
    /// Whether the kernel drops whatever arrives.
    is_stopped: bool,
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    uring: Option<Box<Uring>>,
}

impl UdpReceiver {
    pub(super) fn new(socket: Arc<Socket>, mut reader: Reader) -> Self {
        reader.set_socket(socket.address);
        Self {
            errors: ErrorWatch::of(&socket),
            socket,
            reader,
            is_stopped: false,
            #[cfg(all(target_os = "linux", feature = "io-uring"))]
            uring: None,
        }
    }

    /// Receives by io_uring from now on, if the system permits it.
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(super) fn with_uring(mut self) -> Self {
        self.uring = Uring::start(&self.socket, &mut self.reader);
        self
    }

    /// Only Linux has io_uring.
    #[cfg(all(not(target_os = "linux"), feature = "io-uring"))]
    pub(super) fn with_uring(self) -> Self {
        use std::sync::atomic::{AtomicBool, Ordering};
        static IS_WARNED: AtomicBool = AtomicBool::new(false);
        if !IS_WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!("io_uring is not available, receiving by readiness");
        }
        self
    }

    /// Returns `true` if it receives by io_uring: `false` if that was not
    /// [requested](UdpReceiverBuilder::io_uring), if the system or the pool does not support it, and
    /// after [`stop`](Self::stop).
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

    /// Binds a receiver with the defaults of [`builder`](Self::builder).
    ///
    /// # Errors
    /// The same as [`UdpReceiverBuilder::bind`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn bind(address: SocketAddr, pool: &PacketPool) -> Result<Self, BindError> {
        Self::builder(pool).bind(address)
    }

    /// Returns the builder of a receiver into this pool's memory.
    pub fn builder(pool: &PacketPool) -> UdpReceiverBuilder {
        UdpReceiverBuilder::new(pool)
    }

    /// Waits for the next batch and returns it.
    ///
    /// Cancel-safe. Each system call counts against tokio's cooperative budget.
    ///
    /// As long as there is something to read, a loop of calls lets other tasks of its thread run only once the budget is
    /// used up, after some hundred calls. If it hands batches on to one of them by a channel of its own, it should call
    /// [`yield_now`](tokio::task::yield_now) when that is half full; [`forward`](crate::pipeline::forward) does.
    ///
    /// # Errors
    /// The system's error; datagrams in the receiver stay there. Once the receiver's runtime is gone, it is an error for
    /// ever; once the socket was shut down for reading, on Unix, it is `NotConnected` whenever nothing is queued (by
    /// io_uring it may wait instead).
    pub async fn recv_batch(&mut self) -> io::Result<PacketBatch> {
        poll_fn(|cx| self.poll_recv_batch(cx)).await
    }

    /// Polls for the next batch, as [`recv_batch`](Self::recv_batch). Only the task of the last call is
    /// woken. For futures of one's own, such as one of several sockets:
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// use std::future::poll_fn;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let bind = || UdpReceiver::bind("127.0.0.1:0".parse().unwrap(), &pool);
    /// let mut sockets = [bind()?, bind()?];
    /// # sockets[0].sender().send(&Transmit::new(b"hello", sockets[1].local_addr())).await?;
    /// let batch = poll_fn(|cx| {
    ///     let mut polls = sockets.iter_mut().map(|socket| socket.poll_recv_batch(cx));
    ///     polls.find(|poll| poll.is_ready()).unwrap_or(std::task::Poll::Pending)
    /// });
    /// assert_eq!(batch.await?.contents(), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as [`recv_batch`](Self::recv_batch).
    pub fn poll_recv_batch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<PacketBatch>> {
        loop {
            if let Some(batch) = self.reader.ready.pop_front() {
                return Poll::Ready(Ok(batch));
            }
            ready!(self.poll_fill(cx))?;
        }
    }

    /// Waits for the next datagram and returns it. Datagrams that arrived with it stay in the receiver
    /// for the next call of any receive method.
    ///
    /// Cancel-safe. Each system call counts against tokio's cooperative budget.
    ///
    /// Costs an addition to a reference count for each datagram; [`recv_batch`](Self::recv_batch) and
    /// [`into_packets`](PacketBatch::into_packets) cost one for each batch.
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
    /// The same as [`recv_batch`](Self::recv_batch).
    pub async fn recv(&mut self) -> io::Result<Datagram> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Polls for the next datagram, as [`recv`](Self::recv). Only the task of the last call is woken.
    ///
    /// # Errors
    /// The same as [`recv_batch`](Self::recv_batch).
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Datagram>> {
        loop {
            if let Some(datagram) = self.reader.pop_datagram() {
                return Poll::Ready(Ok(datagram));
            }
            ready!(self.poll_fill(cx))?;
        }
    }

    /// Waits for at least one batch, appends all available batches to `out`, and returns their number:
    /// at most 32, or 63 after [`stop`](Self::stop) by io_uring. Handing them on together wakes a
    /// consumer only once.
    ///
    /// Cancel-safe. Each system call counts against tokio's cooperative budget; see [`recv_batch`](Self::recv_batch) for
    /// loops that hand batches on.
    ///
    /// # Errors
    /// The system's error; `out` is then unchanged.
    pub async fn recv_batches(&mut self, out: &mut Vec<PacketBatch>) -> io::Result<usize> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        let count = self.reader.ready.len();
        out.extend(self.drain_ready(count));
        Ok(count)
    }

    /// Returns `true` if others have caused this error, and it is no fault of the socket.
    pub(crate) fn is_caused_by_others(&self, error: &io::Error) -> bool {
        self.socket.is_caused_by_others(error)
    }

    /// Waits until there is a batch to [drain](Self::drain_ready).
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.reader.ready.is_empty() {
            true => self.poll_fill(cx),
            false => Poll::Ready(Ok(())),
        }
    }

    /// While the pool is exhausted, reads into two buffers beside it. The caller has to drop their contents before the
    /// next read: all receivers of the process share 4 MiB of them.
    pub(crate) fn enable_spare_buffers(&mut self) {
        self.reader.enable_spare_buffers();
    }

    /// Returns `true` if the batches of the last read lie in such buffers.
    pub(crate) fn used_spare_buffers(&self) -> bool {
        self.reader.spare.in_use
    }

    /// Takes out at most so many of the available batches.
    pub(crate) fn drain_ready(&mut self, most: usize) -> impl Iterator<Item = PacketBatch> + Send {
        let most = most.min(self.reader.ready.len());
        self.reader.ready.drain(..most)
    }

    /// Returns the next batch if there is one now.
    ///
    /// It reads past datagrams that are dropped, because the pool is exhausted or they are too long,
    /// but not for as long as more keep arriving: after eight reads that yield nothing else it returns
    /// `None` too. After [`stop`](Self::stop), which lets nothing more arrive, `None` means that the
    /// socket's queue is empty.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_recv_batch(&mut self) -> io::Result<Option<PacketBatch>> {
        let mut reads = 0;
        loop {
            if let Some(batch) = self.reader.ready.pop_front() {
                return Ok(Some(batch));
            }
            if reads == MAX_FRUITLESS_READS && !self.is_stopped {
                return Ok(None);
            }
            reads += 1;
            match self.try_fill() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(self.reader.ready.pop_front());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what is queued now into `ready`, or drops it; `WouldBlock` if there is no more.
    fn try_fill(&mut self) -> io::Result<()> {
        let Self { socket, reader, .. } = self;
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        if let Some(uring) = &mut self.uring {
            return uring.try_fill(socket, reader);
        }
        socket.io.read(|| reader.read(socket))
    }

    /// Waits for the socket until there is a batch in `ready`, which must be empty at first.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self {
            socket,
            reader,
            errors,
            ..
        } = self;
        // The system no longer has it, so nothing would wake the task for it.
        if let Some(late) = socket.backend.take_deferred_error() {
            return Poll::Ready(Err(late));
        }
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        if let Some(uring) = &mut self.uring {
            return uring.poll_fill(socket, reader, errors, cx);
        }
        reader.poll_fill(socket, errors, cx)
    }

    /// Stops receiving: makes the kernel drop what arrives from now on, and count it in
    /// [`kernel_dropped_datagrams`](super::SocketStats::kernel_dropped_datagrams). Datagrams already
    /// queued can still be received, for example with [`try_recv_batch`](Self::try_recv_batch) until it
    /// returns `None`. Sending still works. There is no way back.
    ///
    /// This lets a server that shuts down answer what it has received, and count everything else; see
    /// [`forward`](crate::pipeline::forward), which does this.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver, UdpSender};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// # let client = UdpSender::bind("127.0.0.1:0".parse()?)?;
    /// client.send(&Transmit::new(b"in time", socket.local_addr())).await?;
    /// # #[cfg(target_os = "linux")] {
    /// socket.stop()?;
    /// client.send(&Transmit::new(b"too late", socket.local_addr())).await?;
    /// let mut last = Vec::new();
    /// while let Some(batch) = socket.try_recv_batch()? {
    ///     last.extend(batch.into_packets());
    /// }
    /// assert_eq!(last, ["in time"]);
    /// assert_eq!(socket.monitor().stats().kernel_dropped_datagrams, 1);
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The system does not support this: only Linux does. Receiving then continues as before. By
    /// io_uring also if its request cannot be cancelled; what arrives is then dropped nevertheless.
    pub fn stop(&mut self) -> io::Result<()> {
        sys::drop_new_arrivals(&self.socket.io)?;
        self.is_stopped = true;
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        if let Some(mut uring) = self.uring.take() {
            let (drops, end) = uring.stop(&self.socket, &mut self.reader);
            self.reader.log(drops);
            end?;
        }
        Ok(())
    }

    /// The bytes of pool memory that the receiver itself holds now: buffers for the next system call,
    /// buffers lent to io_uring, and batches that it has read but not yet returned.
    ///
    /// At most its buffers (8 super-buffers, or 32 of single datagrams), at the size of their class,
    /// and as many smaller chunks with copies of payloads that fill at most half of a buffer; when
    /// receiving by readiness, 0 while it waits. Returned batches are not included.
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

    /// The address that the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.address
    }

    /// Returns a handle that reads the socket's counters, even after the receiver is gone.
    #[must_use]
    pub fn monitor(&self) -> SocketMonitor {
        SocketMonitor::new(Arc::clone(&self.socket.counters))
    }

    /// Returns a sender on the same socket: its datagrams come from the address that this receiver is
    /// bound to.
    #[must_use]
    pub fn sender(&self) -> UdpSender {
        UdpSender::new(Arc::clone(&self.socket))
    }
}

impl Drop for UdpReceiver {
    fn drop(&mut self) {
        // Dropped after the rest is counted: that frees its buffers, and so may wake a waiter for memory,
        // whose waker may panic.
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        let mut uring = self.uring.take();
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        let stopped = uring
            .as_mut()
            .map(|uring| uring.stop(&self.socket, &mut self.reader));
        self.reader.drop_ready(&self.socket.counters.receive);
        // Last: a subscriber may panic.
        #[cfg(all(target_os = "linux", feature = "io-uring"))]
        if let Some((drops, end)) = stopped {
            self.reader.log(drops);
            if let Err(error) = end {
                tracing::warn!(%error, "cannot cancel the io_uring request, its buffers are leaked");
            }
        }
    }
}

/// For options that may change while it receives, such as multicast groups, and to read what the system
/// made of others.
///
/// The socket's mode (non-blocking), and all options that decide what the system reports with a datagram,
/// are the receiver's: with others it would misread what it gets, or block its thread. What is read from
/// the socket elsewhere is missing here, and in the counters.
///
/// ```
/// # use slab_net::PacketPool;
/// # use slab_net::udp::UdpReceiver;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let builder = UdpReceiver::builder(&pool).receive_buffer_bytes(100_000).send_buffer_bytes(50_000);
/// let receiver = builder.bind("127.0.0.1:0".parse()?)?;
/// let socket = socket2::SockRef::from(&receiver);
/// assert!(socket.recv_buffer_size()? >= 100_000 && socket.send_buffer_size()? >= 50_000);
/// socket.set_ttl_v4(3)?;
/// # Ok(())
/// # }
/// ```
#[cfg(unix)]
impl std::os::fd::AsFd for UdpReceiver {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.io.as_fd()
    }
}

/// As `AsFd` on Unix: for options that may change while it receives. The socket's mode (non-blocking), and
/// all options that decide what the system reports with a datagram, are the receiver's.
#[cfg(windows)]
impl std::os::windows::io::AsSocket for UdpReceiver {
    fn as_socket(&self) -> std::os::windows::io::BorrowedSocket<'_> {
        self.socket.io.as_socket()
    }
}

/// An endless stream of batches: an error is an item too, after which the stream continues.
impl Stream for UdpReceiver {
    type Item = io::Result<PacketBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv_batch(cx).map(Some)
    }
}
