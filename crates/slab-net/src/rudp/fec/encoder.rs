//! [`FecEncoder`]: makes the shards to be sent.
//!
//! Parity is accumulated as the data passes by, so that no datagram is kept for it.

use super::code::Code;
use super::{
    COVERED_AT, DATA, FEC_HEADER_BYTES, FecShards, FecStats, LONGEST_SHARD, MAX_PAUSE, PARITY,
};
use crate::packet::{PacketBuf, PacketPool};
use crate::rudp::budget::{Account, MemoryBudget};
use crate::rudp::time::Time;
use std::sync::Arc;

/// Turns datagrams for one address into data shards, and makes their parity.
///
/// While a group is not complete, the encoder holds a datagram's memory for each parity shard. That comes from the
/// pool and counts in the budget; [`handle_timeout`](Self::handle_timeout) frees it when nothing follows. The encoder makes no heap
/// allocation but in its first group, and in the first after that.
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::rudp::fec::{FEC_HEADER_BYTES, FecDecoder, FecEncoder, FecShards};
/// use slab_net::rudp::{MemoryBudget, Time};
///
/// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let budget = MemoryBudget::new(1 << 20);
/// let shards = FecShards::new(2, 1)?;
/// let mut encoder = FecEncoder::new(shards, 1400, &pool, &budget);
/// let mut decoder = FecDecoder::new(shards, 1500, &pool, &budget);
///
/// // Any bytes will do as a datagram here.
/// let mut wire = vec![vec![0; FEC_HEADER_BYTES]; 2];
/// wire[0].extend_from_slice(b"to be lost");
/// wire[1].extend_from_slice(b"to arrive");
/// for shard in &mut wire {
///     encoder.protect(Time::ZERO, shard);
/// }
/// let mut parity = [0; 1400];
/// let len = encoder.next_parity(&mut parity).expect("the group is complete");
///
/// let mut recovered = Vec::new();
/// decoder.handle_shard(&wire[1], &mut recovered);
/// decoder.handle_shard(&parity[..len], &mut recovered);
/// assert_eq!(recovered[0], b"to be lost"[..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FecEncoder {
    code: Arc<Code>,
    longest_shard: usize,
    pool: PacketPool,
    account: Account,
    next: u32,
    /// Data shards of the current group so far.
    filled: usize,
    /// Their parity; empty if there is none, or no memory for it.
    parity: Vec<PacketBuf>,
    /// Parity shards of the last complete group that have been taken; all while a group is not complete.
    parity_taken: usize,
    last_protected: Option<Time>,
    stats: FecStats,
}

impl FecEncoder {
    /// Creates an encoder for shards of at most `longest_shard` bytes, headers included. A shard has no more than
    /// 65 541 in any case: there are two bytes for its size.
    #[must_use]
    pub fn new(
        shards: FecShards,
        longest_shard: usize,
        pool: &PacketPool,
        budget: &MemoryBudget,
    ) -> Self {
        Self::with_code(Arc::new(Code::new(shards)), longest_shard, pool, budget)
    }

    pub(in crate::rudp) fn with_code(
        code: Arc<Code>,
        longest_shard: usize,
        pool: &PacketPool,
        budget: &MemoryBudget,
    ) -> Self {
        Self {
            parity_taken: code.shards.parity(),
            code,
            longest_shard: longest_shard.min(LONGEST_SHARD),
            pool: pool.clone(),
            account: budget.account(),
            next: 0,
            filled: 0,
            parity: Vec::new(),
            last_protected: None,
            stats: FecStats::default(),
        }
    }

    /// Begins at another group than the first, one of half of them.
    pub(in crate::rudp) fn begin_at(mut self, number: u64) -> Self {
        let shards = self.code.shards;
        // Further on, others might take it for one behind the first.
        let group = number % u64::from(shards.groups() / 2);
        self.next = group as u32 * shards.total();
        self
    }

    /// Makes a data shard of the datagram that lies behind [`FEC_HEADER_BYTES`] free bytes in `shard`. Call
    /// [`next_parity`](Self::next_parity) after each one until it returns `None`; parity not taken is not sent.
    ///
    /// # Panics
    /// If the shard is shorter than its header, or longer than a shard may be here.
    pub fn protect(&mut self, now: Time, shard: &mut [u8]) {
        assert!(
            shard.len() >= FEC_HEADER_BYTES && shard.len() <= self.longest_shard,
            "a shard of {} bytes",
            shard.len()
        );
        let covered = shard.len() - COVERED_AT;
        self.skip_parity();
        self.write_header(shard, DATA);
        shard[COVERED_AT..FEC_HEADER_BYTES].copy_from_slice(&(covered as u16).to_le_bytes());
        if self.filled == 0 {
            self.begin_group();
        }
        for (row, parity) in self.parity.iter_mut().enumerate() {
            if parity.len() < covered {
                parity.resize(covered, 0);
            }
            self.code
                .add(row, self.filled, &shard[COVERED_AT..], parity);
        }
        self.filled += 1;
        let before = self.last_protected.replace(now);
        if self.filled == self.code.shards.data() {
            self.filled = 0;
            self.parity_taken = 0;
            if before.is_some_and(|before| now.since(before) >= MAX_PAUSE) {
                self.skip_parity();
            }
        }
    }

