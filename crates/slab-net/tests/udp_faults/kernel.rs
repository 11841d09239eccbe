//! The system calls of one socket of this thread. All others go to the system.

use crate::programs::Random;
use libc::{c_int, c_uint, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t, timespec};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// A datagram that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) to: SocketAddr,
    pub(crate) from: Option<IpAddr>,
    pub(crate) ecn: u8,
    pub(crate) bytes: Vec<u8>,
}

/// What arrives: a buffer of coalesced datagrams, or an error.
#[derive(Clone, Debug)]
pub(crate) enum Arrival {
    Datagrams(Arrived),
    Error(c_int),
}

#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) bytes: Vec<u8>,
    /// As the kernel reports it, which may be nonsense.
    pub(crate) stride: Option<c_int>,
    pub(crate) source: SocketAddr,
    pub(crate) ecn: u8,
}

/// How it treats what is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// The longest datagram.
    pub(crate) most: usize,
    /// Refuses messages of several datagrams with this error; 0 if it takes them.
    pub(crate) refuses_gso: c_int,
    /// The error for segments that are too long.
    pub(crate) too_long_segment: c_int,
    /// In a thousand messages, how many meet an error of another cause.
    pub(crate) faults: u64,
}

pub(crate) struct Kernel {
    fd: c_int,
    /// The same socket, and another, to make the system report that the first is ready.
    socket: UdpSocket,
    other: UdpSocket,
    pub(crate) random: Random,
    pub(crate) path: Path,
    pub(crate) sent: Vec<Sent>,
    pub(crate) send_calls: u64,
    /// The error that the last failing call returned.
    pub(crate) last_error: c_int,
    /// Messages of more than one datagram that were offered.
    pub(crate) gso_messages: u64,
    /// Those of them that were refused although their datagrams were not too long.
    pub(crate) gso_refusals: u64,
    pub(crate) arrivals: VecDeque<Arrival>,
    /// The datagrams and bytes taken out of `arrivals`, and the errors.
    pub(crate) received: (u64, u64),
    pub(crate) errors: u64,
    /// In a thousand calls, how many are interrupted.
    pub(crate) interrupts: u64,
    /// Refuses to receive, each time, with this error; 0 if it does not.
    pub(crate) refuses: c_int,
}

thread_local! {
    static KERNEL: RefCell<Option<Kernel>> = const { RefCell::new(None) };
}

