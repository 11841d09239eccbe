//! Why a session cannot be opened or ends, and why a datagram is refused.

use super::config::SessionConfigError;
use crate::packet::Packet;
use crate::udp::BindError;
use core::fmt;
use std::io;

/// Why an endpoint, a connection or a session could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The socket could not be bound or connected.
    Bind(BindError),
    /// A value of the session configuration is out of its range.
    Config(SessionConfigError),
    /// The pool's largest size class is below what a segment needs, with its header if it is to be sent.
    NoSegmentClass {
        /// The bytes that a segment needs.
        needed: usize,
        /// The bytes that the pool's largest class has.
        largest: usize,
    },
    /// The socket is an IPv4 one, and the peer's address is not.
    AddressFamily,
    /// There are already as many sessions as are allowed.
    TableFull,
    /// There already is a session with this conversation number and peer.
    ConvInUse,
    /// The memory budget has not enough left for the first window of a session.
    NoMemory,
    /// The system provided no random numbers for the endpoint's encryption.
    NoRandom,
    /// The endpoint is closed.
    Closed,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::NoSegmentClass { needed, largest } => write!(
                f,
                "segments need a size class of {needed} bytes, the pool's largest has {largest}"
            ),
            Self::AddressFamily => f.write_str("an IPv4 socket cannot send to an IPv6 address"),
            Self::TableFull => f.write_str("there are as many sessions as are allowed"),
            Self::ConvInUse => {
                f.write_str("there is a session with this conversation number and peer already")
            }
            Self::NoMemory => f.write_str("the memory budget has no room for another session"),
            Self::NoRandom => f.write_str("the system gave no random numbers"),
            Self::Closed => f.write_str("the endpoint is closed"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Displayed as that error is, so that it has the same source.
            Self::Bind(error) => error.source(),
            _ => None,
        }
    }
}

