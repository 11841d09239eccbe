//! Systems other than Linux, by quinn-udp: no sendmmsg, no kernel drops, and a truncated datagram is
//! recognized by the one byte that it fills beyond the longest one allowed.

use super::{Buffer, Features, MAX_BATCH, Message, Received};
use crate::udp::datagram::{Ecn, Metadata};
use arrayvec::ArrayVec;
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSockRef, UdpSocketState};
use std::borrow::Cow;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The bytes that a buffer needs beyond the longest datagram, to detect a longer one.
#[cfg_attr(target_os = "linux", expect(dead_code, reason = "Linux has MSG_TRUNC"))]
pub(in crate::udp) const SPARE_BYTES: usize = 1;

/// The state of a socket beside its descriptor.
#[derive(Debug)]
pub(in crate::udp) struct Backend {
    state: UdpSocketState,
    gso_disabled: AtomicBool,
}

#[cfg_attr(target_os = "linux", expect(dead_code, reason = "tested only"))]
impl Backend {
    /// Sets the socket's options. Coalescing and timestamps are the system's choice: quinn-udp offers
    /// neither option outside Linux.
    pub(in crate::udp) fn configure(socket: &socket2::Socket, _: Features) -> io::Result<Self> {
        Ok(Self {
            state: UdpSocketState::new(UdpSockRef::from(socket))?,
            gso_disabled: AtomicBool::new(false),
        })
    }

    /// The most datagrams in one message; 1 without GSO.
    pub(in crate::udp) fn max_segments(&self) -> usize {
        match self.gso_disabled.load(Ordering::Relaxed) {
            true => 1,
            false => self.state.max_gso_segments(),
        }
    }

    /// Returns `true` if a message with GSO may have met this error because of one path.
    pub(in crate::udp) fn may_be_path_error(&self, error: &io::Error) -> bool {
        is_too_large(error)
    }

    /// Stops using GSO, which does not work on this socket after all. Returns whether it was in use.
    pub(in crate::udp) fn disable_gso(&self) -> bool {
        !self.gso_disabled.swap(true, Ordering::Relaxed)
    }

    /// Fills at most [`MAX_BATCH`] buffers, and returns how many.
    pub(in crate::udp) fn receive<'s, S>(
        &self,
        socket: &'s S,
        buffers: &mut [Buffer<'_>],
        received: &mut [Received],
    ) -> io::Result<usize>
    where
        UdpSockRef<'s>: From<&'s S>,
    {
        let mut metas = [RecvMeta::default(); MAX_BATCH];
        let count = buffers.len().min(MAX_BATCH).min(received.len());
        let socket = UdpSockRef::from(socket);
        let slices = buffers.iter_mut().take(count);
        let slices = slices.map(|buffer| IoSliceMut::new(buffer.bytes_mut()));
        let mut slices: ArrayVec<IoSliceMut<'_>, MAX_BATCH> = slices.collect();
        let mut read = self.state.recv(socket, &mut slices, &mut metas[..count]);
        if cfg!(windows) {
            read = or_truncated(read, &mut metas[0], slices[0].len());
        }
        let read = read?;
        for ((slice, meta), out) in slices.iter().zip(&metas).zip(received).take(read) {
            *out = decode(meta, slice.len());
        }
        Ok(read)
    }

    /// Always `false`: no error is kept back here.
    pub(in crate::udp) fn has_deferred_error(&self) -> bool {
        false
    }

    /// Always `None`, for the same reason.
    pub(in crate::udp) fn take_deferred_error(&self) -> Option<std::io::Error> {
        None
    }

    /// Takes one buffer's worth of datagrams off the queue.
    pub(in crate::udp) fn discard<'s, S>(
        &self,
        socket: &'s S,
        received: &mut [Received],
    ) -> io::Result<usize>
    where
        UdpSockRef<'s>: From<&'s S>,
    {
        // On the stack, where it costs nothing until it is needed, and needs no memory, which may be
        // exhausted.
        let mut scratch = [0; 64 << 10];
        self.receive(socket, &mut [Buffer::new(&mut scratch)], received)
    }

    /// Sends the first message and returns 1, or 0 if there is none.
    pub(in crate::udp) fn send<'s, S>(
        &self,
        socket: &'s S,
        messages: &[Message<'_>],
    ) -> io::Result<usize>
    where
        UdpSockRef<'s>: From<&'s S>,
    {
        let Some(message) = messages.first() else {
            return Ok(0);
        };
        let contents = contiguous(message.parts);
        let transmit = quinn_udp::Transmit {
            destination: message.destination,
            ecn: message.ecn.map(Ecn::bits).and_then(EcnCodepoint::from_bits),
            contents: &contents,
            segment_size: message.segment_size.map(usize::from),
            src_ip: message.source_ip,
        };
        self.state.try_send(UdpSockRef::from(socket), &transmit)?;
        Ok(1)
    }
}

