//! The socket that a receiver and its senders share.

use super::error::BindError;
use super::options;
use super::stats::SocketCounters;
use quinn_udp::{UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How a socket is set up before it is bound.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SocketOptions {
    pub(super) coalesce: bool,
    pub(super) reuse_port: bool,
    pub(super) receive_buffer_bytes: Option<usize>,
    pub(super) send_buffer_bytes: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) io: tokio::net::UdpSocket,
    pub(super) state: UdpSocketState,
    pub(super) address: SocketAddr,
    pub(super) counters: Arc<SocketCounters>,
    /// Was it said already that the system refuses GSO?
    pub(super) gso_refused: AtomicBool,
}

impl Socket {
    pub(super) fn bind(
        address: SocketAddr,
        options: SocketOptions,
    ) -> Result<Arc<Self>, BindError> {
        Self::open(address, options)
            .map(Arc::new)
            .map_err(|source| BindError::Socket { address, source })
    }

    fn open(address: SocketAddr, setup: SocketOptions) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        #[cfg(unix)]
        if setup.reuse_port {
            socket.set_reuse_port(true)?;
        }
        if let Some(bytes) = setup.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = setup.send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        // Windows cannot tell the local address of an unbound socket, which quinn-udp asks for.
        if cfg!(windows) {
            socket.bind(&address.into())?;
        }
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        if !setup.coalesce {
            // Before the socket is bound: what it receives while GRO is on stays coalesced in its
            // queue, and would be cut when it is read.
            options::disable_gro(&socket)?;
        }
        if setup.coalesce || address.is_ipv6() {
            // quinn-udp 0.6.3 has 88 bytes for what the kernel says about a datagram. The time of
            // arrival (32 bytes) comes first; with it, the destination (32, or 40 for IPv6) and the
            // segment size (24), the ECN codepoint (24) finds no room and is lost unseen.
            options::disable_timestamps(&socket)?;
        }
        if !cfg!(windows) {
            socket.bind(&address.into())?;
        }
        let io = tokio::net::UdpSocket::from_std(socket.into())?;
        Ok(Self {
            address: io.local_addr()?,
            io,
            state,
            counters: Arc::default(),
            gso_refused: AtomicBool::new(false),
        })
    }
}
