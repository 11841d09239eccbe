//! Splitting a [`PacketBuf`] into handles to disjoint parts of one chunk, and joining them again.

use super::buf::{PacketBuf, narrow};
use super::frozen::Packet;

impl PacketBuf {
    /// Splits at `at`: `self` keeps `[0, at)`, the result has `[at, capacity)`. Nothing moves.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut hello = PacketBuf::from("hello world");
    /// let world = hello.split_off(5);
    /// assert_eq!((&hello[..], &world[..]), (&b"hello"[..], &b" world"[..]));
    /// ```
    ///
    /// # Panics
    /// If `at` is above the capacity.
    #[must_use = "use `truncate` if the other half is not needed"]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(
            at <= self.capacity(),
            "split_off out of bounds: {at} <= {}",
            self.capacity()
        );
        let at = narrow(at);
        let other = Self {
            owner: self.owner.clone(),
            // SAFETY: within or just behind our range.
            ptr: unsafe { self.ptr.add(at as usize) },
            len: self.len.saturating_sub(at),
            cap: self.cap - at,
        };
        self.cap = at;
        self.len = self.len.min(at);
        other
    }

    /// Splits off the contents: `self` keeps the free bytes behind them.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::with_capacity(1024);
    /// buf.extend_from_slice(b"hello world");
    /// let hello = buf.split();
    /// assert!(buf.is_empty());
    /// assert_eq!(buf.capacity(), 1013);
    /// assert_eq!(hello, "hello world");
    /// ```
    #[inline]
    #[must_use = "use `clear` if the contents are not needed"]
    pub fn split(&mut self) -> Self {
        self.split_to(self.len())
    }

    /// Splits at `at`: the result has `[0, at)`, `self` keeps `[at, len)` and the free bytes behind
    /// it. Nothing moves.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut world = PacketBuf::from("hello world");
    /// let hello = world.split_to(5);
    /// assert_eq!((&hello[..], &world[..]), (&b"hello"[..], &b" world"[..]));
    /// ```
    ///
    /// # Panics
    /// If `at` is above the length.
    #[inline]
    #[must_use = "use `advance` if the other half is not needed"]
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(
            at <= self.len(),
            "split_to out of bounds: {at} <= {}",
            self.len()
        );
        let other = Self {
            owner: self.owner.clone(),
            ptr: self.ptr,
            len: narrow(at),
            cap: narrow(at),
        };
        // SAFETY: `at` is within the contents.
        unsafe { self.advance_unchecked(at) };
        other
    }

    /// Like [`Buf::copy_to_bytes`](bytes::Buf::copy_to_bytes), but returns a [`Packet`] that shares the
    /// memory. An inherent method, so that code written for `BytesMut` finds it first.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::from("hello world");
    /// assert_eq!(buf.copy_to_bytes(5), "hello");
    /// assert_eq!(buf, " world");
    /// ```
    ///
    /// # Panics
    /// If `len` is above the length.
    #[inline]
    pub fn copy_to_bytes(&mut self, len: usize) -> Packet {
        self.split_to(len).freeze()
    }

    /// Rejoins a buffer that was split off: in place if the two are still adjacent, by a copy
    /// otherwise. If `self` is empty it is replaced by `other`, unless `other` has no memory.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut buf = PacketBuf::from("aaabbbcccddd");
    /// let tail = buf.split_off(6);
    /// buf.unsplit(tail);
    /// assert_eq!(buf, "aaabbbcccddd");
    /// ```
    ///
    /// # Panics
    /// If they are not adjacent and [`reserve`](Self::reserve) panics.
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn unsplit(&mut self, other: Self) {
        // An `other` without memory knows no pool to grow into; `self` may know one.
        if self.is_empty() && other.capacity() > 0 {
            *self = other;
        } else if let Err(other) = self.try_unsplit(other) {
            self.extend_from_slice(&other);
        }
    }

    /// Rejoins a buffer that was split off, if the two are still adjacent: `other` begins where the
    /// contents of `self` end.
    ///
    /// ```
    /// # use slab_net::PacketBuf;
    /// let mut a = PacketBuf::from("aaabbbccc");
    /// let mut b = a.split_off(3);
    /// let c = b.split_off(3);
    /// let c = a.try_unsplit(c).unwrap_err();
    /// a.try_unsplit(b).unwrap();
    /// a.try_unsplit(c).unwrap();
    /// assert_eq!(a, "aaabbbccc");
    /// ```
    ///
    /// # Errors
    /// Returns `other` if they are not adjacent.
    pub fn try_unsplit(&mut self, other: Self) -> Result<(), Self> {
        if other.capacity() == 0 {
            return Ok(());
        }
        let end = self.ptr.addr().get() + self.len();
        if !self.owner.is_same(&other.owner) || end != other.ptr.addr().get() {
            return Err(other);
        }
        debug_assert_eq!(self.len, self.cap, "two handles to one byte");
        // The range becomes ours; dropping `other` gives up only its reference.
        self.len += other.len;
        self.cap += other.cap;
        Ok(())
    }
}
