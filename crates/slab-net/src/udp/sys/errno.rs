//! Linux: what an error number of a socket's call means.

use std::io;

/// Returns `true` if the system has no memory for outgoing datagrams at the moment.
pub(in crate::udp) fn is_no_buffers(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Returns `true` if a host or router reported this about an earlier datagram (ICMP). A connected
/// socket reports it once, by whichever call comes next.
pub(crate) fn is_icmp_error(error: &io::Error) -> bool {
    // All errors that the kernel's tables for ICMP and ICMPv6 derive from permanent conditions, and that of
    // a datagram too long for a router on the path. Receiving returns none of these for another reason.
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EPROTO
                | libc::EACCES
                | libc::EMSGSIZE
        )
    )
}

/// Returns `true` if the message is longer than the path allows.
pub(in crate::udp) fn is_too_large(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// Returns `true` if the error may be caused by GSO. A device without checksum offloading causes EIO, a
/// path with a small MTU or a kernel without GSO causes EINVAL.
pub(in crate::udp) fn may_be_gso_error(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMSGSIZE | libc::EINVAL | libc::EIO)
    )
}
