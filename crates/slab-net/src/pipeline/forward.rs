//! [`forward`]: the task between a socket and a queue, and its end.

use super::flow::FlowSender;
use super::queue::{QueueClosed, QueueSender};
use crate::udp::{PacketBatch, SocketStats, UdpReceiver};
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use std::io;

/// Batches that are still taken off a socket which cannot refuse new ones (not Linux).
const MOST_DRAINED: usize = 4096;

/// Errors with no datagram and no pause between them after which there is no more to be hoped for.
const MOST_ERRORS_IN_A_ROW: u32 = 64;

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::QueueSender {}
    impl Sealed for super::FlowSender {}
}

/// Where [`forward`] can put batches: a [`QueueSender`] or a [`FlowSender`], and nothing else.
pub trait Deliver: sealed::Sealed {
    /// Puts a batch in, or does what the overflow policy says.
    fn deliver(
        &self,
        batch: PacketBatch,
    ) -> impl Future<Output = Result<(), QueueClosed>> + Send + '_;

    /// Puts many batches in, in their order.
    fn deliver_many(
        &self,
        batches: impl Iterator<Item = PacketBatch> + Send,
    ) -> impl Future<Output = Result<(), QueueClosed>> + Send;

    /// Is there nobody left to deliver to?
    fn is_closed(&self) -> bool;

    /// Is half of the room used up?
    fn is_half_full(&self) -> bool;

    /// Completes when there is nobody left to deliver to.
    fn closed(&self) -> impl Future<Output = ()> + Send + '_;
}

impl Deliver for QueueSender {
    fn deliver(
        &self,
        batch: PacketBatch,
    ) -> impl Future<Output = Result<(), QueueClosed>> + Send + '_ {
        self.send(batch)
    }

    fn deliver_many(
        &self,
        batches: impl Iterator<Item = PacketBatch> + Send,
    ) -> impl Future<Output = Result<(), QueueClosed>> + Send {
        self.send_many(batches)
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn is_half_full(&self) -> bool {
        self.is_half_full()
    }

    fn closed(&self) -> impl Future<Output = ()> + Send + '_ {
        self.closed()
    }
}

impl Deliver for FlowSender {
    fn deliver(
        &self,
        batch: PacketBatch,
    ) -> impl Future<Output = Result<(), QueueClosed>> + Send + '_ {
        self.send(batch)
    }

    fn deliver_many(
        &self,
        batches: impl Iterator<Item = PacketBatch> + Send,
    ) -> impl Future<Output = Result<(), QueueClosed>> + Send {
        self.send_many(batches)
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn is_half_full(&self) -> bool {
        self.is_half_full()
    }

    fn closed(&self) -> impl Future<Output = ()> + Send + '_ {
        self.closed()
    }
}

/// What [`forward`] did, when it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forwarded {
    /// The socket's counters at the end.
    ///
    /// `socket.received_datagrams - socket.dropped()` were offered to the queue, whose own counters
    /// say what became of them.
    pub socket: SocketStats,
    /// Errors of the system while receiving.
    pub receive_errors: u64,
    /// Why it ended.
    pub ended: Ended,
}

/// Why [`forward`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// It was told to stop.
    Stopped,
    /// No consumer was left.
    QueueClosed,
    /// Receiving failed again and again with nothing in between, the last time with an error of
    /// this kind: the runtime that the socket belongs to was shut down, for example.
    Failed(io::ErrorKind),
}

