//! [`FecDecoder`]: computes what was lost from what arrived.
//!
//! The shards of each group in the window are kept until its data is complete. With `m` data shards missing, the
//! contributions of the others are removed from `m` parity shards. That leaves `m` equations with the missing
//! shards as unknowns.

use super::code::{self, Code};
use super::{COVERED_AT, FEC_HEADER_BYTES, FecShards, FecStats, Framing, MAX_PAUSE, seqid};
use crate::packet::{Packet, PacketBuf, PacketPool};
use crate::rudp::budget::{Account, MemoryBudget};
use crate::rudp::time::Time;
use std::sync::Arc;

/// The window holds this many shards, but no fewer than [`MIN_GROUPS`] groups.
const WINDOW_SHARDS: u32 = 64;
const MIN_GROUPS: u32 = 4;
/// A group so far ahead follows no loss: the peer began anew, at another number, or it is forged.
const FAR_AHEAD: u32 = 1 << 16;
/// A shard that contradicts the assumption that the peer uses our counts weighs as much as the shards of this many
/// groups that confirm it, and at most `MAX_CONTRADICTIONS` are forgiven in a row. If the counts differ, one comes in
/// every group or two.
const CONTRADICTION_COST: u32 = 4;
const MAX_CONTRADICTIONS: u32 = 4;
/// Afterwards the shards of this many groups have to confirm it in a row, and no fewer than `MIN_DOUBTED_SHARDS`: those
/// that contradict may be lost, and with few shards in a group the others soon look like a whole one. What is computed
/// from that can pass for a datagram: the sum of three segments is one.
const DOUBTED_GROUPS: u32 = 8;
const MIN_DOUBTED_SHARDS: u32 = 64;

/// The number of groups in the window.
fn window(shards: FecShards) -> u32 {
    WINDOW_SHARDS.div_ceil(shards.total()).max(MIN_GROUPS)
}

/// The most shards that a decoder keeps.
pub(in crate::rudp) fn max_kept_shards(shards: FecShards) -> usize {
    (window(shards) * shards.total()) as usize
}

/// Takes the shards that arrive from one address, and recovers datagrams that were lost.
///
/// A decoder is bounded: it keeps the shards of 64 datagrams or 4 groups, whichever is more, in pool memory that
/// counts in the budget, until [`handle_timeout`](Self::handle_timeout) frees it. It leaves a fourth of the budget to those
/// that cannot do without; without memory it recovers nothing and counts that.
/// It does not panic, whatever it is given. A datagram that it returns is what was protected only if all shards
/// came from the peer that protected it, for this session: use encryption against forgery; `rudp::crypto` says what
/// that leaves of replay.
///
/// See [`FecEncoder`](super::FecEncoder) for an example.
#[derive(Debug)]
pub struct FecDecoder {
    code: Arc<Code>,
    longest_shard: usize,
    pool: PacketPool,
    account: Account,
    /// Group number `n` is at `n` modulo the length.
    groups: Vec<Group>,
    newest: Option<u32>,
    /// Shards in a row that were behind the window.
    late_in_a_row: u32,
    /// Was the last data shard of a group that was given up, or complete already?
    was_refused: bool,
    /// Shards still to be ignored before the peer's counts are believed to be ours again.
    shards_to_ignore: u32,
    /// Shards that confirmed that, less the cost of those that contradicted it.
    confirmations: u32,
    /// Scratch memory for two matrices.
    matrices: Vec<u8>,
    /// When `handle_timeout` was first called after the last shard was kept.
    idle_since: Option<Time>,
    stats: FecStats,
}

#[derive(Debug, Default)]
struct Group {
    number: u32,
    /// By position; allocated with the window.
    shards: Vec<Option<PacketBuf>>,
    data: usize,
    parity: usize,
    /// Is nothing missing any more, or nothing known about it?
    closed: bool,
}

