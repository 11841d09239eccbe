//! The magazines of one thread in one pool.

use crate::geometry::ClassTable;
use crate::magazine::Magazine;
use alloc::boxed::Box;

/// The magazines of one thread in one pool, one a class. The pool's registry and the thread both hold it, so
/// it outlives either.
#[derive(Debug)]
pub(crate) struct ThreadCache {
    magazines: Box<[Magazine]>,
    /// The lane of the depot that they use. Here too, so that who asks does not disturb their owner.
    pub(crate) lane: u8,
}

impl ThreadCache {
    pub(crate) fn new(lane: u8, classes: &ClassTable) -> Self {
        let magazine = |class| Magazine::new(2 * classes.geometry(class).batch as u8, lane);
        Self {
            magazines: (0..classes.count() as u8).map(magazine).collect(),
            lane,
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
