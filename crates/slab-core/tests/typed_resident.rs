//! What live objects in a typed slab cost beyond themselves. Alone in its file, and so in its
//! process, whose resident memory it reads.
#![cfg(all(feature = "std", target_os = "linux", not(any(miri, loom))))]

use slab_core::{GlobalBox, GlobalTag, Slab, StaticSlab};
use std::mem::MaybeUninit;

type Object = [u64; 8];
struct Live;

impl GlobalTag<Object> for Live {
    fn slab() -> &'static StaticSlab<Object, Live> {
        static SLAB: StaticSlab<Object, Live> = StaticSlab::new("live", 10_000_000);
        &SLAB
    }
}

/// Resident bytes of the process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A vector of uninitialised elements whose pages are all resident.
fn touched<T>(len: usize) -> Vec<MaybeUninit<T>> {
    let mut handles = Vec::with_capacity(len);
    handles.resize_with(len, MaybeUninit::uninit);
    for handle in handles.iter_mut().step_by(512) {
        *handle = MaybeUninit::zeroed();
        // Or the compiler would leave zeros to the system, which gives no memory for them.
        std::hint::black_box(handle);
    }
    handles
}

/// Grows the process by `objects` live ones; returns the overhead as a part of payload, and of
/// payload and handles.
fn overhead(objects: usize) -> (f64, f64) {
    let slab = Slab::<Object, Live>::global().unwrap();
    let mut handles = touched::<GlobalBox<Object, Live>>(objects);
    let before = resident();
    for (i, handle) in handles.iter_mut().enumerate() {
        let object = slab.try_insert([i as u64; 8]).unwrap();
        handle.write(object.into_global().unwrap());
    }
    let grown = resident() - before;
    assert_eq!(slab.stats().in_use(), objects as u64);
    for (i, handle) in handles.iter_mut().enumerate() {
        // SAFETY: written above, and dropped once.
        let handle = unsafe { handle.assume_init_read() };
        assert_eq!(handle[7], i as u64);
    }
    let payload = objects * size_of::<Object>();
    let bookkeeping = grown as f64 - payload as f64;
    let with_handles = payload + objects * size_of::<GlobalBox<Object, Live>>();
    (
        bookkeeping / payload as f64,
        bookkeeping / with_handles as f64,
    )
}

#[test]
fn half_a_million_objects_cost_little_beyond_themselves() {
    let (of_payload, _) = overhead(500_000);
    assert!((-0.001..0.015).contains(&of_payload), "{of_payload}");
}

#[test]
#[ignore = "needs 1 GB; prints the figures for README.md"]
#[expect(clippy::print_stdout, reason = "is for its output")]
fn ten_million_objects() {
    let (of_payload, of_both) = overhead(10_000_000);
    println!(
        "beyond payload and handles: {:.3} % of the payload, {:.3} % of payload and handles (8 bytes each)",
        100.0 * of_payload,
        100.0 * of_both
    );
    assert!(of_payload < 0.015, "{of_payload}");
}
