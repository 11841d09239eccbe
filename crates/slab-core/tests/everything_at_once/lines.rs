//! Vectors in the memory of an allocator, beside the pool of chunks: each keeps its elements, wherever it grows
//! and shrinks.

use crate::{Config, Random};
use allocator_api2::vec::Vec;
use slab_core::SlabAllocator;
use std::sync::atomic::{AtomicU64, Ordering};

/// All of its elements are the same number, which no other has.
pub(crate) type Line = Vec<u64, SlabAllocator>;

pub(crate) struct Lines {
    pub(crate) alloc: SlabAllocator,
    next: AtomicU64,
    /// How many of the largest class there is memory for.
    most: usize,
}

impl Lines {
    pub(crate) fn new(config: &Config) -> Self {
        let mut this = Self {
            alloc: SlabAllocator::open(config.builder()).unwrap(),
            next: AtomicU64::new(0),
            most: 0,
        };
        this.most = this.fill(config);
        this.alloc = SlabAllocator::open(config.builder()).unwrap();
        this
    }

    fn fill(&self, config: &Config) -> usize {
        let largest = *config.sizes.last().unwrap();
        let all: std::vec::Vec<_> = std::iter::from_fn(|| self.try_new(largest)).collect();
        all.iter().for_each(check);
        all.len()
    }

    /// Up to so many bytes, unless there is no memory.
    pub(crate) fn try_new(&self, bytes: usize) -> Option<Line> {
        let mut line = Line::new_in(self.alloc.clone());
        line.try_reserve_exact(bytes / 8).ok()?;
        let stamp = self.next.fetch_add(1, Ordering::Relaxed);
        line.resize(bytes / 8, stamp);
        Some(line)
    }

    /// Grows to so many bytes, if there is memory, or shrinks to them.
    pub(crate) fn change(line: &mut Line, bytes: usize, random: &mut Random) {
        let (stamp, len) = (line[0], bytes / 8);
        if line
            .try_reserve_exact(len.saturating_sub(line.len()))
            .is_ok()
        {
            line.resize(len, stamp);
        }
        if random.one_in(2) {
            line.shrink_to_fit();
        }
        check(line);
    }

    /// When nobody has one: all of the memory can be used again. Some outlive the allocator.
    pub(crate) fn finish(self, config: &Config) {
        assert_eq!(self.alloc.pool().stats().in_use(), 0);
        assert_eq!(self.fill(config), self.most, "some memory is lost");
        let last = self.try_new(*config.sizes.first().unwrap()).unwrap();
        drop(self);
        check(&last);
    }
}

pub(crate) fn check(line: &Line) {
    let step = if cfg!(miri) { 50 } else { 1 };
    assert!(line.iter().step_by(step).all(|&n| n == line[0]));
}
