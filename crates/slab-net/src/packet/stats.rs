//! [`PacketPoolStats`]: what a packet pool counts.

/// Counters of a packet pool, beside its [slab pool's statistics](slab_core::SlabPool::stats).
///
/// Pinned memory is known for [held](super::PacketPool::hold) packets only: to keep the sum for packets on
/// their way through would cost each clone, slice and drop more than the operation itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketPoolStats {
    /// Buffers served by the heap because the pool could not serve them, so far.
    pub heap_fallbacks: u64,
    /// Bytes of such buffers that are alive now.
    pub heap_bytes: u64,
    /// Such buffers refused because of the [heap limit](super::PacketPoolBuilder::max_heap_memory), so far: each by
    /// a panic, by an error of `fmt::Write` or while `serde` deserializes, or to an RUDP session, which ends,
    /// or asks again later to tell the peer that it sends no more.
    pub heap_refused: u64,
    /// Packets that [`PacketPool::compact`](super::PacketPool::compact) copied so far.
    pub compacted: u64,
    /// Memory in bytes that these copies no longer keep in use, so far, whether a pool's or not. Memory that several
    /// packets shared is counted for each that was copied, and is free only once no other is left: so the sum can be far
    /// above what the pool has.
    pub compacted_bytes: u64,
    /// Packets that were not copied because the pool had no memory for it and its heap limit left none, so far.
    pub compact_refused: u64,
    /// Memory in bytes that those packets go on to keep in use beyond what their copies would, so far; counted as above.
    pub compact_refused_bytes: u64,
    /// Packets that are [held](super::PacketPool::hold) now.
    pub held_packets: u64,
    /// The bytes of these packets.
    pub held_bytes: u64,
    /// Memory in bytes that these packets keep in use beyond their own. Memory that several of them
    /// share is counted for each.
    pub pinned_bytes: u64,
}
