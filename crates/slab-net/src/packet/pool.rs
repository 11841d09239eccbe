//! [`PacketPool`]: a slab pool that hands out packet buffers.

use super::buf::PacketBuf;
use super::builder::PacketPoolBuilder;
use super::frozen::Packet;
use super::held::HeldPacket;
use super::settings::{self, Refusal, Settings};
use bytes::BufMut;
use core::fmt;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use slab_core::{AllocError, SlabPool};
use std::sync::Arc;
use std::time::Duration;
use tracing::{Instrument, Span};

/// A cheap handle to a [`SlabPool`] that hands out [`PacketBuf`]s; share it by cloning.
///
/// Headroom and tailroom are set once, for the pool: each new buffer has that much space in front
/// of its data and behind what was asked for, so that headers can be put around a payload later
/// without moving it.
///
/// ```
/// use slab_net::PacketPool;
///
/// let pool = PacketPool::builder().name("rx").max_memory(8 << 20).headroom(64).build()?;
/// let mut buf = pool.try_alloc(1200)?;
/// buf.extend_from_slice(b"payload");
/// buf.prepend(b"header:");
/// let packet = buf.freeze();
/// assert_eq!(packet, b"header:payload"[..]);
/// assert_eq!(pool.slab().stats().in_use(), 1);
/// drop(packet);
/// assert_eq!(pool.slab().stats().in_use(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When the pool is at its cap
///
/// `try_*` methods return the [`AllocError`] and take memory from nowhere else;
/// [`alloc`](Self::alloc) waits, in turn, until memory is freed. Methods that cannot
/// fail ([`with_capacity`](Self::with_capacity), and everything that [`bytes::BytesMut`] has, such
/// as [`PacketBuf::reserve`]) fall back to the heap, for this one buffer. So do requests above the
/// largest size class. Fallbacks are counted in [`packet_stats`](Self::packet_stats), and reported
/// by a `tracing` warning whenever their number has doubled. They have the limit that the builder
/// [sets](PacketPoolBuilder::heap_limit), which is none by default; beyond it these methods panic.
/// Code that must stay within the cap uses the `try_*` methods.
///
/// # How long it lives
///
/// As long as there are handles to it, one of which is in each buffer that the heap serves in its
/// place. A buffer that outlives them grows in the [process-wide pool](Self::default_pool); or, if
/// the application kept a [`SlabPool`] handle, in that one as [`PacketPool::from`] has it, without
/// headroom and heap limit. So keep a handle for as long as buffers grow. A [`Packet`] needs none.
#[derive(Clone)]
pub struct PacketPool {
    slab: SlabPool,
    settings: Arc<Settings>,
    /// Here as well as in `settings`, to spare the fast path a cache line.
    headroom: u32,
    tailroom: u32,
}

impl PacketPool {
    /// Starts the configuration of a pool, with [`SizeClasses::network`](slab_core::SizeClasses::network)
    /// as its size classes.
    pub fn builder() -> PacketPoolBuilder {
        PacketPoolBuilder::default()
    }

    pub(super) fn from_settings(settings: Arc<Settings>) -> Self {
        Self {
            slab: settings.slab.clone(),
            headroom: settings.headroom,
            tailroom: settings.tailroom,
            settings,
        }
    }

