//! [`SpareBuffers`]: buffers for a receiver whose datagrams free memory when they are processed.

use super::slots::Slots;
use slab_core::{Mode, SizeClasses, SlabPool};

/// The number of buffers that a system call gets while the pool is exhausted.
const BUFFERS_PER_CALL: usize = 2;
/// The smallest cap that a pool can have. It is address space; only the buffers in use are ever
/// touched.
const SPARE_POOL_BYTES: usize = 1 << 20;

/// A few buffers beside the pool, made when the pool is first exhausted. For consumers that process
/// received datagrams at once, which may free memory, and keep none of them.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers {
    /// Whether spare buffers are requested.
    pub(super) enabled: bool,
    pool: Option<SlabPool>,
    /// Whether the last call read into spare buffers.
    pub(super) in_use: bool,
}

impl SpareBuffers {
    /// Fills the slots, which must be empty, with spare buffers instead of `exhausted`'s; `None` if
    /// there are none.
    #[cold]
    pub(super) fn fill(&mut self, slots: &mut Slots, exhausted: &SlabPool) -> Option<usize> {
        if !self.enabled {
            return None;
        }
        let pool = match &self.pool {
            Some(pool) => pool,
            None => self.pool.insert(pool(slots.buffer_bytes(), exhausted)?),
        };
        let filled = slots.fill(pool, BUFFERS_PER_CALL).ok();
        self.in_use = filled.is_some();
        filled
    }
}

fn pool(buffer_bytes: usize, exhausted: &SlabPool) -> Option<SlabPool> {
    let class = buffer_bytes.next_multiple_of(slab_core::CHUNK_ALIGN);
    let builder = SlabPool::builder()
        .name("spare")
        .size_classes(SizeClasses::explicit(&[class]).ok()?)
        .max_memory(SPARE_POOL_BYTES)
        .zero_on_free(exhausted.zeroes_on_free())
        .mode(Mode::DepotOnly);
    match builder.build() {
        Ok(pool) => Some(pool),
        Err(error) => {
            tracing::debug!(%error, "cannot create the pool of spare buffers");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_buffers_are_capped_and_only_made_if_enabled() {
        for (bytes, zero) in [(1500, false), (65_536, true)] {
            let exhausted = SlabPool::builder().zero_on_free(zero).build().unwrap();
            let mut slots = Slots::new(bytes);
            let mut spare = SpareBuffers::default();
            assert_eq!(spare.fill(&mut slots, &exhausted), None);
            spare.enabled = true;
            assert_eq!(spare.fill(&mut slots, &exhausted), Some(BUFFERS_PER_CALL));
            let held = [slots.take(0), slots.take(1)];
            let mut more = Vec::new();
            while spare.fill(&mut slots, &exhausted).is_some() {
                more.push(slots.take(0));
                assert!(
                    more.len() <= SPARE_POOL_BYTES / bytes,
                    "more spare buffers than the cap"
                );
            }
            assert!(!spare.in_use);
            drop((held, more));
            assert_eq!(spare.fill(&mut slots, &exhausted), Some(BUFFERS_PER_CALL));
            assert!(spare.in_use);
            assert!(spare.pool.is_some_and(|pool| pool.zeroes_on_free() == zero));
        }
    }

    /// Also of those whose contents were copied, and that a call would use again.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn what_lies_in_spare_buffers_is_known() {
        use super::super::{Coalescing, Transmit, UdpReceiver};
        use crate::packet::PacketPool;

        let pool = PacketPool::builder()
            .size_classes(SizeClasses::explicit(&[128, 2048]).unwrap())
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
