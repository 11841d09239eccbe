//! The socket that a receiver and its senders share.

use super::error::BindError;
use super::io::Io;
use super::stats::SocketCounters;
use super::sys::{Backend, Features, is_icmp_error};
use core::fmt;
use socket2::{Domain, Protocol, SockRef, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// The most that the system call takes; the system's own limit is usually far lower.
const MAX_BUFFER_BYTES: usize = i32::MAX as usize;

/// The options of a socket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SocketOptions {
    pub(super) features: Features,
    pub(super) reuse_port: bool,
    pub(super) receive_buffer_bytes: Option<usize>,
    pub(super) send_buffer_bytes: Option<usize>,
    pub(super) peer: Option<SocketAddr>,
}

/// A socket that is not yet registered with a runtime.
#[derive(Debug)]
pub(super) struct BoundSocket {
    pub(super) socket: socket2::Socket,
    backend: Backend,
    pub(super) address: SocketAddr,
}

impl BoundSocket {
    pub(super) fn open(address: SocketAddr, options: SocketOptions) -> Result<Self, BindError> {
        let socket = Self::new_socket(address, options);
        let bound =
            socket.and_then(|socket| Self::configure_and_bind(socket, Some(address), options));
        bound
            .map_err(|error| BindError::Socket { address, error })?
            .connect(options.peer)
    }

    /// Takes over a socket that the caller has bound.
    pub(super) fn adopt(
        socket: std::net::UdpSocket,
        options: SocketOptions,
    ) -> Result<Self, BindError> {
        let address = socket
            .local_addr()
            .unwrap_or_else(|_| ([0, 0, 0, 0], 0).into());
        Self::configure_and_bind(socket.into(), None, options)
            .map_err(|error| BindError::Socket { address, error })?
            .connect(options.peer)
    }

    fn new_socket(address: SocketAddr, options: SocketOptions) -> io::Result<socket2::Socket> {
        let domain = Domain::for_address(address);
        let socket = socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        #[cfg(unix)]
        if options.reuse_port && address.port() != 0 {
            socket.set_reuse_port(true)?;
        }
        #[cfg(not(unix))]
        if options.reuse_port {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(socket)
    }

    fn configure_and_bind(
        socket: socket2::Socket,
        bind_to: Option<SocketAddr>,
        options: SocketOptions,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        if let Some(bytes) = options.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes.min(MAX_BUFFER_BYTES))?;
        }
        if let Some(bytes) = options.send_buffer_bytes {
            socket.set_send_buffer_size(bytes.min(MAX_BUFFER_BYTES))?;
        }
        // On Linux, options are set before binding, so that no datagram arrives without them. Elsewhere
        // quinn-udp needs a bound socket, since Windows cannot tell the address of any other.
        let bind = |socket: &socket2::Socket| bind_to.map_or(Ok(()), |to| socket.bind(&to.into()));
        let backend = if cfg!(target_os = "linux") {
            let backend = Backend::configure(&socket, options.features)?;
            bind(&socket)?;
            backend
        } else {
            bind(&socket)?;
            Backend::configure(&socket, options.features)?
        };
        // If asked for any port that may be shared, the system may choose one that other sockets of
        // this user share. So it is asked for a port that may not be shared, and sharing is allowed
        // afterwards.
        #[cfg(unix)]
        if options.reuse_port && bind_to.is_some_and(|to| to.port() == 0) {
            socket.set_reuse_port(true)?;
        }
        Ok(Self {
            address: Self::address_of(&socket)?,
            socket,
            backend,
        })
    }

    /// If there is a peer, connects to it; the address then is the one that the system sends to it from.
    fn connect(mut self, peer: Option<SocketAddr>) -> Result<Self, BindError> {
        let Some(mut peer) = peer else {
            return Ok(self);
        };
        if self.address.is_ipv4() {
            peer.set_ip(peer.ip().to_canonical());
        }
        let connected = self.socket.connect(&peer.into());
        self.address = connected
            .and_then(|()| Self::address_of(&self.socket))
            .map_err(|error| BindError::Connect { peer, error })?;
        Ok(self)
    }

    fn address_of(socket: &socket2::Socket) -> io::Result<SocketAddr> {
        // No other family has a datagram socket of UDP.
        let address = socket.local_addr()?.as_socket();
        address.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Registers the socket with the current runtime.
    pub(super) fn register(self) -> Result<Arc<Socket>, BindError> {
        let address = self.address;
        let io = Io::register(self.socket.into())
            .map_err(|error| BindError::Socket { address, error })?;
        let counters = Arc::<SocketCounters>::default();
        counters.kernel.attach(&io);
        Ok(Arc::new(Socket {
            io,
            backend: self.backend,
            address,
            counters,
        }))
    }
}

pub(super) struct Socket {
    pub(super) io: Io,
    pub(super) backend: Backend,
    pub(super) address: SocketAddr,
    pub(super) counters: Arc<SocketCounters>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Socket {
    pub(super) fn is_connected(&self) -> bool {
        SockRef::from(&self.io).peer_addr().is_ok()
    }

    /// Returns `true` if this error of a read is what a host or router reported (ICMP), and no fault of the socket. On
    /// Unix only one with a peer is told of it: to any other such a number means something else, which may last.
    #[cold]
    pub(super) fn is_caused_by_others(&self, error: &io::Error) -> bool {
        is_icmp_error(error) && (!cfg!(unix) || self.is_connected())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.counters.kernel.detach();
    }
}
