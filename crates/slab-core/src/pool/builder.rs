//! [`SlabPoolBuilder`]: how a pool is set up.

use crate::arena::Arena;
use crate::class::SizeClasses;
use crate::class::geometry::slab_bytes_for;
use crate::error::BuildInError;
#[cfg(feature = "alloc")]
use crate::error::ConfigError;
use crate::pool::SlabPool;
use crate::pool::inner::Inner;
use crate::slab::growth::Growth;
use crate::sys::page_size;
use crate::sys::room::Room;
#[cfg(feature = "alloc")]
use alloc::borrow::Cow;
#[cfg(feature = "alloc")]
use alloc::string::String;
use core::mem::MaybeUninit;
#[cfg(feature = "leak-tracking")]
use core::num::NonZeroU32;

/// Without an allocator a pool's name is a constant.
#[cfg(feature = "alloc")]
pub(crate) type Name = Cow<'static, str>;
#[cfg(not(feature = "alloc"))]
pub(crate) type Name = &'static str;
#[cfg(feature = "alloc")]
const DEFAULT_NAME: Name = Cow::Borrowed("default");
#[cfg(not(feature = "alloc"))]
const DEFAULT_NAME: Name = "default";

/// Where a pool keeps free chunks, which decides what an allocation and a free cost.
///
/// Everything else is the same in all modes: the cap, waiting, trim, statistics, handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// In each thread's magazines, from which whole batches go to the depot and come back. An
    /// allocation or a free is a few plain loads and stores. A thread keeps at most 112 free chunks of a
    /// class, and at most 2 MiB of it or 1/128 of the cap, whichever is less; but up to two of any size.
    /// At most 4096 threads at a time have magazines; the depot serves the others, as in
    /// [`Locked`](Self::Locked). Right for almost everyone; without the feature `std` it is
    /// [`DepotOnly`](Self::DepotOnly).
    ThreadCached,
    /// In one lock-free stack a class. Every allocation and free is a compare-and-swap on a word
    /// that all threads share (some ten times the cost, more under contention). In return, no thread
    /// holds free chunks: any thread can allocate any of them at once. Right for many threads that
    /// allocate seldom, and where memory is tighter than time.
    DepotOnly,
    /// In one ring a class, first in, first out, over a fixed population: each class has an equal
    /// share of the cap's slabs (a remainder of fewer slabs than classes stays unused), which it takes when
    /// it first needs them and then keeps (trim gives back their pages, not the slabs). So no class can
    /// starve another, and a freed chunk rests until all that were freed before it are used again, which
    /// leaves the least to destroy for late writes by foreign code or hardware. (Chunks that trim or a wait
    /// has put back into their slabs, and those that were never used, are used only when the ring is empty.)
    /// The price beyond that of `DepotOnly`: chunks come back cold. A pool of one class in this mode
    /// replaces a channel full of buffers.
    Ring,
    /// In batches, under one mutex a class. Useful only as a baseline to measure the others against,
    /// and to find all free chunks of a class in one place with a debugger.
    Locked,
}

impl Mode {
    /// The mode that a pool asked for this one has: without `std` no thread has magazines.
    pub(crate) fn in_effect(self) -> Self {
        match self {
            Self::ThreadCached if cfg!(not(feature = "std")) => Self::DepotOnly,
            mode => mode,
        }
    }
}

impl Default for Mode {
    /// [`ThreadCached`](Self::ThreadCached) where there are threads.
    fn default() -> Self {
        Self::ThreadCached.in_effect()
    }
}

/// When the pool's memory is backed by the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Backing {
    /// Page by page, when a chunk is first written.
    #[default]
    OnDemand,
    /// All of it when the pool is built: the pool never grows, and no first write meets a page fault, except
    /// to what a [`trim`](SlabPool::trim) has given back.
    Prefault,
    /// As [`Prefault`](Self::Prefault), and locked into memory (`mlock`), which the system may limit.
    /// Nothing of it goes back to the system: [`trim`](SlabPool::trim) returns 0. Where there is no
    /// `mmap`, nothing is locked; nor is it in the child of a `fork`, for the system does not pass locks on.
    Locked,
}

