//! Chunk indices that lie in atomic words, copied as the plain words that they are while nobody else
//! can be there: the slots of a magazine inside its guard, a batch block in one thread's hand.
//!
//! Loom and shuttle watch atomics only, so for them the words are copied one by one.

use crate::sync::AtomicU32;
#[cfg(any(loom, shuttle))]
use crate::sync::Ordering;
use arrayvec::ArrayVec;

/// Calls `copy` with `units` in pieces of a few fixed lengths, so that copying one is a handful of
/// moves instead of a call of `memcpy`, which took a third longer for batches of 32.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
fn in_pieces(units: &[u32], mut copy: impl FnMut(&[u32])) {
    let mut rest = units;
    macro_rules! piece {
        ($($len:literal),*) => {$(
            if let Some((piece, more)) = rest.split_first_chunk::<$len>() {
                copy(piece);
                rest = more;
            }
        )*};
    }
    piece!(32, 32, 16, 8, 4, 2, 1);
    if !rest.is_empty() {
        copy(rest);
    }
}

/// Adds all of the slots' indices to `out`, which has room for them.
///
/// # Safety
/// Nobody else writes the slots meanwhile.
#[inline]
pub(crate) unsafe fn read_units<const N: usize>(slots: &[AtomicU32], out: &mut ArrayVec<u32, N>) {
    #[cfg(any(loom, shuttle))]
    out.extend(slots.iter().map(|slot| slot.load(Ordering::Relaxed)));
    #[cfg(not(any(loom, shuttle)))]
    {
        let start = slots.as_ptr().cast::<u32>();
        // SAFETY: an `AtomicU32` has the layout of a `u32`, the slots are initialised, and by
        // contract nobody writes them.
        let plain = unsafe { core::slice::from_raw_parts(start, slots.len()) };
        in_pieces(plain, |piece| {
            out.try_extend_from_slice(piece).expect("has room");
        });
    }
}

/// Sets as many slots as there are units.
///
/// # Safety
/// Nobody else reads or writes the slots meanwhile.
#[inline]
pub(crate) unsafe fn write_units(slots: &[AtomicU32], units: &[u32]) {
    debug_assert_eq!(slots.len(), units.len());
    #[cfg(any(loom, shuttle))]
    for (slot, &unit) in slots.iter().zip(units) {
        slot.store(unit, Ordering::Relaxed);
    }
    #[cfg(not(any(loom, shuttle)))]
    {
        let start = slots.as_ptr().cast::<u32>().cast_mut();
        // SAFETY: an `AtomicU32` may be written through a shared reference and has the layout of a
        // `u32`, the slots are initialised, and by contract nobody else is there.
        let mut to = unsafe { core::slice::from_raw_parts_mut(start, slots.len()) };
        in_pieces(units, |piece| {
            let (front, behind) = core::mem::take(&mut to).split_at_mut(piece.len());
            front.copy_from_slice(piece);
            to = behind;
        });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_whole_in_order() {
        let units: Vec<u32> = (0..200).collect();
        for len in 0..units.len() {
            let mut copied = Vec::new();
            in_pieces(&units[..len], |piece| copied.extend_from_slice(piece));
            assert_eq!(copied, units[..len]);
        }
    }
}
