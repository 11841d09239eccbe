//! Linux: recvmmsg with all metadata, and sendmmsg with GSO.

use super::address::{Address, MAX_LEN, mapped};
use super::cmsg::{self, Writer};
use super::errno::is_too_large;
use super::options::{ignore_unsupported, set};
use super::{Buffer, Features, MAX_BATCH, Message, Received};
use libc::{c_int, iovec, mmsghdr, socklen_t};
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// The bytes that a buffer needs beyond the longest datagram, to detect a longer one: none, with
/// MSG_TRUNC.
pub(in crate::udp) const SPARE_BYTES: usize = 0;

/// Up to this many lone datagrams cost less by one `recvfrom` each than by one `recvmmsg`, whose
/// headers cost more than a further call (measured: 160 ns of 1225 for one datagram and the end).
const MAX_RECVFROM_BATCH: usize = 2;

/// The most segments of one message with GSO (UDP_MAX_SEGMENTS before Linux 6.9).
const MAX_SEGMENTS: usize = 64;

/// Room for all metadata of a buffer: destination, ECN of either family, segment size, time of arrival,
/// drops.
pub(super) const RECEIVE_CONTROL_BYTES: usize = cmsg::space(size_of::<libc::in6_pktinfo>())
    + cmsg::space(size_of::<libc::in_pktinfo>())
    + 2 * cmsg::space(size_of::<c_int>())
    + cmsg::space(size_of::<c_int>())
    + cmsg::space(size_of::<libc::timespec>())
    + cmsg::space(size_of::<u32>());

/// Room for the metadata of a message: source, ECN, segment size.
const SEND_CONTROL_BYTES: usize = cmsg::space(size_of::<libc::in6_pktinfo>())
    + cmsg::space(size_of::<c_int>())
    + cmsg::space(size_of::<u16>());

/// The state of a socket beside its descriptor.
#[derive(Debug)]
pub(in crate::udp) struct Backend {
    is_v6: bool,
    /// Whether the kernel may divide what is longer than a path takes.
    fragments: bool,
    /// Whether the kernel reports nothing but the source of a datagram.
    reports_only_source: bool,
    /// The error of the second of two calls, to be returned by the next; 0 for none.
    deferred_error: AtomicI32,
    /// 1 means without GSO.
    max_segments: AtomicUsize,
}

