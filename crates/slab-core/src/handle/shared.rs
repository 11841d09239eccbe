//! [`SharedChunk`]: a chunk with a reference count that a single owner never touches.
//!
//! The count lies out of line, in a table of the pool, and counts the references *beyond* the
//! first. So a chunk that was never shared has the count zero that fresh memory has, sharing
//! begins without a write, and dropping a unique chunk is a load and a comparison instead of an
//! atomic subtraction (0.2 ns instead of 4.9 here).

use crate::class::place::Place;
use crate::handle::chunk::Chunk;
use crate::sync::{AtomicU32, Ordering, abort};
use core::fmt;
use core::mem::ManuallyDrop;
use core::num::NonZeroU64;
use core::ops::Deref;

/// The rules of the count; free functions so that the model checker can run them on a bare word.
///
/// They test only the sign of the result of an addition, which is in the processor's flags (`lock inc`,
/// `lock dec`); the old value would take an instruction that is slower by half (`lock xadd`: 5.2 ns
/// instead of 3.3 for a clone and its drop).
pub(crate) mod count {
    use super::*;

    /// The most references that are added at once: so few that even thousands of threads that are about
    /// to abort cannot wrap the count to zero.
    pub(crate) const MAX_AT_ONCE: u32 = 1 << 16;

    /// Adds `n` references, at most [`MAX_AT_ONCE`]. The caller holds one.
    #[inline(always)]
    pub(crate) fn add(extra: &AtomicU32, n: u32) {
        // Relaxed, as in `Arc`: a new reference is made from an existing one.
        let before = extra.fetch_add(n, Ordering::Relaxed);
        if before > i32::MAX as u32 {
            // Only a program that forgets references by the billion comes here; to go on would free a
            // chunk that is in use.
            abort();
        }
    }

    /// Is the caller's reference the only one? If so, all that other owners did happened before.
    #[inline(always)]
    pub(crate) fn is_unique(extra: &AtomicU32) -> bool {
        extra.load(Ordering::Acquire) == 0
    }

    /// Gives up one reference; `true` if it was the last, and the count is zero for the next owner.
    /// Checks first whether it is the last, unless it was `lent`.
    #[inline(always)]
    pub(crate) fn release(extra: &AtomicU32, lent: bool) -> bool {
        (!lent && is_unique(extra)) || release_shared(extra, 1)
    }

    /// Gives up `n` references while the count may not be zero; `true` if the last was among them.
    #[inline(always)]
    pub(crate) fn release_shared(extra: &AtomicU32, n: u32) -> bool {
        // An addition: for a subtraction the compiler does not see that the flags suffice.
        let less = n.wrapping_neg();
        let after = extra.fetch_add(less, Ordering::Release).wrapping_add(less);
        if after.cast_signed() >= 0 {
            return false;
        }
        // One below zero: nobody else has a reference, so nobody can change the count any more. (Any
        // other negative value: too many references, and some thread is about to abort.) Acquire: pairs
        // with the releases by which the others gave up theirs.
        if extra.load(Ordering::Acquire) != u32::MAX {
            return false;
        }
        extra.store(0, Ordering::Relaxed);
        true
    }
}

/// A chunk with several owners; the last one to be dropped gives it back.
///
/// 8 bytes. To a [`Chunk`] it is what an `Arc` is to its value, and gives no access to the bytes by itself: the
/// owners have to agree who reads or writes which of them (those of packets only read, for example).
///
/// ```
/// # use slab_core::SlabPool;
/// let pool = SlabPool::builder().build()?;
/// let first = pool.try_alloc(100)?.into_shared();
/// let second = first.clone();
/// assert!(!first.is_unique());
/// drop(first);
/// let chunk = second.try_into_unique().expect("the only one left");
/// assert_eq!(chunk.capacity(), 128);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[repr(transparent)]
pub struct SharedChunk(ManuallyDrop<Chunk>);

impl SharedChunk {
    #[inline]
    pub(crate) fn new(chunk: Chunk) -> Self {
        Self(ManuallyDrop::new(chunk))
    }

    #[inline(always)]
    fn extra(&self) -> &AtomicU32 {
        self.0.count()
    }

