//! Receivers that hand over owned payloads, as one would write them.

use super::Unit;
use super::link::{Link, OneByOne, Queue, QueueOfBytes, RecvMany};
use super::payload::KeptChunk;
use super::rig::{BUFFERS, DATAGRAM_BUFFER, PageAligned, SUPER_BUFFER, Wire};
use super::rig::{our_receiver, our_receiver_with_metadata, pool, their_socket};
use bytes::{Bytes, BytesMut};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use slab_core::Chunk;
use slab_net::Packet;
use slab_net::pipeline::QueueSender;
use slab_net::udp::{PacketBatch, UdpReceiver};
use std::io::IoSliceMut;
use std::marker::PhantomData;
use std::net::SocketAddr;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::Sender;

/// A receiver at one end of a channel.
pub(super) trait Peer: Send + Sized + 'static {
    /// How it hands over.
    type Link: Link;
    /// Whether the socket has GRO on. For others the sender does not use GSO: on loopback, the receiver
    /// would pay for splitting what the sender saved.
    const GRO: bool = true;

    fn open(wire: Wire) -> Self;
    fn address(&self) -> SocketAddr;
    /// Receives once and puts everything into the channel. Returns the number of datagrams.
    fn pump(&mut self, to: &To<Self>) -> impl Future<Output = usize> + Send;
}

pub(super) type To<P> = <<P as Peer>::Link as Link>::To;
pub(super) type From<P> = <<P as Peer>::Link as Link>::From;

/// Calls `visit` with the peer of that name.
pub(super) fn visit<V: Visit>(name: &str, unit: Unit, visit: V) -> Result<V::Out, String> {
    Ok(match (name, unit) {
        (super::OURS, Unit::Packets) | ("slab-net-packets", _) => visit.visit::<OurPackets>(),
        ("slab-net-metadata", _) => visit.visit::<OurPacketsWithMetadata>(),
        (super::OURS, Unit::Queue) => visit.visit::<OurQueue<Queue>>(),
        (super::OURS, Unit::QueueOfBytes) => visit.visit::<OurQueue<QueueOfBytes>>(),
        (super::OURS, Unit::Batches) => visit.visit::<OurBatches>(),
        (super::OURS, Unit::Bytes) => visit.visit::<OurBytes>(),
        ("tokio-fresh", _) => visit.visit::<FreshBytesMut>(),
        ("tokio-copy", _) => visit.visit::<RecvFromCopy>(),
        ("tokio-split", _) => visit.visit::<ReserveSplit>(),
        ("quinn-copy", _) => visit.visit::<QuinnCopySplit>(),
        ("bytesmut-ring", _) => visit.visit::<BytesMutRing<OneByOne<Bytes>>>(),
        ("bytesmut-ring-many", _) => visit.visit::<BytesMutRing<RecvMany<Bytes>>>(),
        ("keep-buffer", _) => visit.visit::<KeepBuffer>(),
        _ => return Err("it has no such case".into()),
    })
}

pub(super) trait Visit {
    type Out;
    fn visit<P: Peer>(self) -> Self::Out;
}

async fn put<T: Send>(to: &Sender<T>, item: T) {
    assert!(to.send(item).await.is_ok(), "the consumer stays");
}

/// Sends all items of an iterator, with places for all of them reserved at once.
async fn put_all<T: Send>(to: &Sender<T>, items: impl ExactSizeIterator<Item = T> + Send) {
    let permits = to.reserve_many(items.len()).await;
    for (permit, item) in permits.expect("the consumer stays").zip(items) {
        permit.send(item);
    }
}

struct OurPackets {
    receiver: UdpReceiver,
    batches: Vec<PacketBatch>,
}

impl OurPackets {
    fn new(receiver: UdpReceiver) -> Self {
        Self {
            receiver,
            batches: Vec::with_capacity(32),
        }
    }
}

