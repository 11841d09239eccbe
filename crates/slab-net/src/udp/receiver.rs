//! [`UdpReceiver`]: from the socket into pool memory.

use super::batch::{PacketBatch, segments};
use super::episode::DropEpisode;
use super::error::BindError;
use super::sender::UdpSender;
use super::slots::{MAX_SLOTS, Slots};
use super::socket::{Socket, SocketOptions};
use super::stats::{ReceiveCounters, SocketMonitor, bump};
use crate::packet::PacketPool;
use quinn_udp::{RecvMeta, UdpSockRef};
use slab_core::{AllocError, SlabPool};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::Interest;

/// The longest payload of a datagram in bytes: a UDP length of 65535 less the header. Over IPv4 it
/// is 65507.
pub(super) const MAX_DATAGRAM: usize = 65527;
/// A buffer that holds whatever the kernel coalesces, and one byte more at least.
const SUPER_BUFFER: usize = 64 << 10;
/// The most super-buffers in one call; more gained nothing (measured), and pin 64 KiB each.
const MAX_SUPER_SLOTS: usize = 8;
/// Calls to the kernel in a row that only count, while the pool is exhausted.
const DRAIN_CALLS: usize = 4;

/// Whether the kernel may put several datagrams of one sender into one buffer (GRO).
///
/// It is one or the other by name, because half of it loses data: a kernel that coalesces into
/// buffers that are too short for it cuts, and says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Coalescing {
    /// GRO on, with buffers of 64 KiB, the most that the kernel coalesces. What fills less than
    /// half a buffer is copied to a chunk of its own size.
    #[default]
    On,
    /// GRO off: a buffer for each datagram.
    Off {
        /// The longest datagram to be delivered, in bytes. Longer ones are counted as truncated
        /// and dropped. The buffers have one byte more, which tells them apart.
        max_datagram: usize,
    },
}

/// How to set up a [`UdpReceiver`].
#[derive(Debug, Clone)]
#[must_use]
pub struct UdpReceiverBuilder {
    pool: PacketPool,
    coalescing: Coalescing,
    options: SocketOptions,
}

impl UdpReceiverBuilder {
    /// Whether the kernel may coalesce datagrams. Default: [`Coalescing::On`].
    pub fn coalescing(mut self, coalescing: Coalescing) -> Self {
        self.coalescing = coalescing;
        self
    }

    /// Lets several sockets share the address (`SO_REUSEPORT`, Unix only); the kernel spreads the
    /// senders over them. Default: no.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.options.reuse_port = reuse;
        self
    }

    /// How much the kernel queues for the socket, in bytes of its own bookkeeping (`SO_RCVBUF`).
    /// The system may have a lower limit. Default: the system's.
    pub fn receive_buffer_bytes(mut self, bytes: usize) -> Self {
        self.options.receive_buffer_bytes = Some(bytes);
        self
    }

    /// How much the kernel queues for sending, in bytes (`SO_SNDBUF`). Default: the system's.
    pub fn send_buffer_bytes(mut self, bytes: usize) -> Self {
        self.options.send_buffer_bytes = Some(bytes);
        self
    }

    /// Opens and binds the socket.
    ///
    /// # Errors
    /// The pool has no size class for the receive buffers, the maximum datagram length makes no
    /// sense, or the system refuses.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub fn bind(mut self, address: SocketAddr) -> Result<UdpReceiver, BindError> {
        let (buffer_bytes, max_slots) = match self.coalescing {
            Coalescing::On => (SUPER_BUFFER, MAX_SUPER_SLOTS),
            Coalescing::Off { max_datagram } => {
                if !(1..=MAX_DATAGRAM).contains(&max_datagram) {
                    return Err(BindError::MaxDatagram {
                        bytes: max_datagram,
                    });
                }
                (max_datagram + 1, MAX_SLOTS)
            }
        };
        let largest = self.pool.slab().size_classes().largest();
        if largest < buffer_bytes {
            return Err(BindError::NoBufferClass {
                needed: buffer_bytes,
                largest,
            });
        }
        self.options.coalesce = self.coalescing == Coalescing::On;
        Ok(UdpReceiver {
            socket: Socket::bind(address, self.options)?,
            state: ReceiveState {
                pool: self.pool,
                slots: Slots::new(buffer_bytes),
                buffer_bytes,
                max_slots,
                want: 1,
                metas: vec![RecvMeta::default(); max_slots].into_boxed_slice(),
                ready: VecDeque::with_capacity(max_slots),
                no_memory: DropEpisode::new("no_memory"),
                truncated: DropEpisode::new("truncated"),
            },
            coalescing: self.coalescing,
        })
    }
}

