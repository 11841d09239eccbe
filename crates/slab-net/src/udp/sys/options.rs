//! Linux: options of a socket, and what the kernel tells about one.

use libc::{c_int, c_void, socklen_t};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
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

pub(super) fn get<T: Copy>(
    fd: RawFd,
    level: c_int,
    option: c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut len = size_of::<T>() as socklen_t;
    let at = ptr::from_mut(value).cast::<c_void>();
    // SAFETY: the kernel writes at most `len` bytes, the size of the value, and `T` consists of
    // integers in every call.
    let result = unsafe { libc::getsockopt(fd, level, option, at, &raw mut len) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns `true` unless datagrams longer than the path takes are refused or lost.
#[cfg(feature = "quinn")]
pub(in crate::udp) fn may_fragment(socket: &impl AsRawFd) -> bool {
    let mut how: c_int = 0;
    let option = libc::IP_MTU_DISCOVER;
    let known = get(socket.as_raw_fd(), libc::IPPROTO_IP, option, &mut how);
    known.is_err() || how != libc::IP_PMTUDISC_PROBE
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
        let mut info = [0_u32; DROPS + 1];
        get((*fd)?, libc::SOL_SOCKET, SO_MEMINFO, &mut info).ok()?;
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
