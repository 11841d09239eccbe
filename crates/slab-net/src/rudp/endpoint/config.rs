//! [`EndpointConfig`]: what the sessions of one socket share, and how many there may be.

use super::super::config::{SessionConfig, SessionConfigError};
use super::protect::Wanted;
use crate::packet::PacketPool;
use crate::udp::{BindError, Coalescing, UdpReceiver};
use core::fmt;
use std::sync::Arc;

/// The configuration of an [`Endpoint`](super::Endpoint).
///
/// ```
/// use slab_net::rudp::{EndpointConfig, SessionConfig};
///
/// let config = EndpointConfig::new(SessionConfig::fast()).max_sessions(10_000).memory(64 << 20);
/// # let _ = config;
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct EndpointConfig {
    pub(super) session: Arc<SessionConfig>,
    pub(super) max_sessions: usize,
    pub(super) max_half_open: usize,
    pub(super) max_half_open_per_prefix: usize,
    pub(super) require_cookie: bool,
    pub(super) backlog: usize,
    pub(super) memory: Option<usize>,
    pub(super) socket_buffers: Option<usize>,
    pub(super) offload: bool,
    pub(super) protection: Wanted,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self::new(SessionConfig::default())
    }
}

impl EndpointConfig {
    /// The defaults, for sessions of this configuration.
    pub fn new(session: SessionConfig) -> Self {
        Self {
            session: Arc::new(session),
            max_sessions: 4096,
            max_half_open: 1024,
            max_half_open_per_prefix: 128,
            require_cookie: false,
            backlog: 128,
            memory: None,
            socket_buffers: Some(4 << 20),
            offload: true,
            protection: Wanted::default(),
        }
    }

    /// The most sessions at once; a new one beyond that is refused, and no other harmed. Default:
    /// 4096.
    pub fn max_sessions(mut self, sessions: usize) -> Self {
        self.max_sessions = sessions;
        self
    }

    /// The most sessions whose peers have not proved their address, and the most of those from one
    /// prefix (24 bits of IPv4, 48 of IPv6). A peer of any implementation proves it within a round trip,
    /// by acknowledging data or what it is asked for that with the first answer. Default: 1024, 128.
    ///
    /// Together they get a fourth of [the memory](Self::memory) at most, so that forged addresses do not
    /// take what the other sessions need: no more of them are allowed than have in that their smallest
    /// window, 61 440 bytes each for an MTU of 1400 and the default size classes, as much for what is sent
    /// to them, and what error correction may keep of each.
    pub fn max_half_open(mut self, sessions: usize, per_prefix: usize) -> Self {
        self.max_half_open = sessions;
        self.max_half_open_per_prefix = per_prefix;
        self
    }

    /// Opens sessions only for peers that have proved their address by a cookie, which costs them a
    /// round trip and this end nothing. Peers of other implementations cannot. Default: no, only where
    /// there would be more half-open sessions than [allowed](Self::max_half_open) or fit in the memory
    /// that they have.
    pub fn require_cookie(mut self, require: bool) -> Self {
        self.require_cookie = require;
        self
    }

    /// The most sessions that wait to be [accepted](super::Endpoint::accept). Default: 128.
    pub fn backlog(mut self, sessions: usize) -> Self {
        self.backlog = sessions;
        self
    }

    /// The bytes of pool memory that all sessions together may reserve. Default: half of the
    /// pool's cap, so that the socket's buffers and the application have the rest; a message of several
    /// segments is joined in what the application has, and waits for it while it has none.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// How much the kernel queues for the socket, each way, in bytes of its own bookkeeping; it may
    /// have a lower limit. Default: 4 MiB.
    pub fn socket_buffers(mut self, bytes: usize) -> Self {
        self.socket_buffers = Some(bytes);
        self
    }

    /// Lets the kernel cut what goes out (GSO) and join what comes in (GRO). Without, each datagram is a
    /// message of its own on the way out, several of them a call on Linux, and a buffer of its own on the
    /// way in: for devices that get it wrong, and to see what it is worth. Default: yes.
    pub fn offload(mut self, offload: bool) -> Self {
        self.offload = offload;
        self
    }

    /// The receiver that this configuration asks for, not yet bound.
    pub(super) fn receiver(&self, pool: &PacketPool) -> crate::udp::UdpReceiverBuilder {
        let coalescing = match self.offload {
            true => Coalescing::On,
            // What protection adds is not in the session's MTU any more. With room for what a peer with
            // a longer one sends.
            false => Coalescing::Off {
                max_datagram: (self.session.mtu + self.protection.added()).max(1500),
            },
        };
        let builder = UdpReceiver::builder(pool).coalescing(coalescing);
        match self.socket_buffers {
            Some(bytes) => builder.receive_buffer_bytes(bytes).send_buffer_bytes(bytes),
            None => builder,
        }
    }
}

/// Why an endpoint or a connection could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The socket.
    Bind(BindError),
    /// A value of the session configuration.
    Config(SessionConfigError),
    /// The pool's largest size class is below what a segment needs.
    NoSegmentClass {
        /// What a segment needs, in bytes.
        needed: usize,
        /// What the pool's largest class has, in bytes.
        largest: usize,
    },
    /// There are as many sessions as are allowed.
    TableFull,
    /// The memory budget has nothing left for a window.
    NoMemory,
    /// The endpoint is closed.
    Closed,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::NoSegmentClass { needed, largest } => write!(
                f,
                "segments need a size class of {needed} bytes, the pool's largest has {largest}"
            ),
            Self::TableFull => f.write_str("there are as many sessions as are allowed"),
            Self::NoMemory => f.write_str("the memory budget has no room for another session"),
            Self::Closed => f.write_str("the endpoint is closed"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind(error) => Some(error),
            Self::Config(error) => Some(error),
            _ => None,
        }
    }
}

impl From<BindError> for OpenError {
    fn from(error: BindError) -> Self {
        Self::Bind(error)
    }
}
