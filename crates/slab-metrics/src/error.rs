//! Errors of registering a source and of installing a recorder. None has a cause in another error.

use core::fmt;
use std::io;

/// The kind of a source that a collector reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceKind {
    /// A [`SlabPool`](slab_core::SlabPool), or a packet pool over one.
    Pool,
    /// A UDP socket of slab-net.
    Socket,
    /// A hand-off queue of slab-net.
    Queue,
    /// An RUDP endpoint of slab-net.
    RudpEndpoint,
    /// The HTTP server of this crate, which reports on itself. It is registered and removed by itself alone.
    Server,
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pool => "pool",
            Self::Socket => "socket",
            Self::Queue => "queue",
            Self::RudpEndpoint => "RUDP endpoint",
            Self::Server => "server",
        })
    }
}

/// The reason why a source was not registered. The collector is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// Another source of this kind has this name: both would have the same series.
    DuplicateName {
        /// The kind of source.
        kind: SourceKind,
        /// The name that is taken.
        name: String,
    },
    /// The collector already holds [`MAX_SOURCES`](crate::MAX_SOURCES) sources.
    TooManySources,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateName {
                kind: SourceKind::Server,
                ..
            } => f.write_str("the collector has a server already"),
            Self::DuplicateName { kind, name } => {
                let article = match kind {
                    SourceKind::RudpEndpoint => "an",
                    _ => "a",
                };
                write!(
                    f,
                    "{article} {kind} named {name:?} is registered already; names tell series apart"
                )
            }
            Self::TooManySources => write!(
                f,
                "the collector holds {} sources already, its limit",
                crate::MAX_SOURCES
            ),
        }
    }
}

impl core::error::Error for RegisterError {}

/// An error of the kind that fits, with this one in it.
impl From<RegisterError> for io::Error {
    fn from(error: RegisterError) -> Self {
        let kind = match error {
            RegisterError::DuplicateName { .. } => io::ErrorKind::AlreadyExists,
            RegisterError::TooManySources => io::ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}

/// A global recorder is already installed, by this program or a library in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GlobalRecorderTaken;

impl fmt::Display for GlobalRecorderTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a global metrics recorder is installed already")
    }
}

impl core::error::Error for GlobalRecorderTaken {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn no_error_says_what_its_source_says() {
        let name = "rx".to_owned();
        let kind = SourceKind::Pool;
        let registering = [
            RegisterError::DuplicateName { kind, name },
            RegisterError::TooManySources,
        ];
        for error in &registering {
            // A variant more belongs in the list above.
            match error {
                RegisterError::DuplicateName { .. } | RegisterError::TooManySources => {}
            }
        }
        let all = registering.iter().map(|error| error as &dyn Error);
        for error in all.chain([&GlobalRecorderTaken as &dyn Error]) {
            for error in std::iter::successors(Some(error), |&error| error.source()) {
                let said = error.to_string();
                assert!(!said.is_empty());
                if let Some(source) = error.source() {
                    assert!(!said.contains(&source.to_string()), "{said}: {source}");
                }
            }
        }
    }
    #[test]
    fn errors_name_what_is_refused() {
        let names = [
            (SourceKind::Pool, "a pool named \"a\\\"b\""),
            (SourceKind::Socket, "a socket named \"a\\\"b\""),
            (SourceKind::Queue, "a queue named \"a\\\"b\""),
            (
                SourceKind::RudpEndpoint,
                "an RUDP endpoint named \"a\\\"b\"",
            ),
        ];
        for (kind, named) in names {
            let name = "a\"b".to_owned();
            let error = RegisterError::DuplicateName { kind, name };
            let expected = format!("{named} is registered already; names tell series apart");
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(SourceKind::Server.to_string(), "server");
        assert_eq!(
            RegisterError::TooManySources.to_string(),
            "the collector holds 1024 sources already, its limit"
        );
    }
}
