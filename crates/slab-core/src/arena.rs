//! The arena: one reserved address range whose size is the pool's memory cap.
//!
//! A chunk is named by its offset from the base in units of [`CHUNK_ALIGN`] bytes, a `u32`; its
//! slab is the offset divided by the slab's size, a power of two. All pointers into the arena are
//! made from its base pointer, so they all have the provenance of the whole range.
//!
//! The range comes from the system or from the caller. The caller's is zeroed as it is committed, and given back only
//! if no pool comes of it.

use crate::class::{CHUNK_ALIGN, MAX_CHUNK_ALIGN};
use crate::error::{BuildInError, ConfigError};
use crate::sync::{AtomicU32, Ordering, Table};
use crate::sys::room::Room;
use crate::sys::{HUGE_PAGE, Region, asan};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::NonNull;

/// What a 32-bit unit index can address.
const MAX_ARENA_BYTES: usize = (u32::MAX as usize).saturating_mul(CHUNK_ALIGN);

#[derive(Debug)]
enum Memory {
    System(Region),
    /// The caller's, for ever.
    Lent {
        /// Its first multiple of [`MAX_CHUNK_ALIGN`].
        base: NonNull<u8>,
        whole: NonNull<[MaybeUninit<u8>]>,
    },
}

// SAFETY: a region can be used from any thread, and so can memory that was lent for ever and is
// reached through the arena alone.
unsafe impl Send for Memory {}
// SAFETY: as above; what is shared inside it is synchronised by the code that hands out its parts.
unsafe impl Sync for Memory {}

#[derive(Debug)]
pub(crate) struct Arena {
    memory: Memory,
    slab_bytes: usize,
    /// Bytes at the end of each slab that are never committed, so that touching them ends the
    /// process; whole pages.
    guard: usize,
    /// The memory is locked once it is there.
    locked: bool,
    slabs: usize,
    /// The class that each slab serves, plus one, for code that has a chunk's address and no lock. Correct
    /// as long as a chunk of the slab is in use.
    slab_classes: Table<AtomicU32>,
}

/// The system makes no more slabs usable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommitRefused {
    /// So many of those that were asked for are.
    pub(crate) committed: usize,
    /// The system's error number.
    pub(crate) errno: i32,
}

impl Arena {
    /// Reserves as many whole slabs as fit under `max_memory`; backs none of them.
    pub(crate) fn reserve(
        room: &mut Room,
        max_memory: usize,
        slab_bytes: usize,
    ) -> Result<Self, ConfigError> {
        Self::new(room, max_memory, slab_bytes, |bytes| {
            let region =
                Region::reserved(bytes).map_err(|errno| ConfigError::Reserve { bytes, errno })?;
            Ok(Memory::System(region))
        })
    }

    /// Takes as many whole slabs as fit into the caller's memory, from its first page on.
    pub(crate) fn lent(
        room: &mut Room,
        memory: &'static mut [MaybeUninit<u8>],
        slab_bytes: usize,
    ) -> Result<Self, BuildInError> {
        let whole = NonNull::from(&mut *memory);
        let first = whole.cast::<u8>();
        let skip = first
            .as_ptr()
            .align_offset(MAX_CHUNK_ALIGN)
            .min(whole.len());
        // SAFETY: within the memory, or at its end.
        let base = unsafe { first.add(skip) };
        let lent = |_| Ok(Memory::Lent { base, whole });
        // Not by `map_err`: its closure would have the reference, at whose use the pointers made from it end.
        match Self::new(room, whole.len() - skip, slab_bytes, lent) {
            Ok(arena) => Ok(arena),
            Err(error) => Err(BuildInError::new(error, memory)),
        }
    }