impl FecDecoder {
    /// Creates a decoder that refuses shards of more than `longest_shard` bytes, headers included.
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
            code,
            longest_shard,
            pool: pool.clone(),
            account: budget.account(),
            groups: Vec::new(),
            newest: None,
            late_in_a_row: 0,
            was_refused: false,
            shards_to_ignore: 0,
            confirmations: 0,
            matrices: Vec::new(),
            idle_since: None,
            stats: FecStats::default(),
        }
    }

    /// Takes a shard as received, and appends to `recovered` the lost datagrams that can now be computed. The
    /// datagram in a data shard itself is not appended: it is there already.
    pub fn handle_shard(&mut self, shard: &[u8], recovered: &mut Vec<Packet>) {
        let shards = self.code.shards;
        let is_data = match Framing::of(shard) {
            Some(Framing::Data) => true,
            Some(Framing::Parity) => false,
            _ => return self.stats.rejected += 1,
        };
        let Some(seqid) = seqid(shard).filter(|&seqid| seqid < shards.wrap()) else {
            return self.stats.rejected += 1;
        };
        self.stats.received_parity += u64::from(!is_data);
        let position = (seqid % shards.total()) as usize;
        if (position < shards.data()) != is_data {
            self.stats.rejected += 1;
            return self.on_contradiction();
        }
        if self.shards_to_ignore > 0 {
            self.shards_to_ignore -= 1;
            return self.stats.rejected += 1;
        }
        self.confirmations =
            (self.confirmations + 1).min(shards.total() * CONTRADICTION_COST * MAX_CONTRADICTIONS);
        let covered = &shard[COVERED_AT..];
        if shard.len() > self.longest_shard || (is_data && size(covered) != covered.len()) {
            return self.stats.rejected += 1;
        }
        let number = seqid / shards.total();
        let at = self.locate_group(number);
        let open = at.filter(|&at| !self.groups[at].closed);
        if is_data {
            self.was_refused = open.is_none();
        }
        let Some(mut at) = open else {
            return;
        };
        if let Some(kept) = &self.groups[at].shards[position] {
            if kept[..] == *covered {
                return;
            }
            // No number is given twice: the peer began anew, or one of the two was forged. What is computed from old and
            // new shards together was never sent.
            self.forget_shards();
            self.open_group(number);
            at = self.window_index(number);
        }
        if !self.store_shard(at, position, covered) {
            return self.stats.no_memory += 1;
        }
        let group = &self.groups[at];
        if group.data == shards.data() {
            self.close_group(at);
        } else if group.data + group.parity >= shards.data() {
            self.recover(at, recovered);
            self.close_group(at);
        }
    }

    /// A shard contradicts our counts. If the peer uses others, its groups are not what they seem, and what is
    /// computed from them was never sent. But a single such shard may be forged.
    #[cold]
    fn on_contradiction(&mut self) {
        let cost = self.code.shards.total() * CONTRADICTION_COST;
        match self.confirmations.checked_sub(cost) {
            Some(left) => self.confirmations = left,
            None => {
                self.clear();
                let doubted = DOUBTED_GROUPS * self.code.shards.total();
                self.shards_to_ignore = doubted.max(MIN_DOUBTED_SHARDS);
            }
        }
    }

    /// Forgets all shards: the next ones come from another encoder.
    pub fn clear(&mut self) {
        self.forget_shards();
        self.confirmations = 0;
    }

    fn forget_shards(&mut self) {
        for at in 0..self.groups.len() {
            self.close_group(at);
        }
        self.newest = None;
        self.was_refused = false;
    }

    /// A session with the peer begins. [Clears](Self::clear) the decoder if the data shard before was behind the window, or
    /// of a group that was complete already: a peer that has begun anew numbers its shards from zero again. Otherwise
    /// other sessions go on with this peer, and their shards with them.
    pub(in crate::rudp) fn clear_if_refused(&mut self) {
        if self.was_refused {
            self.clear();
        }
    }

    /// Frees the memory once it was called twice, half a second apart, and nothing came in between: no parity is
    /// sent so late. Returns when to call it again, if memory is still held.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Time> {
        if self.groups.is_empty() {
            return None;
        }
        let until = *self.idle_since.get_or_insert(now) + MAX_PAUSE;
        if now < until {
            return Some(until);
        }
        for at in 0..self.groups.len() {
            // The newest group may be incomplete with nothing lost.
            self.count_if_expired(at, self.newest);
            self.close_group(at);
        }
        self.groups = Vec::new();
        self.matrices = Vec::new();
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

    /// Returns the place of a group; moves the window if the group is new.
    fn locate_group(&mut self, number: u32) -> Option<usize> {
        let (window, all) = (window(self.code.shards), self.code.shards.groups());
        if self.groups.is_empty() {
            let positions = self.code.shards.total() as usize;
            self.groups.resize_with(window as usize, || Group {
                shards: (0..positions).map(|_| None).collect(),
                closed: true,
                ..Group::default()
            });
        }
        let ahead = match self.newest {
            // Exactly half way round counts as ahead.
            Some(newest) => (number + all - newest) % all,
            None => 0,
        };
        if ahead <= all / 2 && ahead >= FAR_AHEAD {
            self.forget_shards();
        }
        if self.newest.is_none() {
            self.open_group(number);
        } else if ahead <= all / 2 {
            // The groups that it skips have to be closed as well, but no more than the window has.
            for step in (0..ahead.min(window)).rev() {
                self.open_group((number + all - step) % all);
            }
        } else if all - ahead >= window {
            self.stats.late += 1;
            self.late_in_a_row += 1;
            if self.late_in_a_row <= self.code.shards.total().max(WINDOW_SHARDS) {
                return None;
            }
            // So many are not late: the newest was forged, or the peer began anew.
            self.clear();
            self.open_group(number);
        }
        self.late_in_a_row = 0;
        let at = self.window_index(number);
        // Every group of the window has been begun, except at the start.
        (self.groups[at].number == number).then_some(at)
    }

    /// The place of a group in the window. Where numbers wrap, two groups of a window may share one: the older is
    /// then given up early.
    fn window_index(&self, number: u32) -> usize {
        (number % window(self.code.shards)) as usize
    }

    /// Makes a group the newest, and closes the one whose place it takes.
    fn open_group(&mut self, number: u32) {
        let at = self.window_index(number);
        self.count_if_expired(at, None);
        self.close_group(at);
        let group = &mut self.groups[at];
        group.number = number;
        group.closed = false;
        self.newest = Some(number);
    }

    /// Counts a group that is given up with data missing, unless it is number `except`.
    fn count_if_expired(&mut self, at: usize, except: Option<u32>) {
        let group = &self.groups[at];
        if !group.closed && group.data < self.code.shards.data() && except != Some(group.number) {
            self.stats.expired += 1;
        }
    }

    /// Frees the memory of a group.
    fn close_group(&mut self, at: usize) {
        let group = &mut self.groups[at];
        group.closed = true;
        if group.data + group.parity > 0 {
            (group.data, group.parity) = (0, 0);
            for buf in group.shards.iter_mut().filter_map(Option::take) {
                self.account.release(buf.occupied_bytes());
            }
        }
    }

    /// Copies the covered part of a shard; returns `false` if there is no memory.
    fn store_shard(&mut self, at: usize, position: usize, covered: &[u8]) -> bool {
        let Ok(mut buf) = self.pool.try_alloc(covered.len()) else {
            return false;
        };
        if !self.account.reserve_spare(buf.occupied_bytes()) {
            return false;
        }
        buf.extend_from_slice(covered);
        self.idle_since = None;
        let group = &mut self.groups[at];
        group.shards[position] = Some(buf);
        if position < self.code.shards.data() {
            group.data += 1;
        } else {
            group.parity += 1;
        }
        true
    }

    /// Computes the missing data of a group that has as many parity shards as data is missing.
    fn recover(&mut self, at: usize, recovered: &mut Vec<Packet>) {
        let data = self.code.shards.data();
        let group = &mut self.groups[at];
        let missing = data - group.data;
        let (kept, parity) = group.shards.split_at_mut(data);
        // The rows are the first parity shards present. All are as long as the longest data.
        let mut rows = parity
            .iter_mut()
            .enumerate()
            .filter_map(|(row, buf)| Some((row, buf.as_mut()?)))
            .take(missing);
        self.matrices.resize(2 * missing * missing, 0);
        let (matrix, inverse) = self.matrices.split_at_mut(missing * missing);
        let mut length = None;
        let fits = rows.by_ref().enumerate().all(|(at, (row, parity))| {
            let columns = (0..data).filter(|&column| kept[column].is_none());
            for (cell, column) in matrix[at * missing..].iter_mut().zip(columns) {
                *cell = self.code.coefficient(row, column);
            }
            for (column, data) in kept.iter().enumerate() {
                let Some(data) = data else { continue };
                if data.len() > parity.len() {
                    return false;
                }
                self.code.add(row, column, data, parity);
            }
            *length.get_or_insert(parity.len()) == parity.len()
        });
        if !fits {
            self.stats.rejected += 1;
            return;
        }
        code::invert(matrix, inverse, missing);
        let length = length.unwrap_or(0);
        for row in inverse.chunks(missing) {
            let Ok(mut buf) = self.pool.try_alloc(length) else {
                self.stats.no_memory += 1;
                continue;
            };
            buf.resize(length, 0);
            for (factor, parity) in row.iter().zip(parity.iter().flatten()) {
                code::add_multiple(*factor, parity, &mut buf);
            }
            match datagram(buf) {
                Some(datagram) => {
                    self.stats.recovered += 1;
                    recovered.push(datagram);
                }
                None => self.stats.rejected += 1,
            }
        }
    }
}

