//! Socket addresses in the kernel's format, as plain bytes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The size of `sockaddr_in6`, the longer of the two.
pub(super) const MAX_LEN: usize = 28;
const V4_LEN: usize = 16;

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Address(pub(super) [u8; MAX_LEN]);

impl Address {
    pub(super) const EMPTY: Self = Self([0; MAX_LEN]);

    /// Decodes the address, if the kernel wrote `len` bytes of a known family.
    #[inline]
    pub(super) fn decode(&self, len: usize) -> Option<SocketAddr> {
        let bytes = self.0.get(..len)?;
        let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
        if family == libc::AF_INET {
            let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            return Some((ip, port).into());
        }
        if family != libc::AF_INET6 {
            return None;
        }
        let flow = u32::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
        let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
        Some(SocketAddrV6::new(ip.into(), port, flow, scope).into())
    }

    /// Encodes an address for a socket of this family; returns it with its length in bytes. An IPv6
    /// socket reaches IPv4 addresses in their mapped form, which the kernel does not take on an IPv4
    /// socket.
    pub(super) fn encode(address: SocketAddr, socket_is_v6: bool) -> (Self, u32) {
        let mut bytes = [0; MAX_LEN];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let v6 = match address {
            SocketAddr::V4(v4) if !socket_is_v6 => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                return (Self(bytes), V4_LEN as u32);
            }
            SocketAddr::V4(v4) => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0),
            SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
                Some(ip) if !socket_is_v6 => return Self::encode((ip, v6.port()).into(), false),
                _ => v6,
            },
        };
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
        bytes[8..24].copy_from_slice(&v6.ip().octets());
        bytes[24..].copy_from_slice(&v6.scope_id().to_ne_bytes());
        (Self(bytes), MAX_LEN as u32)
    }
}

/// Returns the address as IPv6, mapped if it is IPv4.
pub(super) fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        let v4: SocketAddr = "127.1.2.3:4567".parse().unwrap();
        let (bytes, len) = Address::encode(v4, false);
        assert_eq!(bytes.decode(len as usize), Some(v4));
        let (bytes, len) = Address::encode(v4, true);
        let mapped: SocketAddr = "[::ffff:127.1.2.3]:4567".parse().unwrap();
        assert_eq!(bytes.decode(len as usize), Some(mapped));
        let (bytes, len) = Address::encode(mapped, true);
        assert_eq!(bytes.decode(len as usize), Some(mapped));
        let (bytes, len) = Address::encode(mapped, false);
        assert_eq!(bytes.decode(len as usize), Some(v4));
        let v6 = SocketAddrV6::new("fe80::1:2".parse().unwrap(), 99, 7, 3).into();
        let (bytes, len) = Address::encode(v6, true);
        assert_eq!(bytes.decode(len as usize), Some(v6));
    }

    #[test]
    fn invalid_addresses_decode_to_none() {
        let (bytes, len) = Address::encode("1.2.3.4:5".parse().unwrap(), false);
        for short in 0..8 {
            assert_eq!(bytes.decode(short), None);
        }
        assert_eq!(bytes.decode(MAX_LEN + 1), None);
        let (v6, _) = Address::encode("[::1]:5".parse().unwrap(), true);
        assert_eq!(v6.decode(len as usize), None, "an IPv6 address cut short");
        assert_eq!(Address::EMPTY.decode(MAX_LEN), None);
    }

    #[test]
    fn the_layout_matches_the_systems() {
        use std::mem::offset_of;
        assert_eq!(size_of::<libc::sockaddr_in>(), V4_LEN);
        assert_eq!(size_of::<libc::sockaddr_in6>(), MAX_LEN);
        assert_eq!(offset_of!(libc::sockaddr_in, sin_port), 2);
        assert_eq!(offset_of!(libc::sockaddr_in, sin_addr), 4);
        assert_eq!(offset_of!(libc::sockaddr_in6, sin6_port), 2);
        assert_eq!(offset_of!(libc::sockaddr_in6, sin6_flowinfo), 4);
        assert_eq!(offset_of!(libc::sockaddr_in6, sin6_addr), 8);
        assert_eq!(offset_of!(libc::sockaddr_in6, sin6_scope_id), 24);
        assert_eq!(size_of::<libc::sa_family_t>(), 2);
    }
}
