//! The absence of an allocator: `WORDS` words that travel in place of a block.

use super::Peer;
use std::hint::black_box;

pub(crate) struct NoAlloc<const WORDS: usize>;

impl<const WORDS: usize> Peer for NoAlloc<WORDS> {
    type Block<'p> = [usize; WORDS];

    fn open(_: usize, _: usize) -> Self {
        Self
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> [usize; WORDS] {
        [len; WORDS]
    }

    #[inline(always)]
    fn address(&self, block: &mut [usize; WORDS]) -> *mut u8 {
        std::ptr::without_provenance_mut(block[0])
    }

    #[inline(always)]
    fn free(&self, block: [usize; WORDS]) {
        black_box(block);
    }
}
