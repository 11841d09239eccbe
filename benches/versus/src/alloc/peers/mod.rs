//! The peers, each called through its own interface, never as the global allocator.

mod array;
mod heaps;
mod no_alloc;
mod ours;
mod pools;
mod uncounted;

pub(crate) use ours::Ours;

use crate::alloc::OURS;
use std::fmt;
use std::hint::black_box;

/// Something that hands out blocks of memory.
pub(crate) trait Peer: Sized + 'static {
    /// Ownership of a block, as this peer's users hold it.
    type Block<'p>;

    /// Opens the peer for blocks of `len` bytes, `live` of them at once.
    fn open(len: usize, live: usize) -> Self;

    fn alloc(&self, len: usize) -> Self::Block<'_>;

    /// Returns the block's address. Callers black-box it, so that no allocation can be optimised away.
    fn address(&self, block: &mut Self::Block<'_>) -> *mut u8;

    fn free<'p>(&'p self, block: Self::Block<'p>);
}

/// A peer whose blocks are plain memory that any thread may free.
///
/// # Safety
/// [`Peer::address`] returns the address of the block's first byte, from which as many bytes as were
/// requested are valid for writes.
pub(crate) unsafe trait Heap: Peer + Sync {
    /// Gives free memory back to the system; `false` if there is no call for it.
    fn release_free_memory(&self) -> bool;
}

/// Does something with a peer whose type is known only by its name.
pub(crate) trait Visit {
    type Out;
    fn visit<P: Peer>(self) -> Self::Out;
}

/// As [`Visit`], with a peer whose blocks may be freed on another thread.
pub(crate) trait VisitShared {
    type Out;
    fn visit<P>(self) -> Self::Out
    where
        P: Peer + Sync,
        for<'p> P::Block<'p>: Send;
}

/// As [`VisitShared`], with a peer whose blocks may be written to.
pub(crate) trait VisitHeap {
    type Out;
    fn visit<P>(self) -> Self::Out
    where
        P: Heap,
        for<'p> P::Block<'p>: Send;
}

/// The general-purpose allocators, among which issue 3's "best peer" is the best.
pub(crate) const HEAPS: &[&str] = &["glibc", "mimalloc", "jemalloc", "snmalloc"];

/// Peers of the cases that stay on one thread.
pub(crate) const LOCAL: &[&str] = &[
    "glibc",
    "mimalloc",
    "jemalloc",
    "snmalloc",
    "BytesMut",
    "ArrayQueue",
    "opool",
    "fastalloc",
    "sharded-slab",
    "bytesbuf",
    "buffer-pool",
];

/// Peers of the cases in which blocks cross threads.
pub(crate) const SHARED: &[&str] = &[
    "glibc",
    "mimalloc",
    "jemalloc",
    "snmalloc",
    "BytesMut",
    "ArrayQueue",
    "opool",
    "fastalloc-sync",
    "sharded-slab",
    "buffer-pool",
];

/// Peers of `bulk`.
pub(crate) const BULK: &[&str] = &[
    "glibc",
    "mimalloc",
    "jemalloc",
    "snmalloc",
    "BytesMut",
    "ArrayQueue",
];

/// Peers of `mixed`, which have blocks of every length.
pub(crate) const ANY_LENGTH: &[&str] = &[
    "glibc",
    "mimalloc",
    "jemalloc",
    "snmalloc",
    "BytesMut",
    "bytesbuf",
    "buffer-pool",
];

/// Peers of the cases in which many threads do the same.
pub(crate) const MULTITHREADED: &[&str] =
    &["glibc", "mimalloc", "jemalloc", "snmalloc", "ArrayQueue"];

/// No allocation at all, with a handle of 8 bytes: the cost of a case's loop, or of the ring of the `cross` cases.
pub(crate) const NO_ALLOC: &str = "no-alloc";

/// What a thread cache cannot do without.
pub(crate) const ARRAY: &str = "array";

/// What no allocator on one thread can undercut.
pub(crate) const FLOORS: [&str; 2] = [NO_ALLOC, ARRAY];

/// Ours without its counters.
pub(crate) const UNCOUNTED: &str = "uncounted";

/// A peer that cannot be run.
#[derive(Debug)]
pub(crate) enum Missing {
    Unknown,
    #[cfg_attr(
        all(
            feature = "mimalloc",
            feature = "jemalloc",
            feature = "snmalloc",
            feature = "buffer-pool"
        ),
        expect(dead_code, reason = "every feature is built in")
    )]
    Feature(&'static str),
    Length(usize),
    /// fastalloc does not export the type of its handle for several threads.
    PrivateHandle,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => write!(f, "no such peer in this case"),
            Self::Feature(name) => write!(f, "versus was built without its feature `{name}`"),
            Self::PrivateHandle => write!(f, "the type of its handle for threads has no name"),
            Self::Length(len) => write!(f, "its blocks have no type of {len} bytes here"),
        }
    }
}

