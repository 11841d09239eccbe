//! `std`, `loom` or `shuttle`: what an atomic, a mutex, a thread-local and a table are is decided
//! here and nowhere else.
//!
//! Under `--cfg loom` atomics, the mutex and threads are loom's, so that a model explores every
//! interleaving of the code that production runs; under `--cfg shuttle` they are shuttle's, which
//! explores random ones of larger programs, with thread-locals. [`Table`] is then a plain vector,
//! because their atomics cannot lie in memory that was mapped as zeros.
//!
//! [`Shared`] is `Arc`, or where there is no allocator what nobody has.
//!
//! What else is different for the checkers: memory comes from the heap (`sys`), nothing watches forks
//! (`pool`), there are fewer classes (`class`), and sizes that depend on [`MODELLED`] are small.

pub(crate) mod handoff;
#[cfg(any(not(feature = "std"), all(test, not(any(loom, shuttle)))))]
mod spin;
pub(crate) mod units;

pub(crate) use imp::*;

#[cfg(feature = "alloc")]
pub(crate) use alloc::sync::Arc as Shared;
/// As without `std` no thread has magazines, nobody makes one.
#[cfg(not(feature = "alloc"))]
#[derive(Debug)]
pub(crate) struct Shared<T: 'static>(&'static T);

#[cfg(not(feature = "alloc"))]
impl<T> core::ops::Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

/// Is this a build for a model checker? Then sizes are small, so that every path is taken within a
/// few steps.
pub(crate) const MODELLED: bool = cfg!(any(loom, shuttle));
/// Is there no use for `membarrier`, because both halves of the barrier are fences?
const SYMMETRIC: bool = cfg!(any(loom, shuttle, miri));

