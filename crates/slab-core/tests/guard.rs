//! Guard pages between slabs.
#![cfg(all(
    feature = "std",
    target_os = "linux",
    not(any(miri, loom, shuttle, slab_asan, slab_tsan))
))]

mod common;
mod memlock;

use common::MODES;
use slab_core::{Backing, Growth, SizeClasses, Slab, SlabPool, SlabPoolBuilder};
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// The largest page that a system may have: a slab is four of them, as a smaller one would have no guard.
const LARGE: usize = 64 << 10;
const SLAB: usize = 4 * LARGE;
const CAP: usize = 8 * SLAB;

fn page_size() -> usize {
    // SAFETY: asks for a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    bytes.try_into().unwrap()
}

fn builder() -> SlabPoolBuilder {
    let classes = SizeClasses::explicit(&[512, 4096, LARGE]).unwrap();
    let pool = SlabPool::builder().size_classes(classes);
    pool.max_memory(CAP).guard_pages(true)
}

/// Fills the pool and writes to every byte; returns where chunks end.
fn fill(pool: &SlabPool, len: usize) -> Vec<usize> {
    let mut held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(len).ok()).collect();
    held.iter_mut().for_each(|chunk| chunk.fill_zero().fill(1));
    let ends = held.iter().map(|chunk| chunk.as_ptr().addr().get() + len);
    ends.collect()
}

#[test]
fn chunks_never_reach_into_the_guard_page() {
    for backing in [Backing::OnDemand, Backing::Prefault, Backing::Locked] {
        for growth in [Growth::Slab, Growth::Double] {
            let pool = match builder().backing(backing).growth(growth).build() {
                Ok(pool) => pool,
                // Who may lock how much memory is the system's to say.
                Err(why) if backing == Backing::Locked && !memlock::is_allowed() => {
                    let _ = writeln!(io::stderr(), "skipped: locked memory: {why}");
                    continue;
                }
                Err(why) => panic!("{why}"),
            };
            let usable = SLAB - page_size();
            for len in [4096, 512, 4096] {
                let ends = fill(&pool, len);
                assert_eq!(ends.len(), CAP / SLAB * usable / len);
                let base = ends.iter().min().unwrap() - len;
                let last = ends.iter().map(|end| (end - base) % SLAB).max();
                assert_eq!(last, Some(usable));
            }
            pool.trim();
            assert_eq!(fill(&pool, 512).len(), CAP / SLAB * usable / 512);
        }
    }
}

#[test]
fn every_mode_has_guard_pages() {
    for &mode in &MODES[1..] {
        let classes = SizeClasses::explicit(&[LARGE]).unwrap();
        let builder = builder().size_classes(classes).mode(mode);
        let ends = fill(&builder.build().unwrap(), LARGE);
        assert_eq!(ends.len(), CAP / SLAB * 3, "{mode:?}");
    }
}

#[test]
fn typed_slab_with_guard_pages_holds_max_objects() {
    let slab = Slab::<[u8; LARGE]>::builder()
        .max_objects(4)
        .pool(|pool| pool.guard_pages(true))
        .build()
        .unwrap();
    assert_eq!(slab.capacity(), 6);
}

#[test]
fn overrun_past_the_end_of_a_slab_kills_the_process() {
    for slab in ["0", "1", "7"] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "overrun_past_the_end_of_a_slab", "--ignored"])
            .env("SLAB", slab)
            .status()
            .unwrap();
        assert_eq!(
            child.signal(),
            Some(11),
            "slab {slab}: SIGSEGV, but {child}"
        );
    }
}

#[test]
#[ignore = "ends the process; the test above runs it in one of its own"]
fn overrun_past_the_end_of_a_slab() {
    let slab: usize = std::env::var("SLAB").unwrap().parse().unwrap();
    // The first alone, then two and four at a time.
    let pool = builder().growth(Growth::Double).build().unwrap();
    let held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(4096).ok()).collect();
    let first = held.iter().map(|chunk| chunk.as_ptr()).min().unwrap();
    // SAFETY: the last byte before the guard; it belongs to a chunk that is held.
    let last = unsafe { first.add(slab * SLAB + SLAB - page_size() - 1) };
    // SAFETY: as above.
    unsafe { last.write(1) };
    // SAFETY: within the arena, but it belongs to nobody: the error that is to be found.
    let over = unsafe { last.add(1) };
    // SAFETY: as above.
    unsafe { over.as_ptr().write_volatile(1) };
}
