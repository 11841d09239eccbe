//! The wire format: what a datagram of the KCP protocol holds, parsed and written.
//!
//! A datagram is one or more segments in a row. A segment is a header of [`HEADER_BYTES`], little-endian, and its
//! payload:
//!
//! | offset | field | bytes | |
//! |---|---|---|---|
//! | 0 | `conv` | 4 | the conversation: the same in every segment of a session |
//! | 4 | `cmd` | 1 | see [`Command`] |
//! | 5 | `frg` | 1 | fragments of the message that follow this one; 0 ends a message |
//! | 6 | `wnd` | 2 | segments that the sender of this one can take, counted from `una` |
//! | 8 | `ts` | 4 | when it was sent; opaque to the peer, which echoes it in its ACK |
//! | 12 | `sn` | 4 | sequence number of a PUSH, or of the PUSH that an ACK is for |
//! | 16 | `una` | 4 | every PUSH before this one has been received |
//! | 20 | `len` | 4 | bytes of payload |

use super::error::Rejection;
use core::ops::Range;

/// The length of a segment's header, in bytes.
pub const HEADER_BYTES: usize = 24;

/// The `frg` of this library's WASK and WINS. Other implementations send 0 and ignore it.
pub(super) const OURS: u8 = 1;
/// The `frg` of a WINS whose sender, a server, has not yet seen the proof of the address that it sends to.
pub(super) const OURS_UNPROVED: u8 = 2;
/// The `frg` of a server's WINS from then on.
pub(super) const OURS_SERVER: u8 = 3;

/// What a segment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Command {
    /// Carries payload.
    Push = 81,
    /// Acknowledges one PUSH, with its `sn` and its `ts`.
    Ack = 82,
    /// Asks for the peer's window: WASK.
    AskWindow = 83,
    /// Tells the window: WINS, the answer to a WASK.
    TellWindow = 84,
    /// Says that the sender has closed the session. Not part of KCP: sent only to a peer that has shown that it
    /// runs this library (see [`Session`](super::Session)).
    Close = 85,
    /// Carries payload once, unordered. Not part of KCP: sent as [`Close`](Self::Close) is.
    Datagram = 86,
    /// Carries a cookie: from a server that has opened no session yet to a client that is to prove its address
    /// first, and back with the client's next attempt. Not part of KCP: sent only in answer to a WASK that this
    /// library may have sent. Other implementations drop it as an unknown command.
    Cookie = 87,
}

impl Command {
    fn from_wire(cmd: u8) -> Option<Self> {
        match cmd {
            81 => Some(Self::Push),
            82 => Some(Self::Ack),
            83 => Some(Self::AskWindow),
            84 => Some(Self::TellWindow),
            85 => Some(Self::Close),
            86 => Some(Self::Datagram),
            87 => Some(Self::Cookie),
            _ => None,
        }
    }
}

/// The header of a segment; the fields are those of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The conversation.
    pub conv: u32,
    /// What the segment is for.
    pub cmd: Command,
    /// Fragments of the message that follow this one.
    pub frg: u8,
    /// Segments that the sender of this one can take, counted from `una`.
    pub wnd: u16,
    /// When the segment was sent, or the echo of that.
    pub ts: u32,
    /// The sequence number.
    pub sn: u32,
    /// Every PUSH before this one has been received.
    pub una: u32,
    /// Bytes of payload.
    pub len: u32,
}

impl Header {
    /// Writes the header to the front of `to`.
    ///
    /// # Panics
    /// If `to` is shorter than [`HEADER_BYTES`].
    #[inline]
    pub fn encode(&self, to: &mut [u8]) {
        let to: &mut [u8; HEADER_BYTES] = (&mut to[..HEADER_BYTES])
            .try_into()
            .expect("sliced to this length");
        to[0..4].copy_from_slice(&self.conv.to_le_bytes());
        to[4] = self.cmd as u8;
        to[5] = self.frg;
        to[6..8].copy_from_slice(&self.wnd.to_le_bytes());
        to[8..12].copy_from_slice(&self.ts.to_le_bytes());
        to[12..16].copy_from_slice(&self.sn.to_le_bytes());
        to[16..20].copy_from_slice(&self.una.to_le_bytes());
        to[20..24].copy_from_slice(&self.len.to_le_bytes());
    }

    /// Reads a header from the front of `from`. Whether its payload is there, [`segments`] checks.
    ///
    /// ```
    /// # use slab_net::rudp::{Rejection, wire};
    /// use slab_net::rudp::wire::Header;
    ///
    /// # let mut datagram = [0; wire::HEADER_BYTES];
    /// # let header = Header { conv: 7, cmd: wire::Command::Push, frg: 0, wnd: 32, ts: 0, sn: 0, una: 0, len: 0 };
    /// # header.encode(&mut datagram);
    /// // Which session is it for?
    /// assert_eq!(Header::decode(&datagram)?.conv, 7);
    /// assert_eq!(Header::decode(b"noise"), Err(Rejection::TooShort));
    /// # Ok::<(), Rejection>(())
    /// ```
    ///
    /// # Errors
    /// `from` is shorter than [`HEADER_BYTES`], or its command does not exist.
    #[inline]
    pub fn decode(from: &[u8]) -> Result<Self, Rejection> {
        let from: &[u8; HEADER_BYTES] = from.first_chunk().ok_or(Rejection::TooShort)?;
        let word =
            |at: usize| u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]]);
        Ok(Self {
            conv: word(0),
            cmd: Command::from_wire(from[4]).ok_or(Rejection::UnknownCommand)?,
            frg: from[5],
            wnd: u16::from_le_bytes([from[6], from[7]]),
            ts: word(8),
            sn: word(12),
            una: word(16),
            len: word(20),
        })
    }
}

