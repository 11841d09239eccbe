//! The counters of error correction.

use core::ops::AddAssign;

/// What error correction has counted so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FecStats {
    /// Parity shards made for sending.
    pub sent_parity: u64,
    /// Parity shards received.
    pub received_parity: u64,
    /// Lost datagrams that were computed from others.
    pub recovered: u64,
    /// Groups given up with data missing, because too many of their shards were lost or late.
    pub expired: u64,
    /// Shards refused because their header is not valid or is one of other shard counts, or because those before
    /// showed that the peer uses others; and computed datagrams refused because the shards did not fit each other.
    pub rejected: u64,
    /// Shards of groups that had been given up or were never in reach: late, or forged.
    pub late: u64,
    /// Shards not kept, and groups not protected, because there was no memory.
    pub no_memory: u64,
}

impl AddAssign<&Self> for FecStats {
    fn add_assign(&mut self, other: &Self) {
        self.sent_parity += other.sent_parity;
        self.received_parity += other.received_parity;
        self.recovered += other.recovered;
        self.expired += other.expired;
        self.rejected += other.rejected;
        self.late += other.late;
        self.no_memory += other.no_memory;
    }
}
