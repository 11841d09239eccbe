//! When each session has to be called: a binary heap with at most one entry a session.
//!
//! A session without a timer has no entry. One whose time moves to later than its entry says keeps the entry and is
//! asked again when that is due, so the entry of a busy session is written once for many datagrams.

use super::super::time::Time;

const NO_ENTRY: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(super) struct Timers {
    /// A heap by time, the earliest first.
    heap: Vec<(Time, u32)>,
    /// The position of each session's entry in the heap.
    places: Vec<u32>,
}

impl Timers {
    /// The earliest time of all entries.
    pub(super) fn next(&self) -> Option<Time> {
        self.heap.first().map(|&(at, _)| at)
    }

    /// Sets or moves a session's time.
    pub(super) fn set(&mut self, session: u32, at: Time) {
        let index = session as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, NO_ENTRY);
        }
        let place = match self.places[index] {
            NO_ENTRY => {
                self.heap.push((at, session));
                self.heap.len() - 1
            }
            place => {
                self.heap[place as usize].0 = at;
                place as usize
            }
        };
        self.sift(place);
    }

    /// Removes a session's entry, if it has one.
    pub(super) fn clear(&mut self, session: u32) {
        let Some(&place) = self.places.get(session as usize) else {
            return;
        };
        if place != NO_ENTRY {
            self.remove(place as usize);
        }
    }

    /// Removes the earliest entry if it is due, and returns its session.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let &(at, session) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(0);
        Some(session)
    }

    fn remove(&mut self, place: usize) {
        let (_, session) = self.heap.swap_remove(place);
        self.places[session as usize] = NO_ENTRY;
        if place < self.heap.len() {
            self.sift(place);
        }
    }

    /// Moves an entry to where it belongs.
    fn sift(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let above = (place - 1) / 2;
            let parent = self.heap[above];
            if parent.0 <= entry.0 {
                break;
            }
            self.put(place, parent);
            place = above;
        }
        while let Some(&left) = self.heap.get(2 * place + 1) {
            let (below, child) = match self.heap.get(2 * place + 2) {
                Some(&right) if right.0 < left.0 => (2 * place + 2, right),
                _ => (2 * place + 1, left),
            };
            if entry.0 <= child.0 {
                break;
            }
            self.put(place, child);
            place = below;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: (Time, u32)) {
        self.heap[place] = entry;
        self.places[entry.1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_in_order_whatever_was_moved_or_removed() {
        let mut timers = Timers::default();
        let mut wanted = [None; 50];
        let mut x = 12345_u64;
        for _ in 0..5000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let session = (x >> 33) as usize % 50;
            let at = Time::from_micros((x >> 40) % 1000);
            match (x >> 60) % 4 {
                0 => {
                    timers.clear(session as u32);
                    wanted[session] = None;
                }
                1 => {
                    let earliest = wanted.iter().flatten().min().copied();
                    assert_eq!(timers.next(), earliest);
                    let due = timers.pop_due(at).map(|due| wanted[due as usize].take());
                    assert_eq!(due.flatten(), earliest.filter(|&earliest| earliest <= at));
                }
                _ => {
                    timers.set(session as u32, at);
                    wanted[session] = Some(at);
                }
            }
        }
    }
}