impl Backend {
    /// Sets the socket's options. No option that was not requested is switched on even for a moment:
    /// datagrams that arrive while GRO is on stay coalesced in the socket's queue.
    pub(in crate::udp) fn configure(
        socket: &socket2::Socket,
        features: Features,
    ) -> io::Result<Self> {
        let fd = socket.as_raw_fd();
        let is_v6 = i32::from(socket.local_addr()?.family()) == libc::AF_INET6;
        let on: c_int = 1;
        // Also switched off, if the socket's creator switched it on.
        let all = c_int::from(!features.source_only);
        // Nobody reads the queue of errors. It would fill the receive buffer, and a datagram's error would be told to
        // whoever sends next, to whichever peer.
        let off: c_int = 0;
        ignore_unsupported(set(fd, libc::IPPROTO_IP, libc::IP_RECVERR, off))?;
        if is_v6 {
            ignore_unsupported(set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, off))?;
        }
        // On an IPv6 socket the IPv4 options apply to mapped addresses.
        ignore_unsupported(set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, all))?;
        if !features.fragment {
            // Datagrams are not fragmented, whatever the kernel believes about the path: the sender learns
            // the limit of the first link by EMSGSIZE.
            let probe = libc::IP_PMTUDISC_PROBE;
            ignore_unsupported(set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe))?;
            if is_v6 {
                let probe = libc::IPV6_PMTUDISC_PROBE;
                ignore_unsupported(set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe))?;
                ignore_unsupported(set(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, on))?;
            }
        }
        if is_v6 {
            ignore_unsupported(set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, all))?;
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, all)?;
            // For IPv4, only this tells a broadcast from a datagram sent to our own address.
            ignore_unsupported(set(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, all))?;
        } else {
            set(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, all)?;
        }
        ignore_unsupported(set(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, on))?;
        let coalesce = c_int::from(features.coalesce);
        ignore_unsupported(set(fd, libc::SOL_UDP, libc::UDP_GRO, coalesce))?;
        let timestamps = c_int::from(features.timestamps);
        let result = set(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, timestamps);
        // Whoever wants them has to know that there are none.
        if features.timestamps {
            result?;
        } else {
            ignore_unsupported(result)?;
        }
        // The length that the socket's creator may have set for segments would cut datagrams that go out alone.
        let has_gso = set(fd, libc::SOL_UDP, libc::UDP_SEGMENT, off).is_ok();
        Ok(Self {
            is_v6,
            fragments: features.fragment,
            reports_only_source: features.source_only && !features.coalesce && !features.timestamps,
            deferred_error: AtomicI32::new(0),
            max_segments: AtomicUsize::new(if has_gso { MAX_SEGMENTS } else { 1 }),
        })
    }

    /// The most datagrams in one message; 1 without GSO.
    pub(in crate::udp) fn max_segments(&self) -> usize {
        self.max_segments.load(Ordering::Relaxed)
    }

    /// Returns `true` if a message with GSO may have met this error because of one path, which takes no
    /// datagrams of this length: before Linux 6.14, EINVAL too. Where nothing is fragmented, that is seen by the
    /// same error without GSO.
    pub(in crate::udp) fn may_be_path_error(&self, error: &io::Error) -> bool {
        is_too_large(error) || self.fragments && error.raw_os_error() == Some(libc::EINVAL)
    }

    /// Stops using GSO, which does not work on this socket after all. Returns whether it was in use.
    pub(in crate::udp) fn disable_gso(&self) -> bool {
        self.max_segments.swap(1, Ordering::Relaxed) > 1
    }

    /// Fills at most [`MAX_BATCH`] buffers, and returns how many.
    ///
    /// Fewer than were offered mean that nothing more is queued, or that the kernel has an error to
    /// report, which the next call returns.
    pub(in crate::udp) fn receive(
        &self,
        socket: &impl AsRawFd,
        buffers: &mut [Buffer<'_>],
        received: &mut [Received],
    ) -> io::Result<usize> {
        if self.reports_only_source {
            if let Some(late) = self.take_deferred_error() {
                return Err(late);
            }
            if buffers.len() <= MAX_RECVFROM_BATCH {
                return self.receive_by_recvfrom(socket, buffers, received);
            }
        }
        let vectors = buffers.iter_mut().map(|buffer| iovec {
            iov_base: buffer.as_mut_ptr(),
            iov_len: buffer.len(),
        });
        // SAFETY: the buffers are exclusively borrowed until after the call.
        unsafe { Self::read(socket, vectors, received, libc::MSG_DONTWAIT) }
    }

    /// Returns `true` if the next receive call will return an error that the system does not report
    /// again.
    pub(in crate::udp) fn has_deferred_error(&self) -> bool {
        self.deferred_error.load(Ordering::Relaxed) != 0
    }

    /// Takes the error that the next receive call would return.
    pub(in crate::udp) fn take_deferred_error(&self) -> Option<io::Error> {
        match self.deferred_error.load(Ordering::Relaxed) {
            0 => None,
            late => {
                self.deferred_error.store(0, Ordering::Relaxed);
                Some(io::Error::from_raw_os_error(late))
            }
        }
    }

    /// Like [`receive`](Self::receive), but with one system call per datagram.
    fn receive_by_recvfrom(
        &self,
        socket: &impl AsRawFd,
        buffers: &mut [Buffer<'_>],
        received: &mut [Received],
    ) -> io::Result<usize> {
        let mut read = 0;
        for (buffer, out) in buffers.iter_mut().zip(received) {
            match receive_one(socket.as_raw_fd(), buffer, out) {
                Ok(()) => {}
                Err(error) if read == 0 => return Err(error),
                Err(error) => {
                    // It occurred between the two calls, and the kernel reports each error only once.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        let code = error.raw_os_error().unwrap_or_default();
                        self.deferred_error.store(code, Ordering::Relaxed);
                    }
                    break;
                }
            }
            read += 1;
        }
        Ok(read)
    }

    /// Takes queued datagrams off the queue without copying them. The lengths returned are those of the
    /// datagrams.
    pub(in crate::udp) fn discard(
        &self,
        socket: &impl AsRawFd,
        received: &mut [Received],
    ) -> io::Result<usize> {
        let nowhere = || iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        let nowhere = std::iter::repeat_with(nowhere).take(MAX_BATCH);
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the vectors are empty, so nothing is written.
        unsafe { Self::read(socket, nowhere, received, flags) }
    }

    /// # Safety
    /// Nobody else reads or writes the memory that the vectors point to until the call returns.
    unsafe fn read(
        socket: &impl AsRawFd,
        vectors: impl Iterator<Item = iovec>,
        received: &mut [Received],
        flags: c_int,
    ) -> io::Result<usize> {
        let mut slots = [const { MaybeUninit::<ReceiveSlot>::uninit() }; MAX_BATCH];
        let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; MAX_BATCH];
        let vectors = vectors.take(received.len());
        let mut count = 0;
        for ((vector, slot), header) in vectors.zip(&mut slots).zip(&mut headers) {
            let slot = slot.write(ReceiveSlot::new(vector));
            let header = &mut header.write(empty_header()).msg_hdr;
            header.msg_name = slot.name.0.as_mut_ptr().cast();
            header.msg_namelen = MAX_LEN as socklen_t;
            header.msg_iov = &raw mut slot.vector;
            header.msg_iovlen = 1;
            header.msg_control = slot.control.0.as_mut_ptr().cast();
            header.msg_controllen = RECEIVE_CONTROL_BYTES as _;
            count += 1;
        }
        let fd = socket.as_raw_fd();
        let at = headers.as_mut_ptr().cast::<mmsghdr>();
        let read = retry_if_interrupted(|| {
            // SAFETY: the first `count` headers were written above. They point to names and control
            // messages of ours, and by their vectors to memory that the caller answers for.
            unsafe { libc::recvmmsg(fd, at, count as _, flags as _, ptr::null_mut()) }
        })?;
        for ((slot, header), out) in slots.iter().zip(&headers).zip(&mut *received).take(read) {
            // SAFETY: written above, for at least as many slots as the kernel filled.
            let slot = unsafe { slot.assume_init_ref() };
            // SAFETY: as above.
            let header = unsafe { header.assume_init_ref() };
            slot.decode(header, out);
        }
        Ok(read)
    }

    /// Sends at most [`MAX_BATCH`] messages, and returns how many the kernel accepted.
    ///
    /// # Errors
    /// The kernel's error for the first message. It reports errors of the others once they come first;
    /// but it forgets what a host or router reported (ICMP) between two messages.
    pub(in crate::udp) fn send(
        &self,
        socket: &impl AsRawFd,
        messages: &[Message<'_>],
    ) -> io::Result<usize> {
        if let [message] = messages
            && let Some(payload) = message.as_plain()
        {
            let (name, name_len) = Address::encode(message.destination, self.is_v6);
            return send_one(socket.as_raw_fd(), payload, &name, name_len);
        }
        let mut slots = [const { MaybeUninit::<SendSlot>::uninit() }; MAX_BATCH];
        let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; MAX_BATCH];
        let count = messages.len().min(MAX_BATCH);
        for ((message, slot), header) in messages.iter().zip(&mut slots).zip(&mut headers) {
            let (name, name_len) = Address::encode(message.destination, self.is_v6);
            let control = Control([0; SEND_CONTROL_BYTES]);
            let slot = slot.write(SendSlot { name, control });
            let control_len = self.write_control(message, &mut slot.control.0);
            let header = &mut header.write(empty_header()).msg_hdr;
            header.msg_name = slot.name.0.as_mut_ptr().cast();
            header.msg_namelen = name_len;
            // `IoSlice` is documented to be an `iovec`. The kernel does not write to it.
            header.msg_iov = message.parts.as_ptr().cast_mut().cast();
            header.msg_iovlen = message.parts.len() as _;
            if control_len > 0 {
                header.msg_control = slot.control.0.as_mut_ptr().cast();
                header.msg_controllen = control_len as _;
            }
        }
        let fd = socket.as_raw_fd();
        let at = headers.as_mut_ptr().cast::<mmsghdr>();
        retry_if_interrupted(|| {
            // SAFETY: the first `count` headers were written above; names, control messages and
            // payloads are borrowed until after the call, which only reads them.
            unsafe { sendmmsg(fd, at, count as _, libc::MSG_DONTWAIT as _) }
        })
    }

    fn write_control(&self, message: &Message<'_>, buffer: &mut [u8]) -> usize {
        let mut control = Writer::new(buffer);
        if let Some(ecn) = message.ecn {
            let bits = i32::from(ecn.bits()).to_ne_bytes();
            match message.destination.ip().to_canonical() {
                IpAddr::V4(_) => control.push(libc::IPPROTO_IP, libc::IP_TOS, &bits),
                IpAddr::V6(_) => control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &bits),
            }
        }
        if let Some(bytes) = message.segment_size {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
        }
        let unspecified = || match message.destination.ip().to_canonical() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // An interface without a source: the system chooses the source.
        let source = message.source_ip;
        match source.or_else(|| (message.interface != 0).then(unspecified)) {
            None => {}
            // `in6_pktinfo`: source, interface; `in_pktinfo`: interface, source, destination.
            Some(ip) if self.is_v6 => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&mapped(ip).octets());
                info[16..].copy_from_slice(&message.interface.to_ne_bytes());
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            Some(ip) => match ip.to_canonical() {
                IpAddr::V4(ip) => {
                    let mut info = [0; 12];
                    info[..4].copy_from_slice(&message.interface.to_ne_bytes());
                    info[4..8].copy_from_slice(&ip.octets());
                    control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                }
                // On an IPv4 socket the kernel ignores an IPv6 source. It refuses one that is empty.
                IpAddr::V6(_) => control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &[]),
            },
        }
        control.used()
    }
}

