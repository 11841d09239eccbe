//! The metadata that the kernel returns with a payload: sender, flags, control messages.

use super::Received;
use super::address::Address;
use super::cmsg::{Reader, first};
use crate::udp::datagram::Ecn;
use libc::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

impl Received {
    /// Decodes the metadata that the kernel wrote. In place: it is large, and would be copied.
    #[inline]
    pub(super) fn decode(
        &mut self,
        len: usize,
        name: &Address,
        name_len: usize,
        control: &[u8],
        flags: c_int,
    ) {
        *self = Self {
            len,
            stride: len,
            ..Self::NOTHING
        };
        // Every datagram has a sender of our own socket's family. Otherwise the source would remain the
        // unspecified address.
        if let Some(source) = name.decode(name_len) {
            self.meta.source = source;
        }
        self.meta.truncated = flags & libc::MSG_TRUNC != 0;
        for (level, kind, data) in Reader::new(control) {
            // A message that is too short for its type is ignored.
            let _ = self.apply_control_message(level, kind, data);
        }
    }

    fn apply_control_message(&mut self, level: c_int, kind: c_int, data: &[u8]) -> Option<()> {
        let meta = &mut self.meta;
        match (level, kind) {
            // One byte, unlike its IPv6 counterpart.
            (libc::IPPROTO_IP, libc::IP_TOS) => meta.ecn = Ecn::from_bits(data.first()?.to_owned()),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                meta.ecn = Ecn::from_bits(c_int::from_ne_bytes(first(data)?) as u8);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let info: [u8; 12] = first(data)?;
                let ours = Ipv4Addr::from(first::<4>(&info[4..])?);
                let to = Ipv4Addr::from(first::<4>(&info[8..])?);
                meta.interface = interface(first(&info)?);
                // On an IPv6 socket this comes second, and the address keeps its mapped form.
                meta.destination.get_or_insert(to.into());
                meta.destination_is_unicast = to == ours;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let info: [u8; 20] = first(data)?;
                let to = Ipv6Addr::from(first::<16>(&info)?);
                meta.interface = interface(first(&info[16..])?);
                meta.destination = Some(to.into());
                meta.destination_is_unicast = !to.to_canonical().is_multicast();
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                // 0 would be a kernel bug, and quinn would cut off datagrams of no bytes for ever.
                let stride = usize::try_from(c_int::from_ne_bytes(first(data)?)).ok();
                self.stride = stride.filter(|&bytes| bytes > 0)?;
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                let (seconds, rest) = data.split_first_chunk()?;
                let seconds = libc::c_long::from_ne_bytes(*seconds);
                let nanos = libc::c_long::from_ne_bytes(first(rest)?);
                meta.since_epoch = Some(Duration::new(
                    u64::try_from(seconds).ok()?,
                    u32::try_from(nanos).ok()?,
                ));
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                self.kernel_drops = Some(u32::from_ne_bytes(first(data)?));
            }
            _ => {}
        }
        Some(())
    }
}

fn interface(index: [u8; 4]) -> Option<u32> {
    Some(u32::from_ne_bytes(index)).filter(|&index| index != 0)
}
