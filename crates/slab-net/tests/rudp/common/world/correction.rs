//! Error correction around the path, with memory of its own.

use crate::common::Random;
use crate::common::fec::Coder;
use slab_net::rudp::Time;
use slab_net::rudp::fec::{FecShards, Framing};
use slab_net::{Packet, PacketPool};

pub(super) struct Correction {
    pool: PacketPool,
    coders: [Coder; 2],
}

impl Correction {
    pub(super) fn new(random: &mut Random) -> Self {
        let builder = PacketPool::builder().max_memory(16 << 20);
        let pool = builder.build().unwrap();
        let (data, parity) = random.pick(&[(1, 1), (3, 2), (10, 3)]);
        let shards = FecShards::new(data, parity).unwrap();
        let coders = [(); 2].map(|()| Coder::new(shards, &pool));
        Self { pool, coders }
    }

    /// The shards that an end sends for its datagrams.
    pub(super) fn wrap(&mut self, end: usize, now: Time, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let copy = |datagram: &Vec<u8>| self.pool.try_copy_from_slice(datagram).unwrap();
        let datagrams: Vec<_> = datagrams.iter().map(copy).collect();
        let shards = self.coders[end].shards(now, &datagrams, &self.pool);
        shards.iter().map(|shard| shard.to_vec()).collect()
    }

    /// The datagrams that an end makes of these shards. What was computed lies in memory of the session's pool, or
    /// is lost if there is none.
    pub(super) fn unwrap(
        &mut self,
        end: usize,
        shards: Vec<Packet>,
        pool: &PacketPool,
    ) -> Vec<Packet> {
        let mut datagrams = Vec::new();
        for shard in shards {
            let sent = usize::from(Framing::of(&shard) == Some(Framing::Data));
            let mut received = self.coders[end].datagrams(shard);
            let computed = received.split_off(sent);
            datagrams.append(&mut received);
            let copies = computed
                .iter()
                .map(|datagram| pool.try_copy_from_slice(datagram));
            datagrams.extend(copies.flatten());
        }
        datagrams
    }
}
