//! [`Connection`]: messages and datagrams that arrive.

use super::super::core::Session;
use super::super::error::{CloseReason, TryRecvError};
use super::connection::Connection;
use super::link::Inner;
use crate::packet::{Packet, PacketBuf};
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Poll, ready};
use tokio::task::coop::poll_proceed;

impl Connection {
    /// Waits for the next message; returns `None` if the peer has closed the session or [finished](Self::finish),
    /// and everything that it sent was received; and if the session was [closed](Self::close) here, which drops
    /// what was not received by then.
    ///
    /// A message of one segment is a slice of the buffer it arrived in: [`Packet::compact`] it if it is to be kept.
    /// A longer one is joined in one buffer of the pool; if the pool is at its cap, this waits for one, of whatever class
    /// holds the message: for ever, if the pool is so small that segments, those of this message among them, keep all
    /// its slabs in use. A message above the pool's largest size class is joined on the heap, or ends the session if the
    /// [heap limit](crate::PacketPoolBuilder::max_heap_memory) does not allow that.
    /// [`recv_segments`](Self::recv_segments) needs no such buffer.
    ///
    /// Each message wakes all tasks that wait here: many share one connection better behind a queue, which one task fills.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    ///
    /// # Errors
    /// Says why the session has ended, if it was not closed.
    pub async fn recv(&self) -> Result<Option<Packet>, CloseReason> {
        loop {
            let bytes = match self.poll_input(Session::recv).await {
                Ok(message) => return Ok(Some(message)),
                Err(TryRecvError::NoMemory { bytes }) => bytes,
                Err(error) => return error.into_end(),
            };
            if let Some(buf) = self.wait_for_buffer(bytes).await
                && let Some(message) = self.with(|inner| inner.session.recv_into(buf))
            {
                return Ok(Some(message));
            }
        }
    }

