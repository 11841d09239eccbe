//! A snapshot of a pool: plain numbers, taken without touching the fast path.

use crate::class::MAX_CLASSES;
use crate::class::geometry::batch_len;
use arrayvec::ArrayVec;

/// One size class of a pool, at the moment of the snapshot. Events are counted since the pool was
/// built; fields named after a state count the chunks that are in it at this moment.
///
/// At every moment `in_use + in_magazines + in_depot + in_slabs == committed_chunks`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// The size of a chunk in bytes.
    pub chunk_bytes: usize,
    /// Bytes of the slabs that serve this class now.
    pub committed_bytes: usize,
    /// Chunks that these slabs hold.
    pub committed_chunks: u64,
    /// Chunks held by callers.
    pub in_use: u64,
    /// Free chunks in the magazines of threads.
    pub in_magazines: u64,
    /// Free chunks in the depot; in [`Mode::DepotOnly`](crate::Mode::DepotOnly) and
    /// [`Mode::Ring`](crate::Mode::Ring) all that are not in slabs.
    pub in_depot: u64,
    /// Free chunks in the slabs themselves: never handed out so far, or stored there by a sweep or while
    /// somebody waited for memory.
    pub in_slabs: u64,
    /// High-water mark of `in_use`. It is updated at every snapshot, whenever the class gets a slab or a
    /// waiter a chunk, and once for as many batches out of slabs as there are threads. So it can be too low,
    /// by at most what other threads' magazines held at that moment and a batch a thread. Chunks on their
    /// way between a magazine and the depot count as in use, so while threads run it can also be too high,
    /// by a batch a thread.
    pub in_use_peak: u64,
    /// Allocations since the pool was built. With magazines not counted but derived, as `frees + in_use`,
    /// whose parts are of slightly different moments: while threads run, a later snapshot can show slightly
    /// fewer. Without them the sum of those from the depot and from slabs.
    pub allocs: u64,
    /// Of these, those that a thread's magazine served at once: the most that any snapshot so far could
    /// tell, so it never falls. While threads run it can be too high, as `in_use` can, by a batch a thread.
    pub allocs_from_magazine: u64,
    /// Allocations that the depot served: those that had to take a batch from it, and, without magazines,
    /// all that found a free chunk there.
    pub allocs_from_depot: u64,
    /// Allocations that had to take chunks from a slab: fresh ones, or ones that were stored there.
    pub allocs_from_slab: u64,
    /// Frees since the pool was built.
    pub frees: u64,
    /// An estimate, mostly too low, of the frees on a thread that had not allocated the chunk: what each thread freed
    /// beyond what it allocated. Close where chunks flow one way, far too low where threads exchange chunks in
    /// both directions: to count each would cost every free. Only magazines know what their thread did: without them it
    /// is zero, and what is freed while anybody waits, or while free chunks are collected (at the cap, or by a
    /// [`trim`](crate::SlabPool::trim)), is not in it. It is split from the frees at each snapshot, so neither it nor
    /// the rest of the frees ever falls; and some of what is freed during a snapshot may never get into it. A snapshot
    /// that is interrupted as it reads the magazine of a busy thread can make it too high, by that magazine's capacity at
    /// most.
    pub frees_remote: u64,
    /// Chunks that left the magazines since the pool was built: batches that full magazines gave to the
    /// depot, all that a thread held when it ended or flushed, and what was collected from it. The last are
    /// counted when their thread next takes the slow path.
    pub chunks_flushed: u64,
    /// Slabs that came to serve this class.
    pub slab_commits: u64,
    /// Of these, slabs that had served another class before, and whose memory had not gone back since.
    pub slab_rebalances: u64,
    /// Slabs that left this class and whose memory then went back to the system. In
    /// [`Mode::Ring`](crate::Mode::Ring) none leaves.
    pub slab_trims: u64,
    /// Allocations refused because the pool was at its cap. Not those of callers that could
    /// [do without](crate::SlabPool::try_alloc_spare).
    pub exhausted: u64,
    /// Allocations that waited because the pool was at its cap.
    pub waits: u64,
    /// Of these, how many wait now.
    pub waiting: u64,
    /// Allocations refused because too many waited already.
    pub waiters_refused: u64,
}

impl ClassStats {
    /// Returns the bytes held by callers, counted as whole chunks.
    #[must_use]
    pub fn in_use_bytes(&self) -> usize {
        self.in_use as usize * self.chunk_bytes
    }
}

