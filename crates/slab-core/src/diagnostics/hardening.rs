//! Hardening: catches writes to freed chunks, double frees, and pointers that are not to a chunk in
//! use.
//!
//! A hardened pool sends every allocation and free through the slow path, by the same gate that
//! zeroing on free uses; a pool that is not hardened pays nothing. A freed chunk is filled with a
//! pattern, which is checked when the chunk is handed out again. Memory fresh from the system is zero
//! instead and counts as untouched, too. Each 64 bytes are checked for either by themselves, because a
//! part of a chunk may lie where another class was served and a part where nobody was yet. So a write of
//! nothing but zeros over all of such a piece is missed. In a pool that zeroes on free the pattern is zero, too.

use crate::class::CHUNK_ALIGN;
use crate::diagnostics::unit_set::UnitSet;
use crate::sys::room::Room;
use core::ptr::NonNull;

/// An odd byte, so that neither an address nor a length made of it is plausible.
const POISON: u8 = 0xF5;

#[derive(Debug)]
pub(crate) struct Hardening {
    /// What freed chunks are filled with.
    fill: u8,
    /// The chunks in callers' hands.
    in_use: UnitSet,
}

impl Hardening {
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(crate) fn new(
        room: &mut Room,
        arena_bytes: usize,
        zero_on_free: bool,
    ) -> Result<Self, i32> {
        Ok(Self {
            fill: if zero_on_free { 0 } else { POISON },
            in_use: UnitSet::new(room, arena_bytes)?,
        })
    }

    /// # Panics
    /// If the chunk was written to since it was freed, or is in use already.
    ///
    /// # Safety
    /// The chunk has `bytes` bytes at `at`, and nobody else has it.
    pub(crate) unsafe fn handed_out(&self, unit: u32, at: NonNull<u8>, bytes: usize) {
        assert!(
            self.in_use.insert(unit),
            "chunk {at:?} of {bytes} bytes is handed out twice"
        );
        // SAFETY: by the caller's promise; the bytes are the system's zeros, or were filled when the
        // chunk was freed.
        let chunk = unsafe { core::slice::from_raw_parts(at.as_ptr(), bytes) };
        if let Some(offset) = first_overwritten(chunk, self.fill) {
            panic!(
                "chunk {at:?} of {bytes} bytes was written to at byte {offset} after it was freed"
            );
        }
    }

    /// # Panics
    /// If the chunk is not in use.
    ///
    /// # Safety
    /// If it is, the chunk has `bytes` bytes at `at`, and the caller gives it up.
    pub(crate) unsafe fn given_back(&self, unit: u32, at: NonNull<u8>, bytes: usize) {
        assert!(
            self.in_use.remove(unit),
            "chunk {at:?} of {bytes} bytes was freed twice"
        );
        // SAFETY: by the caller's promise.
        unsafe { at.write_bytes(self.fill, bytes) };
    }

    /// Is the chunk that begins there in a caller's hand?
    pub(crate) fn is_in_use(&self, unit: u32) -> bool {
        self.in_use.contains(unit)
    }
}

/// The offset of the first byte that is neither as the pool left it, filled with `fill`, nor as the system gave it.
fn first_overwritten(chunk: &[u8], fill: u8) -> Option<usize> {
    let mut units = chunk.chunks(CHUNK_ALIGN).enumerate();
    units.find_map(|(index, unit)| {
        let untouched = if unit[0] == 0 { 0 } else { fill };
        let at = unit.iter().position(|&byte| byte != untouched)?;
        Some(index * CHUNK_ALIGN + at)
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{SizeClasses, SlabPool};

    #[test]
    fn first_overwritten_accepts_only_poison_or_zero_units() {
        let mut chunk = vec![POISON; 3 * CHUNK_ALIGN];
        assert_eq!(first_overwritten(&chunk, POISON), None);
        chunk[CHUNK_ALIGN..2 * CHUNK_ALIGN].fill(0);
        assert_eq!(first_overwritten(&chunk, POISON), None);
        for touched in [0, 1, 63, 64, 127, 128, 191] {
            let before = core::mem::replace(&mut chunk[touched], 7);
            let found = first_overwritten(&chunk, POISON).unwrap();
            assert_eq!(found / CHUNK_ALIGN, touched / CHUNK_ALIGN, "{touched}");
            chunk[touched] = before;
        }
        assert_eq!(first_overwritten(&chunk, 0), Some(0));
        assert_eq!(first_overwritten(&[], POISON), None);
    }

    /// A slab of which one class used a part serves another class, whose chunks lie across the
    /// border of that part.
    #[test]
    fn slab_that_changes_its_class_raises_no_false_alarm() {
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[1024, 16384]).unwrap())
            .max_memory(64 << 10)
            .hardened(true)
            .build()
            .unwrap();
        drop(pool.try_alloc(1024).unwrap());
        let large: Vec<_> = (0..4).map(|_| pool.try_alloc(16384).unwrap()).collect();
        assert_eq!(pool.stats().classes()[1].slab_rebalances, 1);
        drop(large);
    }
}