impl Peer for OurPackets {
    type Link = RecvMany<Packet>;

    fn open(wire: Wire) -> Self {
        Self::new(our_receiver(wire))
    }

    fn address(&self) -> SocketAddr {
        self.receiver.local_addr()
    }

    async fn pump(&mut self, to: &Sender<Packet>) -> usize {
        self.receiver
            .recv_batches(&mut self.batches)
            .await
            .expect("loopback");
        let count = self.batches.iter().map(PacketBatch::datagrams).sum();
        let mut permits = to.reserve_many(count).await.expect("the consumer stays");
        for batch in self.batches.drain(..) {
            // In this order, since `zip` would otherwise take a permit for a packet that is not there.
            for (packet, permit) in batch.into_packets().zip(permits.by_ref()) {
                permit.send(packet);
            }
        }
        count
    }
}

/// Ours with all metadata, which is more than tokio's sockets ask the kernel for.
struct OurPacketsWithMetadata(OurPackets);

impl Peer for OurPacketsWithMetadata {
    type Link = RecvMany<Packet>;

    fn open(wire: Wire) -> Self {
        Self(OurPackets::new(our_receiver_with_metadata(&pool(), wire)))
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    async fn pump(&mut self, to: &Sender<Packet>) -> usize {
        self.0.pump(to).await
    }
}

struct OurBytes(OurPackets);

impl Peer for OurBytes {
    type Link = RecvMany<Bytes>;

    fn open(wire: Wire) -> Self {
        Self(OurPackets::open(wire))
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    async fn pump(&mut self, to: &Sender<Bytes>) -> usize {
        let Self(OurPackets { receiver, batches }) = self;
        receiver.recv_batches(batches).await.expect("loopback");
        let count = batches.iter().map(PacketBatch::datagrams).sum();
        for batch in batches.drain(..) {
            put_all(to, batch.into_bytes()).await;
        }
        count
    }
}

struct OurBatches(OurPackets);

impl Peer for OurBatches {
    type Link = RecvMany<PacketBatch>;

