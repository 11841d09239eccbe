//! [`ProtectionConfig`]: the protection that a configuration asks for.

use super::super::EndpointConfig;
#[cfg(feature = "fec")]
use super::paths::longest_shards;
use crate::packet::PacketPool;
use crate::rudp::config::SessionConfig;
#[cfg(feature = "aes-gcm")]
use crate::rudp::crypto::{AesGcm, NONCE_BYTES, TAG_BYTES};
#[cfg(feature = "fec")]
use crate::rudp::fec::{Code, FEC_HEADER_BYTES, FecShards, max_kept_shards};
#[cfg(feature = "fec")]
use std::sync::Arc;

#[derive(Debug, Clone, Default)]
pub(in super::super) struct ProtectionConfig {
    #[cfg(feature = "aes-gcm")]
    pub(super) key: Option<AesGcm>,
    #[cfg(feature = "fec")]
    /// Computed once for all endpoints with this configuration, such as one for each connection of a client.
    pub(super) code: Option<Arc<Code>>,
}

impl ProtectionConfig {
    /// Bytes in front of a datagram.
    pub(super) fn header_bytes(&self) -> usize {
        [
            #[cfg(feature = "aes-gcm")]
            self.key.as_ref().map(|_| NONCE_BYTES),
            #[cfg(feature = "fec")]
            self.code.as_ref().map(|_| FEC_HEADER_BYTES),
        ]
        .into_iter()
        .map(|bytes: Option<usize>| bytes.unwrap_or(0))
        .sum()
    }

    /// Bytes behind a datagram.
    pub(super) fn trailer_bytes(&self) -> usize {
        #[cfg(feature = "aes-gcm")]
        if self.key.is_some() {
            return TAG_BYTES;
        }
        0
    }

    /// The most pool memory that error correction keeps for datagrams from and for one peer, in bytes.
    pub(in super::super) fn max_kept_bytes(
        &self,
        session: &SessionConfig,
        pool: &PacketPool,
    ) -> usize {
        let _ = (session, pool);
        #[cfg(feature = "fec")]
        if let Some(code) = &self.code {
            let shards = code.shards;
            let room = pool.room();
            let classes = pool.slab().size_classes();
            // Where the longest fit no chunk, shorter ones are kept.
            let chunk = |bytes| classes.round_up(bytes + room).unwrap_or(classes.largest());
            let [sent, received] = longest_shards(session).map(chunk);
            return max_kept_shards(shards) * received + shards.parity() * sent;
        }
        0
    }

    /// The bytes by which each datagram is longer on the wire.
    pub(in super::super) fn overhead_bytes(&self) -> usize {
        self.header_bytes() + self.trailer_bytes()
    }
}

impl EndpointConfig {
    /// Encrypts and authenticates each datagram, in the framing of kcp-go, which takes 28 bytes of the
    /// [MTU](crate::rudp::SessionConfig::mtu). A datagram that does not open with the key is dropped and counted.
    /// Both ends need the same key. Default: none.
    ///
    /// An endpoint also drops what it has sealed itself. Each datagram is confidential and unchanged, and that is
    /// all: **there is no protection against replay.** An attacker who records the beginning of a session and sends
    /// it from another address opens another session, which delivers the same messages again.
    /// [`crypto`](crate::rudp::crypto) says what else can be done with recorded datagrams, and what helps: a fresh
    /// key for each run or session, random conversation numbers, and something fresh from both ends in their first
    /// messages.
    ///
    /// In the child of a `fork`, sending panics if the system gives no random numbers for new nonces.
    ///
    /// ```
    /// use slab_net::rudp::crypto::AesGcm;
    /// use slab_net::rudp::{EndpointConfig, SessionConfig};
    ///
    /// let key = AesGcm::new(b"sixteen secret b")?;
    /// let config = EndpointConfig::new(SessionConfig::fast()).aes_gcm(key);
    /// # let _ = config;
    /// # Ok::<(), slab_net::rudp::crypto::KeyError>(())
    /// ```
    #[cfg(feature = "aes-gcm")]
    pub fn aes_gcm(mut self, key: AesGcm) -> Self {
        self.protection.key = Some(key);
        self
    }

    /// Sends parity, in the format of kcp-go, and recovers lost datagrams from it; takes 8 bytes of the
    /// [MTU](crate::rudp::SessionConfig::mtu). Both ends need the same counts. Default: none.
    ///
    /// Computes the code, which takes 0.03 ms for (10, 3) and 8 ms for (128, 128) on an Intel Xeon: so make a configuration once, and
    /// clone it.
    ///
    /// This pays if round trips are long and messages urgent: what is lost need not be sent again. No parity is
    /// sent to a peer that has not proved its address.
    ///
    /// ```
    /// use slab_net::rudp::fec::FecShards;
    /// use slab_net::rudp::{EndpointConfig, SessionConfig};
    ///
    /// let config = EndpointConfig::new(SessionConfig::fast()).fec(FecShards::new(10, 3)?);
    /// # let _ = config;
    /// # Ok::<(), slab_net::rudp::fec::FecConfigError>(())
    /// ```
    #[cfg(feature = "fec")]
    pub fn fec(mut self, shards: FecShards) -> Self {
        self.protection.code = Some(Arc::new(Code::new(shards)));
        self
    }

    /// Takes the bytes that protection needs of each datagram from the session's MTU.
    pub(in super::super) fn reduce_mtu_for_protection(&mut self) {
        let mtu = self
            .session
            .mtu
            .saturating_sub(self.protection.overhead_bytes());
        self.session.mtu = mtu;
    }
}