/// Takes over the calls of this socket.
pub(crate) fn install(fd: c_int, socket: UdpSocket, random: Random) {
    let loopback: IpAddr = match socket.local_addr().unwrap() {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let other = UdpSocket::bind((loopback, 0)).unwrap();
    let kernel = Kernel {
        fd,
        socket,
        other,
        random,
        path: Path {
            most: 65_507,
            refuses_gso: 0,
            too_long_segment: libc::EMSGSIZE,
            faults: 0,
        },
        sent: Vec::new(),
        send_calls: 0,
        last_error: 0,
        gso_messages: 0,
        gso_refusals: 0,
        arrivals: VecDeque::new(),
        received: (0, 0),
        errors: 0,
        interrupts: 0,
        refuses: 0,
    };
    KERNEL.set(Some(kernel));
}

pub(crate) fn uninstall() {
    KERNEL.set(None);
}

pub(crate) fn kernel<T>(f: impl FnOnce(&mut Kernel) -> T) -> T {
    KERNEL.with_borrow_mut(|kernel| f(kernel.as_mut().expect("installed")))
}

/// Calls `f` if the socket is the installed one.
fn with_kernel<T>(fd: c_int, f: impl FnOnce(&mut Kernel) -> T) -> Option<T> {
    KERNEL.with(|kernel| {
        let mut kernel = kernel.try_borrow_mut().ok()?;
        kernel.as_mut().filter(|kernel| kernel.fd == fd).map(f)
    })
}

fn set_errno(code: c_int) {
    // SAFETY: returns the address of this thread's variable.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { errno.write(code) };
}

fn outcome(result: Result<usize, c_int>) -> c_int {
    match result {
        Ok(count) => count as c_int,
        Err(code) => {
            set_errno(code);
            -1
        }
    }
}

struct Message {
    to: SocketAddr,
    from: Option<IpAddr>,
    ecn: u8,
    segment: Option<usize>,
    bytes: Vec<u8>,
}

impl Message {
    fn datagrams(&self) -> impl Iterator<Item = Sent> {
        let size = self.segment.unwrap_or(self.bytes.len()).max(1);
        let empty = self.bytes.is_empty().then_some(&[][..]);
        let pieces = self.bytes.chunks(size).chain(empty);
        pieces.map(|bytes| Sent {
            to: self.to,
            from: self.from,
            ecn: self.ecn,
            bytes: bytes.to_vec(),
        })
    }
}

impl Kernel {
    fn send(&mut self, messages: &[Message]) -> Result<usize, c_int> {
        for (count, message) in messages.iter().enumerate() {
            if let Err(code) = self.accept(message) {
                if count > 0 {
                    // Errors of one that is not the first are not reported, and perhaps do not come again.
                    self.send_calls += 1;
                    return Ok(count);
                }
                if code == libc::EAGAIN {
                    self.make_room();
                } else if code != libc::EINTR {
                    self.last_error = code;
                }
                return Err(code);
            }
        }
        self.send_calls += 1;
        Ok(messages.len())
    }

    fn accept(&mut self, message: &Message) -> Result<(), c_int> {
        let size = message.segment.unwrap_or(message.bytes.len());
        if let Some(size) = message.segment {
            self.gso_messages += 1;
            assert!(size > 0 && size < message.bytes.len(), "one datagram");
            assert!(message.bytes.len() <= 65_507);
            assert!(message.bytes.len().div_ceil(size) <= 64);
        }
        if self.random.chance(self.path.faults) {
            return Err(self.random.pick(&[
                libc::EAGAIN,
                libc::EAGAIN,
                libc::EINTR,
                libc::ENOBUFS,
                libc::EPERM,
                libc::ECONNREFUSED,
            ]));
        }
        if message.segment.is_some() && self.path.refuses_gso != 0 {
            self.gso_refusals += 1;
            return Err(self.path.refuses_gso);
        }
        if size > self.path.most {
            return Err(match message.segment {
                Some(_) => self.path.too_long_segment,
                None => libc::EMSGSIZE,
            });
        }
        self.sent.extend(message.datagrams());
        Ok(())
    }

    /// Makes the system report the socket as writable once more.
    fn make_room(&self) {
        let to = self.other.local_addr().unwrap();
        self.socket.send_to(b"", to).unwrap();
    }

    /// Lets something arrive.
    pub(crate) fn arrive(&mut self, arrival: Arrival) {
        self.arrivals.push_back(arrival);
        self.make_readable();
    }

    /// Gives the socket a peer. What arrives is still from anywhere.
    pub(crate) fn connect(&self) {
        let peer = self.other.local_addr().unwrap();
        self.socket.connect(peer).unwrap();
    }

    /// Refuses to receive from now on, whatever arrives.
    pub(crate) fn refuse(&mut self, code: c_int) {
        self.refuses = code;
        self.make_readable();
    }

    /// Returns `true` if nothing has arrived since a call found the queue empty.
    pub(crate) fn is_drained(&self) -> bool {
        self.arrivals.is_empty() && self.socket.peek(&mut [0]).is_err()
    }

    fn make_readable(&self) {
        let to = self.socket.local_addr().unwrap();
        self.other.send_to(b"", to).unwrap();
    }

    /// Fills as many buffers as there are, and as have arrived before an error; returns their number.
    fn receive(
        &mut self,
        buffers: usize,
        mut fill: impl FnMut(usize, Arrived),
    ) -> Result<usize, c_int> {
        if self.random.chance(self.interrupts) {
            return Err(libc::EINTR);
        }
        if self.refuses != 0 {
            self.errors += 1;
            return Err(self.refuses);
        }
        for count in 0..buffers {
            match self.arrivals.pop_front() {
                Some(Arrival::Datagrams(arrived)) => fill(count, arrived),
                Some(Arrival::Error(code)) if count == 0 => {
                    self.errors += 1;
                    return Err(code);
                }
                Some(Arrival::Error(code)) => {
                    // As if it came just now.
                    self.arrivals.push_front(Arrival::Error(code));
                    self.make_readable();
                    return Ok(count);
                }
                None if count == 0 => {
                    let mut byte = [0];
                    while self.socket.recv_from(&mut byte).is_ok() {}
                    return Err(libc::EAGAIN);
                }
                None => return Ok(count),
            }
        }
        Ok(buffers)
    }

    fn count(&mut self, arrived: &Arrived, len: usize) {
        self.received.0 += arrived.datagrams(len).len() as u64;
        self.received.1 += len as u64;
    }
}

impl Arrived {
    /// The datagrams of its first `len` bytes.
    pub(crate) fn datagrams(&self, len: usize) -> Vec<&[u8]> {
        let stride = usize::try_from(self.stride.unwrap_or(0)).unwrap_or(0);
        let bytes = &self.bytes[..len];
        match stride {
            0 => vec![bytes],
            _ if bytes.is_empty() => vec![bytes],
            _ => bytes.chunks(stride).collect(),
        }
    }

    fn control(&self) -> Vec<u8> {
        let mut control = Vec::new();
        let mut push = |level: c_int, kind: c_int, data: &[u8]| {
            control.extend((16 + data.len()).to_ne_bytes());
            control.extend(level.to_ne_bytes());
            control.extend(kind.to_ne_bytes());
            control.extend(data);
            control.resize(control.len().next_multiple_of(8), 0);
        };
        if let Some(stride) = self.stride {
            push(libc::SOL_UDP, libc::UDP_GRO, &stride.to_ne_bytes());
        }
        if self.source.is_ipv4() {
            push(libc::IPPROTO_IP, libc::IP_TOS, &[self.ecn]);
        } else {
            let class = c_int::from(self.ecn);
            push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class.to_ne_bytes());
        }
        control
    }

    fn name(&self) -> Vec<u8> {
        let mut name = Vec::new();
        match self.source {
            SocketAddr::V4(v4) => {
                name.extend((libc::AF_INET as u16).to_ne_bytes());
                name.extend(v4.port().to_be_bytes());
                name.extend(v4.ip().octets());
                name.extend([0; 8]);
            }
            SocketAddr::V6(v6) => {
                name.extend((libc::AF_INET6 as u16).to_ne_bytes());
                name.extend(v6.port().to_be_bytes());
                name.extend([0; 4]);
                name.extend(v6.ip().octets());
                name.extend([0; 4]);
            }
        }
        name
    }
}

