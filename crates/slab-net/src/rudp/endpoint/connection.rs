//! [`Connection`]: a session as the application sees it.

use super::super::core::{MAX_FRAGMENTS, Session};
use super::super::error::{CloseReason, SendError, Unsent};
use super::super::stats::SessionStats;
use super::link::{Inner, Link, LinkGuard};
use super::stream::Stream;
use super::wakers::Wait;
use crate::packet::Packet;
use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll, Waker, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::poll_proceed;

/// One end of a session: messages of up to 255 segments, ordered, each arriving once.
///
/// Clones are handles to the same session, for example for a task that sends and one that receives. When the last
/// one is dropped the session is closed: what was sent is still delivered in the background, for the [linger
/// time](super::super::SessionConfig::linger) at most.
///
/// See [`Endpoint`](super::Endpoint) for an example.
#[derive(Clone)]
pub struct Connection {
    handle: Arc<Handle>,
}

struct Handle {
    link: Arc<Link>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let now = self.link.shared.now();
        self.link.update(now, |inner| {
            inner.released = true;
            inner.session.close(now);
        });
    }
}

impl Connection {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            handle: Arc::new(Handle { link }),
        }
    }

    pub(super) fn link(&self) -> &Link {
        &self.handle.link
    }

    /// Returns the peer's address. An IPv4 address is never mapped into IPv6, even if the socket is IPv6.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.link().peer()
    }

    /// Returns the conversation number.
    #[must_use]
    pub fn conv(&self) -> u32 {
        self.link().conv
    }

    /// Sends a message, waiting while the send queue is full; borrowed bytes go by
    /// [`send_slice`](Self::send_slice). Nothing is copied if the message fits in one segment,
    /// is the only handle to a chunk of its size, and has 24 bytes of headroom.
    ///
    /// Returns as soon as the session has accepted the message, which goes out at once if the peer's window allows.
    /// Outside of stream mode, one of more than 32 segments first waits until the peer has told its window, which takes a
    /// round trip.
    ///
    /// Cancel-safe: the message is accepted whole or not at all. Counts against tokio's cooperative budget.
    ///
    /// # Errors
    /// The session has ended, the message is empty or [too long](SendError::TooLong), or there is no memory and
    /// nothing in flight whose acknowledgement would free some. Gives the message back.
    pub async fn send(&self, message: impl Into<Packet>) -> Result<(), Unsent> {
        let mut packet = message.into();
        let sent = self
            .send_when_possible(|inner| inner.session.send_from(&mut packet))
            .await;
        sent.map_err(|error| Unsent { packet, error })
    }

    /// As [`send`](Self::send), but copies the message.
    ///
    /// # Errors
    /// As [`send`](Self::send), but for the message, which the caller still has.
    pub async fn send_slice(&self, message: &[u8]) -> Result<(), SendError> {
        self.send_when_possible(|inner| inner.session.send_slice(message))
            .await
    }

    /// Sends, or waits and tries again while that may change.
    async fn send_when_possible(
        &self,
        mut send: impl FnMut(&mut Inner) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let mut waiting = self.link().waiting();
        poll_fn(|cx| {
            let coop = ready!(poll_proceed(cx));
            let (sent, mut inner) = self.with_guard(&mut send);
            let sent = match sent {
                Ok(()) => {
                    inner.end(&mut waiting.wait);
                    Ok(())
                }
                Err(error) => Err(ready!(wait_to_send(inner, &mut waiting.wait, cx, error))),
            };
            coop.made_progress();
            Poll::Ready(sent)
        })
        .await
    }

    /// As [`send`](Self::send), without waiting.
    ///
    /// # Errors
    /// As [`send`](Self::send), or the send queue is full, or there is no memory, also while `send` would wait for
    /// that. A message of more than 32 segments for which `send`
    /// would first wait is [too long](SendError::TooLong): await [`ready`](Self::ready) before.
    ///
    /// ```
    /// # use slab_net::rudp::SendError;
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// # let config = EndpointConfig::new(SessionConfig::fast());
    /// # let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
    /// # let client = Connection::connect(server.local_addr(), &pool, config)?;
    /// let refused = loop {
    ///     let sent = client.try_send(pool.try_copy_from_slice(&[7; 1000])?);
    ///     let Err(unsent) = sent else { continue };
    ///     break unsent;
    /// };
    /// assert_eq!(refused.error, SendError::Blocked);
    /// client.send(refused.packet).await?; // or leave it out, if a newer one will come
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_send(&self, message: impl Into<Packet>) -> Result<(), Unsent> {
        let mut packet = message.into();
        let sent = self.with(|inner| inner.session.send_from(&mut packet));
        sent.map_err(|error| Unsent { packet, error })
    }

    /// Sends a datagram beside the messages: once, in no order, and without waiting. See
    /// [`Session::send_datagram`](super::super::Session::send_datagram).
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
    /// client.ready().await?; // it has to be known that the peer understands
    /// client.send_datagram(pool.try_copy_from_slice(b"position")?)?;
    ///
    /// let accepted = server.accept().await.expect("it is open");
    /// assert_eq!(accepted.recv_datagram().await?.unwrap(), b"position"[..]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Gives the datagram back: the session has ended, the peer runs another implementation or has not answered
    /// yet, the datagram is too long, the queue of 64 is full, or there is no memory.
    pub fn send_datagram(&self, datagram: impl Into<Packet>) -> Result<(), Unsent> {
        let packet = datagram.into();
        if !packet.is_foreign() || packet.len() > self.max_datagram() {
            return self.with(|inner| inner.session.send_datagram(packet));
        }
        // What is queued is dropped where the session is locked, and this one's owner may look at it then.
        let Ok(copy) = self.link().shared.context.pool.try_copy_from_slice(&packet) else {
            let error = SendError::NoMemory;
            return Err(Unsent { packet, error });
        };
        let sent = self.with(|inner| inner.session.send_datagram(copy));
        sent.map_err(|Unsent { error, .. }| Unsent { packet, error })
    }

    /// Returns the length of the longest [datagram](Self::send_datagram) in bytes: what error correction and
    /// encryption leave of the MTU, less a segment's header.
    #[must_use]
    pub fn max_datagram(&self) -> usize {
        self.link().lock().session.max_datagram()
    }

    /// Waits until the peer has answered for the first time, and can be sent [datagrams](Self::send_datagram) if it
    /// runs this library: opening a session does not wait for that. Cancel-safe.
    ///
    /// # Errors
    /// Says why the session has ended instead.
    pub async fn ready(&self) -> Result<(), CloseReason> {
        // Sends a WASK, if nothing sent so far included one.
        self.with(|_| ());
        self.wait_until(LinkGuard::wait_to_write, |session| {
            match session.is_acquainted() {
                true => Some(Ok(())),
                false => session.ended().map(Err),
            }
        })
        .await
    }

    /// Ends sending, datagrams included, and goes on receiving: the peer's [`recv`](Self::recv) returns `None` once
    /// the peer has everything. Waits until it has: up to the idle timeout if the peer is gone. If the peer answers while it
    /// receives, receive its answers meanwhile, or both ends may wait for each other. If the future is dropped, the
    /// session stays finished.
    ///
    /// This works between two ends of this library. KCP has no half-close: with a peer of another implementation,
    /// or one that does not show within the linger time that it runs this library, this is [`close`](Self::close);
    /// what that peer still sends is lost, as is what was not yet received here. A reader is told when the session has
    /// ended: as an error if not everything could be delivered.
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
    /// client.send_slice(b"one").await?;
    /// client.send_slice(b"two").await?;
    /// client.finish().await?;
    ///
    /// let accepted = server.accept().await.expect("it is open");
    /// let mut counted = 0_u8;
    /// while accepted.recv().await?.is_some() {
    ///     counted += 1;
    /// }
    /// accepted.send_slice(&[counted]).await?;
    /// assert_eq!(client.recv().await?.unwrap(), [2][..]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Says why the session ended before the peer had everything.
    pub async fn finish(&self) -> Result<(), CloseReason> {
        self.start_finish();
        self.wait_until(LinkGuard::wait_to_write, Session::close_result)
            .await
    }

    pub(super) fn start_finish(&self) {
        let now = self.link().shared.now();
        self.link().update(now, |inner| inner.session.finish(now));
    }

    /// Closes the session for all its handles, in both directions, and waits until everything sent is delivered. If
    /// the future is dropped, the session stays closed.
    ///
    /// # Errors
    /// Says why it ended otherwise: [`CloseReason::LingerExpired`] if not everything could be delivered in time,
    /// [`CloseReason::ClosedByPeer`] if the peer closed before it had everything.
    pub async fn close(&self) -> Result<(), CloseReason> {
        let now = self.link().shared.now();
        self.link().update(now, |inner| inner.session.close(now));
        self.wait_until(LinkGuard::wait_to_write, Session::close_result)
            .await
    }

    /// Waits until the session has ended, and says why. Does not end it: a peer that closes does, a timer, or another
    /// handle. What the peer sent before it closed can still be received; and a peer that only [finished](Self::finish)
    /// has not ended it, even if this end has finished, too: one of them has to [close](Self::close).
    ///
    /// Cancel-safe.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{CloseReason, Connection, Endpoint, EndpointConfig, SessionConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// # let config = EndpointConfig::new(SessionConfig::fast());
    /// # let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
    /// # let client = Connection::connect(server.local_addr(), &pool, config)?;
    /// client.send_slice(b"hello").await?;
    /// let accepted = server.accept().await.expect("it is open");
    /// let watched = accepted.clone();
    /// let watcher = tokio::spawn(async move { watched.closed().await });
    /// accepted.abort();
    /// assert_eq!(watcher.await?, CloseReason::Aborted);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn closed(&self) -> CloseReason {
        self.wait_until(LinkGuard::wait_for_end, Session::ended)
            .await
    }

    /// Waits until `look` finds something, which is looked for again at each event that `wait` waits for.
    async fn wait_until<'a, T>(
        &'a self,
        wait: fn(&mut LinkGuard<'a>, &mut Wait, &Waker),
        look: impl Fn(&Session) -> Option<T>,
    ) -> T {
        let mut waiting = self.link().waiting();
        poll_fn(|cx| {
            let mut inner = self.link().lock();
            if let Some(found) = look(&inner.session) {
                return Poll::Ready(found);
            }
            wait(&mut inner, &mut waiting.wait, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Ends the session at once. What was not delivered is lost. A peer that runs this library is told, and told again
    /// when something comes from it later: its session ends as [reset](CloseReason::Reset). A session that was
    /// [closed](Self::close) and has delivered everything ends as closed, at both ends.
    pub fn abort(&self) {
        self.with(|inner| inner.session.abort());
    }

    /// Returns `true` if everything that was sent is acknowledged: never once the session has ended without that.
    /// [Datagrams](Self::send_datagram) do not count.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.link().lock().session.is_sent()
    }

    /// Returns why the session has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<CloseReason> {
        self.link().lock().session.ended()
    }

    /// Returns the smoothed round-trip time, or `None` before the first sample.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        self.link().lock().session.rtt()
    }

    /// Returns the bytes of pool memory that are reserved for the session.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.link().lock().session.reserved_bytes()
    }

    /// Returns the session's counters.
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
    /// client.send_slice(b"hello").await?;
    /// let accepted = server.accept().await.expect("it is open");
    /// # client.clone().finish().await?;
    ///
    /// let (stats, rtt) = (client.stats(), client.rtt().unwrap_or_default());
    /// println!("{} -> {}: {rtt:?}", accepted.peer_addr(), client.peer_addr());
    /// let again = stats.retransmits_timeout + stats.retransmits_tail + stats.retransmits_fast;
    /// println!("{again} of {} segments sent again", stats.sent_segments);
    /// println!("{} bytes reserved", client.reserved_bytes());
    /// assert!(client.is_sent() && stats.sent_segments > 0 && client.reserved_bytes() > 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.link().lock().session.stats()
    }

    /// Turns the connection into a stream of bytes. What is written fills segments up, [in stream
    /// mode](super::super::SessionConfig::stream) or not; what the peer sends as messages is read as their bytes.
    #[must_use]
    pub fn into_stream(self) -> Stream {
        Stream::new(self)
    }

    /// Does something to the session, and then what follows from it.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        self.with_guard(act).0
    }

    pub(super) fn with_guard<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> (T, LinkGuard<'_>) {
        let link = self.link();
        let mut inner = link.lock();
        let result = act(&mut inner);
        let now = link.shared.now();
        link.settle(&mut inner, now, false);
        (result, inner)
    }

    /// As [`with_guard`](Self::with_guard), for a reader.
    pub(super) fn read_guard<T>(
        &self,
        take: impl FnOnce(&mut Session) -> Option<T>,
    ) -> (Option<T>, LinkGuard<'_>) {
        let link = self.link();
        let mut inner = link.lock();
        let taken = take(&mut inner.session);
        link.settle_read(&mut inner);
        (taken, inner)
    }
}

/// Nothing was accepted for sending: waits if that may change, otherwise returns why.
pub(super) fn wait_to_send(
    mut inner: LinkGuard<'_>,
    wait: &mut Wait,
    cx: &mut Context<'_>,
    error: SendError,
) -> Poll<SendError> {
    let session = &inner.session;
    let may_change = match error {
        SendError::Blocked => true,
        // Acknowledgements free memory.
        SendError::NoMemory => !session.is_sent(),
        // The peer's answer will tell its window; but no window takes more segments than this, nor, in stream mode,
        // does a send queue hold fewer.
        SendError::TooLong { segments, .. } => {
            segments <= MAX_FRAGMENTS as usize && !session.is_acquainted()
        }
        _ => false,
    };
    if !may_change {
        return Poll::Ready(error);
    }
    inner.wait_to_write(wait, cx.waker());
    Poll::Pending
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer_addr())
            .field("session", &self.link().lock().session)
            .finish()
    }
}
