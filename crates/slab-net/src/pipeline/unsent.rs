//! [`UnsentBatches`]: the batches of an iterator, none of which goes uncounted.

use crate::udp::PacketBatch;

/// Batches that are still to be sent; counted if they are not.
pub(super) struct UnsentBatches<I: Iterator<Item = PacketBatch>, F: FnMut(PacketBatch)> {
    batches: I,
    drop_unsent: F,
    /// Whether the iterator's `next` is running. An iterator that has panicked is not used again.
    in_next: bool,
}

impl<I: Iterator<Item = PacketBatch>, F: FnMut(PacketBatch)> UnsentBatches<I, F> {
    pub(super) fn new(batches: impl IntoIterator<IntoIter = I>, drop_unsent: F) -> Self {
        Self {
            batches: batches.into_iter(),
            drop_unsent,
            in_next: false,
        }
    }

    pub(super) fn next(&mut self) -> Option<PacketBatch> {
        self.in_next = true;
        let next = self.batches.next();
        self.in_next = false;
        next
    }
}

impl<I: Iterator<Item = PacketBatch>, F: FnMut(PacketBatch)> Drop for UnsentBatches<I, F> {
    fn drop(&mut self) {
        if !self.in_next {
            self.batches.by_ref().for_each(&mut self.drop_unsent);
        }
    }
}
