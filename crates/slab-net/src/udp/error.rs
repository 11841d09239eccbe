//! The errors of sockets. None repeats in its own text what its source says.

use super::sys;
use core::fmt;
use slab_core::AllocError;
use std::io;
use std::net::SocketAddr;

/// Why a receiver or sender could not be made. Everything opened so far is closed again.
#[derive(Debug)]
#[non_exhaustive]
pub enum BindError {
    /// The system refused to open, configure or bind the socket.
    Socket {
        /// The address to be bound; of a socket that was passed in, its own.
        address: SocketAddr,
        /// The system's error, which is also the `source`.
        error: io::Error,
    },
    /// The system refused to connect the socket, for example because nothing leads to the peer.
    Connect {
        /// The address to be connected to.
        peer: SocketAddr,
        /// The system's error, which is also the `source`.
        error: io::Error,
    },
    /// The largest size class of the pool is smaller than the receiver's buffers.
    NoBufferClass {
        /// The size that the receiver needs, in bytes.
        needed: usize,
        /// The size of the pool's largest class, in bytes.
        largest: usize,
    },
    /// `max_datagram` is zero, or greater than the length of any datagram.
    MaxDatagram {
        /// The value given, in bytes.
        bytes: usize,
    },
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket { address, .. } => write!(f, "cannot bind UDP {address}"),
            Self::Connect { peer, .. } => write!(f, "cannot connect UDP to {peer}"),
            Self::NoBufferClass { needed, largest } => write!(
                f,
                "receive buffers need a size class of {needed} bytes, the pool's largest has \
                 {largest}; add one, or receive without coalescing"
            ),
            Self::MaxDatagram { bytes } => write!(
                f,
                "the maximum datagram length must be 1 to {} bytes, not {bytes}",
                super::builder::MAX_DATAGRAM
            ),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Socket { error, .. } | Self::Connect { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// An error of the system's kind, or of [`InvalidInput`](io::ErrorKind::InvalidInput), with this one in it.
impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        let kind = match &error {
            BindError::Socket { error, .. } | BindError::Connect { error, .. } => error.kind(),
            BindError::NoBufferClass { .. } | BindError::MaxDatagram { .. } => {
                io::ErrorKind::InvalidInput
            }
        };
        Self::new(kind, error)
    }
}

/// Why [`PacketBatch::try_copy_from_slice`](super::PacketBatch::try_copy_from_slice) made no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchError {
    /// The payload is longer than any datagram, and than what the kernel coalesces.
    TooLong {
        /// The length of the payload in bytes.
        bytes: usize,
    },
    /// The payload has more datagrams than the kernel coalesces.
    TooManyDatagrams {
        /// The number of datagrams.
        datagrams: usize,
    },
    /// The pool has no memory for the payload. Why is also the `source`.
    NoMemory(AllocError),
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => write!(
                f,
                "a batch has at most {} bytes, not {bytes}",
                super::builder::MAX_DATAGRAM
            ),
            Self::TooManyDatagrams { datagrams } => write!(
                f,
                "a batch has at most {} datagrams, not {datagrams}",
                super::batch::MAX_DATAGRAMS
            ),
            Self::NoMemory(_) => f.write_str("the pool has no memory for the batch"),
        }
    }
}

impl std::error::Error for BatchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoMemory(error) => Some(error),
            _ => None,
        }
    }
}

/// An error of the kind that fits, with this one in it.
impl From<BatchError> for io::Error {
    fn from(error: BatchError) -> Self {
        let kind = match error {
            BatchError::TooLong { .. } | BatchError::TooManyDatagrams { .. } => {
                io::ErrorKind::InvalidInput
            }
            BatchError::NoMemory(_) => io::ErrorKind::OutOfMemory,
        };
        Self::new(kind, error)
    }
}

/// Why a transmit ended early. The sender remains usable.
///
/// ```
/// # use slab_net::PacketPool;
/// # use slab_net::udp::{Transmit, UdpReceiver};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// # let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
/// # let (sender, forged) = (socket.sender(), "127.0.0.1:0".parse()?);
/// # let peers = [socket.local_addr(), forged, socket.local_addr()];
/// let answers = peers.map(|peer| Transmit::new(b"pong", peer)); // each is one datagram
/// let (mut rest, mut refused) = (&answers[..], Vec::new());
/// while let Err(error) = sender.send_many(rest).await {
///     // Goes on with the one behind it: whoever forges a source must not keep the others from their answers.
///     refused.extend(error.destination());
///     rest = rest.get(error.sent() + 1..).unwrap_or_default();
/// }
/// assert_eq!(refused, [forged]);
/// # assert_eq!([socket.recv().await?.packet, socket.recv().await?.packet], ["pong"; 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SendError {
    pub(crate) sent: usize,
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) kind: SendErrorKind,
}

