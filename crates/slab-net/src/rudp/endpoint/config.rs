//! [`EndpointConfig`]: what the sessions of one socket share, and their limits.

use super::super::config::SessionConfig;
use super::protect::ProtectionConfig;
use crate::packet::PacketPool;
use crate::udp::{Coalescing, UdpReceiver};

/// The configuration of an [`Endpoint`](super::Endpoint).
///
/// ```
/// use slab_net::rudp::{EndpointConfig, SessionConfig};
///
/// let config = EndpointConfig::new(SessionConfig::fast()).max_sessions(10_000).max_memory(64 << 20);
/// # let _ = config;
/// ```
///
/// A server that lets in few who have not proved their address, and a client that needs little:
///
/// ```
/// # use slab_net::PacketPool;
/// use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
/// let config = EndpointConfig::new(SessionConfig::fast());
/// let public = config.clone().max_half_open(100, 4).backlog(32);
/// let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, public)?;
/// let small = config.max_memory(1 << 20).receive_buffer_bytes(64 << 10).send_buffer_bytes(64 << 10).offload(false);
/// let client = Connection::connect(server.local_addr(), &pool, small)?;
///
/// client.ready().await?;
/// let stats = server.stats();
/// assert_eq!((stats.sessions, stats.backlog, stats.refused_half_open), (1, 1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct EndpointConfig {
    pub(super) session: SessionConfig,
    pub(super) max_sessions: usize,
    pub(super) max_half_open: usize,
    pub(super) max_half_open_per_prefix: usize,
    pub(super) require_cookie: bool,
    pub(super) backlog: usize,
    pub(super) max_memory: Option<usize>,
    pub(super) receive_buffer_bytes: usize,
    pub(super) send_buffer_bytes: usize,
    pub(super) offload: bool,
    pub(super) protection: ProtectionConfig,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self::new(SessionConfig::default())
    }
}

impl EndpointConfig {
    /// Creates the default configuration, with this configuration for its sessions.
    pub fn new(session: SessionConfig) -> Self {
        Self {
            session,
            max_sessions: 4096,
            max_half_open: 1024,
            max_half_open_per_prefix: 128,
            require_cookie: false,
            backlog: 128,
            max_memory: None,
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
            offload: true,
            protection: ProtectionConfig::default(),
        }
    }

    /// Sets the most sessions at once. A new one beyond that is refused; no other is harmed. Default: 4096. There may be
    /// [memory](Self::max_memory) for fewer.
    pub fn max_sessions(mut self, sessions: usize) -> Self {
        self.max_sessions = sessions;
        self
    }

    /// Sets the most sessions whose peers have not proved their address, and the most of those from one prefix (24
    /// bits of IPv4, 48 of IPv6). A peer of any implementation proves its address within a round trip, by
    /// acknowledging data or what the first answer asks it to. Default: 1024, 128.
    ///
    /// Together these sessions get at most a fourth of [the memory](Self::max_memory), so that forged addresses cannot
    /// take what the other sessions need. Their number is limited to what fits in that, but one may always open: for
    /// each its smallest window, 61 440 bytes with an MTU of 1400 and the default size classes, as much again for
    /// sending, and what error correction may keep.
    ///
    /// They take at most three fourths of [all places](Self::max_sessions), rounded up: where forged addresses had
    /// taken every place, a cookie would let nobody in.
    pub fn max_half_open(mut self, sessions: usize, per_prefix: usize) -> Self {
        self.max_half_open = sessions;
        self.max_half_open_per_prefix = per_prefix;
        self
    }