    /// Waits for the next message, appends its segments to `to`, and returns their number; `None` as
    /// [`recv`](Self::recv). Copies nothing and needs no memory of the pool.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// # let config = EndpointConfig::new(SessionConfig::fast());
    /// # let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
    /// # let client = Connection::connect(server.local_addr(), &pool, config)?;
    /// client.send_slice(&[7; 10_000]).await?;
    ///
    /// let accepted = server.accept().await.expect("it is open");
    /// let mut segments = Vec::new();
    /// assert_eq!(accepted.recv_segments(&mut segments).await?, Some(8));
    /// assert_eq!(segments.iter().map(|segment| segment.len()).sum::<usize>(), 10_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn recv_segments(&self, to: &mut Vec<Packet>) -> Result<Option<usize>, CloseReason> {
        let take = |session: &mut Session| session.recv_segments(to);
        match self.poll_input(take).await {
            Ok(segments) => Ok(Some(segments)),
            Err(error) => error.into_end(),
        }
    }

    /// Takes the next message, if all of it is here and there is memory to join it in. Never waits.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig, TryRecvError};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// # let config = EndpointConfig::new(SessionConfig::fast());
    /// # let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
    /// # let client = Connection::connect(server.local_addr(), &pool, config)?;
    /// client.send_slice(b"jump").await?;
    /// client.finish().await?;
    ///
    /// let accepted = server.accept().await.expect("it is open");
    /// loop {
    ///     match accepted.try_recv() {
    ///         Ok(message) => assert_eq!(message, b"jump"[..]),
    ///         Err(TryRecvError::End) => break, // all was read
    ///         Err(TryRecvError::Empty) => tokio::task::yield_now().await, // or draw a frame
    ///         Err(error) => return Err(error.into()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Says why there is none, and whether there will be.
    pub fn try_recv(&self) -> Result<Packet, TryRecvError> {
        let (message, inner) = self.read_guard(Session::recv);
        message.ok_or_else(|| why_no_message(&inner))
    }

    /// Waits until there is something to take, nothing more will come, or only memory is missing; so the error is never
    /// [`Empty`](TryRecvError::Empty).
    async fn poll_input<T>(
        &self,
        mut take: impl FnMut(&mut Session) -> Option<T>,
    ) -> Result<T, TryRecvError> {
        let mut waiting = self.link().waiting();
        poll_fn(|cx| {
            let coop = ready!(poll_proceed(cx));
            let (taken, mut inner) = self.read_guard(&mut take);
            let input = taken.ok_or_else(|| why_no_message(&inner));
            if matches!(input, Err(TryRecvError::Empty)) {
                inner.wait_to_read(&mut waiting.wait, cx.waker());
                return Poll::Pending;
            }
            inner.end(&mut waiting.wait);
            coop.made_progress();
            Poll::Ready(input)
        })
        .await
    }

    /// Waits for a buffer for a message of this length; `None` if that message no longer waits, or too many already
    /// wait for the pool.
    async fn wait_for_buffer(&self, bytes: usize) -> Option<PacketBuf> {
        let link = self.link();
        let pool = &link.shared.context.pool;
        let mut alloc = pin!(pool.alloc(bytes));
        let since = link.shared.now();
        let mut waiting = link.waiting();
        let mut too_many_wait = false;
        poll_fn(|cx| {
            if too_many_wait {
                return Poll::Ready(None); // The pause is over.
            }
            match alloc.as_mut().poll(cx) {
                Poll::Ready(Ok(buf)) => return Poll::Ready(Some(buf)),
                Poll::Ready(Err(_)) => too_many_wait = true,
                Poll::Pending => {
                    if let Some(larger) = pool.try_alloc_larger(bytes, usize::MAX) {
                        return Poll::Ready(Some(larger));
                    }
                }
            }
            let mut inner = link.lock();
            if inner.session.next_message_bytes() != Some(bytes) {
                return Poll::Ready(None);
            }
            // If too many already wait; and for a larger chunk than needed, for which one cannot wait at the same time.
            link.look_again_for_memory(&mut inner, since);
            // Woken if the session ends, or another task takes the message.
            inner.awaited_bytes = bytes as u32;
            inner.wait_to_read(&mut waiting.wait, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Waits for the next datagram; returns `None` if the peer has closed the session or [finished](Self::finish), or
    /// it was closed here. Of datagrams not yet read, as many are kept as the [receive
    /// window](super::super::SessionConfig::window) has segments, the last ones; fewer if
    /// [memory](super::super::EndpointConfig::max_memory) is short. Once the session has ended there are none, however
    /// it ended.
    ///
    /// Cancel-safe. Counts against tokio's cooperative budget.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn recv_datagram(&self) -> Result<Option<Packet>, CloseReason> {
        let mut waiting = self.link().waiting();
        poll_fn(|cx| {
            let coop = ready!(poll_proceed(cx));
            let link = self.link();
            let mut inner = link.lock();
            let input = if let Some(datagram) = inner.session.recv_datagram() {
                Ok(Some(datagram))
            } else if let Some(end) = end_of_input(&inner) {
                end.map(|()| None)
            } else {
                inner.wait_to_read(&mut waiting.wait, cx.waker());
                link.settle_read(&mut inner);
                return Poll::Pending;
            };
            inner.end(&mut waiting.wait);
            coop.made_progress();
            Poll::Ready(input)
        })
        .await
    }

    /// Takes the next datagram. Never waits.
    ///
    /// ```
    /// # use slab_net::rudp::TryRecvError;
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// # let config = EndpointConfig::new(SessionConfig::fast());
    /// # let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
    /// # let client = Connection::connect(server.local_addr(), &pool, config)?;
    /// # client.ready().await?;
    /// client.send_datagram(vec![7; client.max_datagram()])?;
    ///
    /// let accepted = server.accept().await.expect("it is open");
    /// let position = loop {
    ///     match accepted.try_recv_datagram() {
    ///         Ok(datagram) => break datagram,
    ///         Err(TryRecvError::Empty) => tokio::task::yield_now().await, // or draw a frame
    ///         Err(error) => return Err(error.into()),
    ///     }
    /// };
    /// assert_eq!(position.len(), client.max_datagram());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Empty`](TryRecvError::Empty) if the peer may send more; [`End`](TryRecvError::End) or
    /// [`Closed`](TryRecvError::Closed) if not. Messages may still be unread then, and a datagram that was overtaken on its
    /// way may still come.
    pub fn try_recv_datagram(&self) -> Result<Packet, TryRecvError> {
        let link = self.link();
        let mut inner = link.lock();
        if let Some(datagram) = inner.session.recv_datagram() {
            return Ok(datagram);
        }
        let why = why_nothing(&inner);
        link.settle_read(&mut inner);
        Err(why)
    }
}

impl TryRecvError {
    /// Of one that ends a wait: what the methods that wait return.
    fn into_end<T>(self) -> Result<Option<T>, CloseReason> {
        match self {
            Self::Closed(reason) => Err(reason),
            _ => Ok(None),
        }
    }
}

/// No message was taken.
fn why_no_message(inner: &Inner) -> TryRecvError {
    match inner.session.next_message_bytes() {
        // It is still there even if the peer has closed since.
        Some(bytes) => TryRecvError::NoMemory { bytes },
        None => why_nothing(inner),
    }
}

/// Nothing was taken, and nothing is there.
fn why_nothing(inner: &Inner) -> TryRecvError {
    match end_of_input(inner) {
        None => TryRecvError::Empty,
        Some(Ok(())) => TryRecvError::End,
        Some(Err(reason)) => TryRecvError::Closed(reason),
    }
}

/// Whether nothing more will arrive, and whether that is an error.
pub(super) fn end_of_input(inner: &Inner) -> Option<Result<(), CloseReason>> {
    match inner.session.ended() {
        Some(CloseReason::ClosedByPeer | CloseReason::Closed) => Some(Ok(())),
        Some(_) if inner.session.has_received_all() => Some(Ok(())),
        Some(reason) => Some(Err(reason)),
        None if inner.session.has_given_up_finishing() => None,
        None if inner.session.is_read_closed() => Some(Ok(())),
        None => None,
    }
}