/// The `size` field at the front of what the code covers.
fn size(covered: &[u8]) -> usize {
    covered
        .first_chunk()
        .map_or(0, |size| u16::from_le_bytes(*size).into())
}

/// The datagram in what was computed, if it is one: its size is possible, and only zeros follow.
fn datagram(computed: PacketBuf) -> Option<Packet> {
    let size = size(&computed);
    let inner = FEC_HEADER_BYTES - COVERED_AT..size;
    let padding = computed.get(size..)?;
    if size < inner.start || padding.iter().any(|&byte| byte != 0) {
        return None;
    }
    Some(computed.freeze().slice(inner))
}

#[cfg(test)]
mod tests {
    use super::super::FecEncoder;
    use super::*;

    fn pool() -> PacketPool {
        PacketPool::builder().max_memory(8 << 20).build().unwrap()
    }

    /// The shards of `groups` groups, of one length.
    fn groups(shards: FecShards, groups: usize) -> Vec<Vec<u8>> {
        let mut encoder = FecEncoder::new(shards, 1500, &pool(), &MemoryBudget::new(1 << 20));
        let mut all = Vec::new();
        for n in 0..groups * shards.data() {
            let mut shard = vec![n as u8; 1000];
            encoder.protect(Time::ZERO, &mut shard);
            all.push(shard);
            while let Some(len) = encoder.parity_len() {
                let mut parity = vec![0; len];
                encoder.next_parity(&mut parity);
                all.push(parity);
            }
        }
        all
    }

