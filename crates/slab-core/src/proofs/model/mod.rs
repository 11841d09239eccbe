//! Models for loom: every interleaving of two or three threads over the code that production runs.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p slab-core --lib --release model`.
//!
//! Parts are here, whole pools in `pools`. Thread-locals are left out: loom's threads share one system
//! thread, so a model hands each of its threads a cache by name and enters one level below `local`.

pub(crate) mod membarrier;
pub(crate) mod pools;

use crate::class::SizeClasses;
use crate::class::geometry::{BATCH_MAX, ClassTable};
use crate::depot::Depot;
use crate::directory::ClassNumbers;
use crate::handle::shared::count;
use crate::pool::inner::ENDED;
use crate::pool::no_fork::end_pools;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::room::Room;
use crate::thread_cache::ThreadCache;
use crate::thread_cache::guard::{CLOSED, FENCED};
use crate::thread_cache::magazine::Tally;
use arrayvec::ArrayVec;
use loom::thread;
use std::io::Write as _;
use std::sync::Arc;

/// Preemptions that a model of three threads, or of a whole pool, explores; two bugs in three
/// need no more (Musuvathi and Qadeer, "Iterative context bounding", 2007). Models of two threads
/// over one structure are explored without a bound, except one that says why.
const BOUND: usize = 3;

/// Says on stderr how many executions there were; `ci/loom` adds them up.
pub(crate) fn model(bound: Option<usize>, f: impl Fn() + Sync + Send + 'static) {
    let executions = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = executions.clone();
    let f = move || {
        count.fetch_add(1, Ordering::Relaxed);
        f();
        // SAFETY: `f` has joined its threads and dropped its handles.
        unsafe { end_pools() };
        // What the model looks at is what it ended itself.
        ENDED.set(0);
    };
    let mut builder = loom::model::Builder::new();
    // `ci/loom --long` explores one preemption more.
    let extra = usize::from(std::env::var_os("SLAB_LOOM_EXTRA").is_some());
    builder.preemption_bound = bound.map(|bound| bound + extra);
    builder.max_branches = 10_000;
    builder.check(f);
    let name = std::thread::current().name().map(String::from);
    let bound = builder.preemption_bound;
    let said = writeln!(
        std::io::stderr(),
        "loom: {}: {} executions, {}",
        name.unwrap_or_default(),
        executions.load(Ordering::Relaxed),
        bound.map_or("no bound".into(), |bound| format!("{bound} preemptions"))
    );
    said.expect("stderr is open");
}

/// Runs this on another thread, with what both have.
fn beside<S: 'static, R: 'static>(
    shared: &Arc<S>,
    f: impl FnOnce(&S) -> R + 'static,
) -> thread::JoinHandle<R> {
    let shared = Arc::clone(shared);
    thread::spawn(move || f(&shared))
}

pub(crate) fn classes() -> ClassTable {
    ClassTable::new(sizes(), 8 << 10)
}

pub(crate) fn sizes() -> SizeClasses {
    SizeClasses::explicit(&[1024]).unwrap()
}

fn depot() -> Depot {
    depot_of(&classes())
}

fn depot_of(classes: &ClassTable) -> Depot {
    Depot::new(&mut Room::system(), classes, 2, 4).unwrap()
}

/// A batch of two chunks, recognisable.
fn batch(number: u32) -> [u32; BATCH_MAX] {
    [2 * number, 2 * number + 1]
}

/// Pops one batch, if there is one.
fn pop_batch(depot: &Depot, lane: u8) -> Vec<u32> {
    let mut units = Vec::new();
    depot.pop_batch(lane, 0, |batch| units.extend_from_slice(batch));
    units
}

/// Pops until the depot has nothing of the class.
fn drain(depot: &Depot, class: u8) -> Vec<u32> {
    let mut units = Vec::new();
    while depot.pop_batch(0, class, |batch| units.extend_from_slice(batch)) > 0 {}
    units.extend(depot.with_open(class, core::mem::take));
    units
}

