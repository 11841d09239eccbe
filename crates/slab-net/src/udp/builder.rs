//! [`UdpReceiverBuilder`]: the configuration of a receiver.

use super::error::BindError;
use super::reader::Reader;
use super::receiver::UdpReceiver;
use super::slots::MAX_SLOTS;
use super::socket::{BoundSocket, SocketOptions};
use super::sys;
use crate::packet::PacketPool;
use std::net::SocketAddr;

/// The longest payload of a datagram in bytes: the maximum UDP length of 65535 less the header. Over
/// IPv4 it is 65507.
pub(super) const MAX_DATAGRAM: usize = 65527;
/// Large enough for whatever the kernel coalesces, and at least one byte more.
const SUPER_BUFFER: usize = 64 << 10;
/// The most super-buffers in one system call. More gained nothing (measured), and each pins 64 KiB.
const MAX_SUPER_SLOTS: usize = 8;

/// Whether the kernel may put several datagrams of one sender into one buffer (GRO).
///
/// Either setting also fixes the buffer size, because a mismatch loses data: a kernel that coalesces
/// into buffers that are too short truncates silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Coalescing {
    /// GRO on, with buffers of 64 KiB, the most that the kernel coalesces. A payload that fills at most
    /// half of its buffer is copied to a chunk of its own size.
    #[default]
    On,
    /// GRO off: one buffer for each datagram.
    Off {
        /// The longest datagram to be delivered whole, in bytes. Longer ones are counted as truncated
        /// and, unless [requested](UdpReceiverBuilder::deliver_truncated), dropped.
        max_datagram: usize,
    },
}

/// The configuration of a [`UdpReceiver`]; made by [`UdpReceiver::builder`].
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::udp::{Coalescing, UdpReceiver};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let receiver = UdpReceiver::builder(&pool)
///     .coalescing(Coalescing::Off { max_datagram: 1500 })
///     .receive_buffer_bytes(1 << 20)
///     .timestamps(true)
///     .bind("127.0.0.1:0".parse()?)?;
/// assert_ne!(receiver.local_addr().port(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct UdpReceiverBuilder {
    pool: PacketPool,
    coalescing: Coalescing,
    deliver_truncated: bool,
    options: SocketOptions,
    #[cfg(feature = "io-uring")]
    io_uring: bool,
}

impl UdpReceiverBuilder {
    pub(super) fn new(pool: &PacketPool) -> Self {
        Self {
            pool: pool.clone(),
            coalescing: Coalescing::default(),
            deliver_truncated: false,
            options: SocketOptions::default(),
            #[cfg(feature = "io-uring")]
            io_uring: false,
        }
    }

    /// Sets whether the kernel may coalesce datagrams. Default: [`Coalescing::On`].
    pub fn coalescing(mut self, coalescing: Coalescing) -> Self {
        self.coalescing = coalescing;
        self
    }

