//! [`UnusedSlabs`]: a list of slabs, in a table that is as long as there are slabs.

use crate::sync::Table;
use crate::sys::room::Room;
use core::ops::{Deref, DerefMut};

/// Each slab is here once at most, so the table is never full.
#[derive(Debug)]
pub(super) struct UnusedSlabs {
    table: Table<u32>,
    len: usize,
}

impl UnusedSlabs {
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(super) fn new(room: &mut Room, slabs: usize) -> Result<Self, i32> {
        Ok(Self {
            table: Table::new(room, slabs)?,
            len: 0,
        })
    }

    pub(super) fn push(&mut self, slab: u32) {
        self.table[self.len] = slab;
        self.len += 1;
    }

    pub(super) fn extend(&mut self, slabs: impl Iterator<Item = u32>) {
        slabs.for_each(|slab| self.push(slab));
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.table[self.len])
    }
}

impl Deref for UnusedSlabs {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.table[..self.len]
    }
}

impl DerefMut for UnusedSlabs {
    fn deref_mut(&mut self) -> &mut [u32] {
        &mut self.table[..self.len]
    }
}