/// Sends one datagram, with no metadata but its destination. That costs less than by `sendmmsg` (measured: 250 ns of
/// 4700 to send and receive it).
fn send_one(fd: RawFd, payload: &[u8], name: &Address, name_len: socklen_t) -> io::Result<usize> {
    let (from, len) = (payload.as_ptr().cast(), payload.len());
    let to = name.0.as_ptr().cast();
    retry_if_interrupted(|| {
        // SAFETY: the payload and the name, of that many bytes, are borrowed until the call returns.
        let sent = unsafe { libc::sendto(fd, from, len, libc::MSG_DONTWAIT, to, name_len) };
        // No datagram is longer than 64 KiB.
        sent as c_int
    })?;
    Ok(1)
}

/// Receives one datagram, with no metadata but its source.
fn receive_one(fd: RawFd, buffer: &mut Buffer<'_>, out: &mut Received) -> io::Result<()> {
    let mut name = Address::EMPTY;
    let mut name_len = MAX_LEN as socklen_t;
    let at = name.0.as_mut_ptr().cast();
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let (to, room) = (buffer.as_mut_ptr(), buffer.len());
    let len = retry_if_interrupted(|| {
        // SAFETY: the buffer and the name, of that many bytes, are exclusively borrowed until the call
        // returns.
        let len = unsafe { libc::recvfrom(fd, to, room, flags, at, &raw mut name_len) };
        // No datagram is longer than 64 KiB.
        len as c_int
    })?;
    // With MSG_TRUNC, `len` is the length of the datagram, however long the buffer is.
    let flags = if len > room { libc::MSG_TRUNC } else { 0 };
    let len = len.min(room);
    out.decode(len, &name, name_len as usize, &[], flags);
    Ok(())
}

