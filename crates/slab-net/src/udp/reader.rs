//! [`Reader`]: one call to the kernel, and what is made of its answer.

use super::batch::PacketBatch;
use super::datagram::Datagram;
use super::episode::DropEpisode;
use super::slots::Slots;
use super::socket::Socket;
use super::spare::Spare;
use super::stats::ReceiveCounters;
use super::sys::Received;
use super::tally::{Amount, bump};
use slab_core::{AllocError, Chunk, SlabPool};
use std::collections::VecDeque;
use std::io;

/// Calls to the kernel in a row that only count, while the pool is exhausted.
const DRAIN_CALLS: usize = 4;

/// Buffers in a call at least. One more than there is to read shows that there is no more, and
/// saves the call that would find out.
const MIN_SLOTS: usize = 2;

/// All of a receiver but the socket: buffers, and batches that nobody has asked for yet.
#[derive(Debug)]
pub(super) struct Reader {
    pool: SlabPool,
    /// Where to read to while the pool is exhausted.
    spare: Spare,
    slots: Slots,
    max_slots: usize,
    /// Buffers to offer in the next call.
    want: usize,
    deliver_truncated: bool,
    received: Box<[Received]>,
    /// Read and not asked for yet; never more than one call's worth.
    pub(super) ready: VecDeque<PacketBatch>,
    no_memory: DropEpisode,
    truncated: DropEpisode,
    kernel: DropEpisode,
}

impl Reader {
    pub(super) fn new(
        pool: SlabPool,
        buffer_bytes: usize,
        max_slots: usize,
        deliver_truncated: bool,
    ) -> Self {
        Self {
            pool,
            spare: Spare::default(),
            slots: Slots::new(buffer_bytes),
            max_slots,
            want: MIN_SLOTS,
            deliver_truncated,
            received: vec![Received::NOTHING; max_slots].into_boxed_slice(),
            ready: VecDeque::with_capacity(max_slots),
            no_memory: DropEpisode::new("no_memory"),
            truncated: DropEpisode::new("truncated"),
            kernel: DropEpisode::new("kernel"),
        }
    }