    /// Delivers the beginning of a datagram that is longer than the receiver's buffers, marked as
    /// [truncated](super::Datagram::truncated). Default: no, the datagram is dropped. It is counted in
    /// both cases.
    ///
    /// Only relevant to [`Coalescing::Off`]: nothing exceeds the buffers of [`Coalescing::On`]. Windows does
    /// not tell the sender of such a datagram, whose source is then `[::]:0`.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// use slab_net::udp::{Coalescing, Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut socket = UdpReceiver::builder(&pool)
    ///     .coalescing(Coalescing::Off { max_datagram: 512 })
    ///     .deliver_truncated(true)
    ///     .bind("127.0.0.1:0".parse()?)?;
    /// socket.sender().send(&Transmit::new(&[7; 600], socket.local_addr())).await?;
    /// let batch = socket.recv_batch().await?;
    /// assert!(batch.is_truncated() && batch.contents() == [7; 512]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn deliver_truncated(mut self, deliver: bool) -> Self {
        self.deliver_truncated = deliver;
        self
    }

    /// Requests the kernel's time of arrival of each datagram, or of each run of coalesced datagrams.
    /// Costs some time for each. Default: no. Linux only (binding fails if it has none, as under qemu's user
    /// mode); ignored elsewhere.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut socket = UdpReceiver::builder(&pool).timestamps(true).bind("127.0.0.1:0".parse()?)?;
    /// socket.sender().send(&Transmit::new(b"hello", socket.local_addr())).await?;
    /// let arrived = socket.recv_batch().await?.timestamp();
    /// assert_eq!(arrived.is_some(), cfg!(target_os = "linux"));
    /// if let Some(queued) = arrived.and_then(|at| at.elapsed().ok()) {
    ///     println!("queued for {queued:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn timestamps(mut self, timestamps: bool) -> Self {
        self.options.features.timestamps = timestamps;
        self
    }

    /// Requests no metadata from the kernel except the source: neither
    /// [destination](super::Datagram::destination_ip) and interface nor ECN. Default: no. Linux only;
    /// ignored elsewhere.
    ///
    /// This saves the kernel work: without coalescing, a datagram took a fifth less of the kernel's
    /// time when this was written (measure other machines with `versus udp --only slab-net-metadata`).
    /// Use it for sockets that are bound to one address and have no use for ECN: a
    /// [reply](super::PacketBatch::reply) from a socket bound to all addresses comes from the one that
    /// the system chooses.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut socket = UdpReceiver::builder(&pool).source_only(true).bind("127.0.0.1:0".parse()?)?;
    /// socket.sender().send(&Transmit::new(b"hello", socket.local_addr())).await?;
    /// assert_eq!(socket.recv_batch().await?.source(), socket.local_addr());
    /// # Ok(())
    /// # }
    /// ```
    pub fn source_only(mut self, source_only: bool) -> Self {
        self.options.features.source_only = source_only;
        self
    }

    /// Receives by io_uring (Linux 6.0): one multishot recvmsg into a ring of pool chunks, without a
    /// system call for each batch. Default: no.
    ///
    /// If the system has no io_uring or forbids it, or if the pool has no size class of at least 256
    /// bytes more than a buffer (with [`Coalescing::On`]: 65 792), the receiver works as without this
    /// option, and one warning says why; [`uses_io_uring`](UdpReceiver::uses_io_uring) tells.
    ///
    /// Unlike a receiver that waits for readiness, an idle one holds memory: the kernel always has 8
    /// super-buffers, or 32 buffers of single datagrams.
    ///
    /// It is not faster everywhere: on the machine of the figures in this crate's README each datagram
    /// takes more CPU than by readiness, coalesced or not. Measure other machines with
    /// `cargo run --release -p versus -- udp --only uring`.
    ///
    /// Feature `io-uring`.
    ///
    /// ```
    /// use slab_net::udp::{Transmit, UdpReceiver};
    /// use slab_net::{PacketPool, SizeClasses};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut sizes = SizeClasses::network().sizes().to_vec();
    /// sizes.push(66 << 10);
    /// let classes = SizeClasses::explicit(&sizes)?;
    /// let pool = PacketPool::builder().max_memory(16 << 20).size_classes(classes).build()?;
    /// let mut receiver = UdpReceiver::builder(&pool).io_uring(true).bind("127.0.0.1:0".parse()?)?;
    /// println!("by {}", if receiver.uses_io_uring() { "io_uring" } else { "readiness" });
    /// receiver.sender().send(&Transmit::new(b"hello", receiver.local_addr())).await?;
    /// assert_eq!(receiver.recv_batch().await?.contents(), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "io-uring")]
    pub fn io_uring(mut self, io_uring: bool) -> Self {
        self.io_uring = io_uring;
        self
    }

    /// Lets the system fragment datagrams that are longer than the path to their destination takes, as sockets
    /// do by default; it learns how much that is from what routers report (ICMP). A socket that is
    /// [passed in](Self::from_std) then keeps its own `IP_MTU_DISCOVER`, which is overwritten otherwise. Default: no.
    /// Linux only; ignored elsewhere. Loopback takes 64 KiB at once, so a test on it shows no difference.
    ///
    /// Without it, a datagram longer than the first link takes is refused as
    /// [`TooLarge`](super::SendErrorKind::TooLarge). One that only a later link does not take is lost without
    /// an error, each time, as no report of a router is believed: anyone could forge it. (The next read of a
    /// [connected](Self::connect) socket returns the report once, as EMSGSIZE.) That is for protocols that probe the path,
    /// such as QUIC, or send nothing longer than every path takes (1232 bytes, with IPv6).
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut socket = UdpReceiver::builder(&pool).fragment(true).bind("127.0.0.1:0".parse()?)?;
    /// socket.sender().send(&Transmit::new(&[0; 8000], socket.local_addr())).await?;
    /// assert_eq!(socket.recv_batch().await?.contents().len(), 8000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fragment(mut self, fragment: bool) -> Self {
        self.options.features.fragment = fragment;
        self
    }

    /// Lets several sockets share the address (`SO_REUSEPORT`; elsewhere than on Unix, binding then fails); the kernel distributes the
    /// senders over them, but each gets a copy of what is sent to a multicast group or to all (broadcast).
    /// Port 0 makes the system choose a port that no other socket has yet. Default: no.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::UdpReceiver;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// // Such as two processes, while one takes over from the other.
    /// let builder = UdpReceiver::builder(&pool).reuse_port(true);
    /// let old = builder.clone().bind("127.0.0.1:0".parse()?)?;
    /// let new = builder.bind(old.local_addr())?;
    /// assert_eq!(new.local_addr(), old.local_addr());
    /// assert!(UdpReceiver::bind(old.local_addr(), &pool).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.options.reuse_port = reuse;
        self
    }

    /// Sets how much the kernel may queue for the socket, in bytes of its own accounting (`SO_RCVBUF`).
    /// The system may have a lower limit. Default: the system's.
    pub fn receive_buffer_bytes(mut self, bytes: usize) -> Self {
        self.options.receive_buffer_bytes = Some(bytes);
        self
    }

    /// Sets how much the kernel may queue for sending, in bytes (`SO_SNDBUF`). Default: the system's.
    pub fn send_buffer_bytes(mut self, bytes: usize) -> Self {
        self.options.send_buffer_bytes = Some(bytes);
        self
    }

    /// Receives from this peer only. The system then reports when the peer's host refuses a datagram
    /// (ICMP "port unreachable"), or a router that it cannot be reached, or only by shorter ones: the next send or read
    /// returns that error once, and the socket remains usable. So a loop that receives should not end with it: it can be
    /// forged. A send that returns it has sent nothing: send again. A waiting receiver is woken for it, by io_uring too;
    /// Linux forgets it if it arrives between two messages of one system call, so a client still needs a time limit.
    /// Default: no peer.
    ///
    /// On Linux and Windows. Other systems refuse to send from a connected socket to an address, even its
    /// peer's, as senders do; there it can only receive.
    ///
    /// The socket is bound before it is connected: datagrams that anyone sent to it in between, or
    /// before it was [passed in](Self::from_std), are delivered. If that matters, check the source.
    pub fn connect(mut self, peer: SocketAddr) -> Self {
        self.options.peer = Some(peer);
        self
    }

    /// Opens and binds the socket.
    ///
    /// # Errors
    /// The pool has no size class for the receive buffers, the maximum datagram length is out of range,
    /// or the system refuses.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn bind(self, address: SocketAddr) -> Result<UdpReceiver, BindError> {
        self.open(address)?.start()
    }

    /// Takes a socket that is already bound, for options that this builder does not have, such as
    /// multicast groups, TTL, type of service, or IPv6 without IPv4.
    ///
    /// The builder's options are applied, except [`reuse_port`](Self::reuse_port), for which it is too
    /// late. Its queue of errors (on Linux `IP_RECVERR`) is switched off, as nobody would read it, and so is a segment
    /// size (`UDP_SEGMENT`), which would cut datagrams. All other options of the socket are left unchanged.
    ///
    /// Of what the system reports with a datagram there is room for what this crate reads. Options that make it report
    /// more, such as `SO_TIMESTAMPING`, can cost the [ECN codepoint](super::Datagram::ecn), and several of them the
    /// [destination](super::Datagram::destination_ip), which then are `None`.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::UdpReceiver;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_ttl(3)?;
    /// let receiver = UdpReceiver::builder(&pool).from_std(socket)?;
    /// # assert_ne!(receiver.local_addr().port(), 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as [`bind`](Self::bind).
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn from_std(mut self, socket: std::net::UdpSocket) -> Result<UdpReceiver, BindError> {
        let reader = self.reader()?;
        let bound = BoundSocket::adopt(socket, self.options)?;
        self.unstarted(bound, reader).start()
    }

    /// Binds the socket, without a runtime.
    pub(super) fn open(mut self, address: SocketAddr) -> Result<UnstartedReceiver, BindError> {
        let reader = self.reader()?;
        let bound = BoundSocket::open(address, self.options)?;
        Ok(self.unstarted(bound, reader))
    }

    fn unstarted(&self, bound: BoundSocket, reader: Reader) -> UnstartedReceiver {
        UnstartedReceiver {
            bound,
            reader,
            #[cfg(feature = "io-uring")]
            io_uring: self.io_uring,
        }
    }

    fn reader(&mut self) -> Result<Reader, BindError> {
        let (buffer_bytes, max_slots) = match self.coalescing {
            Coalescing::On => (SUPER_BUFFER, MAX_SUPER_SLOTS),
            Coalescing::Off { max_datagram } => {
                if !(1..=MAX_DATAGRAM).contains(&max_datagram) {
                    return Err(BindError::MaxDatagram {
                        bytes: max_datagram,
                    });
                }
                (max_datagram + sys::SPARE_BYTES, MAX_SLOTS)
            }
        };
        let largest = self.pool.slab().size_classes().largest();
        if largest < buffer_bytes {
            return Err(BindError::NoBufferClass {
                needed: buffer_bytes,
                largest,
            });
        }
        self.options.features.coalesce = self.coalescing == Coalescing::On;
        let pool = self.pool.clone();
        let reader = Reader::new(pool, buffer_bytes, max_slots, self.deliver_truncated);
        Ok(reader)
    }
}

/// A receiver whose socket is bound, but not yet driven by a runtime.
#[derive(Debug)]
pub(super) struct UnstartedReceiver {
    pub(super) bound: BoundSocket,
    reader: Reader,
    #[cfg(feature = "io-uring")]
    io_uring: bool,
}

impl UnstartedReceiver {
    pub(super) fn start(self) -> Result<UdpReceiver, BindError> {
        let socket = self.bound.register()?;
        let receiver = UdpReceiver::new(socket, self.reader);
        #[cfg(feature = "io-uring")]
        let receiver = match self.io_uring {
            true => receiver.with_uring(),
            false => receiver,
        };
        Ok(receiver)
    }
}