    /// Opens sessions only for peers that have proved their address by a cookie, which costs them a round trip and
    /// this end no memory. Peers of other implementations cannot do that. Default: off; then cookies are asked for
    /// only beyond the [allowed](Self::max_half_open) number of half-open sessions, or what fits in their memory.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// # let config = EndpointConfig::new(SessionConfig::fast());
    /// # let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone().require_cookie(true))?;
    /// // `server` has `require_cookie(true)`.
    /// let client = Connection::connect(server.local_addr(), &pool, config)?;
    /// client.ready().await?;
    /// let stats = server.stats();
    /// assert_eq!((stats.half_open, stats.cookies_taken), (0, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn require_cookie(mut self, require: bool) -> Self {
        self.require_cookie = require;
        self
    }

    /// Sets the most sessions that wait to be [accepted](super::Endpoint::accept). A new one beyond that is
    /// refused. Default: 128. One that ends while it waits is searched for among them: with ten thousand, that takes
    /// some ten microseconds.
    pub fn backlog(mut self, sessions: usize) -> Self {
        self.backlog = sessions;
        self
    }

    /// Sets the bytes of pool memory that all sessions together may reserve. Default: half of the pool's cap. The
    /// rest is for the socket's buffers and the application. A message of several segments is joined in a buffer
    /// from that rest, and waits while there is none.
    ///
    /// Each session reserves its smallest window: 61 440 bytes with an MTU of 1400, the default
    /// size classes and a receive window of 32 segments or more. An eighth of this memory is left to what the sessions
    /// send: who lets peers in has to be able to answer them. (Only a session that is alone may take all, and then has
    /// nothing to send from.) So the default cap of 64 MiB has room for 477 sessions,
    /// and 10 000 take a cap of 1.4 GB, of which only what is used is ever resident.
    ///
    /// Windows grow within three fourths of this memory (for a long message, in seven eighths, whatever of the rest is used
    /// for sending). A grown one is given back when its peer has finished; when nothing has come for the
    /// [keepalive](crate::rudp::SessionConfig::keepalive); when more than five eighths of this memory are reserved, and no
    /// data has come for 100 ms and two round trips; and when its session may take no more of it to send. Likewise, what is
    /// sent while nothing else of its session is in flight may lie in all of it, but for a sixteenth (below 8 MiB: an
    /// eighth, or 512 KiB) if other sessions send and windows may still grow, and more than that in three fourths, so that
    /// peers that take nothing leave room for new sessions; and four unread
    /// [datagrams](super::Connection::recv_datagram) of each session in all of it, and more in three fourths. Error
    /// correction goes on without what does not fit in three fourths. A session for which there is no memory is
    /// [refused](super::EndpointStats::refused_memory); its peer hears nothing, and times out.
    ///
    /// So two ends that are both short of memory, and send each other messages of more than 32 segments at the same time,
    /// wait for each other's windows to grow. A message whose turn does not come within the [idle
    /// timeout](crate::rudp::SessionConfig::idle_timeout) ends its session as
    /// [`MessageTooLong`](crate::rudp::CloseReason::MessageTooLong): as may happen where there is room for one at a time, and
    /// dozens of sessions wait for it.
    ///
    /// ```
    /// use slab_net::PacketPool;
    /// use slab_net::rudp::{Endpoint, EndpointConfig, SessionConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = PacketPool::builder().max_memory(64 << 20).headroom(24).build()?;
    /// let config = EndpointConfig::new(SessionConfig::fast());
    /// let endpoint = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config)?;
    /// # let peer = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    /// let sessions: Vec<_> = std::iter::from_fn(|| endpoint.connect(peer).ok()).collect();
    /// assert_eq!(sessions.len(), 477); // (64 << 20) / 2 * 7 / 8 / 61_440
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Each endpoint has a limit of its own, also that of a [`Connection::connect`](super::Connection::connect). If
    /// several share a pool, their limits together should leave such a rest: what an endpoint promises and the pool
    /// does not have is dropped when it comes, and sent again. If they promise many times what the pool has, sessions
    /// that read no more until they have sent, such as those of an echo server, can block each other until they
    /// time out.
    ///
    /// A small pool should have few [size classes](slab_core::SlabPoolBuilder::max_memory): each that is in use keeps a slab
    /// at least, 256 KiB by default. With the default ones, sessions that receive messages of many segments can stall in
    /// less than 2 MiB.
    pub fn max_memory(mut self, bytes: usize) -> Self {
        self.max_memory = Some(bytes);
        self
    }

    /// Sets how much the kernel may queue for the socket, in bytes of its own accounting (`SO_RCVBUF`). The system
    /// may have a lower limit. Default: 4 MiB.
    pub fn receive_buffer_bytes(mut self, bytes: usize) -> Self {
        self.receive_buffer_bytes = bytes;
        self
    }

    /// Sets how much the kernel may queue for sending, in bytes (`SO_SNDBUF`). The system may have a lower limit.
    /// Default: 4 MiB.
    pub fn send_buffer_bytes(mut self, bytes: usize) -> Self {
        self.send_buffer_bytes = bytes;
        self
    }

    /// Lets the kernel split what is sent (GSO) and join what is received (GRO, [`Coalescing::On`]). Without it,
    /// each datagram is handed to the kernel by itself (on Linux several in one call) and received in a buffer of
    /// its own: for devices that do it wrong, and to measure what it is worth. The buffer takes 1500 bytes, or this
    /// end's [MTU](SessionConfig::mtu) if that is longer. What is longer still is dropped, and counted as truncated,
    /// each time that it is sent again: the peer's MTU must not be longer. Default: on.
    pub fn offload(mut self, offload: bool) -> Self {
        self.offload = offload;
        self
    }

    /// Returns the bytes of pool memory that all sessions together may reserve.
    pub(super) fn budget_bytes(&self, pool: &PacketPool) -> usize {
        self.max_memory.unwrap_or(pool.slab().max_memory() / 2)
    }

    /// Returns the receiver for this configuration, not yet bound.
    pub(super) fn receiver(&self, pool: &PacketPool) -> crate::udp::UdpReceiverBuilder {
        let coalescing = match self.offload {
            true => Coalescing::On,
            // The session's MTU no longer contains what protection adds. 1500 leaves room for a peer with a longer
            // MTU.
            false => Coalescing::Off {
                max_datagram: (self.session.mtu + self.protection.overhead_bytes()).max(1500),
            },
        };
        UdpReceiver::builder(pool)
            .coalescing(coalescing)
            // Nothing here probes the path, and other implementations use sockets that fragment.
            .fragment(true)
            .receive_buffer_bytes(self.receive_buffer_bytes)
            .send_buffer_bytes(self.send_buffer_bytes)
    }
}
