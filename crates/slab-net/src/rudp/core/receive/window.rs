//! The window of a [`ReceiveQueue`]: what the peer is told that it may send, and how that grows and narrows.
//!
//! The window follows the product of bandwidth and delay, within the budget: it is to hold twice what comes in a
//! round trip (dynamic right-sizing, Fisk and Feng 2001). [`Train`] estimates what would come if the window did not
//! limit the peer, so that the window opens within a round trip or two instead of doubling in each.
//!
//! What was told cannot be taken back: the peer may send what it was promised. After a silence (a long one, unless
//! memory is short) the window [narrows](ReceiveQueue::narrow): a question for the peer's window tells a small one. The
//! answer shows that the peer has heard that, and arrives behind what it had sent before; a segment that the answer
//! overtook is dropped and sent again. Only then is the memory given back; if a segment comes first, the window stays as
//! it was.

use super::super::super::budget::Account;
use super::super::super::config::{DEFAULT_WINDOW, MAX_WINDOW};
use super::super::super::time::Time;
use super::super::recovery::INITIAL_RTO;
use super::super::sn::diff;
use super::super::train::Train;
use super::{ReceiveQueue, reservation};
use core::time::Duration;

/// Shorter round trips count as this long: below it, the tasks at both ends take the time.
const SHORTEST_ROUND_TRIP: Duration = Duration::from_millis(5);

/// What the segments that came say about the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Measured {
    /// Nothing yet; or the path carries more than the window held, which has grown as far as it may.
    Nothing,
    /// There was no memory for it to grow, or not as far. May have limited the peer for this long: since the last
    /// train, but at most two round trips.
    NoMemory(Duration),
    /// The path carries no more than the window holds, if the round-trip time is still right.
    WindowSuffices,
}

impl ReceiveQueue {
    /// Segments from `next` on that the peer may send.
    pub(in super::super) fn advertised(&self) -> u32 {
        if self.at_end {
            // Nothing comes into it. A peer that was told of none would go on asking; and one that has begun anew would
            // wait for room for ever, instead of seeing that nothing is taken.
            return DEFAULT_WINDOW;
        }
        if self.narrowed {
            return self.first_window();
        }
        let told = self.window().saturating_sub(self.deferred);
        told.saturating_sub(self.unread())
    }

    /// The window that the peer is told of. There may be more: see `grow_beyond_edge`.
    pub(in super::super) fn window(&self) -> u32 {
        self.window.min(self.max_window)
    }

    fn first_window(&self) -> u32 {
        DEFAULT_WINDOW.min(self.max_window)
    }

    /// What the first window has reserved, in bytes.
    pub(in super::super) fn first_reservation(&self) -> usize {
        reservation(self.first_window(), self.slot())
    }

    /// Is the window as large as it will ever be?
    pub(in super::super) fn is_largest(&self) -> bool {
        self.window >= self.max_window
    }

    /// Sets whether the window may grow.
    pub(in super::super) fn set_may_grow(&mut self, may_grow: bool) {
        self.may_grow = may_grow;
    }

    /// Call after segments were taken: grows the window if the path, with round trips of `rtt` if known, carries
    /// more than it holds.
    pub(in super::super) fn measure(&mut self, now: Time, rtt: Option<Duration>) -> Measured {
        if !self.may_grow {
            return Measured::Nothing;
        }
        let round = rtt.unwrap_or(INITIAL_RTO).max(SHORTEST_ROUND_TRIP);
        let Some((carried, caught_up)) = self.train.end(self.window, round) else {
            return Measured::Nothing;
        };
        let now = now.as_micros() as u32;
        let since = now.wrapping_sub(core::mem::replace(&mut self.train_ended, now));
        let wanted = carried.saturating_mul(2).min(MAX_WINDOW);
        if wanted <= self.window {
            return Measured::WindowSuffices;
        }
        let doubled = self.window * 2;
        let refused = self.growth_refused;
        self.grow(match rtt {
            Some(_) if caught_up => wanted.next_power_of_two().max(doubled),
            // Either the rate is not known, or the reader rather than the path is the limit.
            _ => doubled,
        });
        if self.growth_refused == refused {
            return Measured::Nothing;
        }
        Measured::NoMemory(Duration::from_micros(since.into()).min(2 * round))
    }

