//! slab-core built without its counters, with the pool that [`Ours`](super::Ours) opens.

use super::ours::{MIN_POOL_MEMORY, peer};
use slab_core_uncounted::{SizeClasses, SlabPool};

pub(crate) struct Uncounted {
    pool: SlabPool,
}

impl Uncounted {
    fn of(classes: SizeClasses, memory: usize) -> Self {
        let pool = SlabPool::builder()
            .name("versus-uncounted")
            .size_classes(classes)
            .max_memory(memory.max(MIN_POOL_MEMORY))
            .build()
            .expect("the configuration is valid");
        Self { pool }
    }
}

peer!(Uncounted, slab_core_uncounted, Uncounted::of);
