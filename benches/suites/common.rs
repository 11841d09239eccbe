//! What the suites have in common.

use criterion::Criterion;
use packet_slab::slab_core::{SizeClasses, SlabPool};
use std::hint::black_box;
use std::time::Duration;

/// Samples short enough that all suites together take a few minutes.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .sample_size(40)
        .configure_from_args()
}

/// Makes a pool with these size classes and more memory than any suite holds at once.
pub(crate) fn pool(classes: &[usize]) -> SlabPool {
    SlabPool::builder()
        .name("bench")
        .size_classes(SizeClasses::explicit(classes).expect("the classes are valid"))
        .max_memory(256 << 20)
        .build()
        .expect("the configuration is valid")
}

/// Allocates and frees one chunk.
#[inline(always)]
pub(crate) fn pair(pool: &SlabPool, len: usize) {
    drop(black_box(pool.try_alloc(black_box(len))));
}

/// The same with the bytes zeroed, as Go does.
#[inline(always)]
pub(crate) fn pair_zeroed(pool: &SlabPool, len: usize) {
    drop(black_box(pool.try_alloc_zeroed(black_box(len))));
}

/// What a program without a pool does.
#[inline(always)]
pub(crate) fn heap_pair(len: usize) {
    drop(black_box(Vec::<u8>::with_capacity(black_box(len))));
}

/// The same with the bytes zeroed.
#[inline(always)]
pub(crate) fn heap_pair_zeroed(len: usize) {
    drop(black_box(vec![0_u8; black_box(len)]));
}

/// Returns each element in turn, for ever.
pub(crate) struct Rotation<'a> {
    of: &'a [usize],
    at: usize,
}

impl<'a> Rotation<'a> {
    pub(crate) fn new(of: &'a [usize]) -> Self {
        Self { of, at: 0 }
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> usize {
        let length = self.of[self.at];
        self.at += 1;
        if self.at == self.of.len() {
            self.at = 0;
        }
        length
    }
}
