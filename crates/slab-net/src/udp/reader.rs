//! [`Reader`]: makes system calls, one at a time, and batches of their results.

use super::batch::PacketBatch;
use super::datagram::Datagram;
use super::episode::DropEpisode;
use super::error_watch::ErrorWatch;
use super::slots::Slots;
use super::socket::Socket;
use super::spare::SpareBuffers;
use super::stats::ReceiveCounters;
use super::sys::Received;
use super::tally::{Amount, bump};
use crate::packet::PacketPool;
use arrayvec::ArrayVec;
use core::fmt;
use slab_core::{AllocError, Chunk, SlabPool};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The number of successive system calls that only count, while there is no memory.
pub(super) const DRAIN_CALLS: usize = 4;

/// The fewest buffers in a system call. One buffer more than there are datagrams shows that the queue
/// is empty, and saves the call that would find out.
const MIN_SLOTS: usize = 2;

/// Datagrams that were dropped and counted, but not yet logged. That comes last: a subscriber is foreign code,
/// and may panic.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Drops {
    pub(super) no_memory: u64,
    pub(super) truncated: u64,
    pub(super) kernel: u64,
}

/// Everything in a receiver except the socket: buffers, and batches not yet returned.
pub(super) struct Reader {
    /// Not the slab pool alone: whoever makes a received packet grow counts on the packet pool's settings.
    pool: PacketPool,
    /// Where to read while the pool is exhausted.
    pub(super) spare: SpareBuffers,
    slots: Slots,
    /// The number of buffers to offer in the next system call.
    slots_to_offer: usize,
    deliver_truncated: bool,
    /// As many as a system call fills buffers at most.
    received: Box<[Received]>,
    /// Batches read but not yet returned; at most the result of one system call.
    pub(super) ready: VecDeque<PacketBatch>,
    no_memory: DropEpisode,
    truncated: DropEpisode,
    kernel: DropEpisode,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("pool", &self.pool)
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}

impl Reader {
    pub(super) fn new(
        pool: PacketPool,
        buffer_bytes: usize,
        max_slots: usize,
        deliver_truncated: bool,
    ) -> Self {
        Self {
            pool,
            spare: SpareBuffers::default(),
            slots: Slots::new(buffer_bytes),
            slots_to_offer: MIN_SLOTS,
            deliver_truncated,
            received: vec![Received::NOTHING; max_slots].into_boxed_slice(),
            ready: VecDeque::with_capacity(max_slots),
            no_memory: DropEpisode::new("no_memory"),
            truncated: DropEpisode::new("truncated"),
            kernel: DropEpisode::new("kernel"),
        }
    }

    /// Says in what is logged which socket it is.
    pub(super) fn set_socket(&mut self, address: SocketAddr) {
        for episode in [&mut self.no_memory, &mut self.truncated, &mut self.kernel] {
            episode.socket = Some(address);
        }
    }

    pub(super) fn enable_spare_buffers(&mut self) {
        let buffer_bytes = self.slots.buffer_bytes();
        self.spare.enable(self.pool.slab(), buffer_bytes);
    }