/// Takes what is in the depot, as a sweep does.
fn take_all(depot: &Depot) -> Vec<u32> {
    let mut units = Vec::new();
    let detached = depot.detach(0, |open| units.extend_from_slice(open));
    depot.take_detached(0, detached, |batch| units.extend_from_slice(batch));
    units
}

fn assert_each_once(mut units: Vec<u32>, count: u32) {
    units.sort_unstable();
    assert_eq!(units, (0..count).collect::<Vec<_>>());
}

#[test]
fn model_depot_push_and_pop() {
    model(None, || {
        let depot = Arc::new(depot());
        depot.push_batch(0, 0, &batch(0));
        let other = beside(&depot, |depot| pop_batch(depot, 0));
        depot.push_batch(0, 0, &batch(1));
        let mut units = other.join().unwrap();
        units.extend(drain(&depot, 0));
        assert_each_once(units, 4);
    });
}

/// Two threads exchange batches, each in its own lane and in the other's.
#[test]
fn model_depot_lanes() {
    model(None, || {
        let depot = Arc::new(depot());
        depot.open_lane(0..1);
        depot.push_batch(0, 0, &batch(0));
        let other = beside(&depot, |depot| {
            let units = pop_batch(depot, 1);
            depot.push_batch(1, 0, &batch(1));
            units
        });
        let mut units = pop_batch(&depot, 0);
        depot.push_batch(0, 0, &batch(2));
        units.extend(other.join().unwrap());
        units.extend(drain(&depot, 0));
        assert_each_once(units, 6);
    });
}

/// Trap: ABA on the depot head (argobots #178; rust-lang/rust #121950, with provenance, of which an
/// index, as here, has none). One thread is inside a pop while another pops twice and pushes the first
/// block back. The tag wraps at its first change (`FIRST_TAG`), so wrapping does no harm. A tag so small
/// that it comes back within this model would: one of one bit (planted: `depot-small-tag`).
#[test]
fn model_depot_head_that_comes_back() {
    model(None, || {
        let depot = Arc::new(depot());
        depot.push_batch(0, 0, &batch(0));
        depot.push_batch(0, 0, &batch(1));
        let other = beside(&depot, |depot| {
            let (first, second) = (pop_batch(depot, 0), pop_batch(depot, 0));
            if !first.is_empty() {
                depot.push_batch(0, 0, &first);
            }
            second
        });
        let mut units = pop_batch(&depot, 0);
        units.extend(other.join().unwrap());
        units.extend(drain(&depot, 0));
        assert_each_once(units, 4);
    });
}

/// As before, but the other thread takes the whole stack, then pushes the upper block back at the tag
/// that it would have if taking had reset the tag; the lower one goes to another class.
#[test]
fn model_depot_head_that_comes_back_after_all_was_taken() {
    model(None, || {
        let sizes = SizeClasses::explicit(&[512, 1024]).unwrap();
        let depot = Arc::new(depot_of(&ClassTable::new(sizes, 8 << 10)));
        depot.push_batch(0, 0, &batch(0));
        depot.push_batch(0, 0, &batch(1));
        let other = beside(&depot, |depot| {
            let mut units = take_all(depot);
            if units.len() == 2 * BATCH_MAX {
                depot.push_batch(0, 1, &batch(0));
                depot.push_batch(0, 0, &batch(1));
                units.clear();
            }
            units
        });
        let mut units = pop_batch(&depot, 0);
        units.extend(other.join().unwrap());
        units.extend(drain(&depot, 0));
        units.extend(drain(&depot, 1));
        assert_each_once(units, 4);
    });
}