/// # Safety
/// There are that many initialised bytes, for as long as the slice is used.
unsafe fn bytes<'a>(at: *const libc::c_void, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(at.cast(), len) },
    }
}

/// # Safety
/// There is room for them, or `to` is null and there are none.
unsafe fn write(to: *mut libc::c_void, data: &[u8]) {
    if !data.is_empty() {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u8>().copy_from(data.as_ptr(), data.len()) };
    }
}

fn address(name: &[u8]) -> SocketAddr {
    let family = c_int::from(u16::from_ne_bytes([name[0], name[1]]));
    let port = u16::from_be_bytes([name[2], name[3]]);
    if family == libc::AF_INET {
        let ip: [u8; 4] = name[4..8].try_into().unwrap();
        return (ip, port).into();
    }
    let ip: [u8; 16] = name[8..24].try_into().unwrap();
    (Ipv6Addr::from(ip).to_canonical(), port).into()
}

/// # Safety
/// As the system call.
unsafe fn message(header: &msghdr) -> Message {
    // SAFETY: as the system call.
    let name = unsafe { bytes(header.msg_name, header.msg_namelen as usize) };
    // SAFETY: as the system call.
    let control = unsafe { bytes(header.msg_control, header.msg_controllen) };
    let mut out = Message {
        to: address(name),
        from: None,
        ecn: 0,
        segment: None,
        bytes: Vec::new(),
    };
    for part in 0..header.msg_iovlen {
        // SAFETY: there are so many vectors.
        let at = unsafe { header.msg_iov.add(part) };
        // SAFETY: as above.
        let vector = unsafe { at.read() };
        // SAFETY: as the system call.
        let part = unsafe { bytes(vector.iov_base, vector.iov_len) };
        out.bytes.extend_from_slice(part);
    }
    let mut rest = control;
    while rest.len() >= 16 {
        let len = usize::from_ne_bytes(rest[..8].try_into().unwrap());
        let word = |at: usize| c_int::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
        let data = &rest[16..len];
        match (word(8), word(12)) {
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                out.segment = Some(u16::from_ne_bytes([data[0], data[1]]).into());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                assert_eq!(data.len(), 4);
                assert_eq!(word(8) == libc::IPPROTO_IP, out.to.is_ipv4());
                out.ecn = data[0];
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let ip: [u8; 4] = data[4..8].try_into().unwrap();
                out.from = Some(ip.into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip: [u8; 16] = data[..16].try_into().unwrap();
                out.from = Some(Ipv6Addr::from(ip).to_canonical());
            }
            other => panic!("{other:?}"),
        }
        rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    out
}

/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(
    fd: c_int,
    headers: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let ours = with_kernel(fd, |kernel| {
        // SAFETY: as the system call.
        let headers = unsafe { std::slice::from_raw_parts(headers, count as usize) };
        let messages = headers.iter().map(|header| {
            // SAFETY: as the system call.
            unsafe { message(&header.msg_hdr) }
        });
        let messages: Vec<Message> = messages.collect();
        outcome(kernel.send(&messages))
    });
    // SAFETY: the same call.
    ours.unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_sendmmsg, fd, headers, count, flags) as c_int
    })
}

