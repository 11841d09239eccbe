//! Error correction with arbitrary input: the decoder never panics, never exceeds its budget and returns
//! all memory; and what it recovers from a group that was not tampered with equals what was protected.
//!
//! The input is a list of commands: one byte for the command, followed by its arguments.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slab_net::PacketPool;
use slab_net::rudp::fec::{FEC_HEADER_BYTES, FecDecoder, FecEncoder, FecShards, Framing};
use slab_net::rudp::{MemoryBudget, Time};
use std::sync::OnceLock;
use std::time::Duration;

const LONGEST: usize = 600;

fuzz_target!(|input: &[u8]| {
    static POOL: OnceLock<PacketPool> = OnceLock::new();
    let pool = POOL.get_or_init(|| PacketPool::builder().max_memory(16 << 20).build().unwrap());
    let Some((&[data, parity, memory], mut input)) = input.split_first_chunk() else {
        return;
    };
    let shards = FecShards::new(1 + usize::from(data % 20), 1 + usize::from(parity % 20)).unwrap();
    let budget = MemoryBudget::new(usize::from(memory) << 10);
    let mut encoder = FecEncoder::new(shards, LONGEST, pool, &budget);
    let mut decoder = FecDecoder::new(shards, LONGEST, pool, &budget);
    let (mut now, mut recovered, mut tampered) = (Time::ZERO, Vec::new(), false);
    let (mut sent, mut buf): (Vec<Vec<u8>>, _) = (Vec::new(), [0; LONGEST]);
    while let Some((&command, rest)) = input.split_first() {
        input = rest;
        let take = |input: &mut &[u8], len: usize| {
            let (taken, rest) = input.split_at(len.min(input.len()));
            *input = rest;
            taken.to_vec()
        };
        match command % 8 {
            // Shards of the encoder, some of which arrive.
            0..=4 => {
                let mut shard = vec![0; FEC_HEADER_BYTES];
                shard.extend(take(&mut input, usize::from(command)));
                sent.push(shard[FEC_HEADER_BYTES..].to_vec());
                encoder.protect(now, &mut shard);
                if command % 8 > 0 {
                    decoder.handle_shard(&shard, &mut recovered);
                }
                while let Some(len) = encoder.next_parity(&mut buf) {
                    if command % 8 != 1 {
                        decoder.handle_shard(&buf[..len], &mut recovered);
                    }
                }
            }
            5 => now = now + Duration::from_millis(u64::from(command) * 4),
            // A shard from an attacker.
            kind => {
                let mut shard = take(&mut input, usize::from(command / 8) + FEC_HEADER_BYTES);
                if kind == 7 && shard.len() >= FEC_HEADER_BYTES {
                    // Plausible enough to get far.
                    shard[1..4].fill(0);
                    shard[4] = 0xf1 + (shard[4] & 1);
                    shard[5] = 0;
                    let size = (shard.len() - 6) as u16;
                    shard[6..8].copy_from_slice(&size.to_le_bytes());
                }
                // Whatever it contains, it may be counted with the others.
                tampered |= !matches!(Framing::of(&shard), None | Some(Framing::Plain));
                decoder.handle_shard(&shard, &mut recovered);
            }
        }
        for datagram in recovered.drain(..) {
            assert!(tampered || sent.iter().any(|sent| datagram == sent[..]));
        }
        let held = encoder.held_bytes() + decoder.held_bytes();
        assert_eq!(budget.reserved(), held);
        assert!(pool.slab().stats().in_use_bytes() <= held);
    }
    drop((encoder, decoder));
    assert_eq!(budget.reserved(), 0);
    assert_eq!(pool.slab().stats().in_use(), 0);
});
