//! [`HeldPacket`]: a packet that is retained, and counted in the statistics meanwhile.

use super::frozen::Packet;
use super::settings::Settings;
use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

/// A retained packet, from [`PacketPool::hold`](super::PacketPool::hold). It is counted in the pool's
/// statistics until it is dropped or [released](Self::into_packet).
///
/// For packets that wait: in a cache, a reorder buffer, a queue to a slow consumer. To count every
/// packet on its way through would cost more than the packet itself.
///
/// ```
/// use slab_net::PacketPool;
///
/// let pool = PacketPool::builder().build()?;
/// let received = pool.try_copy_from_slice(&[7; 1400])?;
/// let held = pool.hold(received.slice(..1200));
/// drop(received);
/// let stats = pool.packet_stats();
/// assert_eq!((stats.held_packets, stats.held_bytes, stats.pinned_bytes), (1, 1200, 336));
/// let packet = held.into_packet(); // to be sent at last
/// assert_eq!((packet.len(), pool.packet_stats().held_packets), (1200, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HeldPacket {
    packet: Packet,
    pool: Arc<Settings>,
}

const _: () = assert!(size_of::<Option<HeldPacket>>() == 32);

impl HeldPacket {
    pub(super) fn new(packet: Packet, pool: Arc<Settings>) -> Self {
        let held = Self { packet, pool };
        held.pool.held.add(held.packet.len(), held.pinned());
        held
    }

    /// The bytes that the packet keeps in use beyond its own, the same for as long as it is held.
    fn pinned(&self) -> usize {
        let occupied = self.pool.occupied_bytes(&self.packet);
        occupied.saturating_sub(self.packet.len())
    }

    /// Returns the packet, which is then no longer counted.
    #[must_use]
    pub fn into_packet(self) -> Packet {
        // A clone, because fields cannot be moved out of a type that implements `Drop`; held packets
        // are few.
        self.packet.clone()
    }
}

impl Drop for HeldPacket {
    fn drop(&mut self) {
        self.pool.held.remove(self.packet.len(), self.pinned());
    }
}

impl Deref for HeldPacket {
    type Target = Packet;

    #[inline]
    fn deref(&self) -> &Packet {
        &self.packet
    }
}

impl AsRef<[u8]> for HeldPacket {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.packet
    }
}

impl fmt::Debug for HeldPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.packet.fmt(f)
    }
}
