//! Where threads run, the CPU time they use, and how far apart two CPUs are at the moment.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// The CPUs that the threads of a run are pinned to.
#[derive(Clone, Copy)]
pub(crate) struct Cpus {
    /// All CPUs that this process may use.
    allowed: CpuSet,
    /// The CPU for single-threaded cases.
    pub(crate) main: usize,
    /// The CPU for the other side of cross-thread cases; `None` on a machine with one CPU.
    pub(crate) other: Option<usize>,
}

impl Cpus {
    /// Chooses the last two CPUs that this process may use: the first ones serve more interrupts.
    pub(crate) fn choose() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        let mut found = (0..CpuSet::MAX_CPU)
            .rev()
            .filter(|&cpu| allowed.is_set(cpu));
        Self {
            allowed,
            main: found.next().unwrap_or(0),
            other: found.next(),
        }
    }

    /// Lets the calling thread, and threads it starts from now on, run anywhere again.
    pub(crate) fn unpin(&self) {
        set_affinity(&self.allowed);
    }
}

/// Pins the calling thread to one CPU.
pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    set_affinity(&set);
}

fn set_affinity(set: &CpuSet) {
    if let Err(error) = sched_setaffinity(None, set) {
        eprintln!("versus: cannot choose CPUs ({error}): figures will scatter more");
    }
}

/// Lets the calling thread run whenever it can, before all threads of ordinary priority.
pub(crate) fn run_in_real_time() {
    static REFUSED: Once = Once::new();
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is the calling thread, and the pointer points to a parameter that outlives the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } != 0 {
        let error = io::Error::last_os_error();
        REFUSED.call_once(|| {
            eprintln!(
                "versus: no real time ({error}): lossy paths take longer while the CPUs are busy"
            );
        });
    }
}

/// Measures the CPU time of the calling thread, so that being preempted does not count.
pub(crate) struct ThreadClock {
    start: f64,
}

impl ThreadClock {
    pub(crate) fn start() -> Self {
        Self { start: Self::now() }
    }

    pub(crate) fn elapsed_ns(&self) -> f64 {
        Self::now() - self.start
    }

    fn now() -> f64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    }
}

/// Returns the CPU time of all threads of this process, in nanoseconds.
pub(crate) fn process_cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// How far apart the two CPUs were during a sample. Virtual CPUs move between physical ones, and
/// a cache line then takes 25 ns or 180.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Distance {
    Near,
    Far,
    /// The CPUs moved while the sample was taken.
    Moved,
}

/// Above this many nanoseconds for one cache line, one way, two CPUs are far apart.
const FAR_NS: f64 = 80.0;

impl Distance {
    pub(crate) fn between(before_ns: f64, after_ns: f64) -> Self {
        match (before_ns > FAR_NS, after_ns > FAR_NS) {
            (false, false) => Self::Near,
            (true, true) => Self::Far,
            _ => Self::Moved,
        }
    }
}

impl Distance {
    /// Parses what `Display` writes.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        [Self::Near, Self::Far, Self::Moved]
            .into_iter()
            .find(|distance| distance.to_string() == name)
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Moved => "moved",
        })
    }
}

const BURSTS: u32 = 8;
const TRIPS: u32 = 200;

/// A cache line that two threads pass to and fro.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct PingPong {
    /// Passes so far; odd when it is the other thread's turn.
    throws: AtomicU32,
}

impl PingPong {
    /// Measures the nanoseconds that the line takes one way while another thread runs
    /// [`answer`](Self::answer). The best of a few bursts, since a preempted burst says nothing about
    /// distance.
    pub(crate) fn measure(&self) -> f64 {
        let mut best = f64::INFINITY;
        for burst in 0..BURSTS {
            let start = Instant::now();
            for trip in burst * TRIPS..(burst + 1) * TRIPS {
                self.throws.store(2 * trip + 1, Ordering::Release);
                spin_until(|| self.throws.load(Ordering::Acquire) == 2 * trip + 2);
            }
            let one_way = start.elapsed().as_nanos() as f64 / f64::from(2 * TRIPS);
            best = best.min(one_way);
        }
        best
    }

    /// The other side of [`measure`](Self::measure).
    pub(crate) fn answer(&self) {
        for trip in 0..BURSTS * TRIPS {
            spin_until(|| self.throws.load(Ordering::Acquire) == 2 * trip + 1);
            self.throws.store(2 * trip + 2, Ordering::Release);
        }
    }
}

/// Spins, but yields the CPU when it takes long: the other side may be waiting for it.
#[inline(always)]
pub(crate) fn spin_until(mut done: impl FnMut() -> bool) {
    let mut spins = 0_u32;
    while !done() {
        spins += 1;
        if spins < 20_000 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
