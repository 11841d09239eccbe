//! Encryption in the framing of kcp-go's AES-GCM: each datagram is sealed by itself, in place.
//!
//! | offset | field | bytes |
//! |---|---|---|
//! | 0 | nonce | 12 |
//! | 12 | ciphertext | as many as the datagram |
//! | at the end | tag | 16 |
//!
//! There is no additional data and no checksum. Both ends share one key, for both directions and all sessions, so a
//! nonce must never repeat. kcp-go draws each at random. Here each endpoint draws the first one and counts on from
//! it: two of n users of a key then collide with a probability of about n^2 times the datagrams of each, in 2^96,
//! which is never more than with random nonces. The child of a `fork` draws a first nonce of its own. Where the
//! system cannot clear memory in it (before Linux 4.14, and elsewhere), it is recognised by its process id, which
//! leaves one case: a child that has the id of the very process that drew last, because that has exited or is in
//! another PID namespace, goes on with the same nonces. So do copies of a virtual machine that go on from one snapshot,
//! on every system: nothing tells them that they are copies. There, open endpoints (and create each [`AesGcm`] that is
//! used without one) afterwards, or change the key.
//!
//! # What it does not do
//!
//! Each datagram is confidential, and nobody can make or change one without the key. Nothing says when it was sent,
//! to whom, or in which session. Whoever sees the traffic can send it again:
//!
//! - The first datagram of a session, sent from another address, opens another session there at once, and its
//!   messages are delivered again. From its own address it does the same once the session has ended and is
//!   forgotten: after the [idle timeout](super::SessionConfig::idle_timeout), or earlier if more than
//!   [`max_sessions`](super::EndpointConfig::max_sessions) have ended since.
//! - A segment of another session with the same key and conversation number is accepted in place of the live
//!   session's own. Conversation numbers are random, of 32 bits, unless they are [agreed
//!   on](super::Endpoint::connect_as).
//! - [Datagrams](super::Connection::send_datagram) may arrive more than once.
//! - With error correction inside, shards of two sessions may be combined, and the result was sent by nobody.
//!
//! An endpoint refuses what it has sealed itself, so that its own datagrams cannot be sent back to it. It cannot
//! tell what another endpoint with the same key has sealed from what its peer has. So use a fresh key for each run,
//! better for each session, agreed on by a protocol that authenticates both ends; random conversation numbers; and,
//! where it matters, something fresh from both ends in their first messages.

mod nonces;
mod process;

use core::fmt;
use core::ops::Range;
use nonces::Nonces;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::sync::Arc;

/// The bytes in front of a sealed datagram.
pub const NONCE_BYTES: usize = NONCE_LEN;
/// The bytes behind a sealed datagram.
pub const TAG_BYTES: usize = 16;

/// A key for AES-GCM that both ends share. Clones share the key and its count of nonces; an
/// [`Endpoint`](super::Endpoint) has a count of its own.
///
/// ```
/// use slab_net::rudp::crypto::{AesGcm, NONCE_BYTES, TAG_BYTES};
///
/// let key = AesGcm::new(b"sixteen secret b")?;
/// let mut datagram = [0; NONCE_BYTES + 5 + TAG_BYTES];
/// datagram[NONCE_BYTES..][..5].copy_from_slice(b"hello");
/// key.seal(&mut datagram);
/// assert_ne!(&datagram[NONCE_BYTES..][..5], b"hello");
///
/// let opened = key.open(&mut datagram).expect("the same key");
/// assert_eq!(&datagram[opened], b"hello");
/// # Ok::<(), slab_net::rudp::crypto::KeyError>(())
/// ```
#[derive(Clone)]
pub struct AesGcm {
    key: Arc<LessSafeKey>,
    nonces: Arc<Nonces>,
}

