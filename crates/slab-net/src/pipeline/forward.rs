//! [`forward`]: the task that moves batches from a socket to a queue, and how it ends.

use super::queue::QueueSender;
use crate::udp::{SocketStats, UdpReceiver};
use core::future::poll_fn;
use core::iter;
use core::pin::pin;
use core::task::Poll;
use std::io;

/// The most batches taken when draining a socket that cannot refuse new datagrams (not Linux).
const MAX_DRAINED_BATCHES: usize = 4096;

/// The number of errors, with no datagram and no pause between them, after which receiving has failed.
const MAX_CONSECUTIVE_ERRORS: u32 = 64;

/// The number of errors, with no datagram between them, after which draining ends although others caused them. Without
/// it a connected socket that is refused for good would never end.
const MAX_ERRORS_OF_DRAINING: u32 = 4096;

/// The report of [`forward`] when it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forwarded {
    /// The socket's counters at the end.
    ///
    /// `socket.received_datagrams - socket.dropped()` datagrams were offered to the queue, whose own
    /// counters account for them.
    pub socket: SocketStats,
    /// System errors while receiving.
    pub receive_errors: u64,
    /// Why it ended.
    pub ended: Ended,
}

/// Why [`forward`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// The `stop` future completed.
    Stopped,
    /// No consumer was left.
    QueueClosed,
    /// Receiving failed repeatedly with nothing in between, the last time with an error of this kind;
    /// for example because the runtime that the socket belongs to was shut down, or the socket was (for reading).
    Failed(io::ErrorKind),
}

/// Moves batches from a socket to a queue until `stop` completes or no consumer is left.
///
/// However it ends, it [stops](UdpReceiver::stop) the socket, delivers what was queued there, closes
/// socket and queue (if they have no other handles; consumers drain the queue and then get `None`), and
/// returns a report. No loss is silent: every datagram that does not reach a consumer is counted. (Of those that
/// the kernel drops, the number is exact only [without
/// coalescing](crate::udp::SocketStats::kernel_dropped_datagrams), and does not include the few that arrive
/// between the last look at the kernel's count and the end of the socket.)
///
/// It puts in at most half of a queue at a time, and whenever a queue is half full it yields to the
/// consumers before it goes on, under any overflow policy: in a flood, datagrams then stay in the
/// socket's buffer instead of overflowing the queue.
///
/// It goes on after errors. Only 64 in a row, with no datagram and no pause between them, end it; of a
/// connected socket, those that a peer's host or a router has caused (ICMP), such as `ECONNREFUSED`, are not
/// counted among them.
///
/// Under [`Overflow::Wait`](super::Overflow::Wait) it waits for consumers even while stopping. Drop the
/// future to give up; the batches that it holds are then counted as `closed`.
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
pub async fn forward(
    mut receiver: UdpReceiver,
    queue: QueueSender,
    stop: impl Future<Output = ()>,
) -> Forwarded {
    let mut stop = pin!(stop);
    let mut closed = pin!(queue.closed());
    let mut errors = ErrorCounts::default();
    let ended = loop {
        // Polled before receiving, so that a flood cannot hide it.
        let next = poll_fn(|cx| {
            if stop.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Ended::Stopped));
            }
            if let Poll::Ready(received) = receiver.poll_ready(cx) {
                return Poll::Ready(Ok(received));
            }
            // Only here: while there is something to receive, delivering it shows that the queue is
            // closed.
            errors.consecutive = 0;
            closed.as_mut().poll(cx).map(|()| Err(Ended::QueueClosed))
        });
        match next.await {
            Err(ended) => break ended,
            Ok(Ok(())) => {
                errors.consecutive = 0;
                // The rest is next, without a read: the queue may be smaller than what one read brings.
                let batches = receiver.drain_ready(queue.half());
                if queue.send_many(batches).await.is_err() && queue.is_closed() {
                    break Ended::QueueClosed;
                }
                yield_if_half_full(&queue).await;
            }
            Ok(Err(error)) => {
                if let Some(end) =
                    errors.count_consecutive(&error, receiver.is_caused_by_others(&error))
                {
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

/// Delivers what is queued in the socket, and lets nothing new in. If no consumer is left, the queue
/// counts the batches.
async fn drain(receiver: &mut UdpReceiver, queue: &QueueSender, errors: &mut ErrorCounts) {
    let max_batches = match receiver.stop() {
        Ok(()) => usize::MAX,
        Err(_) => MAX_DRAINED_BATCHES,
    };
    errors.consecutive = 0;
    let mut in_vain = 0;
    for _ in 0..max_batches {
        tokio::task::consume_budget().await;
        match receiver.try_recv_batch() {
            Ok(None) => return,
            Ok(Some(batch)) => {
                errors.consecutive = 0;
                in_vain = 0;
                // The queue counts what it refuses.
                let _ = queue.send_many(iter::once(batch)).await;
                yield_if_half_full(queue).await;
            }
            Err(error) => {
                in_vain += 1;
                let is_caused_by_others = receiver.is_caused_by_others(&error);
                let end = errors.count_consecutive(&error, is_caused_by_others);
                if end.is_some() || in_vain == MAX_ERRORS_OF_DRAINING {
                    return;
                }
            }
        }
    }
}

/// Yields if a queue is half full. A consumer woken by this task runs next on this thread, and no other
/// thread can steal it: so it runs before the queue overflows.
async fn yield_if_half_full(queue: &QueueSender) {
    if queue.is_half_full() {
        tokio::task::yield_now().await;
    }
}

/// System errors while receiving.
#[derive(Debug, Default)]
struct ErrorCounts {
    total: u64,
    consecutive: u32,
}

impl ErrorCounts {
    /// Counts an error; returns the reason to end if there were too many in a row.
    fn count_consecutive(&mut self, error: &io::Error, is_caused_by_others: bool) -> Option<Ended> {
        if self.total == 0 {
            tracing::warn!(%error, "receiving failed, continuing");
        }
        self.total += 1;
        // As many of these arrive as others like to send, or as datagrams were sent to closed ports: no fault
        // of this socket.
        if !is_caused_by_others {
            self.consecutive += 1;
        }
        if self.consecutive < MAX_CONSECUTIVE_ERRORS {
            return None;
        }
        tracing::error!(%error, "too many consecutive receive errors, stopping");
        Some(Ended::Failed(error.kind()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_consecutive_errors_of_the_socket_end_receiving() {
        let mut errors = ErrorCounts::default();
        let other = io::Error::from(io::ErrorKind::NetworkDown);
        let caused = io::Error::from(io::ErrorKind::ConnectionRefused);
        for n in 1..MAX_CONSECUTIVE_ERRORS {
            assert_eq!(errors.count_consecutive(&other, false), None);
            assert_eq!(errors.count_consecutive(&caused, true), None);
            assert_eq!(errors.total, 2 * u64::from(n));
        }
        let end = errors.count_consecutive(&other, false);
        assert_eq!(end, Some(Ended::Failed(io::ErrorKind::NetworkDown)));
    }
}