    /// The process-wide pool, which serves the constructors that take no pool, such as
    /// [`PacketBuf::with_capacity`]. Created on first use with the builder's defaults, unless
    /// [`install_default`](PacketPoolBuilder::install_default) came before.
    ///
    /// # Panics
    /// If it has to be created and the system will not reserve its address range. So does then all
    /// that uses it. The next use tries again.
    pub fn default_pool() -> &'static Self {
        settings::default_pool(|| {
            Self::builder()
                .build()
                .expect("the default packet pool needs 64 MiB of address space")
        })
    }

    /// The pool of memory behind this one: its statistics, [`trim`](SlabPool::trim) and so on.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// assert_eq!(pool.slab().stats().max_memory, 8 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn slab(&self) -> &SlabPool {
        &self.slab
    }

    /// Free bytes in front of the data of a new buffer.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.headroom as usize
    }

    /// Free bytes behind the capacity asked for, at least, in a new buffer.
    #[must_use]
    pub fn tailroom(&self) -> usize {
        self.tailroom as usize
    }

    /// An empty buffer with a capacity of at least `len` bytes, of the smallest size class that
    /// holds them and the pool's headroom and tailroom. A `len` of 0 takes a chunk as well: a
    /// buffer knows its pool by its memory, so there is none of this pool that has allocated nothing.
    ///
    /// # Errors
    /// As [`SlabPool::try_alloc`]: the pool is at its cap, `len` with headroom and tailroom is
    /// above the largest size class, or the system would not back a slab.
    // Always: a call would return the buffer through memory, in parts that are read as wholes at
    // once, and that costs more than what it does.
    #[inline(always)]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_alloc(&self, len: usize) -> Result<PacketBuf, AllocError> {
        let room = self.headroom as usize + self.tailroom as usize;
        let chunk = self.slab.try_alloc(len.saturating_add(room))?;
        Ok(PacketBuf::from_chunk(chunk, self.headroom))
    }

    /// As [`try_alloc`](Self::try_alloc), but waits while the pool is at its cap; first come, first
    /// served.
    ///
    /// Cancel-safe: the future can be dropped at any moment, in `tokio::select!` for example, and
    /// neither memory nor anybody's turn is lost. Needs no particular runtime.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use slab_net::{PacketPool, SizeClasses};
    ///
    /// let classes = SizeClasses::explicit(&[65_536])?;
    /// let pool = PacketPool::builder().size_classes(classes).max_memory(256 << 10).build()?;
    /// let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(65_536).ok()).collect();
    /// let (buf, ()) = tokio::join!(pool.alloc(65_536), async { drop(all.pop()) });
    /// assert_eq!(buf?.capacity(), 65_536);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`SlabPool::alloc`]: what can never be served is refused at once, and so is who comes
    /// behind too many others.
    // No `async fn`: that one would not know its caller.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn alloc(
        &self,
        len: usize,
    ) -> impl Future<Output = Result<PacketBuf, AllocError>> + Send + use<'_> {
        let room = self.headroom as usize + self.tailroom as usize;
        let mut chunk = self.slab.alloc(len.saturating_add(room));
        async move {
            // Who does not have to wait makes no span.
            let at_once = poll_fn(|context| Poll::Ready(pin!(&mut chunk).poll(context)));
            let chunk = match at_once.await {
                Poll::Ready(chunk) => chunk?,
                Poll::Pending => chunk.instrument(self.waiting(len + room)).await?,
            };
            Ok(PacketBuf::from_chunk(chunk, self.headroom))
        }
    }

    /// The span of a wait for memory, for `tracing`: who waits, in which pool, for which size class.
    #[cold]
    fn waiting(&self, len: usize) -> Span {
        let sizes = self.slab.size_classes().sizes();
        let size_class = sizes.iter().find(|&&size| size >= len);
        tracing::debug_span!("waiting for memory", pool = self.slab.name(), size_class)
    }

    /// As [`alloc`](Self::alloc), but waits no longer than `patience`.
    ///
    /// ```
    /// # use slab_net::{AllocError, PacketPool, SizeClasses};
    /// # use std::time::Duration;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let classes = SizeClasses::explicit(&[65_536])?;
    /// let pool = PacketPool::builder().size_classes(classes).max_memory(256 << 10).build()?;
    /// let _all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(65_536).ok()).collect();
    /// let refused = pool.alloc_timeout(65_536, Duration::from_millis(1)).await;
    /// assert!(matches!(refused, Err(AllocError::Exhausted { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As `alloc`, and [`AllocError::Exhausted`] when the time is up.
    ///
    /// # Panics
    /// If it has to wait outside of a tokio runtime with time enabled.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn alloc_timeout(
        &self,
        len: usize,
        patience: Duration,
    ) -> impl Future<Output = Result<PacketBuf, AllocError>> + Send + use<'_> {
        let alloc = self.alloc(len);
        async move {
            {
                let mut alloc = pin!(alloc);
                // Who does not have to wait needs no timer, and so no runtime.
                let at_once = poll_fn(|context| Poll::Ready(alloc.as_mut().poll(context)));
                if let Poll::Ready(done) = at_once.await {
                    return done;
                }
                if let Ok(done) = tokio::time::timeout(patience, alloc).await {
                    return done;
                }
            }
            // The error as the pool puts it, or what came at the last moment.
            self.try_alloc(len)
        }
    }

    /// As [`try_alloc`](Self::try_alloc), but falls back to the heap: see
    /// [the pool's policy](Self#when-the-pool-is-at-its-cap).
    ///
    /// # Panics
    /// If `capacity` with headroom and tailroom is above `u32::MAX` bytes (`isize::MAX` if that is
    /// less), or the pool is at its cap and its [heap limit](PacketPoolBuilder::heap_limit) reached.
    #[inline]
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn with_capacity(&self, capacity: usize) -> PacketBuf {
        match self.try_alloc(capacity) {
            Ok(buf) => buf,
            Err(_) => match self.heap_fallback(capacity) {
                Ok(buf) => buf,
                Err(refusal) => refusal.panic(),
            },
        }
    }

    /// A buffer of `len` zeros.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().build()?;
    /// assert_eq!(pool.try_zeroed(3)?, [0, 0, 0][..]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_alloc`](Self::try_alloc).
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_zeroed(&self, len: usize) -> Result<PacketBuf, AllocError> {
        let mut buf = self.try_alloc(len)?;
        buf.put_bytes(0, len);
        Ok(buf)
    }

    /// A buffer of `len` zeros; falls back to the heap as
    /// [the pool's policy](Self#when-the-pool-is-at-its-cap) says.
    ///
    /// # Panics
    /// As [`with_capacity`](Self::with_capacity).
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn zeroed(&self, len: usize) -> PacketBuf {
        let mut buf = self.with_capacity(len);
        buf.put_bytes(0, len);
        buf
    }

    /// A buffer on the heap.
    #[cold]
    pub(super) fn heap_fallback(&self, capacity: usize) -> Result<PacketBuf, Refusal> {
        self.heap_fallback_up_to(capacity, capacity)
    }

    /// A buffer on the heap, of `least` bytes or, as far as the heap limit leaves more, up to `most`.
    #[cold]
    pub(super) fn heap_fallback_up_to(
        &self,
        least: usize,
        most: usize,
    ) -> Result<PacketBuf, Refusal> {
        let room = self.headroom as usize + self.tailroom as usize;
        let least = least.saturating_add(room);
        // No allocation is larger than `isize::MAX`, which is the lower of the two on 32 bits.
        let largest = (u32::MAX as usize).min(isize::MAX as usize);
        if least > largest {
            return Err(Refusal::Overflow);
        }
        let most = most.saturating_add(room).min(largest);
        PacketBuf::from_heap(least, most, self.headroom, Arc::clone(&self.settings))
    }

    /// As [`with_capacity`](Self::with_capacity), but of the heap only, and `None` where that panics.
    pub(crate) fn try_from_heap(&self, capacity: usize) -> Option<PacketBuf> {
        self.heap_fallback(capacity).ok()
    }

    /// As [`try_alloc`](Self::try_alloc), but where that class has no chunk, one of the next class that
    /// has, up to `most` bytes.
    pub(crate) fn try_alloc_or_larger(
        &self,
        len: usize,
        most: usize,
    ) -> Result<PacketBuf, AllocError> {
        self.try_alloc(len).or_else(|error| {
            let room = self.headroom() + self.tailroom();
            let sizes = self.slab.size_classes().sizes().iter();
            let mut larger = sizes.filter(|&&size| size > len + room && size <= most);
            let found = larger.find_map(|size| self.try_alloc(size - room).ok());
            found.ok_or(error)
        })
    }

    /// A packet that is a copy of `data`; of nothing it takes no memory.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().build()?;
    /// assert_eq!(pool.try_copy_from_slice(b"data")?, "data");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_alloc`](Self::try_alloc).
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_copy_from_slice(&self, data: &[u8]) -> Result<Packet, AllocError> {
        if data.is_empty() {
            return Ok(Packet::new());
        }
        let mut buf = self.try_alloc(data.len())?;
        buf.extend_from_slice(data);
        Ok(buf.freeze())
    }

    /// A packet that is a copy of `data`, of nothing without memory; falls back to the heap as
    /// [the pool's policy](Self#when-the-pool-is-at-its-cap) says.
    ///
    /// # Panics
    /// As [`with_capacity`](Self::with_capacity).
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn copy_from_slice(&self, data: &[u8]) -> Packet {
        if data.is_empty() {
            return Packet::new();
        }
        let mut buf = self.with_capacity(data.len());
        buf.extend_from_slice(data);
        buf.freeze()
    }

    /// Replaces a packet that pins a far larger buffer by a copy in a chunk of its own size, or
    /// returns it as it is.
    ///
    /// A packet is copied if its memory is more than [`compact_ratio`](Self::compact_ratio) times
    /// as large as the packet, and the copy's would be smaller; an empty packet just lets go of its
    /// memory. Worth it for a packet that
    /// is kept while the others that share its buffer go: the last one pins it all. The copy has
    /// no headroom or tailroom beyond what rounding to the size class gives.
    ///
    /// Where the pool cannot serve the copy, the packet stays as it is: that is counted in
    /// [`packet_stats`](Self::packet_stats), and by the slab pool as any allocation that it refuses;
    /// the heap is not asked.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().build()?;
    /// let mut buf = pool.try_alloc(65_536)?;
    /// buf.extend_from_slice(b"alone");
    /// let packet = buf.freeze();
    /// assert_eq!(packet.pinned_bytes(), 65_531);
    /// let packet = pool.compact(packet);
    /// assert_eq!(packet.pinned_bytes(), 59);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn compact(&self, packet: Packet) -> Packet {
        let (len, pinned) = (packet.len(), packet.pinned_bytes());
        if len == 0 {
            return Packet::new();
        }
        let occupied = len + pinned;
        if occupied <= len.saturating_mul(self.settings.compact_ratio as usize) {
            return packet;
        }
        let sizes = self.slab.size_classes().sizes();
        let class = self.slab.class_for(len);
        let gain = class.and_then(|class| occupied.checked_sub(sizes[class]));
        let Some(gain @ 1..) = gain else {
            return packet;
        };
        let copy = self.slab.try_alloc(len);
        self.settings.count_compaction(copy.is_ok(), gain as u64);
        let Ok(chunk) = copy else {
            return packet;
        };
        let mut buf = PacketBuf::from_chunk(chunk, 0);
        buf.extend_from_slice(&packet);
        buf.freeze()
    }

    /// Keeps a packet that is to wait: [compact](Self::compact), and counted in
    /// [`packet_stats`](Self::packet_stats) until it is dropped or let go. Allocates nothing on the
    /// heap; has no limit of its own, because whoever keeps packets has one.
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn hold(&self, packet: Packet) -> HeldPacket {
        HeldPacket::new(self.compact(packet), Arc::clone(&self.settings))
    }

    /// How many times its own length a packet may occupy before [`compact`](Self::compact)
    /// copies it.
    #[must_use]
    pub fn compact_ratio(&self) -> u32 {
        self.settings.compact_ratio
    }

    /// What happened beside the slabs: fallbacks to the heap, and packets made compact.
    #[must_use]
    pub fn packet_stats(&self) -> PacketPoolStats {
        self.settings.stats()
    }
}

