//! [`Protection`]: error correction, and around it encryption, between the sessions and the socket, if either is
//! configured.
//!
//! A datagram on the wire, and the bytes that each part takes:
//!
//! | nonce | header of error correction | the session's datagram | tag |
//! |---|---|---|---|
//! | 12 | 8 | | 16 |
//!
//! Before a datagram is sent it is copied once, into its thread's memory with room for these parts around it, and
//! sealed there: the session keeps what it may have to send again. A received datagram is opened in the buffer that
//! the kernel filled, and the session gets a slice of that buffer.
//!
//! | module | what |
//! |---|---|
//! | `config` | what a configuration asks for |
//! | `transmit` | from a session to the socket |
//! | `gso_buffer` | datagrams that are ready, as the kernel takes them |
//! | `paths` | error correction, by address |

mod config;
mod gso_buffer;
#[cfg(feature = "fec")]
mod paths;
mod transmit;

use super::super::core::Outgoing;
use super::super::error::OpenError;
use super::super::time::Time;
use super::EndpointConfig;
use super::stats::EndpointStats;
use crate::packet::{Packet, PacketPool};
use crate::rudp::budget::MemoryBudget;
#[cfg(feature = "aes-gcm")]
use crate::rudp::crypto::{AesGcm, NONCE_BYTES, TAG_BYTES};
#[cfg(feature = "fec")]
use crate::rudp::fec::{FEC_HEADER_BYTES, Framing};
use crate::udp::PacketBatch;
pub(super) use config::ProtectionConfig;
use core::sync::atomic::{AtomicU64, Ordering};
use gso_buffer::GsoBuffer;
#[cfg(feature = "fec")]
use paths::Paths;
use std::net::SocketAddr;
use std::vec;

pub(super) struct Protection {
    #[cfg(feature = "aes-gcm")]
    key: Option<AesGcm>,
    #[cfg(feature = "fec")]
    paths: Option<Paths>,
    /// Bytes in front of a datagram, and behind it.
    overhead: (usize, usize),
    unopened: AtomicU64,
}

impl Protection {
    /// The protection that the configuration asks for, if any.
    pub(super) fn new(
        config: &EndpointConfig,
        pool: &PacketPool,
        budget: &MemoryBudget,
    ) -> Result<Option<Self>, OpenError> {
        let protection = &config.protection;
        let _ = (pool, budget);
        let overhead = (protection.header_bytes(), protection.trailer_bytes());
        if overhead == (0, 0) {
            return Ok(None);
        }
        #[cfg(feature = "aes-gcm")]
        let key = protection.key.as_ref().map(AesGcm::with_own_nonces);
        Ok(Some(Self {
            // The key itself is valid.
            #[cfg(feature = "aes-gcm")]
            key: key.transpose().map_err(|_| OpenError::NoRandom)?,
            #[cfg(feature = "fec")]
            paths: protection
                .code
                .as_ref()
                .map(|code| Paths::new(code, &config.session, pool, budget)),
            overhead,
            unopened: AtomicU64::new(0),
        }))
    }

    /// A session with this address begins.
    pub(super) fn join(&self, peer: SocketAddr) {
        let _ = peer;
        #[cfg(feature = "fec")]
        if let Some(paths) = &self.paths {
            paths.join(peer);
        }
    }

    /// A session that joined is gone.
    pub(super) fn leave(&self, peer: SocketAddr) {
        let _ = peer;
        #[cfg(feature = "fec")]
        if let Some(paths) = &self.paths {
            paths.leave(peer);
        }
    }

    /// Frees memory that nobody waits for any more; returns when to call it again, if some is still held.
    pub(super) fn free_idle(&self, now: Time) -> Option<Time> {
        let _ = now;
        #[cfg(feature = "fec")]
        if let Some(paths) = &self.paths {
            return paths.free_idle(now);
        }
        None
    }

    /// Returns `true`, once, if [`free_idle`](Self::free_idle) has to be called although it asked for no other call.
    pub(super) fn take_unscheduled(&self) -> bool {
        #[cfg(feature = "fec")]
        if let Some(paths) = &self.paths {
            return paths.take_unscheduled();
        }
        false
    }

