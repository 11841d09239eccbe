//! [`SlabPool`] and the allocation fast path.
//!
//! | file | what |
//! |---|---|
//! | `builder`, `stats` | how a pool is set up; what it tells about itself |
//! | `open` | how a pool is built |
//! | `inner` | what a pool is made of, how its layers work together, and its end |
//! | `handle` | what the handles of a pool share |
//! | `allocate`, `free`, `request` | the slow paths |
//! | `census` | the sums behind the statistics, and behind a pool's end |
//! | `episode` | which refusals are logged |
//! | `fork`, or `no_fork` | pools in the child of a `fork` |

pub(crate) mod allocate;
pub(crate) mod builder;
mod census;
mod episode;
#[cfg(all(feature = "std", target_os = "linux", not(any(loom, shuttle, miri))))]
pub(crate) mod fork;
mod free;
pub(crate) mod handle;
pub(crate) mod inner;
#[cfg(not(all(feature = "std", target_os = "linux", not(any(loom, shuttle, miri)))))]
pub(crate) mod no_fork;
mod open;
pub(crate) mod request;
pub(crate) mod stats;

#[cfg(not(all(feature = "std", target_os = "linux", not(any(loom, shuttle, miri)))))]
pub(crate) use no_fork as fork;

use crate::class::SizeClasses;
use crate::class::place::Place;
use crate::directory;
use crate::error::AllocError;
use crate::handle::chunk::{Chunk, ChunkId};
use crate::pool::builder::SlabPoolBuilder;
use crate::pool::handle::{Handle, SharedHandle};
use crate::pool::inner::Inner;
use crate::pool::request::Request;
use crate::pool::stats::PoolStats;
use crate::thread_cache::local;
use crate::thread_cache::magazine::Magazine;
#[cfg(feature = "alloc")]
use crate::wait::Alloc;
#[cfg(feature = "std")]
use crate::wait::times::WaitTimes;
use core::fmt;
use core::ptr::NonNull;

