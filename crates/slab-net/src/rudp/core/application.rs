//! What the application does with a session: send and write, receive and read.

use super::super::error::{SendError, Unsent};
use super::super::wire::HEADER_BYTES;
use super::receive::BatchBuffer;
use super::{MAX_FRAGMENTS, Session};
use crate::packet::{Packet, PacketBuf};
use slab_core::AllocError;

impl Session {
    /// Queues a message for sending. Nothing is copied if the message fits in one segment, is the only handle to a
    /// chunk of its size, and has 24 bytes of headroom for the header.
    ///
    /// # Errors
    /// Gives the message back, with the reason.
    pub fn send(&mut self, mut message: Packet) -> Result<(), Unsent> {
        self.send_from(&mut message).map_err(|error| Unsent {
            packet: message,
            error,
        })
    }

    /// As [`send`](Self::send), but leaves a message that was copied: who drops it may run foreign code, its owner's.
    pub(in super::super) fn send_from(&mut self, message: &mut Packet) -> Result<(), SendError> {
        let segments = self.check_message(message.len())?;
        if segments == 1 {
            let unshared = core::mem::take(message).try_into_mut();
            let alone = self.send.is_empty();
            let adopted = unshared.map(|unshared| self.send.blocks.adopt(unshared, alone));
            *message = match adopted {
                Ok(Ok(place)) => {
                    self.lacks_send_memory = false;
                    self.send.push(place, 0);
                    return Ok(());
                }
                Ok(Err(refused)) => refused.freeze(),
                Err(shared) => shared,
            };
        }
        self.push_copy(message, segments)
    }

    /// As [`send`](Self::send), but copies the message.
    ///
    /// # Errors
    /// Says why the message was not accepted.
    pub fn send_slice(&mut self, message: &[u8]) -> Result<(), SendError> {
        let segments = self.check_message(message.len())?;
        self.push_copy(message, segments)
    }

    fn check_message(&self, len: usize) -> Result<u32, SendError> {
        if let Some(reason) = self.send_closed() {
            return Err(SendError::Closed(reason));
        }
        if len == 0 {
            return Err(SendError::Empty);
        }
        let segments = len.div_ceil(self.context.config.mss());
        let max = if self.context.config.stream {
            self.send.limit()
        } else {
            self.peer.largest_window.min(MAX_FRAGMENTS)
        };
        if segments > max as usize {
            return Err(SendError::TooLong {
                segments,
                max: max as usize,
            });
        }
        if segments as u32 > self.send.room() {
            return Err(SendError::Blocked);
        }
        Ok(segments as u32)
    }

    fn push_copy(&mut self, message: &[u8], segments: u32) -> Result<(), SendError> {
        self.lacks_send_memory = false;
        let (mss, stream) = (self.context.config.mss(), self.context.config.stream);
        let alone = self.send.is_empty();
        let mut rest = message;
        for frg in (0..segments).rev() {
            let (payload, behind) = rest.split_at(rest.len().min(mss));
            rest = behind;
            let (blocks, more) = (&mut self.send.blocks, framed_bytes(rest.len(), mss));
            let Some(place) = blocks.push(payload, more, alone, &self.context.pool) else {
                self.send.take_back(segments - 1 - frg);
                return Err(self.send_memory_error(framed_bytes(message.len(), mss)));
            };
            let frg = if stream { 0 } else { frg as u8 };
            self.send.push(place, frg);
        }
        Ok(())
    }

    /// There is no memory to send so many bytes from. While the peer's address is not proved, that means `Blocked`: the
    /// proof lifts the limit.
    fn send_memory_error(&mut self, bytes: usize) -> SendError {
        if !self.path.validated {
            return SendError::Blocked;
        }
        self.lacks_send_memory = !self.send.is_empty();
        // Unless it is the pool that has nothing. Chunks are up to twice as large as what is in them.
        if self.send.is_empty() && self.holds_surplus() && !self.send.blocks.has_budget(2 * bytes) {
            // That may be what is missing, and the peers of others may wait for it.
            self.shrink_receive();
        }
        SendError::NoMemory
    }

    /// Would the budget have room for these bytes if no other session had any of it? Otherwise nobody can make room for
    /// them.
    pub(in super::super) fn fits_budget_alone(&self, bytes: usize) -> bool {
        let (context, first) = (&self.context, self.receive.first_reservation());
        let segment = HEADER_BYTES + bytes.min(context.config.mss()) + context.pool.room();
        let chunk = context.pool.slab().size_classes().round_up(segment);
        chunk.is_some_and(|chunk| first + chunk <= context.budget.limit())
    }