    /// Returns whether this is the only reference. If so, what other owners did with the chunk happened
    /// before.
    #[inline]
    #[must_use]
    pub fn is_unique(&self) -> bool {
        count::is_unique(self.extra())
    }

    /// Returns the chunk itself, if this is the only reference.
    ///
    /// # Errors
    /// Gives the reference back if there are others.
    #[inline]
    pub fn try_into_unique(self) -> Result<Chunk, Self> {
        if !self.is_unique() {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        this.0.set_lent(false);
        // SAFETY: `this` is not dropped, so the chunk is taken out once.
        Ok(unsafe { ManuallyDrop::take(&mut this.0) })
    }

    /// Gives up this reference; returns the chunk itself if it was the last one. Of references that are
    /// given up at the same time, exactly one becomes the chunk.
    ///
    /// This is a drop in two parts: giving up the reference is a few instructions in the caller, and
    /// freeing the chunk can be a call.
    #[inline(always)]
    #[must_use = "dropping the reference does the same"]
    pub fn into_inner(self) -> Option<Chunk> {
        let mut this = ManuallyDrop::new(self);
        if !count::release(this.extra(), this.0.is_lent()) {
            return None;
        }
        this.0.set_lent(false);
        // SAFETY: the last reference, and `this` is not dropped, so the chunk is taken out once.
        Some(unsafe { ManuallyDrop::take(&mut this.0) })
    }

    /// Returns whether both refer to the same chunk.
    #[must_use]
    pub fn same_chunk(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }

    /// Clones a reference that is not expected to be dropped last, for an owner that keeps the chunk and
    /// hands it to others for a while.
    ///
    /// The clone's drop does not check first whether it is the last. That saves a load where other
    /// references are left (on an Intel Xeon a tenth of a clone and its drop), and costs an atomic
    /// subtraction where none is.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().build()?;
    /// let kept = pool.try_alloc(100)?.into_shared();
    /// for _ in 0..3 {
    ///     drop(kept.lend());
    /// }
    /// let lent = kept.lend();
    /// drop(kept); // in any order nevertheless
    /// drop(lent);
    /// assert_eq!(pool.stats().in_use(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    #[must_use]
    pub fn lend(&self) -> Self {
        let mut lent = self.clone();
        lent.0.set_lent(true);
        lent
    }

    /// Returns `n` further references, [lent](Self::lend), for the price of one atomic addition. Those
    /// that are not taken from the iterator are given back when it is dropped.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// # let pool = SlabPool::builder().build()?;
    /// // What the kernel has put there is 40 datagrams, each for a task of its own.
    /// let received = pool.try_alloc(65536)?.into_shared();
    /// let datagrams: Vec<_> = received.clones(40).collect();
    /// assert!(datagrams.iter().all(|datagram| datagram.same_chunk(&received)));
    /// drop(received);
    /// assert_eq!(pool.stats().in_use(), 1);
    /// drop(datagrams);
    /// assert_eq!(pool.stats().in_use(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If `n` is above 65 536. As [`clone`](Self::clone), it aborts the process if there are more than 2^31.
    #[must_use]
    pub fn clones(&self, n: usize) -> Clones {
        let n = u32::try_from(n)
            .ok()
            .filter(|&n| n <= count::MAX_AT_ONCE)
            .expect("at most 65 536 references at once");
        if n > 0 {
            count::add(self.extra(), n);
        }
        let mut chunk = self.duplicate();
        chunk.set_lent(true);
        Clones { chunk, left: n }
    }

    /// A bit that is set in each handle's [bits](Self::into_bits).
    ///
    /// For the crates of this workspace; not a part of the interface, so that the layout of a handle can change.
    #[doc(hidden)]
    pub const SET_BIT: u32 = Place::SET_BIT;

    /// Gives up the handle, but not the reference; returns it as a number, for a word that holds either a handle or
    /// something else: [`SET_BIT`](Self::SET_BIT) is set in the number.
    ///
    /// The reference is leaked unless [`from_bits`](Self::from_bits) takes it back.
    ///
    /// For the crates of this workspace; not a part of the interface.
    ///
    /// ```
    /// # use slab_core::{SharedChunk, SlabPool};
    /// # let pool = SlabPool::builder().build()?;
    /// let bits = pool.try_alloc(100)?.into_shared().into_bits();
    /// assert_eq!(bits.get() >> SharedChunk::SET_BIT & 1, 1);
    /// // SAFETY: just made, and taken back once.
    /// let shared = unsafe { SharedChunk::from_bits(bits) };
    /// assert!(shared.is_unique());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(hidden)]
    #[inline(always)]
    #[must_use = "the reference is leaked unless it is taken back"]
    pub fn into_bits(self) -> NonZeroU64 {
        ManuallyDrop::new(self).0.bits()
    }

    /// Takes back a handle that [`into_bits`](Self::into_bits) gave up.
    ///
    /// For the crates of this workspace; not a part of the interface.
    ///
    /// # Safety
    /// `bits` came from there, and is taken back once for each time that it did. (Clones can have the same bits.)
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub unsafe fn from_bits(bits: NonZeroU64) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Chunk::from_bits(bits) })
    }

    #[inline(always)]
    fn duplicate(&self) -> ManuallyDrop<Chunk> {
        // SAFETY: the count decides which of the handles drops the chunk.
        unsafe { self.0.duplicate() }
    }
}

