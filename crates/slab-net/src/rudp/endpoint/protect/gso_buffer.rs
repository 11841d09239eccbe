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

    /// Adds a datagram of `len` bytes, which the caller writes. If there is no room, `flush` makes it.
    pub(super) fn push(&mut self, len: usize, flush: impl FnOnce(&mut Self)) -> &mut [u8] {
        let has_room = !self.lengths.is_full() && self.len + len <= self.most;
        if self.len > 0 && !has_room {
            flush(self);
        }
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
            let run = self.run(at, start);
            let transmit = Transmit::new(run.contents, to).segment_size(run.segment_size);
            transmits.push(transmit.source(from));
            (at, start) = (at + run.datagrams, start + run.contents.len());
        }
    }

    /// The first run of datagrams left once `sent` are sent.
    pub(super) fn rest(&self, sent: usize) -> Run<'_> {
        self.run(sent, self.lengths[..sent].iter().sum())
    }

    /// The run of datagrams from number `at` on, at byte `start`.
    fn run(&self, at: usize, start: usize) -> Run<'_> {
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
            contents: &self.buf[start..start + bytes],
            segment_size: size,
            datagrams,
        }
    }
}

/// Datagrams that GSO takes: of one length but for the last, which may be shorter.
pub(super) struct Run<'a> {
    pub(super) contents: &'a [u8],
    pub(super) segment_size: usize,
    pub(super) datagrams: usize,
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
                buffer.push(len, |_| ()).fill(n);
            }
            let mut transmits = ArrayVec::new();
            buffer.write_transmits("192.0.2.1:9".parse().unwrap(), None, &mut transmits);
            let runs: Vec<_> = transmits.iter().map(Transmit::datagrams).collect();
            assert_eq!(runs, [3, 1, 2]);
            for (sent, first, datagrams) in [(0, 1, 3), (1, 2, 2), (2, 3, 1), (3, 4, 1), (5, 6, 1)]
            {
                let rest = buffer.rest(sent);
                assert_eq!((rest.contents[0], rest.datagrams), (first, datagrams));
                assert_eq!(rest.segment_size, lengths[sent]);
            }
        });
    }
}
