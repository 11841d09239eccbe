//! Forward error correction: what is no shard, or a forged or damaged one, does no harm.

use super::{LONGEST, Pair, datagram};
use crate::common::Random;
use slab_net::rudp::Time;
use slab_net::rudp::fec::{FEC_HEADER_BYTES, FecEncoder, FecShards};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn shards_too_short_or_too_long_to_protect_panic() {
    let encoder = |longest| {
        let pair = Pair::new(2, 2);
        FecEncoder::new(
            FecShards::new(2, 2).unwrap(),
            longest,
            &pair.pool,
            &pair.budget,
        )
    };
    let protect = |longest, len| {
        let mut shard = vec![0; len];
        let protect = || encoder(longest).protect(Time::ZERO, &mut shard);
        catch_unwind(AssertUnwindSafe(protect)).map(|()| u16::from_le_bytes([shard[6], shard[7]]))
    };
    assert!(protect(LONGEST, FEC_HEADER_BYTES - 1).is_err());
    assert_eq!(protect(LONGEST, FEC_HEADER_BYTES).unwrap(), 2);
    assert_eq!(protect(LONGEST, LONGEST).unwrap(), 1494);
    assert!(protect(LONGEST, LONGEST + 1).is_err());
    // The size that the header can say.
    assert_eq!(protect(1 << 20, 65_541).unwrap(), u16::MAX);
    assert!(protect(1 << 20, 65_542).is_err());
}

/// One forged shard from far ahead must not end error correction.
#[test]
fn a_forged_seqid_costs_only_some_groups() {
    let mut pair = Pair::new(2, 1);
    for _ in 0..5 {
        for shard in pair.shards(b"before") {
            pair.handle(&shard);
        }
    }
    let mut forged = pair.shards(b"forged")[0].clone();
    forged[..4].copy_from_slice(&(1u32 << 30).to_le_bytes());
    pair.handle(&forged);
    let mut recovered = 0;
    for n in 0..100 {
        for (at, shard) in pair.shards(b"after").iter().enumerate() {
            // The first of each group is lost.
            if n % 2 == 1 || at > 0 {
                recovered += pair.handle(shard).len();
            }
        }
    }
    // The two shards of 32 groups are lost; the next one is counted as well, and the first of those that are kept.
    assert_eq!((pair.decoder.stats().late, recovered), (65, 50 - 32));
    pair.finish();
}

/// What would be computed from groups that are not the peer's was never sent.
#[test]
fn shards_of_other_counts_are_refused_and_recover_nothing() {
    let mut random = Random::new(4);
    for (theirs, ours) in [
        ((3, 1), (2, 2)),
        ((10, 3), (5, 3)),
        ((2, 2), (1, 1)),
        ((4, 1), (8, 2)),
    ] {
        let mut peer = Pair::new(theirs.0, theirs.1);
        let mut here = Pair::new(ours.0, ours.1);
        for _ in 0..300 {
            for shard in peer.shards(&datagram(&mut random, 100)) {
                if random.chance(100) {
                    continue;
                }
                assert!(here.handle(&shard).is_empty(), "{theirs:?} {ours:?}");
            }
        }
        assert!(here.decoder.stats().rejected > 10);
        peer.finish();
        here.finish();
    }
}

/// Three segments of one length, added up, look like a fourth: if the parity of three is taken for that of one, what is
/// computed from it could be delivered.
#[test]
fn the_sum_of_three_segments_is_not_taken_for_one() {
    let mut random = Random::new(5);
    for (theirs, ours) in [((3, 1), (1, 1)), ((2, 1), (1, 1)), ((5, 1), (1, 1))] {
        let mut peer = Pair::new(theirs.0, theirs.1);
        let mut here = Pair::new(ours.0, ours.1);
        for _ in 0..20_000 {
            for shard in peer.shards(&[7; 64]) {
                // Those that show the difference are lost as often as others.
                if !random.chance(100) {
                    assert!(here.handle(&shard).is_empty(), "{theirs:?} {ours:?}");
                }
            }
        }
        peer.finish();
        here.finish();
    }
}

