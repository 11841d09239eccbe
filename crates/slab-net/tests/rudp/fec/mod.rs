//! Forward error correction, without sockets: what is lost is recovered as far as it can be, and memory is bounded
//! and comes back.

mod refusal;

use crate::common::Random;
use slab_net::rudp::fec::{FEC_HEADER_BYTES, FecDecoder, FecEncoder, FecShards, Framing};
use slab_net::rudp::{MemoryBudget, Time};
use slab_net::{Packet, PacketPool};
use std::time::Duration;

const LONGEST: usize = 1500;

struct Pair {
    pool: PacketPool,
    budget: MemoryBudget,
    encoder: FecEncoder,
    decoder: FecDecoder,
    now: Time,
}

impl Pair {
    fn new(data: usize, parity: usize) -> Self {
        Self::with_budget(data, parity, 8 << 20)
    }

    fn with_budget(data: usize, parity: usize, bytes: usize) -> Self {
        let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
        let budget = MemoryBudget::new(bytes);
        let shards = FecShards::new(data, parity).unwrap();
        Self {
            encoder: FecEncoder::new(shards, LONGEST, &pool, &budget),
            decoder: FecDecoder::new(shards, LONGEST, &pool, &budget),
            pool,
            budget,
            now: Time::ZERO,
        }
    }

    /// The shards that a datagram yields: its own, and parity if the group is complete.
    fn shards(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut shard = vec![0; FEC_HEADER_BYTES];
        shard.extend_from_slice(datagram);
        self.encoder.protect(self.now, &mut shard);
        let mut all = vec![shard];
        let mut parity = [0; LONGEST];
        while let Some(len) = self.encoder.next_parity(&mut parity) {
            all.push(parity[..len].to_vec());
        }
        all
    }

    fn handle(&mut self, shard: &[u8]) -> Vec<Vec<u8>> {
        let mut recovered: Vec<Packet> = Vec::new();
        self.decoder.handle_shard(shard, &mut recovered);
        recovered.iter().map(|datagram| datagram.to_vec()).collect()
    }

    fn check_memory(&self) {
        let held = self.encoder.held_bytes() + self.decoder.held_bytes();
        assert_eq!(self.budget.reserved(), held);
        assert!(self.budget.reserved() <= self.budget.limit());
        let in_use = self.pool.slab().stats().in_use_bytes();
        assert!(in_use <= held, "{in_use} bytes in use, {held} held");
    }

    /// Drops both ends, and checks that everything comes back.
    fn finish(self) {
        drop((self.encoder, self.decoder));
        assert_eq!(self.budget.reserved(), 0);
        assert_eq!(self.pool.slab().stats().in_use(), 0);
    }
}

