//! Error correction at one end, for a path in virtual time.

use slab_net::rudp::fec::{FEC_HEADER_BYTES, FecDecoder, FecEncoder, FecShards, Framing};
use slab_net::rudp::{MemoryBudget, Time};
use slab_net::{Packet, PacketPool};

const LONGEST: usize = 1500;

pub(crate) struct Coder {
    encoder: FecEncoder,
    decoder: FecDecoder,
}

impl Coder {
    pub(crate) fn new(shards: FecShards, pool: &PacketPool) -> Self {
        let budget = MemoryBudget::new(8 << 20);
        Self {
            encoder: FecEncoder::new(shards, LONGEST, pool, &budget),
            decoder: FecDecoder::new(shards, LONGEST, pool, &budget),
        }
    }

    /// The shards to send for these datagrams.
    pub(crate) fn shards(
        &mut self,
        now: Time,
        datagrams: &[Packet],
        pool: &PacketPool,
    ) -> Vec<Packet> {
        let mut out = Vec::new();
        for datagram in datagrams {
            let mut shard = vec![0; FEC_HEADER_BYTES];
            shard.extend_from_slice(datagram);
            self.encoder.protect(now, &mut shard);
            out.push(pool.try_copy_from_slice(&shard).unwrap());
            let mut parity = [0; LONGEST];
            while let Some(len) = self.encoder.next_parity(&mut parity) {
                out.push(pool.try_copy_from_slice(&parity[..len]).unwrap());
            }
        }
        out
    }

    /// The datagrams that this shard yields.
    pub(crate) fn datagrams(&mut self, shard: Packet) -> Vec<Packet> {
        let mut datagrams = Vec::new();
        if Framing::of(&shard) == Some(Framing::Data) {
            datagrams.push(shard.slice(FEC_HEADER_BYTES..));
        }
        self.decoder.handle_shard(&shard, &mut datagrams);
        datagrams
    }
}
