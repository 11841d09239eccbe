//! What can go wrong with a session, and why a datagram is refused.

use super::wire::Malformed;
use crate::packet::Packet;
use core::fmt;

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// It was closed here, and what had been sent was delivered.
    Closed,
    /// It was closed here, and the linger time ended before everything was delivered. A peer of this
    /// library is reset.
    LingerExpired,
    /// It was given up here, with whatever had not been delivered.
    Aborted,
    /// The peer closed it, and said so.
    ClosedByPeer,
    /// The peer gave it up, with whatever had not been delivered: one of this library has said so, or one of
    /// any has forgotten what it had, as after a restart.
    Reset,
    /// A segment was sent as often as [`dead_link`](super::SessionConfig::dead_link) allows, and nothing
    /// sent after it was acknowledged.
    DeadLink,
    /// The peer gave no sign of life for [the idle timeout](super::SessionConfig::keepalive).
    TimedOut,
    /// There is nobody at the peer's address, as its host said before anything else came from there.
    Refused,
    /// The peer sent a message of more segments than fit into the receive window, or than there was
    /// memory for within [the idle timeout](super::SessionConfig::keepalive), or than are taken of an
    /// address that is not proved within [its own](super::SessionConfig::unproved_timeout); or one above
    /// the pool's largest size class where
    /// [the heap may not stand in](crate::PacketPoolBuilder::heap_limit).
    MessageTooLong,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the session was closed",
            Self::LingerExpired => "the session was closed before everything was delivered",
            Self::Aborted => "the session was aborted",
            Self::ClosedByPeer => "the peer closed the session",
            Self::Reset => "the peer gave the session up",
            Self::DeadLink => "the peer acknowledges nothing",
            Self::TimedOut => "the peer gives no sign of life",
            Self::Refused => "nobody listens at the peer's address",
            Self::MessageTooLong => "the peer sent a message longer than there is room for",
        })
    }
}

impl core::error::Error for CloseReason {}

/// Why nothing was taken for sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The send queue is full, or as full as it may be before the peer has proved its address; there will be
    /// room when the peer has acknowledged something.
    Blocked,
    /// The session's memory budget or the pool has nothing left.
    NoMemory,
    /// The message needs more segments than the peer's window has, as far as is known.
    TooLong {
        /// How many segments it needs.
        segments: usize,
        /// How many the peer can take.
        max: usize,
    },
    /// A datagram longer than what is sent in one piece.
    DatagramTooLong {
        /// The longest that is sent, in bytes.
        max: usize,
    },
    /// The peer is not of this library, or not yet known to be: it would not understand a datagram.
    PeerIsForeign,
    /// A message of no bytes, which stops some implementations for good.
    Empty,
    /// The session has ended, or nothing more is taken because it was closed or finished here.
    Closed(CloseReason),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked => f.write_str("the send queue is full"),
            Self::NoMemory => f.write_str("no memory for a segment"),
            Self::TooLong { segments, max } => write!(
                f,
                "a message of {segments} segments is too long for the peer's window of {max}"
            ),
            Self::DatagramTooLong { max } => {
                write!(f, "a datagram of more than {max} bytes")
            }
            Self::PeerIsForeign => f.write_str("the peer is not known to take datagrams"),
            Self::Empty => f.write_str("a message of no bytes"),
            Self::Closed(reason) => reason.fmt(f),
        }
    }
}

impl core::error::Error for SendError {}

/// A message that was not taken for sending, and why.
#[derive(Debug)]
pub struct Unsent {
    /// The message, as it was.
    pub packet: Packet,
    /// Why it was not taken.
    pub reason: SendError,
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl core::error::Error for Unsent {}

/// Why a datagram was refused as a whole: nothing in it was looked at further, nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[non_exhaustive]
pub enum Rejection {
    /// Fewer bytes than a header.
    TooShort,
    /// A command that does not exist.
    UnknownCommand,
    /// A segment that claims more payload than the datagram has.
    LengthBeyondDatagram,
    /// Bytes behind the last segment that are no header.
    TrailingBytes,
    /// A segment of another conversation.
    OtherConversation,
    /// Acknowledges by `una` what was never sent, or what was acknowledged more than 65 536 segments ago.
    UnaBeyondSent,
    /// Acknowledges by the `sn` of an ACK what was never sent, or what was acknowledged more than 65 536
    /// segments ago.
    AckBeyondSent,
    /// An ACK that echoes a time at which the segment was not sent.
    TimeNeverSent,
    /// A sequence number far outside of the window.
    SequenceFarOutside,
    /// More fragments to follow than fit into the receive window, or than KCP can handle, or than follow
    /// by what the segment before it in the message says, or the one behind it.
    TooManyFragments,
    /// A segment longer than any that are taken.
    SegmentTooLong,
    /// A close notice that does not know what this end told the peer.
    ForgedClose,
    /// A datagram that does not know what this end told the peer.
    ForgedDatagram,
    /// A mark of the end that does not know what this end told the peer.
    ForgedEnd,
}

impl Rejection {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::TooShort,
        Self::UnknownCommand,
        Self::LengthBeyondDatagram,
        Self::TrailingBytes,
        Self::OtherConversation,
        Self::UnaBeyondSent,
        Self::AckBeyondSent,
        Self::TimeNeverSent,
        Self::SequenceFarOutside,
        Self::TooManyFragments,
        Self::SegmentTooLong,
        Self::ForgedClose,
        Self::ForgedDatagram,
        Self::ForgedEnd,
    ];

    /// A short name, for a metric's label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooShort => "too_short",
            Self::UnknownCommand => "unknown_command",
            Self::LengthBeyondDatagram => "length_beyond_datagram",
            Self::TrailingBytes => "trailing_bytes",
            Self::OtherConversation => "other_conversation",
            Self::UnaBeyondSent => "una_beyond_sent",
            Self::AckBeyondSent => "ack_beyond_sent",
            Self::TimeNeverSent => "time_never_sent",
            Self::SequenceFarOutside => "sequence_far_outside",
            Self::TooManyFragments => "too_many_fragments",
            Self::SegmentTooLong => "segment_too_long",
            Self::ForgedClose => "forged_close",
            Self::ForgedDatagram => "forged_datagram",
            Self::ForgedEnd => "forged_end",
        }
    }
}

impl From<Malformed> for Rejection {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::TooShort => Self::TooShort,
            Malformed::UnknownCommand => Self::UnknownCommand,
            Malformed::LengthBeyondDatagram => Self::LengthBeyondDatagram,
            Malformed::TrailingBytes => Self::TrailingBytes,
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for Rejection {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_rejections_is_in_the_order_of_their_numbers() {
        for (n, rejection) in Rejection::ALL.iter().enumerate() {
            assert_eq!(*rejection as usize, n);
        }
        assert_eq!(Rejection::ForgedEnd as usize + 1, Rejection::ALL.len());
    }
}