/// Nor can an attacker who knows only the address silence it, with eight bytes that fit other counts.
#[test]
fn a_few_forged_shards_do_not_silence_the_decoder() {
    let mut pair = Pair::new(2, 2);
    let mut forged = [0; 8];
    // Says parity where data is expected.
    forged[4..6].copy_from_slice(&0xf2_u16.to_le_bytes());
    let mut recovered = 0;
    for n in 0..200_u8 {
        for (at, shard) in pair.shards(&[n; 100]).iter().enumerate() {
            // The first of each group is lost.
            if n % 2 == 1 || at > 0 {
                recovered += pair.handle(shard).len();
            }
        }
        if n % 40 == 39 {
            for _ in 0..3 {
                assert!(pair.handle(&forged).is_empty());
            }
        }
    }
    assert_eq!((recovered, pair.decoder.stats().rejected), (100, 15));
    pair.finish();
}

#[test]
fn garbage_is_refused_and_counted() {
    let mut random = Random::new(7);
    let mut pair = Pair::new(3, 2);
    let mut handled = 0;
    for _ in 0..6000 {
        let mut garbage = datagram(&mut random, 1600);
        if garbage.len() >= 8 {
            // Plausible enough to get far.
            garbage[..4].copy_from_slice(&(random.below(50) as u32).to_le_bytes());
            garbage[4..6].copy_from_slice(&(0xf1 + random.below(2) as u16).to_le_bytes());
            if random.chance(700) {
                let size = garbage.len() as u16 - 6;
                garbage[6..8].copy_from_slice(&size.to_le_bytes());
            }
        }
        pair.handle(&garbage);
        pair.check_memory();
        handled += 1;
    }
    assert!(pair.decoder.stats().rejected > handled / 10);
    pair.finish();
}

/// A shard that was changed on its way yields a datagram that was never sent, or none: the length that it claims
/// has to fit, and only zeros may follow.
#[test]
fn datagrams_recovered_from_changed_shards_are_mostly_refused() {
    let mut random = Random::new(9);
    let mut pair = Pair::new(2, 1);
    let (mut refused, rounds) = (0, 500);
    for _ in 0..rounds {
        let mut shards = pair.shards(&datagram(&mut random, 100));
        shards.extend(pair.shards(&datagram(&mut random, 1000)));
        for at in 6..shards[2].len() {
            shards[2][at] = random.next() as u8;
        }
        pair.handle(&shards[1]);
        refused += u64::from(pair.handle(&shards[2]).is_empty());
    }
    assert_eq!(pair.decoder.stats().rejected, refused);
    assert!(refused > rounds * 9 / 10, "{refused}");
    pair.finish();
}

/// A nonzero byte behind the end of the lost datagram shows that the parity does not fit, and a data shard without
/// its last byte is not as long as it says.
#[test]
fn recovery_from_a_shard_cut_or_changed_at_its_end_is_refused() {
    for cut in [false, true] {
        let mut pair = Pair::new(2, 1);
        let mut shards = pair.shards(&[1; 100]);
        shards.extend(pair.shards(&[2; 1000]));
        if cut {
            // The longer one is lost.
            shards.swap(0, 1);
            shards[1].pop();
        } else if let Some(last) = shards[2].last_mut() {
            *last ^= 1;
        }
        let recovered: Vec<_> = shards[1..].iter().flat_map(|s| pair.handle(s)).collect();
        assert!(recovered.is_empty(), "{cut}: {recovered:?}");
        assert_eq!(pair.decoder.stats().rejected, 1);
        pair.finish();
    }
}

/// The parity shards of a group are all as long as its longest datagram.
#[test]
fn parity_shards_of_different_lengths_are_refused() {
    for shorter in [2, 3] {
        let mut pair = Pair::new(2, 2);
        let mut shards = pair.shards(&[1; 100]);
        shards.extend(pair.shards(&[2; 100]));
        shards[shorter].truncate(50);
        let recovered: Vec<_> = shards[2..].iter().flat_map(|s| pair.handle(s)).collect();
        assert!(recovered.is_empty(), "{recovered:?}");
        assert_eq!(pair.decoder.stats().rejected, 1);
        pair.finish();
    }
}

#[test]
fn shards_longer_than_the_longest_are_refused() {
    let mut pair = Pair::new(2, 1);
    for (len, rejected) in [(LONGEST, 0), (LONGEST + 1, 1)] {
        let mut parity = vec![0; len];
        parity[0] = 2;
        parity[4..6].copy_from_slice(&0xf2_u16.to_le_bytes());
        assert!(pair.handle(&parity).is_empty());
        assert_eq!(pair.decoder.stats().rejected, rejected);
    }
    pair.finish();
}
