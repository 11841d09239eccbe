//! [`Io`]: a socket that a runtime drives.
//!
//! On Unix it is registered for reading only, until its send buffer is full for the first time. Registered for
//! writing too, it would cause an event each time the system lets go of a datagram that it sent, although nobody
//! waits for room: an echo would wake its runtime twice.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
#[cfg(unix)]
use {
    std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    std::sync::OnceLock,
    tokio::io::unix::{AsyncFd, AsyncFdReadyGuard},
    tokio::runtime::Handle,
    tokio::task::coop::poll_proceed,
};

/// A wait for a socket that owns it. Tokio's own place to wait in a socket is for one task only, and a socket is shared.
pub(super) type Wait = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

type Call<'a, T> = &'a mut dyn FnMut() -> io::Result<T>;

/// Makes a system call by tokio's `try_io`, which forgets that the socket is ready if the call returns `WouldBlock`. But
/// tokio may not have noticed yet that the socket is ready, and then does not make the call: this makes it nevertheless.
fn call_in_any_case<T>(
    mut call: impl FnMut() -> io::Result<T>,
    try_io: impl FnOnce(Call<'_, T>) -> io::Result<T>,
) -> io::Result<T> {
    let mut was_called = false;
    let result = try_io(&mut || {
        was_called = true;
        call()
    });
    if was_called { result } else { call() }
}

#[cfg(unix)]
#[derive(Debug)]
pub(super) struct Io {
    socket: AsyncFd<std::net::UdpSocket>,
    runtime: Handle,
    /// A duplicate, registered for writing. A descriptor can be registered only once.
    to_write: OnceLock<AsyncFd<OwnedFd>>,
}

#[cfg(unix)]
impl Io {
    /// Registers a socket, which is in non-blocking mode, with the current runtime.
    pub(super) fn register(socket: std::net::UdpSocket) -> io::Result<Self> {
        Ok(Self {
            socket: register(socket, Interest::READABLE)?,
            runtime: Handle::current(),
            to_write: OnceLock::new(),
        })
    }

    /// Calls `read` if the runtime believes that there is something to read, or waits until it does. If `read` returns
    /// `WouldBlock`, the next call waits for something new.
    ///
    /// A socket that was shut down for reading is to tokio ready ever after, and who waits for it would spin. There it
    /// is `NotConnected` that there is nothing to read.
    ///
    /// Uses up tokio's budget at each turn, also if the runtime is gone and all turns fail.
    pub(super) fn poll_read<T>(
        &self,
        cx: &mut Context<'_>,
        read: impl FnOnce() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let mut ready = ready!(poll_read_ready(&self.socket, cx))?;
        let nothing = match ready.ready().is_read_closed() {
            true => io::ErrorKind::NotConnected,
            false => io::ErrorKind::WouldBlock,
        };
        Poll::Ready(match ready.try_io(|_| read()) {
            Ok(read) => read,
            Err(_) => Err(nothing.into()),
        })
    }

    /// Calls `read`. If that returns `WouldBlock`, [`poll_read`](Self::poll_read) waits for something new.
    pub(super) fn read<T>(&self, read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let readable = |read: Call<'_, T>| self.socket.try_io(Interest::READABLE, |_| read());
        call_in_any_case(read, readable)
    }

    /// Waits until the system has an error for the socket, which a read returns if no send does before.
    pub(super) async fn error(&self) -> io::Result<()> {
        let ready = self.socket.ready(Interest::ERROR).await;
        ready.map(|mut ready| ready.clear_ready())
    }

    /// Calls `write`. If that returns `WouldBlock`, [`writable`](Self::writable) waits for room.
    pub(super) fn write<T>(&self, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let Some(registered) = self.to_write.get() else {
            return write();
        };
        let writable = |write: Call<'_, T>| registered.try_io(Interest::WRITABLE, |_| write());
        call_in_any_case(write, writable)
    }

    /// Waits until the send buffer may have room; returns `false` at once if there is no descriptor to wait with.
    pub(super) async fn writable(&self) -> io::Result<bool> {
        let mut registered = self.to_write.get();
        if registered.is_none()
            && let Some(new) = self.register_to_write()?
        {
            registered = Some(self.to_write.get_or_init(|| new));
        }
        let Some(registered) = registered else {
            return Ok(false);
        };
        let mut ready = registered.writable().await?;
        ready.retain_ready();
        if !ready.ready().is_write_closed() {
            return Ok(true);
        }
        // To tokio an ICMP error on a connected socket looks like the closed end of a pipe, and it
        // reports "ready" ever after. A new registration has not seen the error.
        match self.register_to_write()? {
            Some(new) => new.writable().await.map(|mut ready| {
                ready.retain_ready();
                true
            }),
            None => Ok(false),
        }
    }

    /// Makes a registration that is told at once if there is room; `None` if no descriptor is left.
    #[cold]
    fn register_to_write(&self) -> io::Result<Option<AsyncFd<OwnedFd>>> {
        let Ok(duplicate) = self.as_fd().try_clone_to_owned() else {
            return Ok(None);
        };
        // The caller may poll this outside any runtime.
        let _inside = self.runtime.enter();
        register(duplicate, Interest::WRITABLE).map(Some)
    }
}

/// As [`AsyncFd::poll_read_ready`], which does not count an error against the budget: a task that goes on after errors would
/// keep its thread.
#[cfg(unix)]
pub(super) fn poll_read_ready<'a, T: AsRawFd>(
    fd: &'a AsyncFd<T>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<AsyncFdReadyGuard<'a, T>>> {
    let ready = ready!(fd.poll_read_ready(cx));
    if ready.is_err() {
        ready!(poll_proceed(cx)).made_progress();
    }
    Poll::Ready(ready)
}

#[cfg(unix)]
fn register<T: AsRawFd>(socket: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // The socket stays open as long as it is registered, which the function's successor in tokio 1.54 requires
    // the caller to state.
    #[allow(deprecated)]
    AsyncFd::with_interest(socket, interest)
}

#[cfg(unix)]
impl AsFd for Io {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

#[cfg(unix)]
impl AsRawFd for Io {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.get_ref().as_raw_fd()
    }
}

#[cfg(not(unix))]
#[derive(Debug)]
pub(super) struct Io(tokio::net::UdpSocket);

#[cfg(not(unix))]
impl Io {
    pub(super) fn register(socket: std::net::UdpSocket) -> io::Result<Self> {
        tokio::net::UdpSocket::from_std(socket).map(Self)
    }

    pub(super) fn poll_read<T>(
        &self,
        cx: &mut Context<'_>,
        read: impl FnOnce() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        ready!(self.0.poll_recv_ready(cx))?;
        Poll::Ready(self.0.try_io(Interest::READABLE, read))
    }

    pub(super) fn read<T>(&self, read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        call_in_any_case(read, |read| self.0.try_io(Interest::READABLE, read))
    }

    pub(super) async fn error(&self) -> io::Result<()> {
        self.0.ready(Interest::ERROR).await.map(drop)
    }

    pub(super) fn write<T>(&self, write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        call_in_any_case(write, |write| self.0.try_io(Interest::WRITABLE, write))
    }

    pub(super) async fn writable(&self) -> io::Result<bool> {
        self.0.writable().await.map(|()| true)
    }
}

#[cfg(windows)]
impl std::os::windows::io::AsSocket for Io {
    fn as_socket(&self) -> std::os::windows::io::BorrowedSocket<'_> {
        self.0.as_socket()
    }
}