/// The light half of the asymmetric barrier (see `guard`): orders the owner's stores before its
/// loads as far as the compiler is concerned; the heavy half orders them in the processor.
///
/// Where [`heavy_barrier`] is a mere fence (no `membarrier`), this has to be one too: under a
/// model checker (but for `proofs::model::membarrier`) and Miri always; otherwise the guard's gate keeps the
/// owner off this path.
#[inline(always)]
pub(crate) fn light_barrier() {
    #[cfg(all(test, loom))]
    if crate::proofs::model::membarrier::point() {
        return;
    }
    if SYMMETRIC {
        fence(Ordering::SeqCst);
    } else {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// The heavy half: when it returns, every other thread of the process has executed a full barrier
/// since it began, or executes one in [`light_barrier`].
pub(crate) fn heavy_barrier() {
    #[cfg(all(test, loom))]
    if crate::proofs::model::membarrier::call() {
        return;
    }
    fence(Ordering::SeqCst);
    if !SYMMETRIC && crate::sys::has_membarrier() {
        crate::sys::membarrier();
    }
}

/// Can [`heavy_barrier`] reach into threads that only execute a compiler fence?
pub(crate) fn barrier_is_asymmetric() -> bool {
    SYMMETRIC || crate::sys::has_membarrier()
}

/// Waits a little inside a loop that waits for another thread: spins first, then yields, and in the end sleeps: to yield
/// lets no thread run that the system ranks below this one (`SCHED_FIFO`), and that may be the one that it waits for.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    const SPINS: u32 = 32;
    #[cfg(feature = "std")]
    const YIELDS: u32 = 1000;

    pub(crate) fn snooze(&mut self) {
        self.0 = self.0.saturating_add(1);
        match self.0 {
            _ if MODELLED => thread_yield(),
            0..Self::SPINS => core::hint::spin_loop(),
            #[cfg(feature = "std")]
            Self::YIELDS.. => std::thread::sleep(core::time::Duration::from_micros(50)),
            _ => thread_yield(),
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
mod imp {
    #[cfg(not(feature = "std"))]
    pub(crate) use crate::sync::spin::{Mutex, MutexGuard};
    use crate::sys::room::{Piece, Room};
    use crate::sys::{ENOMEM, Region};
    use core::alloc::Layout;
    #[cfg(not(feature = "std"))]
    pub(crate) use core::hint::spin_loop as thread_yield;
    use core::marker::PhantomData;
    use core::ops::{Deref, DerefMut};
    use core::ptr::NonNull;
    pub(crate) use core::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence,
    };
    #[cfg(feature = "std")]
    pub(crate) use std::process::abort;
    #[cfg(feature = "std")]
    pub(crate) use std::sync::MutexGuard;
    #[cfg(feature = "std")]
    pub(crate) use std::thread::yield_now as thread_yield;
    #[cfg(feature = "std")]
    pub(crate) use std::thread_local;

    /// Runs `f` on a thread-local that has no destructor, and so lasts as long as its thread.
    #[cfg(feature = "std")]
    #[inline(always)]
    pub(crate) fn with_thread_local<T, R>(
        key: &'static std::thread::LocalKey<T>,
        _instead: impl FnOnce() -> T,
        f: impl FnOnce(&T) -> R,
    ) -> R {
        key.with(f)
    }

    /// Aborts by a panic during a panic.
    #[cfg(not(feature = "std"))]
    pub(crate) fn abort() -> ! {
        struct Abort;
        impl Drop for Abort {
            fn drop(&mut self) {
                panic!("abort");
            }
        }
        let _abort = Abort;
        panic!("abort");
    }

    /// A mutex that ignores poisoning: what it guards is valid wherever foreign code may panic under it.
    /// Such code is that of [`Growth::Custom`](crate::Growth::Custom), called before a slab is taken.
    #[cfg(feature = "std")]
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    #[cfg(feature = "std")]
    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|poison| poison.into_inner())
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(std::sync::TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
                Err(std::sync::TryLockError::WouldBlock) => None,
            }
        }
    }

    /// Types for which all bytes zero is a value, and which can stay unwritten until first used.
    ///
    /// # Safety
    /// All bytes zero must be a valid value of the type, and the type must not need dropping.
    pub(crate) unsafe trait Zeroable {}
    // SAFETY: zero is a value of the integer.
    unsafe impl Zeroable for AtomicU32 {}
    // SAFETY: zero is a value of the integer.
    unsafe impl Zeroable for AtomicU64 {}
    // SAFETY: zero is a value of the integer.
    unsafe impl Zeroable for u64 {}
    // SAFETY: zero is a value of the integer.
    unsafe impl Zeroable for u32 {}

    /// A slice in memory of its own, of which only the touched pages cost anything, or in a part of what the caller lent
    /// for tables.
    #[derive(Debug)]
    pub(crate) struct Table<T> {
        first: NonNull<T>,
        len: usize,
        /// `None` where it was lent, or found no place.
        _region: Option<Region>,
        of: PhantomData<T>,
    }

    // SAFETY: a `Table<T>` is an owned slice of `T`.
    unsafe impl<T: Send> Send for Table<T> {}
    // SAFETY: as above; shared access gives `&T` only.
    unsafe impl<T: Sync> Sync for Table<T> {}

    impl<T: Zeroable> Table<T> {
        /// So many, all bytes zero; none where what was lent is [too short](Room::check).
        ///
        /// # Errors
        /// The system's error number, if it would not give the memory.
        pub(crate) fn new(room: &mut Room, len: usize) -> Result<Self, i32> {
            let (mut table, has_room) = Self::without_any(room, len)?;
            if has_room {
                table.len = len;
            }
            Ok(table)
        }
    }

    impl<T> Table<T> {
        /// What `make` makes, so many times, in order; none where what was lent is [too short](Room::check), but `make`
        /// is called all the same.
        ///
        /// # Errors
        /// As [`new`](Self::new), and those of `make`.
        pub(crate) fn filled(
            room: &mut Room,
            len: usize,
            mut make: impl FnMut(&mut Room) -> Result<T, i32>,
        ) -> Result<Self, i32> {
            let (mut table, has_room) = Self::without_any(room, len)?;
            for index in 0..len {
                let value = make(room)?;
                if has_room {
                    // SAFETY: there is room for `len`.
                    let at = unsafe { table.first.add(index) };
                    // SAFETY: as above, and nobody else's.
                    unsafe { at.write(value) };
                    table.len = index + 1;
                }
            }
            Ok(table)
        }

        /// Zeroed room for so many, which count as none yet, and whether there is any.
        fn without_any(room: &mut Room, len: usize) -> Result<(Self, bool), i32> {
            let layout = Layout::array::<T>(len).map_err(|_| ENOMEM)?;
            let mut region = None;
            let first = match room.place(layout) {
                Piece::System => {
                    let region = region.insert(Region::committed(layout.size().max(1))?);
                    Some(region.base())
                }
                Piece::Lent(at) => {
                    // SAFETY: nobody else's, and as long as asked for.
                    unsafe { at.write_bytes(0, layout.size()) };
                    Some(at)
                }
                Piece::None => None,
            };
            let table = Self {
                first: first.map_or(NonNull::dangling(), NonNull::cast),
                len: 0,
                _region: region,
                of: PhantomData,
            };
            Ok((table, first.is_some()))
        }
    }

    impl<T> Drop for Table<T> {
        fn drop(&mut self) {
            // Not even a reference to all of them, if there is no need.
            if core::mem::needs_drop::<T>() {
                // SAFETY: values that are not used any more, all of which `filled` made.
                unsafe { core::ptr::drop_in_place(&raw mut **self) };
            }
        }
    }

    // Not by way of the slice: a reference to all of it is free for the processor, but costs
    // Miri a step per atomic in the table, each time.
    impl<T> Table<T> {
        pub(crate) fn len(&self) -> usize {
            self.len
        }

        /// The first of them; the others follow.
        pub(crate) fn first(&self) -> NonNull<T> {
            self.first
        }

        #[inline(always)]
        pub(crate) fn at(&self, index: usize) -> &T {
            assert!(index < self.len, "index {index} of a table of {}", self.len);
            // SAFETY: `index` is within the table, as just checked.
            let at = unsafe { self.first().add(index) };
            // SAFETY: as for `deref`: a value, aligned, and `self` is borrowed shared.
            unsafe { at.as_ref() }
        }
    }

    impl<T> DerefMut for Table<T> {
        fn deref_mut(&mut self) -> &mut [T] {
            // SAFETY: as for `deref`; `self` is borrowed mutably, so there is no other reference.
            unsafe { core::slice::from_raw_parts_mut(self.first().as_ptr(), self.len) }
        }
    }

    impl<T> Deref for Table<T> {
        type Target = [T];

        #[inline]
        fn deref(&self) -> &[T] {
            // SAFETY: from `first` on, which is aligned, lie `len` values: `filled` wrote them, or `new` asked
            // `T: Zeroable`, so that zeros are values; they live as long as `self`, and the
            // only mutable references are those of `deref_mut`, which borrows `self` mutably.
            unsafe { core::slice::from_raw_parts(self.first().as_ptr(), self.len) }
        }
    }
}

