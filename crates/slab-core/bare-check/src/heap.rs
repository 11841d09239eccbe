//! A heap that takes nothing back, and is as large as the documentation says for each pool.

use crate::{CAP, Region};
use core::alloc::{GlobalAlloc, Layout};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use slab_core::{Mode, SlabPool, SlabPoolBuilder};

static mut HEAP: Region<{ 1 << 20 }> = Region([MaybeUninit::uninit(); _]);
/// Bytes of the heap that were handed out.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static HEAP_END: AtomicUsize = AtomicUsize::new(0);

/// What alignment leaves between the tables.
const GAPS: usize = 2 << 10;

struct Bump;

// SAFETY: it hands out parts of the heap that do not overlap.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let from = |taken: usize| taken.next_multiple_of(layout.align());
        let end =
            |taken| Some(from(taken) + layout.size()).filter(|&end| end <= HEAP_END.load(SeqCst));
        let taken = TAKEN.fetch_update(SeqCst, SeqCst, end);
        taken.map_or(null_mut(), |taken| {
            (&raw mut HEAP).cast::<u8>().wrapping_add(from(taken))
        })
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static BUMP: Bump = Bump;

/// What a pool took of the heap.
#[derive(Default)]
pub struct Tables {
    before: usize,
    built: usize,
}

impl Tables {
    /// With what `SlabPoolBuilder::max_memory` says that building takes of the heap for this cap.
    pub fn build(
        &mut self,
        builder: SlabPoolBuilder,
        lent: &'static mut [MaybeUninit<u8>],
        mode: Mode,
    ) -> SlabPool {
        let hundredths = if mode == Mode::Ring { 43 } else { 30 };
        self.before = TAKEN.load(SeqCst);
        HEAP_END.store(self.before + CAP * hundredths / 100 + GAPS, SeqCst);
        let pool = builder.build_in(lent).unwrap();
        self.built = TAKEN.load(SeqCst);
        pool
    }

    /// How many bytes that were.
    pub fn check(&self) -> usize {
        assert_eq!(
            TAKEN.load(SeqCst),
            self.built,
            "more of the heap after `build_in`"
        );
        self.built - self.before
    }
}
