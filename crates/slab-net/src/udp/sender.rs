//! [`UdpSender`]: sends from memory to the socket, many datagrams per system call where possible.

use super::error::{BindError, SendError, SendErrorKind};
use super::sink::UdpSink;
use super::socket::{BoundSocket, Socket, SocketOptions};
use super::stats::SocketMonitor;
use super::sys;
use super::transmit::{Plan, PlannedMessage, Progress, Transmit};
use arrayvec::ArrayVec;
use core::future::poll_fn;
use core::task::{Poll, ready};
use std::io;
use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::coop::poll_proceed;

/// Sends datagrams. Clones share one socket and its counters.
///
/// They are not fragmented, except by the sender of a receiver that
/// [asked for it](super::UdpReceiverBuilder::fragment).
///
/// On Unix, a socket takes a second file descriptor once its send buffer has been full, to wait for room. If there is
/// none, it tries again whenever other tasks have run.
#[derive(Debug, Clone)]
pub struct UdpSender {
    socket: Arc<Socket>,
}

impl UdpSender {
    /// Binds a sender with a socket of its own.
    ///
    /// # Errors
    /// The system's error.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let bound = BoundSocket::open(address, SocketOptions::default())?;
        bound.register().map(Self::new)
    }

    /// Takes a socket that is already bound, for options such as TTL, type of service, or the size of
    /// its send buffer. This crate's own options are set, its queue of errors (on Linux `IP_RECVERR`) is switched off, as
    /// nobody would read it, so is a segment size (`UDP_SEGMENT`), which would cut datagrams, and all others are left
    /// unchanged.
    ///
    /// Not for another handle to the socket of a [receiver](super::UdpReceiver), whose options this
    /// would change: use its [`sender`](super::UdpReceiver::sender).
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver, UdpSender};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let mut receiver = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_ttl(3)?;
    /// let sender = UdpSender::from_std(socket)?;
    /// sender.send(&Transmit::new(b"hello", receiver.local_addr())).await?;
    /// assert_eq!(receiver.recv_batch().await?.source(), sender.local_addr());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The system's error.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn from_std(socket: std::net::UdpSocket) -> Result<Self, BindError> {
        let bound = BoundSocket::adopt(socket, SocketOptions::default())?;
        bound.register().map(Self::new)
    }

    pub(super) fn new(socket: Arc<Socket>) -> Self {
        Self { socket }
    }

    /// The address that the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.address
    }

    /// Returns a handle that reads the socket's counters, even after the sender is gone.
    #[must_use]
    pub fn monitor(&self) -> SocketMonitor {
        SocketMonitor::new(Arc::clone(&self.socket.counters))
    }

    /// Returns a [`Sink`](futures_sink::Sink) of packets on this socket.
    #[must_use]
    pub fn sink(&self) -> UdpSink {
        UdpSink::new(self.clone())
    }

    /// Sends all datagrams of a transmit, in as few system calls as possible, and returns their number.
    /// Waits while the socket's send buffer is full.
    ///
    /// If the future is dropped, the first datagrams of the transmit may have been sent.
    ///
    /// # Errors
    /// The system's error for one of the datagrams; the number of those sent before it is in
    /// [`SendError::sent`].
    pub async fn send(&self, transmit: &Transmit<'_>) -> Result<usize, SendError> {
        self.send_many(slice::from_ref(transmit)).await
    }

    /// Like [`send`](Self::send), but does not wait.
    ///
    /// # Errors
    /// The same as [`send`](Self::send), and [`SendErrorKind::WouldBlock`] if the socket's send buffer has no room for all
    /// datagrams of the transmit: [`SendError::sent`] says how many of them were sent.
    pub fn try_send(&self, transmit: &Transmit<'_>) -> Result<usize, SendError> {
        let sent = self.try_send_many(slice::from_ref(transmit))?;
        if sent < transmit.datagrams() {
            return Err(SendError {
                sent,
                destination: Some(transmit.destination()),
                kind: SendErrorKind::WouldBlock,
            });
        }
        Ok(sent)
    }

    /// Sends all datagrams of many transmits in order, in as few system calls as possible, and returns
    /// their number. Waits while the socket's send buffer is full.
    ///
    /// Destinations and lengths may differ: on Linux one call takes up to 32 messages (sendmmsg).
    /// Successive datagrams with the same destination and length leave as one message with GSO,
    /// wherever in memory they lie.
    ///
    /// If the future is dropped, the first datagrams of the transmits may have been sent.
    ///
    /// # Errors
    /// The system's error for one of the datagrams. The number of those sent before it is in
    /// [`SendError::sent`]; those after it are not sent. Answers to many peers should not wait for one of them:
    /// a [`sink`](Self::sink) goes on with the next.
    ///
    /// ```
    /// use slab_net::PacketPool;
    /// use slab_net::udp::{Transmit, UdpReceiver};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut one = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let mut other = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let transmits = [
    ///     Transmit::new(b"to one", one.local_addr()),
    ///     Transmit::new(b"to another", other.local_addr()),
    /// ];
    /// assert_eq!(one.sender().send_many(&transmits).await?, 2);
    /// assert_eq!(one.recv_batch().await?.contents(), b"to one");
    /// assert_eq!(other.recv_batch().await?.contents(), b"to another");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_many(&self, transmits: &[Transmit<'_>]) -> Result<usize, SendError> {
        let mut progress = Progress::default();
        loop {
            let step = poll_fn(|cx| {
                let coop = ready!(poll_proceed(cx));
                let step = self.socket.io.write(|| self.step(transmits, &mut progress));
                if !would_block(&step) {
                    coop.made_progress();
                }
                Poll::Ready(step)
            });
            let mut step = step.await;
            if would_block(&step) {
                step = self.writable().await.map(|()| Step::More);
            }
            if let Some(outcome) = Self::outcome(step, transmits, &progress) {
                return outcome;
            }
        }
    }

    /// Like [`send_many`](Self::send_many), but does not wait: returns how many datagrams were sent
    /// before the socket's send buffer was full, which may be none.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// # let (sender, players) = (socket.sender(), [socket.local_addr(); 2]);
    /// // A game's state, once a tick: who does not get it now gets the next.
    /// let updates = players.map(|player| Transmit::new(b"state", player));
    /// let sent = sender.try_send_many(&updates)?;
    /// println!("{} updates left out", updates.len() - sent); // each is one datagram
    /// assert_eq!(sent, 2);
    /// # assert_eq!(socket.recv().await?.packet, b"state"[..]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as [`send_many`](Self::send_many).
    pub fn try_send_many(&self, transmits: &[Transmit<'_>]) -> Result<usize, SendError> {
        let mut progress = Progress::default();
        loop {
            let step = self.socket.io.write(|| self.step(transmits, &mut progress));
            if let Some(outcome) = Self::outcome(step, transmits, &progress) {
                return outcome;
            }
        }
    }

    /// Sends each datagram as a message of its own from now on, as if GSO had been refused.
    pub(crate) fn disable_gso(&self) {
        self.socket.backend.disable_gso();
    }

    /// Waits until the socket's send buffer may have room, for code that cannot wait in [`send`](Self::send): a `poll_`
    /// function keeps this future until it completes, and then [tries](Self::try_send) again. (If there is no descriptor to
    /// wait with, it waits until other tasks have run.)
    ///
    /// Cancel-safe. Holds the sender, and borrows nothing.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// use slab_net::udp::{SendErrorKind, Transmit, UdpReceiver};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let mut receiver = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let sender = receiver.sender();
    /// let hello = Transmit::new(b"hello", receiver.local_addr());
    /// let sent = loop {
    ///     match sender.try_send(&hello) {
    ///         Err(full) if matches!(full.kind(), SendErrorKind::WouldBlock) => sender.writable().await?,
    ///         sent => break sent?,
    ///     }
    /// };
    /// assert_eq!(sent, 1);
    /// assert_eq!(receiver.recv_batch().await?.contents(), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The runtime is gone, or cannot wait for another descriptor.
    pub fn writable(&self) -> impl Future<Output = io::Result<()>> + Send + Sync + use<> {
        let socket = Arc::clone(&self.socket);
        async move {
            match socket.io.writable().await {
                Ok(true) => Ok(()),
                Ok(false) => {
                    tokio::task::yield_now().await;
                    Ok(())
                }
                Err(error) => {
                    // Or a task that goes on after errors would keep its thread.
                    tokio::task::consume_budget().await;
                    Err(error)
                }
            }
        }
    }

    /// As [`writable`](Self::writable), but without a descriptor waits for this time. For a runtime that has timers.
    pub(crate) async fn writable_or_after(self, pause: Duration) -> io::Result<()> {
        if !self.socket.io.writable().await? {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    fn outcome(
        result: io::Result<Step>,
        transmits: &[Transmit<'_>],
        progress: &Progress,
    ) -> Option<Result<usize, SendError>> {
        let error = match result {
            Ok(Step::More) => return None,
            Ok(Step::Done) => return Some(Ok(progress.sent)),
            Ok(Step::Failed(kind)) => SendError {
                sent: progress.sent,
                destination: progress.next_destination(transmits),
                kind,
            },
            // Reaches this point only from `try_send_many`.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Some(Ok(progress.sent));
            }
            Err(error) => SendError {
                sent: progress.sent,
                ..SendError::from_runtime(error)
            },
        };
        Some(Err(error))
    }

    /// Makes one system call and counts it. The only error is `WouldBlock`.
    fn step(&self, transmits: &[Transmit<'_>], progress: &mut Progress) -> io::Result<Step> {
        let backend = &self.socket.backend;
        let mut plan = Plan::default();
        if let Err(kind) = plan.fill(transmits, progress, backend.max_segments()) {
            return Ok(Step::Failed(kind));
        }
        let Some(first) = plan.planned.first() else {
            return Ok(Step::Done);
        };
        let mut messages = ArrayVec::new();
        plan.write_messages(transmits, &mut messages);
        let mut result = backend.send(&self.socket.io, &messages);
        if first.datagrams == 1 && matches!(&result, Err(error) if sys::is_too_large(error)) {
            // To a connected socket a router may have reported this about an earlier datagram (ICMP). The
            // system says so once.
            result = backend.send(&self.socket.io, &messages);
        }
        match result {
            Ok(taken) => {
                self.count(&plan.planned[..taken]);
                for message in &plan.planned[..taken] {
                    progress.advance_past(message);
                }
                if let Some(error) = progress.gso_suspect.take() {
                    // What had failed as segments of one message was sent as a single datagram.
                    self.disable_refused_gso(&error);
                }
                Ok(match progress.is_complete(transmits) {
                    true => Step::Done,
                    false => Step::More,
                })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Err(error) if first.datagrams > 1 && sys::may_be_gso_error(&error) => {
                // Either these datagrams are too long for the path, or a device does not support GSO.
                // Sending one datagram at a time shows which.
                progress.without_gso = true;
                progress.gso_suspect =
                    Some(error).filter(|error| !backend.may_be_path_error(error));
                Ok(Step::More)
            }
            Err(error) => Ok(Step::Failed(SendErrorKind::from_io(error, first.bytes))),
        }
    }

    #[cold]
    fn disable_refused_gso(&self, error: &io::Error) {
        if self.socket.backend.disable_gso() {
            tracing::info!(%error, "segmentation offload refused, sending without");
        }
    }

    fn count(&self, messages: &[PlannedMessage]) {
        let counters = &self.socket.counters.send;
        let add = |counter: &std::sync::atomic::AtomicU64, n: usize| {
            counter.fetch_add(n as u64, Ordering::Relaxed);
        };
        add(
            &counters.datagrams,
            messages.iter().map(|message| message.datagrams).sum(),
        );
        add(
            &counters.bytes,
            messages.iter().map(|message| message.bytes).sum(),
        );
        add(&counters.calls, 1);
    }
}

/// As [`UdpReceiver`](super::UdpReceiver)'s.
#[cfg(unix)]
impl std::os::fd::AsFd for UdpSender {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.io.as_fd()
    }
}

/// As [`UdpReceiver`](super::UdpReceiver)'s.
#[cfg(windows)]
impl std::os::windows::io::AsSocket for UdpSender {
    fn as_socket(&self) -> std::os::windows::io::BorrowedSocket<'_> {
        self.socket.io.as_socket()
    }
}

fn would_block(step: &io::Result<Step>) -> bool {
    matches!(step, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// The result of one system call.
enum Step {
    More,
    Done,
    Failed(SendErrorKind),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_runtime_says_how_many_were_sent_before() {
        let mut progress = Progress::default();
        progress.sent = 3;
        let outcome = |kind: io::ErrorKind| {
            let outcome = UdpSender::outcome(Err(kind.into()), &[], &progress);
            outcome.unwrap().map_err(|error| error.sent())
        };
        assert_eq!(outcome(io::ErrorKind::Other), Err(3));
        assert_eq!(outcome(io::ErrorKind::WouldBlock), Ok(3));
    }
}
