//! Sessions that ended a short time ago: what their peers still send opens no new session.
//!
//! A retransmission from the beginning of a session looks like the beginning of a new one.

use super::super::time::Time;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

type Key = (SocketAddr, u32);

/// A bounded set of sessions, each kept for a time.
#[derive(Debug, Default)]
pub(super) struct RecentlyEnded {
    until: HashMap<Key, Time>,
    /// In the order they were added. A session added again has two entries, of which the last counts.
    order: VecDeque<(Time, Key)>,
}

impl RecentlyEnded {
    /// Remembers a session until then, and forgets those whose time has come. Beyond `max`, the oldest are
    /// forgotten early.
    pub(super) fn add(&mut self, key: Key, now: Time, until: Time, max: usize) {
        while let Some(&(at, old)) = self.order.front() {
            if at > now && self.order.len() < max.max(1) {
                break;
            }
            self.order.pop_front();
            if self.until.get(&old) == Some(&at) {
                self.until.remove(&old);
            }
        }
        self.until.insert(key, until);
        self.order.push_back((until, key));
    }

    pub(super) fn contains(&self, key: &Key, now: Time) -> bool {
        self.until.get(key).is_some_and(|&until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_bounded_in_number_and_time() {
        let at = Time::from_micros;
        let key = |conv| ("127.0.0.1:1".parse().unwrap(), conv);
        let mut ended = RecentlyEnded::default();
        for conv in 0..10 {
            ended.add(key(conv), at(0), at(100), 4);
        }
        assert_eq!((ended.until.len(), ended.order.len()), (4, 4));
        assert!(ended.contains(&key(9), at(99)) && !ended.contains(&key(5), at(99)));
        assert!(!ended.contains(&key(9), at(100)));
        // Added again: kept for longer, whatever becomes of the first entry.
        ended.add(key(9), at(50), at(150), 4);
        ended.add(key(20), at(120), at(220), 4);
        assert!(ended.contains(&key(9), at(149)));
        assert_eq!(ended.order.len(), 2);
    }
}