/// Why a datagram was not sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// Longer than UDP, or the first link to the destination, allows (EMSGSIZE). Datagrams are not
    /// fragmented unless that was [asked for](super::UdpReceiverBuilder::fragment), which also says what
    /// becomes of those that a later link does not take.
    TooLarge {
        /// The length of the datagram in bytes.
        bytes: usize,
    },
    /// The system has no memory for outgoing datagrams at the moment (ENOBUFS).
    NoBuffers,
    /// The destination answered an earlier datagram of a connected socket with "port unreachable"
    /// (ECONNREFUSED). This transmit is not at fault; sending it again may work.
    Refused,
    /// The datagram has more parts than one system call takes.
    TooManyParts {
        /// The maximum number of parts.
        most: usize,
    },
    /// The socket's send buffer is full: only of [`try_send`](super::UdpSender::try_send), which does not wait for room.
    WouldBlock,
    /// Any other error, which is also the `source`.
    Io(io::Error),
}

impl SendError {
    /// An error that no datagram caused: the runtime is gone.
    pub(super) fn from_runtime(error: io::Error) -> Self {
        Self {
            sent: 0,
            destination: None,
            kind: SendErrorKind::Io(error),
        }
    }

    /// The number of datagrams that were sent before the one that failed.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Where the datagram was to go that was being sent when the error came; `None` if no datagram was. On a connected
    /// socket the error may be about an earlier one, as with [`Refused`](SendErrorKind::Refused).
    ///
    /// Who sends by a [`UdpSink`](super::UdpSink) knows by this whose packet is gone, but not which of several to the same
    /// destination.
    #[must_use]
    pub fn destination(&self) -> Option<SocketAddr> {
        self.destination
    }

    /// Why the datagram was not sent.
    #[must_use]
    pub fn kind(&self) -> &SendErrorKind {
        &self.kind
    }
}

impl SendErrorKind {
    pub(super) fn from_io(error: io::Error, bytes: usize) -> Self {
        match error.kind() {
            _ if sys::is_too_large(&error) => Self::TooLarge { bytes },
            _ if sys::is_no_buffers(&error) => Self::NoBuffers,
            io::ErrorKind::ConnectionRefused => Self::Refused,
            _ => Self::Io(error),
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot send")?;
        if let Some(destination) = self.destination {
            write!(f, " to {destination}")?;
        }
        match &self.kind {
            SendErrorKind::TooLarge { bytes } => {
                write!(f, ": a datagram of {bytes} bytes is too long for the path")
            }
            SendErrorKind::NoBuffers => write!(f, ": the system has no buffer for a datagram"),
            SendErrorKind::Refused => write!(f, ": the socket's peer refused an earlier datagram"),
            SendErrorKind::TooManyParts { most } => {
                write!(f, ": a datagram is in more than {most} parts")
            }
            SendErrorKind::WouldBlock => write!(f, ": the socket's send buffer is full"),
            SendErrorKind::Io(_) => Ok(()),
        }?;
        write!(f, " ({} sent before)", self.sent)
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            SendErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// An error of the kind that fits, with this one in it.
impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        let kind = match &error.kind {
            SendErrorKind::TooLarge { .. } | SendErrorKind::TooManyParts { .. } => {
                io::ErrorKind::InvalidInput
            }
            SendErrorKind::NoBuffers => io::ErrorKind::OutOfMemory,
            SendErrorKind::Refused => io::ErrorKind::ConnectionRefused,
            SendErrorKind::WouldBlock => io::ErrorKind::WouldBlock,
            SendErrorKind::Io(error) => error.kind(),
        };
        Self::new(kind, error)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn system_errors_map_to_error_kinds() {
        let of = |code| SendErrorKind::from_io(io::Error::from_raw_os_error(code), 7);
        assert!(matches!(
            of(libc::EMSGSIZE),
            SendErrorKind::TooLarge { bytes: 7 }
        ));
        assert!(matches!(of(libc::ENOBUFS), SendErrorKind::NoBuffers));
        assert!(matches!(of(libc::ECONNREFUSED), SendErrorKind::Refused));
        assert!(matches!(of(libc::EPERM), SendErrorKind::Io(_)));
    }

    #[test]
    fn an_io_error_has_the_kind_and_says_what_this_one_says() {
        let kind = SendErrorKind::from_io(io::Error::from_raw_os_error(libc::EPERM), 7);
        let error = io::Error::from(SendError {
            sent: 2,
            destination: Some(([192, 0, 2, 1], 53).into()),
            kind,
        });
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(
            error.to_string(),
            "cannot send to 192.0.2.1:53 (2 sent before)"
        );
        for (kind, is) in [
            (SendErrorKind::NoBuffers, io::ErrorKind::OutOfMemory),
            (SendErrorKind::Refused, io::ErrorKind::ConnectionRefused),
            (SendErrorKind::WouldBlock, io::ErrorKind::WouldBlock),
            (
                SendErrorKind::TooLarge { bytes: 7 },
                io::ErrorKind::InvalidInput,
            ),
        ] {
            let (sent, destination) = (0, None);
            let error = SendError {
                sent,
                destination,
                kind,
            };
            assert_eq!(io::Error::from(error).kind(), is);
        }
        let error = io::Error::from(BindError::MaxDatagram { bytes: 0 });
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