    /// A segment is about to come: see [`Train::restart_after_pause`].
    pub(in super::super) fn end_train_after_pause(&mut self, now: Time, rtt: Option<Duration>) {
        self.train.restart_after_pause(now, rtt);
    }

    /// Grows the window to `wanted` if it may grow that far, or as far as the budget allows: a few busy sessions must
    /// not take the memory with which others begin.
    fn grow(&mut self, wanted: u32) {
        let mut larger = wanted.min(self.max_window);
        while larger > self.window && !self.try_grow(larger, Account::reserve_spare) {
            larger /= 2;
        }
    }

    /// Makes room, if there is memory to spare, for a segment beyond the edge that C's ikcp would take: that takes a
    /// whole window from the next one on, whatever is unread. Its senders rely on that. They put 128 segments in flight
    /// before they know the window, and add a window told earlier to a later `una` if the path does not keep order. If
    /// those were dropped, they would come again after twice the time each time, and whatever is behind them would wait
    /// for that long after the reader has made room.
    pub(super) fn grow_beyond_edge(&mut self, sn: u32) {
        let needed = diff(sn, self.read) as u32 + 1 + self.deferred;
        let most = 2 * self.max_window;
        let takes = (self.offset(sn) as u32) < self.max_window && needed <= most;
        if self.may_grow && takes && needed > self.window {
            let roomy = (2 * self.window).clamp(needed, most);
            self.try_grow(roomy, Account::reserve_spare);
        }
    }

    /// Does an incomplete message fill the window that the peer is told of, so that it cannot become complete while that
    /// stays as it is?
    #[inline]
    pub(in super::super) fn is_filled_by_message(&self) -> bool {
        let filled = self.complete == 0 && self.readable() >= self.window();
        filled && self.deferred == 0 && !self.at_end
    }

    /// Grows the window if a message fills it: for all of that message or not at all. Two messages that had each
    /// taken a part of the memory left would wait for each other.
    pub(in super::super) fn grow_for_message(&mut self) {
        if !self.may_grow || !self.is_filled_by_message() {
            return;
        }
        let whole = (self.window + u32::from(self.to_follow)).min(self.max_window);
        let roomy = (self.window * 2).min(self.max_window).max(whole);
        if roomy == whole || !self.try_grow(roomy, Account::reserve_spare) {
            self.try_grow(whole, Account::reserve_for_message);
        }
    }

    /// Grows the window to `larger`, or counts that the budget refused.
    pub(super) fn try_grow(
        &mut self,
        larger: u32,
        reserve: fn(&mut Account, usize) -> bool,
    ) -> bool {
        if larger <= self.window {
            return false;
        }
        let more = reservation(larger, self.slot()) - reservation(self.window, self.slot());
        let reserved = reserve(&mut self.account, more);
        if reserved {
            self.window = larger;
        } else {
            self.growth_refused = self.growth_refused.saturating_add(1);
        }
        reserved
    }

    /// Has the window grown, and is nothing in it?
    pub(in super::super) fn is_grown_and_empty(&self) -> bool {
        self.window > self.first_window() && self.holds_nothing()
    }

    /// The time since the last new segment, which wraps after an hour.
    pub(in super::super) fn quiet_for(&self, now: Time) -> Duration {
        let micros = (now.as_micros() as u32).wrapping_sub(self.came_at);
        Duration::from_micros(micros.into())
    }

    /// If the window has grown and is empty, tells the first window from now on. The rest stays promised until the
    /// peer is known to have heard that, or sends something.
    pub(in super::super) fn narrow(&mut self) {
        self.narrowed = self.is_grown_and_empty();
    }

    /// Is the peer told the first window, and not known yet to have heard it?
    pub(in super::super) fn is_narrowed(&self) -> bool {
        self.narrowed
    }

    /// The peer has heard of the narrow window, and nothing that it sent before is in flight: gives back what the
    /// window had grown by.
    pub(in super::super) fn apply_narrow(&mut self) {
        if core::mem::take(&mut self.narrowed) {
            let first = self.first_window();
            let all = self.account.bytes();
            self.window = first;
            self.account.release(all - self.first_reservation());
            self.train = Train::default();
        }
    }
}
