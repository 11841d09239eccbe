//! An allocator that counts what each thread asks of it.

use slab_net::PacketPool;
use slab_net::rudp::{Connection, Endpoint};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

pub(crate) struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
    static RING_BYTES_FREED: Cell<usize> = const { Cell::new(0) };
}

/// Allocations of this thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Bytes that this thread has allocated and not freed.
pub(crate) fn bytes() -> isize {
    BYTES.with(Cell::get)
}

/// Bytes that this thread has freed of memory aligned like that which a ring shares with the kernel.
pub(crate) fn ring_bytes_freed() -> usize {
    RING_BYTES_FREED.with(Cell::get)
}

// SAFETY: every call goes to the system allocator, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        BYTES.with(|bytes| bytes.set(bytes.get() + layout.size() as isize));
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.with(|bytes| bytes.set(bytes.get() - layout.size() as isize));
        if layout.align() == 64 << 10 {
            RING_BYTES_FREED.with(|bytes| bytes.set(bytes.get() + layout.size()));
        }
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        let more = new_size as isize - layout.size() as isize;
        BYTES.with(|bytes| bytes.set(bytes.get() + more));
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Asks so many times to warm up, and twice as often to count. Both ends run in this task, so that no other thread
/// allocates unseen.
pub(crate) async fn assert_echo_allocates_nothing(
    server: &Endpoint,
    client: &Connection,
    pool: &PacketPool,
    rounds: usize,
) {
    let echo = async {
        let connection = server.accept().await.unwrap();
        while let Some(message) = connection.recv().await.unwrap() {
            connection.send(message).await.unwrap();
        }
    };
    let ask = async {
        let round = async || {
            let message = pool.try_copy_from_slice(&[1; 1000]).unwrap();
            client.send(message).await.unwrap();
            assert_eq!(client.recv().await.unwrap().unwrap().len(), 1000);
        };
        for _ in 0..rounds {
            round().await;
        }
        assert_allocates_nothing(2 * rounds, round).await;
        client.close().await.unwrap();
    };
    tokio::join!(echo, ask);
}

/// Whoever codes for error correction frees its memory if nothing happens for half a second, and a busy machine may
/// stop this thread for as long: then it is counted again.
pub(crate) async fn assert_allocates_nothing(rounds: usize, mut round: impl AsyncFnMut()) {
    for _ in 0..50 {
        let (before, mut longest) = (allocations(), Duration::ZERO);
        for _ in 0..rounds {
            let begun = Instant::now();
            round().await;
            longest = longest.max(begun.elapsed());
        }
        if longest < Duration::from_millis(250) {
            return assert_eq!(allocations() - before, 0, "in {rounds} rounds");
        }
    }
    panic!("this machine has no time for us");
}
