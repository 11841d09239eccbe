//! Switching GRO off: the one socket option that neither quinn-udp nor socket2 offers.

use socket2::Socket;
use std::io;

/// Makes the kernel deliver each datagram by itself. quinn-udp switches GRO on without asking.
#[cfg(target_os = "linux")]
pub(super) fn disable(socket: &Socket) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let off: libc::c_int = 0;
    // SAFETY: the descriptor is open while `socket` is borrowed, and the option's value is an
    // `int` of the size that is passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_GRO,
            (&raw const off).cast(),
            size_of_val(&off) as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // A kernel that does not know the option does not coalesce either.
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        error => Err(error),
    }
}

/// Nothing to switch off: quinn-udp coalesces on Linux only.
#[cfg(not(target_os = "linux"))]
pub(super) fn disable(_: &Socket) -> io::Result<()> {
    Ok(())
}