impl AesGcm {
    /// Creates a key for AES-128 or AES-256.
    ///
    /// # Errors
    /// The key has neither 16 nor 32 bytes, or the system provides no random numbers.
    pub fn new(key: &[u8]) -> Result<Self, KeyError> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            32 => &AES_256_GCM,
            bytes => return Err(KeyError::Length { bytes }),
        };
        let key = UnboundKey::new(algorithm, key).expect("its length was checked");
        Self::with_new_nonces(Arc::new(LessSafeKey::new(key)))
    }

    /// The same key for an endpoint, with a count of nonces of its own.
    pub(super) fn with_own_nonces(&self) -> Result<Self, KeyError> {
        Self::with_new_nonces(Arc::clone(&self.key))
    }

    fn with_new_nonces(key: Arc<LessSafeKey>) -> Result<Self, KeyError> {
        let nonces = Nonces::default();
        nonces.begin_own_run().map_err(|_| KeyError::NoRandom)?;
        let nonces = Arc::new(nonces);
        Ok(Self { key, nonces })
    }

    /// Seals a datagram in place. The datagram lies behind [`NONCE_BYTES`] free bytes and in front of [`TAG_BYTES`]
    /// more.
    ///
    /// # Panics
    /// If there is no room for these; in the child of a fork also if the system provides no random numbers any
    /// more.
    pub fn seal(&self, datagram: &mut [u8]) {
        self.renew_nonces_after_fork();
        self.seal_next(datagram);
    }

    /// Call before [`seal_next`](Self::seal_next), once for any number of datagrams, because it may ask the system.
    pub(super) fn renew_nonces_after_fork(&self) {
        // Going on with the nonces of another process would disclose what both have sealed.
        self.nonces
            .begin_own_run()
            .expect("the system provides random numbers");
    }

    /// As [`seal`](Self::seal), after [`renew_nonces_after_fork`](Self::renew_nonces_after_fork).
    pub(super) fn seal_next(&self, datagram: &mut [u8]) {
        let nonce = self.nonces.draw();
        let (front, rest) = datagram.split_at_mut(NONCE_BYTES);
        front.copy_from_slice(&nonce);
        let (contents, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), contents);
        tag.copy_from_slice(
            sealed
                .expect("a datagram is shorter than 2^36 bytes")
                .as_ref(),
        );
    }

    /// Opens a datagram in place, and returns the range of its contents; `None` if it was not sealed with this key
    /// or was changed since. Its bytes are then useless.
    #[must_use]
    pub fn open(&self, datagram: &mut [u8]) -> Option<Range<usize>> {
        let (nonce, rest) = datagram.split_first_chunk_mut::<NONCE_BYTES>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key.open_in_place(nonce, Aad::empty(), rest);
        let opened = opened.ok()?;
        Some(NONCE_BYTES..NONCE_BYTES + opened.len())
    }

    /// Was it sealed with this count of nonces?
    pub(super) fn has_sealed(&self, datagram: &[u8]) -> bool {
        let nonce = datagram.first_chunk();
        nonce.is_some_and(|nonce| self.nonces.was_drawn(nonce))
    }
}

/// Does not show the key.
impl fmt::Debug for AesGcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AesGcm").finish_non_exhaustive()
    }
}

/// Why a key could not be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has a length other than 16 or 32 bytes.
    Length {
        /// The length it has.
        bytes: usize,
    },
    /// The system provided no random numbers.
    NoRandom,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { bytes } => {
                write!(
                    f,
                    "a key of {bytes} bytes: 16 are for AES-128, 32 for AES-256"
                )
            }
            Self::NoRandom => f.write_str("the system gave no random numbers"),
        }
    }
}

impl core::error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::PacketPool;
    use crate::rudp::{Endpoint, EndpointConfig, OpenError};

    /// It would have nothing to begin its nonces with.
    #[tokio::test]
    async fn an_endpoint_with_a_key_is_not_bound_without_random_numbers() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let key = AesGcm::new(b"sixteen secret b").unwrap();
        let config = EndpointConfig::default().aes_gcm(key);
        nonces::NO_RANDOM.set(true);
        let refused = Endpoint::bind("127.0.0.1:0".parse().unwrap(), &pool, config);
        assert!(matches!(refused, Err(OpenError::NoRandom)));
        assert_eq!(
            AesGcm::new(b"sixteen secret b").unwrap_err(),
            KeyError::NoRandom
        );
        nonces::NO_RANDOM.set(false);
    }
}
