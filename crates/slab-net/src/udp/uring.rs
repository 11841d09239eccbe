//! Receiving by io_uring instead of by readiness: the kernel takes chunks of the pool from a ring
//! and fills them as datagrams come, without a call for each batch of them.
//!
//! The ring has chunks lent to it as long as it runs, where the other way holds none while it waits;
//! that is what it costs. A chunk that came back filled goes on as a batch, or is copied out and
//! lent again if it holds little; one that is dropped is the pool's again, from which the next ones
//! are lent. With no chunk to lend the request has ended, and the socket is read by readiness, to
//! count and drop, until there is memory again.

use super::batch::PacketBatch;
use super::reader::Reader;
use super::socket::Socket;
use super::sys::uring::{Completion, Filled, PREFIX, Ring, RingFd};
use super::tally::bump;
use core::fmt;
use core::task::{Context, Poll, ready};
use slab_core::SlabPool;
use std::io;
use std::sync::Once;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A receiver's ring, and how its task hears of it.
pub(super) struct Uring {
    // In this order: the runtime forgets the ring before it is closed.
    events: AsyncFd<RingFd>,
    ring: Ring,
    pool: SlabPool,
    buffer_bytes: usize,
    /// Buffers that the kernel is to have.
    want: usize,
}

impl Uring {
    /// A ring for this socket, or nothing and, once a process, a warning that says why.
    pub(super) fn start(socket: &Socket, reader: &mut Reader) -> Option<Box<Self>> {
        match Self::try_start(socket, reader) {
            Ok(uring) => Some(Box::new(uring)),
            Err(error) => {
                static WARNING: Once = Once::new();
                WARNING.call_once(|| {
                    tracing::warn!(%error, "no io_uring, receiving by readiness");
                });
                None
            }
        }
    }

    fn try_start(socket: &Socket, reader: &mut Reader) -> io::Result<Self> {
        let buffer_bytes = PREFIX + reader.buffer_bytes();
        let pool = reader.pool().clone();
        let largest = pool.size_classes().largest();
        if largest < buffer_bytes {
            return Err(io::Error::other(format!(
                "it takes a size class of {buffer_bytes} bytes, the pool's largest has {largest}"
            )));
        }
        let ring = Ring::new(&socket.io, buffer_bytes)?;
        // The ring stays open as long as `events` lives, which is what the function's successor in
        // tokio 1.54 wants to be told.
        #[allow(deprecated)]
        let events = AsyncFd::with_interest(ring.fd(), Interest::READABLE)?;
        let mut uring = Self {
            events,
            ring,
            pool,
            buffer_bytes,
            want: reader.max_slots(),
        };
        uring.top_up()?;
        // What the kernel cannot do at all, it says at once. Datagrams may be there already, too.
        uring.ring.reap(socket, reader)?;
        Ok(uring)
    }

    /// Lends the kernel what it may have of what the pool has. Does it have any?
    fn top_up(&mut self) -> io::Result<bool> {
        while self.ring.lent() < self.want {
            match self.pool.try_alloc(self.buffer_bytes) {
                Ok(chunk) => self.ring.lend(chunk),
                Err(_) => break,
            }
        }
        self.ring.arm()?;
        Ok(self.ring.lent() > 0)
    }

    /// Bytes of the pool's chunks that the kernel has.
    pub(super) fn lent_bytes(&self) -> usize {
        self.ring.lent_bytes()
    }

    /// Waits until something was read, or dropped, into `reader.ready`, which is empty before.
    pub(super) fn poll_fill(
        &mut self,
        socket: &Socket,
        reader: &mut Reader,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if !self.top_up()? {
                return self.poll_drop(socket, reader, cx);
            }
            // Takes from tokio's budget at each turn.
            let mut events = ready!(self.events.poll_read_ready(cx))?;
            let reaped = self.ring.reap(socket, reader)?;
            if !reader.ready.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if reaped == 0 {
                events.clear_ready();
            }
        }
    }

    /// The pool is exhausted, and no request under way that would wake us.
    #[cold]
    fn poll_drop(
        &mut self,
        socket: &Socket,
        reader: &mut Reader,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(socket.io.poll_recv_ready(cx))?;
            let read = socket.io.try_io(Interest::READABLE, || reader.read(socket));
            reader.let_go();
            match read {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                _ if !reader.ready.is_empty() => return Poll::Ready(Ok(())),
                Err(_) => {}
                Ok(()) => {
                    // Let those run who can give memory back.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Takes what is there right now; `WouldBlock` if there is no more.
    pub(super) fn try_fill(&mut self, socket: &Socket, reader: &mut Reader) -> io::Result<()> {
        if !self.top_up()? {
            let read = reader.read(socket);
            reader.let_go();
            return read;
        }
        self.ring.catch_up();
        let mut reaped = self.ring.reap(socket, reader)?;
        if reaped == 0 && !self.ring.is_armed() {
            // It had ended, which is all there was to reap. What is queued takes a new request.
            self.top_up()?;
            self.ring.catch_up();
            reaped = self.ring.reap(socket, reader)?;
        }
        match reaped {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }

    /// Ends it: what the kernel has read already is in `reader.ready` afterwards.
    pub(super) fn stop(mut self, socket: &Socket, reader: &mut Reader) -> io::Result<()> {
        let mut rest = Vec::new();
        let end = self.ring.stop(&mut rest);
        for completion in rest {
            if let Completion::Filled(filled) = completion {
                self.ring.deliver(filled, socket, reader);
            }
        }
        end
    }
}

impl Ring {
    /// Makes batches of what the kernel has completed, and returns how many completions it was.
    fn reap(&mut self, socket: &Socket, reader: &mut Reader) -> io::Result<usize> {
        if let Some(late) = self.late_error.take() {
            return Err(late);
        }
        let (mut reaped, mut filled) = (0, 0);
        // What is copied out of a buffer lends it again, and it may come back filled at once.
        while reaped < reader.max_slots() {
            match self.next() {
                None => break,
                Some(Completion::Filled(buffer)) => {
                    self.deliver(buffer, socket, reader);
                    filled += 1;
                }
                Some(Completion::Failed(error)) if filled == 0 => return Err(error),
                Some(Completion::Failed(error)) => {
                    self.late_error = Some(error);
                    break;
                }
            }
            reaped += 1;
        }
        if filled > 0 {
            bump(&socket.counters.receive.calls, 1);
        }
        Ok(reaped)
    }

    fn deliver(&mut self, filled: Filled, socket: &Socket, reader: &mut Reader) {
        let counters = &socket.counters.receive;
        let received = *filled.received();
        reader.count_one(&received, socket);
        if received.meta.truncated && !reader.keeps_cut(counters, received.amount()) {
            return self.lend(filled.into_chunk());
        }
        let copy = reader.smaller_copy(filled.payload(), filled.chunk_bytes());
        let (chunk, start) = match copy {
            Some(copy) => {
                self.lend(filled.into_chunk());
                (copy, 0)
            }
            None => (filled.into_chunk(), PREFIX),
        };
        let (len, stride) = (received.len, received.stride);
        // SAFETY: the payload was written, by the kernel or the copy, and as nobody else has the
        // chunk or its reference, nobody writes from here on.
        let batch =
            unsafe { PacketBatch::new(chunk.into_shared(), start, len, stride, received.meta) };
        bump(&counters.chunk_bytes, batch.pinned_bytes() as u64);
        reader.ready.push_back(batch);
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring")
            .field("lent", &self.ring.lent())
            .finish_non_exhaustive()
    }
}
