//! Tests of false sharing: what different threads write lies in different cache lines. (A processor
//! fetches lines in pairs, so 128 bytes.)

use crate::depot::{Depot, Lane};
use crate::pool::inner::Inner;
use crate::thread_cache::guard::Guard;
use crate::thread_cache::magazine::Magazine;
use core::mem::{align_of, offset_of, size_of};

/// Trap: false sharing, between threads' magazines.
#[test]
fn false_sharing_of_magazines_of_two_threads() {
    assert_eq!(align_of::<Magazine>(), 128);
    // And the words of one fast path are in one line.
    assert!(size_of::<Guard>() <= 64);
}

/// Trap: false sharing, between the depot's heads, which threads of different classes change.
#[test]
fn false_sharing_of_heads_of_two_classes() {
    assert_eq!(align_of::<Lane>(), 128, "each head is aligned so");
    assert_eq!(align_of::<Depot>(), 128);
}

/// Trap: false sharing, between what every fast path reads and what slow paths write.
#[test]
fn false_sharing_of_read_and_written_fields() {
    let read = offset_of!(Inner, classes) + size_of_val_of(|inner: &Inner| &inner.classes);
    assert_eq!(offset_of!(Inner, depot) % 128, 0);
    for written in [
        offset_of!(Inner, depot),
        offset_of!(Inner, uncached),
        offset_of!(Inner, too_large),
        offset_of!(Inner, slabs),
        offset_of!(Inner, gates),
        offset_of!(Inner, closed),
        offset_of!(Inner, under_pressure),
        offset_of!(Inner, live),
    ] {
        assert!(written >= read.next_multiple_of(128), "at {written}");
    }
}

const fn size_of_val_of<S, T>(_: fn(&S) -> &T) -> usize {
    size_of::<T>()
}
