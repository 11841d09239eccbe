//! [`Room`]: where the tables of a pool lie, in memory of the system's or in a piece that the caller lent for them.
//!
//! What is lent is given out from its start to its end and never taken back. If it is too short, nobody gets a place any
//! more, but all are still counted: whoever is done then knows how long it would have to be.

use crate::error::ConfigError;
use core::alloc::Layout;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// No table is aligned to more.
pub(crate) const TABLE_ALIGN: usize = 128;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Room {
    lent: Option<Lent>,
}

#[derive(Debug)]
struct Lent {
    whole: NonNull<[MaybeUninit<u8>]>,
    /// Where its first multiple of [`TABLE_ALIGN`] is.
    skip: usize,
    /// Bytes from there on that were asked for, with the gaps between them.
    asked: usize,
}

/// Where something has its place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece {
    /// Wherever the system gives it one.
    System,
    /// Here, for ever, of any contents.
    Lent(NonNull<u8>),
    /// Nowhere: what was lent is too short.
    None,
}

impl Room {
    /// Of the system.
    pub(crate) const fn system() -> Self {
        Self { lent: None }
    }

    /// In the caller's memory.
    pub(crate) fn lent(memory: &'static mut [MaybeUninit<u8>]) -> Self {
        let whole = NonNull::from(memory);
        let skip = whole.cast::<u8>().as_ptr().align_offset(TABLE_ALIGN);
        let lent = Some(Lent {
            whole,
            skip,
            asked: 0,
        });
        Self { lent }
    }

    /// A place for this.
    pub(crate) fn place(&mut self, layout: Layout) -> Piece {
        assert!(layout.align() <= TABLE_ALIGN);
        let Some(lent) = &mut self.lent else {
            return Piece::System;
        };
        let from = lent.asked.next_multiple_of(layout.align());
        lent.asked = from.saturating_add(layout.size());
        if lent.is_short() {
            return Piece::None;
        }
        // SAFETY: it ends within the memory.
        let at = unsafe { lent.whole.cast::<u8>().add(lent.skip + from) };
        Piece::Lent(at)
    }

    /// # Errors
    /// [`ConfigError::BookkeepingTooSmall`] if something got no place.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match &self.lent {
            Some(lent) if lent.is_short() => Err(ConfigError::BookkeepingTooSmall {
                bytes: lent.whole.len(),
                needed: lent.asked.saturating_add(TABLE_ALIGN - 1),
            }),
            _ => Ok(()),
        }
    }

    /// Returns what the caller lent.
    ///
    /// # Safety
    /// Nothing lies there any more.
    pub(crate) unsafe fn into_lent(self) -> &'static mut [MaybeUninit<u8>] {
        match self.lent {
            // SAFETY: made from the caller's reference, which is for ever and not used again; nobody else refers to it, by
            // this function's contract.
            Some(mut lent) => unsafe { lent.whole.as_mut() },
            None => &mut [],
        }
    }
}

impl Lent {
    fn is_short(&self) -> bool {
        self.asked > self.whole.len().saturating_sub(self.skip)
    }
}

#[cfg(all(test, feature = "alloc", not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use alloc::boxed::Box;

    fn offset(piece: Piece, of: usize) -> Option<usize> {
        match piece {
            Piece::Lent(at) => Some(at.addr().get() - of),
            Piece::None => None,
            Piece::System => panic!("it was lent"),
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "leaks, as memory for ever does")]
    fn places_follow_each_other_and_what_finds_none_is_counted() {
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        for skip in [0, 1, 127] {
            let memory = Box::leak(Box::<[u8]>::new_uninit_slice(1024));
            let start = memory.as_ptr().align_offset(TABLE_ALIGN);
            let memory = &mut memory[start + skip..][..512];
            let range = memory.as_ptr_range();
            let at = range.start.addr().next_multiple_of(TABLE_ALIGN);
            let room_bytes = range.end.addr() - at;
            let mut room = Room::lent(memory);
            assert_eq!(offset(room.place(layout(5, 1)), at), Some(0));
            assert_eq!(offset(room.place(layout(8, 8)), at), Some(8));
            assert_eq!(offset(room.place(layout(128, 128)), at), Some(128));
            assert_eq!(offset(room.place(layout(0, 4)), at), Some(256));
            let rest = room_bytes - 256;
            assert_eq!(offset(room.place(layout(rest, 1)), at), Some(256));
            assert_eq!(room.check(), Ok(()));
            // Not even nothing, behind something that found no place.
            assert_eq!(offset(room.place(layout(1, 1)), at), None);
            assert_eq!(offset(room.place(layout(1000, 1)), at), None);
            let needed = 256 + rest + 1001 + TABLE_ALIGN - 1;
            let error = ConfigError::BookkeepingTooSmall { bytes: 512, needed };
            assert_eq!(room.check(), Err(error));
            // SAFETY: nothing was put there.
            let back = unsafe { room.into_lent() };
            assert_eq!(back.as_ptr_range(), range);
        }
    }

    #[test]
    fn an_impossible_place_is_none() {
        let mut room = Room::lent(&mut []);
        let most = Layout::from_size_align(isize::MAX as usize, 1).unwrap();
        for _ in 0..5 {
            assert!(matches!(room.place(most), Piece::None));
        }
        let Err(ConfigError::BookkeepingTooSmall { bytes: 0, needed }) = room.check() else {
            panic!("nothing was lent");
        };
        assert_eq!(needed, usize::MAX);
    }
}
