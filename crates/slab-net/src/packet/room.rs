//! How a [`PacketBuf`] gets more space: in its own chunk if possible, in another one otherwise.

use super::buf::{PacketBuf, narrow};
use super::pool::PacketPool;
use super::settings::Refusal;
use core::mem::{self, ManuallyDrop};
use core::ptr;
use slab_core::AllocError;

/// Which contents may be moved to the front of their own chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shift {
    /// Contents no longer than the distance, which is that of the bytes consumed in front of them: the cost is
    /// then proportional to that of consuming those. They keep the pool's headroom.
    Cheap,
    /// Contents of any length, for when there is no other memory. If need be, at the cost of the headroom.
    Any,
}

/// Puts a buffer back into its place when slow code is done with it, also if that code panics: it runs
/// foreign code (a waker of who waits for the freed chunk, a subscriber of `tracing`), and makes the default
/// pool.
///
/// The slow code gets the buffer in another place: the address of its own would keep it out of registers even
/// where it never grows.
struct PutBack<'a> {
    home: &'a mut PacketBuf,
    away: &'a mut PacketBuf,
}

impl Drop for PutBack<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Not by `swap`, which copies both lengths as one: they would share a register from then on.
        mem::forget(mem::replace(self.home, mem::take(self.away)));
    }
}

impl PacketBuf {
    /// Makes room for at least `additional` more bytes behind the contents.
    ///
    /// This happens in place if the chunk has the room and no other handle to it is alive: either
    /// behind the contents, or by moving the contents to the front, if they are no longer than the
    /// distance and that leaves the pool's headroom. Otherwise the contents move to another chunk: of the smallest
    /// class that holds them; of one that holds twice as much, if only their length kept them from
    /// moving to the front; or, if this handle is the end of a chunk whose front was split off, of the same
    /// class as now (so that a receive buffer keeps its size). Bytes behind the contents are not preserved.
    ///
    /// If the pool cannot serve the request, the contents of a chunk move to the front however long they are; if
    /// that does not make enough room either, the heap serves it, by [the pool's
    /// policy](PacketPool#when-the-pool-is-at-its-cap), with twice the capacity if its limit leaves that much.
    /// [`try_reserve`](Self::try_reserve) returns the error instead.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::with_capacity(128);
    /// buf.extend_from_slice(&[0; 64]);
    /// let front = buf.split();
    /// assert_eq!(buf.capacity(), 64);
    /// drop(front);
    /// buf.reserve(128);
    /// assert_eq!(buf.capacity(), 128);
    /// ```
    ///
    /// # Panics
    /// If the new capacity is above `u32::MAX`, or if neither the pool nor the heap within its
    /// [limit](super::PacketPoolBuilder::max_heap_memory) can serve it. If the buffer has no pool, also if
    /// [`PacketPool::default_pool`] panics. The buffer is unchanged after any of these panics.
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn reserve(&mut self, additional: usize) {
        if let Err(refusal) = self.reserve_or_refuse(additional) {
            refusal.panic();
        }
    }

    /// Like [`reserve`](Self::reserve), but returns the reason for a refusal; the buffer is then
    /// unchanged.
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub(super) fn reserve_or_refuse(&mut self, additional: usize) -> Result<(), Refusal> {
        if additional <= self.tailroom() {
            return Ok(());
        }
        let mut away = ManuallyDrop::new(mem::take(self));
        let put_back = PutBack {
            home: self,
            away: &mut away,
        };
        put_back.away.make_room_for(additional)
    }

    /// Makes room for `additional` more bytes; changes nothing if it returns an error.
    #[cold]
    #[inline(never)]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn make_room_for(&mut self, additional: usize) -> Result<(), Refusal> {
        if self.reclaim(additional, Shift::Cheap) {
            return Ok(());
        }
        let Some(needed) = self.len().checked_add(additional) else {
            return Err(Refusal::Overflow);
        };
        let pool = self.growth_pool();
        if self.move_to(&pool, needed).is_ok() {
            return Ok(());
        }
        // Doubled if possible, so that appending byte by byte copies each byte a bounded number of times.
        let doubled = self.capacity() * 2;
        // A chunk is used on rather than exchanged for heap. A block of the heap is used on only if the limit leaves
        // none that is large enough and twice as large: its contents would move again after as few bytes as were
        // consumed now. Nor is one asked for that the limit does not leave, which would count as refused.
        let is_used_on = self.owner.as_chunk().is_some() || !pool.heap_leaves(needed.max(doubled));
        if is_used_on && self.reclaim(additional, Shift::Any) {
            return Ok(());
        }
        match pool.heap_fallback_up_to(needed, doubled) {
            Ok(mut moved) => {
                moved.extend_from_slice(self.as_slice());
                *self = moved;
                Ok(())
            }
            // Others have taken what the limit left, or no block is so large.
            Err(_) if self.reclaim(additional, Shift::Any) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Like [`reserve`](Self::reserve), but takes memory from the pool only.
    ///
    /// ```
    /// # use slab_net::{AllocError, PacketPool};
    /// let pool = PacketPool::builder().build()?;
    /// let mut buf = pool.try_alloc(64)?;
    /// buf.try_reserve(1000)?;
    /// assert!(buf.capacity() >= 1000);
    /// let refused = buf.try_reserve(1 << 20);
    /// assert!(matches!(refused, Err(AllocError::TooLarge { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`PacketPool::try_alloc`]; the buffer is then unchanged.
    ///
    /// # Panics
    /// If the buffer has no pool and [`PacketPool::default_pool`] panics.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_reserve(&mut self, additional: usize) -> Result<(), AllocError> {
        if self.try_reclaim(additional) {
            return Ok(());
        }
        let needed = self.len().saturating_add(additional);
        match self.move_to(&self.growth_pool(), needed) {
            Err(_) if self.reclaim(additional, Shift::Any) => Ok(()),
            moved => moved,
        }
    }

