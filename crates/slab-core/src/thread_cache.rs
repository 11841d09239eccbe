//! The magazines of one thread in one pool.

use crate::depot::lane_of;
use crate::geometry::ClassTable;
use crate::magazine::Magazine;
use alloc::boxed::Box;

/// The magazines of one thread in one pool, one a class. The pool's registry and the thread both hold it, so
/// it outlives either.
#[derive(Debug)]
pub(crate) struct ThreadCache {
    magazines: Box<[Magazine]>,
    /// Its place in the pool's registry.
    // Without thread-locals nobody asks.
    #[cfg_attr(not(feature = "std"), allow(dead_code))]
    pub(crate) id: usize,
}

impl ThreadCache {
    pub(crate) fn new(id: usize, classes: &ClassTable) -> Self {
        let lane = lane_of(id);
        let magazine = |class| Magazine::new(2 * classes.geometry(class).batch as u8, lane);
        Self {
            magazines: (0..classes.count() as u8).map(magazine).collect(),
            id,
        }
    }

    pub(crate) fn magazine(&self, class: u8) -> &Magazine {
        &self.magazines[usize::from(class)]
    }

    /// All of them, by class.
    pub(crate) fn magazines(&self) -> &[Magazine] {
        &self.magazines
    }
}
