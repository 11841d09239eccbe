//! What the handles of a pool share; the drop of the last one closes the pool.
//!
//! With an allocator that is an `Arc`: a thread that has a cache knows by a `Weak` that the pool is gone. Without one no
//! thread has a cache, and the count lies in the pool.

use crate::pool::inner::Inner;
use core::ptr::NonNull;

#[cfg(feature = "alloc")]
pub(crate) use counted_by_arc::*;
#[cfg(not(feature = "alloc"))]
pub(crate) use counted_in_pool::*;

#[cfg(feature = "alloc")]
mod counted_by_arc {
    use super::{Inner, NonNull};
    use alloc::sync::{Arc, Weak};

    pub(crate) type SharedHandle = Arc<Handle>;
    /// A pool's way to its handles.
    pub(crate) type Home = Weak<Handle>;

    /// See the [module](super).
    #[derive(Debug)]
    pub(crate) struct Handle {
        inner: NonNull<Inner>,
    }

    // SAFETY: `Inner` is `Send + Sync`, and the handle is only a way to reach it.
    unsafe impl Send for Handle {}
    // SAFETY: as above.
    unsafe impl Sync for Handle {}

    impl Handle {
        /// The first one of a new pool.
        ///
        /// # Safety
        /// It has none, and nobody else knows it.
        pub(crate) unsafe fn first(inner: NonNull<Inner>) -> SharedHandle {
            Arc::new_cyclic(|home| {
                // SAFETY: the caller's promise.
                let pool = unsafe { &mut *inner.as_ptr() };
                pool.home = Weak::clone(home);
                Self { inner }
            })
        }

        /// Not derived from a reference: chunks keep this pointer, and the last of them frees the pool
        /// through it.
        pub(crate) fn as_ptr(&self) -> NonNull<Inner> {
            self.inner
        }

        #[cfg(feature = "std")]
        pub(crate) fn inner(&self) -> &Inner {
            // SAFETY: `Inner` lives at least until `close`, which the drop of this handle calls.
            unsafe { self.inner.as_ref() }
        }

        pub(crate) fn count(this: &SharedHandle) -> usize {
            Arc::strong_count(this)
        }
    }

    impl Drop for Handle {
        fn drop(&mut self) {
            // SAFETY: `first` makes the only handle of an inner, and this is its last use.
            unsafe { Inner::close(self.inner) };
        }
    }

    impl Inner {
        /// A handle to this pool, unless its last one is gone.
        pub(crate) fn handle(&self) -> Option<SharedHandle> {
            self.home.upgrade()
        }
    }
}

#[cfg(not(feature = "alloc"))]
mod counted_in_pool {
    use super::{Inner, NonNull};
    use crate::directory;
    use core::sync::atomic::{AtomicUsize, Ordering};

    /// How many handles a pool has.
    pub(crate) type Home = AtomicUsize;

    /// See the [module](super).
    #[derive(Debug)]
    pub(crate) struct Handle {
        inner: NonNull<Inner>,
    }

    pub(crate) type SharedHandle = Handle;

    // SAFETY: `Inner` is `Send + Sync`, and the handle is only a way to reach it.
    unsafe impl Send for Handle {}
    // SAFETY: as above.
    unsafe impl Sync for Handle {}

    impl Handle {
        /// The first one of a new pool.
        ///
        /// # Safety
        /// It has none, and nobody else knows it.
        pub(crate) unsafe fn first(inner: NonNull<Inner>) -> SharedHandle {
            let first = Self { inner };
            first.home().store(1, Ordering::Relaxed);
            first
        }

        /// As with an allocator.
        pub(crate) fn as_ptr(&self) -> NonNull<Inner> {
            self.inner
        }

        pub(crate) fn count(this: &SharedHandle) -> usize {
            this.home().load(Ordering::Relaxed)
        }

        fn home(&self) -> &Home {
            // SAFETY: `Inner` lives at least until `close`, which the drop of the last handle calls.
            unsafe { &self.inner.as_ref().home }
        }
    }

    impl Clone for Handle {
        fn clone(&self) -> Self {
            // Relaxed: who has a handle may make another one. As `Arc` does, and ends the program where the count
            // could overflow.
            if self.home().fetch_add(1, Ordering::Relaxed) > isize::MAX as usize {
                crate::sync::abort();
            }
            Self { inner: self.inner }
        }
    }

    impl Drop for Handle {
        fn drop(&mut self) {
            // Release and acquire: what was done by way of the other handles comes before the end.
            if self.home().fetch_sub(1, Ordering::AcqRel) == 1 {
                // SAFETY: it was the last one, and none is made any more: `handle` makes none where there is none.
                unsafe { Inner::close(self.inner) };
            }
        }
    }

    impl Inner {
        /// A handle to this pool, unless its last one is gone.
        pub(crate) fn handle(&self) -> Option<SharedHandle> {
            let one_more = |count: usize| (count > 0).then_some(count + 1);
            self.home
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
                .ok()?;
            // SAFETY: the pool has entered itself, and lives. Not made from `self`, for what `as_ptr` says.
            let inner = unsafe { directory::pool(self.classes.place(0)) };
            Some(Handle { inner })
        }
    }
}
