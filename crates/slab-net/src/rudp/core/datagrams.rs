//! Unreliable datagrams beside the reliable segments, between two ends of this library.
//!
//! Each is a segment with a command of its own and the token that the peer sent in its WASK, so that nobody else
//! can slip one in. Datagrams share the session's memory budget and wait in two queues: until the next call to the
//! kernel, and until the application reads them. A full send queue refuses the newest datagram; a full receive queue
//! drops the oldest, because unreliable data is wanted soon or not at all.

use super::super::budget::Account;
use super::super::error::{SendError, Unsent};
use super::super::wire::{Command, Header};
use super::output::ControlWriter;
use super::{Phase, Session};
use crate::packet::{Packet, PacketPool};
use std::collections::VecDeque;

/// The most datagrams that wait to be sent.
const MAX_UNSENT: usize = 64;
/// So many that wait to be read may take the last of the budget; the others leave a fourth of it. An application may
/// never read any, and a few peers would take what new sessions and all that is sent need. Four for each window of 32
/// segments are less than the eighth that windows leave.
const MAX_OF_LAST: usize = 4;

/// The datagrams of a session; allocated with the first one.
#[derive(Debug)]
pub(super) struct Datagrams {
    unsent: VecDeque<(Packet, usize)>,
    received: VecDeque<(Packet, usize)>,
    /// The most datagrams that wait to be read: as many as the receive window has segments, because one
    /// read of the socket may bring a burst of them before the reader runs.
    max_unread: usize,
    account: Account,
    pub(super) dropped: u64,
}

impl Datagrams {
    fn new(max_unread: usize, account: Account) -> Self {
        Self {
            unsent: VecDeque::new(),
            received: VecDeque::new(),
            max_unread,
            account,
            dropped: 0,
        }
    }

    /// Bytes of pool memory in use, all of them reserved.
    pub(super) fn bytes(&self) -> usize {
        self.account.bytes()
    }

    fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Keeps a datagram for the application. If the queue is full, the oldest makes room.
    fn push_received(&mut self, packet: Packet, slot: usize, pool: &PacketPool) {
        let Some((packet, bytes)) = copy_if_shared(packet, slot, pool) else {
            self.dropped += 1;
            return;
        };
        if self.received.len() == self.max_unread {
            self.drop_oldest();
        }
        // One without contents takes none of it.
        let reserved = match bytes == 0 || self.received.len() < MAX_OF_LAST {
            true => self.account.reserve(bytes),
            false => self.account.reserve_spare(bytes),
        };
        if !reserved {
            self.dropped += 1;
            return;
        }
        self.received.push_back((packet, bytes));
    }

    fn drop_oldest(&mut self) {
        if let Some((_, bytes)) = self.received.pop_front() {
            self.account.release(bytes);
            self.dropped += 1;
        }
    }

    /// Drops all datagrams.
    pub(super) fn clear(&mut self) {
        self.unsent = VecDeque::new();
        self.dropped += self.received.len() as u64;
        self.received = VecDeque::new();
        self.account.release(self.account.bytes());
    }

    /// Frees the heap memory of queues that are empty.
    pub(super) fn shrink(&mut self) {
        for queue in [&mut self.unsent, &mut self.received] {
            if queue.is_empty() {
                *queue = VecDeque::new();
            }
        }
    }
}

/// Returns the packet, copied if it is a part of something larger, and the bytes that it keeps in use.
fn copy_if_shared(packet: Packet, slot: usize, pool: &PacketPool) -> Option<(Packet, usize)> {
    if packet.is_empty() {
        return Some((Packet::new(), 0));
    }
    let bytes = packet.occupied_bytes();
    if bytes <= slot {
        return Some((packet, bytes));
    }
    let copy = pool.try_copy_from_slice(&packet).ok()?;
    let bytes = copy.occupied_bytes();
    Some((copy, bytes))
}

impl Session {
    /// Returns the length of the longest [datagram](Self::send_datagram), in bytes.
    #[must_use]
    pub fn max_datagram(&self) -> usize {
        self.context.config.mss()
    }