/// The chunk's address, size, class and pool.
impl Deref for SharedChunk {
    type Target = Chunk;

    #[inline(always)]
    fn deref(&self) -> &Chunk {
        &self.0
    }
}

/// Aborts the process if there are more than 2^31 references to a chunk, as `Arc` does in its own case.
impl Clone for SharedChunk {
    #[inline(always)]
    fn clone(&self) -> Self {
        count::add(self.extra(), 1);
        let mut chunk = self.duplicate();
        chunk.set_lent(false);
        Self(chunk)
    }
}

impl Drop for SharedChunk {
    #[inline]
    fn drop(&mut self) {
        if count::release(self.extra(), self.0.is_lent()) {
            // SAFETY: the last reference; `self` is not used again.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

impl fmt::Debug for SharedChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedChunk").field(&*self.0).finish()
    }
}

/// References paid for by [`SharedChunk::clones`].
pub struct Clones {
    /// Not to be touched once all were taken: it may be free, and its pool gone.
    chunk: ManuallyDrop<Chunk>,
    /// References that were added to the count and not yet taken.
    left: u32,
}

impl Iterator for Clones {
    type Item = SharedChunk;

    #[inline]
    fn next(&mut self) -> Option<SharedChunk> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: one of the references that were paid for.
        Some(SharedChunk(unsafe { self.chunk.duplicate() }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Clones {}
impl core::iter::FusedIterator for Clones {}

impl fmt::Debug for Clones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clones")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Drop for Clones {
    fn drop(&mut self) {
        if self.left == 0 {
            return;
        }
        if count::release_shared(self.chunk.count(), self.left) {
            // SAFETY: these were the last references; nothing else will drop the chunk.
            unsafe { ManuallyDrop::drop(&mut self.chunk) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::SlabPool;

    /// A mark where none belongs would only cost time, which no other test sees.
    #[test]
    fn only_lent_references_carry_the_lent_mark() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let first = pool.try_alloc(100).unwrap().into_shared();
        let lent = first.lend();
        assert_eq!(
            [&first, &first.clone(), &lent, &lent.clone(), &lent.lend()]
                .map(|shared| shared.0.is_lent()),
            [false, false, true, false, true]
        );
        assert!(first.clones(2).all(|shared| shared.0.is_lent()));
        assert_eq!(
            (lent.class(), lent.capacity()),
            (first.class(), first.capacity())
        );
        assert!(lent.same_chunk(&first));
        drop(first);
        let chunk = lent.try_into_unique().expect("the others are gone");
        assert!(!chunk.is_lent());
        let first = chunk.into_shared();
        let lent = first.lend();
        drop(first);
        let chunk = lent.into_inner().expect("the others are gone");
        assert!(!chunk.is_lent());
        drop(chunk);
        assert_eq!(pool.stats().in_use(), 0);
    }
}
