//! Typed slabs: what the owner of a value may rely on.
#![cfg(all(feature = "std", not(loom)))]

use slab_core::{
    AllocError, ConfigError, GlobalBox, GlobalTag, Growth, MAX_CHUNK_ALIGN, MAX_CHUNK_BYTES, Slab,
    SlabBox, StaticSlab,
};
use std::borrow::BorrowMut;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt::{Debug, Display, Pointer};
use std::future::Future;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn slab<T>(max_objects: usize) -> Slab<T> {
    Slab::builder().max_objects(max_objects).build().unwrap()
}

#[test]
fn handles_are_small() {
    struct Rx;
    impl GlobalTag<u64> for Rx {
        fn slab() -> &'static StaticSlab<u64, Rx> {
            static SLAB: StaticSlab<u64, Rx> = StaticSlab::new("rx", 1);
            &SLAB
        }
    }
    assert_eq!(size_of::<Option<SlabBox<[u8; 4096]>>>(), 16);
    assert_eq!(size_of::<Option<GlobalBox<u64, Rx>>>(), 8);
}

#[test]
fn an_owner_is_compared_hashed_and_shown_by_its_value() {
    struct Names;
    impl GlobalTag<String> for Names {
        fn slab() -> &'static StaticSlab<String, Names> {
            static SLAB: StaticSlab<String, Names> = StaticSlab::new("names", 10);
            &SLAB
        }
    }
    fn check<B>(mut one: B, other: B)
    where
        B: AsRef<String>
            + AsMut<String>
            + BorrowMut<String>
            + Ord
            + Hash
            + Debug
            + Display
            + Pointer,
    {
        assert_eq!(one.cmp(&other), one.as_ref().cmp(other.as_ref()));
        assert_eq!(one.partial_cmp(&other), Some(std::cmp::Ordering::Less));
        assert!(one != other);
        assert_eq!(format!("{one} {one:?}"), "ann \"ann\"");
        assert_eq!(format!("{one:p}"), format!("{:p}", one.as_ref()));
        one.as_mut().clear();
        BorrowMut::<String>::borrow_mut(&mut one).push_str("bob");
        assert!(one == other);
        // By its value, as `Borrow` promises.
        let name = other.as_ref();
        assert!(HashSet::from([one]).contains::<String>(name));
    }
    let slab = Slab::<String, Names>::global().unwrap();
    let insert = |name: &str| slab.try_insert(name.to_owned()).unwrap();
    check(insert("ann"), insert("bob"));
    let insert = |name| SlabBox::into_global(insert(name)).unwrap();
    check(insert("ann"), insert("bob"));
    assert_eq!(slab.pool().stats().in_use(), 0);
}

#[test]
fn a_value_is_dropped_once_whichever_way_it_leaves() {
    let drops = Arc::new(AtomicUsize::new(0));
    let slab = slab::<Counted>(100);
    let insert = || slab.try_insert(Counted(Arc::clone(&drops))).unwrap();
    let count = |expected: usize| {
        assert_eq!(drops.load(Ordering::Relaxed), expected);
        slab.pool().stats().in_use()
    };
    drop(insert());
    assert_eq!(count(1), 0);
    let inner = SlabBox::into_inner(insert());
    assert_eq!(count(1), 0, "out of the slab, but alive");
    drop(inner);
    assert_eq!(count(2), 0);
    let raw = SlabBox::into_raw(insert());
    assert_eq!(count(2), 1);
    // SAFETY: of this slab, and given up by `into_raw`.
    drop(unsafe { slab.box_from_raw(raw) }.unwrap());
    assert_eq!(count(3), 0);
    let raw = SlabBox::into_raw(insert());
    // SAFETY: the value is moved out, once.
    let moved = unsafe { raw.read() };
    // SAFETY: as above; the memory only.
    unsafe { slab.free_raw(raw) }.unwrap();
    assert_eq!(count(3), 0);
    drop(moved);
    assert_eq!(count(4), 0);
    let boxed = insert();
    let at = &raw const *boxed;
    let pinned = Pin::from(boxed);
    assert!(ptr::eq(at, &raw const *pinned), "it has moved");
    assert_eq!(count(4), 1);
    drop(pinned);
    assert_eq!(count(5), 0);
    let uninit = slab.try_uninit().unwrap();
    assert_eq!(count(5), 1);
    drop(uninit);
    assert_eq!(count(5), 0);
}