/// Windows fills the buffer with the beginning of a datagram that is too long for it, but returns an error
/// in place of the length and the sender. Makes it a truncated datagram of an unknown sender.
fn or_truncated(
    read: io::Result<usize>,
    meta: &mut RecvMeta,
    buffer_bytes: usize,
) -> io::Result<usize> {
    match read {
        Err(error) if is_too_large(&error) => {
            *meta = RecvMeta::default();
            (meta.len, meta.stride) = (buffer_bytes, buffer_bytes);
            Ok(1)
        }
        read => read,
    }
}

fn decode(meta: &RecvMeta, buffer_bytes: usize) -> Received {
    let mut out = Received {
        len: meta.len,
        stride: meta.stride,
        kernel_drops: None,
        meta: Metadata::new(meta.addr),
    };
    out.meta.destination = meta.dst_ip;
    out.meta.destination_is_unicast = meta.dst_ip.is_some_and(is_unicast);
    out.meta.ecn = meta.ecn.and_then(|ecn| Ecn::from_bits(ecn as u8));
    out.meta.interface = meta.interface_index;
    out.meta.since_epoch = meta.timestamp;
    out.meta.truncated = meta.len >= buffer_bytes;
    out
}

/// As far as the address tells. That of a subnet's broadcast looks like any other.
fn is_unicast(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_multicast(),
    }
}

