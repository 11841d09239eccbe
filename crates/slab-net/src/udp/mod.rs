//! UDP straight into pool memory, on tokio.
//!
//! A [`UdpReceiver`] reads with recvmmsg and GRO into chunks of a [`PacketPool`](crate::PacketPool) and
//! yields [`PacketBatch`]es: the contents of one kernel buffer with their metadata. A [`UdpSender`]
//! sends with GSO. Both keep counters; a [`SocketMonitor`] reads them at any time.
//!
//! ```
//! use slab_net::PacketPool;
//! use slab_net::udp::{Transmit, UdpReceiver, UdpSender};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = PacketPool::builder().max_memory(8 << 20).build()?;
//! let mut receiver = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
//! let sender = UdpSender::bind("127.0.0.1:0".parse()?)?;
//!
//! // Two datagrams, of three and two bytes, in one call to the kernel.
//! let two = Transmit::new(b"onetw", receiver.local_addr()).segment_size(3);
//! assert_eq!(sender.send(&two).await?, 2);
//!
//! let mut packets = Vec::new();
//! while packets.len() < 2 {
//!     packets.extend(receiver.recv_batch().await?.into_packets());
//! }
//! assert_eq!(&packets[0][..], b"one");
//! assert_eq!(&packets[1][..], b"tw");
//! # Ok(())
//! # }
//! ```
//!
//! A receiver is also a `Stream`, and a sender has a [`UdpSink`]. Options that the builder does not
//! offer can be set on a socket of your own, see [`from_std`](UdpReceiverBuilder::from_std), or later,
//! by the receiver's `AsFd`.
//!
//! | for | see |
//! |---|---|
//! | receiving: batches, single datagrams, with io_uring | [`UdpReceiver`], [`UdpReceiverBuilder`], [`PacketBatch`], [`Datagram`] |
//! | several sockets at one address, each with a thread | [`UdpReceiverBuilder::bind_shards`], [`Shard`] |
//! | sending: one buffer or many, to one destination or many | [`UdpSender`], [`Transmit`]; packets, as a `Sink`: [`UdpSink`] |
//! | code that needs a genuine `BytesMut`; quinn | [`BytesMutReceiver`]; `QuinnSocket` (feature `quinn`) |
//! | counters | [`SocketMonitor`], [`SocketStats`] |

// Files:
// | `builder`, `socket` | how a receiver is configured; the socket that receiver and senders share |
// | `shard` | several sockets at one address |
// | `receiver`, `reader`, `slots` | the receive path: waiting, one system call, the buffers that it fills |
// | `spare` | receive buffers beside an exhausted pool |
// | `batch`, `datagram`, `prefetch` | what the receive path yields |
// | `uring` | the receive path by io_uring (feature `io-uring`) |
// | `sender`, `transmit`, `sink` | the send path: system calls, what is sent and how it is cut, a `Sink` |
// | `bytes_mut`, `quinn` | genuine `BytesMut` for consumers that need them; a socket for quinn (feature `quinn`) |
// | `io`, `error_watch` | how a runtime drives a socket; waiting for the errors of a connected one |
// | `sys` | system calls and socket options |
// | `stats`, `tally`, `episode` | counters; log events for drops, once an episode |
// | `error` | errors |

mod batch;
mod builder;
mod bytes_mut;
mod datagram;
mod episode;
mod error;
mod error_watch;
mod io;
mod prefetch;
#[cfg(feature = "quinn")]
mod quinn;
mod reader;
mod receiver;
mod sender;
mod shard;
mod sink;
mod slots;
mod socket;
mod spare;
mod stats;
mod sys;
mod tally;
mod transmit;
#[cfg(all(target_os = "linux", feature = "io-uring"))]
mod uring;

pub use batch::{IntoBufs, IntoBytes, IntoDatagrams, IntoPackets, Iter, PacketBatch};
pub use builder::{Coalescing, UdpReceiverBuilder};
pub use bytes_mut::BytesMutReceiver;
pub use datagram::{Datagram, Ecn};
pub(crate) use episode::DropEpisode;
pub use error::{BatchError, BindError, SendError, SendErrorKind};
#[cfg(feature = "quinn")]
pub use quinn::QuinnSocket;
pub use receiver::UdpReceiver;
pub use sender::UdpSender;
pub use shard::Shard;
pub use sink::{Outgoing, UdpSink};
pub use stats::{SocketMonitor, SocketStats};
pub(crate) use tally::{Amount, Tally};
pub use transmit::Transmit;
