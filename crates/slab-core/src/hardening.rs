//! Hardening: catches writes to chunks that were freed, chunks freed twice, and pointers that
//! are no chunk in use.
//!
//! A hardened pool sends every allocation and free through the slow path, by the same gate that
//! zeroing on free uses; a pool that is not hardened pays nothing. A freed chunk is filled with a
//! pattern, and looked through when it is handed out again. Memory that the system has given anew
//! is zero instead, page by page, and taken for untouched as well: so a write of nothing but zeros
//! over all of a chunk's part of a page is missed.

use crate::class::CHUNK_ALIGN;
use crate::sync::{AtomicU32, Ordering, Table};
use core::ptr::NonNull;

/// An odd byte, so that neither an address nor a length made of it is plausible.
const POISON: u8 = 0xF5;
const PAGE: usize = 4096;

#[derive(Debug)]
pub(crate) struct Hardening {
    /// What freed chunks are filled with.
    fill: u8,
    /// A bit per unit of the arena: the chunk that begins there is in a caller's hand.
    in_use: Table<AtomicU32>,
}

impl Hardening {
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(crate) fn new(arena_bytes: usize, zero_on_free: bool) -> Result<Self, i32> {
        Ok(Self {
            fill: if zero_on_free { 0 } else { POISON },
            in_use: Table::new((arena_bytes / CHUNK_ALIGN).div_ceil(32))?,
        })
    }

    /// # Panics
    /// If the chunk was written to since it was freed, or is in use already.
    ///
    /// # Safety
    /// The chunk has `bytes` bytes at `at`, and nobody else has it.
    pub(crate) unsafe fn handed_out(&self, unit: u32, at: NonNull<u8>, bytes: usize) {
        let bit = 1 << (unit % 32);
        let before = self.word(unit).fetch_or(bit, Ordering::Relaxed);
        assert!(
            before & bit == 0,
            "chunk {at:?} of {bytes} bytes is handed out twice"
        );
        // SAFETY: by the caller's promise; the arena's bytes are always initialised.
        let chunk = unsafe { core::slice::from_raw_parts(at.as_ptr(), bytes) };
        if let Some(offset) = first_touched(chunk, at.addr().get() % PAGE) {
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
        let bit = 1 << (unit % 32);
        let before = self.word(unit).fetch_and(!bit, Ordering::Relaxed);
        assert!(
            before & bit != 0,
            "chunk {at:?} of {bytes} bytes was freed twice"
        );
        // SAFETY: by the caller's promise.
        unsafe { at.write_bytes(self.fill, bytes) };
    }

    /// Is a chunk in a caller's hand that begins there?
    pub(crate) fn is_in_use(&self, unit: u32) -> bool {
        self.word(unit).load(Ordering::Relaxed) >> (unit % 32) & 1 == 1
    }

    fn word(&self, unit: u32) -> &AtomicU32 {
        self.in_use.at((unit / 32) as usize)
    }
}

/// The offset of a byte that is neither as it was left nor as the system gives it; `start` is
/// where in its page the chunk begins.
fn first_touched(chunk: &[u8], start: usize) -> Option<usize> {
    let mut offset = 0;
    while offset < chunk.len() {
        let end = chunk.len().min(offset + PAGE - (start + offset) % PAGE);
        let part = &chunk[offset..end];
        let untouched = if part[0] == 0 { 0 } else { POISON };
        if let Some(at) = part.iter().position(|&byte| byte != untouched) {
            return Some(offset + at);
        }
        offset = end;
    }
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_poison_or_zero_and_nothing_else() {
        let mut chunk = vec![POISON; 3 * PAGE];
        assert_eq!(first_touched(&chunk, 0), None);
        chunk[PAGE..2 * PAGE].fill(0);
        assert_eq!(first_touched(&chunk, 0), None);
        assert_eq!(
            first_touched(&chunk, 64),
            Some(PAGE - 64 + 64),
            "not at a page's border"
        );
        for touched in [0, 1, PAGE - 1, PAGE, 2 * PAGE - 1, 2 * PAGE, 3 * PAGE - 1] {
            let before = core::mem::replace(&mut chunk[touched], 7);
            let found = first_touched(&chunk, 0).unwrap();
            assert_eq!(found / PAGE, touched / PAGE, "{touched}");
            chunk[touched] = before;
        }
        assert_eq!(first_touched(&[], 0), None);
    }
}
