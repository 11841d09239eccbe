//! Random programs over a typed slab, in each mode: every value is dropped exactly once, keeps what
//! was put in for as long as it lives, and is found again by its pointer.

use proptest::prelude::*;
use slab_core::{AllocError, Mode, Slab, SlabBox};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

struct Programs;

/// Values of a size that is no power of two, so that there is padding behind each.
struct Value {
    stamp: u64,
    heap: Box<u64>,
    filler: [u8; 1000],
    drops: Arc<AtomicU64>,
}

impl Value {
    fn new(stamp: u64, drops: &Arc<AtomicU64>) -> Self {
        Self {
            stamp,
            heap: Box::new(stamp),
            filler: [stamp as u8; 1000],
            drops: Arc::clone(drops),
        }
    }

    fn check(&self, stamp: u64) {
        assert_eq!((self.stamp, *self.heap), (stamp, stamp));
        assert_eq!(self.filler, [stamp as u8; 1000]);
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.check(self.stamp);
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

type Boxed = SlabBox<Value, Programs>;

enum Held {
    Boxed(Boxed),
    Pinned(Pin<Boxed>),
    Raw(Pointer),
}

struct Pointer(NonNull<Value>);
// SAFETY: the pointer stands for a box of a value that is `Send`.
unsafe impl Send for Pointer {}

impl Held {
    fn value(&self) -> &Value {
        match self {
            Self::Boxed(value) => value,
            Self::Pinned(value) => value,
            // SAFETY: the value was not given up since `into_raw`.
            Self::Raw(at) => unsafe { at.0.as_ref() },
        }
    }

    fn free(self, slab: &Slab<Value, Programs>) {
        match self {
            Self::Boxed(value) => drop(value),
            Self::Pinned(value) => drop(value),
            // SAFETY: came from `into_raw`, and is taken back once, here.
            Self::Raw(at) => drop(unsafe { slab.box_from_raw(at.0) }.expect("a value of the slab")),
        }
    }
}

fn run(mode: Mode, zero_on_free: bool, steps: &[(u8, u8)]) {
    let drops = Arc::new(AtomicU64::new(0));
    let slab = Slab::<Value, Programs>::builder()
        .max_objects(100)
        .pool(|pool| pool.mode(mode).zero_on_free(zero_on_free))
        .build()
        .unwrap();
    let mut held: Vec<(u64, Held)> = Vec::new();
    let (mut made, mut gone) = (0, 0);
    for &(what, operand) in steps {
        let index = usize::from(operand) % held.len().max(1);
        match what % 16 {
            // As many as the operand says: a few steps fill the slab.
            0..=4 => {
                for _ in 0..=operand % 40 {
                    let value = || Value::new(made, &drops);
                    let new = match what % 16 {
                        0 | 1 => slab.try_insert(value()).map_err(|refused| {
                            refused.value.check(made);
                            gone += 1;
                            refused.error
                        }),
                        2 => slab.try_insert_with(value),
                        3 => slab.try_uninit().map(|mut place| {
                            place.write(value());
                            // SAFETY: just written.
                            unsafe { place.assume_init() }
                        }),
                        _ => slab.alloc_raw().map(|at| {
                            // SAFETY: the pointer is to a place for a value.
                            unsafe { at.write(value()) };
                            // SAFETY: of this slab, initialised, and not used as a pointer again.
                            unsafe { slab.box_from_raw(at) }.expect("a value of the slab")
                        }),
                    };
                    match new {
                        Ok(value) => held.push((made, Held::Boxed(value))),
                        Err(error) => {
                            assert!(matches!(error, AllocError::Exhausted { .. }));
                            assert_eq!(held.len(), slab.capacity(), "refused too early");
                        }
                    }
                    made += 1;
                }
            }
            _ if held.is_empty() => {}
            5 | 6 => {
                held.swap_remove(index).1.free(&slab);
                gone += 1;
            }
            7 => {
                let freed: Vec<_> = held.drain(index..).collect();
                gone += freed.len() as u64;
                let slab = slab.clone();
                let work = move || freed.into_iter().for_each(|(_, one)| one.free(&slab));
                thread::spawn(work).join().unwrap();
            }
            8 => {
                match held.swap_remove(index) {
                    (stamp, Held::Boxed(value)) => SlabBox::into_inner(value).check(stamp),
                    (_, other) => other.free(&slab),
                }
                gone += 1;
            }
            9..=11 => {
                let (stamp, one) = held.swap_remove(index);
                let one = match one {
                    Held::Boxed(value) if what % 16 == 9 => Held::Pinned(SlabBox::into_pin(value)),
                    Held::Boxed(value) => Held::Raw(Pointer(SlabBox::into_raw(value))),
                    // SAFETY: came from `into_raw`, and is taken back once, here.
                    Held::Raw(at) => Held::Boxed(unsafe { slab.box_from_raw(at.0) }.unwrap()),
                    pinned => pinned,
                };
                held.push((stamp, one));
            }
            12 => slab.pool().flush_thread_cache(),
            13 => {
                slab.pool().trim();
            }
            _ => held
                .iter()
                .for_each(|(stamp, one)| one.value().check(*stamp)),
        }
        let stats = slab.pool().stats();
        assert_eq!(stats.in_use(), held.len() as u64);
        assert_eq!(drops.load(Ordering::Relaxed), gone, "dropped once each");
    }
    for (stamp, one) in &held {
        one.value().check(*stamp);
    }
    // Values outlive their slab, but pointers can only be taken back while it exists.
    let (raw, others): (Vec<_>, Vec<_>) = held
        .into_iter()
        .partition(|(_, one)| matches!(one, Held::Raw(_)));
    raw.into_iter().for_each(|(_, one)| one.free(&slab));
    drop(slab);
    drop(others);
    // Values that found no place were dropped too, unless they were never made.
    assert!(drops.load(Ordering::Relaxed) <= made);
    assert_eq!(Arc::strong_count(&drops), 1, "every value is gone");
}

fn modes() -> impl Strategy<Value = Mode> {
    prop::sample::select(vec![
        Mode::ThreadCached,
        Mode::DepotOnly,
        Mode::Ring,
        Mode::Locked,
    ])
}

fn steps() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec(any::<(u8, u8)>(), 1..if cfg!(miri) { 20 } else { 100 })
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn a_typed_slab_drops_every_value_once(mode in modes(), zero: bool, steps in steps()) {
        run(mode, zero, &steps);
    }
}
