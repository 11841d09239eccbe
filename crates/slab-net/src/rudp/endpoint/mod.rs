//! [`Endpoint`]: the sessions of one UDP socket, on tokio.
//!
//! | module | what |
//! |---|---|
//! | `connection`, `receiving`, `stream` | a session as the application sees it |
//! | `driver` | the task that reads the socket and runs the sessions' timers |
//! | `link`, `shared` | what both share |
//! | `wakers` | the tasks that wait for a session |
//! | `table`, `key`, `timers`, `recently_ended` | the sessions, by what they are looked up, when each has to be called, and those that have ended |
//! | `addresses` | those of a session's two ends |
//! | `cookie`, `secret` | proofs of an address that need no session; what they and conversation numbers are made of |
//! | `protect` | error correction and encryption, if configured |
//! | `config`, `stats` | limits, and counters |

mod addresses;
mod config;
mod connection;
mod cookie;
mod driver;
mod key;
mod link;
mod protect;
mod receiving;
mod recently_ended;
mod secret;
mod shared;
mod stats;
mod stream;
mod table;
mod timers;
mod wakers;

pub use config::EndpointConfig;
pub use connection::Connection;
pub use stats::{EndpointMonitor, EndpointStats};
pub use stream::Stream;

use super::core::{Session, Side};
use super::error::OpenError;
use crate::packet::PacketPool;
use crate::udp::{BindError, SocketMonitor, UdpReceiver, UdpReceiverBuilder};
use core::fmt;
use core::future::poll_fn;
use core::task::{Poll, ready};
use driver::Driver;
use shared::Shared;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use table::reachable;
use tokio::task::coop::poll_proceed;
use wakers::{Wait, Woken};

/// Is a socket bound to all addresses? Then it has to know to which of them a datagram was sent. Others need no more
/// of the system than a datagram's source, which costs less.
fn is_any(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_unspecified()
}

/// A UDP socket with sessions: those that peers open, to be [accepted](Self::accept), and those opened [to
/// peers](Self::connect).
///
/// A task of its own reads the socket; each sender sends from its own task. Clones are handles to the same socket.
/// When the last one is dropped, no more sessions are opened; those that are open live on. Timers follow tokio's
/// clock: a test that pauses it decides when they fire.
///
/// The pool below has 24 bytes of headroom for the header of a segment, so that [`Connection::send`] does not have to
/// copy; sessions work with any pool.
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
/// let config = EndpointConfig::new(SessionConfig::fast());
/// let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
/// let client = Connection::connect(server.local_addr(), &pool, config)?;
///
/// client.send(pool.try_copy_from_slice(b"hello")?).await?;
/// let accepted = server.accept().await.expect("it is open");
/// assert_eq!(accepted.recv().await?.unwrap(), b"hello"[..]);
///
/// client.close().await?;
/// assert_eq!(accepted.recv().await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Endpoint {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        table.closed = true;
        // Nobody will accept these.
        let backlog = core::mem::take(&mut table.backlog);
        drop(table);
        for link in backlog {
            drop(Connection::new(link));
        }
        self.shared.wake_driver();
    }
}