/// A packet pool over a slab pool that exists already, without headroom, tailroom and heap limit.
///
/// Each conversion counts its own fallbacks. A buffer of a slab pool that belongs to several packet
/// pools grows by the settings of the one made first of those that have handles still.
impl From<SlabPool> for PacketPool {
    fn from(slab: SlabPool) -> Self {
        Self::from_settings(settings::register(Settings::plain(slab)))
    }
}

impl fmt::Debug for PacketPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketPool")
            .field("slab", &self.slab)
            .field("headroom", &self.headroom)
            .field("tailroom", &self.tailroom)
            .field("compact_ratio", &self.settings.compact_ratio)
            .finish()
    }
}

/// What a packet pool counts beside its [slab pool's statistics](SlabPool::stats).
///
/// What packets pin beyond their length is known of those that are [held](PacketPool::hold): for
/// packets on their way through, keeping that sum would cost each clone, slice and drop more than
/// they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketPoolStats {
    /// Buffers that came from the heap, because the pool could not serve them, so far.
    pub heap_fallbacks: u64,
    /// Bytes of such buffers alive now.
    pub heap_bytes: u64,
    /// Such buffers refused because of the [heap limit](PacketPoolBuilder::heap_limit), so far: by a
    /// panic each, and what `serde` reads by an error.
    pub heap_refused: u64,
    /// Packets that [`PacketPool::compact`] copied so far.
    pub compacted: u64,
    /// Memory that those packets do not keep in use any more, of a pool or not, in bytes, so far.
    pub compacted_bytes: u64,
    /// Packets that it would have copied, had the pool had the memory.
    pub compact_refused: u64,
    /// What these went on to pin and the copies would not have, in bytes, so far.
    pub compact_refused_bytes: u64,
    /// Packets that are [held](PacketPool::hold) now.
    pub held_packets: u64,
    /// The bytes of these packets.
    pub held_bytes: u64,
    /// The memory that these packets keep in use beyond their bytes. What several of them share,
    /// each of them counts.
    pub pinned_bytes: u64,
}
