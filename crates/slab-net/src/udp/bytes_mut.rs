//! [`BytesMutReceiver`]: for consumers that need a genuine `bytes::BytesMut`.
//!
//! A `BytesMut` can only be backed by memory of `bytes` itself, so there is no pool here. Instead there
//! is a ring of buffers under the pool's rules: allocated as they are needed and never above a cap, and
//! used again once every part of them is dropped. Datagrams for which no buffer is free are read,
//! dropped and counted.

use super::batch::segments;
use super::datagram::Datagram;
use super::episode::DropEpisode;
use super::error_watch::ErrorWatch;
use super::reader::DRAIN_CALLS;
use super::receiver::UdpReceiver;
use super::sender::UdpSender;
use super::socket::Socket;
use super::stats::SocketMonitor;
use super::sys::{Buffer, Received};
use super::tally::{Amount, bump};
use arrayvec::ArrayVec;
use bytes::BytesMut;
use core::fmt;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use futures_core::Stream;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The most buffers in one system call.
const MAX_SLOTS: usize = 8;
/// How many buffers are checked for being free before another one is allocated. At the cap, where only
/// a free buffer helps, all are checked.
const MAX_REUSE_CHECKS: usize = 16;

/// Buffers in the order in which they were handed out.
struct ReuseRing {
    /// Each is the rest of a buffer whose front is, or was, with a consumer.
    used: VecDeque<BytesMut>,
    allocated: usize,
    max: usize,
    buffer_bytes: usize,
}

impl ReuseRing {
    /// Takes an empty buffer that nobody else refers to, with room for `buffer_bytes`.
    fn take(&mut self) -> Option<BytesMut> {
        let may_grow = self.allocated < self.max;
        let checks = if may_grow {
            MAX_REUSE_CHECKS
        } else {
            usize::MAX
        };
        for _ in 0..self.used.len().min(checks) {
            let mut buffer = self.used.pop_front()?;
            buffer.clear();
            if buffer.try_reclaim(self.buffer_bytes) {
                return Some(buffer);
            }
            self.used.push_back(buffer);
        }
        if !may_grow {
            return None;
        }
        self.allocated += 1;
        Some(BytesMut::with_capacity(self.buffer_bytes))
    }

    /// Puts back the rest of a buffer, to be used again once its other parts are dropped.
    fn put(&mut self, rest: BytesMut) {
        self.used.push_back(rest);
    }
}

/// Receives datagrams as genuine [`BytesMut`], from a ring of buffers with a cap; made by
/// [`UdpReceiver::into_bytes_mut`].
///
/// Made for `quinn_proto::Endpoint::handle`, which takes a `BytesMut` by value: GRO buffers are cut
/// into datagrams, without a copy and (in the steady state) without an allocation per coalesced
/// datagram. A buffer is used again when all of its datagrams are dropped ([`BytesMut::try_reclaim`]).
/// A payload that fills at most half of its buffer is copied to a buffer that such payloads share.
///
/// **What it does not provide**: the buffers are the ring's own. They are not in any pool or its
/// statistics, no other socket can use them, an idle receiver keeps them, and one retained datagram
/// pins all 64 KiB of its buffer. Once every buffer is pinned, datagrams are dropped and counted as
/// `no_memory`.
///
/// **QUIC retains datagrams**: those behind a gap, and those whose stream nobody reads. Once they pin every buffer, the
/// datagram that would fill the gap is dropped as well, and so are all acknowledgements: every connection of the socket
/// stands still, until those to blame time out. One peer can bring that about, with a datagram for each buffer. So
/// hand on copies, `BytesMut::from(&datagram.packet[..])`, which let go of the buffer at once, unless the cap is some
/// 50 times what the receive windows of all connections allow: 64 KiB for each datagram of 1200 bytes.
///
/// ```
/// use bytes::BytesMut;
/// use slab_net::PacketPool;
/// use slab_net::udp::{Transmit, UdpReceiver};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let mut receiver = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?.into_bytes_mut(4 << 20);
/// let hello = Transmit::new(b"hello", receiver.local_addr());
/// receiver.sender().send(&hello).await?;
/// let datagram = receiver.recv().await?;
/// let bytes: BytesMut = datagram.packet;
/// assert_eq!(bytes, "hello");
/// assert!((1..=4 << 20).contains(&receiver.allocated_bytes()));
/// # Ok(())
/// # }
/// ```
pub struct BytesMutReceiver {
    socket: Arc<Socket>,
    errors: ErrorWatch,
    ring: ReuseRing,
    /// Free buffers for the next system call, empty and [prepared](Buffer::prepare).
    slots: ArrayVec<BytesMut, MAX_SLOTS>,
    /// Where short payloads are copied to, one after the other.
    shared: Option<BytesMut>,
    slots_to_offer: usize,
    received: [Received; MAX_SLOTS],
    ready: VecDeque<Datagram<BytesMut>>,
    no_memory: DropEpisode,
    truncated: DropEpisode,
}

