//! [`PacketPool`]: a slab pool that hands out packet buffers.

use super::buf::PacketBuf;
use super::builder::PacketPoolBuilder;
use super::frozen::Packet;
use super::held::HeldPacket;
use super::owner::HeapBlock;
use super::settings::{self, Refusal, Settings};
use super::stats::PacketPoolStats;
use bytes::BufMut;
use core::alloc::Layout;
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
/// Headroom and tailroom are set once, for the pool: each new buffer has that much free space in front
/// of its data and behind the requested capacity, so that headers and trailers can be added later
/// without moving the payload.
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
/// The `try_*` methods return the [`AllocError`] and take memory from nowhere else;
/// [`alloc`](Self::alloc) waits, first come, first served, until memory is freed. Methods that cannot
/// return an error ([`with_capacity`](Self::with_capacity), and everything that [`bytes::BytesMut`]
/// has, such as [`PacketBuf::reserve`]) fall back to the heap for that one buffer, and so does
/// [`compact`](Self::compact), which frees a larger one. So do requests above the largest size class, and those for
/// which the system refuses the pool memory. Fallbacks are counted in [`packet_stats`](Self::packet_stats), and reported
/// by a `tracing` warning whenever their number has doubled. The builder can set a
/// [limit](PacketPoolBuilder::max_heap_memory) on them (by default there is none); beyond it these methods panic, but for
/// `compact`. Code that must stay within the cap uses the `try_*` methods.
///
/// # Lifetime
///
/// A packet pool stays open while there are handles to it; each receiver into its memory holds one, as do
/// sessions of [RUDP](crate::rudp), [held](Self::hold) packets, and buffers that the heap serves in its place. A
/// buffer that outlives all of them grows into the [process-wide pool](Self::default_pool); or, if the
/// application kept a [`SlabPool`] handle, into that slab pool as [`PacketPool::from`] wraps it, without headroom,
/// tailroom and heap limit. So keep a handle for as long as buffers grow. A [`Packet`] needs none, but to be
/// [compacted](Packet::compact) within the pool's heap limit, and counted.
#[derive(Clone)]
pub struct PacketPool {
    slab: SlabPool,
    settings: Arc<Settings>,
    /// A copy of the field in `settings`: it spares the fast path a cache line.
    headroom: u32,
    tailroom: u32,
}

impl PacketPool {
    /// Returns a builder, with [`SizeClasses::network`](slab_core::SizeClasses::network) as the size
    /// classes.
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