/// A pool at one moment. Taking one allocates nothing on the heap.
///
/// ```
/// use slab_core::{SizeClasses, SlabPool};
///
/// let classes = SizeClasses::explicit(&[2048, 16384])?;
/// let pool = SlabPool::builder().size_classes(classes).max_memory(64 << 10).build()?; // one slab
/// drop(pool.try_alloc(1500)?);
/// let held = pool.try_alloc(9000)?; // takes the slab over
/// let stats = pool.stats();
/// assert_eq!(stats.slab_rebalances(), 1);
/// assert_eq!((stats.in_use(), stats.in_use_bytes()), (1, 16384));
/// assert_eq!(stats.classes()[1].in_use_bytes(), 16384);
///
/// drop(held);
/// pool.trim();
/// assert_eq!(pool.stats().slab_trims(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// The cap in bytes: the size of the arena, a whole number of slabs.
    pub max_memory: usize,
    /// Bytes of the slabs that were committed, without those that were trimmed since and serve no class:
    /// what may be resident, by whole slabs. Where a pool's memory is the heap's (without the feature `std`, and without `mmap`) or
    /// [lent](crate::SlabPoolBuilder::build_in), all of [`max_memory`](Self::max_memory) may be, at all times: then
    /// this is what the pool itself makes use of.
    pub committed_bytes: usize,
    /// Bytes of the pages on which chunks lie that were in use or in a magazine at some time, or that were backed when the
    /// pool was built, and that no [`trim`](crate::SlabPool::trim) has given back since: what may be resident, page by page.
    /// Less is, where nobody has written to them yet, or the system has taken them; more, where it backs
    /// [huge pages](crate::SlabPoolBuilder::huge_pages), and in a process that locks all of its memory (`mlockall`): there
    /// whole slabs are. What it counts itself takes a system call: [`resident_bytes`](crate::SlabPool::resident_bytes).
    pub touched_bytes: usize,
    /// The size of a slab in bytes.
    pub slab_bytes: usize,
    /// Threads that have magazines in this pool now.
    pub thread_caches: usize,
    /// Size classes whose magazines a thread has to search for, which takes a few times as long as otherwise:
    /// the pool was built when other pools of the process had so many of the 511 numbers for classes with magazines
    /// that no row was left for its own. 0 in other modes than
    /// [`Mode::ThreadCached`](crate::Mode::ThreadCached).
    pub slow_classes: usize,
    /// Requests refused because they were above the largest size class. Those that
    /// [`try_alloc_any`](crate::SlabPool::try_alloc_any) passes on to the heap are counted below instead.
    pub too_large: u64,
    /// Bytes on the heap now, for requests above the largest size class.
    pub oversize_bytes: usize,
    /// Such requests that were served.
    pub oversize_allocs: u64,
    /// Such requests that were refused.
    pub oversize_refused: u64,
    /// How often the operating system would not back a slab. An allocation is refused for that reason
    /// only if the pool has no free memory either.
    pub commit_failures: u64,
    pub(crate) classes: ArrayVec<ClassStats, MAX_CLASSES>,
    /// See [`batch_len`]; 0 in modes without magazines.
    pub(crate) batch_bytes: usize,
}

impl PoolStats {
    /// Returns one entry a size class, in ascending order of size.
    #[must_use]
    pub fn classes(&self) -> &[ClassStats] {
        &self.classes
    }

    /// Returns how many batches of one of these [`classes`](Self::classes) went from the depot to magazines or from
    /// magazines to the depot, since the pool was built: each costs a few read-modify-writes of memory that threads share.
    /// What magazines served at once needs none.
    ///
    /// Batches to the magazines are counted, those to the depot computed from what left the magazines, in whole batches.
    /// What the depot gives out singly, as to threads without magazines and near the cap, counts as if each was a batch.
    /// 0 in modes without magazines, where all are single.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().max_memory(1 << 20).build()?;
    /// for _ in 0..1000 {
    ///     drop(pool.try_alloc(64)?);
    /// }
    /// let stats = pool.stats();
    /// let class = &stats.classes()[0];
    /// // Without std there are no magazines.
    /// # if cfg!(feature = "std") {
    /// assert!(class.allocs_from_magazine > 0);
    /// # }
    /// assert_eq!(stats.depot_exchanges(class), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn depot_exchanges(&self, class: &ClassStats) -> u64 {
        if self.batch_bytes == 0 {
            return 0;
        }
        let batch = batch_len(class.chunk_bytes.max(1), self.batch_bytes);
        class.allocs_from_depot + class.chunks_flushed / u64::from(batch)
    }

    /// Returns how many slabs went from one class to another, over all classes.
    #[must_use]
    pub fn slab_rebalances(&self) -> u64 {
        self.classes.iter().map(|class| class.slab_rebalances).sum()
    }

    /// Returns how many whole slabs gave their memory back to the system, over all classes.
    #[must_use]
    pub fn slab_trims(&self) -> u64 {
        self.classes.iter().map(|class| class.slab_trims).sum()
    }

    /// Returns how many chunks callers hold, over all classes.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.classes.iter().map(|class| class.in_use).sum()
    }

    /// Returns the bytes held by callers, over all classes, counted as whole chunks.
    #[must_use]
    pub fn in_use_bytes(&self) -> usize {
        self.classes.iter().map(ClassStats::in_use_bytes).sum()
    }
}