    fn open(wire: Wire) -> Self {
        Self(OurPackets::open(wire))
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    async fn pump(&mut self, to: &Sender<PacketBatch>) -> usize {
        let Self(OurPackets { receiver, batches }) = self;
        receiver.recv_batches(batches).await.expect("loopback");
        let count = batches.iter().map(PacketBatch::datagrams).sum();
        put_all(to, batches.drain(..)).await;
        count
    }
}

struct OurQueue<L>(OurPackets, PhantomData<L>);

impl<L> Peer for OurQueue<L>
where
    L: Link<To = QueueSender> + Send + 'static,
{
    type Link = L;

    fn open(wire: Wire) -> Self {
        Self(OurPackets::open(wire), PhantomData)
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    async fn pump(&mut self, to: &QueueSender) -> usize {
        let OurPackets { receiver, batches } = &mut self.0;
        receiver.recv_batches(batches).await.expect("loopback");
        let count = batches.iter().map(PacketBatch::datagrams).sum();
        for batch in batches.drain(..) {
            to.send(batch).await.expect("the consumer stays");
        }
        count
    }
}

/// tokio's `recv_buf_from` into a new `BytesMut` for each datagram.
struct FreshBytesMut(UdpSocket);

impl Peer for FreshBytesMut {
    type Link = OneByOne<Bytes>;
    const GRO: bool = false;

    fn open(_: Wire) -> Self {
        Self(their_socket())
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("bound")
    }

    async fn pump(&mut self, to: &Sender<Bytes>) -> usize {
        let mut buffer = BytesMut::with_capacity(DATAGRAM_BUFFER);
        self.0.recv_buf_from(&mut buffer).await.expect("loopback");
        put(to, buffer.freeze()).await;
        1
    }
}

/// tokio's `recv_from` into one buffer, and a copy of each datagram.
struct RecvFromCopy(UdpSocket, Box<[u8; DATAGRAM_BUFFER]>);

impl Peer for RecvFromCopy {
    type Link = OneByOne<Bytes>;
    const GRO: bool = false;

    fn open(_: Wire) -> Self {
        Self(their_socket(), Box::new([0; DATAGRAM_BUFFER]))
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("bound")
    }

    async fn pump(&mut self, to: &Sender<Bytes>) -> usize {
        let (len, _) = self.0.recv_from(&mut self.1[..]).await.expect("loopback");
        put(to, Bytes::copy_from_slice(&self.1[..len])).await;
        1
    }
}

/// One `BytesMut` that grows by `reserve` and is `split` after each datagram.
struct ReserveSplit(UdpSocket, BytesMut);

impl Peer for ReserveSplit {
    type Link = OneByOne<Bytes>;
    const GRO: bool = false;

    fn open(_: Wire) -> Self {
        Self(their_socket(), BytesMut::new())
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("bound")
    }

    async fn pump(&mut self, to: &Sender<Bytes>) -> usize {
        if self.1.capacity() < DATAGRAM_BUFFER {
            self.1.reserve(SUPER_BUFFER);
        }
        self.0.recv_buf_from(&mut self.1).await.expect("loopback");
        put(to, self.1.split().freeze()).await;
        1
    }
}

/// A socket with quinn-udp, and the metadata of one call.
pub(super) struct Quinn {
    socket: UdpSocket,
    state: UdpSocketState,
    metas: [RecvMeta; BUFFERS],
}

impl Quinn {
    pub(super) fn open() -> Self {
        let socket = their_socket();
        let state = UdpSocketState::new(UdpSockRef::from(&socket)).expect("its options");
        Self {
            socket,
            state,
            metas: [RecvMeta::default(); BUFFERS],
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("bound")
    }

    pub(super) async fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> &[RecvMeta] {
        let Self {
            socket,
            state,
            metas,
        } = self;
        let read = socket.async_io(Interest::READABLE, || {
            state.recv(UdpSockRef::from(&*socket), buffers, metas)
        });
        let count = read.await.expect("loopback");
        &metas[..count]
    }
}

/// What quinn 0.11 does: GRO into its own buffers, a copy of each buffer into a `BytesMut`, which is split
/// into datagrams.
struct QuinnCopySplit(Quinn, PageAligned);

impl Peer for QuinnCopySplit {
    type Link = OneByOne<Bytes>;

    fn open(_: Wire) -> Self {
        Self(Quinn::open(), PageAligned::new(BUFFERS * SUPER_BUFFER))
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    async fn pump(&mut self, to: &Sender<Bytes>) -> usize {
        let metas = {
            let mut chunks = self.1.chunks_exact_mut(SUPER_BUFFER);
            let mut buffers: [IoSliceMut<'_>; BUFFERS] =
                std::array::from_fn(|_| IoSliceMut::new(chunks.next().expect("as many")));
            self.0.receive(&mut buffers).await
        };
        let mut count = 0;
        for (meta, buffer) in metas.iter().zip(self.1.chunks_exact(SUPER_BUFFER)) {
            let mut data = BytesMut::from(&buffer[..meta.len]);
            while !data.is_empty() {
                let one = data.split_to(meta.stride.min(data.len()));
                put(to, one.freeze()).await;
                count += 1;
            }
        }
        count
    }
}

/// GRO into a ring of `BytesMut`, each of which is reused once nobody holds a part of it; handed over one
/// by one, or with places for all reserved at once.
struct BytesMutRing<L> {
    quinn: Quinn,
    ring: Vec<BytesMut>,
    next: usize,
    link: PhantomData<L>,
}

/// Whether the places for a whole buffer are reserved at once.
trait HandOff {
    const RESERVE_ALL: bool;
}

impl HandOff for OneByOne<Bytes> {
    const RESERVE_ALL: bool = false;
}

impl HandOff for RecvMany<Bytes> {
    const RESERVE_ALL: bool = true;
}

/// Enough buffers that one is free again when its turn comes.
const RING: usize = 32;

impl<L> BytesMutRing<L> {
    fn new() -> Self {
        Self {
            quinn: Quinn::open(),
            ring: (0..RING).map(|_| BytesMut::zeroed(SUPER_BUFFER)).collect(),
            next: 0,
            link: PhantomData,
        }
    }

    /// Returns a buffer of full length, the old one if it is free.
    fn ready(buffer: &mut BytesMut) {
        buffer.clear();
        if !buffer.try_reclaim(SUPER_BUFFER) {
            *buffer = BytesMut::zeroed(SUPER_BUFFER);
            return;
        }
        // SAFETY: the memory was zeroed when it was allocated, and now belongs to this buffer alone.
        unsafe { buffer.set_len(SUPER_BUFFER) };
    }
}

impl<L> Peer for BytesMutRing<L>
where
    L: Link<To = Sender<Bytes>> + HandOff + Send + 'static,
{
    type Link = L;

    fn open(_: Wire) -> Self {
        Self::new()
    }

    fn address(&self) -> SocketAddr {
        self.quinn.address()
    }

    async fn pump(&mut self, to: &Sender<Bytes>) -> usize {
        let Self {
            quinn, ring, next, ..
        } = self;
        // A part of the ring that does not wrap.
        let start = *next;
        let stretch = &mut ring[start..start + BUFFERS];
        stretch
            .iter_mut()
            .filter(|buffer| buffer.len() < SUPER_BUFFER)
            .for_each(Self::ready);
        let metas = {
            let mut stretch = stretch.iter_mut();
            let mut buffers: [IoSliceMut<'_>; BUFFERS] =
                std::array::from_fn(|_| IoSliceMut::new(stretch.next().expect("as many")));
            quinn.receive(&mut buffers).await
        };
        let mut count = 0;
        for (meta, buffer) in metas.iter().zip(stretch) {
            let mut rest = buffer.split_to(meta.len).freeze();
            let datagrams = meta.len.div_ceil(meta.stride);
            count += datagrams;
            let slices = (0..datagrams).map(|_| rest.split_to(meta.stride.min(rest.len())));
            if L::RESERVE_ALL {
                put_all(to, slices).await;
            } else {
                for one in slices {
                    put(to, one).await;
                }
            }
        }
        *next = (start + BUFFERS) % RING;
        count
    }
}

/// Receives one datagram into each 64 KiB chunk of a pool, and hands the chunk over.
struct KeepBuffer {
    quinn: Quinn,
    pool: slab_net::PacketPool,
    chunks: Vec<Chunk>,
}

impl Peer for KeepBuffer {
    type Link = RecvMany<KeptChunk>;

    fn open(_: Wire) -> Self {
        Self {
            quinn: Quinn::open(),
            pool: pool(),
            chunks: Vec::new(),
        }
    }

    fn address(&self) -> SocketAddr {
        self.quinn.address()
    }

    async fn pump(&mut self, to: &Sender<KeptChunk>) -> usize {
        let Self {
            quinn,
            pool,
            chunks,
        } = self;
        while chunks.len() < BUFFERS {
            chunks.push(pool.slab().try_alloc(SUPER_BUFFER).expect("room"));
        }
        let count = {
            let mut chunks = chunks.iter_mut();
            let mut buffers: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| {
                let chunk = chunks.next().expect("as many");
                // SAFETY: the chunk is exclusively ours, at least that long, and initialised.
                IoSliceMut::new(unsafe {
                    std::slice::from_raw_parts_mut(chunk.as_ptr().as_ptr(), SUPER_BUFFER)
                })
            });
            quinn.receive(&mut buffers).await.len()
        };
        put_all(to, chunks.drain(..count).map(KeptChunk)).await;
        count
    }
}
