//! Pools written in Rust, and `BytesMut` on the global allocator (here: glibc's).

use super::Peer;
use bytes::BytesMut;
use crossbeam_queue::ArrayQueue;
use std::hint::black_box;
use std::mem::MaybeUninit;

type BoxedBytes = Box<[MaybeUninit<u8>]>;

fn boxed(len: usize) -> BoxedBytes {
    Box::new_uninit_slice(len)
}

/// What a program without a pool does.
pub(crate) struct FreshBytesMut;

impl Peer for FreshBytesMut {
    type Block<'p> = BytesMut;

    fn open(_: usize, _: usize) -> Self {
        Self
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> BytesMut {
        BytesMut::with_capacity(len)
    }

    #[inline(always)]
    fn address(&self, block: &mut BytesMut) -> *mut u8 {
        block.as_mut_ptr()
    }

    #[inline(always)]
    fn free(&self, block: BytesMut) {
        // The allocator call is not opaque to the optimiser here.
        drop(black_box(block));
    }
}

/// The pool that many programs write themselves: a bounded lock-free queue of boxes.
pub(crate) struct QueueOfBoxes {
    free: ArrayQueue<BoxedBytes>,
}

impl Peer for QueueOfBoxes {
    type Block<'p> = BoxedBytes;

    fn open(len: usize, live: usize) -> Self {
        let free = ArrayQueue::new(live);
        while free.push(boxed(len)).is_ok() {}
        Self { free }
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> BoxedBytes {
        self.free.pop().unwrap_or_else(|| boxed(len))
    }

    #[inline(always)]
    fn address(&self, block: &mut BoxedBytes) -> *mut u8 {
        block.as_mut_ptr().cast()
    }

    #[inline(always)]
    fn free(&self, block: BoxedBytes) {
        // A full queue returns the box, which is then dropped.
        drop(self.free.push(block));
    }
}

/// opool's concurrent pool, with its borrowing guard.
pub(crate) struct Opool {
    pool: opool::Pool<NewBox, BoxedBytes>,
}

pub(crate) struct NewBox {
    len: usize,
}

impl opool::PoolAllocator<BoxedBytes> for NewBox {
    #[inline]
    fn allocate(&self) -> BoxedBytes {
        boxed(self.len)
    }
}

impl Peer for Opool {
    type Block<'p> = opool::RefGuard<'p, NewBox, BoxedBytes>;

    fn open(len: usize, live: usize) -> Self {
        Self {
            pool: opool::Pool::new_prefilled(live, NewBox { len }),
        }
    }

    #[inline(always)]
    fn alloc(&self, _: usize) -> Self::Block<'_> {
        self.pool.get()
    }

    #[inline(always)]
    fn address(&self, block: &mut Self::Block<'_>) -> *mut u8 {
        block.as_mut_ptr().cast()
    }

    #[inline(always)]
    fn free<'p>(&'p self, block: Self::Block<'p>) {
        drop(block);
    }
}

/// What fastalloc stores. Uninitialised, so that copying the value into the slot can be optimised away: a
/// pool of buffers should not pay for their contents.
pub(crate) struct Bytes<const LEN: usize>(MaybeUninit<[u8; LEN]>);

impl<const LEN: usize> fastalloc::Poolable for Bytes<LEN> {}

/// fastalloc's fastest kind: for one thread, of fixed capacity.
pub(crate) struct FastallocFixed<const LEN: usize> {
    pool: fastalloc::FixedPool<Bytes<LEN>>,
}

impl<const LEN: usize> Peer for FastallocFixed<LEN> {
    type Block<'p> = fastalloc::OwnedHandle<'p, Bytes<LEN>>;

    fn open(_: usize, live: usize) -> Self {
        Self {
            pool: fastalloc::FixedPool::new(live).expect("the capacity is not zero"),
        }
    }

    #[inline(always)]
    fn alloc(&self, _: usize) -> Self::Block<'_> {
        self.pool
            .allocate(Bytes(MaybeUninit::uninit()))
            .expect("the pool was opened for this many blocks")
    }

    #[inline(always)]
    fn address(&self, block: &mut Self::Block<'_>) -> *mut u8 {
        block.0.as_mut_ptr().cast()
    }

    #[inline(always)]
    fn free<'p>(&'p self, block: Self::Block<'p>) {
        drop(block);
    }
}

/// sharded-slab's object pool. A block is its key, which can be sent to another thread.
pub(crate) struct ShardedSlab {
    pool: sharded_slab::Pool<Buffer>,
}

/// Keeps its bytes when its slot is cleared, as sharded-slab's documentation shows.
#[derive(Default)]
struct Buffer(BoxedBytes);

impl sharded_slab::Clear for Buffer {
    fn clear(&mut self) {}
}

impl Peer for ShardedSlab {
    type Block<'p> = usize;

    fn open(_: usize, _: usize) -> Self {
        Self {
            pool: sharded_slab::Pool::new(),
        }
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> usize {
        let mut slot = self.pool.create().expect("the slab is not full");
        if slot.0.len() < len {
            slot.0 = boxed(len);
        }
        black_box(slot.0.as_mut_ptr());
        slot.key()
    }

    /// Returns the key: looking up the bytes again would cost time, and `alloc` has black-boxed them.
    #[inline(always)]
    fn address(&self, block: &mut usize) -> *mut u8 {
        std::ptr::without_provenance_mut(*block)
    }

    #[inline(always)]
    fn free(&self, block: usize) {
        self.pool.clear(block);
    }
}

/// bytesbuf's pool. Its documentation says not to move it between threads.
pub(crate) struct BytesBufPool {
    pool: bytesbuf::mem::GlobalPool,
}

impl Peer for BytesBufPool {
    type Block<'p> = bytesbuf::BytesBuf;

    fn open(_: usize, _: usize) -> Self {
        Self {
            pool: bytesbuf::mem::GlobalPool::new(),
        }
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> Self::Block<'_> {
        self.pool.reserve(len)
    }

    #[inline(always)]
    fn address(&self, block: &mut Self::Block<'_>) -> *mut u8 {
        block.first_unfilled_slice().as_mut_ptr().cast()
    }

    #[inline(always)]
    fn free(&self, block: Self::Block<'_>) {
        drop(block);
    }
}

/// Cloudflare's pool of vectors. It has to be static, so each one that is opened is leaked.
#[cfg(feature = "buffer-pool")]
pub(crate) struct QuicheBufferPool {
    pool: &'static buffer_pool::Pool<4, Vec<u8>>,
}

#[cfg(feature = "buffer-pool")]
impl Peer for QuicheBufferPool {
    type Block<'p> = buffer_pool::Pooled<Vec<u8>>;

    fn open(len: usize, live: usize) -> Self {
        let pool = buffer_pool::Pool::<4, Vec<u8>>::new(4 * live, len, "versus");
        Self {
            pool: Box::leak(Box::new(pool)),
        }
    }

    #[inline(always)]
    fn alloc(&self, len: usize) -> Self::Block<'_> {
        self.pool.get_with(|bytes| bytes.reserve(len))
    }

    #[inline(always)]
    fn address(&self, block: &mut Self::Block<'_>) -> *mut u8 {
        block.as_mut_ptr()
    }

    #[inline(always)]
    fn free(&self, block: Self::Block<'_>) {
        drop(block);
    }
}
