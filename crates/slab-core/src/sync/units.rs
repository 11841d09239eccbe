//! Copies chunk indices from and to atomic words as if these were plain, where nobody else can access
//! them: the slots of a magazine inside its guard, a batch block in one thread's hand.
//!
//! Loom and shuttle watch atomics only, which they replace by their own, so for them the words are
//! copied one by one: Miri and ThreadSanitizer check the plain copies of production, loom and shuttle
//! do not.

use crate::sync::{AtomicU32, MODELLED, Ordering};
use arrayvec::ArrayVec;

/// Calls `copy` with `units` in pieces of a few fixed lengths, so that copying one is a handful of
/// moves instead of a call of `memcpy`, which took a third longer for batches of 32.
#[inline(always)]
fn in_pieces(units: &[u32], mut copy: impl FnMut(&[u32])) {
    let mut rest = units;
    macro_rules! piece {
        ($($len:literal),*) => {$(
            if let Some((piece, more)) = rest.split_first_chunk::<$len>() {
                copy(piece);
                // Not to ask for all the shorter ones is a few per cent of a batch of 32.
                if more.is_empty() {
                    return;
                }
                rest = more;
            }
        )*};
    }
    piece!(32, 32, 16, 8, 4, 2, 1);
    if !rest.is_empty() {
        copy(rest);
    }
}

/// Calls `f` with the slots' indices.
///
/// # Safety
/// Nobody writes the slots meanwhile.
#[inline(always)]
pub(crate) unsafe fn with_units<R>(slots: &[AtomicU32], f: impl FnOnce(&[u32]) -> R) -> R {
    if MODELLED {
        let load = |slot: &AtomicU32| slot.load(Ordering::Relaxed);
        return f(&slots.iter().map(load).collect::<ArrayVec<u32, 8>>());
    }
    let start = slots.as_ptr().cast::<u32>();
    // SAFETY: core's `AtomicU32` has the layout of a `u32`, the slots are initialised, and by
    // contract nobody writes them.
    f(unsafe { core::slice::from_raw_parts(start, slots.len()) })
}

/// Adds all of the slots' indices to `out`, which has room for them.
///
/// # Safety
/// Nobody else writes the slots meanwhile.
#[inline]
pub(crate) unsafe fn read_units<const N: usize>(slots: &[AtomicU32], out: &mut ArrayVec<u32, N>) {
    let copy = |units: &[u32]| {
        in_pieces(units, |piece| {
            out.try_extend_from_slice(piece).expect("has room");
        });
    };
    // SAFETY: the caller's promise.
    unsafe { with_units(slots, copy) };
}

/// Sets as many slots as there are units.
///
/// # Safety
/// Nobody else reads or writes the slots meanwhile.
#[inline]
pub(crate) unsafe fn write_units(slots: &[AtomicU32], units: &[u32]) {
    debug_assert_eq!(slots.len(), units.len());
    if MODELLED {
        for (slot, &unit) in slots.iter().zip(units) {
            slot.store(unit, Ordering::Relaxed);
        }
        return;
    }
    let start = slots.as_ptr().cast::<u32>().cast_mut();
    // SAFETY: core's `AtomicU32` may be written through a shared reference and has the layout of a
    // `u32`, the slots are initialised, and by contract nobody else is there.
    let mut to = unsafe { core::slice::from_raw_parts_mut(start, slots.len()) };
    in_pieces(units, |piece| {
        let (front, behind) = core::mem::take(&mut to).split_at_mut(piece.len());
        front.copy_from_slice(piece);
        to = behind;
    });
}

/// Moves what is in the slots from `from` on to the first ones. The rest keeps what it has.
///
/// # Safety
/// Nobody else reads or writes the slots meanwhile.
#[inline]
pub(crate) unsafe fn move_to_front(slots: &[AtomicU32], from: usize) {
    let moved = &slots[from..];
    if MODELLED {
        for (slot, unit) in slots.iter().zip(moved) {
            slot.store(unit.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        return;
    }
    let to = slots.as_ptr().cast::<u32>().cast_mut();
    // SAFETY: core's `AtomicU32` may be written through a shared reference and has the layout of a
    // `u32`, both ranges lie in the slots, and by contract nobody else is there.
    unsafe { to.copy_from(moved.as_ptr().cast(), moved.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_pieces_copies_everything_in_order() {
        // Each length of a piece, and the longest twice.
        let units: Vec<u32> = (0..if cfg!(miri) { 80 } else { 200 }).collect();
        for len in 0..units.len() {
            let mut copied = Vec::new();
            in_pieces(&units[..len], |piece| copied.extend_from_slice(piece));
            assert_eq!(copied, units[..len]);
        }
    }
}
