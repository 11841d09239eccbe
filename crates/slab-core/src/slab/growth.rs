//! [`Growth`]: how many slabs are committed at a time.

/// How many slabs a pool commits at a time while it grows towards its cap.
///
/// Committing makes addresses usable; pages are backed when they are first touched. More slabs at a
/// time mean fewer system calls while a pool fills, and a larger figure for what is committed.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub enum Growth {
    /// One slab.
    #[default]
    Slab,
    /// As many as there are already.
    Double,
    /// As many as the function returns, given how many slabs there are; at least one. The function is
    /// called while the pool is locked and must not use any pool: it could deadlock.
    Custom(fn(committed_slabs: usize) -> usize),
}

impl Growth {
    pub(crate) fn slabs(self, committed: usize) -> usize {
        match self {
            Self::Slab => 1,
            Self::Double => committed,
            Self::Custom(f) => f(committed),
        }
    }
}
