//! [`ErrorWatch`]: wakes who receives from a connected socket when the system has an error for it.
//!
//! A host that has nobody at a port says so (ICMP "port unreachable"), and the next read or send returns that. Tokio
//! does not wake a task for it that waits for something to read, only one that waits for errors; and its future for
//! that borrows the socket. So here is one that owns the socket, made anew after each error.

use super::io::Wait;
use super::socket::Socket;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Nothing for a socket that is not connected: the system tells it of no such errors.
pub(super) struct ErrorWatch(Option<Wait>);

impl ErrorWatch {
    pub(super) fn of(socket: &Arc<Socket>) -> Self {
        // Elsewhere a read that fails counts as one that is ready.
        let is_told = cfg!(unix) && socket.is_connected();
        Self(is_told.then(|| wait(socket)))
    }

    /// Waits until there may be an error to be read, of which tokio does not know.
    pub(super) fn poll(
        &mut self,
        socket: &Arc<Socket>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(waiting) = &mut self.0 else {
            return Poll::Pending;
        };
        let waited = ready!(waiting.as_mut().poll(cx));
        *waiting = wait(socket);
        Poll::Ready(waited)
    }
}

#[cold]
fn wait(socket: &Arc<Socket>) -> Wait {
    let socket = Arc::clone(socket);
    Box::pin(async move { socket.io.error().await })
}

impl fmt::Debug for ErrorWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ErrorWatch")
            .field(&self.0.is_some())
            .finish()
    }
}
