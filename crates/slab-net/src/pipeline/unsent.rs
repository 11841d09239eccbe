//! [`UnsentBatches`]: the batches of an iterator, none of which goes uncounted.

use crate::finish::finish;
use crate::udp::PacketBatch;

/// Batches that are still to be sent; counted if they are not.
pub(super) struct UnsentBatches<I: Iterator<Item = PacketBatch>, F: FnMut(PacketBatch)> {
    batches: I,
    drop_unsent: F,
    /// Whether the iterator is at its end, or has panicked. It is not used again: an iterator over what
    /// there is at the moment may have more after its end, which nobody has sent.
    is_over: bool,
}

impl<I: Iterator<Item = PacketBatch>, F: FnMut(PacketBatch)> UnsentBatches<I, F> {
    pub(super) fn new(batches: impl IntoIterator<IntoIter = I>, drop_unsent: F) -> Self {
        Self {
            batches: batches.into_iter(),
            drop_unsent,
            is_over: false,
        }
    }

    pub(super) fn next(&mut self) -> Option<PacketBatch> {
        // For the case that it panics.
        self.is_over = true;
        let next = self.batches.next();
        self.is_over = next.is_none();
        next
    }
}

impl<I: Iterator<Item = PacketBatch>, F: FnMut(PacketBatch)> Drop for UnsentBatches<I, F> {
    fn drop(&mut self) {
        finish(|| {
            if !self.is_over {
                self.next().into_iter().for_each(&mut self.drop_unsent);
            }
            !self.is_over
        });
    }
}
