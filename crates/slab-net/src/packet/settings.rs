//! What a packet pool adds to its slab pool, and how a chunk finds its packet pool.

use super::builder::COMPACT_RATIO;
use super::frozen::Packet;
use super::pool::PacketPool;
use super::stats::PacketPoolStats;
use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use slab_core::{SharedChunk, SlabPool};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};

/// The settings and slow-path counters of a packet pool.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) slab: SlabPool,
    pub(super) headroom: u32,
    pub(super) tailroom: u32,
    pub(super) compact_ratio: u32,
    /// The most bytes that the heap may stand in for at one time.
    max_heap_memory: u64,
    heap_fallbacks: AtomicU64,
    heap_refused: AtomicU64,
    heap_bytes: AtomicU64,
    compacted: CopyCounters,
    compact_refused: CopyCounters,
    pub(super) held: HeldCounters,
}

/// Copies made or refused, and the bytes that they release or would have released.
#[derive(Debug, Default)]
struct CopyCounters {
    count: AtomicU64,
    bytes: AtomicU64,
}

/// The packets that are held now, their bytes, and the bytes that they pin beyond their own.
#[derive(Debug, Default)]
pub(super) struct HeldCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    pinned: AtomicU64,
}

impl HeldCounters {
    pub(super) fn add(&self, bytes: usize, pinned: usize) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.pinned.fetch_add(pinned as u64, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, bytes: usize, pinned: usize) {
        self.packets.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.pinned.fetch_sub(pinned as u64, Ordering::Relaxed);
    }
}

impl Settings {
    pub(super) fn new(
        slab: SlabPool,
        headroom: u32,
        tailroom: u32,
        compact_ratio: u32,
        max_heap_memory: usize,
    ) -> Self {
        Self {
            slab,
            headroom,
            tailroom,
            compact_ratio,
            max_heap_memory: max_heap_memory as u64,
            heap_fallbacks: AtomicU64::new(0),
            heap_refused: AtomicU64::new(0),
            heap_bytes: AtomicU64::new(0),
            compacted: CopyCounters::default(),
            compact_refused: CopyCounters::default(),
            held: HeldCounters::default(),
        }
    }

    /// The settings of a slab pool that was not built as a packet pool.
    pub(super) fn with_defaults(slab: SlabPool) -> Self {
        Self::new(slab, 0, 0, COMPACT_RATIO, usize::MAX)
    }

    /// The bytes that a packet keeps in use, its own included; 0 for an empty one. Its own account ends at the bytes that a
    /// foreign owner shows, but these may lie in a chunk of this pool: a packet that went through `Bytes`, as in parsers
    /// that take any `Buf`.
    pub(super) fn occupied_bytes(&self, packet: &Packet) -> usize {
        let known = packet.occupied_bytes();
        if known == 0 || !packet.is_foreign() {
            return known;
        }
        let chunk = self.slab.chunk_bytes_at(packet.as_ptr().addr());
        chunk.map_or(known, |bytes| bytes.max(known))
    }

    /// The bytes that the heap limit leaves at this moment.
    pub(super) fn heap_left(&self) -> u64 {
        let now = self.heap_bytes.load(Ordering::Relaxed);
        self.max_heap_memory.saturating_sub(now)
    }

    /// Sets aside `most` bytes of heap, or as many as the limit leaves, and returns their number; refuses
    /// if that is less than `least`.
    ///
    /// Reads and takes what the limit leaves in one step, since other threads take from it too.
    pub(super) fn admit_heap_block(&self, least: usize, most: usize) -> Result<usize, Refusal> {
        let mut bytes = 0;
        let admit = |now: u64| {
            let left =
                usize::try_from(self.max_heap_memory.saturating_sub(now)).unwrap_or(usize::MAX);
            bytes = most.min(left).max(least);
            let sum = now.checked_add(bytes as u64)?;
            (sum <= self.max_heap_memory).then_some(sum)
        };
        let relaxed = Ordering::Relaxed;
        let admitted = self.heap_bytes.fetch_update(relaxed, relaxed, admit);
        admitted.map(|_| bytes).map_err(|_| Refusal::HeapLimit)
    }

