//! What the system allows tests that lock memory.

/// May a few pools of less than a megabyte be locked at a time? Then an error is one of ours.
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

/// Elsewhere nobody is asked.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_allowed() -> bool {
    false
}
