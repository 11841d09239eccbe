//! A thread with a network of its own.

use super::{checked, runtime, skipped};
use std::io;
use std::mem::zeroed;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

/// Runs on a thread of its own, whose end undoes what it changed about itself.
pub(crate) fn run_on_own_thread<F: Future<Output = ()> + 'static>(
    prepare: fn() -> io::Result<()>,
    test: impl FnOnce() -> F + Send + 'static,
) {
    let run = move || {
        if let Err(why) = prepare() {
            return skipped("this thread's system cannot be changed", &why);
        }
        runtime().block_on(test());
    };
    std::thread::spawn(run).join().unwrap();
}

/// Switches to a network with only a loopback interface, which is down.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: changes this thread's view of the system, and no memory.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Returns an `ifreq` for an interface.
pub(crate) fn request(name: &[u8]) -> libc::ifreq {
    // SAFETY: consists of integers and a union of integers, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request
}

pub(crate) fn ioctl<T>(file: &impl AsRawFd, code: libc::c_ulong, argument: &mut T) {
    let argument: *mut T = argument;
    // SAFETY: each call in these tests passes the structure that belongs to its request.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), code as _, argument) }).unwrap();
}

pub(crate) fn set_link_up(name: &[u8], up: bool) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let mut request = request(name);
    let flags = if up { libc::IFF_UP } else { 0 };
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS, &mut request);
}