    fn decoder(shards: FecShards, pool: &PacketPool) -> FecDecoder {
        FecDecoder::new(shards, 1500, pool, &MemoryBudget::new(1 << 20))
    }

    /// The last chunk takes the shard with which there are enough.
    #[test]
    fn what_is_not_recovered_for_want_of_memory_is_counted() {
        let (pool, shards) = (pool(), FecShards::new(2, 1).unwrap());
        let (mut decoder, group) = (decoder(shards, &pool), groups(shards, 1));
        let mut recovered = Vec::new();
        decoder.handle_shard(&group[0], &mut recovered);
        let covered = group[2].len() - COVERED_AT;
        let mut all: Vec<_> = core::iter::from_fn(|| pool.try_alloc(covered).ok()).collect();
        all.pop();
        decoder.handle_shard(&group[2], &mut recovered);
        assert!(recovered.is_empty());
        let stats = decoder.stats();
        assert_eq!((stats.no_memory, stats.recovered), (1, 0));
        assert_eq!(decoder.held_bytes(), 0);
    }

    /// Datagrams overtake each other, by whole groups.
    #[test]
    fn a_group_that_was_skipped_is_recovered_when_it_comes() {
        let (pool, shards) = (pool(), FecShards::new(2, 1).unwrap());
        let (mut decoder, all) = (decoder(shards, &pool), groups(shards, 4));
        let mut recovered = Vec::new();
        // All but the first shard of each group.
        for at in [1, 2, 10, 7, 8, 4, 5, 11] {
            decoder.handle_shard(&all[at], &mut recovered);
        }
        assert_eq!((recovered.len(), decoder.stats().late), (4, 0));
    }