/// Moves batches from a socket to a queue until `stop` completes or no consumer is left.
///
/// However it ends, it [stops](UdpReceiver::stop) the socket, delivers what was queued there,
/// closes socket and queue (if they have no other handle; consumers drain the queue and then get
/// `None`), and reports. Nothing is lost unseen: what does not reach a consumer is in a counter.
///
/// Consumers that are behind get their turn before it goes on, also where nobody waits for them: a
/// flood is left to the socket's buffer rather than put into a queue that is full.
///
/// After an error it goes on. Only 64 in a row, with no datagram and no pause between them, are its
/// end; refusals by a peer's host (`ECONNREFUSED`) are not among them.
///
/// Under [`Overflow::Wait`](super::Overflow::Wait) it waits for consumers also while it stops;
/// drop the future to give up, what it holds is then counted as `closed`.
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::pipeline::{Ended, Overflow, forward, queue};
/// use slab_net::udp::{Transmit, UdpReceiver, UdpSender};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
/// let address = socket.local_addr();
/// let (sender, batches) = queue(64.try_into()?, Overflow::DropNewest);
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let receiving = tokio::spawn(forward(socket, sender, async { stopped.await.unwrap_or(()) }));
///
/// let client = UdpSender::bind("127.0.0.1:0".parse()?)?;
/// client.send(&Transmit::new(b"hello", address)).await?;
/// stop.send(()).unwrap();
/// let report = receiving.await?;
/// assert_eq!(report.ended, Ended::Stopped);
/// assert_eq!(report.socket.received_datagrams, 1);
/// assert_eq!(batches.recv().await.unwrap().contents(), b"hello");
/// assert!(batches.recv().await.is_none());
/// # Ok(())
/// # }
/// ```
pub async fn forward<Q: Deliver>(
    mut receiver: UdpReceiver,
    queue: Q,
    stop: impl Future<Output = ()>,
) -> Forwarded {
    let mut stop = pin!(stop);
    let mut closed = pin!(queue.closed());
    let mut errors = Errors::default();
    let ended = loop {
        // Stopping goes before receiving, or a flood would keep it from being seen.
        let next = poll_fn(|cx| {
            if stop.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Ended::Stopped));
            }
            if let Poll::Ready(received) = receiver.poll_ready(cx) {
                return Poll::Ready(Ok(received));
            }
            // With nothing to receive, nothing else would say so.
            errors.in_a_row = 0;
            closed.as_mut().poll(cx).map(|()| Err(Ended::QueueClosed))
        });
        match next.await {
            Err(ended) => break ended,
            Ok(Ok(())) => {
                errors.in_a_row = 0;
                let batches = receiver.drain_ready();
                if queue.deliver_many(batches).await.is_err() && queue.is_closed() {
                    break Ended::QueueClosed;
                }
                let_consumers_run(&queue).await;
            }
            Ok(Err(error)) => {
                if let Some(end) = errors.count_in_a_row(&error) {
                    break end;
                }
                tokio::task::yield_now().await;
            }
        }
    };
    drain(&mut receiver, &queue, &mut errors).await;
    let monitor = receiver.monitor();
    drop(receiver);
    Forwarded {
        socket: monitor.stats(),
        receive_errors: errors.total,
        ended,
    }
}

/// Delivers what is queued in the socket, and lets nothing new in. With nobody to deliver to, the
/// queue counts it.
async fn drain<Q: Deliver>(receiver: &mut UdpReceiver, queue: &Q, errors: &mut Errors) {
    let most = match receiver.stop() {
        Ok(()) => usize::MAX,
        Err(_) => MOST_DRAINED,
    };
    let mut failed = 0;
    for _ in 0..most {
        tokio::task::consume_budget().await;
        match receiver.try_recv_batch() {
            Ok(None) => return,
            Ok(Some(batch)) => {
                failed = 0;
                // What is refused is counted there.
                let _ = queue.deliver(batch).await;
                let_consumers_run(queue).await;
            }
            Err(error) => {
                errors.count(&error);
                failed += 1;
                if failed == MOST_ERRORS_IN_A_ROW {
                    return;
                }
            }
        }
    }
}

/// A consumer that was woken from here has this thread next, and no other thread takes it on meanwhile:
/// it has its turn before the queue overflows.
async fn let_consumers_run<Q: Deliver>(queue: &Q) {
    if queue.is_half_full() {
        tokio::task::yield_now().await;
    }
}

/// Errors of the system while receiving.
#[derive(Debug, Default)]
struct Errors {
    total: u64,
    in_a_row: u32,
}

impl Errors {
    fn count(&mut self, error: &io::Error) {
        if self.total == 0 {
            tracing::warn!(%error, "receiving failed, going on");
        }
        self.total += 1;
    }

    /// Counts one, and says whether it was one too many.
    fn count_in_a_row(&mut self, error: &io::Error) -> Option<Ended> {
        self.count(error);
        // As many as datagrams were sent to where nobody listens: no fault of the socket's.
        if error.kind() != io::ErrorKind::ConnectionRefused {
            self.in_a_row += 1;
        }
        if self.in_a_row < MOST_ERRORS_IN_A_ROW {
            return None;
        }
        tracing::error!(%error, "receiving fails for good");
        Some(Ended::Failed(error.kind()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_in_a_row_and_is_our_own_is_too_much() {
        let mut errors = Errors::default();
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let other = io::Error::from(io::ErrorKind::NetworkDown);
        for n in 1..MOST_ERRORS_IN_A_ROW {
            assert_eq!(errors.count_in_a_row(&other), None);
            for _ in 0..3 {
                assert_eq!(errors.count_in_a_row(&refused), None);
            }
            assert_eq!(errors.total, 4 * u64::from(n));
        }
        let end = errors.count_in_a_row(&other);
        assert_eq!(end, Some(Ended::Failed(io::ErrorKind::NetworkDown)));
    }
}