    /// Like [`extend_from_slice`](Self::extend_from_slice), but takes memory from the pool only.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().build()?;
    /// let mut buf = pool.try_alloc(64)?;
    /// buf.try_extend_from_slice(b"within the chunk")?;
    /// assert!(buf.try_extend_from_slice(&[0; 100_000]).is_err());
    /// assert_eq!(buf, "within the chunk");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`PacketPool::try_alloc`]; the buffer is then unchanged.
    ///
    /// # Panics
    /// If the buffer has no pool and [`PacketPool::default_pool`] panics.
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_extend_from_slice(&mut self, extend: &[u8]) -> Result<(), AllocError> {
        if extend.len() > self.tailroom() {
            self.try_reserve(extend.len())?;
        }
        // SAFETY: the tailroom now suffices. `extend` is borrowed, so it cannot overlap bytes that only
        // this handle may write.
        unsafe { self.append_unchecked(extend.as_ptr(), extend.len()) };
        Ok(())
    }

    /// Like [`resize`](Self::resize), but takes memory from the pool only.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().build()?;
    /// let mut buf = pool.try_alloc(64)?;
    /// buf.try_resize(3, 1)?;
    /// assert!(buf.try_resize(100_000, 2).is_err());
    /// buf.try_resize(2, 3)?;
    /// assert_eq!(buf, [1, 1][..]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`PacketPool::try_alloc`]; the buffer is then unchanged.
    ///
    /// # Panics
    /// If the buffer has no pool and [`PacketPool::default_pool`] panics.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_resize(&mut self, new_len: usize, value: u8) -> Result<(), AllocError> {
        let additional = new_len.saturating_sub(self.len());
        if additional > self.tailroom() {
            self.try_reserve(additional)?;
        }
        self.resize(new_len, value);
        Ok(())
    }

    /// Makes room for at least `additional` more bytes behind the contents if this can be done in
    /// place, without long contents being moved and with the pool's headroom left. Returns whether it could.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::with_capacity(64);
    /// buf.extend_from_slice(b"abcd");
    /// let front = buf.split();
    /// assert!(!buf.try_reclaim(64));
    /// drop(front);
    /// assert!(buf.try_reclaim(64));
    /// ```
    #[inline]
    #[must_use = "use `reserve` if it must not fail"]
    pub fn try_reclaim(&mut self, additional: usize) -> bool {
        additional <= self.tailroom() || self.reclaim(additional, Shift::Cheap)
    }

    /// The number of free bytes in front of the contents, which [`prepend`](Self::prepend) can use
    /// without moving anything.
    ///
    /// Zero while another handle to the same chunk is alive: the bytes may belong to that one.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().headroom(64).build()?;
    /// assert_eq!(pool.try_alloc(1200)?.headroom(), 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        match self.owner.region() {
            Some((start, _)) if self.owner.is_unique() => {
                self.ptr.addr().get() - start.addr().get()
            }
            _ => 0,
        }
    }

    /// The bytes of memory that the buffer alone keeps in use: headroom and capacity.
    pub(crate) fn occupied_bytes(&self) -> usize {
        self.headroom() + self.capacity()
    }

    /// Puts `header` in front of the contents.
    ///
    /// Moves nothing if it fits into the [`headroom`](Self::headroom). Otherwise shifts the contents if
    /// the chunk has the room, or else moves them to another chunk; neither leaves new headroom, so have the
    /// pool's buffers begin with [some](crate::PacketPoolBuilder::headroom) if several headers are to come.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::from("payload");
    /// buf.prepend(b"udp ");
    /// buf.prepend(b"ip ");
    /// assert_eq!(buf, "ip udp payload");
    /// ```
    ///
    /// # Panics
    /// The same as [`reserve`](Self::reserve).
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn prepend(&mut self, header: &[u8]) {
        self.extend_front(header.len());
        // SAFETY: the front was opened by `header.len()` bytes, and the borrowed header cannot overlap
        // bytes that only this handle may write.
        unsafe { self.write_front(header.as_ptr(), header.len()) };
    }

    /// Like [`prepend`](Self::prepend), but takes memory from the pool only.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().headroom(8).build()?;
    /// let mut buf = pool.try_alloc(1200)?;
    /// buf.extend_from_slice(b"payload");
    /// buf.try_prepend(b"header: ")?;
    /// assert_eq!(buf, "header: payload");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`PacketPool::try_alloc`]; the buffer is then unchanged.
    ///
    /// # Panics
    /// If the buffer has no pool and [`PacketPool::default_pool`] panics.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_prepend(&mut self, header: &[u8]) -> Result<(), AllocError> {
        self.try_extend_front(header.len())?;
        // SAFETY: as in `prepend`.
        unsafe { self.write_front(header.as_ptr(), header.len()) };
        Ok(())
    }

    /// Puts `len` zeros in front of the contents and returns them, for a header to be encoded in place.
    /// Otherwise like [`prepend`](Self::prepend).
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::from("hello");
    /// let len = buf.len() as u16;
    /// buf.prepend_header(2).copy_from_slice(&len.to_be_bytes());
    /// assert_eq!(buf, b"\0\x05hello"[..]);
    /// ```
    ///
    /// # Panics
    /// The same as [`reserve`](Self::reserve).
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn prepend_header(&mut self, len: usize) -> &mut [u8] {
        self.extend_front(len);
        let start = self.ptr.as_ptr();
        // SAFETY: the front was opened by `len` bytes, which are ours alone.
        unsafe { ptr::write_bytes(start, 0, len) };
        &mut self.as_mut_slice()[..len]
    }

    /// # Safety
    /// The front was opened by `n` bytes; `from..from + n` can be read and does not overlap them.
    #[inline]
    unsafe fn write_front(&mut self, from: *const u8, n: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { ptr::copy_nonoverlapping(from, self.ptr.as_ptr(), n) };
    }

    /// Extends the contents by `n` bytes in front, which the caller must write at once.
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn extend_front(&mut self, n: usize) {
        if !self.extend_into_headroom(n) {
            let mut away = ManuallyDrop::new(mem::take(self));
            let put_back = PutBack {
                home: self,
                away: &mut away,
            };
            if let Err(refusal) = put_back.away.extend_front_slow(n) {
                refusal.panic();
            }
        }
    }

    /// Like [`extend_front`](Self::extend_front), but with memory of the pool only.
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn try_extend_front(&mut self, n: usize) -> Result<(), AllocError> {
        if self.extend_into_headroom(n) {
            return Ok(());
        }
        let mut away = ManuallyDrop::new(mem::take(self));
        let put_back = PutBack {
            home: self,
            away: &mut away,
        };
        put_back.away.extend_front_in_pool(n)
    }

    /// Extends the contents by `n` bytes in front, if the headroom has that many.
    #[inline]
    fn extend_into_headroom(&mut self, n: usize) -> bool {
        if n > self.headroom() || self.len() + n > u32::MAX as usize {
            return false;
        }
        let len = self.len() + n;
        let cap = (self.capacity() + n).min(u32::MAX as usize);
        // SAFETY: the headroom lies in our chunk.
        let start = unsafe { self.ptr.sub(n) };
        // SAFETY: no other handle to the chunk is alive. The new bytes are written by the caller
        // before anything can read them.
        unsafe { self.set_range(start, narrow(len), narrow(cap)) };
        true
    }

    /// Extends the contents by `n` bytes in front that the caller writes; changes nothing if it returns an
    /// error.
    #[cold]
    #[inline(never)]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn extend_front_slow(&mut self, n: usize) -> Result<(), Refusal> {
        if self.extend_front_in_pool(n).is_ok() {
            return Ok(());
        }
        let Some(needed) = self.len().checked_add(n) else {
            return Err(Refusal::Overflow);
        };
        let target = self.growth_pool().heap_fallback(needed)?;
        self.move_behind_gap(target, n);
        Ok(())
    }

    /// Like [`extend_front_slow`](Self::extend_front_slow), but with memory of the pool only.
    #[cold]
    #[inline(never)]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn extend_front_in_pool(&mut self, n: usize) -> Result<(), AllocError> {
        let needed = self.len().saturating_add(n);
        if let Some((start, capacity)) = self.owner.region()
            && self.owner.is_unique()
            && capacity >= needed
            && u32::try_from(capacity).is_ok()
        {
            // SAFETY: `needed` bytes fit into the block, so its first `n` do.
            let body = unsafe { start.add(n) };
            // SAFETY: both ranges lie in the block, which is ours alone.
            unsafe { ptr::copy(self.ptr.as_ptr(), body.as_ptr(), self.len()) };
            // SAFETY: the whole block is ours; the caller writes the header, and the body was copied
            // above.
            unsafe { self.set_range(start, narrow(needed), narrow(capacity)) };
            return Ok(());
        }
        let target = self.growth_pool().try_alloc(needed)?;
        self.move_behind_gap(target, n);
        Ok(())
    }

    /// Moves the contents into `target`, which is empty and large enough, and extends them by `n` bytes
    /// in front for the caller to write.
    fn move_behind_gap(&mut self, mut target: Self, n: usize) {
        let (start, cap) = (target.ptr, target.capacity());
        assert!(self.len() + n <= cap, "no room to move to");
        // SAFETY: within the target, as just checked.
        let body = unsafe { start.add(n) };
        // SAFETY: from there to its end the target is ours alone.
        unsafe { target.set_range(body, 0, narrow(cap - n)) };
        target.extend_from_slice(self.as_slice());
        // Before the gap counts as contents: if the drop of the former memory panics, nobody writes it.
        *self = target;
        let len = self.len() + n;
        // SAFETY: the whole target is ours; the caller writes the gap, and the rest was copied.
        unsafe { self.set_range(start, narrow(len), narrow(cap)) };
    }

    /// Makes room in place, if the memory is large enough and no other handle to it is alive.
    #[cold]
    fn reclaim(&mut self, additional: usize, shift: Shift) -> bool {
        let Some((start, capacity)) = self.owner.region() else {
            return false;
        };
        let Some(needed) = self.len().checked_add(additional) else {
            return false;
        };
        if capacity < needed || u32::try_from(capacity).is_err() || !self.owner.is_unique() {
            return false;
        }
        let len = self.len();
        let offset = self.ptr.addr().get() - start.addr().get();
        if capacity - offset >= needed {
            let cap = narrow(capacity - offset);
            // SAFETY: the rest of the block is ours alone; the contents stay where they are.
            unsafe { self.set_range(self.ptr, narrow(len), cap) };
            return true;
        }
        // Spares the look into the list of all pools.
        if shift == Shift::Cheap && offset < len {
            return false;
        }
        let headroom = self.pool().map_or(0, |pool| pool.headroom());
        let front = headroom.min(capacity - needed);
        if shift == Shift::Cheap && (front < headroom || offset - front < len) {
            return false;
        }
        // SAFETY: `front` is within the block.
        let target = unsafe { start.add(front) };
        // SAFETY: both ranges lie in the block, which is ours alone.
        unsafe { ptr::copy(self.ptr.as_ptr(), target.as_ptr(), len) };
        // SAFETY: from `target` to its end the block is ours, and the contents were just copied.
        unsafe { self.set_range(target, narrow(len), narrow(capacity - front)) };
        true
    }

    /// Moves the contents to where there is room for `needed` bytes in all; changes nothing on failure.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn move_to(&mut self, pool: &PacketPool, needed: usize) -> Result<(), AllocError> {
        let requested = self.capacity_to_request(pool, needed);
        // More than is needed is only a wish, which does not count as refused.
        let is_wish = requested > needed;
        let larger = is_wish.then(|| pool.try_alloc_spare(requested)).flatten();
        let mut moved = match larger {
            Some(larger) => larger,
            // A chunk is used on rather than exchanged for one of its size, which would have to be left as soon.
            None if is_wish && self.reclaim(needed - self.len(), Shift::Any) => return Ok(()),
            None => pool.try_alloc(needed)?,
        };
        moved.extend_from_slice(self.as_slice());
        *self = moved;
        Ok(())
    }

    /// Returns `needed`; or twice the contents, if a chunk like the present one would have to be left as soon; or
    /// enough to fill a chunk like the present one, if this handle is the end of that one, which others use too.
    fn capacity_to_request(&self, pool: &PacketPool, needed: usize) -> usize {
        let Some(chunk) = self.owner.as_chunk() else {
            return needed;
        };
        let room = pool.room();
        if chunk.is_unique() && chunk.capacity() >= needed.saturating_add(room) {
            // It is large enough; only the length of the contents keeps it from being used on.
            let most = pool.slab().size_classes().largest().saturating_sub(room);
            return needed.max((2 * self.len()).min(most));
        }
        let end = chunk.as_ptr().addr().get() + chunk.capacity();
        if chunk.is_unique() || self.ptr.addr().get() + self.capacity() != end {
            return needed;
        }
        needed.max(chunk.capacity().saturating_sub(room))
    }

    /// Returns the pool to grow into: the buffer's own, or the process-wide one if it has none.
    fn growth_pool(&self) -> PacketPool {
        let own = self.pool();
        own.unwrap_or_else(|| PacketPool::default_pool().clone())
    }
}