    /// Sends a datagram beside the reliable messages: once, at the next opportunity, in no order. Nobody learns
    /// what becomes of it. Like a UDP datagram it may be lost, or arrive more than once if the network, or somebody
    /// who records it, repeats it. Only a peer that runs this library accepts it
    /// ([`is_peer_ours`](Self::is_peer_ours), known after a round trip).
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{MemoryBudget, Session, SessionConfig, Side, Time};
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let budget = MemoryBudget::new(8 << 20);
    /// # let open = |side| Session::open(7, &SessionConfig::fast(), side, &pool, &budget, 1 << 32, Time::ZERO);
    /// # let [mut here, mut there] = [open(Side::Client).unwrap(), open(Side::Server).unwrap()];
    /// # let talk = |from: &mut Session, to: &mut Session| {
    /// #     let mut scratch = [0; 2048];
    /// #     while let Some(outgoing) = from.poll_transmit(Time::ZERO, &mut scratch, 1) {
    /// #         to.handle_datagram(Time::ZERO, pool.copy_from_slice(outgoing.contents())).unwrap();
    /// #     }
    /// # };
    /// talk(&mut here, &mut there);
    /// talk(&mut there, &mut here);
    /// talk(&mut here, &mut there); // now the two know each other
    /// let position = vec![7; here.max_datagram()];
    /// here.send_datagram(pool.try_copy_from_slice(&position)?)?;
    /// talk(&mut here, &mut there);
    /// assert!(there.has_datagram());
    /// assert_eq!(there.recv_datagram().unwrap(), position);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Gives the datagram back, with the reason.
    pub fn send_datagram(&mut self, datagram: Packet) -> Result<(), Unsent> {
        let bytes = datagram.occupied_bytes();
        if let Err(error) = self.admit_datagram(datagram.len(), bytes) {
            let packet = datagram;
            return Err(Unsent { packet, error });
        }
        // An empty one is not paid for, and so must keep no chunk.
        let kept = if bytes == 0 { Packet::new() } else { datagram };
        self.datagrams_mut().unsent.push_back((kept, bytes));
        Ok(())
    }

    /// Can a datagram be sent that keeps so many bytes of memory in use? Then these are reserved.
    fn admit_datagram(&mut self, len: usize, bytes: usize) -> Result<(), SendError> {
        if let Some(reason) = self.send_closed() {
            return Err(SendError::Closed(reason));
        }
        if self.peer.is_foreign() {
            return Err(SendError::UnsupportedByPeer);
        }
        if !self.peer.believes_us() {
            return Err(SendError::NotReady);
        }
        let max = self.max_datagram();
        if len > max {
            return Err(SendError::DatagramTooLong { max });
        }
        let datagrams = self.datagrams_mut();
        if datagrams.unsent.len() == MAX_UNSENT {
            return Err(SendError::Blocked);
        }
        if !datagrams.account.reserve(bytes) {
            return Err(SendError::NoMemory);
        }
        Ok(())
    }

    /// Returns the oldest datagram that has arrived and was not read, if there is one: never once the session has
    /// ended. A datagram that arrives twice is read twice: an application that minds has to number them.
    ///
    /// As many wait to be read as the [receive window](super::super::SessionConfig::window) has segments. Beyond that
    /// each new one takes the place of the oldest, which is [counted](super::super::SessionStats::dropped_unreliable), as is
    /// one for which there is no memory: all but four leave a fourth of the budget to others.
    pub fn recv_datagram(&mut self) -> Option<Packet> {
        let datagrams = self.datagrams.as_deref_mut()?;
        let (packet, bytes) = datagrams.received.pop_front()?;
        datagrams.account.release(bytes);
        Some(packet)
    }

    /// Returns `true` if a datagram can be [read](Self::recv_datagram).
    #[must_use]
    pub fn has_datagram(&self) -> bool {
        let datagrams = self.datagrams.as_deref();
        datagrams.is_some_and(|datagrams| !datagrams.received.is_empty())
    }

    fn datagrams_mut(&mut self) -> &mut Datagrams {
        let context = &self.context;
        self.datagrams.get_or_insert_with(|| {
            let max_unread = context.config.recv_window as usize;
            Box::new(Datagrams::new(max_unread, context.budget.account()))
        })
    }

    /// A datagram has come, already checked. If it is `transient`, only a copy is kept.
    pub(super) fn on_datagram(&mut self, packet: Packet, transient: bool) {
        self.stats.received_unreliable += 1;
        if self.phase != Phase::Open {
            self.datagrams_mut().dropped += 1;
            return;
        }
        self.peer.asked_since_data = false;
        let slot = if transient { 0 } else { self.receive.slot() };
        let pool = self.context.pool.clone();
        self.datagrams_mut().push_received(packet, slot, &pool);
    }

