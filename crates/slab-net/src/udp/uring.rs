//! Receiving by io_uring instead of by readiness: the kernel takes chunks of the pool from a ring and
//! fills them as datagrams arrive, without a system call for each batch.
//!
//! The cost: chunks are lent to the ring as long as it runs, whereas a receiver by readiness holds none
//! while it waits. A filled chunk becomes a batch, or, if it holds little, its payload is copied and
//! the chunk is lent again. Once a batch is dropped, its chunk returns to the pool, from which the next
//! chunks are lent. If there is no chunk to lend, the request ends, and the socket is read by
//! readiness, to count and drop datagrams, until there is memory again.

use super::batch::PacketBatch;
use super::error_watch::ErrorWatch;
use super::io::poll_read_ready;
use super::reader::{Drops, Making, Reader, smaller_copy};
use super::socket::Socket;
use super::sys::is_icmp_error;
use super::sys::uring::{Filled, PREFIX_BYTES, Ring};
use super::tally::bump;
use core::fmt;
use core::slice;
use core::task::{Context, Poll, ready};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A receiver's ring, and how its task is notified.
pub(super) struct Uring {
    // The order of the fields matters: the runtime deregisters the ring before it is closed.
    events: AsyncFd<RawFd>,
    ring: Ring,
}

impl Uring {
    /// Starts a ring for this socket; returns `None` and, once per process, logs a warning if it
    /// cannot.
    pub(super) fn start(socket: &Socket, reader: &mut Reader) -> Option<Box<Self>> {
        match Self::try_start(socket, reader) {
            Ok(uring) => Some(Box::new(uring)),
            Err(error) => {
                // Not a `Once`: a subscriber may panic, or bind such a receiver itself.
                static IS_WARNED: AtomicBool = AtomicBool::new(false);
                if !IS_WARNED.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "io_uring is not available, receiving by readiness");
                }
                None
            }
        }
    }

    fn try_start(socket: &Socket, reader: &mut Reader) -> io::Result<Self> {
        let buffer_bytes = PREFIX_BYTES + reader.buffer_bytes();
        let largest = reader.pool().size_classes().largest();
        if largest < buffer_bytes {
            return Err(io::Error::other(format!(
                "a size class of {buffer_bytes} bytes is needed, the pool's largest has {largest}"
            )));
        }
        let ring = Ring::new(&socket.io, buffer_bytes)?;
        // The ring stays open as long as `events` is alive, which the function's successor in tokio
        // 1.54 requires the caller to state.
        #[allow(deprecated)]
        let events = AsyncFd::with_interest(ring.fd(), Interest::READABLE)?;
        let mut uring = Self { events, ring };
        if !uring.top_up(reader)? && uring.ring.lent() > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // If the kernel does not support this, it says so at once. There may also be datagrams already, or an
        // error that is about one sent before.
        match uring.ring.reap(socket, reader) {
            Err(error) if is_icmp_error(&error) => uring.ring.deferred_error = Some(error),
            reaped => drop(reaped?),
        }
        Ok(uring)
    }

    /// Lends buffers to the kernel until it has as many as `reader` would use, or the pool has no more.
    /// Returns whether it has any, and a request to use them for.
    fn top_up(&mut self, reader: &Reader) -> io::Result<bool> {
        while self.ring.lent() < reader.max_slots() {
            let (pool, bytes) = (reader.pool(), self.ring.buffer_bytes());
            // Only that there is not even one counts as refused.
            let chunk = match self.ring.lent() {
                0 => pool.try_alloc(bytes).ok(),
                _ => pool.try_alloc_spare(bytes),
            };
            let Some(chunk) = chunk else { break };
            self.ring.lend(chunk);
        }
        Ok(self.ring.arm()? && self.ring.lent() > 0)
    }

    /// The bytes of the pool's chunks that are lent to the kernel.
    pub(super) fn lent_bytes(&self) -> usize {
        self.ring.lent_bytes()
    }

    /// Waits until something is read into `reader.ready`, which must be empty at first, or dropped.
    pub(super) fn poll_fill(
        &mut self,
        socket: &Arc<Socket>,
        reader: &mut Reader,
        errors: &mut ErrorWatch,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            // First: nothing that follows would wake the task for it.
            if let Some(late) = self.ring.deferred_error.take() {
                return Poll::Ready(Err(late));
            }
            if !self.top_up(reader)? {
                return Self::poll_read_and_drop(socket, reader, errors, cx);
            }
            // Uses up tokio's budget at each turn.
            let mut events = ready!(poll_read_ready(&self.events, cx))?;
            let reaped = self.ring.reap(socket, reader)?;
            if !reader.ready.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if reaped == 0 {
                events.clear_ready();
            }
        }
    }

    /// Reads by readiness while the pool is exhausted, or the kernel short of memory, and no request is under way that
    /// would wake the task.
    #[cold]
    fn poll_read_and_drop(
        socket: &Arc<Socket>,
        reader: &mut Reader,
        errors: &mut ErrorWatch,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = reader.poll_fill(socket, errors, cx);
        // The next buffers may be those of io_uring again.
        reader.release_buffers();
        filled
    }

    /// Takes what is available now; `WouldBlock` if there is nothing.
    pub(super) fn try_fill(&mut self, socket: &Socket, reader: &mut Reader) -> io::Result<()> {
        if let Some(late) = self.ring.deferred_error.take() {
            return Err(late);
        }
        // Twice, if only the end of the previous request was there to reap: a new request gets what is queued.
        for _ in 0..2 {
            if !self.top_up(reader)? {
                let read = reader.read(socket);
                reader.release_buffers();
                return read;
            }
            self.ring.run_deferred_work();
            if self.ring.reap(socket, reader)? > 0 {
                return Ok(());
            }
            if self.ring.is_armed() {
                break;
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Ends receiving by io_uring; what the kernel has already read is then in `reader.ready`.
    /// Its buffers are freed when it is dropped. Also returns what is to be logged.
    pub(super) fn stop(&mut self, socket: &Socket, reader: &mut Reader) -> (Drops, io::Result<()>) {
        let mut rest = Vec::new();
        let end = self.ring.stop(&mut rest);
        let mut drops = Drops::default();
        for filled in rest {
            let new = self.ring.deliver(filled, socket, reader);
            drops.truncated += new.truncated;
            drops.kernel += new.kernel;
        }
        (drops, end)
    }
}

impl Ring {
    /// Makes batches of the buffers that the kernel has filled, and returns their number.
    fn reap(&mut self, socket: &Socket, reader: &mut Reader) -> io::Result<usize> {
        let mut reaped = 0;
        // Bounded: a buffer whose payload is copied is lent again, and may be filled again at once.
        while reaped < reader.max_slots() {
            match self.next() {
                None => break,
                Some(Ok(buffer)) => {
                    let drops = self.deliver(buffer, socket, reader);
                    if reaped == 0 {
                        bump(&socket.counters.receive.calls, 1);
                    }
                    reaped += 1;
                    reader.log(drops);
                }
                Some(Err(error)) if reaped == 0 => return Err(error),
                Some(Err(error)) => {
                    self.deferred_error = Some(error);
                    break;
                }
            }
        }
        Ok(reaped)
    }

    /// Puts a batch of a completion into `reader.ready`, unless it is truncated, and counts it. Returns what is
    /// to be logged.
    fn deliver(&mut self, filled: Filled, socket: &Socket, reader: &mut Reader) -> Drops {
        let counters = &socket.counters.receive;
        let received = *filled.received();
        let amount = received.amount();
        let mut drops = Drops {
            kernel: socket.counters.count_read(slice::from_ref(&received)),
            ..Drops::default()
        };
        if received.meta.truncated && !reader.admit_truncated(counters, amount) {
            drops.truncated = amount.datagrams;
            self.lend(filled.into_chunk());
        } else {
            let mut making = Making::new(counters, slice::from_ref(&received));
            let batch = self.batch(filled, reader);
            making.chunk_bytes = batch.chunk_bytes() as u64;
            making.left = &[];
            reader.ready.push_back(batch);
        }
        drops
    }

    /// Makes a batch of a buffer, or of a copy, and then lends the buffer again.
    fn batch(&mut self, filled: Filled, reader: &Reader) -> PacketBatch {
        let received = *filled.received();
        let copy = smaller_copy(reader.pool(), filled.payload(), filled.chunk_bytes());
        let (chunk, start) = match copy {
            Some(copy) => {
                self.lend(filled.into_chunk());
                (copy, 0)
            }
            None => (filled.into_chunk(), PREFIX_BYTES),
        };
        let (len, stride) = (received.len, received.stride);
        // SAFETY: the payload was written, by the kernel or by the copy; there is no other reference to
        // the chunk, so nobody writes to it from here on.
        unsafe { PacketBatch::new(chunk.into_shared(), start, len, stride, received.meta) }
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring")
            .field("lent", &self.ring.lent())
            .finish_non_exhaustive()
    }
}