    /// Makes a session's datagrams ready for the wire, followed by the parity that is due, if parity may be sent.
    /// `flush` makes room when there is none.
    fn seal(
        &self,
        peer: SocketAddr,
        now: Time,
        outgoing: &Outgoing<'_>,
        parity: bool,
        buffer: &mut GsoBuffer,
        mut flush: impl FnMut(&mut GsoBuffer),
    ) {
        let _ = (peer, now, parity);
        #[cfg(feature = "fec")]
        let path = self.paths.as_ref().and_then(|paths| paths.get(peer));
        #[cfg(feature = "fec")]
        let mut encoder = path.as_ref().map(|path| path.encoder());
        self.renew_nonces_after_fork();
        // Without a path, because the session has left it, the datagrams are no shards; peers accept them as they
        // are.
        let (shard_at, behind) = self.shard_overhead();
        let front = shard_at;
        #[cfg(feature = "fec")]
        let front = front + encoder.as_ref().map_or(0, |_| FEC_HEADER_BYTES);
        for datagram in outgoing.contents().chunks(outgoing.segment_size()) {
            let len = front + datagram.len() + behind;
            let sealed = buffer.push(len, &mut flush);
            sealed[front..front + datagram.len()].copy_from_slice(datagram);
            #[cfg(feature = "fec")]
            if let Some(encoder) = &mut encoder {
                encoder.protect(now, &mut sealed[shard_at..len - behind]);
            }
            self.encrypt(sealed);
            #[cfg(feature = "fec")]
            if let Some(encoder) = encoder.as_mut().filter(|_| parity) {
                while let Some(shard) = encoder.parity_len() {
                    let sealed = buffer.push(shard_at + shard + behind, &mut flush);
                    encoder.next_parity(&mut sealed[shard_at..shard_at + shard]);
                    self.encrypt(sealed);
                }
            }
        }
    }

    /// Bytes in front of and behind a shard, or a datagram that is not a shard.
    fn shard_overhead(&self) -> (usize, usize) {
        let (front, behind) = self.overhead;
        #[cfg(feature = "fec")]
        if self.paths.is_some() {
            return (front - FEC_HEADER_BYTES, behind);
        }
        (front, behind)
    }

    /// Call before datagrams are encrypted, once for all of them.
    fn renew_nonces_after_fork(&self) {
        #[cfg(feature = "aes-gcm")]
        if let Some(key) = &self.key {
            key.renew_nonces_after_fork();
        }
    }

    fn encrypt(&self, datagram: &mut [u8]) {
        let _ = datagram;
        #[cfg(feature = "aes-gcm")]
        if let Some(key) = &self.key {
            key.seal_next(datagram);
        }
    }

    /// Decrypts received datagrams in place.
    fn decrypt(&self, batch: PacketBatch, opened: &mut Vec<Packet>) {
        #[cfg(feature = "aes-gcm")]
        if let Some(key) = &self.key {
            return self.open_batch(key, batch, opened);
        }
        opened.extend(batch.into_packets());
    }

    #[cfg(feature = "aes-gcm")]
    fn open_batch(&self, key: &AesGcm, mut batch: PacketBatch, opened: &mut Vec<Packet>) {
        let stride = batch.segment_size().max(1);
        let Some(contents) = batch.contents_mut() else {
            // Somebody else holds a part of it, so it is not from a receiver of ours.
            let refused = batch.datagrams() as u64;
            self.unopened.fetch_add(refused, Ordering::Relaxed);
            return;
        };
        // Which datagrams did not open. Beyond 128, which kernels do not make, bits are shared. An empty one is no
        // chunk.
        let mut bad = u128::from(contents.is_empty());
        for (at, datagram) in contents.chunks_mut(stride).enumerate() {
            // What we have sealed ourselves says nothing about the peer, whoever sends it back.
            if key.has_sealed(datagram) || key.open(datagram).is_none() {
                bad |= 1 << (at % 128);
            }
        }
        for (at, mut datagram) in batch.into_packets().enumerate() {
            if bad >> (at % 128) & 1 == 1 {
                self.unopened.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            datagram.truncate(datagram.len() - TAG_BYTES);
            bytes::Buf::advance(&mut datagram, NONCE_BYTES);
            opened.push(datagram);
        }
    }

    /// Adds its counters.
    pub(super) fn count(&self, stats: &mut EndpointStats) {
        stats.unopened = self.unopened.load(Ordering::Relaxed);
        #[cfg(feature = "fec")]
        if let Some(paths) = &self.paths {
            stats.fec = paths.stats();
        }
    }
}

/// Received datagrams between the steps; kept so that each batch needs no allocation.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    opened: Vec<Packet>,
    #[cfg(feature = "fec")]
    datagrams: Vec<Packet>,
}