    /// Makes one system call, or a few while the pool is exhausted. Whatever it returns, the batches
    /// read are in `ready` afterwards.
    ///
    /// Returns `WouldBlock` if and only if the kernel found its queue empty: tokio then clears the
    /// socket's readiness, and no buffer is held while waiting.
    pub(super) fn read(&mut self, socket: &Socket) -> io::Result<()> {
        let offered = match self.slots.fill(self.pool.slab(), self.slots_to_offer) {
            Ok(offered) => {
                self.spare.in_use = false;
                offered
            }
            Err(error) => match self.spare.fill(&mut self.slots, self.pool.slab()) {
                Some(offered) => offered,
                None => return self.read_and_drop(socket, error),
            },
        };
        let read = {
            let mut buffers = ArrayVec::new();
            self.slots.write_buffers(&mut buffers);
            let backend = &socket.backend;
            backend.receive(&socket.io, &mut buffers, &mut self.received)
        };
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                self.slots.clear();
                self.slots_to_offer = MIN_SLOTS;
                return Err(error);
            }
        };
        self.make_batches(read, socket);
        if self.spare.in_use {
            // The next buffers are the pool's again, if it has any.
            self.slots.clear();
        }
        if read == offered {
            self.slots_to_offer = (offered * 2).min(self.received.len());
            return Ok(());
        }
        // The next call probably finds not much less.
        self.slots_to_offer = (read + 1).max(self.slots_to_offer / 2).max(MIN_SLOTS);
        if cfg!(target_os = "linux") && !socket.backend.has_deferred_error() {
            // A recvmmsg that fills fewer buffers than offered has found the queue empty. So a thousand
            // waiting sockets hold no pool memory.
            self.slots.clear();
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }

    /// Waits for the socket by readiness until there is a batch in `ready`, which must be empty at first, or
    /// something was read and dropped.
    pub(super) fn poll_fill(
        &mut self,
        socket: &Arc<Socket>,
        errors: &mut ErrorWatch,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            // Uses up tokio's budget at each turn, so that reads whose datagrams are all dropped cannot
            // monopolize the thread.
            let read = match socket.io.poll_read(cx, || self.read(socket)) {
                Poll::Ready(read) => read,
                Poll::Pending => {
                    // There are some if `try_recv_batch` filled all that it had, and found no end.
                    self.release_buffers();
                    ready!(errors.poll(socket, cx))?;
                    self.read(socket)
                }
            };
            if !self.ready.is_empty() {
                return Poll::Ready(Ok(()));
            }
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(()) => {
                    // Lets other tasks run, which may free memory.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        self.slots.buffer_bytes()
    }

    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(super) fn max_slots(&self) -> usize {
        self.received.len()
    }

    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(super) fn pool(&self) -> &SlabPool {
        self.pool.slab()
    }

    /// Keeps no buffers for the next call: it may be long until then, or io_uring makes it with buffers of
    /// its own.
    pub(super) fn release_buffers(&mut self) {
        self.slots.clear();
    }

    /// Logs what was dropped of what was read.
    #[inline]
    pub(super) fn log(&self, drops: Drops) {
        self.no_memory.record(drops.no_memory);
        self.truncated.record(drops.truncated);
        self.kernel.record(drops.kernel);
    }

    /// Takes the next available datagram out of its batch; the rest of the batch stays in `ready`.
    pub(super) fn pop_datagram(&mut self) -> Option<Datagram> {
        let first = self.ready.front_mut()?;
        if !first.is_single() {
            return Some(first.split_first());
        }
        self.ready.pop_front()?.into_datagrams().next()
    }

    /// The bytes of all pool chunks in the reader.
    pub(super) fn held_bytes(&self) -> usize {
        let ready = self.ready.iter().map(PacketBatch::chunk_bytes);
        self.slots.held_bytes() + ready.sum::<usize>()
    }

    /// Drops the batches in `ready`, which nobody can ask for any more, and counts them.
    pub(super) fn drop_ready(&mut self, counters: &ReceiveCounters) {
        counters
            .closed
            .bump(self.ready.iter().map(PacketBatch::amount).sum());
        // Last: freeing memory may wake a waiter for it, and a waker may panic.
        self.ready.clear();
    }

    /// Makes batches of the first `read` buffers, which the kernel has filled.
    fn make_batches(&mut self, read: usize, socket: &Socket) {
        let counters = &socket.counters.receive;
        let mut drops = Drops {
            kernel: socket.counters.count_read(&self.received[..read]),
            ..Drops::default()
        };
        bump(&counters.calls, 1);
        let mut making = Making::new(counters, &self.received[..read]);
        for (slot, received) in self.received[..read].iter().enumerate() {
            if received.meta.truncated && !self.admit_truncated(counters, received.amount()) {
                drops.truncated += received.amount().datagrams;
            } else if let Some(batch) = batch(self.pool.slab(), &mut self.slots, slot, received) {
                making.chunk_bytes += batch.chunk_bytes() as u64;
                self.ready.push_back(batch);
            }
            making.left = &self.received[slot + 1..read];
        }
        drop(making);
        self.log(drops);
    }

    /// Counts a truncated datagram, and returns whether to deliver it.
    #[cold]
    pub(super) fn admit_truncated(&self, counters: &ReceiveCounters, amount: Amount) -> bool {
        if self.deliver_truncated {
            counters.truncated_delivered.bump(amount);
        } else {
            counters.truncated_dropped.bump(amount);
        }
        self.deliver_truncated
    }

    /// While the pool is exhausted: takes datagrams off the socket's queue, counts and drops them.
    #[cold]
    #[inline(never)]
    fn read_and_drop(&mut self, socket: &Socket, error: AllocError) -> io::Result<()> {
        tracing::trace!(%error, "no receive buffer available");
        let counters = &socket.counters.receive;
        for _ in 0..DRAIN_CALLS {
            let read = socket.backend.discard(&socket.io, &mut self.received)?;
            let read = &self.received[..read];
            let kernel = socket.counters.count_read(read);
            bump(&counters.calls, 1);
            let all: Amount = read.iter().map(Received::amount).sum();
            counters.no_memory.bump(all);
            self.log(Drops {
                no_memory: all.datagrams,
                kernel,
                truncated: 0,
            });
        }
        Ok(())
    }
}

