//! A task of the application: one call after the other, each a future that is polled by hand.

use slab_net::Packet;
use slab_net::rudp::{CloseReason, Connection, SendError, Stream};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Writer,
    Reader,
    /// Reads unreliable datagrams.
    Datagrams,
    /// Waits for the peer's first answer, or for what was sent to arrive.
    Waiter,
}

/// What became of a call.
pub(crate) enum Outcome {
    Sent(Vec<u8>, Result<(), SendError>),
    Written(Vec<u8>, io::Result<usize>),
    Message(Result<Option<Vec<u8>>, CloseReason>),
    /// None at the end.
    Bytes(io::Result<Vec<u8>>),
    Datagram(Result<Option<Packet>, CloseReason>),
    Ready(Result<(), CloseReason>),
    Finished(Result<(), CloseReason>),
    Closed(Result<(), CloseReason>),
    Flushed,
}

pub(crate) type Call = Pin<Box<dyn Future<Output = Outcome>>>;

/// Whether a task was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) struct Task {
    pub(crate) role: Role,
    call: Option<Call>,
    flag: Arc<Flag>,
}

impl Task {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            call: None,
            flag: Arc::default(),
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.call.is_some()
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.call.is_some() && self.flag.0.load(Ordering::Relaxed)
    }

    /// Makes a call, and polls it once.
    pub(crate) fn start(&mut self, call: Call) -> Option<Outcome> {
        self.call = Some(call);
        self.poll(false)
    }

    /// Polls the call once, with a new waker if it `moves` to another task.
    pub(crate) fn poll(&mut self, moves: bool) -> Option<Outcome> {
        if moves {
            self.flag = Arc::default();
        }
        self.flag.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.flag));
        let polled = self.call.as_mut()?.as_mut();
        match polled.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => {
                self.call = None;
                Some(outcome)
            }
            Poll::Pending => None,
        }
    }

    pub(crate) fn cancel(&mut self) {
        self.call = None;
    }
}

/// A stream, whole or in halves.
#[derive(Clone)]
pub(crate) enum Halves {
    Whole(Rc<RefCell<Stream>>),
    Split(
        Rc<RefCell<tokio::io::ReadHalf<Stream>>>,
        Rc<RefCell<tokio::io::WriteHalf<Stream>>>,
    ),
}

impl Halves {
    pub(crate) fn new(stream: Stream, split: bool) -> Self {
        if split {
            let (reader, writer) = tokio::io::split(stream);
            return Self::Split(Rc::new(RefCell::new(reader)), Rc::new(RefCell::new(writer)));
        }
        Self::Whole(Rc::new(RefCell::new(stream)))
    }

    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Whole(stream) => Pin::new(&mut *stream.borrow_mut()).poll_read(cx, buf),
            Self::Split(reader, _) => Pin::new(&mut *reader.borrow_mut()).poll_read(cx, buf),
        }
    }

    pub(crate) fn with_writer<T>(
        &self,
        act: impl FnOnce(Pin<&mut (dyn AsyncWrite + Unpin)>) -> T,
    ) -> T {
        match self {
            Self::Whole(stream) => act(Pin::new(&mut *stream.borrow_mut())),
            Self::Split(_, writer) => act(Pin::new(&mut *writer.borrow_mut())),
        }
    }

    /// Reads at most `most` bytes, in one of the ways to read.
    pub(crate) fn read(self, way: u64, most: usize) -> Call {
        Box::pin(async move {
            let bytes = match (&self, way) {
                (Self::Whole(stream), 0) => poll_fn(|cx| {
                    let mut stream = stream.borrow_mut();
                    Pin::new(&mut *stream).poll_fill_buf(cx).map_ok(|filled| {
                        let taken = filled.len().min(most);
                        filled[..taken].to_vec()
                    })
                })
                .await
                .inspect(|bytes| Pin::new(&mut *stream.borrow_mut()).consume(bytes.len())),
                (Self::Whole(stream), 1) => {
                    // Made anew at each poll, as cancelling it loses nothing.
                    let packet = poll_fn(|cx| {
                        let mut stream = stream.borrow_mut();
                        std::pin::pin!(stream.read_packet()).poll(cx)
                    });
                    packet
                        .await
                        .map(|packet| packet.map_or_else(Vec::new, |packet| packet.to_vec()))
                }
                _ => {
                    let mut bytes = vec![0; most];
                    let mut buf = ReadBuf::new(&mut bytes);
                    let read = poll_fn(|cx| self.poll_read(cx, &mut buf)).await;
                    let len = buf.filled().len();
                    bytes.truncate(len);
                    read.map(|()| bytes)
                }
            };
            Outcome::Bytes(bytes)
        })
    }

    /// Writes bytes, in slices that end at `cuts` if there are any.
    pub(crate) fn write(self, bytes: Vec<u8>, cuts: Vec<usize>) -> Call {
        Box::pin(async move {
            let written = poll_fn(|cx| {
                if cuts.is_empty() {
                    return self.with_writer(|writer| writer.poll_write(cx, &bytes));
                }
                let (mut slices, mut from) = (Vec::new(), 0);
                for &to in cuts.iter().chain([&bytes.len()]) {
                    slices.push(IoSlice::new(&bytes[from..to]));
                    from = to;
                }
                self.with_writer(|writer| writer.poll_write_vectored(cx, &slices))
            });
            let written = written.await;
            Outcome::Written(bytes, written)
        })
    }

    pub(crate) fn flush(self) -> Call {
        Box::pin(async move {
            let flushed = poll_fn(|cx| self.with_writer(|writer| writer.poll_flush(cx))).await;
            flushed.unwrap();
            Outcome::Flushed
        })
    }
}

pub(crate) fn send(connection: Connection, packet: Packet) -> Call {
    Box::pin(async move {
        let message = packet.to_vec();
        let sent = connection.send(packet).await.map_err(|unsent| {
            assert_eq!(unsent.packet, message[..]);
            unsent.error
        });
        Outcome::Sent(message, sent)
    })
}

pub(crate) fn send_slice(connection: Connection, message: Vec<u8>) -> Call {
    Box::pin(async move {
        let sent = connection.send_slice(&message).await;
        Outcome::Sent(message, sent)
    })
}

pub(crate) fn recv(connection: Connection, joined: bool) -> Call {
    Box::pin(async move {
        if joined {
            let received = connection.recv().await;
            return Outcome::Message(received.map(|got| got.map(|message| message.to_vec())));
        }
        let mut segments = Vec::new();
        let received = connection.recv_segments(&mut segments).await;
        Outcome::Message(received.map(|got| got.map(|_| segments.concat())))
    })
}

pub(crate) fn recv_datagram(connection: Connection) -> Call {
    Box::pin(async move { Outcome::Datagram(connection.recv_datagram().await) })
}

pub(crate) fn ready(connection: Connection) -> Call {
    Box::pin(async move { Outcome::Ready(connection.ready().await) })
}

pub(crate) fn finish(connection: Connection) -> Call {
    Box::pin(async move { Outcome::Finished(connection.finish().await) })
}

pub(crate) fn close(connection: Connection) -> Call {
    Box::pin(async move { Outcome::Closed(connection.close().await) })
}