impl Endpoint {
    /// Binds a socket, and opens a session for each peer that begins one. If bound to all addresses, it answers
    /// each peer from the address that the peer sent to.
    ///
    /// # Errors
    /// The address cannot be bound, the configuration is not valid, the pool has no size class for a segment, or the
    /// configuration leaves no room for even one session ([`TableFull`](OpenError::TableFull),
    /// [`NoMemory`](OpenError::NoMemory)). With an encryption key, also if the system provides no random numbers.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub fn bind(
        address: SocketAddr,
        pool: &PacketPool,
        config: EndpointConfig,
    ) -> Result<Self, OpenError> {
        Self::start(pool, config, true, |receiver| {
            receiver.source_only(!is_any(address)).bind(address)
        })
    }

    /// As [`bind`](Self::bind), on a socket that is bound already: by a service manager, to a device, or before
    /// the process gave up its privileges. Its options stay, except those that `config` has and those that
    /// decide what the system reports with a datagram. On a socket that is connected, only its peer is heard.
    ///
    /// ```
    /// use slab_net::PacketPool;
    /// use slab_net::rudp::{Endpoint, EndpointConfig, SessionConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_ttl(3)?;
    /// let endpoint = Endpoint::from_std(socket, &pool, EndpointConfig::new(SessionConfig::fast()))?;
    /// # assert_ne!(endpoint.local_addr().port(), 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    ///
    /// # Panics
    /// As [`bind`](Self::bind).
    pub fn from_std(
        socket: std::net::UdpSocket,
        pool: &PacketPool,
        config: EndpointConfig,
    ) -> Result<Self, OpenError> {
        let source_only = socket.local_addr().is_ok_and(|address| !is_any(address));
        Self::start(pool, config, true, |receiver| {
            receiver.source_only(source_only).from_std(socket)
        })
    }

    fn start(
        pool: &PacketPool,
        mut config: EndpointConfig,
        listening: bool,
        open: impl FnOnce(UdpReceiverBuilder) -> Result<UdpReceiver, BindError>,
    ) -> Result<Self, OpenError> {
        // Of the MTU as it is on the wire, too: no datagram is longer than that.
        config.session.validate()?;
        config.reduce_mtu_for_protection();
        let each = Session::opening_bytes(&config.session, pool)?;
        if config.max_sessions == 0 {
            return Err(OpenError::TableFull);
        }
        if config.budget_bytes(pool) < each {
            return Err(OpenError::NoMemory);
        }
        // Panics in a runtime without time, where the endpoint's task would, and nobody would be told.
        drop(tokio::time::sleep(Duration::ZERO));
        let receiver = open(config.receiver(pool))?;
        if !config.offload {
            receiver.sender().disable_gso();
        }
        let shared = Shared::new(receiver.sender(), pool.clone(), config)?;
        shared.table().listening = listening;
        let shared = Arc::new(shared);
        tokio::spawn(Driver::new(Arc::clone(&shared), receiver).run());
        Ok(Self {
            handle: Arc::new(Handle { shared }),
        })
    }

    /// A socket connected to a peer: datagrams from others do not reach this process.
    fn client(
        peer: SocketAddr,
        pool: &PacketPool,
        config: EndpointConfig,
    ) -> Result<Self, OpenError> {
        let peer = reachable(peer);
        let any: SocketAddr = match peer {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        Self::start(pool, config, false, |receiver| {
            let mut receiver = receiver.source_only(true);
            // The BSDs refuse to send on a connected socket if an address is given, even its own. There the table
            // drops what others send.
            if cfg!(any(target_os = "linux", windows)) {
                receiver = receiver.connect(peer);
            }
            bind_apart(peer, || receiver.clone().bind(any))
        })
    }

    /// Waits for the next session that a peer has opened. Returns `None` once the endpoint's task is gone, with its
    /// runtime. A session that has already ended is returned only if it has something to read.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    pub async fn accept(&self) -> Option<Connection> {
        /// A wait for the next session. It ends with the future, which may be cancelled.
        struct Waiting<'a>(&'a Shared, Wait);

        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                if self.1.has_begun() {
                    let waker = self.0.table().acceptors.remove(&self.1);
                    drop(waker); // after the table is free: it is foreign code
                }
            }
        }

        let shared = &self.handle.shared;
        let mut waiting = Waiting(shared, Wait::default());
        let link = poll_fn(|cx| {
            let coop = ready!(poll_proceed(cx));
            let mut table = shared.table();
            let next = table.backlog.pop_front();
            if next.is_some() || table.closed {
                coop.made_progress();
                return Poll::Ready(next);
            }
            let mut woken = Woken::default();
            let known = &mut *table;
            waiting.1.begin(&mut known.last_wait);
            known.acceptors.add(&waiting.1, cx.waker(), &mut woken);
            drop(table); // before tasks are woken
            Poll::Pending
        });
        link.await.map(Connection::new)
    }

    /// Opens a session to a peer. Does not wait for an answer: see [`Connection::ready`]. An endpoint bound to an
    /// IPv6 address such as `[::]` reaches IPv4 peers if the system allows it. The unspecified address, such as
    /// that of a server bound to all addresses, is taken for loopback. A session to the endpoint's own address is one
    /// with itself: it receives what it sends, and there is nothing to accept. (With encryption it hears nothing, as an
    /// endpoint drops what it has sealed itself.)
    ///
    /// # Errors
    /// There are already as many sessions as are allowed, there is no memory for another, the socket cannot send to
    /// addresses of this family, or the endpoint's task is gone.
    pub fn connect(&self, peer: SocketAddr) -> Result<Connection, OpenError> {
        self.open(peer, None)
    }

    /// As [`connect`](Self::connect), with a conversation number that both ends agreed on: any, 0 included. The
    /// peer remembers an ended session for its idle timeout and does not open its conversation again, unless more
    /// than its [`max_sessions`](EndpointConfig::max_sessions) have ended since: a session that takes the number sooner
    /// is [reset](super::CloseReason::Reset). Datagrams of another session with the same number pass for this one's;
    /// encryption with the same key does not prevent that.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{Endpoint, EndpointConfig, OpenError, SessionConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// # let config = EndpointConfig::new(SessionConfig::fast());
    /// # let bind = |address: &str| Endpoint::bind(address.parse().unwrap(), &pool, config.clone());
    /// # let [server, endpoint] = [bind("127.0.0.1:0")?, bind("127.0.0.1:0")?];
    /// let connection = endpoint.connect_as(server.local_addr(), 7)?;
    /// connection.send_slice(b"hello").await?;
    /// assert_eq!(server.accept().await.expect("it is open").conv(), 7);
    /// assert!(matches!(endpoint.connect_as(server.local_addr(), 7), Err(OpenError::ConvInUse)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`connect`](Self::connect); also [`OpenError::ConvInUse`] if there already is a session with this number
    /// and peer.
    pub fn connect_as(&self, peer: SocketAddr, conv: u32) -> Result<Connection, OpenError> {
        self.open(peer, Some(conv))
    }

    fn open(&self, peer: SocketAddr, agreed: Option<u32>) -> Result<Connection, OpenError> {
        let peer = reachable(peer);
        let shared = &self.handle.shared;
        if peer.is_ipv6() && shared.sender.local_addr().is_ipv4() {
            return Err(OpenError::AddressFamily);
        }
        // It may free what error correction kept of an earlier session.
        let _held = slab_core::hold_wakes();
        let mut table = shared.table();
        if table.closed {
            return Err(OpenError::Closed);
        }
        let is_taken = |conv| table.get(peer, conv).is_some();
        if agreed.is_some_and(is_taken) {
            return Err(OpenError::ConvInUse);
        }
        if table.len() >= shared.config.max_sessions {
            table.stats.refused_table_full += 1;
            return Err(OpenError::TableFull);
        }
        let conv = agreed.unwrap_or_else(|| {
            loop {
                // Some implementations take 0 for none yet.
                let conv = shared.random() as u32;
                if conv != 0 && !is_taken(conv) {
                    break conv;
                }
            }
        });
        let link = shared.open(&mut table, peer, None, conv, Side::Client, false)?;
        // A link is locked before the table, never after it.
        drop(table);
        link.arm(&mut link.lock());
        Ok(Connection::new(link))
    }

    /// Returns the address that the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.shared.sender.local_addr()
    }

    /// Returns a handle to the counters of the endpoint's socket, with what the kernel dropped. It can be
    /// read while the endpoint runs and after it is gone.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// # let config = EndpointConfig::new(SessionConfig::fast());
    /// # let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
    /// let socket = server.socket_monitor();
    /// # let client = Connection::connect(server.local_addr(), &pool, config)?;
    /// # client.ready().await?;
    /// let stats = socket.stats();
    /// println!("{} received, {} dropped by the kernel", stats.received_datagrams, stats.kernel_dropped_datagrams);
    /// assert!(stats.received_datagrams > 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn socket_monitor(&self) -> SocketMonitor {
        self.handle.shared.sender.monitor()
    }

    /// Returns the counters of the endpoint and of all its sessions. Locks each session for a moment.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.handle.shared.stats()
    }

    /// Returns a handle to these counters that does not keep the endpoint open, and waits until it is gone.
    #[must_use]
    pub fn monitor(&self) -> EndpointMonitor {
        EndpointMonitor::new(&self.handle.shared)
    }
}

