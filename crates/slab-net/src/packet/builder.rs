//! [`PacketPoolBuilder`]: the configuration of a packet pool, and its errors.

use super::pool::PacketPool;
use super::settings::{self, Settings};
use core::fmt;
use slab_core::{ConfigError, SizeClasses, SlabPool, SlabPoolBuilder};
use std::io;

/// The default ratio of occupied memory to length above which a packet is worth copying.
pub(super) const COMPACT_RATIO: u32 = 2;

/// The configuration of a [`PacketPool`].
///
/// ```
/// use slab_net::{PacketPool, PacketPoolError, SizeClasses};
///
/// let pool = PacketPool::builder()
///     .name("rx")
///     .size_classes(SizeClasses::explicit(&[2048, 65_536])?)
///     .max_memory(16 << 20)
///     .headroom(64)
///     .build()?;
/// assert_eq!(pool.try_alloc(1400)?.capacity(), 2048 - 64);
///
/// let refused = PacketPool::builder().headroom(1 << 20).build();
/// assert!(matches!(refused, Err(PacketPoolError::NoRoom { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct PacketPoolBuilder {
    slab: SlabPoolBuilder,
    headroom: usize,
    tailroom: usize,
    compact_ratio: u32,
    max_heap_memory: usize,
}

impl Default for PacketPoolBuilder {
    fn default() -> Self {
        Self {
            slab: SlabPool::builder().size_classes(SizeClasses::network()),
            headroom: 0,
            tailroom: 0,
            compact_ratio: COMPACT_RATIO,
            max_heap_memory: usize::MAX,
        }
    }
}

impl PacketPoolBuilder {
    /// Sets the pool's name in metrics and log events. Default: `default`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.slab = self.slab.name(name);
        self
    }

    /// Sets the chunk sizes. Default: [`SizeClasses::network`].
    pub fn size_classes(mut self, classes: SizeClasses) -> Self {
        self.slab = self.slab.size_classes(classes);
        self
    }

    /// Sets the cap in bytes, as in [`SlabPoolBuilder::max_memory`]. Default: 64 MiB.
    ///
    /// A slab serves one size class at a time, and has 256 KiB with the default classes. So a server needs a cap of several
    /// slabs, 1 MiB say (2 MiB with a class above 64 KiB, as for io_uring, whose slabs are twice as large): in one of
    /// 256 KiB, a datagram that was received keeps the only slab, and there is no memory for an
    /// answer of another size. RUDP takes more: [how much](crate::rudp::EndpointConfig::max_memory) depends on the number of
    /// sessions.
    pub fn max_memory(mut self, bytes: usize) -> Self {
        self.slab = self.slab.max_memory(bytes);
        self
    }

    /// Sets further options of the slab pool. What this builder has set before is kept.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder()
    ///     .name("rx")
    ///     .slab(|slab| slab.hardened(true).zero_on_free(true))
    ///     .build()?;
    /// assert_eq!(pool.slab().name(), "rx");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slab(mut self, set: impl FnOnce(SlabPoolBuilder) -> SlabPoolBuilder) -> Self {
        self.slab = set(self.slab);
        self
    }

    /// Sets the free bytes in front of the data of each new buffer, for headers. Default: 0.
    ///
    /// Only buffers that are allocated have them. A received datagram has none: to forward it with another
    /// header, send both by [`Transmit::gather`](crate::udp::Transmit::gather), which copies nothing.
    pub fn headroom(mut self, bytes: usize) -> Self {
        self.headroom = bytes;
        self
    }

    /// Sets the free bytes behind the requested capacity, for trailers. Default: 0.
    pub fn tailroom(mut self, bytes: usize) -> Self {
        self.tailroom = bytes;
        self
    }

    /// Makes [`PacketPool::compact`] copy a packet whose memory is more than `ratio` times as large as
    /// the packet. Default: 2.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().compact_ratio(4).build()?;
    /// let received = pool.try_copy_from_slice(&[7; 1400])?; // in a chunk of 1536 bytes
    /// assert_eq!(pool.compact(received.slice(..400)).pinned_bytes(), 1136);
    /// assert_eq!(pool.compact(received.slice(..300)).pinned_bytes(), 212);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact_ratio(mut self, ratio: u32) -> Self {
        self.compact_ratio = ratio;
        self
    }

    /// Sets how many bytes of heap may stand in for the pool at one time, when a method that returns no
    /// error finds the pool at its cap or asks for more than the largest size class; beyond that, these
    /// methods panic, and [`compact`](PacketPool::compact) leaves a packet as it is. A buffer counts as at least 64 bytes;
    /// its bookkeeping, some 50, comes on top. 0 keeps buffers off the heap altogether. Default: no limit.
    ///
    /// An RUDP session uses it, and does not panic, for a message above the largest size class, and to tell the peer
    /// that it sends no more.
    ///
    /// ```
    /// use slab_net::PacketPool;
    /// use std::fmt::Write;
    ///
    /// let pool = PacketPool::builder().max_heap_memory(128 << 10).build()?;
    /// let large = pool.with_capacity(100_000); // above the largest size class
    /// assert_eq!(pool.packet_stats().heap_bytes, 100_000);
    ///
    /// // `reserve` panics beyond the limit, `write!` returns an error.
    /// let mut other = pool.try_alloc(64)?;
    /// assert!(write!(other, "{}", "x".repeat(100_000)).is_err());
    /// assert_eq!(pool.packet_stats().heap_refused, 1);
    /// # drop(large);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_heap_memory(mut self, bytes: usize) -> Self {
        self.max_heap_memory = bytes;
        self
    }

    /// Builds the pool.
    ///
    /// # Errors
    /// [`PacketPoolError::Slab`] if the slab pool cannot be built, [`PacketPoolError::NoRoom`] if
    /// headroom and tailroom leave nothing of the largest chunk.
    pub fn build(self) -> Result<PacketPool, PacketPoolError> {
        let slab = self.slab.build()?;
        let largest = slab.size_classes().largest();
        // No chunk reaches 4 GiB, so both fit `u32` if their sum is below the largest chunk.
        let settings = match (u32::try_from(self.headroom), u32::try_from(self.tailroom)) {
            (Ok(headroom), Ok(tailroom))
                if u64::from(headroom) + u64::from(tailroom) < largest as u64 =>
            {
                Settings::new(
                    slab,
                    headroom,
                    tailroom,
                    self.compact_ratio,
                    self.max_heap_memory,
                )
            }
            _ => {
                return Err(PacketPoolError::NoRoom {
                    headroom: self.headroom,
                    tailroom: self.tailroom,
                    largest,
                });
            }
        };
        Ok(PacketPool::from_settings(settings::register(settings)))
    }

    /// Builds the pool and makes it the process-wide one, which serves the constructors that take no
    /// pool. This cannot be undone.
    ///
    /// ```standalone_crate
    /// use slab_net::{PacketBuf, PacketPool};
    ///
    /// let pool = PacketPool::builder().name("all").max_memory(1 << 30).install_default()?;
    /// let buf = PacketBuf::with_capacity(1400);
    /// assert_eq!(pool.slab().stats().in_use(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PacketPoolError::DefaultInUse`] if there already is a process-wide pool: installed before, or
    /// created by its first use. Otherwise the same as [`build`](Self::build).
    pub fn install_default(self) -> Result<PacketPool, PacketPoolError> {
        let pool = self.build()?;
        match settings::DEFAULT_POOL.set(pool.clone()) {
            Ok(()) => Ok(pool),
            Err(_) => Err(PacketPoolError::DefaultInUse),
        }
    }
}

