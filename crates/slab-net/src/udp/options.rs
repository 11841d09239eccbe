//! Socket options that quinn-udp switches on without asking, and that neither it nor socket2 can
//! switch off.

use socket2::Socket;
use std::io;

/// Makes the kernel deliver each datagram by itself.
#[cfg(target_os = "linux")]
pub(super) fn disable_gro(socket: &Socket) -> io::Result<()> {
    switch_off(socket, libc::SOL_UDP, libc::UDP_GRO)
}

/// Makes the kernel leave out the time of arrival.
#[cfg(target_os = "linux")]
pub(super) fn disable_timestamps(socket: &Socket) -> io::Result<()> {
    switch_off(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS)
}

#[cfg(target_os = "linux")]
fn switch_off(socket: &Socket, level: libc::c_int, option: libc::c_int) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let off: libc::c_int = 0;
    // SAFETY: the descriptor is open while `socket` is borrowed, and the option's value is an
    // `int` of the size that is passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const off).cast(),
            size_of_val(&off) as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // A kernel that does not know the option has it off.
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        error => Err(error),
    }
}

/// Nothing to switch off: quinn-udp coalesces on Linux only.
#[cfg(not(target_os = "linux"))]
pub(super) fn disable_gro(_: &Socket) -> io::Result<()> {
    Ok(())
}

/// Nothing to switch off: quinn-udp asks for timestamps on Linux only.
#[cfg(not(target_os = "linux"))]
pub(super) fn disable_timestamps(_: &Socket) -> io::Result<()> {
    Ok(())
}