impl Connection {
    /// Opens a session to a peer, on a socket of its own. On Linux and Windows the socket is connected: the system
    /// drops what others send, and if nobody listens at the peer's address the session ends as
    /// [refused](super::CloseReason::Refused). Does not wait for an answer: see [`ready`](Self::ready).
    ///
    /// # Errors
    /// As [`Endpoint::bind`] and [`Endpoint::connect`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub fn connect(
        peer: SocketAddr,
        pool: &PacketPool,
        config: EndpointConfig,
    ) -> Result<Self, OpenError> {
        Endpoint::client(peer, pool, config)?.connect(peer)
    }

    /// As [`connect`](Self::connect), with a conversation number that both ends agreed on: any, 0 included. See
    /// [`Endpoint::connect_as`].
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn connect_as(
        peer: SocketAddr,
        conv: u32,
        pool: &PacketPool,
        config: EndpointConfig,
    ) -> Result<Self, OpenError> {
        Endpoint::client(peer, pool, config)?.connect_as(peer, conv)
    }
}

/// Binds a second socket if the first one has the peer's own address, as the system picks it now and then if nobody is
/// there: it would hear itself, and keep the port from who is to listen there.
fn bind_apart(
    peer: SocketAddr,
    bind: impl Fn() -> Result<UdpReceiver, BindError>,
) -> Result<UdpReceiver, BindError> {
    let first = bind()?;
    if first.local_addr() != peer {
        return Ok(first);
    }
    // The first keeps the port meanwhile.
    bind()
}