#[test]
fn model_depot_three_threads() {
    model(Some(BOUND), || {
        let depot = Arc::new(depot());
        depot.push_batch(0, 0, &batch(0));
        let threads: Vec<_> = (1..3)
            .map(|number| {
                let depot = depot.clone();
                thread::spawn(move || {
                    let units = pop_batch(&depot, 0);
                    depot.push_batch(0, 0, &batch(number));
                    units
                })
            })
            .collect();
        let mut units = Vec::new();
        for thread in threads {
            units.extend(thread.join().unwrap());
        }
        units.extend(drain(&depot, 0));
        assert_each_once(units, 6);
    });
}

#[test]
fn model_depot_taken_whole_while_others_push_and_pop() {
    model(None, || {
        let depot = Arc::new(depot());
        depot.push_batch(0, 0, &batch(0));
        depot.push_batch(0, 0, &batch(1));
        let other = beside(&depot, |depot| {
            let units = pop_batch(depot, 0);
            depot.put(0, &[6]);
            depot.push_batch(0, 0, &batch(2));
            units
        });
        let mut units = take_all(&depot);
        units.extend(other.join().unwrap());
        units.extend(drain(&depot, 0));
        assert_each_once(units, 7);
    });
}

fn thread_cache() -> Arc<ThreadCache> {
    Arc::new(ThreadCache::apart(&classes(), 0, 0).unwrap())
}

/// Takes what is in the magazine, as a reclaimer does.
fn take(cache: &ThreadCache) -> Vec<u32> {
    let magazine = cache.magazine(0);
    magazine.shut();
    crate::sync::heavy_barrier();
    magazine.guard.wait_idle();
    let mut out = Vec::new();
    magazine.take(|units| out.extend_from_slice(units));
    out
}

/// Trap: the asymmetric guard losing a race with its owner. The owner frees and allocates by the
/// fast path while another thread empties its magazine. Two frees: a taker that sees what the second
/// announces has to see what the first wrote.
#[test]
fn model_guard_owner_against_taker() {
    model(None, || {
        let cache = thread_cache();
        assert!(cache.magazine(0).try_push(0));
        let taker = beside(&cache, take);
        let mut units = Vec::new();
        let magazine = cache.magazine(0);
        for unit in [1, 2] {
            if !magazine.try_push(unit) {
                units.push(unit);
            }
        }
        units.extend(magazine.try_pop());
        units.extend(taker.join().unwrap());
        magazine.acknowledge();
        while let Some(unit) = magazine.try_pop() {
            units.push(unit);
        }
        assert_each_once(units, 3);
    });
}

/// As before, by whole batches.
#[test]
fn model_guard_batches_against_taker() {
    model(None, || {
        let cache = thread_cache();
        assert!(cache.magazine(0).try_push_many(&[0, 1]));
        let taker = beside(&cache, take);
        let magazine = cache.magazine(0);
        let mut units = ArrayVec::<u32, 8>::new();
        magazine.try_pop_many(1, &mut units);
        if !magazine.try_push_many(&[2, 3]) {
            units.extend([2, 3]);
        }
        units.extend(taker.join().unwrap());
        magazine.acknowledge();
        while magazine.try_pop_many(4, &mut units) {}
        assert_each_once(units.to_vec(), 4);
    });
}

/// As on a system without `membarrier`: the owner goes through the slow path only, which has its own fence.
#[test]
fn model_guard_without_membarrier() {
    model(None, || {
        let cache = thread_cache();
        let magazine = cache.magazine(0);
        magazine.guard.raise(FENCED);
        assert!(!magazine.try_push(0), "the fast path is shut");
        let push = |unit| {
            let entered = magazine.guard.enter_slow();
            if entered {
                assert!(magazine.push(unit), "room for three");
                magazine.guard.leave_slow();
            }
            entered
        };
        assert!(push(0));
        let taker = beside(&cache, take);
        let mut units = Vec::new();
        if !push(1) {
            units.push(1);
        }
        units.extend(taker.join().unwrap());
        magazine.acknowledge();
        assert!(magazine.guard.enter_slow());
        units.extend(std::iter::from_fn(|| magazine.pop()));
        magazine.guard.leave_slow();
        assert_each_once(units, 2);
    });
}