/// Returns the parts as one slice, since quinn-udp takes only one. Copies unless there is only one
/// part.
fn contiguous<'a>(parts: &'a [IoSlice<'a>]) -> Cow<'a, [u8]> {
    match parts {
        [] => Cow::Borrowed(&[]),
        [part] => Cow::Borrowed(part),
        parts => Cow::Owned(parts.iter().flat_map(|part| part.iter().copied()).collect()),
    }
}

/// Returns `true` if the message is longer than the path allows.
pub(in crate::udp) fn is_too_large(error: &io::Error) -> bool {
    quinn_udp::is_msg_size_err(error)
}

/// Returns `true` if a host or router reported this about an earlier datagram.
pub(in crate::udp) fn is_icmp_error(error: &io::Error) -> bool {
    use io::ErrorKind as E;
    // Windows reports a refused datagram as a reset connection, and even to sockets without a peer; and by
    // this code, which no other system has, one that was under way for too many hops.
    const WSAENETRESET: i32 = 10052;
    matches!(
        error.kind(),
        E::ConnectionRefused | E::ConnectionReset | E::HostUnreachable | E::NetworkUnreachable
    ) || is_too_large(error)
        || error.raw_os_error() == Some(WSAENETRESET)
}

/// Whether the system fragments is not known.
#[cfg(all(feature = "quinn", not(target_os = "linux")))]
pub(in crate::udp) fn may_fragment(_: &impl Sized) -> bool {
    true
}

/// Returns `true` if the system has no memory for outgoing datagrams at the moment.
#[cfg(not(target_os = "linux"))]
pub(in crate::udp) fn is_no_buffers(error: &io::Error) -> bool {
    // WSAENOBUFS, and ENOBUFS of the BSDs including macOS.
    let code = if cfg!(windows) { 10055 } else { 55 };
    error.raw_os_error() == Some(code)
}

/// Returns `true` if the error may be caused by GSO.
#[cfg(not(target_os = "linux"))]
pub(in crate::udp) fn may_be_gso_error(error: &io::Error) -> bool {
    is_too_large(error) || error.kind() == io::ErrorKind::InvalidInput
}

/// Only Linux supports this.
#[cfg(not(target_os = "linux"))]
pub(in crate::udp) fn drop_new_arrivals<S>(_: &S) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Implemented only on Linux.
#[cfg(not(target_os = "linux"))]
pub(in crate::udp) fn pin_thread(_: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The kernel does not report its drops.
#[cfg(not(target_os = "linux"))]
#[derive(Debug, Default)]
pub(in crate::udp) struct DropProbe;

#[cfg(not(target_os = "linux"))]
impl DropProbe {
    pub(in crate::udp) fn attach<S>(&self, _: &S) {}

    pub(in crate::udp) fn detach(&self) {}

    pub(in crate::udp) fn query(&self) -> Option<u32> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::tally::Amount;
    use socket2::{Domain, Socket, Type};
    use std::net::{Ipv4Addr, SocketAddr};

    #[test]
    fn a_datagram_of_two_parts_arrives_with_its_metadata() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&here.into()).unwrap();
        let here = socket.local_addr().unwrap().as_socket().unwrap();
        let backend = Backend::configure(&socket, Features::default()).unwrap();
        let message = |parts| Message {
            parts,
            destination: here,
            source_ip: None,
            interface: 0,
            ecn: Some(Ecn::Ect1),
            segment_size: None,
        };
        let parts = [IoSlice::new(b"one"), IoSlice::new(b"two")];
        assert_eq!(backend.send(&socket, &[message(&parts)]).unwrap(), 1);
        assert_eq!(backend.send(&socket, &[message(&parts[..1])]).unwrap(), 1);
        assert_eq!(backend.send(&socket, &[message(&[])]).unwrap(), 1);
        assert_eq!(backend.send(&socket, &[]).unwrap(), 0);

        // The first datagram fills its buffer, and counts as truncated.
        let (mut first, mut second, mut third) = ([0; 6], [0; 6], [0; 6]);
        let mut buffers = [&mut first, &mut second, &mut third].map(|b| Buffer::new(b));
        let mut received = [Received::NOTHING; 3];
        let mut read = 0;
        while read < 3 {
            let (buffers, received) = (&mut buffers[read..], &mut received[read..]);
            read += backend.receive(&socket, buffers, received).unwrap();
        }
        let facts = received.map(|r| (r.len, r.meta.source, r.meta.ecn, r.meta.truncated));
        let ecn = Some(Ecn::Ect1);
        assert_eq!(
            facts,
            [
                (6, here, ecn, true),
                (3, here, ecn, false),
                (0, here, ecn, false)
            ]
        );
        assert_eq!(received[0].meta.destination, Some(here.ip()));
        assert_eq!((&first, &second[..3]), (b"onetwo", &b"one"[..]));
    }

    /// A socket of both families reports an IPv4 destination in mapped form.
    #[test]
    fn nothing_is_answered_from_a_multicast_or_broadcast_address() {
        let is_unicast = |to: &str| {
            let mut meta = RecvMeta::default();
            meta.dst_ip = Some(to.parse().unwrap());
            decode(&meta, 7).meta.destination_is_unicast
        };
        for to in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"] {
            assert!(is_unicast(to), "{to}");
        }
        let groups = ["224.0.0.1", "::ffff:224.0.0.1", "ff02::1"];
        let broadcast = ["255.255.255.255", "::ffff:255.255.255.255"];
        for to in groups.into_iter().chain(broadcast) {
            assert!(!is_unicast(to), "{to}");
        }
    }

    /// Others can cause these errors at will, those of a refused datagram on Windows by a closed port.
    #[test]
    fn errors_that_others_cause_are_told_from_the_sockets_own() {
        let by_others = [
            io::ErrorKind::ConnectionRefused.into(),
            io::ErrorKind::ConnectionReset.into(),
            io::ErrorKind::HostUnreachable.into(),
            io::ErrorKind::NetworkUnreachable.into(),
            io::Error::from_raw_os_error(10052),
            io::Error::from_raw_os_error(libc::EMSGSIZE),
        ];
        for error in by_others {
            assert!(is_icmp_error(&error), "{error}");
        }
        let own = [
            io::ErrorKind::NetworkDown.into(),
            io::ErrorKind::NotConnected.into(),
            io::Error::from_raw_os_error(libc::ENOMEM),
        ];
        for error in own {
            assert!(!is_icmp_error(&error), "{error}");
        }
    }

    /// As it is on Windows.
    #[test]
    fn an_error_for_a_datagram_that_is_too_long_makes_it_truncated() {
        let mut meta = RecvMeta::default();
        let too_long = Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        assert_eq!(or_truncated(too_long, &mut meta, 7).unwrap(), 1);
        let received = decode(&meta, 7);
        assert!(received.meta.truncated);
        assert_eq!(received.amount(), Amount::new(1, 7));
        let refused = Err(io::ErrorKind::ConnectionReset.into());
        assert!(or_truncated(refused, &mut meta, 7).is_err());
        assert_eq!(or_truncated(Ok(1), &mut meta, 7).unwrap(), 1);
    }
}
