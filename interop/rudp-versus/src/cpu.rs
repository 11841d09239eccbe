//! CPU time of this process.

use std::time::Duration;

/// User and system time so far.
pub(crate) fn time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to writable memory of the right size.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(result, 0, "getrusage");
    // SAFETY: the call has filled it.
    let usage = unsafe { usage.assume_init() };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// What is measured of a transfer.
pub(crate) struct Meter {
    begin: std::time::Instant,
    cpu: Duration,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self {
            begin: std::time::Instant::now(),
            cpu: time(),
        }
    }

    pub(crate) fn stop(self, bytes: usize) -> crate::Bulk {
        let (took, cpu) = (self.begin.elapsed(), time() - self.cpu);
        crate::Bulk {
            mb_per_s: bytes as f64 / 1e6 / took.as_secs_f64(),
            cpu_s_per_gb: cpu.as_secs_f64() / (bytes as f64 / 1e9),
        }
    }
}
