//! Estimates what a path carries from how closely the segments of one window follow each other: a packet train
//! (Jain and Dovrolis 2002).
//!
//! A peer limited by the window sends what the window allows, and waits. How long it waits says nothing about the
//! path. So a pause ends a train, and only the time from its first to its last segment counts. A train that is
//! shorter than the window and did not use it up does not show what a larger window would do.

use super::super::time::Time;
use super::recovery::micros;
use super::sn::diff;
use core::time::Duration;

/// The shortest time a train is taken to last: tasks are not woken faster.
const MIN_DURATION: Duration = Duration::from_millis(1);
/// A pause longer than one `PAUSE_DIVISOR`-th of a round trip ends a train. Acknowledgements that are sent together
/// make shorter pauses.
const PAUSE_DIVISOR: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Train {
    /// New segments so far.
    segments: u32,
    /// The edge of the window that the peer was last told when the train began: it knew of no later one.
    edge: u32,
    since: Option<Time>,
    /// Microseconds from the first segment to the last.
    duration_micros: u32,
    used_up: bool,
    /// Had the reader read what came before, when the train began?
    caught_up: bool,
}

impl Train {
    /// Counts a new segment. `edge` is the edge of the window that the peer was last told, `window` the window's
    /// size, and `unread` how many segments of it were in order and unread before.
    pub(super) fn count(&mut self, sn: u32, edge: u32, window: u32, unread: u32, now: Time) {
        let since = *self.since.get_or_insert_with(|| {
            self.edge = edge;
            self.caught_up = unread <= window / 8;
            now
        });
        self.duration_micros = now.micros_since(since);
        self.segments += 1;
        // The last segments of the window may have been lost.
        self.used_up |= diff(self.edge, sn) <= (window / 8).max(1) as i32;
    }

    /// A segment is about to be counted: after a pause it is the first of another train.
    pub(super) fn restart_after_pause(&mut self, now: Time, rtt: Option<Duration>) {
        if let (Some(rtt), Some(since)) = (rtt, self.since)
            && now.micros_since(since) - self.duration_micros > micros(rtt / PAUSE_DIVISOR)
        {
            *self = Self::default();
        }
    }

    /// Returns how many segments would come within `rtt`, and whether the reader keeps up; `None` until that can be
    /// said. The next segment begins another train.
    pub(super) fn end(&mut self, window: u32, rtt: Duration) -> Option<(u32, bool)> {
        let enough = self.segments >= window || (self.used_up && self.segments >= window / 2);
        if !enough {
            return None;
        }
        let train = core::mem::take(self);
        let took = train.duration_micros.max(micros(MIN_DURATION));
        let carried = u64::from(train.segments) * u64::from(micros(rtt)) / u64::from(took);
        Some((u32::try_from(carried).unwrap_or(u32::MAX), train.caught_up))
    }
}
