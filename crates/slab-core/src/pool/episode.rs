//! Log events for refusals: one when a pool's class runs out, or the system refuses the pool a slab, and
//! one when that is over, however often it comes and goes in between.

use crate::sync::{AtomicU64, Ordering};

/// Refusals closer together than this belong to one episode, so that in this time there are at most two
/// events a class, and two a pool for refusals by the system.
///
/// Without a clock an episode ends with the first allocation that is served.
const QUIET_MILLIS: u64 = if cfg!(feature = "std") { 1000 } else { 0 };

#[derive(Debug, Default)]
pub(crate) struct Episode {
    /// Milliseconds of [`now`] at the last refusal; 0 outside of an episode.
    last: AtomicU64,
}

impl Episode {
    /// An allocation was refused, or has to wait; `true` if an episode begins.
    pub(crate) fn record_refusal(&self) -> bool {
        self.last.swap(now(), Ordering::Relaxed) == 0
    }

    /// An allocation was served; `true` if that ends an episode.
    pub(crate) fn record_success(&self) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        last != 0 && self.try_end(last)
    }

    #[cold]
    fn try_end(&self, last: u64) -> bool {
        now() >= last + QUIET_MILLIS
            // Of several threads that see the end, one reports it; none if another was just refused.
            && self
                .last
                .compare_exchange(last, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(feature = "std")]
static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();

/// Returns when the clock started, which the first call does.
#[cfg(feature = "std")]
pub(crate) fn start_clock() -> std::time::Instant {
    *START.get_or_init(std::time::Instant::now)
}

/// Milliseconds since the clock started, and one: never 0.
#[cfg(feature = "std")]
fn now() -> u64 {
    start_clock().elapsed().as_millis() as u64 + 1
}

#[cfg(not(feature = "std"))]
fn now() -> u64 {
    1
}

#[cfg(all(test, feature = "std", not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn refusals_in_a_row_are_one_episode() {
        let episode = Episode::default();
        assert!(!episode.record_success());
        assert!(episode.record_refusal());
        assert!(!episode.record_refusal());
        // The clock has hardly moved since.
        assert!(!episode.record_success());
        assert!(!episode.record_refusal(), "still the same");
    }

    #[test]
    fn episode_lasts_from_its_latest_refusal() {
        start_clock();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let episode = Episode {
            last: AtomicU64::new(1),
        };
        assert!(!episode.record_refusal());
        assert!(episode.last.load(Ordering::Relaxed) > 1);
    }
}