/// An error of the kind that fits, with this one in it; if binding failed, with the [`BindError`].
impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        use io::ErrorKind;
        let kind = match error {
            OpenError::Bind(error) => return error.into(),
            OpenError::Config(_) | OpenError::NoSegmentClass { .. } | OpenError::AddressFamily => {
                ErrorKind::InvalidInput
            }
            OpenError::TableFull => ErrorKind::QuotaExceeded,
            OpenError::ConvInUse => ErrorKind::AlreadyExists,
            OpenError::NoMemory => ErrorKind::OutOfMemory,
            OpenError::NoRandom => ErrorKind::Other,
            OpenError::Closed => ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

impl From<BindError> for OpenError {
    fn from(error: BindError) -> Self {
        Self::Bind(error)
    }
}

impl From<SessionConfigError> for OpenError {
    fn from(error: SessionConfigError) -> Self {
        Self::Config(error)
    }
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// It was closed here, and everything that was sent had been delivered.
    Closed,
    /// It was closed here, and the linger time ended before everything was delivered. A peer that runs this library
    /// is reset.
    LingerExpired,
    /// It was aborted here; what had not been delivered is lost.
    Aborted,
    /// The peer closed it and said so.
    ClosedByPeer,
    /// The peer gave it up; what had not been delivered is lost. A peer that runs this library has said so, or a
    /// peer of any implementation has lost its state, as after a restart. Or the peer, in whose name somebody opened
    /// the session, is a server of this library as well.
    Reset,
    /// A segment was sent as often as [`dead_link`](super::SessionConfig::dead_link) allows, and nothing sent after
    /// it was acknowledged.
    DeadLink,
    /// The peer gave no sign of life for [the idle timeout](super::SessionConfig::idle_timeout), or, as one of another
    /// implementation, sent only what is behind the first segment; or, before it had proved its address, was silent or
    /// acknowledged nothing for [that of its proof](super::SessionConfig::unproved_timeout).
    TimedOut,
    /// Nobody listens at the peer's address: its host said so before anything else came from there.
    Refused,
    /// The peer sent a message that needs more segments than the receive window can ever have; or more than there
    /// was memory for within [the idle timeout](super::SessionConfig::idle_timeout); or more than an address may have
    /// that was not proved within [its timeout](super::SessionConfig::unproved_timeout). Or the message is above
    /// the pool's largest size class and [the heap may not stand in](crate::PacketPoolBuilder::max_heap_memory).
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

/// An error of the kind that fits, with the reason in it.
impl From<CloseReason> for io::Error {
    fn from(reason: CloseReason) -> Self {
        use CloseReason as R;
        let kind = match reason {
            R::TimedOut | R::DeadLink | R::LingerExpired => io::ErrorKind::TimedOut,
            R::Aborted => io::ErrorKind::ConnectionAborted,
            R::Reset => io::ErrorKind::ConnectionReset,
            R::Refused => io::ErrorKind::ConnectionRefused,
            R::Closed | R::ClosedByPeer => io::ErrorKind::BrokenPipe,
            R::MessageTooLong => io::ErrorKind::InvalidData,
        };
        Self::new(kind, reason)
    }
}

/// Why something was not accepted for sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SendError {
    /// The send queue is full, or as full as it may be before the peer has proved its address. There will be room
    /// once the peer has acknowledged something; for a datagram, once those before it have been sent.
    Blocked,
    /// The session's memory budget or the pool has nothing left.
    NoMemory,
    /// The message needs more segments than the peer's window has, as far as is known, or more than 255; in stream
    /// mode, more than the send queue holds.
    TooLong {
        /// The number of segments it needs.
        segments: usize,
        /// The most segments it may have.
        max: usize,
    },
    /// The datagram is longer than one segment.
    DatagramTooLong {
        /// The longest datagram that is sent, in bytes.
        max: usize,
    },
    /// The peer does not run this library: it would not understand a datagram.
    UnsupportedByPeer,
    /// It is not known yet whether the peer understands datagrams. It will be [soon](super::Connection::ready).
    NotReady,
    /// The message has no bytes. Such a message stops some implementations for good.
    Empty,
    /// The session has ended, or was closed or finished here; or the peer has closed it, and only delivers what it has
    /// left ([`ClosedByPeer`](CloseReason::ClosedByPeer)).
    Closed(CloseReason),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked => f.write_str("the send queue is full"),
            Self::NoMemory => f.write_str("no memory for a segment"),
            Self::TooLong { segments, max } => write!(
                f,
                "a message of {segments} segments is too long, the most is {max}"
            ),
            Self::DatagramTooLong { max } => {
                write!(f, "a datagram of more than {max} bytes")
            }
            Self::UnsupportedByPeer => f.write_str("the peer takes no datagrams"),
            Self::NotReady => f.write_str("the peer has not said yet whether it takes datagrams"),
            Self::Empty => f.write_str("a message of no bytes"),
            Self::Closed(reason) => reason.fmt(f),
        }
    }
}

impl core::error::Error for SendError {}

/// An error of the kind that fits, with the reason in it.
impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        let kind = match error {
            SendError::Closed(reason) => return reason.into(),
            SendError::Blocked => io::ErrorKind::WouldBlock,
            SendError::NoMemory => io::ErrorKind::OutOfMemory,
            SendError::UnsupportedByPeer => io::ErrorKind::Unsupported,
            SendError::NotReady => io::ErrorKind::NotConnected,
            SendError::TooLong { .. } | SendError::DatagramTooLong { .. } | SendError::Empty => {
                io::ErrorKind::InvalidInput
            }
        };
        Self::new(kind, error)
    }
}

/// Why nothing was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TryRecvError {
    /// Nothing is here now; more may come.
    Empty,
    /// A message is here, and there is no memory to join it in. It stays:
    /// [`recv`](super::Connection::recv) waits for memory, [`recv_segments`](super::Connection::recv_segments) needs none.
    NoMemory {
        /// The length of the message.
        bytes: usize,
    },
    /// The peer sends no more, because it has closed the session or [finished](super::Connection::finish), or it was closed
    /// here; and all messages were read. (For [datagrams](super::Connection::try_recv_datagram), see there.)
    End,
    /// The session has ended for this reason, before all had come; or, whatever had come, it was aborted here, or was
    /// closed here and could not deliver everything.
    Closed(CloseReason),
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("nothing is here now"),
            Self::NoMemory { bytes } => write!(f, "no memory for a message of {bytes} bytes"),
            Self::End => f.write_str("nothing more will come"),
            Self::Closed(reason) => reason.fmt(f),
        }
    }
}

