//! What a path carries, by how close behind each other the segments of one window arrive: a packet
//! train (Jain and Dovrolis 2002).
//!
//! A peer that is limited by the window sends what it allows and waits. How long it waits says nothing
//! of the path; so a train ends with a pause, and what counts is the time from its first to its last
//! segment. One that did not use the window up says nothing of what more would do, as long as it is
//! shorter than the window.

use super::super::time::Time;
use super::recovery::micros;
use super::sn::diff;
use core::time::Duration;

/// Segments that come within this time are taken to have needed it: tasks are not woken faster.
const SHORTEST: Duration = Duration::from_millis(1);
/// A pause longer than this part of a round trip ends a train. Acknowledgements that are sent together
/// make shorter ones.
const PAUSE: u32 = 4;

#[derive(Debug)]
pub(super) struct Train {
    /// New segments so far.
    segments: u32,
    /// The end of the window that was told when it began: the peer did not know of a later one.
    edge: u32,
    since: Option<Time>,
    /// Microseconds from the first segment to the last.
    lasted: u32,
    used_up: bool,
    /// Was what came before it read when it began?
    caught_up: bool,
}

impl Train {
    pub(super) fn new() -> Self {
        Self {
            segments: 0,
            edge: 0,
            since: None,
            lasted: 0,
            used_up: false,
            caught_up: false,
        }
    }

    /// A new segment has come. `edge` is the end of the window that the peer was last told, `window` its
    /// size, and `unread` what of it was in order and not read before.
    pub(super) fn count(&mut self, sn: u32, edge: u32, window: u32, unread: u32, now: Time) {
        let since = *self.since.get_or_insert_with(|| {
            self.edge = edge;
            self.caught_up = unread <= window / 8;
            now
        });
        self.lasted = micros(now.since(since));
        self.segments += 1;
        // The very last ones may have been lost.
        self.used_up |= diff(self.edge, sn) <= (window / 8).max(1) as i32;
    }

    /// A segment is about to be counted: after a pause it is the first of another train.
    pub(super) fn pause(&mut self, now: Time, rtt: Option<Duration>) {
        if let (Some(rtt), Some(since)) = (rtt, self.since)
            && micros(now.since(since)) - self.lasted > micros(rtt / PAUSE)
        {
            *self = Self::new();
        }
    }

    /// Segments that would come within `rtt`, and whether the reader keeps up; `None` as long as nothing
    /// can be said. The next segment begins another train.
    pub(super) fn end(&mut self, window: u32, rtt: Duration) -> Option<(u32, bool)> {
        let enough = self.segments >= window || (self.used_up && self.segments >= window / 2);
        if !enough {
            return None;
        }
        let train = core::mem::replace(self, Self::new());
        let took = train.lasted.max(micros(SHORTEST));
        let carried = u64::from(train.segments) * u64::from(micros(rtt)) / u64::from(took);
        Some((u32::try_from(carried).unwrap_or(u32::MAX), train.caught_up))
    }
}
