//! Bounded, size-classed memory pools for network servers.
//!
//! One [`SlabPool`] hands out [`Chunk`]s of a few sizes from one reserved address range whose size
//! is its memory cap. Each thread keeps a few free chunks of each size in its magazines, so
//! allocating and freeing are a handful of plain loads and stores; free chunks move between
//! threads in whole batches through a lock-free depot. A chunk can be freed on any thread at no
//! extra cost, because it has no owner to go back to.
//!
//! ```
//! use slab_core::SlabPool;
//!
//! let pool = SlabPool::builder().name("rx").max_memory(8 << 20).build()?;
//! let mut chunk = pool.try_alloc(1500)?;
//! chunk.try_copy_from_slice(b"datagram").expect("it fits");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | for | see |
//! |---|---|
//! | bytes in size classes | [`SlabPool`], [`SlabPoolBuilder`], [`SizeClasses`], [`Chunk`] |
//! | waiting for memory at the cap | [`SlabPool::alloc`] |
//! | requests above the largest class | [`SlabPool::try_alloc_any`], [`AnyChunk`] |
//! | memory that foreign code holds | [`SlabPool::alloc_raw`], [`SlabPool::chunk_from_raw`], [`SlabBox::into_raw`] |
//! | many chunks in one step; chunks with several owners | [`ChunkBatch`], [`SharedChunk`] |
//! | values of one type | [`Slab`], [`SlabBox`]; in a `static`, `StaticSlab` |
//! | `Vec`, `Box` and maps in a pool | `SlabAllocator` |
//! | a pool in memory of your own | [`SlabPoolBuilder::build_in`], [`SlabBuilder::build_in`], [`BuildInError`]; without an allocator, [`SlabPoolBuilder::build_all_in`] |
//! | what is where; which classes fit | [`PoolStats`]; [`SizeHistogram`] |
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `std` | yes | magazines, `mmap`, `StaticSlab`, waiting times; turns `alloc` on. Without: `no_std`; [`Mode::DepotOnly`] by default |
//! | `alloc` | yes | waiting, oversize requests, histograms, events, pools that take their memory themselves. Without: [`SlabPoolBuilder::build_all_in`] alone, and no allocator |
//! | `allocator-api2` | no | `SlabAllocator`; turns `alloc` on |
//! | `leak-tracking` | no | `SlabPoolBuilder::track_leaks`, `SlabPool::live_chunks`; turns `std` on |
//!
//! # Not a global allocator
//!
//! What a pool keeps for itself, such as the list of its threads, it allocates from the `#[global_allocator]`, in part
//! while it holds a lock. So a pool must not be what that allocates from: it would wait for itself.
//!
//! # Inside
//!
//! Each file begins with what it does and why; the repository's `ARCHITECTURE.md` has the layers and what must always
//! hold.
//!
//! A pool reports rare events to [`tracing`]: slabs committed, raids, sweeps and trims (level `debug`), exhaustion of
//! a class, memory that the system refuses, and leaks (`warn`), and that the first two of these are over (`info`).
//! Each refusal is counted, but only the first is reported until they are over: when an allocation succeeds that
//! neither waited nor found its chunk in a magazine, or, where the system refused memory, when a slab is committed;
//! with the feature `std` not sooner than a second after the last refusal. A pool holds no lock of its own when it
//! reports: a subscriber may use the pool that an event comes from, and wait for threads that do. What it does there
//! may cause further events (a [`trim`](SlabPool::trim) always does), which a global default subscriber hears too. A
//! lock that the caller of the pool holds is still held.

#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Without an allocator nobody uses what memory of the system's and waiting need, nor what events report, and a name is a
// constant; the documentation speaks, without links, of all that there is with one.
#![cfg_attr(
    not(feature = "alloc"),
    allow(
        rustdoc::broken_intra_doc_links,
        dead_code,
        unused_variables,
        irrefutable_let_patterns,
        noop_method_call,
        clippy::useless_asref
    )
)]

// Why the module that allocates is not called `alloc`.
#[cfg(feature = "alloc")]
extern crate alloc;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("slab-core reserves address space generously and needs a 64-bit target");

#[cfg(feature = "allocator-api2")]
mod allocator;
mod arena;
mod class;
mod depot;
mod diagnostics;
mod directory;
mod error;
mod handle;
#[cfg(not(feature = "alloc"))]
mod no_events;
mod pool;
#[cfg(test)]
mod proofs;
mod reclaim;
mod singles;
mod slab;
mod sync;
mod sys;
#[cfg_attr(not(feature = "std"), allow(dead_code))] // No thread has magazines.
mod thread_cache;
mod typed;
#[cfg(feature = "alloc")]
mod wait;
#[cfg(not(feature = "alloc"))]
#[path = "wait/nobody.rs"]
mod wait;

#[cfg(feature = "allocator-api2")]
pub use allocator::SlabAllocator;
pub use class::{CHUNK_ALIGN, MAX_CHUNK_ALIGN, MAX_CHUNK_BYTES, MAX_CLASSES, SizeClasses};
#[cfg(feature = "alloc")]
pub use diagnostics::advisor::{Advice, SizeHistogram, Waste};
#[cfg(feature = "leak-tracking")]
pub use diagnostics::track::LiveChunk;
pub use error::{AllocError, BuildInError, ConfigError, NotAChunk};
pub use handle::batch::{ChunkBatch, IntoChunks};
pub use handle::chunk::Chunk;
#[cfg(feature = "alloc")]
pub use handle::oversize::{AnyChunk, HeapChunk};
pub use handle::shared::{Clones, SharedChunk};
pub use handle::wipe::wipe;
pub use pool::SlabPool;
pub use pool::builder::{Backing, Mode, SlabPoolBuilder};
pub use pool::stats::{ClassStats, PoolStats};
pub use slab::growth::Growth;
#[cfg(feature = "std")]
pub use typed::{GlobalBox, GlobalTag, StaticSlab};
pub use typed::{InsertError, Slab, SlabBox, SlabBuilder};
#[cfg(feature = "alloc")]
pub use wait::Alloc;
#[cfg(feature = "std")]
pub use wait::held_wakes::{HeldWakes, hold_wakes};
#[cfg(feature = "std")]
pub use wait::times::WaitTimes;

/// The README's example, as a test.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
