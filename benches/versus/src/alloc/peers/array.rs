//! The floor under every thread cache: a thread-local array of indices and its length, and nothing else. No size
//! class is looked up, no handle knows where it belongs, nothing is counted, no other thread can take what lies in it,
//! and a full or an empty array is a bug of the case. One at a time on a thread.

use super::Peer;
use std::cell::Cell;

/// More than the cases hold at once on one thread.
const INDICES: usize = 2048;

thread_local! {
    static LEN: Cell<usize> = const { Cell::new(0) };
    static SLOTS: [Cell<u32>; INDICES] = const { [const { Cell::new(0) }; INDICES] };
}

/// Memory for [`INDICES`] blocks.
pub(crate) struct ThreadArray {
    memory: Box<[u8]>,
    block_len: usize,
}

impl Peer for ThreadArray {
    type Block<'p> = u32;

    fn open(len: usize, live: usize) -> Self {
        assert!(live <= INDICES, "the case holds more blocks than the array");
        SLOTS.with(|slots| {
            for (index, slot) in slots.iter().enumerate() {
                slot.set(index as u32);
            }
        });
        LEN.set(INDICES);
        Self {
            memory: vec![0; INDICES * len].into(),
            block_len: len,
        }
    }

    #[inline(always)]
    fn alloc(&self, _: usize) -> u32 {
        let len = LEN.get();
        assert!(len > 0, "an empty array");
        LEN.set(len - 1);
        SLOTS.with(|slots| slots[len - 1].get())
    }

    #[inline(always)]
    fn address(&self, block: &mut u32) -> *mut u8 {
        self.memory
            .as_ptr()
            .cast_mut()
            .wrapping_add(*block as usize * self.block_len)
    }

    #[inline(always)]
    fn free(&self, block: u32) {
        let len = LEN.get();
        SLOTS.with(|slots| slots[len].set(block));
        LEN.set(len + 1);
    }
}