/// The configuration of a [`SlabPool`].
#[derive(Debug, Clone)]
#[must_use]
pub struct SlabPoolBuilder {
    pub(crate) name: Name,
    pub(crate) size_classes: SizeClasses,
    pub(crate) max_memory: usize,
    pub(crate) mode: Mode,
    pub(crate) zero_on_alloc: bool,
    pub(crate) zero_on_free: bool,
    pub(crate) hardened: bool,
    pub(crate) guard_pages: bool,
    #[cfg(feature = "alloc")]
    pub(crate) record_sizes: bool,
    #[cfg(feature = "leak-tracking")]
    pub(crate) track_leaks: Option<NonZeroU32>,
    pub(crate) growth: Growth,
    pub(crate) backing: Backing,
    pub(crate) huge_pages: bool,
    #[cfg(feature = "alloc")]
    pub(crate) max_oversize_memory: usize,
}

impl Default for SlabPoolBuilder {
    fn default() -> Self {
        Self {
            name: DEFAULT_NAME,
            size_classes: SizeClasses::network(),
            max_memory: 64 << 20,
            mode: Mode::default(),
            zero_on_alloc: false,
            zero_on_free: false,
            hardened: false,
            guard_pages: false,
            #[cfg(feature = "alloc")]
            record_sizes: false,
            #[cfg(feature = "leak-tracking")]
            track_leaks: None,
            growth: Growth::Slab,
            backing: Backing::OnDemand,
            huge_pages: false,
            #[cfg(feature = "alloc")]
            max_oversize_memory: 0,
        }
    }
}