/// The statistics are read while the owner goes on, on both its paths: they see no impossible length, and the
/// allocations, which are computed from what they see, do not fall. Nobody takes, so nobody issues a barrier.
#[test]
fn model_guard_read_while_the_owner_goes_on() {
    for slowly in [false, true] {
        model(None, move || {
            let _no_barriers = membarrier::install(None);
            let cache = thread_cache();
            let reader = beside(&cache, |cache| {
                let allocated = || {
                    let (frees, len) = cache.magazine(0).guard.puts_and_len();
                    assert!(frees <= 2 && len <= 2, "{frees} freed, {len} there");
                    frees - len as u64
                };
                let before = allocated();
                assert!(before <= allocated());
            });
            let magazine = cache.magazine(0);
            if slowly {
                assert!(magazine.guard.enter_slow());
                assert!(magazine.push(0));
                assert_eq!(magazine.pop(), Some(0));
                assert!(magazine.push(1));
                magazine.guard.leave_slow();
            } else {
                assert!(magazine.try_push(0));
                assert_eq!(magazine.try_pop(), Some(0));
                assert!(magazine.try_push(1));
            }
            reader.join().unwrap();
        });
    }
}

/// The statistics are read while the owner moves batches, one to the depot or one that was taken, and one from the
/// depot: of what nobody freed here, nothing is counted twice, which would make it a remote free.
#[test]
fn model_magazine_tallied_while_the_owner_moves_batches() {
    for was_taken in [false, true] {
        model(None, move || {
            let _no_barriers = membarrier::install(None);
            let cache = thread_cache();
            let magazine = cache.magazine(0);
            assert!(magazine.guard.enter_slow());
            assert_eq!(magazine.refill(&[0, 1]), 2);
            magazine.guard.leave_slow();
            if was_taken {
                magazine.shut();
                magazine.take(|_| ());
            }
            let reader = beside(&cache, move |cache| {
                let mut tally = Tally::default();
                cache.magazine(0).add_to(&mut tally);
                assert_eq!(tally.frees_remote, 0, "{tally:?}");
                assert!(tally.cached <= if was_taken { 1 } else { 2 }, "{tally:?}");
            });
            magazine.acknowledge();
            assert!(magazine.guard.enter_slow());
            if !was_taken {
                magazine.take_bottom(1, |_| ());
            }
            assert_eq!(magazine.refill(&[2]), 1);
            magazine.guard.leave_slow();
            reader.join().unwrap();
        });
    }
}

/// A magazine is emptied twice, while its owner acknowledges the first time under the lock that takers
/// have, and goes on. With a bound: both threads go round twice, and without one this takes too long.
#[test]
fn model_guard_owner_acknowledges_between_takers() {
    model(Some(BOUND), || {
        let cache = thread_cache();
        let lock = Arc::new(crate::sync::Mutex::new(()));
        assert!(cache.magazine(0).try_push(0));
        let taker = {
            let (cache, lock) = (cache.clone(), lock.clone());
            thread::spawn(move || {
                let mut units = Vec::new();
                for _ in 0..2 {
                    let _gates = lock.lock();
                    units.extend(take(&cache));
                }
                units
            })
        };
        let magazine = cache.magazine(0);
        let mut units = Vec::new();
        for unit in [1, 2] {
            if magazine.try_push(unit) {
                continue;
            }
            if magazine.was_taken() {
                let _gates = lock.lock();
                magazine.acknowledge();
            }
            if !magazine.guard.enter_slow() {
                units.push(unit);
                continue;
            }
            assert!(magazine.push(unit), "room for three");
            magazine.guard.leave_slow();
        }
        units.extend(taker.join().unwrap());
        magazine.acknowledge();
        while let Some(unit) = magazine.try_pop() {
            units.push(unit);
        }
        assert_each_once(units, 3);
    });
}

