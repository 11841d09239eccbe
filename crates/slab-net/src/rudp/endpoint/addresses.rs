//! [`Addresses`]: those of both ends of a session.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The addresses of both ends, kept small: there are many idle sessions.
pub(super) struct Addresses {
    /// An IPv4 address is stored mapped into IPv6; no canonical address is.
    peer: Ipv6Addr,
    port: u16,
    /// The interface of link-local addresses; if both ends have one, it is the same.
    scope: u32,
    /// As `peer`; unspecified if the system may choose.
    local: Ipv6Addr,
}

const _: () = assert!(size_of::<Addresses>() == 40);

impl Addresses {
    pub(super) fn new(peer: SocketAddr, local: Option<SocketAddr>) -> Self {
        let parts = |address: SocketAddr| match address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let (ip, scope) = parts(peer);
        let (local, by) = local.map_or((Ipv6Addr::UNSPECIFIED, 0), parts);
        Self {
            peer: ip,
            port: peer.port(),
            scope: scope.max(by),
            local,
        }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.address(self.peer, self.port)
    }

    /// `None` if the system may choose.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        (!self.local.is_unspecified()).then(|| self.address(self.local, 0))
    }

    fn address(&self, ip: Ipv6Addr, port: u16) -> SocketAddr {
        match ip.to_canonical() {
            IpAddr::V4(ip) => (ip, port).into(),
            IpAddr::V6(ip) => {
                let scope = if ip.is_unicast_link_local() {
                    self.scope
                } else {
                    0
                };
                SocketAddrV6::new(ip, port, 0, scope).into()
            }
        }
    }
}