/// Memory for control messages.
#[repr(C, align(8))]
struct Control<const BYTES: usize>([u8; BYTES]);

/// One buffer, and the memory for its metadata.
struct ReceiveSlot {
    vector: iovec,
    name: Address,
    control: Control<RECEIVE_CONTROL_BYTES>,
}

impl ReceiveSlot {
    #[inline]
    fn new(vector: iovec) -> Self {
        Self {
            vector,
            name: Address::EMPTY,
            control: Control([0; RECEIVE_CONTROL_BYTES]),
        }
    }

    #[inline]
    fn decode(&self, header: &mmsghdr, out: &mut Received) {
        let len = header.msg_len as usize;
        let header = &header.msg_hdr;
        // A word or a `u32`, depending on the libc.
        #[allow(clippy::unnecessary_cast)]
        let control = (header.msg_controllen as usize).min(RECEIVE_CONTROL_BYTES);
        let (name_len, control) = (header.msg_namelen as usize, &self.control.0[..control]);
        out.decode(len, &self.name, name_len, control, header.msg_flags);
    }
}

/// The metadata of one message that the kernel reads.
struct SendSlot {
    name: Address,
    control: Control<SEND_CONTROL_BYTES>,
}

fn empty_header() -> mmsghdr {
    // SAFETY: a `mmsghdr` consists of integers and pointers, for which zeros are valid.
    unsafe { zeroed() }
}

