//! Values of a typed slab, beside the pool of chunks: each is dropped once, and keeps what was put in for as
//! long as it lives.

use crate::world::Pointer;
use crate::{Config, Random, served};
use slab_core::{Slab, SlabBox};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

pub(crate) struct Tag;
pub(crate) type Boxed = SlabBox<Value, Tag>;

/// Of no whole number of cache lines, so that there is padding behind it.
pub(crate) struct Value {
    stamp: u64,
    on_heap: Box<u64>,
    filler: [u64; 300],
    drops: Arc<AtomicU64>,
}

impl Value {
    pub(crate) fn check(&self) {
        assert_eq!(*self.on_heap, self.stamp);
        let step = if cfg!(miri) { 50 } else { 1 };
        assert!(self.filler.iter().step_by(step).all(|&n| n == self.stamp));
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.check();
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) struct Values {
    pub(crate) slab: Slab<Value, Tag>,
    made: AtomicU64,
    inserted: AtomicU64,
    drops: Arc<AtomicU64>,
}

impl Values {
    pub(crate) fn new(config: &Config) -> Self {
        // As many as there are in one slab: few.
        let slab = Slab::builder().max_objects(1);
        Self {
            slab: slab.pool(|_| config.builder()).build().unwrap(),
            made: AtomicU64::new(0),
            inserted: AtomicU64::new(0),
            drops: Arc::default(),
        }
    }

    /// A value in the slab, unless that is full.
    pub(crate) fn insert(&self, random: &mut Random) -> Option<Boxed> {
        let stamp = self.made.fetch_add(1, Ordering::Relaxed);
        let value = Value {
            stamp,
            on_heap: Box::new(stamp),
            filler: [stamp; 300],
            drops: Arc::clone(&self.drops),
        };
        let inserted = if random.one_in(2) {
            self.slab.try_insert(value).map_err(|refused| {
                assert_eq!(refused.value.stamp, stamp);
                refused.error
            })
        } else {
            self.slab.alloc_raw().map(|at| {
                // SAFETY: the pointer is to a place for a value.
                unsafe { at.write(value) };
                self.take_back(Pointer(at.cast()))
            })
        };
        let inserted = served(inserted)?;
        assert_eq!(inserted.stamp, stamp);
        self.inserted.fetch_add(1, Ordering::Relaxed);
        Some(inserted)
    }

    /// Takes back, once, what came from [`SlabBox::into_raw`].
    pub(crate) fn take_back(&self, at: Pointer) -> Boxed {
        // SAFETY: a value of this slab, which nobody else takes back.
        unsafe { self.slab.box_from_raw(at.0.cast()) }.expect("a value of the slab")
    }

    /// When nobody has a value: each was dropped once, and all places can be used again. Values then outlive
    /// their slab.
    pub(crate) fn finish(self, random: &mut Random) {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        assert_eq!(count(&self.drops), count(&self.made), "dropped once each");
        let stats = self.slab.pool().stats().classes()[0];
        assert_eq!((stats.in_use, stats.allocs), (0, count(&self.inserted)));
        let last: Vec<_> = std::iter::from_fn(|| self.insert(random)).collect();
        assert_eq!(last.len(), self.slab.capacity(), "some places are lost");
        let (made, drops) = (count(&self.made), Arc::clone(&self.drops));
        drop(self);
        thread::spawn(move || drop(last)).join().unwrap();
        assert_eq!(count(&drops), made, "dropped once each");
    }
}
