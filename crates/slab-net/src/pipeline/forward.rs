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

/// Where [`forward`] can put batches: a [`QueueSender`] or a [`FlowSender`].
pub trait Deliver {
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
    /// Errors of the system while receiving; it went on after each.
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
}

/// Moves batches from a socket to a queue until `stop` completes or no consumer is left.
///
/// When told to stop, it [stops](UdpReceiver::stop) the socket, delivers what was queued there,
/// closes socket and queue (if they have no other handle; consumers drain the queue and then get
/// `None`), and reports. Nothing is lost unseen: what does not reach a consumer is in a counter.
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
    let mut receive_errors = 0;
    let ended = loop {
        // Stopping goes before receiving, or a flood would keep it from being seen.
        let next = poll_fn(|cx| match stop.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => receiver.poll_ready(cx).map(Some),
        });
        match next.await {
            None => break drain(&mut receiver, &queue, &mut receive_errors).await,
            Some(Ok(())) => {
                let batches = receiver.drain_ready();
                if queue.deliver_many(batches).await.is_err() && queue.is_closed() {
                    break Ended::QueueClosed;
                }
            }
            Some(Err(error)) => {
                failed(&error, &mut receive_errors);
                tokio::task::yield_now().await;
            }
        }
    };
    let monitor = receiver.monitor();
    drop(receiver);
    Forwarded {
        socket: monitor.stats(),
        receive_errors,
        ended,
    }
}

/// Delivers what is queued in the socket, and lets nothing new in.
async fn drain<Q: Deliver>(
    receiver: &mut UdpReceiver,
    queue: &Q,
    receive_errors: &mut u64,
) -> Ended {
    let most = match receiver.stop() {
        Ok(()) => usize::MAX,
        Err(_) => MOST_DRAINED,
    };
    let mut drained = 0;
    while drained < most {
        tokio::task::consume_budget().await;
        match receiver.try_recv_batch() {
            Ok(None) => break,
            Ok(Some(batch)) => {
                drained += 1;
                if queue.deliver(batch).await.is_err() && queue.is_closed() {
                    return Ended::QueueClosed;
                }
            }
            Err(error) => {
                // A socket has one pending error; more than one in a row are not worth the wait.
                drained += 1;
                failed(&error, receive_errors);
            }
        }
    }
    Ended::Stopped
}

fn failed(error: &io::Error, count: &mut u64) {
    if *count == 0 {
        tracing::warn!(%error, "receiving failed, going on");
    }
    *count += 1;
}