/// Receives datagrams into the memory of a [`PacketPool`].
///
/// * **Cancel-safe**: buffers and batches live in the receiver. A future that is dropped loses
///   nothing.
/// * **Bounded**: it holds at most 8 super-buffers, or 32 buffers of single datagrams, and none
///   while it waits for the socket.
/// * **Adaptive**: one buffer a call while little arrives, twice as many after each call that
///   filled all of them.
/// * **When the pool is exhausted** it goes on reading, into scratch memory, counts what it read as
///   `no_memory` and drops it: what the kernel would drop in its stead, nobody would see. Once
///   memory is back, so is the receiver.
///
/// An error of the system does not end it either: call again.
#[derive(Debug)]
pub struct UdpReceiver {
    socket: Arc<Socket>,
    state: ReceiveState,
    coalescing: Coalescing,
}

/// All of the receiver but the socket, which is borrowed for longer.
#[derive(Debug)]
struct ReceiveState {
    pool: PacketPool,
    slots: Slots,
    buffer_bytes: usize,
    max_slots: usize,
    /// Buffers to offer in the next call.
    want: usize,
    metas: Box<[RecvMeta]>,
    /// Read and not asked for yet; never more than one call's worth.
    ready: VecDeque<PacketBatch>,
    no_memory: DropEpisode,
    truncated: DropEpisode,
}