    /// One that is late now and then does not mean that the peer has begun anew.
    #[test]
    fn late_shards_are_counted_and_cost_nothing_else() {
        let (pool, shards) = (pool(), FecShards::new(2, 1).unwrap());
        let (mut decoder, all) = (decoder(shards, &pool), groups(shards, 150));
        let window = window(decoder.code.shards) as usize;
        let mut recovered = Vec::new();
        for group in all.chunks(3) {
            for shard in [&group[1], &all[0], &group[2]] {
                decoder.handle_shard(shard, &mut recovered);
            }
        }
        let late = decoder.stats().late as usize;
        assert_eq!((recovered.len(), late), (149, 150 - window));
    }

    /// Where the numbers of an endpoint's path begin is random.
    #[test]
    fn a_peer_that_begins_anew_far_ahead_has_skipped_nothing() {
        let (pool, shards) = (pool(), FecShards::new(2, 1).unwrap());
        let mut decoder = decoder(shards, &pool);
        let mut recovered = Vec::new();
        decoder.handle_shard(&groups(shards, 1)[0], &mut recovered);
        let budget = MemoryBudget::new(1 << 20);
        let mut encoder = FecEncoder::new(shards, 1500, &pool, &budget).begin_at(1 << 20);
        for n in 0..200 {
            let mut shard = vec![n; 1000];
            encoder.protect(Time::ZERO, &mut shard);
            // The first of each group is lost.
            if n % 2 == 1 {
                decoder.handle_shard(&shard, &mut recovered);
                let len = encoder.next_parity(&mut shard).unwrap();
                decoder.handle_shard(&shard[..len], &mut recovered);
            }
        }
        assert_eq!((recovered.len(), decoder.stats().expired), (100, 0));
    }

    /// A peer that had other counts begins anew with ours.
    #[test]
    fn the_shards_of_other_counts_silence_the_decoder_for_some_groups() {
        let (pool, shards) = (pool(), FecShards::new(2, 1).unwrap());
        let mut decoder = decoder(shards, &pool);
        let mut recovered = Vec::new();
        for shard in groups(FecShards::new(3, 1).unwrap(), 1) {
            decoder.handle_shard(&shard, &mut recovered);
        }
        assert!(recovered.is_empty());
        for (at, shard) in groups(shards, 35).iter().enumerate() {
            // The first of each group is lost.
            if at % 3 > 0 {
                decoder.handle_shard(shard, &mut recovered);
            }
        }
        assert_eq!(recovered.len(), 3, "{:?}", decoder.stats());
        // One of the other counts, and all of ours, also those that were ignored.
        assert_eq!(decoder.stats().received_parity, 36);
    }

    /// However large the groups are.
    #[test]
    fn as_many_shards_are_ignored_as_have_to_confirm_the_counts() {
        // Two of the four contradict the first counts, one the second.
        for (data, parity, contradictions, ignored) in [(2, 1, 2, 64), (10, 3, 1, 8 * 13)] {
            let (pool, shards) = (pool(), FecShards::new(data, parity).unwrap());
            let mut decoder = decoder(shards, &pool);
            let theirs = groups(FecShards::new(3, 1).unwrap(), 1);
            for shard in theirs.iter().chain(&groups(shards, 40)) {
                decoder.handle_shard(shard, &mut Vec::new());
            }
            assert_eq!(decoder.stats().rejected, contradictions + ignored);
        }
    }
}
