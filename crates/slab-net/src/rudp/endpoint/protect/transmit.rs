//! The way out, from a session to the socket.

use super::super::link::{Link, MAX_BURST, NO_ROOM_PAUSE, Unsent, send_again_if_refused};
use super::Protection;
use super::gso_buffer::{GsoBuffer, with_gso_buffer};
use crate::rudp::core::Session;
use crate::rudp::time::Time;
use crate::udp::{SendError, UdpSender};
use arrayvec::ArrayVec;
use core::time::Duration;
use std::net::SocketAddr;

impl Protection {
    /// Sends what a session has to send, until nothing is left or the socket has no room. Returns after which time to try
    /// again, if no timer of the session may be set although something is left: at once if this thread can no longer
    /// send.
    pub(in super::super) fn transmit(
        &self,
        link: &Link,
        session: &mut Session,
        unsent: &mut Unsent,
        now: Time,
        scratch: &mut [u8],
    ) -> Option<Duration> {
        let mut no_room = false;
        // Protected, they are as long as the path takes.
        let most = link.shared.most_kept / link.shared.config.session.mtu;
        let had_buffer = with_gso_buffer(link.shared.most_kept, |buffer| {
            while unsent.is_none() && !no_room {
                let parity = session.is_validated();
                let Some(outgoing) = session.poll_transmit(now, scratch, most.clamp(1, MAX_BURST))
                else {
                    return;
                };
                let mut refused = false;
                let mut send = |buffer: &mut GsoBuffer| {
                    no_room |= !flush(link, buffer, unsent, &mut refused);
                };
                self.seal(link.peer(), now, &outgoing, parity, buffer, &mut send);
                send(buffer);
                // Goes on after any error: see `Link::transmit_plain`.
                if refused {
                    session.refused();
                }
            }
        });
        match had_buffer {
            false => Some(Duration::ZERO),
            true => no_room.then_some(NO_ROOM_PAUSE),
        }
    }

    /// Sends a datagram that belongs to no session, and returns how many that were: none if the socket has no room. It is
    /// not a shard, as shards are numbered; peers accept it as it is. Called by the endpoint's task, which can always
    /// send.
    pub(in super::super) fn send_sessionless(
        &self,
        sender: &UdpSender,
        to: SocketAddr,
        from: Option<SocketAddr>,
        datagram: &[u8],
    ) -> Result<usize, SendError> {
        let mut sent = Ok(0);
        with_gso_buffer(0, |buffer| {
            let (front, behind) = self.shard_overhead();
            self.renew_nonces_after_fork();
            let sealed = buffer.push(front + datagram.len() + behind, |_| ());
            sealed[front..front + datagram.len()].copy_from_slice(datagram);
            self.encrypt(sealed);
            let mut transmits = ArrayVec::new();
            buffer.write_transmits(to, from, &mut transmits);
            sent = sender.try_send_many(&transmits);
        });
        sent
    }

    /// Bytes on the wire around each datagram sent, and around each received: of the latter, what every datagram has,
    /// as not all of them are shards. Parity is not sent before the peer has proved its address.
    pub(in super::super) fn overhead_bytes(&self) -> (u8, u8) {
        let ((front, behind), (around, after)) = (self.overhead, self.shard_overhead());
        ((front + behind) as u8, (around + after) as u8)
    }
}

/// Sends what is ready. If the socket has no room, the next datagrams of one length wait in memory of their own, if
/// there is any; the rest is treated as lost on the way, as is what the system refuses to send. Returns `false` if there
/// was neither room nor memory.
fn flush(link: &Link, buffer: &mut GsoBuffer, unsent: &mut Unsent, refused: &mut bool) -> bool {
    let shared = &link.shared;
    let mut transmits = ArrayVec::new();
    let to = shared.to_socket_family(link.peer());
    buffer.write_transmits(to, link.local(), &mut transmits);
    let sent = send_again_if_refused(refused, || shared.sender.try_send_many(&transmits));
    let mut had_room = true;
    let (lost, error) = match sent {
        Ok(sent) if sent < buffer.datagrams() => {
            let rest = buffer.rest(sent);
            // If something is kept already, the socket has been full since the flush before.
            let (was_full, left) = (unsent.is_some(), buffer.datagrams() - sent);
            if !was_full && link.keep(unsent, rest.contents, rest.segment_size) {
                (left - rest.datagrams, None)
            } else {
                had_room = was_full;
                (left, None)
            }
        }
        Ok(_) => (0, None),
        Err(error) => (buffer.datagrams() - error.sent(), Some(error)),
    };
    drop(transmits);
    if lost > 0 {
        link.count_lost(lost, error);
    }
    buffer.clear();
    had_room
}

#[cfg(all(test, target_os = "linux", feature = "aes-gcm"))]
mod tests {
    use super::super::super::EndpointConfig;
    use super::*;
    use crate::packet::PacketPool;
    use crate::rudp::budget::MemoryBudget;
    use crate::rudp::crypto::{AesGcm, NONCE_BYTES};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The child may have nothing else to send.
    #[tokio::test]
    #[allow(unsafe_code)]
    async fn no_nonce_of_an_answer_without_a_session_repeats_across_a_fork() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let config = EndpointConfig::default().aes_gcm(AesGcm::new(&[7; 16]).unwrap());
        let protection = Protection::new(&config, &pool, &MemoryBudget::new(0));
        let protection = protection.unwrap().unwrap();
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = peer.local_addr().unwrap();
        let sender = UdpSender::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let send = || drop(protection.send_sessionless(&sender, to, None, b"answer"));
        // SAFETY: the child only sends, and exits; the C library keeps its allocator usable in the child of a fork,
        // and no other thread uses the socket or the key.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let done = catch_unwind(AssertUnwindSafe(send));
            // SAFETY: `_exit` only ends the process.
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        let mut status = -1;
        // SAFETY: `status` is valid for the call's write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        send();
        let [theirs, ours] = [(); 2].map(|()| {
            let mut datagram = [0; 100];
            peer.recv(&mut datagram).unwrap();
            datagram[..NONCE_BYTES].to_vec()
        });
        assert_ne!(theirs, ours);
    }
}
