//! The way out, from a session to the socket.

use super::super::link::{Link, MAX_BURST};
use super::Protection;
use super::gso_buffer::{GsoBuffer, with_gso_buffer};
use crate::packet::Packet;
use crate::rudp::core::{Outgoing, Session};
use crate::rudp::time::Time;
use crate::udp::{SendError, SendErrorKind, UdpSender};
use std::net::SocketAddr;

/// Datagrams that the socket had no room for, and the length of each.
type Unsent = Option<(Packet, usize)>;

impl Protection {
    /// Sends what a session has to send, until nothing is left or the socket has no room; returns `false` if this
    /// thread can no longer send.
    pub(in super::super) fn transmit(
        &self,
        link: &Link,
        session: &mut Session,
        unsent: &mut Unsent,
        now: Time,
        scratch: &mut [u8],
    ) -> bool {
        with_gso_buffer(|buffer| {
            while unsent.is_none() {
                let allowance = self.allowance(session);
                let Some(outgoing) = session.poll_transmit(now, scratch, MAX_BURST) else {
                    return;
                };
                // What may not be sent is treated as lost on the way.
                if self.wire_bytes(&outgoing) > allowance {
                    continue;
                }
                let parity = allowance == u64::MAX;
                let mut failed = None;
                let mut send =
                    |buffer: &mut GsoBuffer| failed = failed.take().or(flush(link, buffer, unsent));
                self.seal(link.peer(), now, &outgoing, parity, buffer, &mut send);
                send(buffer);
                // Goes on after any error: see `Link::transmit_plain`.
                if failed.is_some_and(|error| matches!(error.kind(), SendErrorKind::Refused)) {
                    session.refused();
                }
            }
        })
    }

    /// Sends a datagram that belongs to no session, if the socket has room. It is not a shard, as shards are
    /// numbered; peers accept it as it is. Called by the endpoint's task, which can always send.
    pub(in super::super) fn send_sessionless(
        &self,
        sender: &UdpSender,
        to: SocketAddr,
        from: Option<SocketAddr>,
        datagram: &[u8],
    ) {
        with_gso_buffer(|buffer| {
            let (front, behind) = self.shard_overhead();
            self.renew_nonces_after_fork();
            let sealed = buffer.push(front + datagram.len() + behind);
            sealed[front..front + datagram.len()].copy_from_slice(datagram);
            self.encrypt(sealed);
            let _ = sender.try_send_many(&buffer.transmits(to, from));
        });
    }

    /// Bytes that may be sent on the wire before the peer has proved its address: three times those received. The
    /// session itself limits its own bytes, which are most of them. Of the overhead received, only what every
    /// datagram has is counted, as not all of them are shards.
    fn allowance(&self, session: &Session) -> u64 {
        if session.is_validated() {
            return u64::MAX;
        }
        let stats = session.stats();
        let (front, behind) = self.shard_overhead();
        let received = stats.received_bytes + stats.received_datagrams * (front + behind) as u64;
        let (front, behind) = self.overhead;
        let sent = stats.sent_bytes + stats.sent_datagrams * (front + behind) as u64;
        (3 * received).saturating_sub(sent)
    }

    /// How much longer the first answer is on the wire than the session makes it, less three times what the
    /// datagram that it answers is longer: the session deducts this from what it may send.
    pub(in super::super) fn first_answer_bytes(&self) -> usize {
        let ((front, behind), (around, after)) = (self.overhead, self.shard_overhead());
        (front + behind).saturating_sub(3 * (around + after))
    }

    /// The length of these datagrams on the wire, without parity.
    fn wire_bytes(&self, outgoing: &Outgoing<'_>) -> u64 {
        let added = outgoing.datagrams() * (self.overhead.0 + self.overhead.1);
        (outgoing.contents().len() + added) as u64
    }
}

/// Sends what is ready. If the socket has no room, the next datagrams of one length wait in memory of their own, if
/// there is any; the rest is treated as lost on the way, as is what the system refuses to send.
fn flush(link: &Link, buffer: &mut GsoBuffer, unsent: &mut Unsent) -> Option<SendError> {
    let shared = &link.shared;
    let transmits = buffer.transmits(shared.to_socket_family(link.peer()), link.local());
    let (lost, failed) = match shared.sender.try_send_many(&transmits) {
        Ok(sent) if sent < buffer.datagrams() => {
            let rest = buffer.rest(sent);
            let kept = match unsent {
                // The socket has been full since the flush before.
                Some(_) => None,
                None => shared.pool.try_copy_from_slice(rest.contents).ok(),
            };
            let lost = match kept {
                Some(kept) => {
                    *unsent = Some((kept, rest.segment_size));
                    shared.push_blocked(link.place);
                    rest.datagrams_behind
                }
                None => buffer.datagrams() - sent,
            };
            (lost, None)
        }
        Ok(_) => (0, None),
        Err(error) => (buffer.datagrams() - error.sent(), Some(error)),
    };
    drop(transmits);
    if lost > 0 {
        shared.table().stats.send_errors += lost as u64;
    }
    buffer.clear();
    failed
}
