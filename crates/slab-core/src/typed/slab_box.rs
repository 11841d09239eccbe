//! [`SlabBox`]: owns a value in a typed slab.

use super::chunk_at;
use super::owner::as_its_value;
use crate::handle::chunk::Chunk;
use crate::pool::inner::Inner;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::{Deref, DerefMut};
use core::panic::UnwindSafe;
use core::pin::Pin;
use core::ptr::NonNull;

/// Owns a value in a [`Slab`](super::Slab), as a `Box` owns one on the heap; dropping it, on any
/// thread, drops the value and gives its memory back.
///
/// 16 bytes, and so is an `Option` of it. Functions that take the box by value are associated
/// functions, as those of `Box` are, so that they do not hide methods of the value.
///
/// ```
/// use slab_core::{Slab, SlabBox};
///
/// let names = Slab::<String>::builder().build()?;
/// let mut name = names.try_insert("slab".to_owned())?;
/// name.push_str("-core");
/// assert_eq!(name.len(), 9);
/// let name: String = SlabBox::into_inner(name);
/// assert_eq!(names.pool().stats().in_use(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SlabBox<T, Tag = ()> {
    /// The address itself, so that reaching the value costs one load.
    value: NonNull<T>,
    pool: NonNull<Inner>,
    owns: PhantomData<T>,
    tag: PhantomData<fn() -> Tag>,
}

// SAFETY: the box owns its value and nothing else that a thread could notice; the pool behind it
// is `Send + Sync`.
unsafe impl<T: Send, Tag> Send for SlabBox<T, Tag> {}
// SAFETY: a shared box gives `&T` only.
unsafe impl<T: Sync, Tag> Sync for SlabBox<T, Tag> {}
/// Moving the box does not move the value.
impl<T, Tag> Unpin for SlabBox<T, Tag> {}
/// As a `Box` is.
impl<T: UnwindSafe, Tag> UnwindSafe for SlabBox<T, Tag> {}

impl<T, Tag> SlabBox<T, Tag> {
    /// Puts the result of `make` into the chunk, which is large enough and aligned for a `T`.
    #[inline(always)]
    pub(super) fn fill(chunk: Chunk, make: impl FnOnce() -> T) -> Self {
        // If `make` panics, this gives the memory back.
        let mut this = SlabBox::<MaybeUninit<T>, Tag>::uninit(chunk);
        this.write(make());
        // SAFETY: the value was just written.
        unsafe { this.assume_init() }
    }

    /// # Safety
    /// A value lies at `value`, in a chunk of `pool`, a typed slab's; nobody else owns either.
    #[inline(always)]
    pub(super) unsafe fn from_parts(value: NonNull<T>, pool: NonNull<Inner>) -> Self {
        Self {
            value,
            pool,
            owns: PhantomData,
            tag: PhantomData,
        }
    }

    #[cfg(feature = "std")]
    #[inline(always)]
    pub(super) fn pool_ptr(&self) -> NonNull<Inner> {
        self.pool
    }

    /// Gives up the box without dropping the value: the memory stays in use until
    /// [`Slab::free_raw`](super::Slab::free_raw) or [`Slab::box_from_raw`](super::Slab::box_from_raw) takes it back.
    ///
    /// ```
    /// # use slab_core::{Slab, SlabBox};
    /// # use std::{ffi::c_void, ptr::NonNull};
    /// let sessions = Slab::<String>::builder().build()?;
    /// let session = sessions.try_insert("of a client".to_owned())?;
    /// // What a library in C keeps, and passes to its callbacks.
    /// let user_data: *mut c_void = SlabBox::into_raw(session).as_ptr().cast();
    ///
    /// let at = NonNull::new(user_data.cast::<String>()).expect("of a value");
    /// // SAFETY: it came from `into_raw`, and is not used again.
    /// let session = unsafe { sessions.box_from_raw(at) }?;
    /// assert_eq!(*session, "of a client");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use = "the value and its memory would leak"]
    pub fn into_raw(this: Self) -> NonNull<T> {
        ManuallyDrop::new(this).value
    }