impl SlabPoolBuilder {
    /// Sets the pool's name in metrics and log events. Default: `default`.
    #[cfg(feature = "alloc")]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Cow::Owned(name.into());
        self
    }

    /// Sets the pool's name. Default: `default`.
    #[cfg(not(feature = "alloc"))]
    pub fn name(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Sets the chunk sizes. Default: [`SizeClasses::network`].
    pub fn size_classes(mut self, classes: SizeClasses) -> Self {
        self.size_classes = classes;
        self
    }

    /// Sets the cap in bytes, rounded down to whole slabs: chunks never take more memory than this. At most 64 bytes less
    /// than 256 GiB, with any size classes.
    /// Bookkeeping comes on top: a thread that uses pools takes half a KiB for each of their size classes, at least a page,
    /// out of 512 KiB of addresses. (All of these count where the system promises no more than it has, as Windows, or Linux
    /// with `vm.overcommit_memory=2`, and where a process locks all of its memory by `mlockall`.) Chunks of 64 bytes that
    /// were each shared at some time take up to a seventh of their memory (14 % as measured), larger ones less. Without
    /// the feature `std`, room for all of it is taken from the heap when the pool is built, or is
    /// [lent](Self::build_all_in): of a cap that is a power of
    /// two, a fifth if the smallest chunks have 64 bytes, in [`Mode::Ring`] a third, and up to 45 KiB more, which counts
    /// below 1 MiB: of 256 KiB it is 30 %, or 43 % (of chunks of 1536 bytes 12 or 13 %), and with many classes up to 38 %;
    /// of a cap just above a power of two, up to three fifths more. An allocator that takes nothing back also loses
    /// the gaps that alignment leaves, up to 2 KiB, in [`Mode::Ring`] another 128 bytes for each class. Default: 64 MiB.
    ///
    /// A slab is four times the largest size class, rounded up to a power of two, but at least 64 KiB: 256 KiB
    /// with the default classes, 4 MiB with [`SizeClasses::general`]. It serves one class as long as any of its
    /// chunks is in use. So if the cap holds fewer slabs than there are classes in use at once, some class finds no
    /// memory while chunks of others are free: give a small pool few [classes](SizeClasses::explicit).
    ///
    /// ```
    /// # use slab_core::{SizeClasses, SlabPool};
    /// let small = SlabPool::builder().max_memory(256 << 10).build()?;
    /// let held = small.try_alloc(1500)?;
    /// assert!(small.try_alloc(64).is_err(), "the only slab serves 1536 bytes");
    ///
    /// let classes = SizeClasses::explicit(&[256, 2048])?; // slabs of 64 KiB
    /// let small = SlabPool::builder().max_memory(256 << 10).size_classes(classes).build()?;
    /// let held = (small.try_alloc(1500)?, small.try_alloc(64)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_memory(mut self, bytes: usize) -> Self {
        self.max_memory = bytes;
        self
    }

    /// Sets where free chunks are kept. Default: [`Mode::ThreadCached`], in the threads' magazines;
    /// without the feature `std`, [`Mode::DepotOnly`].
    ///
    /// ```
    /// # use slab_core::{Mode, SizeClasses, SlabPool};
    /// // 512 buffers that are handed round, like a channel full of them.
    /// let buffers = SlabPool::builder()
    ///     .mode(Mode::Ring)
    ///     .size_classes(SizeClasses::explicit(&[2048])?)
    ///     .max_memory(512 * 2048)
    ///     .build()?;
    /// let all: Vec<_> = (0..512).map_while(|_| buffers.try_alloc(2048).ok()).collect();
    /// assert_eq!(all.len(), 512);
    /// assert!(buffers.try_alloc(2048).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Overwrites each chunk with zeros when it is allocated, by whatever call. Default: no.
    ///
    /// For callers that reach chunks by pointer and count on zeros: foreign code, and code that comes from an allocator
    /// that zeroes. [`try_alloc_zeroed`](SlabPool::try_alloc_zeroed) does the same for one allocation, and needs no slow
    /// path for it; a [typed slab](crate::Slab) and the buffers of `slab-net` show no byte that was not written.
    ///
    /// Memory fresh from the system is not written, as far as `try_alloc_zeroed` says. Each allocation and free takes the
    /// slow path, and each allocation the time to write the chunk. With [`zero_on_free`](Self::zero_on_free) there
    /// is nothing left to do.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().zero_on_alloc(true).build()?;
    /// for _ in 0..2 {
    ///     let at = pool.alloc_raw(1500)?;
    ///     // SAFETY: a chunk of this pool, ours alone, all of whose bytes are zero; not used after it is freed.
    ///     unsafe {
    ///         assert_eq!(std::slice::from_raw_parts(at.as_ptr(), 1500), [0; 1500]);
    ///         at.write_bytes(7, 1500);
    ///         pool.free_raw(at)?;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn zero_on_alloc(mut self, zero: bool) -> Self {
        self.zero_on_alloc = zero;
        self
    }

    /// Overwrites each chunk with zeros when it is freed, so that no secret outlives its owner and
    /// [`try_alloc_zeroed`](SlabPool::try_alloc_zeroed) has nothing left to do. Default: no.
    ///
    /// Heap blocks that stand in for chunks are overwritten too: those above the largest class
    /// ([`max_oversize_memory`](Self::max_oversize_memory)), and those that `slab-net` uses as packet
    /// buffers.
    ///
    /// Memory fresh from the system is zero already and is not written. Each allocation and free takes the
    /// slow path, and each free the time to write the chunk.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().zero_on_free(true).build()?;
    /// let mut key = pool.try_alloc(64)?;
    /// let at = key.as_ptr();
    /// key.try_copy_from_slice(b"secret").expect("it fits");
    /// drop(key);
    /// let next = pool.try_alloc(64)?;
    /// assert_eq!(next.as_ptr(), at, "the same memory");
    /// // SAFETY: ours alone, and this pool has written zeros to all of it.
    /// let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), next.capacity()) };
    /// assert_eq!(bytes, [0; 64]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn zero_on_free(mut self, zero: bool) -> Self {
        self.zero_on_free = zero;
        self
    }

    /// Checks the use of chunks, to find errors in `unsafe` code that deals with them. Default: no.
    ///
    /// A freed chunk is filled with a pattern, which is checked when the chunk is handed out again. If it
    /// was written to in between, that allocation panics and the chunk is never used again, unless what was written are
    /// zeros over whole aligned pieces of 64 bytes, which look like fresh memory, or with
    /// [`zero_on_free`](Self::zero_on_free) any zeros; a second free of the same chunk panics. So each call that
    /// allocates or frees can panic, the drop of a handle too. [`free_raw`](SlabPool::free_raw) and
    /// [`chunk_from_raw`](SlabPool::chunk_from_raw) refuse pointers to chunks that are not in use.
    ///
    /// Each allocation and free takes the slow path, and the time to read or to write the chunk.
    ///
    /// ```should_panic
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().hardened(true).build().unwrap();
    /// let at = pool.alloc_raw(1500).unwrap();
    /// // SAFETY: none. This is the error: it writes to a chunk that it has freed.
    /// unsafe {
    ///     pool.free_raw(at).unwrap();
    ///     at.write(7);
    /// }
    /// let next = pool.try_alloc(1500); // panics: ".. was written to at byte 0 after it was freed"
    /// ```
    pub fn hardened(mut self, hardened: bool) -> Self {
        self.hardened = hardened;
        self
    }

    /// Makes the last page of each slab inaccessible, so that an access past the end of a slab's last
    /// chunk ends the process, at once where chunks fill the slab up to that page (less than a chunk can be
    /// left over). Default: no.
    ///
    /// Costs that page of the cap and the chunk that no longer fits (for the largest class, if its size
    /// is a power of two from 16 KiB on, a quarter of the slab), but no time. Systems limit the number of mappings of a
    /// process, and each slab takes two (on Linux that allows some 32 000 slabs by default). Without
    /// `mmap` the page is only left unused. Has no effect on memory that is [lent](Self::build_in), nor
    /// where a page is more than a quarter of a slab.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// // While the `unsafe` code is tested, with all that can find errors in it.
    /// let pool = SlabPool::builder().max_memory(256 << 10).guard_pages(true).hardened(true).build()?;
    /// let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
    /// assert_eq!(all.len(), 3, "where the fourth would be, the last page is the guard");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn guard_pages(mut self, guard: bool) -> Self {
        self.guard_pages = guard;
        self
    }

    /// Bytes at the end of each slab that are inaccessible.
    pub(crate) fn guard_bytes(&self, slab_bytes: usize) -> usize {
        let page = page_size();
        if self.guard_pages && page <= slab_bytes / 4 {
            page
        } else {
            0
        }
    }

    /// Records the size of every request, for [`size_histogram`](SlabPool::size_histogram), whose
    /// [`advise`](crate::SizeHistogram::advise) finds the size classes that would waste least. Default: no.
    ///
    /// For a trial run: each allocation and free takes the slow path, and each allocation two atomic additions to words
    /// that all threads share (an allocation and its free took 19 ns in place of 2.4 on an AMD Zen 4). Takes 4 MiB of
    /// addresses, of which those pages are in memory that the requested sizes touch (without `mmap`, or the feature `std`,
    /// all of it).
    #[cfg(feature = "alloc")]
    pub fn record_sizes(mut self, record: bool) -> Self {
        self.record_sizes = record;
        self
    }

    /// Records where chunks are allocated, for [`live_chunks`](SlabPool::live_chunks) and for a report at
    /// the pool's end: one allocation in `one_in`; 1 records every one, 0 none. Default: none.
    ///
    /// Each allocation and free takes the slow path; each recorded one also a lock and a node of a map.
    ///
    /// The recorded place is where the library was called, as far as the language passes that on: with
    /// `slab-net` not through chains and the methods of foreign traits, such as `Extend` of a packet buffer,
    /// where it is a line of the library. What the heap serves, above the largest class, is not recorded.
    ///
    /// The report comes where the last handle goes. That can be the end of a thread that uses the pool just then, where a
    /// subscriber that panics ends the process.
    ///
    /// Feature `leak-tracking`.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().track_leaks(100).build()?;
    /// let held = (0..1000).map(|_| pool.try_alloc(64)).collect::<Result<Vec<_>, _>>()?;
    /// for chunk in pool.live_chunks() {
    ///     println!("{chunk}"); // 64 bytes at .., in use for .., allocated at src/main.rs:2:31
    /// }
    /// assert_eq!(pool.live_chunks().len(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "leak-tracking")]
    pub fn track_leaks(mut self, one_in: u32) -> Self {
        self.track_leaks = NonZeroU32::new(one_in);
        self
    }

    /// Sets how many slabs to commit at a time. Default: [`Growth::Slab`].
    ///
    /// ```
    /// # use slab_core::{Growth, SlabPool};
    /// let pool = SlabPool::builder().growth(Growth::Double).build()?;
    /// let nine = (0..9).map(|_| pool.try_alloc(65536)).collect::<Result<Vec<_>, _>>()?;
    /// let stats = pool.stats();
    /// // The third slab, of four chunks each, came with a fourth.
    /// assert_eq!(stats.committed_bytes, 4 * stats.slab_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = growth;
        self
    }

    /// Sets when memory is backed by the system. Default: [`Backing::OnDemand`].
    ///
    /// ```
    /// # use slab_core::{Backing, ConfigError, SlabPool};
    /// let builder = SlabPool::builder().max_memory(1 << 20);
    /// let pool = match builder.clone().backing(Backing::Locked).build() {
    ///     // The limit on locked memory (`ulimit -l`) is lower.
    ///     Err(ConfigError::Back { .. }) => builder.backing(Backing::Prefault).build()?,
    ///     built => built?,
    /// };
    /// assert_eq!(pool.stats().committed_bytes, pool.max_memory());
    /// assert!(pool.resident_bytes().is_none_or(|bytes| bytes == pool.max_memory()));
    /// # Ok::<(), ConfigError>(())
    /// ```
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// Asks the system to back the pool with huge pages where it can (transparent huge pages on
    /// Linux). A hint: nothing fails without them. Memory then goes back to the system in larger
    /// pieces only, taken to be of 2 MiB: where the system's pages are larger than 4 KiB, and so its huge pages
    /// larger than that, [`trim`](crate::SlabPool::trim) may count as given back what stays resident. With
    /// [`guard_pages`](Self::guard_pages) a huge page has to fit between two of them, so there are none unless the
    /// largest size class is above 512 KiB. Default: no.
    ///
    /// ```
    /// # use slab_core::{Backing, SlabPool};
    /// // All of it from the start, and by huge pages as far as there are any.
    /// let builder = SlabPool::builder().max_memory(4 << 20).huge_pages(true);
    /// let pool = builder.backing(Backing::Prefault).build()?;
    /// assert!(pool.resident_bytes().is_none_or(|bytes| bytes == 4 << 20));
    /// # Ok::<(), slab_core::ConfigError>(())
    /// ```
    pub fn huge_pages(mut self, advise: bool) -> Self {
        self.huge_pages = advise;
        self
    }

    /// Sets how many bytes of the heap requests above the largest size class may take at a time, on top
    /// of [`max_memory`](Self::max_memory). See [`try_alloc_any`](SlabPool::try_alloc_any). Default: none,
    /// such requests are refused.
    #[cfg(feature = "alloc")]
    pub fn max_oversize_memory(mut self, bytes: usize) -> Self {
        self.max_oversize_memory = bytes;
        self
    }

    /// Builds the pool: reserves its address range. Little memory is used yet (16 bytes a slab), unless
    /// [`backing`](Self::backing) asks for it; but without `mmap`, or the feature `std`, all of it is taken from
    /// the heap. Building takes some 60 KiB of the stack, in a debug build 150 KiB.
    ///
    /// # Errors
    /// A cap that does not hold one slab (in [`Mode::Ring`]: one a class) or cannot be addressed,
    /// [one pool too many](ConfigError::TooManyPools) in the process, or a system that will not reserve, or back,
    /// the memory.
    #[cfg(feature = "alloc")]
    pub fn build(self) -> Result<SlabPool, ConfigError> {
        Inner::open(&self).map(SlabPool::from_handle)
    }

    /// Builds the pool over memory that the caller owns: a `static`, a region shared with a device,
    /// memory of a kind that the system does not give by itself. Only the bookkeeping comes from
    /// elsewhere.
    ///
    /// The cap is as many whole slabs as fit into `memory` from its first multiple of
    /// [`MAX_CHUNK_ALIGN`](crate::MAX_CHUNK_ALIGN) on; [`max_memory`](Self::max_memory) is ignored.
    /// Slabs are zeroed when they come into use. The caller decides how the memory is backed, and nothing
    /// goes back to the system: [`trim`](SlabPool::trim) finds nothing to do, and the memory stays lent
    /// when the pool is gone.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # use std::mem::MaybeUninit;
    /// let memory = Box::leak(Box::<[u8]>::new_uninit_slice(1 << 20));
    /// let here = memory.as_ptr_range();
    /// let pool = SlabPool::builder().build_in(memory)?;
    /// let chunk = pool.try_alloc(1500)?;
    /// assert!(here.contains(&chunk.as_ptr().as_ptr().cast_const().cast()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The bookkeeping is taken from the heap while the pool is built, or with the feature `std` from the system; without
    /// `std`, only what [waits](SlabPool::alloc), what is [above the largest class](Self::max_oversize_memory) and a
    /// [histogram](SlabPool::size_histogram) take more after that. With [`build_all_in`](Self::build_all_in) it is lent, too.
    ///
    /// # Errors
    /// As `build`, with the memory, which the caller gets back. A heap without room for the bookkeeping is an error, too, but
    /// for the count of the pool's handles, of 24 bytes, its name, and the account of what is above the largest class: for
    /// these it ends the program, as for any other.
    #[cfg(feature = "alloc")]
    pub fn build_in(
        self,
        memory: &'static mut [MaybeUninit<u8>],
    ) -> Result<SlabPool, BuildInError> {
        self.build_over(memory, Room::system())
    }

    /// Builds the pool over memory that the caller owns, as `build_in` does, with all bookkeeping in a second piece of it,
    /// as a program without an operating system has it in a `static`. With the crate's feature `alloc` off there needs to be
    /// no allocator; with it, the count of the pool's handles takes 24 bytes of the heap, a [name](Self::name) its length, and
    /// the account of what is [above the largest class](Self::max_oversize_memory) 56 bytes where such requests are allowed.
    ///
    /// With too little for the bookkeeping the [error](ConfigError::BookkeepingTooSmall) says how much is needed. That
    /// depends on the options, on how many slabs fit into `memory`, and on the crate's features;
    /// [`max_memory`](Self::max_memory) has figures for the case without `std`. In [`Mode::ThreadCached`], which needs `std`,
    /// it is 1.4 MB more, for as many threads as can come, whose magazines the system gives all the same. Both pieces stay
    /// lent when the pool is gone.
    ///
    /// To ask, and to build, takes some 45 KiB of the stack with optimisation, without it 130 KiB; after that
    /// [`stats`](SlabPool::stats) takes most, 5 KiB or 45, and all else up to 7. Without an operating system a stack that is
    /// too short mostly overwrites what lies below it. [`SlabPool`](SlabPool#interrupts) tells what holds for handlers of
    /// interrupts.
    ///
    /// ```
    /// use core::mem::MaybeUninit;
    /// use slab_core::{ConfigError, Mode, SizeClasses, SlabPool};
    ///
    /// #[repr(align(4096))]
    /// struct Region<const BYTES: usize>([MaybeUninit<u8>; BYTES]);
    /// static mut PACKETS: Region<{ 256 << 10 }> = Region([MaybeUninit::uninit(); _]);
    /// static mut BOOKKEEPING: Region<{ 256 << 10 }> = Region([MaybeUninit::uninit(); _]);
    ///
    /// // SAFETY: this runs once, and nothing else refers to the regions.
    /// let packets = unsafe { &mut (*(&raw mut PACKETS)).0 };
    /// // SAFETY: as above.
    /// let bookkeeping = unsafe { &mut (*(&raw mut BOOKKEEPING)).0 };
    /// let classes = SizeClasses::explicit(&[1536])?;
    /// let builder = SlabPool::builder().mode(Mode::DepotOnly).size_classes(classes);
    ///
    /// // How much? Asked at a desk, with nothing at hand.
    /// let refused = builder.clone().build_all_in(packets, &mut []).unwrap_err();
    /// let ConfigError::BookkeepingTooSmall { needed, .. } = refused.error() else {
    ///     panic!("{}", refused.error());
    /// };
    /// assert!(needed <= bookkeeping.len());
    ///
    /// let pool = builder.build_all_in(refused.into_memory(), bookkeeping)?;
    /// assert_eq!(pool.try_alloc(1500)?.capacity(), 1536);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As `build_in`, with both pieces, which the caller gets back; [`ConfigError::BookkeepingTooSmall`].
    pub fn build_all_in(
        self,
        memory: &'static mut [MaybeUninit<u8>],
        bookkeeping: &'static mut [MaybeUninit<u8>],
    ) -> Result<SlabPool, BuildInError> {
        self.build_over(memory, Room::lent(bookkeeping))
    }

    fn build_over(
        mut self,
        memory: &'static mut [MaybeUninit<u8>],
        mut room: Room,
    ) -> Result<SlabPool, BuildInError> {
        self.max_memory = memory.len();
        let slab_bytes = slab_bytes_for(self.size_classes.largest());
        let refused = match Arena::lent(&mut room, memory, slab_bytes) {
            Ok(arena) => {
                let mut slot = Some(arena);
                match Inner::open_in(&mut slot, &mut room, &self) {
                    Ok(handle) => return Ok(SlabPool::from_handle(handle)),
                    Err(error) => {
                        // The arena is still there.
                        let memory = slot.map(Arena::into_lent).unwrap_or_default();
                        BuildInError::new(error, memory)
                    }
                }
            }
            Err(refused) => refused,
        };
        // SAFETY: the tables of what was not built are gone.
        let bookkeeping = unsafe { room.into_lent() };
        Err(refused.with_bookkeeping(bookkeeping))
    }
}
