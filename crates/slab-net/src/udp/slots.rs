//! The buffers that the kernel fills with received datagrams.

use super::sys::Buffer;
use arrayvec::ArrayVec;
use core::mem::MaybeUninit;
use slab_core::{AllocError, Chunk, SlabPool};

/// The most buffers in one system call.
pub(super) const MAX_SLOTS: usize = super::sys::MAX_BATCH;

/// Chunks for the next system call. They stay here between calls, never in a future that may be
/// dropped.
#[derive(Debug)]
pub(super) struct Slots {
    /// All are `Some` after `fill`; later some of them may be taken.
    chunks: ArrayVec<Option<Chunk>, MAX_SLOTS>,
    /// The bytes of each chunk that the kernel may fill. No chunk is smaller.
    buffer_bytes: usize,
}

impl Slots {
    pub(super) fn new(buffer_bytes: usize) -> Self {
        Self {
            chunks: ArrayVec::new(),
            buffer_bytes,
        }
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Allocates until there are `want` buffers or the pool has no more, and returns how many there
    /// are.
    ///
    /// # Errors
    /// The pool's error, if there is not even one buffer.
    pub(super) fn fill(&mut self, pool: &SlabPool, want: usize) -> Result<usize, AllocError> {
        // Here, so that no gap is left whatever happened since the last call: freeing a buffer may wake a
        // waiter for memory, and a waker may panic.
        self.close_gaps();
        while self.chunks.len() < want {
            let mut chunk = if self.chunks.is_empty() {
                pool.try_alloc(self.buffer_bytes)?
            } else {
                match pool.try_alloc_spare(self.buffer_bytes) {
                    Some(chunk) => chunk,
                    None => break,
                }
            };
            Buffer::prepare(bytes_mut(&mut chunk, self.buffer_bytes));
            self.chunks.push(Some(chunk));
        }
        Ok(self.chunks.len())
    }

    /// Adds the buffers for the system call to `to`, which is empty: as many as `fill` returned.
    #[inline]
    pub(super) fn write_buffers<'a>(&'a mut self, to: &mut ArrayVec<Buffer<'a>, MAX_SLOTS>) {
        let len = self.buffer_bytes;
        let chunks = self.chunks.iter_mut().flatten();
        // SAFETY: prepared by `fill`, and since then nobody else had the chunk.
        to.extend(chunks.map(|chunk| unsafe { Buffer::prepared(bytes_mut(chunk, len)) }));
    }

    /// Returns the first `len` bytes of a buffer.
    ///
    /// # Safety
    /// The kernel has written these bytes.
    pub(super) unsafe fn bytes(&self, slot: usize, len: usize) -> &[u8] {
        let len = len.min(self.buffer_bytes);
        match &self.chunks[slot] {
            // SAFETY: the chunk is ours alone while it is borrowed and is long enough; the caller
            // guarantees that it has been written that far.
            Some(chunk) => unsafe { core::slice::from_raw_parts(chunk.as_ptr().as_ptr(), len) },
            None => &[],
        }
    }

    /// The size of the chunk in a slot, in bytes; 0 if there is none.
    pub(super) fn capacity(&self, slot: usize) -> usize {
        let chunk = self.chunks.get(slot).and_then(Option::as_ref);
        chunk.map_or(0, Chunk::capacity)
    }

    /// The total size of all chunks, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.chunks.iter().flatten().map(Chunk::capacity).sum()
    }

    /// Takes a buffer out. The others keep their slots until the next `fill`.
    pub(super) fn take(&mut self, slot: usize) -> Option<Chunk> {
        self.chunks[slot].take()
    }

    /// Moves the remaining buffers to the front.
    fn close_gaps(&mut self) {
        self.chunks.retain(|chunk| chunk.is_some());
    }

    /// Returns all buffers to the pool.
    pub(super) fn clear(&mut self) {
        // One by one: if a waker panics, the others are still here.
        while self.chunks.pop().is_some() {}
    }
}

/// The first bytes of a chunk, with whatever a previous owner left there.
fn bytes_mut(chunk: &mut Chunk, len: usize) -> &mut [MaybeUninit<u8>] {
    debug_assert!(len <= chunk.capacity());
    let at = chunk.as_ptr().as_ptr().cast();
    // SAFETY: the chunk is ours alone while it is borrowed, and was allocated for at least `len` bytes.
    unsafe { core::slice::from_raw_parts_mut(at, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer_lens(slots: &mut Slots) -> Vec<usize> {
        let mut buffers = ArrayVec::new();
        slots.write_buffers(&mut buffers);
        buffers.iter().map(Buffer::len).collect()
    }

    #[test]
    fn buffers_are_kept_until_taken_and_gaps_are_closed() {
        let pool = SlabPool::builder().max_memory(4 << 20).build().unwrap();
        let mut slots = Slots::new(2000);
        assert_eq!(slots.fill(&pool, 4), Ok(4));
        assert_eq!(slots.fill(&pool, 2), Ok(4), "buffers at hand are used");
        assert_eq!(buffer_lens(&mut slots), [2000; 4]);
        let fourth = slots.chunks[3].as_mut().unwrap();
        fourth.try_copy_from_slice(&[42]).unwrap();
        drop(slots.take(0));
        drop(slots.take(2));
        slots.close_gaps();
        // SAFETY: the second buffer is now the former fourth, to which one byte was written.
        assert_eq!(unsafe { slots.bytes(1, 1) }, &[42]);
        assert_eq!(pool.stats().in_use(), 2);
        assert_eq!(slots.fill(&pool, 3), Ok(3));
        slots.clear();
        assert_eq!(pool.stats().in_use(), 0);
        assert_eq!(slots.capacity(0), 0);
    }

    #[test]
    fn fill_at_the_cap_returns_fewer_buffers_and_then_an_error() {
        let pool = SlabPool::builder().max_memory(1 << 20).build().unwrap();
        let mut slots = Slots::new(65536);
        let held: Vec<Chunk> = std::iter::from_fn(|| pool.try_alloc(65536).ok()).collect();
        assert!(matches!(
            slots.fill(&pool, 1),
            Err(AllocError::Exhausted { .. })
        ));
        let mut held = held.into_iter();
        drop((held.next(), held.next()));
        let refused = || {
            pool.stats()
                .classes()
                .iter()
                .map(|class| class.exhausted)
                .sum::<u64>()
        };
        let before = refused();
        for _ in 0..3 {
            assert_eq!(slots.fill(&pool, 8), Ok(2));
            assert_eq!(buffer_lens(&mut slots), [65536; 2]);
            drop(slots.take(0));
        }
        assert_eq!(refused(), before, "two are enough to go on with");
    }
}
