//! What the system allows tests that lock memory.

/// May pools of two megabytes in all be locked at a time? If so, an error is the library's.
#[cfg(target_os = "linux")]
pub(crate) fn is_allowed() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    failed == 0 && limit.rlim_cur >= 4 << 20
}

/// Elsewhere the limit is not known.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_allowed() -> bool {
    false
}