#[test]
fn a_value_of_a_global_handle_is_dropped_once() {
    struct Rx;
    impl GlobalTag<Counted> for Rx {
        fn slab() -> &'static StaticSlab<Counted, Rx> {
            static SLAB: StaticSlab<Counted, Rx> = StaticSlab::new("counted", 100);
            &SLAB
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let slab = Slab::<Counted, Rx>::global().unwrap();
    let insert = || {
        let boxed = slab.try_insert(Counted(Arc::clone(&drops))).unwrap();
        SlabBox::into_global(boxed).ok().unwrap()
    };
    drop(insert());
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    let boxed = [GlobalBox::into_slab_box(insert()), insert().into()];
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    drop(boxed);
    assert_eq!(drops.load(Ordering::Relaxed), 3);
    assert_eq!(slab.pool().stats().in_use(), 0);
}

#[test]
fn a_pointer_of_another_slab_is_refused() {
    let (mine, other) = (slab::<[u64; 12]>(10), slab::<[u64; 12]>(10));
    let raw = mine.alloc_raw().unwrap();
    // SAFETY: of another slab, so nothing is promised.
    assert!(unsafe { other.free_raw(raw) }.is_err());
    let inside = raw.cast::<u64>().map_addr(|at| at.checked_add(64).unwrap());
    // SAFETY: not where a value begins, so nothing is promised.
    assert!(unsafe { mine.free_raw(inside.cast()) }.is_err());
    assert_eq!(mine.pool().stats().in_use(), 1);
    // SAFETY: of this slab, and not used again.
    unsafe { mine.free_raw(raw) }.unwrap();
    assert_eq!(mine.pool().stats().in_use(), 0);
}

#[test]
fn a_panic_leaks_no_memory() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in the destructor");
        }
    }
    let slab = slab::<Bomb>(10);
    let made = catch_unwind(AssertUnwindSafe(|| {
        slab.try_insert_with(|| panic!("in the constructor"))
    }));
    assert!(made.is_err());
    assert_eq!(slab.pool().stats().in_use(), 0);
    let bomb = slab.try_insert(Bomb).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(bomb))).is_err());
    assert_eq!(slab.pool().stats().in_use(), 0);
}

#[test]
fn insert_with_makes_the_value_only_when_there_is_room() {
    let slab = slab::<[u8; 16384]>(1);
    let mut held: Vec<_> = (0..slab.capacity())
        .map(|_| slab.try_insert([0; 16384]).unwrap())
        .collect();
    let made = &Cell::new(0);
    let insert = |number| {
        let make = move || {
            made.set(number);
            [number; 16384]
        };
        Box::pin(slab.insert_with(make))
    };
    let mut cx = Context::from_waker(Waker::noop());
    let (mut given_up, mut served) = (insert(1), insert(2));
    assert!(given_up.as_mut().poll(&mut cx).is_pending());
    assert!(served.as_mut().poll(&mut cx).is_pending());
    // Set aside for the first waiter, which does not take it.
    drop(held.pop());
    assert!(served.as_mut().poll(&mut cx).is_pending(), "in turn");
    drop(given_up);
    assert_eq!(made.get(), 0);
    let Poll::Ready(Ok(value)) = served.as_mut().poll(&mut cx) else {
        panic!("there is room");
    };
    assert_eq!((made.get(), value[16383]), (2, 2));
    assert_eq!(slab.pool().wait_times(0).unwrap().count(), 2);
    drop(value);
    let mut panics = Box::pin(slab.insert_with(|| panic!("in the constructor")));
    let poll = AssertUnwindSafe(|| panics.as_mut().poll(&mut cx).is_pending());
    assert!(catch_unwind(poll).is_err());
    assert_eq!(slab.pool().stats().in_use(), held.len() as u64);
}