/// A bounded pool of memory in size classes, shared by any number of threads.
///
/// Cloning gives another handle to the same pool. When the last handle is dropped the pool closes:
/// nothing more can be allocated, chunks that are alive stay valid, and the memory is unmapped
/// with the last of them.
///
/// ```
/// use slab_core::SlabPool;
///
/// let pool = SlabPool::builder().name("rx").max_memory(8 << 20).build()?;
/// let mut chunk = pool.try_alloc(1500)?;
/// assert_eq!(chunk.capacity(), 1536);
/// chunk.try_copy_from_slice(b"datagram").unwrap();
///
/// // A chunk can be freed on any thread; it goes into that thread's magazine.
/// std::thread::spawn(move || drop(chunk)).join().unwrap();
/// assert_eq!(pool.stats().in_use(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Many pools
/// A process has 511 numbers for the size classes of its pools with magazines, typed slabs and allocators
/// included: enough for 32 pools with the 14 classes of [`SizeClasses::network`], which take them in rows. A pool takes
/// them when it is built and gives them back when its last chunk is freed. A pool beyond that works the same, but each of
/// its allocations and frees looks for the magazine in a list of the thread's pools, which takes longer;
/// [`PoolStats::slow_classes`] tells how many classes have to.
/// A program with a pool per tenant or per core should give each fewer [classes](SizeClasses::explicit), or
/// let several share a pool.
///
/// A pool that finds no row for its classes, and one without magazines, takes one number for all of them, of 512
/// others. So 512 pools are always possible, and never more than 1023. (Without the feature `std` there are 127 numbers in all,
/// one a pool.) Another is refused as [`ConfigError::TooManyPools`](crate::ConfigError::TooManyPools).
///
/// # Interrupts
/// Without the feature `std` the pool's locks spin. In every mode some calls take one: an allocation that finds no free
/// chunk beside the slabs, one at the cap, a drop while another call collects free chunks, statistics. An interrupt handler
/// that allocates or drops a chunk, and has interrupted a call for the same pool on the same core, can wait for ever for
/// what it has interrupted. So mask the interrupts whose handlers use a pool around each use of it elsewhere, as
/// `critical_section::with` does, or let the handlers use a pool of their own, or leave memory to the tasks: a
/// handler can take filled chunks out of a queue, and put them into one, without using the pool.
/// The same holds for priorities: a task that never yields to a lower one must not share a pool with it.
///
/// # Fork
/// On Linux, with the feature `std`, the child of a `fork` may use the pools that it inherits, whatever
/// other threads were doing: the forking thread waits until no other thread is inside a pool. Memory is
/// private, so the pools of parent and child are independent. Memory that was
/// [lent](crate::SlabPoolBuilder::build_in) and is shared between processes is the exception: both would
/// hand out the same chunks, so only one of them may use the pool. Chunks that other threads held stay in
/// use for ever in the child, which does not have those threads. (With
/// [`Mode::DepotOnly`](crate::Mode::DepotOnly), those that were just being allocated or freed count as free
/// in the child's statistics.)
///
/// These cases are not supported, and nothing detects them:
/// - a fork while another thread builds the first pool of the process, or opens a `StaticSlab`;
/// - a fork by a destructor of a thread-local, by a signal handler that has interrupted a call of this library, or by
///   a function of [`Growth::Custom`](crate::Growth::Custom): it waits for itself;
/// - the use of a pool by another library's handler of `pthread_atfork` that was registered before the first pool was
///   built: all pools are locked while it runs;
/// - the child's use of a pool with [`Mode::Ring`](crate::Mode::Ring) that other threads were using: it
///   may wait for one of them for ever;
/// - the child's use of a pool for whose memory tasks of other threads were [waiting](Self::alloc): a
///   free wakes them, and their wakers may take locks that nobody releases.
///
/// On other systems, and after a bare `clone`, follow POSIX if other threads of the process use pools: in
/// the child do nothing but what leads to `exec`.
///
/// # Sandboxes
/// On Linux, building the first pool checks whether the process may issue `membarrier`, and all pools rely
/// on the answer. If a filter of system calls (seccomp) forbids it later, calls that have to take from
/// other threads' magazines panic, and a `fork` aborts the process. Allow it, or install the filter before
/// the first pool is built. [`trim`](Self::trim) issues `process_madvise` for the process itself, and is content with
/// `madvise` if that is refused; a filter that ends the process instead has to allow both.
#[derive(Clone)]
pub struct SlabPool {
    /// Spares the fast path the indirection through `handle`.
    inner: NonNull<Inner>,
    handle: SharedHandle,
}

// SAFETY: `inner` is what `handle` keeps alive, and `Inner` is `Send + Sync`.
unsafe impl Send for SlabPool {}
// SAFETY: as above.
unsafe impl Sync for SlabPool {}

impl SlabPool {
    /// Starts the configuration of a pool.
    pub fn builder() -> SlabPoolBuilder {
        SlabPoolBuilder::default()
    }

    pub(crate) fn from_handle(handle: SharedHandle) -> Self {
        Self {
            inner: handle.as_ptr(),
            handle,
        }
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner {
        // SAFETY: `handle` keeps it alive.
        unsafe { self.inner.as_ref() }
    }

    /// Takes a chunk of at least `len` bytes, of the smallest size class that holds them.
    ///
    /// Never waits for memory, but at the cap it may have to collect what is free first: some ten nanoseconds for
    /// each chunk that was freed since that was last done. Zero bytes are served by the smallest class.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] above the largest class, [`AllocError::Exhausted`] at the cap,
    /// [`AllocError::Commit`] if the system would not back a slab and nothing else is free.
    // Always: a call would return the result through memory, which costs more than the allocation.
    #[inline(always)]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_alloc(&self, len: usize) -> Result<Chunk, AllocError> {
        let place = self.inner().classes.place_for(len);
        // Also without a place, which saves the fast path a test: then there is no magazine.
        let unit = match Self::try_pop(place) {
            Some(unit) => u64::from(unit),
            None => self.alloc_slow(place, Request::new(len))?,
        };
        // SAFETY: neither path finds a unit without a place.
        let place = unsafe { place.unwrap_unchecked() };
        // The handle is made here for both paths: one that the slow path made would come through memory,
        // and the compiler would know nothing of its parts.
        // Each path widens the unit itself: here it would cost the fast one an instruction.
        // SAFETY: both widen a number of 32 bits.
        let id = unsafe { ChunkId::from_wide_unit(place, unit) };
        // SAFETY: a place of this pool, which `self` keeps alive, and the base of its arena.
        unsafe { directory::assume_base(place, self.inner().base()) };
        // SAFETY: the unit was just taken out of the pool's free chunks of this class.
        Ok(unsafe { Chunk::from_id(id) })
    }

