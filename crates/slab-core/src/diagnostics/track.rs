//! Leak tracking: which chunks are alive, who asked for them, and how long ago.
//!
//! A pool that tracks sends every allocation and free through the slow path, by the same gate that
//! zeroing on free uses; one that does not track runs as if the feature were off. Of the
//! allocations one in `n` is recorded, in a map under a mutex. A [`UnitSet`] tells a free whether its chunk
//! was recorded, so that frees of other chunks take no lock.

use crate::diagnostics::unit_set::UnitSet;
use crate::pool::SlabPool;
use crate::pool::inner::Inner;
use crate::pool::request::Request;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::sys::room::Room;
use core::fmt;
use core::num::NonZeroU32;
use core::panic::Location;
use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

/// A pool that ends with chunks in use reports at most this many places; it only counts the others.
const REPORTED_PLACES: usize = 16;

/// A chunk in use, as [`SlabPool::live_chunks`] returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveChunk {
    /// Where the allocating function was called.
    pub place: &'static Location<'static>,
    /// How long ago the chunk was handed out: what waited for it before does not count.
    pub age: Duration,
    /// The size of the chunk in bytes.
    pub chunk_bytes: usize,
    /// The address of the chunk's first byte.
    pub address: usize,
}

impl fmt::Display for LiveChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {:#x}, in use for {:?}, allocated at {}",
            self.chunk_bytes, self.address, self.age, self.place
        )
    }
}

#[derive(Debug)]
pub(crate) struct Record {
    place: &'static Location<'static>,
    since: Instant,
    class: u8,
}

#[derive(Debug)]
pub(crate) struct Tracker {
    /// One allocation in so many is recorded.
    one_in: u64,
    allocs: AtomicU64,
    /// The chunks in `live`.
    tracked: UnitSet,
    pub(crate) live: Mutex<BTreeMap<u32, Record>>,
}

impl Tracker {
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(crate) fn new(
        room: &mut Room,
        arena_bytes: usize,
        one_in: NonZeroU32,
    ) -> Result<Self, i32> {
        Ok(Self {
            one_in: u64::from(one_in.get()),
            allocs: AtomicU64::new(0),
            tracked: UnitSet::new(room, arena_bytes)?,
            live: Mutex::new(BTreeMap::new()),
        })
    }

    pub(crate) fn handed_out(&self, class: u8, unit: u32, request: Request) {
        let nth = self.allocs.fetch_add(1, Ordering::Relaxed);
        if !nth.is_multiple_of(self.one_in) {
            return;
        }
        let record = Record {
            place: request.call_site,
            since: Instant::now(),
            class,
        };
        self.live.lock().insert(unit, record);
        self.tracked.insert(unit);
    }

    pub(crate) fn given_back(&self, unit: u32) {
        // First only looks: most chunks are not in the set, and a look writes nothing.
        if self.tracked.contains(unit) {
            self.tracked.remove(unit);
            self.live.lock().remove(&unit);
        }
    }

    /// The oldest first.
    fn live(&self, pool: &Inner) -> Vec<LiveChunk> {
        let now = Instant::now();
        let live = self.live.lock();
        let mut chunks: Vec<_> = live
            .iter()
            .map(|(&unit, record)| LiveChunk {
                place: record.place,
                age: now.duration_since(record.since),
                chunk_bytes: pool.classes.geometry(record.class).bytes,
                address: pool.chunk_ptr(unit).addr().get(),
            })
            .collect();
        drop(live);
        chunks.sort_by_key(|chunk| core::cmp::Reverse(chunk.age));
        chunks
    }

    /// One event a place, the one with the most bytes first.
    pub(crate) fn report_at_end(&self, pool: &Inner) {
        struct Leaks {
            chunks: usize,
            bytes: usize,
            oldest: Duration,
        }
        let mut places = BTreeMap::<_, Leaks>::new();
        for chunk in self.live(pool) {
            let leaks = places.entry(chunk.place).or_insert(Leaks {
                chunks: 0,
                bytes: 0,
                oldest: chunk.age,
            });
            leaks.chunks += 1;
            leaks.bytes += chunk.chunk_bytes;
        }
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_by_key(|(_, leaks)| core::cmp::Reverse(leaks.bytes));
        for (place, leaks) in places.iter().take(REPORTED_PLACES) {
            tracing::warn!(
                pool = %pool.name,
                %place,
                chunks = leaks.chunks,
                bytes = leaks.bytes,
                oldest = ?leaks.oldest,
                one_in = self.one_in,
                "chunks in use at the end of their pool"
            );
        }
        if places.len() > REPORTED_PLACES {
            let places = places.len() - REPORTED_PLACES;
            tracing::warn!(pool = %pool.name, places, "chunks in use from further places");
        }
    }
}

impl SlabPool {
    /// Returns the recorded chunks that are in use, the oldest first: where they were asked for, and how
    /// long ago.
    ///
    /// Empty unless the pool was built with
    /// [`track_leaks`](crate::SlabPoolBuilder::track_leaks). Recorded chunks that are in use when the pool's
    /// last handle is dropped are reported then, by `tracing` events of level `warn`: one for each of the
    /// sixteen places with the most bytes, and one that says how many more places there are.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().track_leaks(1).build()?;
    /// let forgotten = pool.try_alloc(1500)?; // This line is what will be found.
    /// let live = pool.live_chunks();
    /// assert_eq!(live.len(), 1);
    /// assert_eq!(live[0].chunk_bytes, 1536);
    /// assert_eq!(live[0].place.line(), line!() - 4);
    /// drop(forgotten);
    /// assert!(pool.live_chunks().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn live_chunks(&self) -> Vec<LiveChunk> {
        let inner = self.inner();
        let tracker = inner.tracker.as_ref();
        tracker.map_or_else(Vec::new, |tracker| tracker.live(inner))
    }
}
