//! Sessions that ended a short time ago: what their peers still send opens no new session.
//!
//! A retransmission from the beginning of a session looks like the beginning of a new one. And a peer that goes on
//! has not received the notice of the end: it is sent once more, now and then.

use super::super::core::REMINDER_INTERVAL;
use super::super::time::Time;
use super::super::wire::Header;
use super::key::Key;
use std::collections::{HashMap, VecDeque};

#[derive(Debug)]
struct Ended {
    until: Time,
    /// What tells its peer, and when that may be sent again. `None` if the peer would not understand.
    notice: Option<Header>,
    remind_at: Time,
}

/// A bounded set of sessions, each kept for a time.
#[derive(Debug, Default)]
pub(super) struct RecentlyEnded {
    sessions: HashMap<Key, Ended>,
    /// In the order they were added. A session added again has two entries, of which the last counts.
    order: VecDeque<(Time, Key)>,
}

impl RecentlyEnded {
    /// Remembers a session until then, and forgets those whose time has come. Beyond `max`, the oldest are
    /// forgotten early; returns how many.
    pub(super) fn add(
        &mut self,
        key: Key,
        notice: Option<Header>,
        now: Time,
        until: Time,
        max: usize,
    ) -> u64 {
        let mut forgotten = 0;
        while let Some(&(at, old)) = self.order.front() {
            if at > now && self.order.len() < max.max(1) {
                break;
            }
            self.order.pop_front();
            if self.sessions.get(&old).is_some_and(|old| old.until == at) {
                self.sessions.remove(&old);
                forgotten += u64::from(at > now);
            }
        }
        let ended = Ended {
            until,
            notice,
            remind_at: now + REMINDER_INTERVAL,
        };
        self.sessions.insert(key, ended);
        self.order.push_back((until, key));
        forgotten
    }

    pub(super) fn contains(&self, key: &Key, now: Time) -> bool {
        let ended = self.sessions.get(key);
        ended.is_some_and(|ended| ended.until > now)
    }

    /// Is there anything to tell the peer of an ended session? `token` is that of its question, if it asks: one with
    /// another has opened the session anew, and would take the notice for forged.
    pub(super) fn has_notice(&self, key: &Key, token: Option<u32>) -> bool {
        let notice = self.sessions.get(key).and_then(|ended| ended.notice);
        notice.is_some_and(|notice| token.is_none_or(|token| token == notice.ts))
    }

    /// Returns what to answer to a peer that has not noticed the end, unless that was sent a moment ago.
    pub(super) fn reminder(&mut self, key: &Key, now: Time) -> Option<Header> {
        let ended = self.sessions.get_mut(key)?;
        if now < ended.remind_at {
            return None;
        }
        ended.remind_at = now + REMINDER_INTERVAL;
        ended.notice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_bounded_in_number_and_time() {
        let at = Time::from_micros;
        let key = |conv| Key("127.0.0.1:1".parse().unwrap(), conv);
        let mut ended = RecentlyEnded::default();
        let forgotten = (0..10).map(|conv| ended.add(key(conv), None, at(0), at(100), 4));
        assert_eq!(forgotten.sum::<u64>(), 6);
        assert_eq!((ended.sessions.len(), ended.order.len()), (4, 4));
        assert!(ended.contains(&key(9), at(99)) && !ended.contains(&key(5), at(99)));
        assert!(!ended.contains(&key(9), at(100)));
        // Added again: kept for longer, whatever becomes of the first entry.
        ended.add(key(9), None, at(50), at(150), 4);
        assert_eq!(ended.add(key(20), None, at(120), at(220), 4), 0);
        assert!(ended.contains(&key(9), at(149)));
        assert_eq!(ended.order.len(), 2);
    }
}