#[test]
fn a_value_that_waits_is_inserted_once_or_dropped_with_its_future() {
    let drops = Arc::new(AtomicUsize::new(0));
    let dropped = || drops.load(Ordering::Relaxed);
    let slab = slab::<(Counted, [u8; 16000])>(1);
    let value = || (Counted(Arc::clone(&drops)), [7; 16000]);
    let mut held: Vec<_> = (0..slab.capacity())
        .map(|_| slab.try_insert(value()).ok().unwrap())
        .collect();
    let mut cx = Context::from_waker(Waker::noop());
    let (mut given_up, mut served) = (
        Box::pin(slab.insert(value())),
        Box::pin(slab.insert(value())),
    );
    assert!(given_up.as_mut().poll(&mut cx).is_pending());
    assert!(served.as_mut().poll(&mut cx).is_pending());
    drop(held.pop());
    assert_eq!(dropped(), 1);
    assert!(served.as_mut().poll(&mut cx).is_pending(), "in turn");
    drop(given_up);
    assert_eq!(dropped(), 2);
    let Poll::Ready(Ok(inserted)) = served.as_mut().poll(&mut cx) else {
        panic!("there is room");
    };
    assert_eq!(inserted.1, [7; 16000]);
    drop(served);
    assert_eq!(dropped(), 2);
    drop(inserted);
    assert_eq!(dropped(), 3);
    drop(Box::pin(slab.insert(value())));
    assert_eq!(dropped(), 4, "it was never polled");
    assert_eq!(slab.pool().stats().in_use(), held.len() as u64);
}