impl UdpReceiver {
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
        UdpReceiverBuilder {
            pool: pool.clone(),
            coalescing: Coalescing::default(),
            options: SocketOptions::default(),
        }
    }

    /// The next batch, once there is one.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    ///
    /// # Errors
    /// What the system says; datagrams that are in the receiver stay there.
    pub async fn recv_batch(&mut self) -> io::Result<PacketBatch> {
        self.fill_ready().await?;
        Ok(self.state.ready.pop_front().expect("just filled"))
    }

    /// Appends all batches at hand, at least one once there is one, and returns how many. Saves
    /// waking a consumer for each.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget. Appends at most 32 batches.
    ///
    /// # Errors
    /// What the system says; `out` is as before then.
    pub async fn recv_batches(&mut self, out: &mut Vec<PacketBatch>) -> io::Result<usize> {
        self.fill_ready().await?;
        let count = self.state.ready.len();
        out.extend(self.state.ready.drain(..));
        Ok(count)
    }

    /// The next batch if there is one right now. To drain a socket before it is closed, for
    /// example.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_recv_batch(&mut self) -> io::Result<Option<PacketBatch>> {
        loop {
            if let Some(batch) = self.state.ready.pop_front() {
                return Ok(Some(batch));
            }
            let Self { socket, state, .. } = self;
            let read = socket.io.try_io(Interest::READABLE, || state.read(socket));
            match read {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the socket until there is a batch in `ready`.
    async fn fill_ready(&mut self) -> io::Result<()> {
        let Self { socket, state, .. } = self;
        while state.ready.is_empty() {
            // Takes from tokio's budget at each turn, so that a read of which nothing remained (all
            // dropped) cannot keep a thread for itself.
            socket
                .io
                .async_io(Interest::READABLE, || state.read(socket))
                .await?;
            if state.ready.is_empty() {
                // Let those run who can give memory back.
                tokio::task::yield_now().await;
            }
        }
        Ok(())
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

impl ReceiveState {
    /// One call to the kernel, or a few while the pool is exhausted.
    ///
    /// `WouldBlock` comes out if, and only if, the kernel said it and nothing was read: tokio
    /// clears the socket's readiness then.
    fn read(&mut self, socket: &Socket) -> io::Result<()> {
        let offered = match self.slots.fill(self.pool.slab(), self.want) {
            Ok(offered) => offered,
            Err(error) => return self.read_and_drop(socket, error),
        };
        let read = {
            let mut buffers = self.slots.buffers();
            socket.state.recv(
                UdpSockRef::from(&socket.io),
                &mut buffers[..offered],
                &mut self.metas,
            )
        };
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                // Nothing is held while waiting: a thousand idle sockets cost no pool memory.
                self.slots.clear();
                self.want = 1;
                return Err(error);
            }
        };
        self.want = if read == offered {
            (offered * 2).min(self.max_slots)
        } else {
            read.max(1)
        };
        self.take_over(read, &socket.counters.receive);
        Ok(())
    }

    /// Makes batches of what the kernel wrote to the first `read` buffers.
    fn take_over(&mut self, read: usize, counters: &ReceiveCounters) {
        let (mut datagrams, mut bytes) = (0, 0);
        for slot in 0..read {
            let meta = self.metas[slot];
            let count = segments(meta.len, meta.stride) as u64;
            datagrams += count;
            bytes += meta.len as u64;
            if meta.len >= self.buffer_bytes {
                // Each buffer has room for a byte more than anything that is to be delivered, so
                // this was longer: quinn-udp does not tell.
                bump(&counters.truncated, count);
                self.truncated.dropped(count);
                continue;
            }
            if let Some(batch) = self.batch(slot, &meta) {
                self.ready.push_back(batch);
            }
        }
        self.slots.close_gaps();
        bump(&counters.datagrams, datagrams);
        bump(&counters.bytes, bytes);
        bump(&counters.calls, 1);
        self.no_memory.all_well();
        self.truncated.all_well();
    }

    /// The batch in a slot: its chunk, or a copy if the payload fills less than half of it and a
    /// smaller chunk is to be had. So a lone small datagram does not keep 64 KiB, and the buffer
    /// stays for the next call.
    fn batch(&mut self, slot: usize, meta: &RecvMeta) -> Option<PacketBatch> {
        let (len, capacity) = (meta.len, self.slots.capacity(slot));
        let slab = self.pool.slab();
        let copy = (len <= capacity / 2)
            .then(|| smaller_copy(slab, self.slots.bytes(slot, len), capacity))
            .flatten();
        let chunk = match copy {
            Some(copy) => copy,
            None => self.slots.take(slot)?,
        };
        // SAFETY: the payload was written, by the kernel or the copy, and as nobody else has the
        // chunk or its reference, nobody writes from here on.
        Some(unsafe { PacketBatch::new(chunk.into_shared(), len, meta.stride, meta.into()) })
    }

    /// The pool is exhausted: reads into scratch memory, to count and drop.
    ///
    /// The scratch lies on the stack, where it costs nothing to a receiver that never gets here,
    /// and where there is no memory to be missing.
    #[cold]
    #[inline(never)]
    fn read_and_drop(&mut self, socket: &Socket, error: AllocError) -> io::Result<()> {
        let mut scratch = [0; SUPER_BUFFER];
        let counters = &socket.counters.receive;
        for call in 0..DRAIN_CALLS {
            let mut buffers = [IoSliceMut::new(&mut scratch)];
            let read =
                socket
                    .state
                    .recv(UdpSockRef::from(&socket.io), &mut buffers, &mut self.metas);
            match read {
                Ok(_) => {}
                // The next call finds out again.
                Err(_) if call > 0 => break,
                Err(error) => return Err(error),
            }
            let meta = &self.metas[0];
            let count = segments(meta.len, meta.stride) as u64;
            bump(&counters.datagrams, count);
            bump(&counters.bytes, meta.len as u64);
            bump(&counters.calls, 1);
            bump(&counters.no_memory, count);
            tracing::trace!(%error, "no buffer");
            self.no_memory.dropped(count);
        }
        Ok(())
    }
}

fn smaller_copy(slab: &SlabPool, payload: &[u8], capacity: usize) -> Option<slab_core::Chunk> {
    let classes = slab.size_classes();
    let class = classes.class_for(payload.len())?;
    if classes.sizes()[class] >= capacity {
        return None;
    }
    let mut chunk = slab.try_alloc(payload.len()).ok()?;
    chunk.copy_from_slice(payload)?;
    Some(chunk)
}
