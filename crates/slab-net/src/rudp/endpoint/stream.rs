//! [`Stream`]: a session as a stream of bytes.

use super::super::core::Session;
use super::super::error::SendError;
use super::super::time::Time;
use super::connection::{Connection, wait_to_send};
use super::link::LONGEST_LOOK;
use super::receiving::end_of_input;
use super::wakers::Wait;
use crate::packet::Packet;
use bytes::Buf;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io::{self, IoSlice};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

/// A session as a stream of bytes, from [`Connection::into_stream`].
///
/// What is written is sent at once, as far as the peer's window allows; flushing does nothing. Shutting down ends
/// writing without waiting for delivery, and reading goes on as before; to wait for delivery, use
/// [`Connection::finish`]. Only with a peer of another implementation, or one that does not show within the
/// linger time that it runs this library, does shutting down close the session in both directions: KCP has no
/// half-close. What such a peer sends after that is lost, as is what was received but not read by then.
///
/// A write waits while what is in flight uses up the window or the memory. If others have the memory it waits, too, and
/// looks again now and then for as long as the session lasts: what it waits for may be memory that its own task holds.
/// It fails as [`OutOfMemory`](io::ErrorKind::OutOfMemory) if the endpoint's
/// [memory](super::EndpointConfig::max_memory) has no room for a segment beside the session's first window.
///
/// Dropping the stream closes the session, also after shutting down, unless clones of its
/// [`connection`](Self::connection) are left: what the peer has not taken within the [linger
/// time](super::super::SessionConfig::linger) is lost, and the peer learns that by a
/// [reset](super::super::CloseReason::Reset). A kernel's TCP goes on for longer; if the reader may be that slow,
/// wait for `connection().finish()` first.
///
/// Codecs of `tokio_util`, TLS and whatever else takes `AsyncRead + AsyncWrite` work over it:
///
/// ```
/// use bytes::Bytes;
/// use futures_util::{SinkExt, StreamExt};
/// use slab_net::PacketPool;
/// use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
/// use tokio_util::codec::{Framed, LengthDelimitedCodec};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PacketPool::builder().max_memory(32 << 20).build()?;
/// let config = EndpointConfig::new(SessionConfig::fast());
/// let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
/// let client = Connection::connect(server.local_addr(), &pool, config)?.into_stream();
/// let mut client = Framed::new(client, LengthDelimitedCodec::new());
/// client.send(Bytes::from_static(b"hello")).await?;
///
/// let accepted = server.accept().await.expect("it is open").into_stream();
/// let mut accepted = Framed::new(accepted, LengthDelimitedCodec::new());
/// assert_eq!(accepted.next().await.transpose()?.unwrap(), b"hello"[..]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Stream {
    connection: Connection,
    /// What was taken from the session and not yet read from the stream.
    front: Packet,
    /// To read, to write, or both.
    wait: Wait,
    /// Since when a write has waited for memory that others have, and when it last looked.
    no_memory: Option<(Time, Time)>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.link().end(&self.wait);
    }
}