    /// Queues bytes for sending, without boundaries, and returns how many it took, at least one. For sessions
    /// [in stream mode](super::super::SessionConfig::stream).
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{MemoryBudget, SendError, Session, SessionConfig, Side, Time};
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
    /// let mut rest = &[7; 1_000_000][..];
    /// while let Ok(taken @ 1..) = here.write(rest) {
    ///     rest = &rest[taken..];
    /// }
    /// assert_eq!((here.write(rest), here.send_room()), (Err(SendError::Blocked), 0)); // the rest later
    /// talk(&mut here, &mut there);
    /// let mut bytes = 0;
    /// while there.has_bytes() {
    ///     bytes += there.read().map_or(0, |packet| packet.len());
    /// }
    /// assert!(0 < bytes && bytes <= 1_000_000 - rest.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Says why not even one byte was accepted. An empty slice is `Ok(0)`, unless the session accepts nothing any more.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, SendError> {
        if let Some(reason) = self.send_closed() {
            return Err(SendError::Closed(reason));
        }
        let mss = self.context.config.mss();
        self.lacks_send_memory = false;
        let mut taken = self.send.extend_last(bytes, mss);
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            if self.send.room() == 0 {
                break;
            }
            let (payload, behind) = rest.split_at(rest.len().min(mss));
            let alone = self.send.is_empty();
            let (blocks, more) = (&mut self.send.blocks, framed_bytes(behind.len(), mss));
            let Some(place) = blocks.push(payload, more, alone, &self.context.pool) else {
                let reason = self.send_memory_error(framed_bytes(payload.len(), mss));
                if taken == 0 {
                    return Err(reason);
                }
                break;
            };
            self.send.push(place, 0);
            taken += payload.len();
        }
        if taken == 0 && !bytes.is_empty() {
            return Err(SendError::Blocked);
        }
        Ok(taken)
    }

    /// Returns the next message, in the order sent, or `None` if none is complete. A message of one segment is not
    /// copied: it is a slice of the buffer it arrived in, which [`Packet::compact`] frees if the message is to be
    /// kept.
    ///
    /// A longer message is joined in one buffer of the pool. If the pool has none now, the message stays queued and
    /// this returns `None`, while [`has_message`](Self::has_message) is `true`. A message above the pool's largest
    /// size class is joined on the heap; if the pool's [heap limit](crate::PacketPoolBuilder::max_heap_memory) does not
    /// allow that, the session ends with [`MessageTooLong`](super::super::CloseReason::MessageTooLong).
    /// [`recv_segments`](Self::recv_segments) needs no such buffer.
    pub fn recv(&mut self) -> Option<Packet> {
        let (segments, bytes) = self.receive.front_message()?;
        if segments == 1 {
            return self.pop();
        }
        if bytes == 0 {
            // Needs no buffer, and a reader cannot wait for one of no bytes.
            for _ in 0..segments {
                self.pop();
            }
            return Some(Packet::new());
        }
        let buf = match self.context.pool.try_alloc_or_larger(bytes, usize::MAX) {
            Ok(buf) => buf,
            Err(AllocError::TooLarge { .. }) => {
                let Some(buf) = self.context.pool.try_from_heap(bytes) else {
                    self.refuse_message();
                    return None;
                };
                buf
            }
            Err(_) => return None,
        };
        self.recv_into(buf)
    }

    /// The length of the next message in bytes, if it is complete.
    pub(in super::super) fn next_message_bytes(&self) -> Option<usize> {
        self.receive.front_message().map(|(_, bytes)| bytes)
    }

    /// As [`recv`](Self::recv), joined in this buffer; `None` if the buffer is too small.
    pub(in super::super) fn recv_into(&mut self, mut buf: PacketBuf) -> Option<Packet> {
        let (segments, bytes) = self.receive.front_message()?;
        if bytes > buf.capacity() {
            return None;
        }
        for _ in 0..segments {
            if let Some(segment) = self.pop() {
                buf.extend_from_slice(&segment);
            }
        }
        Some(buf.freeze())
    }

    /// Appends the segments of the next message to `to` and returns their number, or `None` if no message is
    /// complete.
    pub fn recv_segments(&mut self, to: &mut Vec<Packet>) -> Option<usize> {
        let (segments, _) = self.receive.front_message()?;
        for _ in 0..segments {
            to.extend(self.pop());
        }
        Some(segments)
    }

    /// Returns the next bytes in order, if some are here, regardless of message boundaries: for a peer in stream mode.
    pub fn read(&mut self) -> Option<Packet> {
        self.pop()
    }

    fn pop(&mut self) -> Option<Packet> {
        let popped = self.receive.pop();
        self.message_wait = None;
        self.receive
            .make_room(&self.context.pool, &mut BatchBuffer::default());
        self.schedule_window_update();
        self.release_window();
        popped
    }

    /// Returns `true` if a message can be [received](Self::recv).
    #[must_use]
    pub fn has_message(&self) -> bool {
        self.receive.complete() > 0
    }

    /// Returns `true` if bytes can be [read](Self::read).
    #[must_use]
    pub fn has_bytes(&self) -> bool {
        self.receive.readable() > 0
    }

    /// Is the peer to be asked for its window, as at first, or told of ours, as when a reader has made room?
    pub(in super::super) fn owes_window_segment(&self) -> bool {
        self.send_wask || self.send_wins
    }

    /// Returns for how many more segments the send queue has room. There may be less memory, as before the peer has
    /// proved its address: [`send`](Self::send) says so.
    #[must_use]
    pub fn send_room(&self) -> usize {
        self.send.room() as usize
    }

    /// Is there enough room to wake a waiting sender: half of what may be queued beyond the window, or all?
    pub(in super::super) fn has_room_to_wake_senders(&self) -> bool {
        let beyond = self.send.limit() - self.context.config.send_window;
        self.send.room() >= beyond.div_ceil(2) || self.send.is_empty()
    }

    /// Returns `true` if everything queued for sending has been acknowledged: never once the session has ended without
    /// that. [Datagrams](Self::send_datagram) do not count.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.send.is_empty() && !self.undelivered
    }
}

/// The bytes that `len` bytes of payload take, headers included.
fn framed_bytes(len: usize, mss: usize) -> usize {
    len + len.div_ceil(mss) * HEADER_BYTES
}