/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    payload: *const libc::c_void,
    len: usize,
    flags: c_int,
    name: *const sockaddr,
    name_len: socklen_t,
) -> ssize_t {
    let ours = with_kernel(fd, |kernel| {
        let plain = Message {
            // SAFETY: as the system call.
            to: address(unsafe { bytes(name.cast(), name_len as usize) }),
            from: None,
            ecn: 0,
            segment: None,
            // SAFETY: as the system call.
            bytes: unsafe { bytes(payload, len) }.to_vec(),
        };
        match outcome(kernel.send(&[plain])) {
            1 => len as ssize_t,
            failed => failed as ssize_t,
        }
    });
    // SAFETY: the same call.
    ours.unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_sendto, fd, payload, len, flags, name, name_len) as ssize_t
    })
}

/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    headers: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let ours = with_kernel(fd, |kernel| {
        // SAFETY: as the system call.
        let headers = unsafe { std::slice::from_raw_parts_mut(headers, count as usize) };
        let mut counted = Vec::new();
        let read = kernel.receive(headers.len(), |at, arrived| {
            let header = &mut headers[at];
            // SAFETY: there is one vector.
            let vector = unsafe { header.msg_hdr.msg_iov.read() };
            let fits = arrived.bytes.len().min(vector.iov_len);
            // SAFETY: so much fits.
            unsafe { write(vector.iov_base, &arrived.bytes[..fits]) };
            let (name, control) = (arrived.name(), arrived.control());
            assert!(name.len() <= header.msg_hdr.msg_namelen as usize);
            assert!(control.len() <= header.msg_hdr.msg_controllen);
            // SAFETY: so much fits.
            unsafe { write(header.msg_hdr.msg_name, &name) };
            // SAFETY: so much fits.
            unsafe { write(header.msg_hdr.msg_control, &control) };
            header.msg_hdr.msg_namelen = name.len() as socklen_t;
            header.msg_hdr.msg_controllen = control.len();
            let is_cut = fits < arrived.bytes.len();
            header.msg_hdr.msg_flags = if is_cut { libc::MSG_TRUNC } else { 0 };
            let whole = flags & libc::MSG_TRUNC != 0;
            let len = if whole { arrived.bytes.len() } else { fits };
            header.msg_len = len as c_uint;
            counted.push((arrived, len));
        });
        for (arrived, len) in counted {
            kernel.count(&arrived, len);
        }
        outcome(read)
    });
    // SAFETY: the same call.
    ours.unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_recvmmsg, fd, headers, count, flags, timeout) as c_int
    })
}

/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut libc::c_void,
    room: usize,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut socklen_t,
) -> ssize_t {
    let ours = with_kernel(fd, |kernel| {
        let mut counted = None;
        let read = kernel.receive(1, |_, arrived| {
            let fits = arrived.bytes.len().min(room);
            // SAFETY: so much fits.
            unsafe { write(buffer, &arrived.bytes[..fits]) };
            let from = arrived.name();
            // SAFETY: the room for a name, and then its length.
            assert!(from.len() <= unsafe { name_len.read() } as usize);
            // SAFETY: so much fits.
            unsafe { write(name.cast(), &from) };
            // SAFETY: as above.
            unsafe { name_len.write(from.len() as socklen_t) };
            counted = Some((arrived, fits));
        });
        let Some((arrived, fits)) = counted else {
            return outcome(read) as ssize_t;
        };
        kernel.count(&arrived, fits);
        match flags & libc::MSG_TRUNC {
            0 => fits as ssize_t,
            _ => arrived.bytes.len() as ssize_t,
        }
    });
    // SAFETY: the same call.
    ours.unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_recvfrom, fd, buffer, room, flags, name, name_len) as ssize_t
    })
}
