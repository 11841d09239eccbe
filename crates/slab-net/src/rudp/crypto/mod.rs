//! Encryption in the framing of kcp-go's AES-GCM: each datagram by itself, in place.
//!
//! | offset | field | bytes |
//! |---|---|---|
//! | 0 | nonce | 12 |
//! | 12 | ciphertext | as many as the datagram |
//! | at the end | tag | 16 |
//!
//! No additional data, no checksum. Both ends share one key, for both directions and all sessions;
//! so it is the nonce that never may repeat. kcp-go draws each at random. Here the first one is,
//! and the others count on from it: two of n users of a key then meet with a probability of about
//! n^2 times the datagrams of each, in 2^96, which is never more than with random ones.
//!
//! What an attacker can still do is to send again what was sent before. Sessions take each segment
//! once; how a session that has ended stays ended is told at
//! [`EndpointConfig`](super::EndpointConfig).

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use std::sync::Arc;

/// Bytes in front of a datagram that is sealed.
pub const NONCE_BYTES: usize = NONCE_LEN;
/// Bytes behind a datagram that is sealed.
pub const TAG_BYTES: usize = 16;

/// A key for AES-GCM that both ends share. Clones are the same key and the same count of nonces.
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
    inner: Arc<Inner>,
}

struct Inner {
    key: LessSafeKey,
    first_nonce: u128,
    nonces: AtomicU64,
}

impl AesGcm {
    /// The key for AES-128 or AES-256.
    ///
    /// # Errors
    /// The key has neither 16 nor 32 bytes, or the system has no random numbers.
    pub fn new(key: &[u8]) -> Result<Self, KeyError> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            32 => &AES_256_GCM,
            bytes => return Err(KeyError::Length { bytes }),
        };
        let mut first_nonce = [0; 16];
        SystemRandom::new()
            .fill(&mut first_nonce)
            .map_err(|_| KeyError::NoRandom)?;
        let key = UnboundKey::new(algorithm, key);
        Ok(Self {
            inner: Arc::new(Inner {
                key: LessSafeKey::new(key.expect("of the algorithm's length")),
                first_nonce: u128::from_le_bytes(first_nonce),
                nonces: AtomicU64::new(0),
            }),
        })
    }

    /// Seals a datagram in place. It lies behind [`NONCE_BYTES`] free bytes and in front of
    /// [`TAG_BYTES`] more.
    ///
    /// # Panics
    /// If there is no room for these.
    pub fn seal(&self, datagram: &mut [u8]) {
        let nonce = self.next_nonce();
        let (front, rest) = datagram.split_at_mut(NONCE_BYTES);
        front.copy_from_slice(&nonce);
        let (contents, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = self
            .inner
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), contents);
        tag.copy_from_slice(sealed.expect("shorter than 2^36 bytes").as_ref());
    }

    /// Opens a datagram in place, and returns where in it the contents are; `None` if it was not
    /// sealed with this key or was changed since. Its bytes are then of no use.
    #[must_use]
    pub fn open(&self, datagram: &mut [u8]) -> Option<Range<usize>> {
        let (nonce, rest) = datagram.split_first_chunk_mut::<NONCE_BYTES>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.inner.key.open_in_place(nonce, Aad::empty(), rest);
        let opened = opened.ok()?;
        Some(NONCE_BYTES..NONCE_BYTES + opened.len())
    }

    fn next_nonce(&self) -> [u8; NONCE_BYTES] {
        let drawn = self.inner.nonces.fetch_add(1, Ordering::Relaxed);
        let nonce = self.inner.first_nonce.wrapping_add(drawn.into());
        let mut bytes = [0; NONCE_BYTES];
        bytes.copy_from_slice(&nonce.to_le_bytes()[..NONCE_BYTES]);
        bytes
    }
}

/// Shows no key.
impl fmt::Debug for AesGcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AesGcm").finish_non_exhaustive()
    }
}

/// Why there is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// It has another length than 16 or 32 bytes.
    Length {
        /// The length it has.
        bytes: usize,
    },
    /// The system gave no random numbers.
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
