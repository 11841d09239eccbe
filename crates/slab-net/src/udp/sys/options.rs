//! Linux: options of a socket, and what the kernel tells about one.

use libc::{c_int, socklen_t};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ignores that a kernel is too old for an option without which the rest still works.
pub(super) fn ignore_unsupported(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

pub(super) fn set<T: Copy>(fd: RawFd, level: c_int, option: c_int, value: T) -> io::Result<()> {
    let len = size_of::<T>() as socklen_t;
    // SAFETY: the kernel reads `len` bytes of a value that is borrowed, and returns an error for a
    // descriptor or an option that it does not know.
    let result = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns an option's value, which consists of so many numbers; those that the kernel does not know are 0.
pub(super) fn get<const N: usize>(fd: RawFd, level: c_int, option: c_int) -> io::Result<[u32; N]> {
    let mut value = [0; N];
    let mut len = size_of_val(&value) as socklen_t;
    let at = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `len` bytes, the size of the value, and any bytes are numbers.
    let result = unsafe { libc::getsockopt(fd, level, option, at, &raw mut len) };
    match result {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns `true` unless datagrams longer than the path takes are refused or lost.
#[cfg(feature = "quinn")]
pub(in crate::udp) fn may_fragment(socket: &impl AsRawFd) -> bool {
    let how = get(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
    !matches!(how, Ok([how]) if how.cast_signed() == libc::IP_PMTUDISC_PROBE)
}

/// Asks the kernel for its count of drops, which SO_RXQ_OVFL reports only with the next datagram.
///
/// It does not keep the socket open. The lock is held only during the call, and makes a socket that is
/// about to be closed wait for it: otherwise the descriptor might already be another file's.
#[derive(Debug, Default)]
pub(in crate::udp) struct DropProbe(Mutex<Option<RawFd>>);

impl DropProbe {
    pub(in crate::udp) fn attach(&self, socket: &impl AsRawFd) {
        *self.fd() = Some(socket.as_raw_fd());
    }

    /// Call this before closing the socket.
    pub(in crate::udp) fn detach(&self) {
        *self.fd() = None;
    }

    /// Returns the number of drops modulo 2^32, if the socket is open and the kernel knows it.
    pub(in crate::udp) fn query(&self) -> Option<u32> {
        const DROPS: usize = libc::SK_MEMINFO_DROPS as usize;
        let fd = self.fd();
        let info = get::<{ DROPS + 1 }>((*fd)?, libc::SOL_SOCKET, SO_MEMINFO).ok()?;
        Some(info[DROPS])
    }

    fn fd(&self) -> MutexGuard<'_, Option<RawFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Missing from some libc headers.
const SO_MEMINFO: c_int = 55;

/// Makes the kernel drop and count everything that arrives from now on. Queued datagrams stay.
pub(in crate::udp) fn drop_new_arrivals(socket: &impl AsRawFd) -> io::Result<()> {
    // A socket filter of one instruction: keep 0 bytes.
    let mut reject_all = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut reject_all,
    };
    set(
        socket.as_raw_fd(),
        libc::SOL_SOCKET,
        libc::SO_ATTACH_FILTER,
        program,
    )
}