    /// Returns the process-wide pool, which serves the constructors that take no pool, such as
    /// [`PacketBuf::with_capacity`]. It is created on first use with the builder's defaults, unless
    /// [`install_default`](PacketPoolBuilder::install_default) was called before.
    ///
    /// ```
    /// # use slab_net::{PacketBuf, PacketPool};
    /// let _buf = PacketBuf::with_capacity(1400);
    /// let stats = PacketPool::default_pool().slab().stats();
    /// assert!(stats.in_use() >= 1);
    /// assert_eq!(stats.max_memory, 64 << 20);
    /// ```
    ///
    /// # Panics
    /// If the pool has to be created and the system does not reserve its address range. Everything that
    /// uses the default pool then panics too. The next use tries again.
    pub fn default_pool() -> &'static Self {
        settings::DEFAULT_POOL.get_or_init(|| {
            Self::builder()
                .build()
                .expect("the default packet pool needs 64 MiB of address space")
        })
    }

    /// Returns the slab pool behind this one, for its statistics, [`trim`](SlabPool::trim) and so on.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// assert_eq!(pool.slab().stats().max_memory, 8 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "stats")]
    #[must_use]
    pub fn slab(&self) -> &SlabPool {
        &self.slab
    }

    /// The number of free bytes in front of the data of a new buffer.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.headroom as usize
    }

    /// The minimum number of free bytes behind the requested capacity of a new buffer.
    #[must_use]
    pub fn tailroom(&self) -> usize {
        self.tailroom as usize
    }

    /// The bytes of a buffer's chunk that do not count as capacity asked for: headroom and tailroom.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.headroom as usize + self.tailroom as usize
    }

    /// Returns an empty buffer with a capacity of at least `len` bytes, in a chunk of the smallest size
    /// class that holds `len`, headroom and tailroom. A `len` of 0 takes a chunk too: a buffer finds
    /// its pool through its memory, so a buffer of this pool cannot be without a chunk.
    ///
    /// # Errors
    /// The same as [`SlabPool::try_alloc`]: the pool is at its cap, `len` with headroom and tailroom, which the
    /// error counts in, is above the largest size class, or the system refused to back a slab.
    // `always`: a call would return the buffer through memory, as parts that are then read as wholes at
    // once (a failed store forwarding), which costs more than the function itself.
    #[inline(always)]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_alloc(&self, len: usize) -> Result<PacketBuf, AllocError> {
        let chunk = self.slab.try_alloc(len.saturating_add(self.room()))?;
        Ok(PacketBuf::from_chunk(chunk, self.headroom))
    }

    /// Like [`try_alloc`](Self::try_alloc), for a caller that can do without.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub(super) fn try_alloc_spare(&self, len: usize) -> Option<PacketBuf> {
        let chunk = self.slab.try_alloc_spare(len.saturating_add(self.room()))?;
        Some(PacketBuf::from_chunk(chunk, self.headroom))
    }

    /// Like [`try_alloc`](Self::try_alloc), but waits while the pool is at its cap; first come, first
    /// served.
    ///
    /// Cancel-safe: the future can be dropped at any time, for example by `tokio::select!`, without
    /// losing memory or another waiter's turn. Needs no particular runtime; a thread without one waits by a
    /// `block_on` such as that of `pollster`.
    ///
    /// Tasks that wait here while they hold memory of the pool can wait for each other, and then wait for ever. What a
    /// receiver has read but not yet returned ([`held_bytes`](crate::udp::UdpReceiver::held_bytes)) is such memory: a task
    /// that both receives and waits should go on receiving meanwhile, as by `tokio::select!`, or give up by
    /// [`alloc_timeout`](Self::alloc_timeout), or take what it sends from another pool.
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
    /// The same as [`SlabPool::alloc`]: a request that can never be served is refused at once, and so
    /// is one for which the queue of waiters is full.
    // Not an `async fn`: that would lose the caller's location.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn alloc(
        &self,
        len: usize,
    ) -> impl Future<Output = Result<PacketBuf, AllocError>> + Send + use<'_> {
        let room = self.room();
        let mut chunk = self.slab.alloc(len.saturating_add(room));
        async move {
            // No span for an allocation that does not wait.
            let at_once = poll_fn(|context| Poll::Ready(pin!(&mut chunk).poll(context)));
            let chunk = match at_once.await {
                Poll::Ready(chunk) => chunk?,
                Poll::Pending => chunk.instrument(self.wait_span(len + room)).await?,
            };
            Ok(PacketBuf::from_chunk(chunk, self.headroom))
        }
    }

    /// The `tracing` span of a wait for memory: the pool and the size class.
    #[cold]
    fn wait_span(&self, len: usize) -> Span {
        let size_class = self.slab.size_classes().round_up(len);
        tracing::debug_span!("waiting for memory", pool = self.slab.name(), size_class)
    }

    /// Like [`alloc`](Self::alloc), but waits for at most `patience`. When the time is up it tries once more, so one that
    /// fails then is counted twice: among those that [waited](slab_core::ClassStats::waits), and among those
    /// [refused](slab_core::ClassStats::exhausted). An [`alloc`](Self::alloc) that is dropped has only waited.
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
    /// The same as `alloc`, and [`AllocError::Exhausted`] when the time is up.
    ///
    /// # Panics
    /// If it has to wait outside a tokio runtime with time enabled.
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
                // An allocation that does not wait needs no timer, and so no runtime.
                let at_once = poll_fn(|context| Poll::Ready(alloc.as_mut().poll(context)));
                if let Poll::Ready(done) = at_once.await {
                    return done;
                }
                if let Ok(done) = tokio::time::timeout(patience, alloc).await {
                    return done;
                }
            }
            // The pool's own error, or memory that was freed at the last moment.
            self.try_alloc(len)
        }
    }

    /// Like [`try_alloc`](Self::try_alloc), but falls back to the heap: see [the pool's
    /// policy](Self#when-the-pool-is-at-its-cap).
    ///
    /// # Panics
    /// If `capacity` with headroom and tailroom is above `u32::MAX` bytes (`isize::MAX` if that is
    /// less), or if the pool cannot serve it and the [heap limit](PacketPoolBuilder::max_heap_memory) is
    /// reached.
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

    /// Returns a buffer of `len` zeros.
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

    /// Like [`try_zeroed`](Self::try_zeroed), but falls back to the heap: see [the pool's
    /// policy](Self#when-the-pool-is-at-its-cap).
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

    /// Allocates a buffer on the heap.
    #[cold]
    pub(super) fn heap_fallback(&self, capacity: usize) -> Result<PacketBuf, Refusal> {
        self.heap_fallback_up_to(capacity, capacity)
    }

    /// Allocates a buffer on the heap: of `most` bytes, or as many as the heap limit allows, but no
    /// fewer than `least`.
    #[cold]
    pub(super) fn heap_fallback_up_to(
        &self,
        least: usize,
        most: usize,
    ) -> Result<PacketBuf, Refusal> {
        let room = self.room();
        let least = least.saturating_add(room);
        // No allocation exceeds `isize::MAX`, which is the lower of the two on 32-bit targets.
        let largest = (u32::MAX as usize).min(isize::MAX as usize);
        if least > largest {
            return Err(Refusal::Overflow);
        }
        let most = most.saturating_add(room).min(largest);
        let block = HeapBlock::fallback(least, most, Arc::clone(&self.settings));
        if let Err(Refusal::OutOfMemory { bytes }) = block {
            // As for any other allocation whose caller expects no error.
            let layout = Layout::array::<u8>(bytes).expect("no more than `largest`");
            std::alloc::handle_alloc_error(layout);
        }
        let block = block.inspect_err(|_| self.settings.count_heap_refusal())?;
        Ok(PacketBuf::from_heap(block, self.headroom))
    }

    /// Allocates a buffer on the heap, without headroom and tailroom, for a copy that need not be made: `None` if the
    /// limit leaves no room, which is no refusal, or if the heap has none, which is not the end of the program.
    #[cold]
    fn heap_copy_room(&self, len: usize) -> Option<PacketBuf> {
        let block = HeapBlock::fallback(len, len, Arc::clone(&self.settings)).ok()?;
        Some(PacketBuf::from_heap(block, 0))
    }

    /// Whether the heap limit leaves, at this moment, a buffer of this capacity.
    pub(super) fn heap_leaves(&self, capacity: usize) -> bool {
        let block = capacity.saturating_add(self.room());
        self.settings.heap_left() >= block.max(HeapBlock::MIN_BYTES) as u64
    }

    /// Like [`with_capacity`](Self::with_capacity), but from the heap only, and `None` where that
    /// panics.
    pub(crate) fn try_from_heap(&self, capacity: usize) -> Option<PacketBuf> {
        self.heap_fallback(capacity).ok()
    }

    /// Like [`try_alloc`](Self::try_alloc), but if that class has no chunk, takes one of the next
    /// larger class that has one, up to `most` bytes.
    pub(crate) fn try_alloc_or_larger(
        &self,
        len: usize,
        most: usize,
    ) -> Result<PacketBuf, AllocError> {
        self.try_alloc(len).or_else(|error| {
            let larger = self.try_alloc_larger(len, most);
            larger.ok_or(error)
        })
    }

    /// A buffer for `len` bytes of a larger class than that of `len`, the smallest that has a chunk, up to `most` bytes.
    /// That these classes have none is not counted as refused: the caller asked for another.
    pub(crate) fn try_alloc_larger(&self, len: usize, most: usize) -> Option<PacketBuf> {
        let room = self.room();
        let asked = self
            .slab
            .size_classes()
            .round_up(len.saturating_add(room))?;
        let sizes = self.slab.size_classes().sizes().iter();
        let mut larger = sizes.filter(|&&size| size > asked && size <= most);
        larger.find_map(|size| self.try_alloc_spare(size - room))
    }

    /// Returns a packet with a copy of `data`. An empty one takes no memory.
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

    /// Like [`try_copy_from_slice`](Self::try_copy_from_slice), but falls back to the heap: see [the
    /// pool's policy](Self#when-the-pool-is-at-its-cap).
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

    /// Replaces a packet that pins a far larger buffer by a copy in a chunk of its own size; returns
    /// any other packet unchanged.
    ///
    /// A packet is copied if its memory is more than
    /// [`compact_ratio`](PacketPoolBuilder::compact_ratio) times as large as the packet, and the copy's
    /// would be smaller; one above the largest size class never is. An empty packet just releases its memory. This pays for
    /// a packet that is retained after the others that share its buffer are gone: the last one pins the whole buffer. The
    /// copy has no headroom, and no tailroom beyond what rounding to the size class gives.
    ///
    /// Memory of this pool is known behind [`bytes::Bytes`] too, as which parsers that take any `Buf` return a part of a
    /// packet. What other foreign memory keeps in use beyond the bytes that it shows is not.
    ///
    /// If the pool has no memory for the copy, the heap serves it, by [the pool's
    /// rules](Self#when-the-pool-is-at-its-cap): packets that were kept as they are could take the whole pool, and nothing
    /// more would be received. If the heap limit leaves no room for it, or the heap has none, the packet is returned
    /// unchanged; this is counted in [`packet_stats`](Self::packet_stats). The slab pool counts a refused allocation either
    /// way.
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
        let (len, occupied) = (packet.len(), self.settings.occupied_bytes(&packet));
        if len == 0 {
            return Packet::new();
        }
        if occupied <= len.saturating_mul(self.settings.compact_ratio as usize) {
            return packet;
        }
        let copied = self.slab.size_classes().round_up(len);
        let gain = copied.and_then(|bytes| occupied.checked_sub(bytes));
        let Some(gain @ 1..) = gain else {
            return packet;
        };
        let chunk = self.slab.try_alloc(len).ok();
        let copy = chunk.map(|chunk| PacketBuf::from_chunk(chunk, 0));
        let copy = copy.or_else(|| self.heap_copy_room(len));
        let Some(mut buf) = copy else {
            self.settings.count_compaction(false, gain as u64);
            return packet;
        };
        buf.extend_from_slice(&packet);
        let copy = buf.freeze();
        // A block of the heap is no longer than the packet, where a chunk may be.
        let gain = occupied - copy.occupied_bytes();
        self.settings.count_compaction(true, gain as u64);
        copy
    }

    /// Retains a packet: [compacts](Self::compact) it, and counts it in
    /// [`packet_stats`](Self::packet_stats) until it is dropped or released. Has no limit of its own, since the caller's
    /// collection of packets has one.
    ///
    /// In a pool without a heap in its place ([`max_heap_memory`](PacketPoolBuilder::max_heap_memory)) that is at its
    /// cap, a packet goes on pinning its receive buffer. One in each buffer keeps such a pool full: nothing is received, and
    /// if only newer packets push out the old ones, that never ends. Let go of what pins too much there. Further ones are
    /// copied once a slab is free as a whole: of buffers of 64 KiB after the first four, if they are let go in the order in
    /// which the pool first handed them out; in random order a third of a large pool may go before.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().max_memory(512 << 10).max_heap_memory(0).build()?;
    /// let mut queued = Vec::new(); // what was received in a burst: the pool is full
    /// while let Ok(mut buf) = pool.try_alloc(65_536) {
    ///     buf.resize(65_536, 7);
    ///     queued.push(buf.freeze());
    /// }
    /// let mut kept = Vec::new();
    /// for packet in queued {
    ///     let held = pool.hold(packet.slice(..1000));
    ///     if held.pinned_bytes() <= 4096 {
    ///         kept.push(held);
    ///     }
    /// }
    /// assert!(!kept.is_empty() && pool.try_alloc(65_536).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn hold(&self, packet: Packet) -> HeldPacket {
        HeldPacket::new(self.compact(packet), Arc::clone(&self.settings))
    }

    /// Returns what the slab pool does not count: heap fallbacks, compacted packets and held packets.
    #[must_use]
    pub fn packet_stats(&self) -> PacketPoolStats {
        self.settings.stats()
    }
}

