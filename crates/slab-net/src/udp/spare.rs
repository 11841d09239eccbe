//! [`SpareBuffers`]: buffers for a receiver whose datagrams free memory when they are processed.

use super::slots::Slots;
use slab_core::{Growth, Mode, SlabPool};
use std::sync::OnceLock;

/// The number of buffers that a system call gets while the pool is exhausted.
const BUFFERS_PER_CALL: usize = 2;
/// Enough for 32 receivers that read at the same time. It is address space; only the buffers in use are ever touched.
const SPARE_POOL_BYTES: usize = 4 << 20;

/// Two pools of spare buffers: the second zeroes what is freed.
type SparePools = [OnceLock<SlabPool>; 2];

/// Those of the process. Not one for each receiver: there may be more of these than a process can have pools.
static SPARE_POOLS: SparePools = [const { OnceLock::new() }; 2];

/// A few buffers beside the pool. For consumers that process received datagrams at once, which may free memory, and
/// keep none of them.
#[derive(Debug)]
pub(super) struct SpareBuffers {
    pools: &'static SparePools,
    /// Whether spare buffers are requested.
    enabled: bool,
    /// Whether the last call read into spare buffers.
    pub(super) in_use: bool,
}

impl Default for SpareBuffers {
    fn default() -> Self {
        Self {
            pools: &SPARE_POOLS,
            enabled: false,
            in_use: false,
        }
    }
}

impl SpareBuffers {
    /// Requests spare buffers beside this pool. Memory for all receivers that read at the same time is committed now:
    /// when it is needed, the system may refuse any more.
    pub(super) fn enable(&mut self, pool: &SlabPool, buffer_bytes: usize) {
        self.enabled = true;
        drop(
            self.pool(pool)
                .and_then(|spare| spare.try_alloc_spare(buffer_bytes)),
        );
    }

    /// Fills the slots, which must be empty, with spare buffers instead of `exhausted`'s; `None` if
    /// there are none.
    #[cold]
    pub(super) fn fill(&mut self, slots: &mut Slots, exhausted: &SlabPool) -> Option<usize> {
        if !self.enabled {
            return None;
        }
        let filled = slots.fill(self.pool(exhausted)?, BUFFERS_PER_CALL).ok();
        self.in_use = filled.is_some();
        filled
    }

    /// The spare buffers beside this pool.
    fn pool(&self, beside: &SlabPool) -> Option<&'static SlabPool> {
        let zero = beside.zeroes_on_free();
        let place = &self.pools[usize::from(zero)];
        if place.get().is_none() {
            let builder = SlabPool::builder()
                .name("spare")
                .max_memory(SPARE_POOL_BYTES)
                .zero_on_free(zero)
                .growth(Growth::Custom(|_| usize::MAX))
                .mode(Mode::DepotOnly);
            match builder.build() {
                // If another thread was faster, its pool stays.
                Ok(pool) => drop(place.set(pool)),
                Err(error) => tracing::debug!(%error, "cannot create the pool of spare buffers"),
            }
        }
        place.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slab_core::Chunk;

    /// With pools that no other test uses.
    fn spare_buffers() -> SpareBuffers {
        SpareBuffers {
            pools: Box::leak(Box::default()),
            ..SpareBuffers::default()
        }
    }

    fn fill(spare: &mut SpareBuffers, exhausted: &SlabPool, bytes: usize) -> Option<[Chunk; 2]> {
        let mut slots = Slots::new(bytes);
        assert_eq!(spare.fill(&mut slots, exhausted)?, BUFFERS_PER_CALL);
        assert!(spare.in_use);
        Some([0, 1].map(|slot| slots.take(slot).unwrap()))
    }

    #[test]
    fn spare_buffers_are_capped_and_only_made_if_enabled() {
        for (bytes, zero) in [(1500, false), (65_536, true)] {
            let exhausted = SlabPool::builder().zero_on_free(zero).build().unwrap();
            let mut spare = spare_buffers();
            assert!(fill(&mut spare, &exhausted, bytes).is_none());
            assert!(spare.pools.iter().all(|pool| pool.get().is_none()));
            spare.enable(&exhausted, bytes);
            let held = fill(&mut spare, &exhausted, bytes);
            let mut more = Vec::new();
            while let Some(buffers) = fill(&mut spare, &exhausted, bytes) {
                more.push(buffers);
                assert!(
                    2 * more.len() <= SPARE_POOL_BYTES / bytes,
                    "more spare buffers than the cap"
                );
            }
            assert!(!spare.in_use);
            drop((held, more));
            assert!(fill(&mut spare, &exhausted, bytes).is_some());
            let pool = spare.pool(&exhausted).unwrap();
            assert_eq!(pool.zeroes_on_free(), zero);
        }
    }

    /// A process can have 1023 pools.
    #[test]
    fn any_number_of_receivers_have_spare_buffers() {
        let exhausted = SlabPool::builder().build().unwrap();
        let mut all: Vec<_> = (0..1100).map(|_| SpareBuffers::default()).collect();
        for spare in &mut all {
            spare.enable(&exhausted, 65_536);
            assert!(fill(spare, &exhausted, 65_536).is_some());
        }
    }

    /// When they are needed, the system may refuse the process any more memory.
    #[test]
    fn memory_of_spare_buffers_is_committed_beforehand() {
        let exhausted = SlabPool::builder().build().unwrap();
        let mut spare = spare_buffers();
        spare.enable(&exhausted, 65_536);
        let pool = spare.pool(&exhausted).unwrap();
        let before = pool.stats().committed_bytes;
        // Also of receivers on other threads, and of those with shorter buffers.
        let held = [65_536, 1500]
            .repeat(16)
            .into_iter()
            .map(|bytes| fill(&mut spare, &exhausted, bytes));
        assert_eq!(held.collect::<Vec<_>>().iter().flatten().count(), 32);
        assert_eq!(pool.stats().committed_bytes, before);
    }

    /// Also of those whose contents were copied, and that a call would use again.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn what_lies_in_spare_buffers_is_known() {
        use super::super::{Coalescing, Transmit, UdpReceiver};
        use crate::packet::PacketPool;

        let pool = PacketPool::builder()
            .size_classes(slab_core::SizeClasses::explicit(&[128, 2048]).unwrap())
            .max_memory(1 << 20)
            .build()
            .unwrap();
        let mut receiver = UdpReceiver::builder(&pool)
            .coalescing(Coalescing::Off { max_datagram: 1500 })
            .bind("127.0.0.1:0".parse().unwrap())
            .unwrap();
        receiver.enable_spare_buffers();
        let _small = pool.slab().try_alloc(100).unwrap();
        let _all: Vec<_> = std::iter::from_fn(|| pool.slab().try_alloc(2048).ok()).collect();
        for len in [100, 100, 1500] {
            let transmit = Transmit::new(&[1; 1500][..len], receiver.local_addr());
            receiver.sender().send(&transmit).await.unwrap();
        }
        for (len, pinned) in [(100, 128), (100, 128), (1500, 1536)] {
            let batch = receiver.try_recv_batch().unwrap().expect("it is queued");
            assert_eq!((batch.contents().len(), batch.chunk_bytes()), (len, pinned));
            assert!(receiver.used_spare_buffers());
        }
    }
}