#[test]
#[cfg_attr(miri, ignore = "65 536 waiters")]
fn an_insert_that_may_not_wait_gives_the_value_back() {
    let slab = slab::<[u8; 16384]>(1);
    let _held: Vec<_> = (0..slab.capacity())
        .map(|_| slab.try_insert([0; 16384]).unwrap())
        .collect();
    let mut cx = Context::from_waker(Waker::noop());
    let limit = 1 << 16;
    let mut waiters: Vec<_> = (0..limit).map(|_| slab.pool().alloc(1)).collect();
    for waiter in &mut waiters {
        assert!(Pin::new(waiter).poll(&mut cx).is_pending());
    }
    let mut insert = Box::pin(slab.insert([9; 16384]));
    let Poll::Ready(Err(refused)) = insert.as_mut().poll(&mut cx) else {
        panic!("too many wait already");
    };
    assert_eq!(refused.error, AllocError::TooManyWaiters { limit });
    assert_eq!(refused.value, [9; 16384]);
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn resident_bytes_come_with_the_values_and_go_with_a_trim() {
    let slab = slab::<[u8; 65536]>(64);
    assert_eq!(slab.pool().resident_bytes(), Some(0));
    let make = || slab.try_insert_with(|| [1; 65536]).unwrap();
    let values: Vec<_> = (0..slab.capacity()).map(|_| make()).collect();
    assert_eq!(slab.pool().resident_bytes(), Some(values.len() * 65536));
    drop(values);
    slab.pool().trim();
    assert_eq!(slab.pool().resident_bytes(), Some(0));
}

#[test]
fn builder_passes_options_to_its_pool() {
    let slab = Slab::<[u8; 64]>::builder()
        .max_objects(8 << 10)
        .pool(|pool| pool.growth(Growth::Custom(|_| 4)).max_memory(1))
        .build()
        .unwrap();
    drop(slab.try_insert([0; 64]).unwrap());
    let stats = slab.pool().stats();
    assert_eq!(stats.committed_bytes, 4 * stats.slab_bytes);
}

#[test]
fn a_full_slab_gives_the_value_back() {
    // Large ones, so that a slab is soon full.
    type Large = (String, [u64; 2000]);
    let slab = slab::<Large>(1);
    let large = |name: &str| (name.to_owned(), [7; 2000]);
    let held: Vec<_> = (0..slab.capacity())
        .map(|i| slab.try_insert(large(&i.to_string())).unwrap())
        .collect();
    let refused = slab.try_insert(large("one too many")).unwrap_err();
    let chunk_bytes = size_of::<Large>().next_multiple_of(64);
    assert_eq!(refused.error, AllocError::Exhausted { chunk_bytes });
    assert_eq!(refused.value.0, "one too many");
    let made = slab.try_insert_with(|| unreachable!("there is no memory for it"));
    assert_eq!(made.unwrap_err(), refused.error);
    // Nobody else's memory was given away meanwhile.
    assert!(
        held.iter()
            .zip(0..)
            .all(|(held, i): (_, usize)| held.0 == i.to_string())
    );
    drop(held);
    assert!(slab.try_insert(refused.value).is_ok());
}

#[test]
fn capacity_is_max_objects_rounded_up_to_whole_slabs() {
    let some = [1, 1023, 1024, 1025, 100_000];
    for &objects in &some[..if cfg!(miri) { 4 } else { 5 }] {
        let capacity = slab::<[u8; 64]>(objects).capacity();
        assert!(
            (objects..objects + 1024).contains(&capacity),
            "{objects} {capacity}"
        );
        assert_eq!(capacity % 1024, 0);
    }
    let error = Slab::<u8>::builder().max_objects(0).build().unwrap_err();
    assert_eq!(error, ConfigError::NoObjects);
    assert!(error.to_string().contains("max_objects is 0"), "{error}");
    // Values of which not one fits into the default cap.
    type TooLarge = [u8; (64 << 20) + 1];
    let error = Slab::<TooLarge>::builder().build().unwrap_err();
    assert!(
        matches!(error, ConfigError::ClassTooLarge { .. }),
        "{error}"
    );
    let error = Slab::<u8>::builder()
        .max_objects(usize::MAX)
        .build()
        .unwrap_err();
    assert!(matches!(error, ConfigError::CapTooLarge { .. }), "{error}");
}

#[test]
#[cfg_attr(miri, ignore = "values of 16 MiB")]
fn any_type_is_aligned_or_refused() {
    fn check<T>(value: impl Fn() -> T) {
        let slab = slab::<T>(20);
        let held: Vec<_> = (0..20)
            .map(|_| slab.try_insert_with(&value).unwrap())
            .collect();
        let mut at: Vec<usize> = held
            .iter()
            .map(|held| {
                let at: *const T = &**held;
                assert!(at.is_aligned());
                at.addr()
            })
            .collect();
        at.sort_unstable();
        assert!(
            at.windows(2)
                .all(|pair| pair[1] - pair[0] >= size_of::<T>().max(1))
        );
    }
    #[repr(align(1024))]
    struct Over(#[expect(dead_code, reason = "stands for contents")] u8);
    #[repr(align(4096))]
    struct Page;
    #[repr(align(8192))]
    struct TooMuch;
    check(|| ());
    check(|| 0_u8);
    check(|| [0_u16; 777]);
    check(|| Over(1));
    check(|| Page);
    assert_eq!(
        Slab::<TooMuch>::builder().build().unwrap_err(),
        ConfigError::BadAlignment {
            align: 2 * MAX_CHUNK_ALIGN
        }
    );
    assert_eq!(
        Slab::<[u8; MAX_CHUNK_BYTES + 1]>::builder()
            .build()
            .unwrap_err(),
        ConfigError::ClassTooLarge {
            bytes: MAX_CHUNK_BYTES + 64
        }
    );
    let largest = Slab::<[u8; MAX_CHUNK_BYTES]>::builder()
        .max_objects(4)
        .build()
        .unwrap();
    let mut value = largest.try_uninit().unwrap();
    // SAFETY: the last byte of the value.
    let last = unsafe { value.as_mut_ptr().cast::<u8>().add(MAX_CHUNK_BYTES - 1) };
    // SAFETY: within the value.
    unsafe { last.write(1) };
}

#[test]
fn values_outlive_their_slab_and_cross_threads() {
    let slab = slab::<(usize, String)>(2000);
    let count = if cfg!(miri) { 20 } else { 1000 };
    let held: Vec<_> = (0..count)
        .map(|i| slab.try_insert((i, format!("value {i}"))).unwrap())
        .collect();
    drop(slab);
    std::thread::spawn(move || {
        for (i, value) in held.into_iter().enumerate() {
            assert_eq!(value.0, i);
            assert_eq!(value.1, format!("value {i}"));
        }
    })
    .join()
    .unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "leaks, as it should")]
fn leaked_value_keeps_its_memory() {
    let slab = slab::<Counted>(100);
    let drops = Arc::new(AtomicUsize::new(0));
    let leaked = SlabBox::leak(slab.try_insert(Counted(Arc::clone(&drops))).unwrap());
    let raw = slab.alloc_raw().unwrap();
    assert_eq!(slab.pool().stats().in_use(), 2);
    drop(slab);
    leaked.0.fetch_add(5, Ordering::Relaxed);
    // SAFETY: valid for one value for as long as it is not freed.
    unsafe { raw.write(Counted(Arc::clone(&drops))) };
    assert_eq!(drops.load(Ordering::Relaxed), 5);
}

#[test]
fn a_destructor_may_use_the_slab() {
    struct List {
        slab: Slab<List>,
        next: Option<SlabBox<List>>,
        spawn: bool,
    }
    impl Drop for List {
        fn drop(&mut self) {
            if self.spawn {
                let child = List {
                    slab: self.slab.clone(),
                    next: self.next.take(),
                    spawn: false,
                };
                drop(
                    self.slab
                        .try_insert(child)
                        .unwrap_or_else(|error| panic!("{error}")),
                );
            }
        }
    }
    const LEN: u64 = if cfg!(miri) { 10 } else { 50 };
    let slab = slab::<List>(500);
    let mut head = None;
    for _ in 0..LEN {
        let next = List {
            slab: slab.clone(),
            next: head.take(),
            spawn: true,
        };
        head = Some(
            slab.try_insert(next)
                .unwrap_or_else(|error| panic!("{error}")),
        );
    }
    drop(head);
    assert_eq!(slab.pool().stats().in_use(), 0);
    assert_eq!(slab.pool().stats().classes()[0].allocs, 2 * LEN);
}

#[test]
fn slab_of_a_type_that_is_not_send_is_send() {
    fn is_send<T: Send + Sync>(_: &T) {}
    let slab = slab::<Rc<u32>>(10);
    is_send(&slab);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(**slab.try_insert(Rc::new(3)).unwrap(), 3));
    });
}

