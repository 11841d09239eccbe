//! [`GsoBuffer`]: datagrams that are ready, one behind the other, as the kernel takes them.

use super::super::link::{MAX_BURST, MAX_BURST_BYTES};
use crate::udp::Transmit;
use arrayvec::ArrayVec;
use core::cell::RefCell;
use std::net::SocketAddr;

thread_local! {
    /// One for each thread that sends, allocated when it first does.
    static GSO_BUFFER: RefCell<GsoBuffer> = RefCell::new(GsoBuffer {
        buf: vec![0; MAX_BURST_BYTES].into_boxed_slice(),
        most: MAX_BURST_BYTES,
        len: 0,
        lengths: ArrayVec::new_const(),
    });
}

/// Lends this thread's memory, for as many bytes or a datagram; returns `false` if the thread is exiting and has none
/// any more, or if it is lent already: see [`Link::transmit`](super::super::link::Link::transmit).
pub(super) fn with_gso_buffer(most: usize, act: impl FnOnce(&mut GsoBuffer)) -> bool {
    let lent = GSO_BUFFER.try_with(|buffer| {
        let Ok(mut buffer) = buffer.try_borrow_mut() else {
            return false;
        };
        buffer.clear();
        buffer.most = most.min(MAX_BURST_BYTES);
        act(&mut buffer);
        true
    });
    lent.unwrap_or(false)
}

pub(super) struct GsoBuffer {
    buf: Box<[u8]>,
    most: usize,
    len: usize,
    lengths: ArrayVec<usize, MAX_BURST>,
}

impl GsoBuffer {
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.lengths.clear();
    }

    pub(super) fn has_room(&self, len: usize) -> bool {
        self.len == 0 || (!self.lengths.is_full() && self.len + len <= self.most)
    }

    /// Adds a datagram of `len` bytes, which the caller writes. There must be room.
    pub(super) fn push(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        self.len += len;
        self.lengths.push(len);
        &mut self.buf[start..self.len]
    }

    /// The number of datagrams.
    pub(super) fn datagrams(&self) -> usize {
        self.lengths.len()
    }

    /// Adds all datagrams to `transmits`, which is empty; those in a row that GSO takes are one transmit. (Returned,
    /// the 7 KiB would be copied.)
    pub(super) fn write_transmits<'a>(
        &'a self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        transmits: &mut ArrayVec<Transmit<'a>, MAX_BURST>,
    ) {
        let (mut at, mut start) = (0, 0);
        while at < self.lengths.len() {
            let run = self.run(at);
            let transmit = Transmit::new(&self.buf[start..start + run.bytes], to);
            transmits.push(transmit.segment_size(run.size).source(from));
            (at, start) = (at + run.datagrams, start + run.bytes);
        }
    }

    /// The first run of datagrams left once `sent` are sent.
    pub(super) fn rest(&self, sent: usize) -> Rest<'_> {
        let start: usize = self.lengths[..sent].iter().sum();
        let run = self.run(sent);
        Rest {
            contents: &self.buf[start..start + run.bytes],
            segment_size: run.size,
            datagrams_behind: self.lengths.len() - sent - run.datagrams,
        }
    }

    /// The run of datagrams from number `at` on that GSO takes: of one length but for the last, which may be
    /// shorter.
    fn run(&self, at: usize) -> Run {
        let size = self.lengths[at];
        let (mut datagrams, mut bytes) = (0, 0);
        for &len in &self.lengths[at..] {
            if len > size {
                break;
            }
            datagrams += 1;
            bytes += len;
            if len < size {
                break;
            }
        }
        Run {
            size,
            datagrams,
            bytes,
        }
    }
}

struct Run {
    size: usize,
    datagrams: usize,
    bytes: usize,
}

/// Datagrams of one length that the socket had no room for.
pub(super) struct Rest<'a> {
    pub(super) contents: &'a [u8],
    pub(super) segment_size: usize,
    /// The number of datagrams behind these.
    pub(super) datagrams_behind: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_not_lent_again() {
        assert!(with_gso_buffer(0, |_| assert!(!with_gso_buffer(0, |_| ()))));
    }

    #[test]
    fn a_run_ends_behind_a_shorter_datagram_and_before_a_longer_one() {
        let lengths = [5, 5, 3, 5, 7, 7];
        with_gso_buffer(MAX_BURST_BYTES, |buffer| {
            for (n, len) in (1..).zip(lengths) {
                buffer.push(len).fill(n);
            }
            let mut transmits = ArrayVec::new();
            buffer.write_transmits("192.0.2.1:9".parse().unwrap(), None, &mut transmits);
            let runs: Vec<_> = transmits.iter().map(Transmit::datagrams).collect();
            assert_eq!(runs, [3, 1, 2]);
            for (sent, first, behind) in [(0, 1, 3), (1, 2, 3), (2, 3, 3), (3, 4, 2), (5, 6, 0)] {
                let rest = buffer.rest(sent);
                assert_eq!((rest.contents[0], rest.datagrams_behind), (first, behind));
                assert_eq!(rest.segment_size, lengths[sent]);
            }
        });
    }
}