/// A pool ends, and another gets its place in the threads' racks, where a thread still has a magazine of the
/// first: that one is shut, and can be opened anew. (The end of a pool issues a barrier, too; here the number alone has
/// to bring the news, and the owner has no fence, as with `membarrier`.)
#[test]
fn model_number_of_a_closed_pool_goes_to_another() {
    std::thread_local!(static SAME: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    model(None, || {
        let _no_barriers = membarrier::install(None);
        let numbers = ClassNumbers::take(1, true).unwrap();
        let number = numbers.of(0);
        assert_ne!(number, 0, "that one is nobody's");
        let cache = thread_cache();
        assert!(cache.magazine(0).try_push(0));
        let closer = beside(&cache, |cache| {
            cache.magazine(0).guard.raise(CLOSED);
            drop(numbers);
        });
        let next = ClassNumbers::take(1, true).unwrap();
        assert_ne!(next.of(0), 0);
        let is_same = next.of(0) == number;
        let magazine = cache.magazine(0);
        if is_same {
            SAME.set(true);
            assert_eq!(magazine.try_pop(), None, "it is another pool's");
            assert!(!magazine.try_push(1), "it would be lost");
            assert!(!magazine.guard.enter_slow());
            magazine.open(2, 0, 0);
        }
        closer.join().unwrap();
        // The former owner has done all that it does before the number is another's.
        assert_eq!(magazine.try_push(2), is_same);
        assert_eq!(magazine.try_pop(), is_same.then_some(2));
    });
    assert!(SAME.replace(false), "one got the other's");
}

#[test]
fn model_count_two_drops_free_once() {
    for lent in [[false, false], [false, true], [true, true]] {
        model(None, move || {
            let extra = Arc::new(AtomicU32::new(1));
            let other = beside(&extra, move |extra| count::release(extra, lent[0]));
            let here = count::release(&extra, lent[1]);
            assert!(here != other.join().unwrap(), "exactly one frees");
            assert_eq!(extra.load(Ordering::Relaxed), 0, "ready for the next owner");
        });
    }
}

/// What one owner wrote before it gave up its reference is seen by the one that finds itself alone. (The one
/// that gives up does not check before: loom would not let the other check in between.)
#[test]
fn model_count_unique_sees_what_others_did() {
    std::thread_local!(static UNIQUE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    model(None, || {
        let shared = Arc::new((AtomicU32::new(1), loom::cell::UnsafeCell::new(0)));
        let other = beside(&shared, |shared| {
            // SAFETY: this owner alone writes before it gives up its reference.
            shared.1.with_mut(|value| unsafe { *value = 7 });
            if count::release(&shared.0, true) {
                // SAFETY: the last owner.
                shared.1.with_mut(|value| unsafe { *value += 1 });
            }
        });
        let unique = count::is_unique(&shared.0);
        if unique {
            UNIQUE.set(true);
        }
        if unique || count::release(&shared.0, true) {
            // SAFETY: alone, so the other's write has happened before.
            shared.1.with(|value| assert_eq!(unsafe { *value }, 7));
        }
        other.join().unwrap();
    });
    assert!(UNIQUE.replace(false), "one found itself alone");
}

#[test]
fn model_count_clone_and_bulk_release() {
    model(Some(BOUND), || {
        let extra = Arc::new(AtomicU32::new(0));
        count::add(&extra, 2);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let extra = extra.clone();
                thread::spawn(move || {
                    count::add(&extra, 1);
                    u32::from(count::release(&extra, true))
                        + u32::from(count::release(&extra, false))
                })
            })
            .collect();
        let mut freed = u32::from(count::release(&extra, false));
        for thread in threads {
            freed += thread.join().unwrap();
        }
        assert_eq!(freed, 1);
        assert_eq!(extra.load(Ordering::Relaxed), 0);
    });
}