/// Why a packet pool could not be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PacketPoolError {
    /// The slab pool could not be built.
    Slab(ConfigError),
    /// Headroom and tailroom leave nothing of the largest chunk.
    NoRoom {
        /// The headroom asked for, in bytes.
        headroom: usize,
        /// The tailroom asked for, in bytes.
        tailroom: usize,
        /// The largest size class in bytes.
        largest: usize,
    },
    /// The process-wide pool already exists.
    DefaultInUse,
}

impl fmt::Display for PacketPoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slab(error) => error.fmt(f),
            Self::NoRoom {
                headroom,
                tailroom,
                largest,
            } => write!(
                f,
                "{headroom} bytes of headroom and {tailroom} of tailroom leave no room in the \
                 largest size class, {largest} bytes"
            ),
            Self::DefaultInUse => write!(
                f,
                "there is a process-wide packet pool already; install another before anything uses it"
            ),
        }
    }
}

impl core::error::Error for PacketPoolError {}

/// An error of the kind that fits, with this one in it; with the reason alone if the slab pool could not be built.
impl From<PacketPoolError> for io::Error {
    fn from(error: PacketPoolError) -> Self {
        let kind = match error {
            PacketPoolError::Slab(error) => return error.into(),
            PacketPoolError::NoRoom { .. } => io::ErrorKind::InvalidInput,
            PacketPoolError::DefaultInUse => io::ErrorKind::AlreadyExists,
        };
        Self::new(kind, error)
    }
}

impl From<ConfigError> for PacketPoolError {
    fn from(error: ConfigError) -> Self {
        Self::Slab(error)
    }
}