/// Visits one of the [`LOCAL`] peers, or ours, for blocks of `len` bytes.
pub(crate) fn visit<V: Visit>(name: &str, len: usize, visitor: V) -> Result<V::Out, Missing> {
    match name {
        "fastalloc" => match len {
            64 => Ok(visitor.visit::<pools::FastallocFixed<64>>()),
            256 => Ok(visitor.visit::<pools::FastallocFixed<256>>()),
            2048 => Ok(visitor.visit::<pools::FastallocFixed<2048>>()),
            65_536 => Ok(visitor.visit::<pools::FastallocFixed<65_536>>()),
            _ => Err(Missing::Length(len)),
        },
        ARRAY => Ok(visitor.visit::<array::ThreadArray>()),
        "bytesbuf" => Ok(visitor.visit::<pools::BytesBufPool>()),
        UNCOUNTED => Ok(visitor.visit::<uncounted::Uncounted>()),
        _ => visit_shared(name, OneThread(visitor)),
    }
}

/// A peer that may cross threads can also stay on one.
struct OneThread<V>(V);

impl<V: Visit> VisitShared for OneThread<V> {
    type Out = V::Out;

    fn visit<P>(self) -> V::Out
    where
        P: Peer + Sync,
        for<'p> P::Block<'p>: Send,
    {
        self.0.visit::<P>()
    }
}

/// Visits one of the [`SHARED`] peers, [`NO_ALLOC`], or ours.
pub(crate) fn visit_shared<V: VisitShared>(name: &str, visitor: V) -> Result<V::Out, Missing> {
    match name {
        "BytesMut" => Ok(visitor.visit::<pools::FreshBytesMut>()),
        "ArrayQueue" => Ok(visitor.visit::<pools::QueueOfBoxes>()),
        "opool" => Ok(visitor.visit::<pools::Opool>()),
        "fastalloc-sync" => Err(Missing::PrivateHandle),
        "sharded-slab" => Ok(visitor.visit::<pools::ShardedSlab>()),
        #[cfg(feature = "buffer-pool")]
        "buffer-pool" => Ok(visitor.visit::<pools::QuicheBufferPool>()),
        #[cfg(not(feature = "buffer-pool"))]
        "buffer-pool" => Err(Missing::Feature("buffer-pool")),
        NO_ALLOC => Ok(visitor.visit::<no_alloc::NoAlloc>()),
        _ => visit_heap(name, AnyThread(visitor)),
    }
}

/// A heap is also a peer whose blocks may cross threads.
struct AnyThread<V>(V);

impl<V: VisitShared> VisitHeap for AnyThread<V> {
    type Out = V::Out;

    fn visit<P>(self) -> V::Out
    where
        P: Heap,
        for<'p> P::Block<'p>: Send,
    {
        self.0.visit::<P>()
    }
}

/// Visits one of [`HEAPS`], or ours.
pub(crate) fn visit_heap<V: VisitHeap>(name: &str, visitor: V) -> Result<V::Out, Missing> {
    match name {
        OURS => Ok(visitor.visit::<ours::Ours>()),
        "glibc" => Ok(visitor.visit::<heaps::CHeap<heaps::Glibc>>()),
        #[cfg(feature = "mimalloc")]
        "mimalloc" => Ok(visitor.visit::<heaps::CHeap<heaps::Mimalloc>>()),
        #[cfg(not(feature = "mimalloc"))]
        "mimalloc" => Err(Missing::Feature("mimalloc")),
        #[cfg(feature = "jemalloc")]
        "jemalloc" => Ok(visitor.visit::<heaps::CHeap<heaps::Jemalloc>>()),
        #[cfg(not(feature = "jemalloc"))]
        "jemalloc" => Err(Missing::Feature("jemalloc")),
        #[cfg(feature = "snmalloc")]
        "snmalloc" => Ok(visitor.visit::<heaps::CHeap<heaps::Snmalloc>>()),
        #[cfg(not(feature = "snmalloc"))]
        "snmalloc" => Err(Missing::Feature("snmalloc")),
        _ => Err(Missing::Unknown),
    }
}

/// Visits one of [`ANY_LENGTH`], or ours, for blocks of up to `len` bytes.
pub(crate) fn visit_any_length<V: Visit>(
    name: &str,
    len: usize,
    visitor: V,
) -> Result<V::Out, Missing> {
    use heaps::CHeapOfLengths;
    match name {
        "glibc" => Ok(visitor.visit::<CHeapOfLengths<heaps::Glibc>>()),
        #[cfg(feature = "mimalloc")]
        "mimalloc" => Ok(visitor.visit::<CHeapOfLengths<heaps::Mimalloc>>()),
        #[cfg(feature = "jemalloc")]
        "jemalloc" => Ok(visitor.visit::<CHeapOfLengths<heaps::Jemalloc>>()),
        #[cfg(feature = "snmalloc")]
        "snmalloc" => Ok(visitor.visit::<CHeapOfLengths<heaps::Snmalloc>>()),
        // Other peers, and heaps that are not built in, for which this fails.
        _ => visit(name, len, visitor),
    }
}

/// Uses each heap once: some count the CPUs on first use, which must not happen after a thread was pinned
/// to one.
pub(crate) fn initialise_heaps() {
    for heap in HEAPS {
        // A heap that is not built in is reported with its row.
        let _ = visit_heap(heap, UseOnce);
    }
}

struct UseOnce;

impl VisitHeap for UseOnce {
    type Out = ();

    fn visit<P>(self)
    where
        P: Heap,
        for<'p> P::Block<'p>: Send,
    {
        let heap = P::open(64, 1);
        let mut block = heap.alloc(64);
        black_box(heap.address(&mut block));
        heap.free(block);
    }
}