    /// Moves the value out and gives its memory back.
    #[inline]
    #[must_use]
    pub fn into_inner(this: Self) -> T {
        let this = ManuallyDrop::new(this);
        // SAFETY: the box owns the value, and is not dropped or used again.
        let value = unsafe { this.value.read() };
        // SAFETY: the value is out of the chunk, which was the box's.
        drop(unsafe { chunk_at(this.pool, this.value.cast()) });
        value
    }

    /// Leaks the value and returns it: it is never dropped, and its slab is never unmapped.
    ///
    /// ```
    /// # use slab_core::{Slab, SlabBox};
    /// let counter: &'static mut u64 = {
    ///     let slab = Slab::<u64>::builder().max_objects(1).build()?;
    ///     SlabBox::leak(slab.try_insert(1)?)
    /// };
    /// *counter += 1;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn leak<'a>(this: Self) -> &'a mut T
    where
        T: 'a,
    {
        // SAFETY: the box was the only owner and is forgotten; a chunk that is never freed keeps
        // the arena mapped.
        unsafe { Self::into_raw(this).as_mut() }
    }

    /// Pins the value: it stays where it is until it is dropped there.
    ///
    /// ```
    /// # use slab_core::{Slab, SlabBox};
    /// # use std::{future::Future, pin::Pin};
    /// async fn answer() -> u32 { 42 }
    ///
    /// fn spawn<F: Future<Output = u32>>(task: F) -> Result<Pin<SlabBox<F>>, Box<dyn std::error::Error>> {
    ///     let tasks = Slab::<F>::builder().build()?;
    ///     Ok(SlabBox::into_pin(tasks.try_insert_with(|| task)?))
    /// }
    /// let mut task = spawn(answer())?;
    /// let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// assert!(task.as_mut().poll(&mut context).is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn into_pin(this: Self) -> Pin<Self> {
        // SAFETY: the value is not moved until it is dropped (a pinned box can no longer be
        // given to `into_inner`), and its memory is not used again before that: if the pinned box is
        // forgotten, its chunk is never freed, which keeps the arena mapped.
        unsafe { Pin::new_unchecked(this) }
    }
}

impl<T, Tag> SlabBox<MaybeUninit<T>, Tag> {
    /// Turns the chunk, which is large enough and aligned for a `T`, into a place for one. Writes
    /// nothing, not even an uninitialised value: a large one would pass through the stack.
    #[inline(always)]
    pub(super) fn uninit(chunk: Chunk) -> Self {
        let chunk = ManuallyDrop::new(chunk);
        let at = chunk.as_ptr().cast();
        debug_assert!(size_of::<T>() <= chunk.capacity());
        debug_assert!(at.is_aligned());
        // SAFETY: the chunk was given up by its handle, and any bytes are a `MaybeUninit`.
        unsafe { Self::from_parts(at, chunk.pool_ptr()) }
    }

    /// Declares the value to be initialised.
    ///
    /// # Safety
    /// A valid `T` must lie in the box.
    #[inline]
    #[must_use]
    pub unsafe fn assume_init(self) -> SlabBox<T, Tag> {
        let this = ManuallyDrop::new(self);
        // SAFETY: a valid `T` lies there by the caller's promise, in a chunk that was `self`'s.
        unsafe { SlabBox::from_parts(this.value.cast(), this.pool) }
    }
}

impl<T, Tag> Deref for SlabBox<T, Tag> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the box owns a valid value there.
        unsafe { self.value.as_ref() }
    }
}

impl<T, Tag> DerefMut for SlabBox<T, Tag> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the box owns a valid value there, and is borrowed mutably.
        unsafe { self.value.as_mut() }
    }
}

/// As [`SlabBox::into_pin`].
impl<T, Tag> From<SlabBox<T, Tag>> for Pin<SlabBox<T, Tag>> {
    fn from(this: SlabBox<T, Tag>) -> Self {
        SlabBox::into_pin(this)
    }
}

impl<T, Tag> Drop for SlabBox<T, Tag> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the chunk that the value lies in was the box's. It goes at the end of this
        // scope, also if the value's destructor panics.
        let _chunk = unsafe { chunk_at(self.pool, self.value.cast()) };
        // SAFETY: the box owned the value; it is not used again.
        unsafe { self.value.drop_in_place() };
    }
}

as_its_value!([T, Tag] SlabBox<T, Tag>);