    /// Returns the memory that the caller [lent](Self::lent), all of it; none if it is the system's.
    pub(crate) fn into_lent(self) -> &'static mut [MaybeUninit<u8>] {
        let Memory::Lent { mut whole, .. } = self.memory else {
            return &mut [];
        };
        // Unpoisons it.
        drop(self);
        // SAFETY: made from the caller's reference, which is for ever and is not used again. Nobody else refers to
        // the memory: it is reached through an arena alone, this one is gone, and it was no pool's, because a pool keeps
        // its arena until its last chunk is freed, and does not give it away then either.
        unsafe { whole.as_mut() }
    }

    fn new(
        room: &mut Room,
        max_memory: usize,
        slab_bytes: usize,
        memory: impl FnOnce(usize) -> Result<Memory, ConfigError>,
    ) -> Result<Self, ConfigError> {
        debug_assert!(slab_bytes.is_power_of_two());
        if max_memory < slab_bytes {
            return Err(ConfigError::CapBelowOneSlab {
                max_memory,
                slab_bytes,
            });
        }
        if max_memory > MAX_ARENA_BYTES {
            return Err(ConfigError::CapTooLarge {
                max_memory,
                limit: MAX_ARENA_BYTES,
            });
        }
        let slabs = max_memory / slab_bytes;
        let bytes = slabs * slab_bytes;
        Ok(Self {
            memory: memory(bytes)?,
            guard: 0,
            locked: false,
            slab_bytes,
            slabs,
            slab_classes: Table::new(room, slabs)
                .map_err(|errno| ConfigError::Reserve { bytes, errno })?,
        })
    }

    /// Keeps the last `guard` bytes of each slab from ever being committed. Of no use where memory
    /// is committed from the start.
    pub(crate) fn with_guard(mut self, guard: usize) -> Self {
        self.guard = guard;
        self
    }

    /// Locks memory that is [populated](Self::populate), if asked.
    pub(crate) fn with_lock(mut self, locked: bool) -> Self {
        self.locked = locked;
        self
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::System(region) => region.base(),
            Memory::Lent { base, .. } => *base,
        }
    }

    /// May memory go back to the system? Not if it is the caller's, and not if it is locked: Linux
    /// would refuse, other systems would no longer lock it.
    pub(crate) fn can_release(&self) -> bool {
        matches!(self.memory, Memory::System(_)) && !self.locked
    }

    pub(crate) fn slabs(&self) -> usize {
        self.slabs
    }

    pub(crate) fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slabs * self.slab_bytes
    }

    /// The bytes of a slab that can be used: all but its guard.
    pub(crate) fn usable_bytes(&self) -> usize {
        self.slab_bytes - self.guard
    }

    /// The units of one slab.
    pub(crate) fn slab_units(&self) -> u32 {
        (self.slab_bytes / CHUNK_ALIGN) as u32
    }

    /// The slab in which the unit lies. By a shift: this is done for each chunk that is stored.
    pub(crate) fn slab_of(&self, unit: u32) -> u32 {
        unit >> self.slab_units().trailing_zeros()
    }

    /// From now on the slab serves this class.
    pub(crate) fn set_class(&self, slab: usize, class: u8) {
        // Relaxed: a chunk of the slab reaches others by ways that order this before it.
        self.slab_classes
            .at(slab)
            .store(u32::from(class) + 1, Ordering::Relaxed);
    }

    /// The class that the slab serves, or served last; `None` if none ever.
    pub(crate) fn class_of(&self, slab: usize) -> Option<u8> {
        let class = self.slab_classes.at(slab).load(Ordering::Relaxed);
        class.checked_sub(1).map(|class| class as u8)
    }

    /// Makes slabs usable that were not before, in order; they read as zeros.
    ///
    /// # Errors
    /// The system refuses one, after some or none.
    pub(crate) fn commit(&self, slab: usize, count: usize) -> Result<(), CommitRefused> {
        let (offset, bytes) = (slab * self.slab_bytes, count * self.slab_bytes);
        let after = |committed| move |errno| CommitRefused { committed, errno };
        match &self.memory {
            Memory::System(region) if self.guard == 0 => {
                region.commit(offset, bytes).map_err(after(0))
            }
            Memory::System(region) => (0..count).try_for_each(|nth| {
                let offset = offset + nth * self.slab_bytes;
                let committed = region.commit(offset, self.usable_bytes());
                committed.map_err(after(nth))
            }),
            Memory::Lent { .. } => {
                // SAFETY: nobody has any part of slabs that were not usable before.
                unsafe { self.zero(offset, bytes) };
                Ok(())
            }
        }
    }

    /// Backs the whole arena, which is committed, with memory now.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn populate(&self) -> Result<(), i32> {
        match &self.memory {
            Memory::System(region) if self.guard == 0 => {
                region.populate(0, self.bytes(), self.locked)
            }
            Memory::System(region) => (0..self.slabs).try_for_each(|slab| {
                region.populate(slab * self.slab_bytes, self.usable_bytes(), self.locked)
            }),
            Memory::Lent { .. } => Ok(()),
        }
    }

    /// How many bytes of the first slabs are in memory now, if the system says.
    pub(crate) fn resident(&self, slabs: usize) -> Option<usize> {
        match &self.memory {
            Memory::System(region) => region.resident(slabs * self.slab_bytes),
            Memory::Lent { .. } => None,
        }
    }

    /// Asks for huge pages. It is no error not to get them.
    pub(crate) fn advise_huge_pages(&self) {
        if let Memory::System(region) = &self.memory {
            region.advise_huge_pages();
        }
    }

    /// The slabs that huge pages of this one's memory can reach into. Where slabs have guards between
    /// them, none can.
    pub(crate) fn slabs_sharing_huge_pages(&self, slab: usize) -> Range<usize> {
        if self.guard != 0 {
            return slab..slab + 1;
        }
        let base = self.base().addr().get();
        let at = base + slab * self.slab_bytes;
        let start = at / HUGE_PAGE * HUGE_PAGE;
        let end = (at + self.slab_bytes).next_multiple_of(HUGE_PAGE) - base;
        let first = start.saturating_sub(base) / self.slab_bytes;
        first..end.div_ceil(self.slab_bytes).min(self.slabs)
    }

    /// Gives back the memory behind parts of the arena, at most [`RELEASE_MAX`](crate::sys::RELEASE_MAX), by their offsets,
    /// which then read as zeros. `false` if it stays: each byte then is what it was, or zero.
    ///
    /// # Safety
    /// The parts are committed, and nobody uses them until this returns.
    pub(crate) unsafe fn release(&self, parts: &[Range<usize>]) -> bool {
        match &self.memory {
            // SAFETY: handed on to the caller.
            Memory::System(region) if !self.locked => unsafe { region.release(parts) },
            Memory::System(_) | Memory::Lent { .. } => false,
        }
    }

    /// # Safety
    /// Nobody uses the part until this returns.
    unsafe fn zero(&self, offset: usize, bytes: usize) {
        assert!(offset <= self.bytes() && bytes <= self.bytes() - offset);
        // SAFETY: just checked to lie within the arena.
        let at = unsafe { self.base().add(offset) };
        // SAFETY: `bytes` bytes from there lie within the arena; nobody uses them.
        unsafe { at.write_bytes(0, bytes) };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Memory::Lent { base, .. } = self.memory {
            // It is the lender's again.
            asan::unpoison(base, self.bytes());
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_cap_is_whole_slabs_and_bounded() {
        let reserve =
            |max_memory, slab_bytes| Arena::reserve(&mut Room::system(), max_memory, slab_bytes);
        let arena = reserve(300 << 10, 128 << 10).unwrap();
        assert_eq!((arena.slabs(), arena.bytes()), (2, 256 << 10));
        assert_eq!(
            reserve(1000, 65536).unwrap_err(),
            ConfigError::CapBelowOneSlab {
                max_memory: 1000,
                slab_bytes: 65536
            }
        );
        assert!(matches!(
            reserve(usize::MAX, 65536).unwrap_err(),
            ConfigError::CapTooLarge { .. }
        ));
    }
}
