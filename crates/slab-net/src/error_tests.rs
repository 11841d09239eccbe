//! What an error says, and what its `source` says, are two things: whoever prints both reads neither twice.

use crate::packet::PacketPoolError;
use crate::pipeline::{Overflow, QueueClosed, QueueSendError, queue};
use crate::rudp::{self, CloseReason, OpenError, Rejection, SessionConfig, Unsent};
use crate::udp::{self, BatchError, BindError, PacketBatch, SendErrorKind};
use crate::{AllocError, ConfigError, Packet, PacketPool};
use std::error::Error;
use std::io;
use std::iter::successors;

/// One error for each variant; does not compile if one is missing.
macro_rules! every {
    ($of:ty: $($variant:pat => $error:expr),* $(,)?) => {{
        let _ = |error: &$of| match error { $($variant => ()),* };
        vec![$($error),*]
    }};
}

fn refused() -> io::Error {
    io::ErrorKind::PermissionDenied.into()
}

fn bind_errors() -> Vec<BindError> {
    let address = ([127, 0, 0, 1], 9).into();
    every!(BindError:
        BindError::Socket { .. } => BindError::Socket { address, error: refused() },
        BindError::Connect { .. } => BindError::Connect { peer: address, error: refused() },
        BindError::NoBufferClass { .. } => BindError::NoBufferClass { needed: 2, largest: 1 },
        BindError::MaxDatagram { .. } => BindError::MaxDatagram { bytes: 0 },
    )
}

fn send_errors() -> Vec<udp::SendError> {
    let kinds = every!(SendErrorKind:
        SendErrorKind::TooLarge { .. } => SendErrorKind::TooLarge { bytes: 1 },
        SendErrorKind::NoBuffers => SendErrorKind::NoBuffers,
        SendErrorKind::Refused => SendErrorKind::Refused,
        SendErrorKind::TooManyParts { .. } => SendErrorKind::TooManyParts { most: 1 },
        SendErrorKind::WouldBlock => SendErrorKind::WouldBlock,
        SendErrorKind::Io(_) => SendErrorKind::Io(refused()),
    );
    let error = |kind| udp::SendError {
        sent: 2,
        destination: None,
        kind,
    };
    kinds.into_iter().map(error).collect()
}

fn batch_errors() -> Vec<BatchError> {
    let exhausted = AllocError::Exhausted { chunk_bytes: 64 };
    every!(BatchError:
        BatchError::TooLong { .. } => BatchError::TooLong { bytes: 65_528 },
        BatchError::TooManyDatagrams { .. } => BatchError::TooManyDatagrams { datagrams: 129 },
        BatchError::NoMemory(_) => BatchError::NoMemory(exhausted),
    )
}

/// Of a full queue, and of a closed one.
fn queue_send_errors() -> [QueueSendError; 2] {
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    let batch = || PacketBatch::try_copy_from_slice(&pool, b"x", 0, ([127, 0, 0, 1], 9).into());
    let (sender, receiver) = queue(1.try_into().unwrap(), Overflow::Wait);
    sender.try_send(batch().unwrap()).unwrap();
    let full = sender.try_send(batch().unwrap()).unwrap_err();
    drop(receiver);
    [full, sender.try_send(batch().unwrap()).unwrap_err()]
}

#[test]
fn a_full_and_a_closed_queue_are_io_errors_of_their_own_kinds() {
    let kinds = queue_send_errors().map(|error| io::Error::from(error).kind());
    assert_eq!(
        kinds,
        [io::ErrorKind::WouldBlock, io::ErrorKind::BrokenPipe]
    );
}

fn session_config_error() -> rudp::SessionConfigError {
    SessionConfig::fast().mtu(0).validate().unwrap_err()
}

fn open_errors() -> Vec<OpenError> {
    let mut errors = every!(OpenError:
        OpenError::Bind(_) => OpenError::Closed,
        OpenError::Config(_) => session_config_error().into(),
        OpenError::NoSegmentClass { .. } => OpenError::NoSegmentClass { needed: 2, largest: 1 },
        OpenError::AddressFamily => OpenError::AddressFamily,
        OpenError::TableFull => OpenError::TableFull,
        OpenError::ConvInUse => OpenError::ConvInUse,
        OpenError::NoMemory => OpenError::NoMemory,
        OpenError::NoRandom => OpenError::NoRandom,
        OpenError::Closed => OpenError::Closed,
    );
    errors.extend(bind_errors().into_iter().map(OpenError::from));
    errors
}

fn close_reasons() -> Vec<CloseReason> {
    use CloseReason as R;
    every!(R:
        R::Closed => R::Closed,
        R::LingerExpired => R::LingerExpired,
        R::Aborted => R::Aborted,
        R::ClosedByPeer => R::ClosedByPeer,
        R::Reset => R::Reset,
        R::DeadLink => R::DeadLink,
        R::TimedOut => R::TimedOut,
        R::Refused => R::Refused,
        R::MessageTooLong => R::MessageTooLong,
    )
}