#[cfg(not(target_env = "musl"))]
use libc::sendmmsg;

/// The system call itself: musl's function of that name is a loop of `sendmsg`. Its `mmsghdr` is the kernel's
/// as long as what it pads is zero, as in [`empty_header`]; [`cmsg`] writes the kernel's format anyway.
///
/// # Safety
/// As of `sendmmsg`: the first `count` headers at `at` are initialised, and what they point to is readable.
#[cfg(target_env = "musl")]
unsafe fn sendmmsg(fd: RawFd, at: *mut mmsghdr, count: u32, flags: u32) -> c_int {
    // SAFETY: handed on to the caller.
    let sent = unsafe { libc::syscall(libc::SYS_sendmmsg, fd, at, count, flags) };
    // At most `count`, or -1.
    sent as c_int
}

/// Repeats a call that a signal interrupted.
fn retry_if_interrupted(mut call: impl FnMut() -> c_int) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Restricts the calling thread to one CPU.
pub(in crate::udp) fn pin_thread(cpu: usize) -> io::Result<()> {
    let mut set = [0_u64; 16];
    let Some(word) = set.get_mut(cpu / 64) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    *word = 1 << (cpu % 64);
    // SAFETY: the set has the length that is passed, and a thread id of 0 means the caller.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};
    use std::net::SocketAddr;

    fn socket(features: Features) -> (socket2::Socket, Backend) {
        let socket = socket2::Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let backend = Backend::configure(&socket, features).unwrap();
        socket
            .bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
            .unwrap();
        (socket, backend)
    }

    #[test]
    fn an_error_of_the_second_recvfrom_is_returned_by_the_next_receive() {
        let features = Features {
            source_only: true,
            ..Features::default()
        };
        let (socket, backend) = socket(features);
        let to = socket.local_addr().unwrap();
        socket.send_to(b"1", &to).unwrap();
        socket.send_to(b"2", &to).unwrap();
        // SAFETY: maps new memory.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(ptr::null_mut(), 1, libc::PROT_READ, flags, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        // SAFETY: the page stays mapped and nobody else has it. Only the kernel tries to write to it,
        // and is not permitted to.
        let unwritable = unsafe { std::slice::from_raw_parts_mut(page.cast(), 1) };
        let mut memory = [0; 1];
        let mut buffers = [&mut memory, unwritable].map(Buffer::new);
        let mut received = [Received::NOTHING; MAX_RECVFROM_BATCH];
        let mut receive = || backend.receive(&socket, &mut buffers, &mut received);
        assert_eq!(receive().unwrap(), 1);
        assert!(backend.has_deferred_error());
        assert_eq!(receive().unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_deferred_error_is_returned_before_the_next_datagram() {
        let features = Features {
            source_only: true,
            ..Features::default()
        };
        let (socket, backend) = socket(features);
        let mut memory = [0; 8];
        let mut receive = || {
            let (a, b) = memory.split_at_mut(4);
            let mut buffers = [a, b].map(Buffer::new);
            let mut received = [Received::NOTHING; MAX_RECVFROM_BATCH];
            let read = backend.receive(&socket, &mut buffers, &mut received);
            read.map_err(|error| error.kind())
        };
        assert_eq!(receive(), Err(io::ErrorKind::WouldBlock));
        socket.send_to(b"1", &socket.local_addr().unwrap()).unwrap();
        backend
            .deferred_error
            .store(libc::ECONNREFUSED, Ordering::Relaxed);
        assert!(backend.has_deferred_error());
        assert_eq!(receive(), Err(io::ErrorKind::ConnectionRefused));
        assert!(!backend.has_deferred_error());
        assert_eq!(receive(), Ok(1));
        assert_eq!(receive(), Err(io::ErrorKind::WouldBlock));
    }
}
