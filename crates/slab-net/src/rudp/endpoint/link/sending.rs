//! What a session sends goes to the endpoint's socket, and waits in memory of its own if that is full.

use super::super::super::time::Time;
use super::{Inner, Link, Unsent};
use crate::udp::{SendError, SendErrorKind, Transmit};
use bytes::Buf;
use core::cell::RefCell;
use core::slice;
use core::time::Duration;

/// The most datagrams in one call to the kernel.
pub(in super::super) const MAX_BURST: usize = 64;
/// The most bytes that one call to the kernel takes.
pub(in super::super) const MAX_BURST_BYTES: usize = 65507;
/// When a session tries again whose datagrams neither the socket nor the pool had room for: no timer of its own may be
/// set for what it has not sent yet.
pub(in super::super) const NO_ROOM_PAUSE: Duration = Duration::from_millis(10);

thread_local! {
    /// Where acknowledgements and small messages are put together: one for each thread that sends, allocated when
    /// it first does.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_BURST_BYTES].into_boxed_slice());
}

/// Calls `send`, and once more if that fails because a peer's host has answered an earlier datagram by "port unreachable"
/// (ICMP): the system tells that once, to whatever is sent or read next, and would take the same datagrams. (Not if it has
/// taken some of them in an earlier step: then the rest is lost.)
pub(in super::super) fn send_again_if_refused(
    refused: &mut bool,
    mut send: impl FnMut() -> Result<usize, SendError>,
) -> Result<usize, SendError> {
    match send() {
        Err(error) if matches!(error.kind(), SendErrorKind::Refused) => {
            *refused = true;
            if error.sent() == 0 {
                send()
            } else {
                Err(error)
            }
        }
        sent => sent,
    }
}

impl Link {
    pub(super) fn transmit(&self, inner: &mut Inner, now: Time) {
        if inner.unsent.is_some() {
            return;
        }
        let pause = SCRATCH.try_with(|scratch| {
            let Ok(mut scratch) = scratch.try_borrow_mut() else {
                return Some(Duration::ZERO);
            };
            let scratch = &mut **scratch;
            match &self.shared.protection {
                Some(protection) => {
                    let Inner {
                        session, unsent, ..
                    } = inner;
                    let pause = protection.transmit(self, session, unsent, now, scratch);
                    if protection.take_unscheduled() {
                        self.shared.wake_driver();
                    }
                    pause
                }
                None => self.transmit_plain(inner, now, scratch),
            }
        });
        // The endpoint's task sends, if this thread is exiting and has lost its scratch memory, or is using it: a pool may
        // tell a subscriber of `tracing` something while a session sends, and that may use a session of another endpoint.
        if let Some(pause) = pause.unwrap_or(Some(Duration::ZERO)) {
            self.arm_at(inner, now + pause);
        }
    }

    /// Returns after which time to try again, if no timer of the session may be set although something is left to send.
    fn transmit_plain(&self, inner: &mut Inner, now: Time, scratch: &mut [u8]) -> Option<Duration> {
        let most = scratch.len().min(self.shared.most_kept);
        let scratch = &mut scratch[..most.max(self.shared.config.session.mtu)];
        let mut pause = None;
        while inner.unsent.is_none() && pause.is_none() {
            let Some(outgoing) = inner.session.poll_transmit(now, scratch, MAX_BURST) else {
                break;
            };
            let (contents, size) = (outgoing.contents(), outgoing.segment_size());
            let mut refused = false;
            match self.try_send(contents, size, &mut refused) {
                Ok(sent) if sent < outgoing.datagrams() => {
                    if !self.keep(&mut inner.unsent, &contents[sent * size..], size) {
                        self.count_lost(outgoing.datagrams() - sent, None);
                        pause = Some(NO_ROOM_PAUSE);
                    }
                }
                Ok(_) => {}
                // Goes on: what is left would not be asked for again, as after acknowledgements alone no timer is set.
                Err(error) => self.count_lost(outgoing.datagrams() - error.sent(), Some(error)),
            }
            if refused {
                inner.session.refused();
            }
        }
        pause
    }

    /// The socket is full: these datagrams of `size` bytes wait in memory of their own. Returns `false` if there is
    /// none: they are lost.
    pub(in super::super) fn keep(&self, unsent: &mut Unsent, contents: &[u8], size: usize) -> bool {
        let Ok(kept) = self.shared.context.pool.try_copy_from_slice(contents) else {
            return false;
        };
        *unsent = Some((kept, size));
        self.shared.push_blocked(self.place);
        true
    }

    /// Sends datagrams of `size` bytes to the peer, as many as the socket has room for; returns their number.
    fn try_send(
        &self,
        contents: &[u8],
        size: usize,
        refused: &mut bool,
    ) -> Result<usize, SendError> {
        let to = self.shared.to_socket_family(self.peer());
        let transmit = Transmit::new(contents, to).segment_size(size);
        let transmit = transmit.source(self.local());
        let sender = &self.shared.sender;
        send_again_if_refused(refused, || sender.try_send_many(slice::from_ref(&transmit)))
    }

    /// Sends what the socket had no room for; returns `false` if some of it is left.
    pub(in super::super) fn send_unsent(&self) -> bool {
        let mut inner = self.lock();
        let Some((mut contents, size)) = inner.unsent.take() else {
            return true;
        };
        let mut refused = false;
        let sent = self.try_send(&contents, size, &mut refused);
        if refused {
            inner.session.refused();
        }
        match sent {
            Ok(sent) if sent * size < contents.len() => {
                contents.advance(sent * size);
                inner.unsent = Some((contents, size));
                return false;
            }
            Ok(_) => {}
            Err(error) => {
                self.count_lost(contents.len().div_ceil(size) - error.sent(), Some(error));
            }
        }
        true
    }

    /// Counts datagrams that the system refused, or that there was no room for. They are treated as lost on the way; the
    /// session will find them missing.
    #[cold]
    pub(in super::super) fn count_lost(&self, datagrams: usize, error: Option<SendError>) {
        self.shared.table().count_send_error(datagrams, error);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::endpoint;
    use super::*;
    use crate::packet::Packet;

    /// A subscriber of `tracing` may send what it is told while a session of another endpoint sends.
    #[tokio::test]
    async fn what_is_sent_while_the_threads_memory_is_in_use_goes_out_later() {
        let (server, client) = (endpoint(), endpoint());
        let connection = client.connect(server.local_addr()).unwrap();
        let sent = SCRATCH.with_borrow_mut(|_| connection.try_send(Packet::from_static(b"event")));
        sent.unwrap();
        let received = async { server.accept().await.unwrap().recv().await };
        let received = tokio::time::timeout(Duration::from_secs(5), received).await;
        assert_eq!(
            received.expect("nobody sent it").unwrap().unwrap(),
            b"event"[..]
        );
    }
}
