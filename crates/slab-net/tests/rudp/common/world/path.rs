//! The path: what happens to datagrams on the way.

use super::{Event, World};
use std::time::Duration;

/// What happens to datagrams on the way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub(crate) drop: u64,
    pub(crate) duplicate: u64,
    pub(crate) reorder: u64,
    pub(crate) corrupt: u64,
    pub(crate) delay: Duration,
    pub(crate) jitter: Duration,
    /// Nothing arrives in this interval.
    pub(crate) outage: (Duration, Duration),
    /// To which end: nearly always to both.
    pub(crate) cut: [bool; 2],
    /// The most datagrams in a burst.
    pub(crate) burst: usize,
    /// Scratch memory for segments to be gathered in, in datagrams.
    pub(crate) scratch: usize,
}

impl World {
    /// Sends datagrams over the path, with all that happens to them there.
    pub(super) fn transport(&mut self, to: usize, datagrams: Vec<Vec<u8>>) {
        let bytes: usize = datagrams.iter().map(Vec::len).sum();
        self.note(bytes as u64 ^ ((datagrams[0].len() as u64) << 20));
        let mut together: Vec<Vec<u8>> = Vec::new();
        let since = self.now.since(self.started);
        let (from, until) = self.path.outage;
        let in_outage = self.path.cut[to] && (from..until).contains(&since);
        self.outage_drops += u64::from(in_outage);
        for mut datagram in datagrams {
            if self.random.chance(self.path.drop) || in_outage {
                continue;
            }
            if self.random.chance(self.path.corrupt) {
                let at = self.random.below(datagram.len() as u64) as usize;
                datagram[at] ^= 1 << self.random.below(8);
            }
            if self.random.chance(self.path.duplicate) {
                let later = self.delay();
                self.deliver(to, &[datagram.clone()], later);
            }
            if self.random.chance(self.path.reorder) {
                let later = self.delay() + self.delay();
                self.deliver(to, &[datagram], later);
            } else {
                together.push(datagram);
            }
        }
        if !together.is_empty() {
            let delay = self.delay();
            self.deliver(to, &together, delay);
        }
    }

    fn delay(&mut self) -> Duration {
        let jitter = self.random.below(self.path.jitter.as_micros() as u64);
        self.path.delay + Duration::from_micros(jitter)
    }

    /// Puts datagrams into one buffer, as the kernel does when it coalesces them.
    fn deliver(&mut self, to: usize, datagrams: &[Vec<u8>], delay: Duration) {
        let total = datagrams.iter().map(Vec::len).sum();
        let Ok(mut buf) = self.pool.try_alloc(total) else {
            return;
        };
        for datagram in datagrams {
            buf.extend_from_slice(datagram);
        }
        let whole = buf.freeze();
        let chunk_bytes = whole.len() + whole.pinned_bytes();
        self.in_transit_bytes += chunk_bytes;
        let mut at = 0;
        let datagrams = datagrams
            .iter()
            .map(|d| {
                at += d.len();
                whole.slice(at - d.len()..at)
            })
            .collect();
        let time = self.now + delay;
        self.push(
            time,
            Event::Datagrams {
                to,
                datagrams,
                chunk_bytes,
            },
        );
    }
}
