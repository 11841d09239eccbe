//! What all cases share: sockets on loopback, queues filled beforehand, clocks.

use slab_net::udp::{Coalescing, Transmit, UdpReceiver, UdpReceiverBuilder, UdpSender};
use slab_net::{PacketPool, SizeClasses};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::{Deref, DerefMut};
use tokio::runtime::Runtime;

/// Datagrams in the socket's queue when a round starts.
pub(super) const QUEUED: usize = 256;
/// The same for rounds that have to wake two threads: so many that waking does not matter.
pub(super) const QUEUED_FOR_TWO: usize = 2048;
/// The socket buffer that these need, in bytes of the kernel's bookkeeping.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Buffers of the peers that hold several.
pub(super) const BUFFERS: usize = 8;
pub(super) const SUPER_BUFFER: usize = 64 << 10;
/// The buffer that plain receivers give each datagram.
pub(super) const DATAGRAM_BUFFER: usize = 2048;

/// Zeroed memory that begins with a page, for peers that receive into one large buffer. malloc's blocks of this
/// size begin 16 bytes into one, where the kernel's copy takes several times as long on Zen 3 (see
/// `benches/README.md`).
pub(super) struct PageAligned {
    bytes: Vec<u8>,
    start: usize,
}

impl PageAligned {
    const PAGE: usize = 4096;

    pub(super) fn new(len: usize) -> Self {
        let bytes = vec![0; len + Self::PAGE - 1];
        let start = bytes.as_ptr().align_offset(Self::PAGE);
        Self { bytes, start }
    }
}

impl Deref for PageAligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for PageAligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

/// How datagrams arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Wire {
    /// Sent with GSO, received with GRO: on loopback 54 datagrams of 1200 bytes per buffer.
    Coalesced,
    /// One by one, with GRO off.
    Plain,
    /// One by one, to sockets with GRO on and buffers of 64 KiB.
    PlainIntoGro,
}

pub(super) const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

pub(super) fn pool() -> PacketPool {
    PacketPool::builder()
        .max_memory(256 << 20)
        .build()
        .expect("256 MiB of address space")
}

/// Opens our receiver for this wire, in the current runtime. It asks the kernel for the same metadata as
/// its peers do: on a plain wire for the source alone, like tokio's sockets, otherwise for everything, like
/// quinn-udp.
pub(super) fn our_receiver(wire: Wire) -> UdpReceiver {
    bind(our_builder(&pool(), wire).source_only(wire == Wire::Plain))
}

/// Opens our receiver for this wire, in the current runtime, with all metadata.
pub(super) fn our_receiver_with_metadata(pool: &PacketPool, wire: Wire) -> UdpReceiver {
    bind(our_builder(pool, wire))
}

/// Opens our receiver for this wire by io_uring, in the current runtime. Its pool has a class for a
/// super-buffer together with what the kernel puts in front of it.
///
/// # Errors
/// io_uring cannot be used here.
pub(super) fn uring_receiver(wire: Wire) -> Result<UdpReceiver, String> {
    let mut sizes = SizeClasses::network().sizes().to_vec();
    sizes.push(66 << 10);
    let pool = PacketPool::builder()
        .size_classes(SizeClasses::explicit(&sizes).expect("the classes are valid"))
        .max_memory(256 << 20)
        .build()
        .expect("256 MiB of address space");
    let receiver = bind(our_builder(&pool, wire).io_uring(true));
    if receiver.uses_io_uring() {
        Ok(receiver)
    } else {
        Err("there is no io_uring here".into())
    }
}

/// # Errors
/// io_uring cannot be used here.
pub(super) fn uring_available() -> Result<(), String> {
    let runtime = runtime();
    let _inside = runtime.enter();
    uring_receiver(Wire::Plain).map(drop)
}

fn bind(builder: UdpReceiverBuilder) -> UdpReceiver {
    builder.bind(ANY).expect("a socket on loopback")
}

fn our_builder(pool: &PacketPool, wire: Wire) -> UdpReceiverBuilder {
    let coalescing = match wire {
        Wire::Coalesced | Wire::PlainIntoGro => Coalescing::On,
        Wire::Plain => Coalescing::Off {
            max_datagram: DATAGRAM_BUFFER,
        },
    };
    UdpReceiver::builder(pool)
        .coalescing(coalescing)
        .receive_buffer_bytes(RECEIVE_BUFFER)
}

/// Opens a peer's socket, in the current runtime.
pub(super) fn their_socket() -> tokio::net::UdpSocket {
    let socket = UdpSocket::bind(ANY).expect("a socket on loopback");
    socket.set_nonblocking(true).expect("non-blocking");
    let socket = socket2::Socket::from(socket);
    socket
        .set_recv_buffer_size(RECEIVE_BUFFER)
        .expect("a receive buffer");
    tokio::net::UdpSocket::from_std(socket.into()).expect("a runtime")
}

/// Fills the queue of a socket.
pub(super) struct Filler {
    runtime: Runtime,
    sender: UdpSender,
    plain: UdpSocket,
    payload: Vec<u8>,
    bytes: usize,
    count: usize,
}

impl Filler {
    /// Prepares to send so many datagrams of this length.
    pub(super) fn new(bytes: usize, count: usize) -> Self {
        let runtime = runtime();
        let sender = {
            let _inside = runtime.enter();
            UdpSender::bind(ANY).expect("a socket on loopback")
        };
        Self {
            runtime,
            sender,
            plain: UdpSocket::bind(ANY).expect("a socket on loopback"),
            payload: vec![7; count * bytes],
            bytes,
            count,
        }
    }

    pub(super) fn fill(&self, to: SocketAddr, wire: Wire) {
        match wire {
            Wire::Coalesced => {
                let all = Transmit::new(&self.payload, to).segment_size(self.bytes);
                let sent = self.runtime.block_on(self.sender.send(&all));
                assert_eq!(sent.expect("loopback takes it"), self.count);
            }
            Wire::Plain | Wire::PlainIntoGro => {
                for payload in self.payload.chunks(self.bytes) {
                    self.plain.send_to(payload, to).expect("loopback takes it");
                }
            }
        }
    }
}