impl core::error::Error for TryRecvError {}

/// An error of the kind that fits, with the reason in it.
impl From<TryRecvError> for io::Error {
    fn from(error: TryRecvError) -> Self {
        let kind = match error {
            TryRecvError::Closed(reason) => return reason.into(),
            TryRecvError::Empty => io::ErrorKind::WouldBlock,
            TryRecvError::NoMemory { .. } => io::ErrorKind::OutOfMemory,
            TryRecvError::End => io::ErrorKind::UnexpectedEof,
        };
        Self::new(kind, error)
    }
}

/// A message that was not accepted for sending, and why.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unsent {
    /// The message, unchanged.
    pub packet: Packet,
    /// Why it was not accepted; also the `source`.
    pub error: SendError,
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message was not accepted for sending")
    }
}

impl core::error::Error for Unsent {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Keeps the reason alone; the message is dropped.
impl From<Unsent> for SendError {
    fn from(unsent: Unsent) -> Self {
        unsent.error
    }
}

/// That of the reason, with it inside; the message is dropped.
impl From<Unsent> for io::Error {
    fn from(unsent: Unsent) -> Self {
        unsent.error.into()
    }
}

/// Why a datagram was refused. It is refused as a whole: none of its segments has an effect. [Two
/// exceptions](super::Session::handle_datagram) are found only while it takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// A segment of another conversation, also with the same number: a PUSH of a peer that has begun anew.
    OtherConversation,
    /// Its `una` is beyond what was sent, or more than 65 536 segments behind what was acknowledged.
    UnaBeyondSent,
    /// The `sn` of an ACK is beyond what was sent, or more than 65 536 segments behind what was acknowledged.
    AckBeyondSent,
    /// An ACK echoes a time at which the segment was not sent.
    TimeNeverSent,
    /// A sequence number is far outside of the window.
    SequenceFarOutside,
    /// A segment's count of fragments to follow is larger than the receive window or KCP allows, or does not fit
    /// the segment before it in the message or the one behind it.
    TooManyFragments,
    /// A segment is longer than this end accepts.
    SegmentTooLong,
    /// A close notice does not carry the token that this end gave to the peer, or is not next in order.
    ForgedClose,
    /// An unreliable datagram does not carry the token that this end gave to the peer.
    ForgedDatagram,
    /// A mark of the end does not carry the token that this end gave to the peer.
    ForgedEnd,
}

impl Rejection {
    /// All variants, in the order of their numbers.
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

    /// Returns a short name, for a metric's label.
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
    fn rejections_are_listed_in_discriminant_order() {
        for (n, rejection) in Rejection::ALL.iter().enumerate() {
            assert_eq!(*rejection as usize, n);
        }
        assert_eq!(Rejection::ForgedEnd as usize + 1, Rejection::ALL.len());
    }

    #[test]
    fn who_sends_without_waiting_can_pass_the_reason_on() {
        fn refused() -> Result<(), SendError> {
            let packet = Packet::from_static(b"late");
            let error = SendError::Closed(CloseReason::Reset);
            Err(Unsent { packet, error })?
        }
        assert_eq!(refused(), Err(SendError::Closed(CloseReason::Reset)));
    }

    #[test]
    fn an_io_error_has_the_reason_in_it() {
        let kind_of = |error: SendError, inner: &str| {
            let error = io::Error::from(error);
            assert_eq!(error.to_string(), inner);
            error.kind()
        };
        let reset = SendError::Closed(CloseReason::Reset);
        let kind = kind_of(reset, &CloseReason::Reset.to_string());
        assert_eq!(kind, io::ErrorKind::ConnectionReset);
        let blocked = kind_of(SendError::Blocked, &SendError::Blocked.to_string());
        assert_eq!(blocked, io::ErrorKind::WouldBlock);
        let error = SendError::NoMemory;
        let packet = Packet::from_static(b"late");
        let unsent = io::Error::from(Unsent { packet, error });
        assert_eq!(unsent.kind(), io::ErrorKind::OutOfMemory);
    }
}
