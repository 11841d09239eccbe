//! [`QueueReceiver`]: batches out of the queue.

use super::super::stats::QueueMonitor;
use super::shared::Shared;
use crate::udp::PacketBatch;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// The consumers' end of a [`queue`](super::queue) or [`priority_queue`](super::priority_queue), or of one of several
/// [`flow_queues`](super::super::flow_queues). Clones take from the same queue, each batch goes to one of
/// them; once the last is dropped, what is queued is dropped and counted as `closed`.
#[derive(Debug)]
pub struct QueueReceiver {
    shared: Arc<Shared>,
}

impl QueueReceiver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The next batch, once there is one; `None` when all senders are gone and the queue is empty.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    pub async fn recv(&self) -> Option<PacketBatch> {
        self.look(Shared::pop).await
    }

    /// Appends up to `limit` batches to `out`, at least one once there is one, and returns how
    /// many; 0 when all senders are gone and the queue is empty, or if `limit` is 0.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    pub async fn recv_many(&self, out: &mut Vec<PacketBatch>, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        let look = |shared: &Shared| shared.pop_many(out, limit);
        self.look(look).await.unwrap_or(0)
    }

    /// Waits until something is found, or all senders are gone and nothing was.
    async fn look<T>(&self, mut look: impl FnMut(&Shared) -> Option<T>) -> Option<T> {
        // A consumer that never has to wait lets others run nevertheless.
        tokio::task::consume_budget().await;
        let shared = &*self.shared;
        if let Some(found) = look(shared) {
            return Some(found);
        }
        let find_or_end = || {
            // Before the look: batches that came before the last sender's end are there.
            let ended = shared.senders.load(Ordering::Acquire) == 0;
            let found = look(shared);
            (ended || found.is_some()).then_some(found)
        };
        shared.items.pass(find_or_end).await
    }

    /// The next batch if there is one right now.
    #[must_use]
    pub fn try_recv(&self) -> Option<PacketBatch> {
        self.shared.pop()
    }

    /// Reads the queue's counters while it is in use, and after it is gone.
    #[must_use]
    pub fn monitor(&self) -> QueueMonitor {
        QueueMonitor::new(Arc::clone(&self.shared.counters))
    }
}

impl Clone for QueueReceiver {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for QueueReceiver {
    fn drop(&mut self) {
        struct Ended<'a>(&'a Shared);

        // Whoever waits for the end finds all of it counted, and does not wait for ever if a drop panics.
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.room.open_for_all();
                self.0.closed.open_for_all();
            }
        }

        if self.shared.receivers.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ended = Ended(&self.shared);
            self.shared.abandon();
        }
    }
}