#[cfg(any(loom, shuttle))]
mod imp {
    #[cfg(loom)]
    use loom as checker;
    #[cfg(shuttle)]
    use shuttle as checker;

    use crate::sys::room::Room;
    pub(crate) use checker::sync::MutexGuard;
    pub(crate) use checker::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence,
    };
    pub(crate) use checker::thread::yield_now as thread_yield;
    use core::ptr::NonNull;
    // Loom's models hand each thread its cache by name; see `model`.
    #[cfg(shuttle)]
    pub(crate) use shuttle::thread_local;
    pub(crate) use std::process::abort;
    #[cfg(loom)]
    pub(crate) use std::thread_local;

    #[cfg(loom)]
    type LocalKey<T> = std::thread::LocalKey<T>;
    #[cfg(shuttle)]
    type LocalKey<T> = shuttle::thread::LocalKey<T>;

    /// Shuttle's thread-locals all come to an end; afterwards `f` gets another value.
    pub(crate) fn with_thread_local<T, R>(
        key: &'static LocalKey<T>,
        instead: impl FnOnce() -> T,
        f: impl FnOnce(&T) -> R,
    ) -> R {
        let mut f = Some(f);
        let mut run = |value: &T| f.take().expect("runs once")(value);
        key.try_with(&mut run).unwrap_or_else(|_| run(&instead()))
    }

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(checker::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(checker::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|poison| poison.into_inner())
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// # Safety
    /// None: tables are built by `Default`.
    pub(crate) unsafe trait Zeroable: Default {}
    // SAFETY: nothing depends on it here.
    unsafe impl Zeroable for AtomicU32 {}
    // SAFETY: nothing depends on it here.
    unsafe impl Zeroable for AtomicU64 {}
    // SAFETY: nothing depends on it here.
    unsafe impl Zeroable for u64 {}
    // SAFETY: nothing depends on it here.
    unsafe impl Zeroable for u32 {}

    #[derive(Debug)]
    pub(crate) struct Table<T>(Vec<T>);

    impl<T: Zeroable> Table<T> {
        pub(crate) fn new(room: &mut Room, len: usize) -> Result<Self, i32> {
            Self::filled(room, len, |_| Ok(T::default()))
        }
    }

    impl<T> Table<T> {
        pub(crate) fn filled(
            room: &mut Room,
            len: usize,
            mut make: impl FnMut(&mut Room) -> Result<T, i32>,
        ) -> Result<Self, i32> {
            let values = (0..len).map(|_| make(room));
            values.collect::<Result<_, _>>().map(Self)
        }

        pub(crate) fn at(&self, index: usize) -> &T {
            &self.0[index]
        }

        pub(crate) fn first(&self) -> NonNull<T> {
            NonNull::from(self.0.as_slice()).cast()
        }
    }

    impl<T> core::ops::DerefMut for Table<T> {
        fn deref_mut(&mut self) -> &mut [T] {
            &mut self.0
        }
    }

    impl<T> core::ops::Deref for Table<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }
}