    /// One call to the kernel, or a few while the pool is exhausted. What it read is in `ready`
    /// afterwards, whatever it returns.
    ///
    /// `WouldBlock` comes out if, and only if, nothing was queued any more when the kernel looked:
    /// tokio clears the socket's readiness then, and no buffer is held while waiting.
    pub(super) fn read(&mut self, socket: &Socket) -> io::Result<()> {
        let offered = match self.slots.fill(&self.pool, self.want) {
            Ok(offered) => {
                self.spare.in_use = false;
                offered
            }
            Err(error) => match self.spare.fill(&mut self.slots, &self.pool) {
                Some(offered) => offered,
                None => return self.read_and_drop(socket, error),
            },
        };
        let read = {
            let mut buffers = self.slots.buffers();
            let backend = &socket.backend;
            backend.receive(&socket.io, &mut buffers, &mut self.received)
        };
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                self.slots.clear();
                self.want = MIN_SLOTS;
                return Err(error);
            }
        };
        self.take_over(read, socket);
        if self.spare.in_use {
            // The next ones are of the pool again, if it has any.
            self.slots.clear();
        }
        if read == offered {
            self.want = (offered * 2).min(self.max_slots);
            return Ok(());
        }
        // What comes next is probably not much less.
        self.want = (read + 1).max(self.want / 2).max(MIN_SLOTS);
        if cfg!(target_os = "linux") && !socket.backend.has_late_error() {
            // A recvmmsg that fills fewer buffers has found the queue empty. A thousand sockets that
            // wait hold no pool memory.
            self.slots.clear();
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        self.slots.buffer_bytes()
    }

    pub(super) fn spare(&mut self) -> &mut Spare {
        &mut self.spare
    }

    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(super) fn max_slots(&self) -> usize {
        self.max_slots
    }

    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(super) fn pool(&self) -> &SlabPool {
        &self.pool
    }

    /// Keeps no buffers for the next call: that is the ring's, which has its own.
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(super) fn let_go(&mut self) {
        self.slots.clear();
    }

    /// A copy of this payload, if it is short for a chunk of `capacity` bytes and there is a smaller
    /// one.
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(super) fn smaller_copy(&self, payload: &[u8], capacity: usize) -> Option<Chunk> {
        smaller_copy(&self.pool, payload, capacity)
    }

    /// Counts one buffer that was read without a call of ours.
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(super) fn count_one(&mut self, received: &Received, socket: &Socket) {
        self.received[0] = *received;
        self.count(1, received.amount(), socket);
        self.no_memory.all_well();
    }

    /// The next datagram at hand, taken out of its batch, which stays with the others.
    pub(super) fn pop_datagram(&mut self) -> Option<Datagram> {
        let first = self.ready.front_mut()?;
        if !first.is_single() {
            return Some(first.split_first());
        }
        self.ready.pop_front()?.into_datagrams().next()
    }

    /// Bytes of the pool's chunks that are here.
    pub(super) fn held_bytes(&self) -> usize {
        let ready = self.ready.iter().map(PacketBatch::pinned_bytes);
        self.slots.held_bytes() + ready.sum::<usize>()
    }

    /// Nobody is left to ask for what is ready: counts it.
    pub(super) fn abandon(&mut self, counters: &ReceiveCounters) {
        let left = self.ready.drain(..).map(|batch| batch.amount());
        counters.closed.bump(left.sum());
    }

    /// Makes batches of what the kernel wrote to the first `read` buffers.
    fn take_over(&mut self, read: usize, socket: &Socket) {
        let counters = &socket.counters.receive;
        let (mut all, mut chunk_bytes) = (Amount::default(), 0);
        for (slot, received) in self.received[..read].iter().enumerate() {
            let amount = received.amount();
            all += amount;
            if received.meta.truncated && !self.keeps_cut(counters, amount) {
                continue;
            }
            if let Some(batch) = batch(&self.pool, &mut self.slots, slot, received) {
                chunk_bytes += batch.pinned_bytes() as u64;
                self.ready.push_back(batch);
            }
        }
        self.slots.close_gaps();
        self.count(read, all, socket);
        bump(&counters.calls, 1);
        bump(&counters.chunk_bytes, chunk_bytes);
        self.no_memory.all_well();
    }

    /// Counts what was read.
    fn count(&self, read: usize, all: Amount, socket: &Socket) {
        let counters = &socket.counters.receive;
        counters.received.bump(all);
        self.truncated.all_well();
        let last = read.checked_sub(1).map(|last| &self.received[last]);
        let Some(counted) = last.and_then(|last| last.kernel_drops) else {
            return;
        };
        match socket.counters.kernel.observe(counted) {
            0 => self.kernel.all_well(),
            news => self.kernel.dropped(news),
        }
    }

    /// A cut datagram: counts it, and says whether it is delivered.
    #[cold]
    pub(super) fn keeps_cut(&self, counters: &ReceiveCounters, amount: Amount) -> bool {
        counters.truncated.bump(amount);
        if self.deliver_truncated {
            counters.truncated_delivered.bump(amount);
        } else {
            self.truncated.dropped(amount.datagrams);
        }
        self.deliver_truncated
    }

    /// The pool is exhausted: takes datagrams off the socket's queue, to count and drop them.
    #[cold]
    #[inline(never)]
    fn read_and_drop(&mut self, socket: &Socket, error: AllocError) -> io::Result<()> {
        tracing::trace!(%error, "no buffer");
        let counters = &socket.counters.receive;
        for _ in 0..DRAIN_CALLS {
            let read = socket.backend.discard(&socket.io, &mut self.received)?;
            let all = self.received[..read].iter().map(Received::amount).sum();
            self.count(read, all, socket);
            bump(&counters.calls, 1);
            counters.no_memory.bump(all);
            self.no_memory.dropped(all.datagrams);
        }
        Ok(())
    }
}

/// The batch in a slot: its chunk, or a copy if the payload fills less than half of it and a smaller
/// chunk is to be had. So a lone small datagram does not keep 64 KiB, and the buffer stays for the
/// next call.
#[inline]
fn batch(
    pool: &SlabPool,
    slots: &mut Slots,
    slot: usize,
    received: &Received,
) -> Option<PacketBatch> {
    let (len, capacity) = (received.len, slots.capacity(slot));
    // SAFETY: the kernel says that it wrote as many.
    let payload = unsafe { slots.bytes(slot, len) };
    let chunk = match smaller_copy(pool, payload, capacity) {
        Some(copy) => copy,
        None => slots.take(slot)?,
    };
    // SAFETY: the payload was written, by the kernel or the copy, and as nobody else has the chunk
    // or its reference, nobody writes from here on.
    Some(unsafe { PacketBatch::new(chunk.into_shared(), 0, len, received.stride, received.meta) })
}

#[inline]
fn smaller_copy(slab: &SlabPool, payload: &[u8], capacity: usize) -> Option<Chunk> {
    if payload.len() > capacity / 2 {
        return None;
    }
    let class = slab.class_for(payload.len())?;
    if slab.size_classes().sizes()[class] >= capacity {
        return None;
    }
    let mut chunk = slab.try_alloc(payload.len()).ok()?;
    chunk.copy_from_slice(payload)?;
    Some(chunk)
}
