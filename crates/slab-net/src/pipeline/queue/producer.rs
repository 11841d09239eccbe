//! [`Producer`]: a handle to send to one queue.

use super::super::unsent::UnsentBatches;
use super::shared::{EnqueuedBatches, Shared};
use super::{QueueClosed, QueueSendError};
use crate::atomics::Ordering;
use crate::udp::PacketBatch;
use core::future::Future;
use std::sync::Arc;

/// What a [`QueueSender`](super::QueueSender) has of each of its queues. Once the last one is dropped, consumers
/// drain the queue and then get `None`.
#[derive(Debug)]
pub(in super::super) struct Producer {
    pub(super) shared: Arc<Shared>,
}

impl Producer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Puts a batch into the queue, or applies the overflow policy; dropped unfinished, it counts the batch.
    // Not an `async fn`: if that were never polled, its arguments would be dropped uncounted.
    pub(super) fn send(
        &self,
        batch: PacketBatch,
    ) -> impl Future<Output = Result<(), QueueSendError>> {
        let mut sending = Sending::new(&self.shared, batch);
        async move {
            if sending.attempt().is_none() {
                let room = &sending.shared.room;
                let _ = room.wait_for(|| sending.attempt()).await;
            }
            sending.end(true)
        }
    }

    #[expect(clippy::result_large_err, reason = "as the public method has it")]
    pub(super) fn try_send(&self, batch: PacketBatch) -> Result<(), QueueSendError> {
        let mut sending = Sending::new(&self.shared, batch);
        let is_closed = sending.attempt().is_some();
        sending.end(is_closed)
    }

    /// Puts all batches into the queue in order, and wakes consumers once for all of them.
    pub(super) async fn send_all<I: Iterator<Item = PacketBatch>>(
        &self,
        unsent: &mut UnsentBatches<I, impl FnMut(PacketBatch)>,
    ) -> Result<(), QueueClosed> {
        let shared = &*self.shared;
        if self.is_closed() {
            return Err(QueueClosed);
        }
        loop {
            let mut enqueued = EnqueuedBatches::none(shared);
            let mut no_room = None;
            while let Some(batch) = unsent.next() {
                // The last one may have gone while the iterator ran.
                if self.is_closed() {
                    shared.drop_unsent(batch);
                    return Err(QueueClosed);
                }
                if let Err(batch) = shared.offer(batch, &mut enqueued) {
                    no_room = Some(batch);
                    break;
                }
            }
            drop(enqueued);
            match no_room {
                None => return Ok(()),
                Some(batch) => {
                    let mut sending = Sending::new(shared, batch);
                    shared.room.wait_for(|| sending.attempt()).await?;
                }
            }
        }
    }

    /// Returns `true` if all receivers are gone.
    pub(super) fn is_closed(&self) -> bool {
        self.shared.receivers.load(Ordering::Relaxed) == 0
    }

    /// Completes when all receivers are gone, and what they left is dropped and counted.
    pub(super) async fn closed(&self) {
        let shared = &*self.shared;
        let look = || shared.is_abandoned.load(Ordering::Acquire).then_some(());
        if look().is_none() {
            shared.closed.wait_for(look).await;
        }
    }
}

impl Clone for Producer {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // Release: whoever sees the zero also sees everything pushed before.
        if self.shared.senders.fetch_sub(1, Ordering::Release) == 1 {
            self.shared.items.notify_all();
        }
    }
}

/// A batch being sent, which may wait for room; counted if it does not enter the queue.
struct Sending<'a> {
    shared: &'a Shared,
    batch: Option<PacketBatch>,
}

impl<'a> Sending<'a> {
    fn new(shared: &'a Shared, batch: PacketBatch) -> Self {
        Self {
            shared,
            batch: Some(batch),
        }
    }

    /// Gives back the batch if it is still here.
    #[expect(clippy::result_large_err, reason = "as the public method has it")]
    fn end(mut self, is_closed: bool) -> Result<(), QueueSendError> {
        match self.batch.take() {
            None => Ok(()),
            Some(batch) => Err(QueueSendError::new(self.shared, batch, is_closed)),
        }
    }

    /// Completes the send, if there is room or no receiver is left to make any.
    fn attempt(&mut self) -> Option<Result<(), QueueClosed>> {
        if self.shared.receivers.load(Ordering::Relaxed) == 0 {
            return Some(Err(QueueClosed));
        }
        let mut enqueued = EnqueuedBatches::none(self.shared);
        match self.shared.offer(self.batch.take()?, &mut enqueued) {
            Ok(()) => Some(Ok(())),
            Err(batch) => {
                self.batch = Some(batch);
                None
            }
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.shared.drop_unsent(batch);
        }
    }
}