    /// Does a datagram wait that only pacing holds back?
    pub(super) fn has_datagram_to_send(&self) -> bool {
        let datagrams = self.datagrams.as_deref();
        datagrams.is_some_and(Datagrams::has_unsent) && self.allowance() >= self.context.config.mtu
    }

    /// Writes waiting datagrams, as far as there is room.
    pub(super) fn write_datagrams(&mut self, to: &mut ControlWriter<'_>) {
        while self.has_datagram_to_send() && self.is_datagram_next() {
            let header = self.header(Command::Datagram);
            let Some(datagrams) = self.datagrams.as_deref_mut() else {
                break;
            };
            let next = datagrams.unsent.front();
            if !next.is_some_and(|(packet, _)| to.has_room_for(packet.len())) {
                break;
            }
            let Some((packet, bytes)) = datagrams.unsent.pop_front() else {
                break;
            };
            datagrams.account.release(bytes);
            let header = Header {
                ts: self.peer.token,
                len: packet.len() as u32,
                ..header
            };
            to.put(header, &packet);
            self.stats.sent_unreliable += 1;
            if self.rate.is_some() {
                self.pacer.take();
                self.last_paced_was_datagram = true;
            }
        }
    }

    /// With pacing, datagrams and segments take turns: one datagram, then what is sent of the segments in one piece.
    fn is_datagram_next(&self) -> bool {
        let segment_waits =
            || self.last_paced_was_datagram && self.next_unpaced_segment().is_some();
        self.rate.is_none() || (self.pacer.allows() && !segment_waits())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{MemoryBudget, SessionConfig, Side, Time};
    use super::*;

    /// A session whose peer is known to run this library.
    fn session(pool: &PacketPool) -> Session {
        let (config, side) = (SessionConfig::fast(), Side::Client);
        let budget = MemoryBudget::new(8 << 20);
        let session = Session::open(7, &config, side, pool, &budget, 9 << 32, Time::ZERO);
        let mut session = session.unwrap();
        session.peer.is_ours = true;
        session.peer.has_token = true;
        session
    }

    /// The capacities of both queues.
    fn capacities(session: &Session) -> (usize, usize) {
        let datagrams = session.datagrams.as_deref().unwrap();
        (datagrams.unsent.capacity(), datagrams.received.capacity())
    }

    #[test]
    fn an_idle_session_keeps_no_memory_for_queues_of_datagrams_but_what_is_in_them() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let mut session = session(&pool);
        let keepalive = session.context.config.keepalive;
        let datagram = || pool.try_copy_from_slice(b"datagram").unwrap();
        session.send_datagram(datagram()).unwrap();
        session.on_datagram(datagram(), false);
        session.handle_timeout(Time::ZERO + keepalive);
        let (unsent, received) = capacities(&session);
        assert!(unsent > 0 && received > 0);
        let mut scratch = [0; 2048];
        let now = session.now;
        while session.poll_transmit(now, &mut scratch, 1).is_some() {}
        assert!(session.recv_datagram().is_some());
        assert_eq!(session.stats().sent_unreliable, 1);
        assert_eq!(capacities(&session), (unsent, received));
        session.handle_timeout(now + keepalive);
        assert_eq!(capacities(&session), (0, 0));
        // Nor does one whose peer asks twice, and says nothing else.
        session.send_datagram(datagram()).unwrap();
        session.on_datagram(datagram(), false);
        session.shrink_if_both_idle();
        let now = session.now;
        while session.poll_transmit(now, &mut scratch, 1).is_some() {}
        assert!(session.recv_datagram().is_some());
        let (unsent, received) = capacities(&session);
        assert!(unsent > 0 && received > 0);
        session.shrink_if_both_idle();
        assert_eq!(capacities(&session), (0, 0));
    }

    #[test]
    fn an_empty_datagram_that_is_queued_keeps_no_chunk() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let mut session = session(&pool);
        let before = pool.slab().stats().in_use();
        session
            .send_datagram(pool.try_alloc(1000).unwrap().freeze())
            .unwrap();
        assert_eq!(pool.slab().stats().in_use(), before);
    }
}