fn datagram(random: &mut Random, longest: u64) -> Vec<u8> {
    let len = 1 + random.below(longest);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Every set of losses that a small group can bear; random sets for large groups.
#[test]
fn any_data_shards_of_a_group_are_enough() {
    let mut random = Random::new(1);
    for (data, parity) in [
        (1, 1),
        (2, 2),
        (3, 1),
        (1, 3),
        (4, 3),
        (10, 3),
        (10, 20),
        (60, 8),
    ] {
        let total = data + parity;
        let masks: Vec<u128> = if total <= 9 {
            (0..1 << total).collect()
        } else {
            (0..10)
                .map(|_| u128::from(random.next()) << 64 | u128::from(random.next()))
                .collect()
        };
        let mut pair = Pair::new(data, parity);
        let mut total_recovered = 0;
        for mask in masks {
            let sent: Vec<_> = (0..data).map(|_| datagram(&mut random, 300)).collect();
            let shards: Vec<_> = sent.iter().flat_map(|d| pair.shards(d)).collect();
            assert_eq!(shards.len(), total);
            // The first `parity` shards that the mask selects are lost.
            let mut left = parity;
            let lost: Vec<bool> = (0..total)
                .map(|at| {
                    let lost = left > 0 && mask >> (at % 128) & 1 == 1;
                    left -= usize::from(lost);
                    lost
                })
                .collect();
            let mut recovered = Vec::new();
            for (shard, _) in shards.iter().zip(&lost).filter(|(_, lost)| !**lost) {
                recovered.extend(pair.handle(shard));
            }
            pair.check_memory();
            let missing: Vec<_> = (0..data)
                .filter(|&at| lost[at])
                .map(|at| &sent[at])
                .collect();
            assert_eq!(recovered.len(), missing.len(), "({data},{parity}) {lost:?}");
            for (recovered, missing) in recovered.iter().zip(missing) {
                assert_eq!(recovered[..], missing[..]);
            }
            total_recovered += recovered.len() as u64;
            assert_eq!(pair.decoder.stats().recovered, total_recovered);
            assert_eq!(
                pair.decoder.held_bytes(),
                0,
                "a complete group keeps nothing"
            );
        }
        pair.finish();
    }
}

#[test]
fn groups_of_extreme_shapes_recover_and_garbage_holds_no_memory() {
    let mut random = Random::new(3);
    for (data, parity) in [(1, 255), (100, 156)] {
        let mut pair = Pair::new(data, parity);
        let sent: Vec<_> = (0..data).map(|_| datagram(&mut random, 100)).collect();
        let shards: Vec<_> = sent.iter().flat_map(|sent| pair.shards(sent)).collect();
        assert_eq!(shards.len(), 256);
        let lost = parity.min(data);
        let recovered: Vec<_> = shards[lost..].iter().flat_map(|s| pair.handle(s)).collect();
        assert_eq!(recovered, sent[..lost]);
        for _ in 0..1000 {
            let mut shard = datagram(&mut random, 200);
            shard.resize(shard.len().max(FEC_HEADER_BYTES), 0);
            let near = random.pick(&[0, u32::MAX / 256 * 256 - 600, 5000]);
            let id = near + random.below(600) as u32;
            shard[..4].copy_from_slice(&id.to_le_bytes());
            let is_data = (id % 256) < data as u32;
            shard[4..6].copy_from_slice(if is_data { &[0xf1, 0] } else { &[0xf2, 0] });
            if random.chance(900) {
                let covered = shard.len() as u16 - 6;
                shard[6..8].copy_from_slice(&covered.to_le_bytes());
            }
            pair.handle(&shard);
            pair.check_memory();
        }
        pair.finish();
    }
}

#[test]
fn a_long_run_with_losses_duplicates_and_reordering_recovers_what_was_sent() {
    for seed in crate::common::random::seeds(12) {
        let mut random = Random::new(seed);
        let (data, parity) = random.pick(&[(2, 2), (10, 3), (3, 1), (4, 8)]);
        let mut pair = Pair::new(data, parity);
        let (mut late, mut sent, mut recovered) = (Vec::new(), Vec::new(), 0);
        for n in 0..600u32 {
            let mut bytes = datagram(&mut random, 1000);
            bytes.splice(0..0, n.to_le_bytes());
            sent.push(bytes.clone());
            for shard in pair.shards(&bytes) {
                if random.chance(80) {
                    continue;
                }
                if random.chance(50) {
                    late.push(shard);
                    continue;
                }
                let mut arriving = vec![shard];
                if random.chance(50) {
                    arriving.push(arriving[0].clone());
                }
                if random.chance(300) {
                    arriving.append(&mut late);
                }
                for shard in arriving {
                    for datagram in pair.handle(&shard) {
                        let n = u32::from_le_bytes(*datagram.first_chunk().unwrap());
                        assert_eq!(datagram[..], sent[n as usize][..], "seed {seed}");
                        recovered += 1;
                    }
                    pair.check_memory();
                }
            }
        }
        let stats = pair.decoder.stats();
        assert!(
            recovered > 0 && stats.recovered == recovered,
            "seed {seed}: {stats:?}"
        );
        let unwanted = (stats.rejected, stats.no_memory, stats.late);
        assert_eq!(unwanted, (0, 0, 0), "seed {seed}");
        pair.finish();
    }
}

#[test]
fn the_headers_are_those_of_kcp_go() {
    let mut pair = Pair::new(2, 1);
    let [first] = &pair.shards(b"abc")[..] else {
        panic!()
    };
    assert_eq!(first[..], *b"\0\0\0\0\xf1\0\x05\0abc");
    let [second, parity] = &pair.shards(b"defghi")[..] else {
        panic!()
    };
    assert_eq!(second[..], *b"\x01\0\0\0\xf1\0\x08\0defghi");
    assert_eq!(parity[..6], *b"\x02\0\0\0\xf2\0");
    // As long as the longest shard, `size` included.
    assert_eq!(parity.len(), 6 + 2 + 6);
    assert_eq!(Framing::of(parity), Some(Framing::Parity));
    assert_eq!(pair.shards(b"x")[0][..4], *b"\x03\0\0\0");
    pair.finish();
}

/// As in kcp-go, the numbers of the parity are left out.
#[test]
fn after_a_pause_of_half_a_second_there_is_no_parity() {
    let mut pair = Pair::new(2, 2);
    assert_eq!(pair.shards(b"a").len(), 1);
    pair.now = pair.now + Duration::from_millis(500);
    assert_eq!(pair.shards(b"b").len(), 1);
    pair.check_memory();
    let next = pair.shards(b"c");
    assert_eq!(next[0][..4], 4u32.to_le_bytes());
    pair.now = pair.now + Duration::from_millis(499);
    assert_eq!(pair.shards(b"d").len(), 3);
    pair.finish();
}

/// Half a second after the last datagram nobody waits for its parity.
#[test]
fn idle_coders_free_their_memory_and_go_on_with_the_next_group() {
    let mut pair = Pair::new(4, 2);
    let mut random = Random::new(11);
    // Calls `handle_timeout` when it says, until it says nothing more.
    let rest = |pair: &mut Pair| {
        let (begun, mut calls) = (pair.now, 0);
        while let Some(at) = pair
            .encoder
            .handle_timeout(pair.now)
            .max(pair.decoder.handle_timeout(pair.now))
        {
            assert!(at > pair.now);
            pair.now = at;
            calls += 1;
        }
        assert_eq!(pair.budget.reserved(), 0);
        assert_eq!(pair.pool.slab().stats().in_use(), 0);
        assert!(pair.now.since(begun) <= Duration::from_secs(1));
        calls
    };
    assert_eq!(rest(&mut pair), 0);
    let mut sent = 0;
    for round in 0..20_u64 {
        // A whole group of which one shard is lost is recovered, whatever came before.
        let to_boundary = (4 - sent % 4) % 4;
        for n in 0..to_boundary + 4 + round % 4 {
            let datagram = datagram(&mut random, 500);
            let shards = pair.shards(&datagram);
            sent += 1;
            assert!(
                n >= to_boundary || shards.len() == 1,
                "parity of a group that rested"
            );
            let lost = usize::from(n == to_boundary + 1);
            for shard in &shards[lost..] {
                pair.handle(shard);
            }
            pair.check_memory();
        }
        assert_eq!(pair.decoder.stats().recovered, round + 1);
        assert!(pair.budget.reserved() > 0 || round % 4 == 0);
        // It is not at rest while it is busy.
        pair.now = pair.now + Duration::from_millis(300);
        let held = pair.budget.reserved();
        pair.encoder.handle_timeout(pair.now);
        pair.decoder.handle_timeout(pair.now);
        assert_eq!(pair.budget.reserved(), held);
        assert!(rest(&mut pair) <= 2);
    }
    assert_eq!(pair.decoder.stats().expired, 0);
    // One shard of each of three groups arrives. The newest may lack the others without a loss.
    for n in 0..12 {
        let shards = pair.shards(b"x");
        if n % 4 == 3 {
            pair.handle(&shards[0]);
        }
    }
    rest(&mut pair);
    assert_eq!(pair.decoder.stats().expired, 2);
    pair.finish();
}

#[test]
fn groups_with_too_many_losses_expire_and_free_their_memory() {
    let mut pair = Pair::new(10, 3);
    for n in 0..100u8 {
        let shards = pair.shards(&[n; 1000]);
        // Only every second one arrives, and no parity.
        if n % 2 == 0 {
            assert!(pair.handle(&shards[0]).is_empty());
        }
        pair.check_memory();
    }
    // 10 groups began; the window holds 5.
    assert_eq!(pair.decoder.stats().expired, 5);
    assert!(pair.decoder.held_bytes() <= 5 * 5 * 2048);
    pair.decoder.clear();
    assert_eq!(pair.decoder.held_bytes(), 0);
    pair.finish();
}

#[test]
fn seqids_wrap_as_in_kcp_go() {
    // The last group but one of (2,1) begins here.
    let wrap = u32::MAX / 3 * 3;
    let mut pair = Pair::new(2, 1);
    let mut seqid = wrap - 6;
    let mut recovered = 0;
    for n in 0..12u8 {
        for (at, mut shard) in pair.shards(&[n; 40]).into_iter().enumerate() {
            shard[..4].copy_from_slice(&seqid.to_le_bytes());
            seqid = (seqid + 1) % wrap;
            if n % 2 == 0 && at == 0 {
                continue;
            }
            for datagram in pair.handle(&shard) {
                assert_eq!(datagram, [n - 1; 40][..]);
                recovered += 1;
            }
        }
    }
    assert_eq!(recovered, 6);
    let mut beyond = pair.shards(b"x")[0].clone();
    beyond[..4].copy_from_slice(&wrap.to_le_bytes());
    pair.handle(&beyond);
    assert_eq!(pair.decoder.stats().rejected, 1);
    pair.finish();
}

/// A peer that begins anew numbers its shards from zero again.
#[test]
fn a_cleared_decoder_recovers_from_the_first_group_on() {
    let mut pair = Pair::new(2, 1);
    for n in 0..200 {
        for shard in pair.shards(&[n; 100]) {
            pair.handle(&shard);
        }
    }
    pair.decoder.clear();
    let mut anew = Pair::new(2, 1);
    let mut shards = anew.shards(b"is lost");
    shards.extend(anew.shards(b"arrives"));
    let recovered: Vec<_> = shards[1..].iter().flat_map(|s| pair.handle(s)).collect();
    assert_eq!(recovered, [b"is lost"]);
    pair.finish();
    anew.finish();
}

/// Before the old group is forgotten. The error of what is computed from both would be a multiple of the difference of
/// their datagrams, whose sizes are alike: nothing in it shows that nobody has sent it.
#[test]
fn shards_of_a_peer_that_begins_anew_are_not_combined_with_its_old_ones() {
    for before in [0, 3, 6] {
        let (mut pair, mut anew) = (Pair::new(3, 1), Pair::new(3, 1));
        for n in 0..before + 1 {
            for shard in pair.shards(&[n; 100]) {
                assert!(pair.handle(&shard).is_empty());
            }
        }
        let mut shards: Vec<_> = (0..before + 3)
            .flat_map(|n| anew.shards(&[100 + n; 100]))
            .collect();
        // Of the group that was begun before, the second is lost.
        shards.remove(usize::from(before) / 3 * 4 + 1);
        let recovered: Vec<_> = shards.iter().flat_map(|shard| pair.handle(shard)).collect();
        assert_eq!(recovered, [[101 + before; 100]]);
        pair.check_memory();
        pair.finish();
        anew.finish();
    }
}

/// Nor with those of a group before the one that shows it, which comes late.
#[test]
fn old_shards_of_all_groups_are_forgotten_when_a_peer_begins_anew() {
    let (mut pair, mut anew) = (Pair::new(3, 1), Pair::new(3, 1));
    let groups = |pair: &mut Pair, first: u8| -> Vec<_> {
        (first..first + 6)
            .flat_map(|n| pair.shards(&[n; 100]))
            .collect()
    };
    let (old, new) = (groups(&mut pair, 0), groups(&mut anew, 100));
    for shard in [&old[0], &old[4], &new[4], &new[1], &new[3]] {
        assert!(pair.handle(shard).is_empty());
    }
    pair.finish();
    anew.finish();
}

#[test]
fn a_shard_that_comes_twice_costs_its_group_nothing() {
    let mut pair = Pair::new(3, 2);
    let shards: Vec<_> = (0..3).flat_map(|n| pair.shards(&[n; 100])).collect();
    let recovered: Vec<_> = [0, 0, 3, 3, 4]
        .iter()
        .flat_map(|&at: &usize| pair.handle(&shards[at]))
        .collect();
    assert_eq!(recovered, [[1; 100], [2; 100]]);
    pair.finish();
}

#[test]
fn lack_of_memory_disables_protection_and_recovery_and_is_counted() {
    // Three fourths of the budget have room for one shard.
    let mut pair = Pair::with_budget(2, 2, 2500);
    for n in 0..4 {
        let shards = pair.shards(&[n; 1000]);
        assert_eq!(shards.len(), 1, "no parity");
        pair.check_memory();
    }
    assert_eq!(pair.encoder.stats().no_memory, 2);
    let mut other = Pair::new(2, 2);
    for n in 0..10 {
        for (at, shard) in other.shards(&[n; 1000]).iter().enumerate() {
            // The first of each group is lost.
            if n % 2 == 1 || at > 0 {
                assert!(pair.handle(shard).is_empty());
            }
            pair.check_memory();
        }
    }
    assert!(pair.decoder.stats().no_memory > 5);
    pair.finish();
    other.finish();
}

/// Peers that keep their groups incomplete, or many of them that are sent something, could take all of it otherwise.
#[test]
fn error_correction_leaves_memory_to_others() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let (budget, shards) = (MemoryBudget::new(1 << 20), FecShards::new(64, 64).unwrap());
    let assert_some_is_left = || {
        let reserved = budget.reserved();
        assert!(reserved > budget.limit() / 2 && reserved <= budget.limit() * 3 / 4);
    };
    let mut parity = [7; LONGEST];
    parity[4..6].copy_from_slice(&[0xf2, 0]);
    let mut decoders = [(); 4].map(|()| FecDecoder::new(shards, LONGEST, &pool, &budget));
    for decoder in &mut decoders {
        // Of each group one shard less than are enough.
        for seqid in (0..4 * 128_u32).filter(|seqid| seqid % 128 > 64) {
            parity[..4].copy_from_slice(&seqid.to_le_bytes());
            decoder.handle_shard(&parity, &mut Vec::new());
        }
    }
    assert_some_is_left();
    assert!(decoders[3].stats().no_memory > 0);
    drop(decoders);
    let mut encoders = [(); 16].map(|()| FecEncoder::new(shards, LONGEST, &pool, &budget));
    for encoder in &mut encoders {
        encoder.protect(Time::ZERO, &mut [0; 100]);
    }
    assert_some_is_left();
    assert_eq!(encoders[15].stats().no_memory, 1);
}