/// For options of the socket. Its mode (non-blocking), and all options that decide what the system reports with a
/// datagram, are the endpoint's; who reads from it takes datagrams from the sessions.
#[cfg(unix)]
impl std::os::fd::AsFd for Endpoint {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.handle.shared.sender.as_fd()
    }
}

/// As `AsFd` on Unix.
#[cfg(windows)]
impl std::os::windows::io::AsSocket for Endpoint {
    fn as_socket(&self) -> std::os::windows::io::BorrowedSocket<'_> {
        self.handle.shared.sender.as_socket()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.local_addr())
            .field("stats", &self.stats())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    pub(super) fn endpoint() -> Endpoint {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        Endpoint::bind(address, &pool, EndpointConfig::default()).unwrap()
    }

    #[tokio::test]
    async fn a_client_does_not_take_the_address_of_its_peer() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let picked = UdpReceiver::bind(any, &pool).unwrap();
        let (peer, picked) = (picked.local_addr(), Cell::new(Some(picked)));
        let binds = Cell::new(0);
        let bind = || {
            binds.set(binds.get() + 1);
            let picked = picked.take();
            picked.map_or_else(|| UdpReceiver::bind(any, &pool), Ok)
        };
        let apart = bind_apart(peer, bind).unwrap();
        assert_ne!(apart.local_addr(), peer);
        assert_eq!(binds.get(), 2);
        bind_apart(peer, bind).unwrap();
        assert_eq!(binds.get(), 3);
    }
}
