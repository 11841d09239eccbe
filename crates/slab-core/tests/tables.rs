//! What a pool takes of the heap for its tables: all of it goes back, and where there is none that is an error. In a file
//! of its own for its allocator.
#![cfg(all(feature = "std", not(miri)))]

mod common;

use common::MODES;
use slab_core::{ConfigError, SizeClasses, SlabPool, SlabPoolBuilder};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Nothing else in a test is aligned to as much.
const TABLE_ALIGN: usize = 128;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    /// How many more tables this thread gets.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The system's allocator, which counts what tables have, and refuses some.
struct Tables;

impl Tables {
    fn give(layout: Layout, from: unsafe fn(&System, Layout) -> *mut u8) -> *mut u8 {
        if layout.align() >= TABLE_ALIGN {
            let Some(left) = LEFT.get().checked_sub(1) else {
                return null_mut();
            };
            LEFT.set(left);
            LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the promise of the caller, which is the trait's.
        unsafe { from(&System, layout) }
    }
}

// SAFETY: all is left to `System`, or refused.
unsafe impl GlobalAlloc for Tables {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::give(layout, System::alloc)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::give(layout, System::alloc_zeroed)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if layout.align() >= TABLE_ALIGN {
            LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Tables = Tables;

fn builder() -> SlabPoolBuilder {
    let classes = SizeClasses::explicit(&[64, 1536]).unwrap();
    SlabPool::builder()
        .size_classes(classes)
        .max_memory(1 << 20)
}

#[test]
fn tables_go_back_to_the_heap() {
    let _alone = ALONE.lock();
    for mode in MODES {
        let before = LIVE.load(Ordering::Relaxed);
        let pool = builder().mode(mode).build().unwrap();
        assert!(LIVE.load(Ordering::Relaxed) > before);
        let other = pool.clone();
        let chunk = std::thread::spawn(move || other.try_alloc(64).unwrap());
        let chunk = chunk.join().unwrap();
        drop(pool);
        drop(chunk);
        assert_eq!(LIVE.load(Ordering::Relaxed), before, "{mode:?}");
    }
}

#[test]
fn heap_without_room_for_a_table_is_an_error() {
    let _alone = ALONE.lock();
    for mode in MODES {
        let before = LIVE.load(Ordering::Relaxed);
        let mut refused = 0;
        loop {
            LEFT.set(refused);
            let built = builder().mode(mode).build();
            LEFT.set(usize::MAX);
            match built {
                Ok(_) => break,
                Err(ConfigError::Reserve { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            assert_eq!(LIVE.load(Ordering::Relaxed), before, "{mode:?}, {refused}");
        }
        assert!(refused > 2, "{refused}");
    }
}