fn session_send_errors() -> Vec<rudp::SendError> {
    use rudp::SendError as E;
    let mut errors = every!(E:
        E::Blocked => E::Blocked,
        E::NoMemory => E::NoMemory,
        E::TooLong { .. } => E::TooLong { segments: 2, max: 1 },
        E::DatagramTooLong { .. } => E::DatagramTooLong { max: 1 },
        E::UnsupportedByPeer => E::UnsupportedByPeer,
        E::NotReady => E::NotReady,
        E::Empty => E::Empty,
        E::Closed(_) => E::Closed(CloseReason::Closed),
    );
    errors.extend(close_reasons().into_iter().map(E::Closed));
    errors
}

fn pool_errors() -> Vec<PacketPoolError> {
    use PacketPoolError as E;
    every!(E:
        E::Slab(_) => E::Slab(ConfigError::NoClasses),
        E::NoRoom { .. } => E::NoRoom { headroom: 1, tailroom: 2, largest: 3 },
        E::DefaultInUse => E::DefaultInUse,
    )
}

fn unsent(error: rudp::SendError) -> Unsent {
    let packet = Packet::from_static(b"late");
    Unsent { packet, error }
}

#[cfg(feature = "aes-gcm")]
fn key_errors() -> Vec<rudp::crypto::KeyError> {
    use rudp::crypto::KeyError as E;
    every!(E:
        E::Length { .. } => E::Length { bytes: 1 },
        E::NoRandom => E::NoRandom,
    )
}

fn boxed<E: Error + 'static>(errors: impl IntoIterator<Item = E>) -> Vec<Box<dyn Error>> {
    let boxed = errors
        .into_iter()
        .map(|error| Box::new(error) as Box<dyn Error>);
    boxed.collect()
}

/// All errors of this crate, and what those become that convert into `io::Error`.
fn all() -> Vec<Box<dyn Error>> {
    [
        boxed(pool_errors()),
        boxed(pool_errors().into_iter().map(io::Error::from)),
        boxed([QueueClosed]),
        boxed([io::Error::from(QueueClosed)]),
        boxed(queue_send_errors()),
        boxed(queue_send_errors().map(io::Error::from)),
        boxed(batch_errors()),
        boxed(batch_errors().into_iter().map(io::Error::from)),
        boxed(bind_errors()),
        boxed(bind_errors().into_iter().map(io::Error::from)),
        boxed(send_errors()),
        boxed(send_errors().into_iter().map(io::Error::from)),
        boxed([session_config_error()]),
        boxed(open_errors()),
        boxed(open_errors().into_iter().map(io::Error::from)),
        boxed(close_reasons()),
        boxed(close_reasons().into_iter().map(io::Error::from)),
        boxed(session_send_errors()),
        boxed(session_send_errors().into_iter().map(io::Error::from)),
        boxed(session_send_errors().into_iter().map(unsent)),
        boxed(Rejection::ALL.iter().copied()),
        #[cfg(feature = "aes-gcm")]
        boxed(key_errors()),
        #[cfg(feature = "fec")]
        boxed([rudp::fec::FecShards::new(0, 0).unwrap_err()]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn no_error_says_what_its_source_says() {
    for error in all() {
        for error in successors(Some(&*error), |&error| error.source()) {
            let said = error.to_string();
            assert!(!said.is_empty());
            if let Some(source) = error.source() {
                assert!(!said.contains(&source.to_string()), "{said}: {source}");
            }
        }
    }
}

#[test]
fn what_the_system_or_the_session_said_is_a_source() {
    let last = |error: &(dyn Error + 'static)| {
        let chain = successors(Some(error), |&error| error.source());
        chain.last().map(ToString::to_string)
    };
    let system = Some(refused().to_string());
    let bind = || bind_errors().swap_remove(0);
    let send = || send_errors().pop().unwrap();
    let batch = batch_errors().pop().unwrap();
    assert_eq!(last(&bind()), system);
    assert_eq!(last(&io::Error::from(bind())), system);
    assert_eq!(last(&OpenError::from(bind())), system);
    assert_eq!(last(&send()), system);
    assert_eq!(last(&io::Error::from(send())), system);
    let exhausted = AllocError::Exhausted { chunk_bytes: 64 };
    assert_eq!(last(&batch), Some(exhausted.to_string()));
    let blocked = rudp::SendError::Blocked;
    assert_eq!(last(&unsent(blocked)), Some(blocked.to_string()));
}

#[test]
fn a_pool_error_becomes_an_io_error_with_the_reason_in_it() {
    for error in pool_errors() {
        let io = io::Error::from(error);
        let kind = match error {
            PacketPoolError::DefaultInUse => io::ErrorKind::AlreadyExists,
            _ => io::ErrorKind::InvalidInput,
        };
        assert_eq!(io.kind(), kind);
        assert_eq!(io.to_string(), error.to_string());
    }
}
