//! UDP straight into pool memory, on tokio.
//!
//! A [`UdpReceiver`] reads with recvmmsg and GRO into chunks of a [`PacketPool`](crate::PacketPool)
//! and yields [`PacketBatch`]es: what one kernel buffer held, with its metadata. A [`UdpSender`]
//! sends with GSO. Both count what they do; a [`SocketMonitor`] reads the counters at any time.
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
//! | module | what |
//! |---|---|
//! | `receiver`, `slots` | the receive path, and the buffers that the kernel writes to |
//! | `batch`, `datagram` | what the receive path yields |
//! | `sender` | the send path |
//! | `socket`, `options` | the socket that both sides share, and how it is set up |
//! | `stats`, `episode` | counters; log events for drops, once an episode |
//! | `error` | what can go wrong |

mod batch;
mod datagram;
mod episode;
mod error;
mod options;
mod receiver;
mod sender;
mod slots;
mod socket;
mod stats;

pub use batch::{IntoDatagrams, IntoPackets, Iter, PacketBatch};
pub use datagram::{Datagram, Ecn};
pub(crate) use episode::DropEpisode;
pub use error::{BindError, SendError, SendErrorKind};
pub use receiver::{Coalescing, UdpReceiver, UdpReceiverBuilder};
pub use sender::{Transmit, UdpSender};
pub use stats::{SocketMonitor, SocketStats};