impl UdpReceiver {
    /// Turns the receiver into one of genuine [`BytesMut`]. Its buffers take at most `max_memory` bytes
    /// in all, but there is at least one. Truncated datagrams are dropped and counted, even if
    /// [`deliver_truncated`](super::UdpReceiverBuilder::deliver_truncated) was set. Batches that the
    /// receiver has read but not yet returned are dropped and counted as `closed`.
    #[must_use]
    pub fn into_bytes_mut(self, max_memory: usize) -> BytesMutReceiver {
        let buffer_bytes = self.reader.buffer_bytes();
        let [mut no_memory, mut truncated] = ["no_memory", "truncated"].map(DropEpisode::new);
        no_memory.socket = Some(self.local_addr());
        truncated.socket = no_memory.socket;
        BytesMutReceiver {
            socket: Arc::clone(&self.socket),
            errors: ErrorWatch::of(&self.socket),
            ring: ReuseRing {
                used: VecDeque::new(),
                allocated: 0,
                max: (max_memory / buffer_bytes).max(1),
                buffer_bytes,
            },
            slots: ArrayVec::new(),
            shared: None,
            slots_to_offer: 1,
            received: [Received::NOTHING; MAX_SLOTS],
            ready: VecDeque::new(),
            no_memory,
            truncated,
        }
    }
}

