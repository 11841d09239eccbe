//! What users hold: chunks with one owner, with several, many at a time, from the heap, and as bare pointers.

pub(crate) mod batch;
pub(crate) mod chunk;
#[cfg(feature = "alloc")]
pub(crate) mod oversize;
pub(crate) mod raw;
pub(crate) mod shared;
pub(crate) mod wipe;