impl Inbound {
    /// Opens what was received from one canonical address, and hands the sessions' datagrams to `deliver`, together
    /// with those recovered. `deliver` opens a session where one begins.
    pub(super) fn process_batch(
        &mut self,
        protection: &Protection,
        peer: SocketAddr,
        batch: PacketBatch,
        mut deliver: impl FnMut(vec::Drain<'_, Packet>),
    ) {
        let _ = peer;
        protection.decrypt(batch, &mut self.opened);
        #[cfg(feature = "fec")]
        if let Some(paths) = &protection.paths {
            return self.apply_fec(paths, peer, deliver);
        }
        deliver(self.opened.drain(..));
    }

    #[cfg(feature = "fec")]
    fn apply_fec(
        &mut self,
        paths: &Paths,
        peer: SocketAddr,
        mut deliver: impl FnMut(vec::Drain<'_, Packet>),
    ) {
        let _held = slab_core::hold_wakes(); // as in `Paths::free_idle`
        let Self { opened, datagrams } = self;
        let known = paths.get(peer);
        let mut decoder = known.as_ref().map(|path| path.decoder());
        for shard in &mut *opened {
            let is_data = match Framing::of(shard) {
                Some(Framing::Data) => true,
                Some(Framing::Parity) => false,
                // Nothing to correct, or not a datagram of ours at all: the sessions decide.
                Some(Framing::Plain) | None => {
                    datagrams.push(core::mem::take(shard));
                    continue;
                }
            };
            if is_data {
                datagrams.push(shard.slice(FEC_HEADER_BYTES..));
            }
            if let Some(decoder) = &mut decoder {
                decoder.handle_shard(shard, datagrams);
            }
        }
        drop(decoder);
        if known.is_some() {
            opened.clear();
        }
        deliver(datagrams.drain(..));
        if known.is_some() {
            return;
        }
        if let Some(path) = paths.get(peer) {
            // The shard that opened a session is the first one kept for it.
            let mut decoder = path.decoder();
            for shard in opened.drain(..).filter(|shard| !shard.is_empty()) {
                decoder.handle_shard(&shard, datagrams);
            }
        } else {
            // Parity from nowhere is counted like whatever else belongs to no session.
            let is_parity = |shard: &Packet| Framing::of(shard) == Some(Framing::Parity);
            datagrams.extend(opened.drain(..).filter(is_parity));
        }
        deliver(datagrams.drain(..));
    }
}

#[cfg(all(test, feature = "fec"))]
mod tests {
    use super::*;
    use crate::rudp::core::{Session, Side};
    use crate::rudp::fec::FecShards;
    use crate::rudp::{Endpoint, SessionConfig};
    use slab_core::SizeClasses;

    /// Another thread may remove the path while a session still has a notice to send.
    #[test]
    fn without_a_path_datagrams_are_not_shards_and_leak_no_buffer_contents() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let budget = MemoryBudget::new(8 << 20);
        let session = SessionConfig::fast();
        let config = EndpointConfig::new(session).fec(FecShards::new(2, 1).unwrap());
        let protection = Protection::new(&config, &pool, &budget).unwrap().unwrap();
        let (peer, now) = ("192.0.2.1:9".parse().unwrap(), Time::ZERO);
        let mut session =
            Session::open(7, &session, Side::Client, &pool, &budget, 9 << 32, now).unwrap();
        let mut scratch = [0; 4096];
        let outgoing = session.poll_transmit(now, &mut scratch, 1).unwrap();
        for has_path in [false, true] {
            if has_path {
                protection.join(peer);
            }
            let looks_left = [b'S', b'A'].map(|left| {
                let mut looks_left = Vec::new();
                gso_buffer::with_gso_buffer(usize::MAX, |buffer| {
                    buffer.push(1000, |_| ()).fill(left);
                    buffer.clear();
                    protection.seal(peer, now, &outgoing, false, buffer, |_| {});
                    let sealed = buffer.rest(0).contents;
                    let (header, datagram) =
                        sealed.split_at(if has_path { FEC_HEADER_BYTES } else { 0 });
                    assert_eq!(datagram, outgoing.contents());
                    looks_left.extend(header.iter().map(|&byte| byte == left));
                });
                looks_left
            });
            // The number of a shard is random: a byte of it may look like what was left once, but not both times, as
            // the next number is one more.
            let [once, again] = looks_left;
            assert!(once.iter().zip(&again).all(|(once, again)| !(once & again)));
        }
    }

    /// One of two ends that share a key, and what the other seals with.
    #[cfg(feature = "aes-gcm")]
    fn with_key(pool: &PacketPool) -> (Protection, AesGcm) {
        let [ours, theirs] = [0; 2].map(|_| AesGcm::new(&[7; 16]).unwrap());
        let config = EndpointConfig::default().aes_gcm(ours);
        let protection = Protection::new(&config, pool, &MemoryBudget::new(0));
        (protection.unwrap().unwrap(), theirs)
    }

    /// The kernel may have joined them. What is bad costs nothing else, and what was not opened is not taken.
    #[cfg(feature = "aes-gcm")]
    #[test]
    fn of_joined_datagrams_each_is_opened_or_refused() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let (protection, theirs) = with_key(&pool);
        let mut joined = Vec::new();
        for n in 0..100_u8 {
            let mut datagram = [n; NONCE_BYTES + 5 + TAG_BYTES];
            theirs.seal(&mut datagram);
            datagram[NONCE_BYTES] ^= n % 3;
            joined.extend_from_slice(&datagram);
        }
        let (each, peer) = (joined.len() / 100, "192.0.2.1:9".parse().unwrap());
        let batch = PacketBatch::try_copy_from_slice(&pool, &joined, each, peer).unwrap();
        let mut opened = Vec::new();
        protection.decrypt(batch, &mut opened);
        let good: Vec<_> = (0..100).step_by(3).map(|n| vec![n; 5]).collect();
        assert_eq!(opened, good);
        assert_eq!(protection.unopened.load(Ordering::Relaxed), 66);
    }