impl Stream {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            front: Packet::new(),
            wait: Wait::default(),
            no_memory: None,
        }
    }

    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits for the next piece of the stream, as it was received, without copying; `None` at the end. Cancel-safe.
    ///
    /// ```
    /// use tokio::io::AsyncWriteExt;
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
    /// # let config = EndpointConfig::new(SessionConfig::fast());
    /// # let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
    /// # let mut client = Connection::connect(server.local_addr(), &pool, config)?.into_stream();
    /// client.write_all(&[7; 10_000]).await?;
    /// client.connection().finish().await?; // here all has arrived
    ///
    /// let mut accepted = server.accept().await.expect("it is open").into_stream();
    /// let (mut pieces, mut bytes) = (0, 0);
    /// while let Some(piece) = accepted.read_packet().await? {
    ///     (pieces, bytes) = (pieces + 1, bytes + piece.len());
    /// }
    /// assert!(pieces > 1 && bytes == 10_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Says why the session has ended, if it was not closed: a [`CloseReason`](super::super::CloseReason) inside.
    pub async fn read_packet(&mut self) -> io::Result<Option<Packet>> {
        core::future::poll_fn(|cx| self.poll_front(cx)).await?;
        let packet = core::mem::take(&mut self.front);
        Ok((!packet.is_empty()).then_some(packet))
    }

    /// Fills `front`; leaves it empty at the end of the stream.
    fn poll_front(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.front.is_empty() {
            let coop = ready!(poll_proceed(cx));
            let (read, mut inner) = self.connection.read_guard(Session::read);
            match read {
                Some(packet) => {
                    coop.made_progress();
                    self.front = packet;
                }
                None => match end_of_input(&inner) {
                    Some(end) => {
                        coop.made_progress();
                        return Poll::Ready(end.map_err(Into::into));
                    }
                    None => {
                        inner.wait_to_read(&mut self.wait, cx.waker());
                        return Poll::Pending;
                    }
                },
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_slices(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let coop = ready!(poll_proceed(cx));
        let (written, mut inner) = self.connection.with_guard(|inner| {
            let mut total = 0;
            for slice in slices {
                match inner.session.write(slice) {
                    Ok(taken) => {
                        total += taken;
                        // A shorter slice might fit where the rest of this one does not.
                        if taken < slice.len() {
                            break;
                        }
                    }
                    Err(_) if total > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(total)
        });
        let link = self.connection.link();
        let since = self.no_memory.take().map(|(since, looked)| {
            // Its caller may have given that write up since, and this be another one.
            let waited = link.shared.now().since(looked).min(LONGEST_LOOK);
            link.shared.context.measures.blocked_sending(waited);
            since
        });
        let written = match written {
            Ok(written) => Ok(written),
            // No acknowledgement will free any, but others may.
            Err(SendError::NoMemory)
                if inner.session.is_sent()
                    && inner.session.fits_budget_alone(first_bytes(slices)) =>
            {
                let now = link.shared.now();
                let since = since.unwrap_or(now);
                self.no_memory = Some((since, now));
                inner.wait_to_write(&mut self.wait, cx.waker());
                link.look_again_for_memory(&mut inner, since);
                return Poll::Pending;
            }
            Err(error) => {
                let refused = wait_to_send(inner, &mut self.wait, cx, error);
                Err(ready!(refused).into())
            }
        };
        coop.made_progress();
        Poll::Ready(written)
    }
}

/// How many bytes a write begins with.
fn first_bytes(slices: &[IoSlice<'_>]) -> usize {
    let mut lens = slices.iter().map(|slice| slice.len());
    lens.find(|&len| len > 0).unwrap_or_default()
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            connection,
            front,
            wait,
            ..
        } = self.get_mut();
        let coop = ready!(poll_proceed(cx));
        let before = buf.filled().len();
        drain_into(front, buf);
        if buf.remaining() == 0 {
            coop.made_progress();
            return Poll::Ready(Ok(()));
        }
        // Takes as much as is here, under one lock.
        let (_, mut inner) = connection.read_guard(|session| {
            while buf.remaining() > 0 {
                *front = session.read()?;
                drain_into(front, buf);
            }
            Some(())
        });
        if buf.filled().len() > before {
            coop.made_progress();
            return Poll::Ready(Ok(()));
        }
        if let Some(end) = end_of_input(&inner) {
            coop.made_progress();
            return Poll::Ready(end.map_err(Into::into));
        }
        inner.wait_to_read(wait, cx.waker());
        Poll::Pending
    }
}

fn drain_into(packet: &mut Packet, buf: &mut ReadBuf<'_>) {
    let taken = packet.len().min(buf.remaining());
    buf.put_slice(&packet[..taken]);
    if taken == packet.len() {
        *packet = Packet::new();
    } else {
        packet.advance(taken);
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_front(cx))?;
        Poll::Ready(Ok(&this.front))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        self.get_mut().front.advance(amount);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_slices(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_slices(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Waiting for delivery here could last for ever: a caller that shuts down and only then reads does not take
        // the peer's answer, which may not fit the window.
        self.connection.start_finish();
        Poll::Ready(Ok(()))
    }
}
