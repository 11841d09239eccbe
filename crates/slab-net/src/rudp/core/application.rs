//! What the application does with a session: it sends and writes, receives and reads.

use super::super::error::{CloseReason, SendError, Unsent};
use super::super::wire::HEADER_BYTES;
use super::receive::BatchBuffer;
use super::{MAX_FRAGMENTS, Session};
use crate::packet::{Packet, PacketBuf};
use slab_core::AllocError;

impl Session {
    /// Takes a message for sending. Without a copy if it is no longer than a segment, is the only
    /// handle to a chunk of its size, and has 24 bytes of headroom for the header.
    ///
    /// # Errors
    /// Gives the message back, with the reason.
    pub fn send(&mut self, message: Packet) -> Result<(), Unsent> {
        match self.check_message(message.len()) {
            Ok(segments) => self.push_message(message, segments),
            Err(reason) => Err(Unsent {
                packet: message,
                reason,
            }),
        }
    }

    /// As [`send`](Self::send), of a copy.
    ///
    /// # Errors
    /// Why it was not taken.
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
        let segments = len.div_ceil(self.config.mss());
        let max = if self.config.stream {
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

    fn push_message(&mut self, message: Packet, segments: u32) -> Result<(), Unsent> {
        let message = if segments == 1 {
            match message.try_into_mut() {
                Ok(message) => match self.send.blocks.adopt(message) {
                    Ok(place) => {
                        self.starved = false;
                        self.send.push(place, 0);
                        return Ok(());
                    }
                    Err(message) => message.freeze(),
                },
                Err(message) => message,
            }
        } else {
            message
        };
        self.push_copy(&message, segments).map_err(|reason| Unsent {
            packet: message,
            reason,
        })
    }

    fn push_copy(&mut self, message: &[u8], segments: u32) -> Result<(), SendError> {
        self.starved = false;
        let mut rest = message;
        for frg in (0..segments).rev() {
            let (payload, behind) = rest.split_at(rest.len().min(self.config.mss()));
            rest = behind;
            let more = framed(rest.len(), self.config.mss());
            let Some(place) = self.send.blocks.push(payload, more, &self.pool) else {
                self.send.take_back(segments - 1 - frg);
                return Err(self.lacks_memory());
            };
            let frg = if self.config.stream { 0 } else { frg as u8 };
            self.send.push(place, frg);
        }
        Ok(())
    }

    /// There is no memory to send from; or not for an address that is not proved, until it is.
    fn lacks_memory(&mut self) -> SendError {
        if !self.path.validated {
            return SendError::Blocked;
        }
        self.starved = !self.send.is_empty();
        SendError::NoMemory
    }

    /// Takes bytes for sending, without boundaries; returns how many, at least one. For sessions
    /// [in stream mode](super::super::SessionConfig::stream).
    ///
    /// # Errors
    /// Why not even one was taken. An empty slice is taken as it is.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, SendError> {
        if let Some(reason) = self.send_closed() {
            return Err(SendError::Closed(reason));
        }
        let mss = self.config.mss();
        self.starved = false;
        let mut taken = self.send.extend_last(bytes, mss);
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            if self.send.room() == 0 {
                break;
            }
            let (payload, behind) = rest.split_at(rest.len().min(mss));
            let more = framed(behind.len(), mss);
            let Some(place) = self.send.blocks.push(payload, more, &self.pool) else {
                let reason = self.lacks_memory();
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

    /// The next message, in the order they were sent; `None` if none is here in full. Without a
    /// copy if it came in one segment; then it is a slice of the buffer it arrived in, which
    /// [`Packet::compact`] frees if it is to be kept.
    ///
    /// A longer one is joined in one buffer of the pool; if the pool has none now, the message stays
    /// and this is `None` too, while [`has_message`](Self::has_message) is true. One above the pool's
    /// largest size class is joined on the heap; where the pool's
    /// [heap limit](crate::PacketPoolBuilder::heap_limit) does not allow that, the session ends:
    /// [`CloseReason::MessageTooLong`]. [`recv_segments`](Self::recv_segments) does without any of it.
    pub fn recv(&mut self) -> Option<Packet> {
        let (segments, bytes) = self.receive.front()?;
        if segments == 1 {
            return self.pop().map(|(packet, _)| packet);
        }
        let buf = match self.pool.try_alloc_or_larger(bytes, usize::MAX) {
            Ok(buf) => buf,
            Err(AllocError::TooLarge { .. }) => {
                let Some(buf) = self.pool.try_from_heap(bytes) else {
                    self.reset(CloseReason::MessageTooLong);
                    return None;
                };
                buf
            }
            Err(_) => return None,
        };
        self.recv_into(buf)
    }

    /// The length of the next message, in bytes, if it is here in full.
    pub(in super::super) fn next_message_bytes(&self) -> Option<usize> {
        self.receive.front().map(|(_, bytes)| bytes)
    }

    /// As [`recv`](Self::recv), joined in this buffer; `None` if that is too small.
    pub(in super::super) fn recv_into(&mut self, mut buf: PacketBuf) -> Option<Packet> {
        let (segments, bytes) = self.receive.front()?;
        if bytes > buf.capacity() {
            return None;
        }
        for _ in 0..segments {
            if let Some((segment, _)) = self.pop() {
                buf.extend_from_slice(&segment);
            }
        }
        Some(buf.freeze())
    }

    /// Appends the segments of the next message to `to`, and returns how many they are; `None` if
    /// none is here in full.
    pub fn recv_segments(&mut self, to: &mut Vec<Packet>) -> Option<usize> {
        let (segments, _) = self.receive.front()?;
        for _ in 0..segments {
            to.extend(self.pop().map(|(packet, _)| packet));
        }
        Some(segments)
    }

    /// The next bytes in order, whatever the boundaries: for a peer in stream mode.
    pub fn read(&mut self) -> Option<Packet> {
        self.pop().map(|(packet, _)| packet)
    }

    fn pop(&mut self) -> Option<(Packet, bool)> {
        let popped = self.receive.pop();
        self.stuck = None;
        self.receive
            .make_room(&self.pool, &mut BatchBuffer::default());
        self.consider_telling();
        self.give_window_back();
        popped
    }

    /// Can a message be [received](Self::recv)?
    #[must_use]
    pub fn has_message(&self) -> bool {
        self.receive.complete() > 0
    }

    /// Can bytes be [read](Self::read)?
    #[must_use]
    pub fn has_bytes(&self) -> bool {
        self.receive.readable() > 0
    }

    /// How many more segments would be taken for sending.
    #[must_use]
    pub fn send_room(&self) -> usize {
        self.send.room() as usize
    }

    /// Is there room enough that a waiting sender should go on: half of what may wait beyond the
    /// window?
    pub(in super::super) fn wants_more(&self) -> bool {
        let beyond = self.send.limit() - self.config.send_window;
        self.send.room() >= beyond.div_ceil(2) || self.send.is_empty()
    }

    /// Is everything acknowledged that was taken for sending?
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.send.is_empty()
    }
}

/// Bytes that `len` bytes of payload take with their headers.
fn framed(len: usize, mss: usize) -> usize {
    len + len.div_ceil(mss) * HEADER_BYTES
}
