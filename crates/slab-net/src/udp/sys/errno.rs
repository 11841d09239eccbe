//! Linux: what an error number of a socket's call means.

use std::io;

/// Returns `true` if the system has no memory for outgoing datagrams at the moment.
pub(in crate::udp) fn is_no_buffers(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Returns `true` if this is what a connected socket says that a host or router reported about an earlier datagram
/// (ICMP): once, by whichever call comes next.
pub(in crate::udp) fn is_icmp_error(error: &io::Error) -> bool {
    // All errors that the kernel's tables for ICMP and ICMPv6 derive from permanent conditions, and that of
    // a datagram too long for a router on the path. Of these the system returns none when receiving for another reason;
    // but a security module (SELinux: EACCES) may refuse it, and then does so each time.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of each error that the kernel's tables have, and of some that they have not.
    #[test]
    fn errors_that_others_cause_are_told_from_the_sockets_own() {
        let is_caused_by_others = |code| is_icmp_error(&io::Error::from_raw_os_error(code));
        for code in [
            libc::ECONNREFUSED,
            libc::EHOSTUNREACH,
            libc::ENETUNREACH,
            libc::EHOSTDOWN,
            libc::ENONET,
            libc::ENOPROTOOPT,
            libc::EPROTO,
            libc::EACCES,
            libc::EMSGSIZE,
        ] {
            assert!(is_caused_by_others(code), "{code}");
        }
        for code in [libc::ENOMEM, libc::ENETDOWN, libc::EPERM, libc::EAGAIN] {
            assert!(!is_caused_by_others(code), "{code}");
        }
    }
}