    /// Nobody else has a batch of ours; but whoever made this one kept a part of it.
    #[cfg(feature = "aes-gcm")]
    #[test]
    fn all_datagrams_of_a_batch_that_cannot_be_opened_are_counted() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let (protection, theirs) = with_key(&pool);
        let mut datagram = [5; NONCE_BYTES + 5 + TAG_BYTES];
        theirs.seal(&mut datagram);
        let (all, peer) = (datagram.repeat(4), "192.0.2.1:9".parse().unwrap());
        let mut batch =
            PacketBatch::try_copy_from_slice(&pool, &all, datagram.len(), peer).unwrap();
        let kept = batch.split_first();
        let mut opened = Vec::new();
        protection.decrypt(batch, &mut opened);
        assert!(opened.is_empty());
        assert_eq!(protection.unopened.load(Ordering::Relaxed), 3);
        drop(kept);
    }

    /// A shard may take a larger chunk than a segment, because its header counts.
    #[tokio::test]
    async fn half_open_sessions_are_limited_by_what_error_correction_keeps_for_them() {
        let classes = SizeClasses::explicit(&[64, 1536, 65_536]).unwrap();
        let builder = PacketPool::builder().size_classes(classes).headroom(60);
        let pool = builder.max_memory(64 << 20).build().unwrap();
        let shards = FecShards::new(10, 3).unwrap();
        let config = EndpointConfig::new(SessionConfig::fast()).fec(shards);
        let endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap(), &pool, config).unwrap();
        let shared = &endpoint.handle.shared;
        let protection = shared.protection.as_ref().unwrap();
        let peer = "192.0.2.1:9".parse().unwrap();
        protection.join(peer);
        let path = protection.paths.as_ref().unwrap().get(peer).unwrap();
        // All that can be kept of data shards: in each group one is missing.
        for seqid in (0..65_u32).filter(|seqid| seqid % 13 < 9) {
            let mut shard = vec![7; 1500];
            shard[..4].copy_from_slice(&seqid.to_le_bytes());
            shard[4..6].copy_from_slice(&0xf1_u16.to_le_bytes());
            shard[6..8].copy_from_slice(&1494_u16.to_le_bytes());
            path.decoder().handle_shard(&shard, &mut Vec::new());
        }
        let kept = path.decoder().held_bytes();
        assert_eq!(kept, 45 * 65_536);
        let each = kept + 2 * Session::opening_bytes(&shared.config.session, &pool).unwrap();
        let all = shared.config.max_half_open * each;
        assert!(all <= shared.context.budget.limit() / 4, "{all}");
    }
}