#[test]
fn a_static_slab_opens_once_and_a_global_handle_finds_it() {
    struct Tx;
    impl GlobalTag<[u64; 8]> for Tx {
        fn slab() -> &'static StaticSlab<[u64; 8], Tx> {
            static SLAB: StaticSlab<[u64; 8], Tx> = StaticSlab::new("tx", 5000);
            &SLAB
        }
    }
    type Tagged = Slab<[u64; 8], Tx>;
    let first = std::thread::scope(|scope| {
        let openers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| std::ptr::from_ref(Tagged::global().unwrap()).addr()))
            .collect();
        let mut at: Vec<_> = openers
            .into_iter()
            .map(|opener| opener.join().unwrap())
            .collect();
        at.dedup();
        assert_eq!(at.len(), 1, "one slab for all");
        at[0]
    });
    let global = Tagged::global().unwrap();
    assert_eq!(std::ptr::from_ref(global).addr(), first);
    assert_eq!(global.pool().name(), "tx");
    let mut held: Vec<GlobalBox<[u64; 8], Tx>> = (0..100)
        .map(|i| SlabBox::into_global(global.try_insert([i; 8]).unwrap()).unwrap())
        .collect();
    held[3][0] = 99;
    assert_eq!(global.pool().stats().in_use(), 100);
    std::thread::spawn(move || {
        for (i, value) in (0..).zip(&held) {
            assert_eq!(value[7], i);
        }
        let back = GlobalBox::into_slab_box(held.remove(3));
        assert_eq!(SlabBox::into_inner(back), [99, 3, 3, 3, 3, 3, 3, 3]);
    })
    .join()
    .unwrap();
    assert_eq!(global.pool().stats().in_use(), 0);
    // Another slab of the same type and tag is not the global one.
    let other = Tagged::builder().max_objects(1).build().unwrap();
    let stranger = SlabBox::into_global(other.try_insert([0; 8]).unwrap()).unwrap_err();
    drop(stranger);
    assert_eq!(other.pool().stats().in_use(), 0);
    assert_eq!(other.pool().stats().classes()[0].frees, 1);
}

#[test]
fn global_tag_that_changes_its_slab_panics() {
    struct Fickle;
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static SLABS: [StaticSlab<u64, Fickle>; 2] =
        [StaticSlab::new("one", 1), StaticSlab::new("two", 1)];
    impl GlobalTag<u64> for Fickle {
        fn slab() -> &'static StaticSlab<u64, Fickle> {
            &SLABS[CALLS.load(Ordering::Relaxed)]
        }
    }
    // The other one is open only the second time.
    for leaked in 0..2 {
        CALLS.store(0, Ordering::Relaxed);
        let one = Slab::<u64, Fickle>::global().unwrap();
        let value = SlabBox::into_global(one.try_insert(5).unwrap()).unwrap();
        CALLS.store(1, Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(value))).is_err());
        let two = Slab::<u64, Fickle>::global().unwrap();
        assert_eq!(*two.try_insert(6).unwrap(), 6);
        assert_eq!(
            one.pool().stats().in_use(),
            leaked + 1,
            "leaked, not given to the wrong slab"
        );
    }
}

#[test]
fn an_owner_is_unwind_safe_if_its_value_is() {
    let cells = slab::<Cell<u8>>(1);
    let cell = cells.try_insert(Cell::new(1)).unwrap();
    // As with a `Box`.
    assert_eq!(catch_unwind(move || cell.get()).unwrap(), 1);
}
