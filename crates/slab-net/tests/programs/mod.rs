//! Random programs, each made of a seed.
//!
//! A failure names its seed; `SLAB_SEED` repeats it, `SLAB_SEEDS` runs so many.

#[allow(dead_code, reason = "what RUDP's programs use")]
#[path = "../rudp/common/random.rs"]
mod random;

pub(crate) use random::Random;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// Whether a task was woken.
#[derive(Default)]
pub(crate) struct Woken(pub(crate) AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the program of each seed, `default` of them, on a runtime of one thread. Returns whether these were
/// all, and not what the environment asks for.
pub(crate) fn run<F: Future<Output = ()>>(default: u64, mut program: impl FnMut(u64) -> F) -> bool {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match (number("SLAB_SEED"), number("SLAB_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(default),
    };
    for seed in seeds.clone() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let run = || runtime.block_on(program(seed));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            let _ = writeln!(io::stderr(), "repeat with SLAB_SEED={seed}");
            resume_unwind(panic);
        }
    }
    seeds == (0..default)
}
