//! What can go wrong with a socket.

use core::fmt;
use std::io;
use std::net::SocketAddr;

/// Why a receiver or sender could not be made. Nothing is left half-started.
#[derive(Debug)]
#[non_exhaustive]
pub enum BindError {
    /// The system would not open, configure or bind the socket.
    Socket {
        /// The address that was to be bound.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The largest size class of the pool is smaller than the receiver's buffers.
    NoBufferClass {
        /// What the receiver needs, in bytes.
        needed: usize,
        /// What the pool's largest class has, in bytes.
        largest: usize,
    },
    /// `max_datagram` is zero, or longer than any datagram.
    MaxDatagram {
        /// The value given, in bytes.
        bytes: usize,
    },
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket { address, source } => write!(f, "cannot bind UDP {address}: {source}"),
            Self::NoBufferClass { needed, largest } => write!(
                f,
                "receive buffers need a size class of {needed} bytes, the pool's largest has \
                 {largest}"
            ),
            Self::MaxDatagram { bytes } => write!(
                f,
                "no datagram has a maximum length of {bytes} bytes (1 to {})",
                super::receiver::MAX_DATAGRAM
            ),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Socket { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why a transmit ended early. The sender can go on being used.
#[derive(Debug)]
pub struct SendError {
    pub(super) sent: usize,
    pub(super) kind: SendErrorKind,
}

/// What the system said to a datagram.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// Longer than the path to the destination takes; datagrams are not fragmented (EMSGSIZE).
    TooLarge {
        /// The length of the datagram in bytes.
        bytes: usize,
    },
    /// The system is out of memory for outgoing datagrams just now (ENOBUFS).
    NoBuffers,
    /// The destination answered an earlier datagram of a connected socket with "port unreachable"
    /// (ECONNREFUSED). Nothing of this transmit is wrong.
    Refused,
    /// Anything else.
    Io(io::Error),
}

impl SendError {
    /// How many datagrams of the transmit were sent before the one that failed.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// What the system said.
    #[must_use]
    pub fn kind(&self) -> &SendErrorKind {
        &self.kind
    }
}

impl SendErrorKind {
    pub(super) fn from_io(error: io::Error, bytes: usize) -> Self {
        if quinn_udp::is_msg_size_err(&error) {
            return Self::TooLarge { bytes };
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            _ if is_no_buffers(&error) => Self::NoBuffers,
            _ => Self::Io(error),
        }
    }
}

#[cfg(target_os = "linux")]
fn is_no_buffers(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(not(target_os = "linux"))]
fn is_no_buffers(_: &io::Error) -> bool {
    false
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            SendErrorKind::TooLarge { bytes } => {
                write!(f, "a datagram of {bytes} bytes is too long for the path")
            }
            SendErrorKind::NoBuffers => write!(f, "the system has no buffer for a datagram"),
            SendErrorKind::Refused => write!(f, "the destination refused an earlier datagram"),
            SendErrorKind::Io(error) => write!(f, "cannot send: {error}"),
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