/// A packet pool over an existing slab pool, without headroom, tailroom and heap limit.
///
/// Each conversion counts its own fallbacks. If several packet pools share a slab pool, its buffers
/// grow by the settings of the oldest of them that still has handles.
impl From<SlabPool> for PacketPool {
    fn from(slab: SlabPool) -> Self {
        Self::from_settings(settings::register(Settings::with_defaults(slab)))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use slab_core::SizeClasses;

    #[test]
    fn a_larger_class_serves_only_up_to_its_limit() {
        let pool = PacketPool::builder()
            .size_classes(SizeClasses::explicit(&[128, 1024, 4096]).unwrap())
            .max_memory(3 * 65_536)
            .headroom(16)
            .tailroom(8)
            .build()
            .unwrap();
        // The first two take a slab each, the others all of the rest.
        let _held = [pool.try_alloc(1000).unwrap(), pool.try_alloc(4000).unwrap()];
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(100).ok()).collect();
        let exhausted = |class: usize| pool.slab().stats().classes()[class].exhausted;
        let before = [0, 1, 2].map(exhausted);
        let refused = pool.try_alloc_or_larger(100, 1023).unwrap_err();
        assert_eq!(refused, AllocError::Exhausted { chunk_bytes: 128 });
        let larger = pool.try_alloc_or_larger(100, 1024).unwrap();
        assert_eq!(larger.capacity(), 1024 - 16);
        // No smaller one, and none that holds the length without the room.
        let _all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1000).ok()).collect();
        all.pop();
        let larger = pool.try_alloc_or_larger(110, 4096).unwrap();
        assert_eq!(larger.capacity(), 4096 - 16);
        assert!(pool.try_alloc_larger(4097, usize::MAX).is_none());
        // Where they were asked for, and not where a larger one was looked for instead.
        let refused = [0, 1, 2].map(|class| exhausted(class) - before[class]);
        assert_eq!(refused, [2, 2, 0]);
    }
}