    /// Counts a block that the limit refused to a call that needed it.
    pub(super) fn count_heap_refusal(&self) {
        self.heap_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a heap block, and logs some of them, which calls foreign code that may panic.
    pub(super) fn count_heap_block(&self, bytes: usize) {
        let count = self.heap_fallbacks.fetch_add(1, Ordering::Relaxed) + 1;
        // Rarely enough not to flood the log, often enough to show that it continues.
        if count.is_power_of_two() {
            tracing::warn!(
                pool = self.slab.name(),
                bytes,
                count,
                "pool could not serve a packet buffer, allocated on the heap instead"
            );
        }
    }

    pub(super) fn heap_block_freed(&self, bytes: usize) {
        self.heap_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_compaction(&self, done: bool, bytes: u64) {
        let copies = if done {
            &self.compacted
        } else {
            &self.compact_refused
        };
        copies.count.fetch_add(1, Ordering::Relaxed);
        copies.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> PacketPoolStats {
        PacketPoolStats {
            heap_fallbacks: self.heap_fallbacks.load(Ordering::Relaxed),
            heap_bytes: self.heap_bytes.load(Ordering::Relaxed),
            heap_refused: self.heap_refused.load(Ordering::Relaxed),
            compacted: self.compacted.count.load(Ordering::Relaxed),
            compacted_bytes: self.compacted.bytes.load(Ordering::Relaxed),
            compact_refused: self.compact_refused.count.load(Ordering::Relaxed),
            compact_refused_bytes: self.compact_refused.bytes.load(Ordering::Relaxed),
            held_packets: self.held.packets.load(Ordering::Relaxed),
            held_bytes: self.held.bytes.load(Ordering::Relaxed),
            pinned_bytes: self.held.pinned.load(Ordering::Relaxed),
        }
    }
}

/// Why the heap cannot stand in either, for methods that return no error.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    /// No buffer can be that large.
    Overflow,
    /// The pool's limit on heap bytes is reached.
    HeapLimit,
    /// The global allocator has no such block.
    OutOfMemory { bytes: usize },
}

impl Refusal {
    #[cold]
    pub(super) fn panic(self) -> ! {
        panic!("{self}")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overflow => "capacity overflow: a packet buffer has at most u32::MAX bytes",
            Self::HeapLimit => {
                "the packet pool cannot serve the buffer, and its heap limit is reached"
            }
            Self::OutOfMemory { .. } => {
                "neither the packet pool nor the heap has memory for the buffer"
            }
        })
    }
}

/// The settings of every open packet pool; as many as the application has pools. Weak, so that the list
/// does not keep a pool open; adding a pool removes the entries of closed ones. Read when a buffer has
/// to move to another chunk, never when one is allocated or freed.
static REGISTRY: RwLock<Vec<RegistryEntry>> = RwLock::new(Vec::new());

/// A packet pool in the list.
struct RegistryEntry {
    /// Identifies the slab pool without a handle to it, while it is open. A later pool may get the
    /// address of a closed one, whose settings are gone by then.
    slab: usize,
    settings: Weak<Settings>,
}

/// Returns an address that no other open slab pool has.
fn slab_identity(slab: &SlabPool) -> usize {
    ptr::from_ref(slab.size_classes()).addr()
}

/// The pool of the constructors that take none.
pub(super) static DEFAULT_POOL: OnceLock<PacketPool> = OnceLock::new();

fn registry() -> RwLockReadGuard<'static, Vec<RegistryEntry>> {
    // A poisoned list is intact: nothing can panic halfway through a change to it.
    REGISTRY.read().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a new pool's settings to the list.
pub(super) fn register(new: Settings) -> Arc<Settings> {
    let settings = Arc::new(new);
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    registry.retain(|entry| entry.settings.strong_count() > 0);
    registry.push(RegistryEntry {
        slab: slab_identity(&settings.slab),
        settings: Arc::downgrade(&settings),
    });
    settings
}

/// Returns the packet pool that a chunk came from, or one with plain settings if its slab pool has no
/// open packet pool; `None` if the slab pool is closed.
pub(super) fn pool_of(chunk: &SharedChunk) -> Option<PacketPool> {
    if let Some(pool) = DEFAULT_POOL.get()
        && chunk.belongs_to(pool.slab())
    {
        return Some(pool.clone());
    }
    let slab = chunk.pool()?;
    let at = slab_identity(&slab);
    let settings = registry()
        .iter()
        .filter(|entry| entry.slab == at)
        .find_map(|entry| entry.settings.upgrade());
    // Not listed: settings that only this buffer knows would be mistaken for the next one's.
    let settings = settings.unwrap_or_else(|| Arc::new(Settings::with_defaults(slab)));
    Some(PacketPool::from_settings(settings))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn closed_pools_are_removed_from_the_registry() {
        let slab = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        for _ in 0..1000 {
            drop(PacketPool::from(slab.clone()));
        }
        // The last one stays until another is registered.
        let listed = registry()
            .iter()
            .filter(|entry| entry.slab == slab_identity(&slab))
            .count();
        assert!(listed <= 1, "{listed}");
    }
}