/// Iterates over the segments of a datagram: yields each header, and where in the datagram its payload lies. Stops
/// after the first error.
///
/// ```
/// use slab_net::rudp::Rejection;
/// use slab_net::rudp::wire::{Command, HEADER_BYTES, Header, segments};
///
/// let mut datagram = [0; HEADER_BYTES + 5];
/// Header { conv: 7, cmd: Command::Push, frg: 0, wnd: 32, ts: 0, sn: 0, una: 0, len: 5 }
///     .encode(&mut datagram);
/// datagram[HEADER_BYTES..].copy_from_slice(b"hello");
///
/// let (header, payload) = segments(&datagram).next().unwrap()?;
/// assert_eq!((header.conv, &datagram[payload]), (7, &b"hello"[..]));
///
/// let cut = &datagram[..HEADER_BYTES + 4];
/// assert_eq!(segments(cut).next(), Some(Err(Rejection::LengthBeyondDatagram)));
/// # Ok::<(), Rejection>(())
/// ```
#[inline]
#[must_use]
pub fn segments(datagram: &[u8]) -> Segments<'_> {
    Segments { datagram, at: 0 }
}

/// An iterator over the segments of a datagram, made by [`segments`].
#[derive(Debug, Clone)]
pub struct Segments<'a> {
    datagram: &'a [u8],
    at: usize,
}

impl Iterator for Segments<'_> {
    type Item = Result<(Header, Range<usize>), Rejection>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.datagram.len() - self.at;
        // An empty datagram is malformed, too.
        if rest == 0 && self.at > 0 {
            return None;
        }
        let item = self.read(rest);
        match &item {
            Ok((_, payload)) => self.at = payload.end,
            Err(_) => {
                // Ends the iteration: an empty rest behind the first byte.
                self.datagram = &[0];
                self.at = 1;
            }
        }
        Some(item)
    }
}

impl Segments<'_> {
    #[inline]
    fn read(&self, rest: usize) -> Result<(Header, Range<usize>), Rejection> {
        if rest < HEADER_BYTES && self.at > 0 {
            return Err(Rejection::TrailingBytes);
        }
        let header = Header::decode(&self.datagram[self.at..])?;
        let len = header.len as usize;
        if len > rest - HEADER_BYTES {
            return Err(Rejection::LengthBeyondDatagram);
        }
        let start = self.at + HEADER_BYTES;
        Ok((header, start..start + len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cmd: Command, len: u32) -> Header {
        Header {
            conv: 0x0403_0201,
            cmd,
            frg: 5,
            wnd: 0x0807,
            ts: 0x0c0b_0a09,
            sn: 0x100f_0e0d,
            una: 0x1413_1211,
            len,
        }
    }

    #[test]
    fn headers_are_encoded_as_in_kcp() {
        let mut bytes = [0; HEADER_BYTES];
        header(Command::Push, 0x1817_1615).encode(&mut bytes);
        let expected: [u8; HEADER_BYTES] = [
            1, 2, 3, 4, 81, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(
            Header::decode(&bytes),
            Ok(header(Command::Push, 0x1817_1615))
        );
    }

    #[test]
    fn only_seven_commands_exist() {
        let mut bytes = [0; HEADER_BYTES];
        header(Command::Ack, 0).encode(&mut bytes);
        let known: Vec<u8> = (0..=255)
            .filter(|&cmd| {
                bytes[4] = cmd;
                Header::decode(&bytes).is_ok()
            })
            .collect();
        assert_eq!(known, [81, 82, 83, 84, 85, 86, 87]);
    }

    #[test]
    fn a_datagram_cut_or_lengthened_anywhere_is_malformed() {
        let mut datagram = vec![0; 2 * HEADER_BYTES + 10];
        header(Command::Push, 10).encode(&mut datagram);
        header(Command::Ack, 0).encode(&mut datagram[HEADER_BYTES + 10..]);
        assert_eq!(segments(&datagram).filter(Result::is_ok).count(), 2);
        for cut in 0..datagram.len() {
            let mut parsed = segments(&datagram[..cut]);
            let last = parsed.by_ref().last();
            // Only a cut between two segments does no harm.
            assert_eq!(
                last.unwrap().is_ok(),
                cut == HEADER_BYTES + 10,
                "cut at {cut}"
            );
            assert!(parsed.next().is_none());
        }
        datagram.push(0);
        assert_eq!(
            segments(&datagram).last(),
            Some(Err(Rejection::TrailingBytes))
        );
        assert_eq!(segments(&[]).last(), Some(Err(Rejection::TooShort)));
    }

    #[test]
    fn a_length_of_four_gigabytes_is_no_overflow() {
        let mut bytes = [0; HEADER_BYTES + 1];
        header(Command::Push, u32::MAX).encode(&mut bytes);
        assert_eq!(
            segments(&bytes).next(),
            Some(Err(Rejection::LengthBeyondDatagram))
        );
    }
}
