//! Log events for drops: one when an episode begins, one when it has ended, none per packet.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Drops less than this apart belong to one episode, so that there are at most two events in this time.
const QUIET_MILLIS: u64 = 1000;

/// Turns a series of drops for one reason into an event at its beginning and one at its end.
///
/// While nothing is dropped, [`record_success`](Self::record_success) costs one load.
#[derive(Debug)]
pub(crate) struct DropEpisode {
    reason: &'static str,
    /// The socket that drops them, if one does.
    pub(super) socket: Option<SocketAddr>,
    /// Milliseconds of [`now`] at the last drop; 0 outside of an episode.
    last_drop: AtomicU64,
    datagrams: AtomicU64,
}

impl DropEpisode {
    pub(crate) fn new(reason: &'static str) -> Self {
        Self {
            reason,
            socket: None,
            last_drop: AtomicU64::new(0),
            datagrams: AtomicU64::new(0),
        }
    }

    /// Reports how many were dropped, perhaps none.
    #[inline]
    pub(crate) fn record(&self, dropped: u64) {
        match dropped {
            0 => self.record_success(),
            datagrams => self.dropped(datagrams),
        }
    }

    pub(crate) fn dropped(&self, datagrams: u64) {
        self.datagrams.fetch_add(datagrams, Ordering::Relaxed);
        if self.last_drop.swap(now(), Ordering::Relaxed) == 0 {
            let socket = self.socket.map(tracing::field::display);
            tracing::warn!(reason = self.reason, socket, "dropping datagrams");
        }
    }

    /// Reports that something was not dropped.
    #[inline]
    pub(crate) fn record_success(&self) {
        let last = self.last_drop.load(Ordering::Relaxed);
        if last != 0 {
            self.end_if_quiet(last);
        }
    }

    #[cold]
    fn end_if_quiet(&self, last: u64) {
        if now().saturating_sub(last) >= QUIET_MILLIS {
            self.end(last);
        }
    }

    fn end(&self, last: u64) {
        // If several threads see the end, one of them logs it.
        let over = self
            .last_drop
            .compare_exchange(last, 0, Ordering::Relaxed, Ordering::Relaxed);
        if over.is_ok() {
            let datagrams = self.datagrams.swap(0, Ordering::Relaxed);
            let socket = self.socket.map(tracing::field::display);
            tracing::warn!(
                reason = self.reason,
                socket,
                datagrams,
                "stopped dropping datagrams"
            );
        }
    }
}

impl Drop for DropEpisode {
    fn drop(&mut self) {
        match *self.last_drop.get_mut() {
            0 => {}
            last => self.end(last),
        }
    }
}

/// Returns the milliseconds since the first call, plus one: never 0.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_episode_ends_only_after_a_quiet_time() {
        let episode = DropEpisode::new("test");
        episode.record_success();
        assert_eq!(episode.last_drop.load(Ordering::Relaxed), 0);
        episode.dropped(3);
        episode.dropped(4);
        // The clock has hardly advanced since.
        let last = episode.last_drop.load(Ordering::Relaxed);
        assert_ne!(last, 0);
        episode.end(last + 1);
        assert_eq!(
            episode.datagrams.load(Ordering::Relaxed),
            7,
            "another drop came between"
        );
        episode.end(last);
        assert_eq!(episode.last_drop.load(Ordering::Relaxed), 0);
        assert_eq!(episode.datagrams.load(Ordering::Relaxed), 0);
    }
}
