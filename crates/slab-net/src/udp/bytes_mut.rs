//! [`BytesMutReceiver`]: for consumers that take a genuine `bytes::BytesMut`, and nothing else.
//!
//! No memory but that of `bytes` itself can stand behind a `BytesMut`, so that there is no pool here.
//! What there is instead is a ring of buffers under the pool's rules: allocated as they are needed
//! and never above a cap, used again once every part of them is dropped, and what finds none free is
//! read, dropped and counted.

use super::batch::segments;
use super::datagram::Datagram;
use super::episode::DropEpisode;
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
use core::task::{Context, Poll, ready};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use tokio::io::Interest;

/// Buffers in one call to the kernel.
const MAX_SLOTS: usize = 8;
/// Buffers that are asked whether they are free, before another one is allocated. At the cap, where
/// nothing but a free one is left, all are.
const LOOKS: usize = 16;
/// Calls in a row that only count, while no buffer is free.
const DRAIN_CALLS: usize = 4;

/// Buffers in the order in which they were handed out.
struct Ring {
    /// Each is the rest of a buffer whose front is, or was, with a consumer.
    used: VecDeque<BytesMut>,
    allocated: usize,
    max: usize,
    buffer_bytes: usize,
}

impl Ring {
    /// An empty buffer that is nobody else's, with room for `buffer_bytes`.
    fn take(&mut self) -> Option<BytesMut> {
        let may_grow = self.allocated < self.max;
        let looks = if may_grow { LOOKS } else { usize::MAX };
        for _ in 0..self.used.len().min(looks) {
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

    /// What is left of a buffer, to be used again once the rest is dropped.
    fn put(&mut self, rest: BytesMut) {
        self.used.push_back(rest);
    }
}

/// Receives datagrams as genuine [`BytesMut`], from a ring of buffers with a cap; from
/// [`UdpReceiver::into_bytes_mut`].
///
/// Made for `quinn_proto::Endpoint::handle`, which takes a `BytesMut` by value: GRO buffers are cut
/// into datagrams, and neither a copy nor (in the steady state) an allocation is made for one that
/// comes coalesced. A buffer is used again when all of its datagrams are dropped
/// ([`BytesMut::try_reclaim`]). What fills less than half of a buffer is copied, behind others of
/// its kind, to one that such datagrams share.
///
/// **What it does not give**: the buffers are the ring's own. They are in no pool and its statistics,
/// no other socket can use them, an idle receiver keeps them, and one datagram that is held pins all
/// 64 KiB of its buffer. With that many held, datagrams are dropped and counted as `no_memory`.
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
/// # Ok(())
/// # }
/// ```
pub struct BytesMutReceiver {
    socket: Arc<Socket>,
    ring: Ring,
    /// Free buffers for the next call, empty and [prepared](Buffer::prepare).
    slots: ArrayVec<BytesMut, MAX_SLOTS>,
    /// Where short datagrams are copied to, one behind the other.
    shared: Option<BytesMut>,
    want: usize,
    received: [Received; MAX_SLOTS],
    ready: VecDeque<Datagram<BytesMut>>,
    no_memory: DropEpisode,
    truncated: DropEpisode,
}

impl UdpReceiver {
    /// Makes it a receiver of genuine [`BytesMut`], whose buffers are at most `max_memory` bytes
    /// together, and one at least. It drops and counts what was cut, whatever was
    /// [chosen](super::UdpReceiverBuilder::deliver_truncated) for the receiver. What it has read and not
    /// been asked for is dropped and counted as `closed`.
    #[must_use]
    pub fn into_bytes_mut(self, max_memory: usize) -> BytesMutReceiver {
        let buffer_bytes = self.buffer_bytes();
        BytesMutReceiver {
            socket: Arc::clone(self.socket()),
            ring: Ring {
                used: VecDeque::new(),
                allocated: 0,
                max: (max_memory / buffer_bytes).max(1),
                buffer_bytes,
            },
            slots: ArrayVec::new(),
            shared: None,
            want: 1,
            received: [Received::NOTHING; MAX_SLOTS],
            ready: VecDeque::new(),
            no_memory: DropEpisode::new("no_memory"),
            truncated: DropEpisode::new("truncated"),
        }
    }
}

impl BytesMutReceiver {
    /// The next datagram, once there is one. Cancel-safe.
    ///
    /// # Errors
    /// What the system says; call again.
    pub async fn recv(&mut self) -> io::Result<Datagram<BytesMut>> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// [`recv`](Self::recv) for a future of one's own. Wakes the task of the last call.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Datagram<BytesMut>>> {
        loop {
            if let Some(datagram) = self.ready.pop_front() {
                return Poll::Ready(Ok(datagram));
            }
            let socket = Arc::clone(&self.socket);
            ready!(socket.io.poll_recv_ready(cx))?;
            match socket.io.try_io(Interest::READABLE, || self.read(&socket)) {
                Ok(()) if self.ready.is_empty() => {
                    // All dropped. Let those run who can give memory back.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Bytes of the buffers that were allocated so far, never above the cap.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        self.ring.allocated * self.ring.buffer_bytes
    }

    /// The address the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> std::net::SocketAddr {
        self.socket.address
    }

    /// A sender by the same socket.
    #[must_use]
    pub fn sender(&self) -> UdpSender {
        UdpSender::new(Arc::clone(&self.socket))
    }

    /// Reads the socket's counters while the receiver runs, and after it is gone.
    #[must_use]
    pub fn monitor(&self) -> SocketMonitor {
        SocketMonitor::new(Arc::clone(&self.socket.counters))
    }

    fn read(&mut self, socket: &Socket) -> io::Result<()> {
        while self.slots.len() < self.want {
            match self.ring.take() {
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
                // SAFETY: prepared when it came to the slots.
                buffers.push(unsafe { Buffer::prepared(room) });
            }
            let backend = &socket.backend;
            backend.receive(&socket.io, &mut buffers, &mut self.received)?
        };
        self.want = match read == offered {
            true => (offered * 2).min(MAX_SLOTS),
            false => (read + 1).min(MAX_SLOTS),
        };
        let mut all = Amount::default();
        let mut filled = self.slots.take();
        // Before the others are cut: copies may take one of these.
        self.slots.extend(filled.drain(read..));
        for (index, buffer) in filled.into_iter().enumerate() {
            let received = self.received[index];
            all += received.amount();
            self.cut(buffer, &received);
        }
        self.count(socket, read, all);
        self.no_memory.all_well();
        self.truncated.all_well();
        Ok(())
    }

    /// Makes datagrams of what a buffer received.
    fn cut(&mut self, mut buffer: BytesMut, received: &Received) {
        let len = received.len.min(buffer.capacity());
        let counters = &self.socket.counters.receive;
        if received.meta.truncated {
            counters.truncated.bump(received.amount());
            self.truncated.dropped(1);
            self.ring.put(buffer);
            return;
        }
        // SAFETY: the kernel says that it wrote as many bytes to what was an empty buffer.
        unsafe { buffer.set_len(len) };
        let short = len <= self.ring.buffer_bytes / 2;
        let copy = short.then(|| self.copy(&buffer)).flatten();
        let mut rest = copy.unwrap_or_else(|| buffer.split());
        self.ring.put(buffer);
        for _ in 1..segments(len, received.stride) {
            let packet = rest.split_to(received.stride);
            self.ready.push_back(received.meta.datagram(packet));
        }
        self.ready.push_back(received.meta.datagram(rest));
    }

    /// A copy behind other short datagrams; `None` if there is no buffer for it.
    fn copy(&mut self, payload: &[u8]) -> Option<BytesMut> {
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

    fn count(&self, socket: &Socket, read: usize, all: Amount) {
        let counters = &socket.counters.receive;
        counters.received.bump(all);
        bump(&counters.calls, 1);
        let last = read.checked_sub(1).map(|last| &self.received[last]);
        if let Some(counted) = last.and_then(|last| last.kernel_drops) {
            socket.counters.kernel.observe(counted);
        }
    }

    /// No buffer is free: takes datagrams off the socket's queue, to count and drop them.
    #[cold]
    fn read_and_drop(&mut self, socket: &Socket) -> io::Result<()> {
        for _ in 0..DRAIN_CALLS {
            let read = socket.backend.discard(&socket.io, &mut self.received)?;
            let all = self.received[..read].iter().map(Received::amount).sum();
            self.count(socket, read, all);
            socket.counters.receive.no_memory.bump(all);
            self.no_memory.dropped(all.datagrams);
        }
        Ok(())
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
