//! What live objects in a typed slab cost beyond themselves. Alone in its file, and so in its
//! process, whose resident memory it reads.
#![cfg(all(feature = "std", target_os = "linux", not(any(miri, loom))))]

mod process;

use slab_core::{GlobalBox, GlobalTag, Slab, SlabBox, StaticSlab};
use std::mem::MaybeUninit;

type Object = [u64; 8];
const OBJECTS: usize = 500_000;
struct Live;

impl GlobalTag<Object> for Live {
    fn slab() -> &'static StaticSlab<Object, Live> {
        static SLAB: StaticSlab<Object, Live> = StaticSlab::new("live", OBJECTS);
        &SLAB
    }
}

/// A vector of uninitialised elements whose pages are all resident.
fn touched<T>(len: usize) -> Vec<MaybeUninit<T>> {
    let mut handles = Vec::with_capacity(len);
    handles.resize_with(len, MaybeUninit::uninit);
    for handle in handles.iter_mut().step_by(512) {
        *handle = MaybeUninit::zeroed();
        // Otherwise the compiler would leave zeros to the system, which backs them with no memory.
        std::hint::black_box(handle);
    }
    handles
}

#[test]
fn half_a_million_objects_have_little_overhead() {
    let slab = Slab::<Object, Live>::global().unwrap();
    let mut handles = touched::<GlobalBox<Object, Live>>(OBJECTS);
    let before = process::size("VmRSS");
    for (i, handle) in handles.iter_mut().enumerate() {
        let object = slab.try_insert([i as u64; 8]).unwrap();
        handle.write(SlabBox::into_global(object).unwrap());
    }
    let grown = process::size("VmRSS") - before;
    assert_eq!(slab.pool().stats().in_use(), OBJECTS as u64);
    for (i, handle) in handles.iter_mut().enumerate() {
        // SAFETY: written above, and dropped once.
        let handle = unsafe { handle.assume_init_read() };
        assert_eq!(handle[7], i as u64);
    }
    let payload = OBJECTS * size_of::<Object>();
    // `versus` has the figure for 10 million, and other allocators': `typed-footprint`.
    let overhead = (grown as f64 - payload as f64) / payload as f64;
    assert!((-0.001..0.015).contains(&overhead), "{overhead}");
}