    /// Returns the length of the next parity shard that is due, if there is one.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::fec::{FEC_HEADER_BYTES, FecEncoder, FecShards};
    /// # use slab_net::rudp::{MemoryBudget, Time};
    /// # let (pool, budget) = (PacketPool::builder().max_memory(8 << 20).build()?, MemoryBudget::new(1 << 20));
    /// # let mut encoder = FecEncoder::new(FecShards::new(1, 2)?, 1400, &pool, &budget);
    /// # let mut shard = [7; FEC_HEADER_BYTES + 100];
    /// encoder.protect(Time::ZERO, &mut shard);
    /// let mut to_send = vec![shard.to_vec()];
    /// while let Some(len) = encoder.parity_len() {
    ///     let mut parity = vec![0; len];
    ///     encoder.next_parity(&mut parity);
    ///     to_send.push(parity);
    /// }
    /// assert_eq!(to_send.len(), 3); // 1 of data, 2 of parity
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn parity_len(&self) -> Option<usize> {
        // `parity_taken` is beyond the end while none is due; the list is empty if there was no memory.
        let parity = self.parity.get(self.parity_taken)?;
        Some(COVERED_AT + parity.len())
    }

    /// Writes the next parity shard that is due to the front of `to`, and returns its length; `None` if none is
    /// due.
    ///
    /// # Panics
    /// If `to` is shorter than the shard.
    pub fn next_parity(&mut self, to: &mut [u8]) -> Option<usize> {
        let len = self.parity_len()?;
        let shard = &mut to[..len];
        shard[COVERED_AT..].copy_from_slice(&self.parity[self.parity_taken]);
        self.write_header(shard, PARITY);
        self.parity_taken += 1;
        self.stats.sent_parity += 1;
        if self.parity_taken == self.code.shards.parity() {
            self.release();
        }
        Some(len)
    }

    /// Frees the memory if nothing was protected for half a second: parity would come too late by then, and the
    /// unfinished group gets none. Returns when to call it again, if memory is still held.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::fec::{FEC_HEADER_BYTES, FecDecoder, FecEncoder, FecShards};
    /// # use slab_net::rudp::{MemoryBudget, Time};
    /// # let (pool, budget) = (PacketPool::builder().max_memory(8 << 20).build()?, MemoryBudget::new(1 << 20));
    /// # let shards = FecShards::new(2, 1)?;
    /// # let mut encoder = FecEncoder::new(shards, 1400, &pool, &budget);
    /// # let mut decoder = FecDecoder::new(shards, 1400, &pool, &budget);
    /// # let mut shard = [7; FEC_HEADER_BYTES + 100];
    /// encoder.protect(Time::ZERO, &mut shard); // the first of two, and no other comes
    /// decoder.handle_shard(&shard, &mut Vec::new());
    /// assert!(encoder.held_bytes() > 0 && decoder.held_bytes() > 0);
    ///
    /// let mut now = Time::ZERO;
    /// while let Some(next) = [encoder.handle_timeout(now), decoder.handle_timeout(now)].into_iter().flatten().min() {
    ///     now = next; // a timer waits until then
    /// }
    /// assert_eq!((encoder.held_bytes(), decoder.held_bytes()), (0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn handle_timeout(&mut self, now: Time) -> Option<Time> {
        let until = self.last_protected? + MAX_PAUSE;
        if now < until {
            return (!self.parity.is_empty()).then_some(until);
        }
        self.parity = Vec::new();
        self.release();
        None
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> FecStats {
        self.stats
    }

    /// Returns the bytes of pool memory that it keeps in use.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.account.bytes()
    }

    fn write_header(&mut self, shard: &mut [u8], kind: u16) {
        shard[..4].copy_from_slice(&self.next.to_le_bytes());
        shard[4..COVERED_AT].copy_from_slice(&kind.to_le_bytes());
        self.next = (self.next + 1) % self.code.shards.wrap();
    }

    /// Drops the parity that is due. Its numbers stay unused, as a group begins at a multiple of its size.
    fn skip_parity(&mut self) {
        let left = self.code.shards.parity() - self.parity_taken;
        if left > 0 {
            self.next =
                ((u64::from(self.next) + left as u64) % u64::from(self.code.shards.wrap())) as u32;
            self.parity_taken += left;
            self.release();
        }
    }

    /// Takes memory for the parity of a group, all of it or none.
    fn begin_group(&mut self) {
        let shards = self.code.shards.parity();
        self.parity.reserve_exact(shards);
        for _ in 0..shards {
            let Ok(buf) = self.pool.try_alloc(self.longest_shard) else {
                break;
            };
            if !self.account.reserve_spare(buf.occupied_bytes()) {
                break;
            }
            self.parity.push(buf);
        }
        if self.parity.len() < shards {
            self.stats.no_memory += 1;
            self.release();
        }
    }

    fn release(&mut self) {
        self.parity.clear();
        self.account.release(self.account.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::seqid;
    use super::*;

    /// Numbers wrap at the largest multiple of the group's size, even if that is within parity that is left out.
    #[test]
    fn seqids_wrap_at_a_group_boundary() {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let budget = MemoryBudget::new(1 << 20);
        let shards = FecShards::new(3, 2).unwrap();
        for pause in [false, true] {
            let mut encoder = FecEncoder::new(shards, 1000, &pool, &budget);
            encoder.next = shards.wrap() - 5;
            let (mut now, mut numbers) = (Time::ZERO, Vec::new());
            for n in 0..4 {
                if pause && n == 2 {
                    now = now + MAX_PAUSE;
                }
                let mut shard = [7; 100];
                encoder.protect(now, &mut shard);
                numbers.extend(seqid(&shard));
                while let Some(len) = encoder.next_parity(&mut shard) {
                    numbers.extend(seqid(&shard[..len]));
                }
            }
            let last = u32::MAX / 5 * 5 - 5;
            let mut expected = vec![last, last + 1, last + 2, last + 3, last + 4, 0];
            if pause {
                expected.drain(3..5);
            }
            assert_eq!(numbers, expected);
        }
    }
}
