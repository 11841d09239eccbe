//! [`Rest`]: the batches of an iterator, none of which goes uncounted.

use crate::udp::PacketBatch;

/// Batches that are still to be sent; counted if they are not.
pub(super) struct Rest<I: Iterator<Item = PacketBatch>, F: FnMut(PacketBatch)> {
    batches: I,
    give_up: F,
    /// Whether the iterator's `next` is running. An iterator that has panicked is not used again.
    asking: bool,
}

impl<I: Iterator<Item = PacketBatch>, F: FnMut(PacketBatch)> Rest<I, F> {
    pub(super) fn new(batches: impl IntoIterator<IntoIter = I>, give_up: F) -> Self {
        Self {
            batches: batches.into_iter(),
            give_up,
            asking: false,
        }
    }

    pub(super) fn next(&mut self) -> Option<PacketBatch> {
        self.asking = true;
        let next = self.batches.next();
        self.asking = false;
        next
    }
}

impl<I: Iterator<Item = PacketBatch>, F: FnMut(PacketBatch)> Drop for Rest<I, F> {
    fn drop(&mut self) {
        if !self.asking {
            self.batches.by_ref().for_each(&mut self.give_up);
        }
    }
}
