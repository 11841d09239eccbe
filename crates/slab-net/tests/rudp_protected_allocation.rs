//! No heap allocation for a datagram with error correction and encryption once rings have grown, neither on sockets
//! nor when lost datagrams are recovered.

#![cfg(all(feature = "fec", feature = "aes-gcm"))]

#[path = "rudp/common/mod.rs"]
mod common;

use common::counting::{
    Counting, allocations, assert_allocates_nothing, assert_echo_allocates_nothing, bytes,
};
use common::sockets::{any, pool};
use slab_net::rudp::crypto::{AesGcm, NONCE_BYTES, TAG_BYTES};
use slab_net::rudp::fec::{FEC_HEADER_BYTES, FecDecoder, FecEncoder, FecShards};
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, MemoryBudget, SessionConfig, Time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[global_allocator]
static GLOBAL: Counting = Counting;

fn configs(session: SessionConfig) -> [EndpointConfig; 3] {
    let (plain, key) = (EndpointConfig::new(session), AesGcm::new(&[7; 16]).unwrap());
    let fec = plain.clone().fec(FecShards::new(10, 3).unwrap());
    [plain.aes_gcm(key.clone()), fec.clone(), fec.aes_gcm(key)]
}

/// A bulk stream with both ends in this task, so that no other thread allocates unseen.
#[tokio::test]
async fn a_protected_stream_over_sockets_allocates_nothing() {
    for config in configs(SessionConfig::fast().stream(true)) {
        let pool = pool();
        let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
        let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
        let mut out = client.into_stream();
        out.write_all(b"x").await.unwrap();
        let mut input = server.accept().await.unwrap().into_stream();
        assert_eq!(input.read_u8().await.unwrap(), b'x');
        let (data, mut buf) = (vec![7; 64 << 10], vec![0; 64 << 10]);
        let mut round = async || {
            let (written, read) = tokio::join!(out.write_all(&data), input.read_exact(&mut buf));
            written.unwrap();
            read.unwrap();
        };
        for _ in 0..30 {
            round().await;
        }
        assert_allocates_nothing(30, round).await;
    }
}

#[tokio::test]
async fn a_protected_echo_over_sockets_allocates_nothing() {
    for config in configs(SessionConfig::fast()) {
        let pool = pool();
        let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
        let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
        assert_echo_allocates_nothing(&server, &client, &pool, 200).await;
    }
}

/// 5 % of the shards are lost, and what can be recovered is.
#[test]
fn recovering_and_sealing_allocate_nothing() {
    let pool = pool();
    let budget = MemoryBudget::new(8 << 20);
    let key = AesGcm::new(&[7; 32]).unwrap();
    for (data, parity) in [(2, 2), (10, 3)] {
        let shards = FecShards::new(data, parity).unwrap();
        let mut encoder = FecEncoder::new(shards, 1500, &pool, &budget);
        let mut decoder = FecDecoder::new(shards, 1500, &pool, &budget);
        drop(pool.try_alloc(1500).unwrap()); // this thread's cache
        let heap = bytes();
        let mut recovered = Vec::with_capacity(16);
        let (mut shard, mut parity) = ([0; 1000 + FEC_HEADER_BYTES], [0; 1500]);
        let mut sealed = [0; NONCE_BYTES + 1500 + TAG_BYTES];
        let (mut random, mut before, mut count) = (1_u64, (0, 0), 0);
        for round in 0..6000 {
            if round == 3000 {
                before = (allocations(), count);
            }
            let mut arrive = |shard: &[u8]| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                if (random >> 33).is_multiple_of(20) {
                    return;
                }
                let sealed = &mut sealed[..NONCE_BYTES + shard.len() + TAG_BYTES];
                sealed[NONCE_BYTES..][..shard.len()].copy_from_slice(shard);
                key.seal(sealed);
                let opened = key.open(sealed).unwrap();
                decoder.handle_shard(&sealed[opened], &mut recovered);
                count += recovered.len();
                recovered.clear();
            };
            encoder.protect(Time::from_micros(round * 1000), &mut shard);
            arrive(&shard);
            while let Some(len) = encoder.next_parity(&mut parity) {
                arrive(&parity[..len]);
            }
        }
        assert!(count - before.1 > 100, "{count} recovered");
        assert_eq!(allocations() - before.0, 0);
        // Idle, they keep no more than they began with.
        drop(recovered);
        let mut now = Time::from_micros(1 << 40);
        while let Some(at) = encoder.handle_timeout(now).max(decoder.handle_timeout(now)) {
            now = at;
        }
        assert_eq!(bytes() - heap, 0);
    }
}