    /// Allocates as [`try_alloc`](Self::try_alloc) does, but waits while the pool is at its cap. Works
    /// with any async runtime, and in a thread without one by a `block_on` such as that of `pollster`. A free
    /// wakes the waiter from the thread that it happens on, so a runtime whose wakers panic on other threads
    /// (`monoio` without its feature `sync`) needs a pool for each of its threads.
    ///
    /// Waiters for the same size class are served in the order in which they came, and before any
    /// later `try_alloc`. There is no such order between classes: a freed chunk goes to the first
    /// waiter for its size class (never to one for a smaller class), and a slab that becomes whole to whoever
    /// waits longest, so a request for 64 KiB can be overtaken by smaller ones as long as none does.
    ///
    /// Cancel-safe: dropping the future loses neither its chunk nor anybody's turn. While anybody waits, frees bypass
    /// the threads' magazines.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] at once, [`AllocError::TooManyWaiters`] behind 65 536 others,
    /// [`AllocError::Commit`] at once, as `try_alloc`: below the cap only the system's refusal is in the
    /// way, and the system does not tell when it has memory again.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # use slab_core::{SizeClasses, SlabPool};
    /// let classes = SizeClasses::explicit(&[65536])?;
    /// let pool = SlabPool::builder().size_classes(classes).max_memory(256 << 10).build()?;
    /// let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
    /// let (chunk, ()) = tokio::join!(pool.alloc(65536), async { drop(all.pop()) });
    /// assert_eq!(chunk?.capacity(), 65536);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    #[cfg(feature = "alloc")]
    pub fn alloc(&self, len: usize) -> Alloc<'_> {
        Alloc::new(self, len)
    }

    /// Allocates as [`try_alloc`](Self::try_alloc) does; all bytes of the chunk's
    /// [`capacity`](Chunk::capacity) are zero.
    ///
    /// A chunk of 4096 bytes or more that this call gets fresh from the system is zero already and is not
    /// touched. Smaller ones come in batches, of which most pass through a magazine, as do those of any size that a
    /// call of another kind has left there: what lies in a magazine is no longer known to be fresh, and is zeroed.
    ///
    /// # Errors
    /// As `try_alloc`.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// let chunk = pool.try_alloc_zeroed(1500)?;
    /// // SAFETY: the chunk's bytes were just zeroed, and are ours alone while `chunk` lives.
    /// let bytes = unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), chunk.capacity()) };
    /// assert!(bytes.iter().all(|&byte| byte == 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_alloc_zeroed(&self, len: usize) -> Result<Chunk, AllocError> {
        if self.inner().zero_on_alloc || self.inner().zero_on_free {
            return self.try_alloc(len);
        }
        let place = self.place_for(len)?;
        if let Some(mut chunk) = self.try_alloc_cached(place) {
            chunk.fill_zero();
            return Ok(chunk);
        }
        let inner = self.inner();
        let found = inner.alloc_slow_zeroed(place.class(), Request::new(len))?;
        // SAFETY: as in `try_alloc_cached`.
        let mut chunk = unsafe { Chunk::from_id(ChunkId::new(place, found.unit)) };
        if !found.zeroed {
            chunk.fill_zero();
        }
        Ok(chunk)
    }

    /// Allocates as [`try_alloc`](Self::try_alloc) does, for a caller that can do without: at the cap, `None` is neither
    /// counted as [refused](crate::ClassStats::exhausted) nor logged. (If the system refuses memory below the cap, that is
    /// counted and logged as usual.) Above the largest class it is `None`, too, and nothing is counted.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().max_memory(256 << 10).build()?;
    /// let mut buffers = vec![pool.try_alloc(65536)?];
    /// while buffers.len() < 32
    ///     && let Some(one_more) = pool.try_alloc_spare(65536)
    /// {
    ///     buffers.push(one_more);
    /// }
    /// assert_eq!(buffers.len(), 4);
    /// assert!(pool.stats().classes().iter().all(|class| class.exhausted == 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    #[must_use]
    pub fn try_alloc_spare(&self, len: usize) -> Option<Chunk> {
        let place = self.inner().classes.place_for(len)?;
        if let Some(chunk) = self.try_alloc_cached(place) {
            return Some(chunk);
        }
        // Not in a closure, in which the call site would be this one.
        let unit = self
            .inner()
            .alloc_slow_if_any(place.class(), Request::new(len))?;
        // SAFETY: as in `try_alloc_cached`.
        Some(unsafe { Chunk::from_id(ChunkId::new(place, unit)) })
    }

    #[inline(always)]
    pub(crate) fn place_for(&self, len: usize) -> Result<Place, AllocError> {
        let inner = self.inner();
        inner
            .classes
            .place_for(len)
            .ok_or_else(|| inner.too_large_error(len))
    }

    /// The allocation fast path: a pop from this thread's magazine. `None` without a place.
    #[inline(always)]
    fn try_pop(place: Option<Place>) -> Option<u32> {
        local::with_magazine(place, Magazine::try_pop)
    }

    #[inline(always)]
    pub(crate) fn try_alloc_cached(&self, place: Place) -> Option<Chunk> {
        let unit = Self::try_pop(Some(place))?;
        // SAFETY: the unit was just taken out of the pool's free chunks of this class.
        Some(unsafe { Chunk::from_id(ChunkId::new(place, unit)) })
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, place: Option<Place>, request: Request) -> Result<u64, AllocError> {
        let inner = self.inner();
        let place = place.ok_or_else(|| inner.too_large_error(request.len))?;
        let unit = inner.alloc_slow(place.class(), request)?;
        Ok(unit.into())
    }

    /// Returns the name given to the builder.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner().name.as_ref()
    }

    /// Returns whether both are handles to the same pool.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().build()?;
    /// assert!(pool.same_pool(&pool.clone()));
    /// assert!(!pool.same_pool(&SlabPool::builder().build()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn same_pool(&self, other: &Self) -> bool {
        self.has_inner(other.inner)
    }

    /// Returns the size classes.
    #[must_use]
    pub fn size_classes(&self) -> &SizeClasses {
        self.inner().classes.classes()
    }

    /// Returns the index in [`size_classes`](Self::size_classes) of the class that serves a request of
    /// `len` bytes; `None` above the largest.
    ///
    /// Gives the same answer as [`SizeClasses::class_for`], but in constant time, from the table that
    /// allocations use.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().build()?;
    /// let class = pool.class_for(1500).expect("an MTU fits");
    /// assert_eq!(pool.size_classes().sizes()[class], 1536);
    /// assert_eq!(pool.try_alloc(1500)?.class(), class);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn class_for(&self, len: usize) -> Option<usize> {
        self.inner().classes.class_for(len)
    }

    /// Returns the size of the chunk in which this address lies, `None` if it is no address of this pool. Of an address in
    /// a chunk that is in use; of others it may be that of a chunk that was there before.
    ///
    /// For the crates of this workspace; not a part of the interface.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// let chunk = pool.try_alloc(1500)?;
    /// let last = chunk.as_ptr().addr().get() + 1499;
    /// assert_eq!(pool.chunk_bytes_at(last), Some(1536));
    /// assert_eq!(pool.chunk_bytes_at((&raw const last).addr()), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(hidden)]
    #[must_use]
    pub fn chunk_bytes_at(&self, address: usize) -> Option<usize> {
        self.inner().chunk_bytes_at(address)
    }

    /// Returns the cap in bytes: the size of the arena, a whole number of slabs.
    #[must_use]
    pub fn max_memory(&self) -> usize {
        self.inner().max_memory()
    }

    /// Returns whether chunks are overwritten with zeros when they are freed, as
    /// [`zero_on_free`](crate::SlabPoolBuilder::zero_on_free) was set. Callers that copy a chunk's contents
    /// elsewhere can wipe the copy as well.
    #[must_use]
    pub fn zeroes_on_free(&self) -> bool {
        self.inner().zero_on_free
    }

    /// Returns a snapshot: where every chunk is, and the counters so far. Allocates nothing, disturbs no
    /// fast path.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// let held = pool.try_alloc(1500)?;
    /// let stats = pool.stats();
    /// println!("{} of {} bytes in use", stats.in_use_bytes(), stats.max_memory);
    /// for class in stats.classes().iter().filter(|class| class.in_use > 0) {
    ///     println!("{} chunks of {} bytes", class.in_use, class.chunk_bytes);
    /// }
    /// assert_eq!((stats.in_use(), stats.in_use_bytes()), (1, 1536));
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.inner().stats()
    }

    /// Returns how long callers of [`alloc`](Self::alloc) waited for chunks of this size class; `None` if
    /// there is no such class. Allocates nothing, disturbs no fast path.
    ///
    /// Not a part of [`stats`](Self::stats), so that `stats` stays cheap enough to be called each
    /// millisecond. Needs the feature `std`, for the clock. [`WaitTimes`] has an example.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn wait_times(&self, class: usize) -> Option<WaitTimes> {
        let known = class < self.size_classes().sizes().len();
        known.then(|| self.inner().slabs.lock().waiters.times(class as u8))
    }

    /// Returns how many bytes of the arena are in memory now, as the system counts them; `None` where the
    /// system does not say (anywhere but on Linux, and without the feature `std`), and for memory that is
    /// [lent](crate::SlabPoolBuilder::build_in).
    ///
    /// This is at most what is committed, unless [huge pages](crate::SlabPoolBuilder::huge_pages) bring in
    /// more than was touched: memory that was never touched is not resident yet, and what
    /// [`trim`](Self::trim) gave back no longer is. Takes a system call for each 8 MiB that were committed at
    /// some time, some microseconds each: cheap enough for each scrape, not for each packet.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().build()?;
    /// let mut chunk = pool.try_alloc(65536)?;
    /// chunk.fill_zero();
    /// if let Some(bytes) = pool.resident_bytes() {
    ///     assert!(bytes >= 65536);
    ///     assert!(bytes <= pool.stats().committed_bytes);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn resident_bytes(&self) -> Option<usize> {
        self.inner().resident_bytes()
    }

    /// Moves the free chunks in this thread's magazines to the depot, for other threads to use.
    /// Suitable for tokio's `on_thread_park`; at thread exit it happens by itself.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// let idle = pool.clone();
    /// # // What is waited for does not come before the thread has parked.
    /// # let (parked, has_parked) = std::sync::mpsc::channel();
    /// # let something = async { tokio::task::spawn_blocking(move || has_parked.recv()).await };
    /// let runtime = tokio::runtime::Builder::new_current_thread() // or `new_multi_thread`
    ///     .on_thread_park(move || {
    ///         idle.flush_thread_cache();
    /// #       let _ = parked.send(());
    ///     })
    ///     .build()?;
    /// runtime.block_on(async {
    ///     drop(pool.try_alloc(1500));
    ///     something.await // and its thread parks
    /// })??;
    /// // No free chunk stays in its magazines.
    /// assert!(pool.stats().classes().iter().all(|class| class.in_magazines == 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush_thread_cache(&self) {
        self.inner().flush_current();
    }

    /// Gives free memory back to the system; returns how many bytes, of what was committed: free slabs and chunks that nobody
    /// ever touched took no memory, but count. [`resident_bytes`](Self::resident_bytes), before and after, tells what it gained.
    ///
    /// This covers slabs in which no chunk is in use and, in the other slabs, the whole pages that lie
    /// among free chunks, or from which no chunk was carved since the slab changed its size class or was
    /// [prefaulted](crate::Backing::Prefault).
    ///
    /// Memory is not given back twice: a second call only looks into slabs in which chunks were freed since
    /// the first, and then gives back all of their free pages. Memory that is locked
    /// ([`Backing::Locked`](crate::Backing::Locked)) or [lent](crate::SlabPoolBuilder::build_in) stays
    /// where it is, and trimming it does nothing. Without the feature `std`, and on systems without `mmap`,
    /// all memory belongs to the allocator: giving it back only zeroes it. The pool's bookkeeping (the
    /// depot's blocks, the reference counts, the map of free chunks) stays.
    ///
    /// Collects the free chunks of all threads' magazines first, in time proportional to their number,
    /// then gives memory back in pieces of 4 MiB or a slab, or less where it has many free chunks to look at.
    /// Frees go on meanwhile, and so do allocations: one that needs a slab waits until the free chunks are
    /// collected, or for one piece.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// let mut burst = (0..100).map(|_| pool.try_alloc(65536)).collect::<Result<Vec<_>, _>>()?;
    /// for chunk in &mut burst {
    ///     chunk.fill_zero();
    /// }
    /// drop(burst);
    /// // Nothing is in use, and all of it is still in memory.
    /// assert!(pool.resident_bytes().is_none_or(|bytes| bytes >= 100 * 65536));
    /// assert!(pool.trim() >= 100 * 65536);
    /// assert!(pool.resident_bytes().is_none_or(|bytes| bytes == 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self) -> usize {
        self.trim_to(0)
    }

    /// Trims as [`trim`](Self::trim) does, but keeps whole free slabs for reuse as long as the pool has
    /// no more than `bytes` committed. Slabs that stay committed without memory, as those of
    /// [`Mode::Ring`](crate::Mode::Ring) do, are not counted.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// let peak = (0..1000).map(|_| pool.try_alloc(9000)).collect::<Result<Vec<_>, _>>()?;
    /// drop(peak);
    /// assert!(pool.stats().committed_bytes > 8 << 20);
    /// pool.trim_to(2 << 20); // what is needed at other times
    /// assert_eq!(pool.stats().committed_bytes, 2 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim_to(&self, bytes: usize) -> usize {
        self.inner().trim(bytes)
    }

    /// Trims down to `low` bytes committed if there are more than `high`, both counted as
    /// [`trim_to`](Self::trim_to) does; returns how many bytes were given back.
    ///
    /// The two watermarks make a trim policy, to be run from a timer or when a thread is idle: below
    /// `high` a call costs a look under a lock, and what lies between the two is kept for the next
    /// burst.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().build()?;
    /// let burst: Vec<_> = (0..1000).map(|_| pool.try_alloc(9000)).collect();
    /// drop(burst);
    /// assert_eq!(pool.trim_above(16 << 20, 1 << 20), 0, "no need");
    /// assert_ne!(pool.trim_above(4 << 20, 1 << 20), 0);
    /// assert!(pool.stats().committed_bytes <= 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim_above(&self, high: usize, low: usize) -> usize {
        if self.inner().held_bytes() > high {
            self.trim_to(low)
        } else {
            0
        }
    }

    #[cfg(feature = "std")]
    pub(crate) fn inner_ptr(&self) -> NonNull<Inner> {
        self.inner
    }

    pub(crate) fn has_inner(&self, inner: NonNull<Inner>) -> bool {
        self.inner == inner
    }
}

impl fmt::Debug for SlabPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabPool")
            .field("name", &self.name())
            .field("max_memory", &self.max_memory())
            .field("size_classes", &self.size_classes().sizes())
            .field("handles", &Handle::count(&self.handle))
            .finish()
    }
}