impl BytesMutReceiver {
    /// Waits for the next datagram and returns it. Cancel-safe, also as a [`Stream`], which never ends:
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut receiver = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?.into_bytes_mut(4 << 20);
    /// let two = Transmit::new(b"onetwo", receiver.local_addr()).segment_size(3);
    /// receiver.sender().send(&two).await?;
    /// assert_eq!(receiver.next().await.expect("endless")?.packet, "one");
    /// assert_eq!(receiver.recv().await?.packet, "two");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The system's error; call again. Some last: see [`UdpReceiver::recv_batch`].
    pub async fn recv(&mut self) -> io::Result<Datagram<BytesMut>> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Polls for the next datagram, as [`recv`](Self::recv). Only the task of the last call is woken.
    ///
    /// # Errors
    /// The same as [`recv`](Self::recv).
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Datagram<BytesMut>>> {
        loop {
            if let Some(datagram) = self.ready.pop_front() {
                return Poll::Ready(Ok(datagram));
            }
            let socket = Arc::clone(&self.socket);
            let read = match socket.io.poll_read(cx, || self.read(&socket)) {
                Poll::Ready(read) => read,
                Poll::Pending => {
                    ready!(self.errors.poll(&socket, cx))?;
                    self.read(&socket)
                }
            };
            match read {
                Ok(()) if self.ready.is_empty() => {
                    // All were dropped. Lets other tasks run, which may free memory.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// The bytes of all buffers allocated so far, never above the cap, unless that is less than one buffer.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        self.ring.allocated * self.ring.buffer_bytes
    }

    /// The address that the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> std::net::SocketAddr {
        self.socket.address
    }

    /// Returns a sender on the same socket.
    #[must_use]
    pub fn sender(&self) -> UdpSender {
        UdpSender::new(Arc::clone(&self.socket))
    }

    /// Returns a handle that reads the socket's counters, even after the receiver is gone.
    #[must_use]
    pub fn monitor(&self) -> SocketMonitor {
        SocketMonitor::new(Arc::clone(&self.socket.counters))
    }

    fn read(&mut self, socket: &Socket) -> io::Result<()> {
        while self.slots.len() < self.slots_to_offer {
            let mut free = self.ring.take();
            if free.is_none()
                && self.slots.is_empty()
                && let Some(rest) = self.shared.take()
            {
                // The last resort: where short payloads were copied to, if they are all dropped.
                self.ring.put(rest);
                free = self.ring.take();
            }
            match free {
                Some(mut buffer) => {
                    Buffer::prepare(buffer.spare_capacity_mut());
                    self.slots.push(buffer);
                }
                None => break,
            }
        }
        let offered = self.slots.len();
        if offered == 0 {
            return self.read_and_drop(socket);
        }
        let read = {
            let bytes = self.ring.buffer_bytes;
            let mut buffers: ArrayVec<Buffer<'_>, MAX_SLOTS> = ArrayVec::new();
            for buffer in &mut self.slots {
                let room = &mut buffer.spare_capacity_mut()[..bytes];
                // SAFETY: prepared when it was put into `slots`.
                buffers.push(unsafe { Buffer::prepared(room) });
            }
            let backend = &socket.backend;
            backend.receive(&socket.io, &mut buffers, &mut self.received)?
        };
        self.slots_to_offer = match read == offered {
            true => (offered * 2).min(MAX_SLOTS),
            false => (read + 1).min(MAX_SLOTS),
        };
        let mut truncated = 0;
        let mut filled = self.slots.take();
        // Before the others are cut: a copy may take one of these.
        self.slots.extend(filled.drain(read..));
        for (index, buffer) in filled.into_iter().enumerate() {
            let received = self.received[index];
            truncated += u64::from(received.meta.truncated);
            self.split_into_datagrams(buffer, &received);
        }
        self.count(socket, read);
        // Last, when all buffers are in their place: a subscriber may panic.
        self.no_memory.record_success();
        self.truncated.record(truncated);
        Ok(())
    }

    /// Cuts the contents of a buffer into datagrams.
    fn split_into_datagrams(&mut self, mut buffer: BytesMut, received: &Received) {
        let len = received.len.min(buffer.capacity());
        let counters = &self.socket.counters.receive;
        if received.meta.truncated {
            counters.truncated_dropped.bump(received.amount());
            self.ring.put(buffer);
            return;
        }
        // SAFETY: the kernel reports that it wrote `len` bytes to what was an empty buffer.
        unsafe { buffer.set_len(len) };
        let short = len <= self.ring.buffer_bytes / 2;
        let copy = short.then(|| self.copy_to_shared(&buffer)).flatten();
        let mut rest = copy.unwrap_or_else(|| buffer.split());
        self.ring.put(buffer);
        for _ in 1..segments(len, received.stride) {
            let packet = rest.split_to(received.stride);
            self.ready.push_back(received.meta.datagram(packet));
        }
        self.ready.push_back(received.meta.datagram(rest));
    }

    /// Copies a payload behind other short ones; `None` if there is no buffer for it.
    fn copy_to_shared(&mut self, payload: &[u8]) -> Option<BytesMut> {
        let has_room = |rest: &&mut BytesMut| rest.capacity() >= payload.len();
        if self.shared.as_mut().filter(has_room).is_none() {
            let fresh = self.ring.take().or_else(|| self.slots.pop())?;
            if let Some(rest) = self.shared.replace(fresh) {
                self.ring.put(rest);
            }
        }
        let shared = self.shared.as_mut()?;
        shared.extend_from_slice(payload);
        Some(shared.split())
    }

    fn count(&self, socket: &Socket, read: usize) {
        socket.counters.count_read(&self.received[..read]);
        bump(&socket.counters.receive.calls, 1);
    }

    /// While no buffer is free: takes datagrams off the socket's queue, counts and drops them.
    #[cold]
    fn read_and_drop(&mut self, socket: &Socket) -> io::Result<()> {
        for _ in 0..DRAIN_CALLS {
            let read = socket.backend.discard(&socket.io, &mut self.received)?;
            self.count(socket, read);
            let all: Amount = self.received[..read].iter().map(Received::amount).sum();
            socket.counters.receive.no_memory.bump(all);
            self.no_memory.dropped(all.datagrams);
        }
        Ok(())
    }
}

/// As [`UdpReceiver`]'s.
#[cfg(unix)]
impl std::os::fd::AsFd for BytesMutReceiver {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.io.as_fd()
    }
}

/// As [`UdpReceiver`]'s.
#[cfg(windows)]
impl std::os::windows::io::AsSocket for BytesMutReceiver {
    fn as_socket(&self) -> std::os::windows::io::BorrowedSocket<'_> {
        self.socket.io.as_socket()
    }
}

/// An endless stream of datagrams: an error is an item too, after which the stream continues.
impl Stream for BytesMutReceiver {
    type Item = io::Result<Datagram<BytesMut>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(cx).map(Some)
    }
}

impl Drop for BytesMutReceiver {
    fn drop(&mut self) {
        let bytes = self
            .ready
            .iter()
            .map(|datagram| datagram.packet.len() as u64);
        let left = Amount::new(self.ready.len() as u64, bytes.sum());
        self.socket.counters.receive.closed.bump(left);
    }
}

impl fmt::Debug for BytesMutReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BytesMutReceiver")
            .field("address", &self.socket.address)
            .field("allocated_bytes", &self.allocated_bytes())
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}