/// What was read and counted, while batches are made of it. If that panics, what is left counts as dropped for want of
/// memory: a subscriber panics that is told of a slab for a copy, or a waker that is called for a chunk.
pub(super) struct Making<'a> {
    counters: &'a ReceiveCounters,
    pub(super) left: &'a [Received],
    /// Of the chunks of the batches made.
    pub(super) chunk_bytes: u64,
}

impl<'a> Making<'a> {
    pub(super) fn new(counters: &'a ReceiveCounters, read: &'a [Received]) -> Self {
        Self {
            counters,
            left: read,
            chunk_bytes: 0,
        }
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        bump(&self.counters.chunk_bytes, self.chunk_bytes);
        if !self.left.is_empty() {
            let left = self.left.iter().map(Received::amount).sum();
            self.counters.no_memory.bump(left);
        }
    }
}

/// Makes a batch of a slot: with its chunk, or with a copy if the payload fills at most half of it and
/// a smaller chunk is available. So a lone small datagram does not pin 64 KiB, and the buffer is kept
/// for the next call.
#[inline]
fn batch(
    pool: &SlabPool,
    slots: &mut Slots,
    slot: usize,
    received: &Received,
) -> Option<PacketBatch> {
    let (len, capacity) = (received.len, slots.capacity(slot));
    // SAFETY: the kernel reports that it wrote `len` bytes.
    let payload = unsafe { slots.bytes(slot, len) };
    let chunk = match smaller_copy(pool, payload, capacity) {
        Some(copy) => copy,
        None => slots.take(slot)?,
    };
    // SAFETY: the payload was written, by the kernel or by the copy; there is no other reference to the
    // chunk, so nobody writes to it from here on.
    Some(unsafe { PacketBatch::new(chunk.into_shared(), 0, len, received.stride, received.meta) })
}

/// Returns a copy of this payload, if it fills at most half of its chunk of `capacity` bytes and a smaller
/// chunk is available.
#[inline]
pub(super) fn smaller_copy(slab: &SlabPool, payload: &[u8], capacity: usize) -> Option<Chunk> {
    if payload.len() > capacity / 2 {
        return None;
    }
    let class = slab.class_for(payload.len())?;
    if slab.size_classes().sizes()[class] >= capacity {
        return None;
    }
    let mut chunk = slab.try_alloc_spare(payload.len())?;
    chunk.try_copy_from_slice(payload)?;
    Some(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slab_core::SizeClasses;

    #[test]
    fn a_payload_of_half_a_chunk_is_copied_and_a_longer_one_is_not() {
        let classes = SizeClasses::explicit(&[1024, 1536, 2048]).unwrap();
        let builder = SlabPool::builder().size_classes(classes);
        let pool = builder.max_memory(8 << 20).build().unwrap();
        let copied = |len| smaller_copy(&pool, &vec![7; len], 2048);
        assert_eq!(copied(1024).unwrap().capacity(), 1024);
        assert!(copied(1025).is_none());
    }
}
