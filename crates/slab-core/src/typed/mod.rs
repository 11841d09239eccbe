//! Typed slabs: pools of objects of one type.
//!
//! A [`Slab`] has an arena of its own: so its cap is a number of values, and nobody takes their memory but through
//! [`Slab::pool`]. Nor does their padding, which is uninitialised as far as the language is concerned, get into a
//! pool of others. Within the arena, a value is a chunk of the one class there is, so all of the pool's machinery
//! serves it unchanged: magazines, depot, free on any thread, trim, statistics.
//!
//! | file | what |
//! |---|---|
//! | here | [`Slab`] and its builder |
//! | `slab_box` | [`SlabBox`], which owns a value: 16 bytes |
//! | `global` | slabs in a `static`, and `GlobalBox`, which finds its slab by its type: 8 bytes |
//! | `owner` | the traits that both have by their value |

#[cfg(feature = "std")]
mod global;
mod owner;
mod slab_box;

#[cfg(feature = "std")]
pub use global::{GlobalBox, GlobalTag, StaticSlab};
pub use slab_box::SlabBox;

#[cfg(feature = "alloc")]
use crate::class::geometry::slab_bytes_for;
use crate::class::{CHUNK_ALIGN, MAX_CHUNK_ALIGN, SizeClasses};
use crate::error::{AllocError, BuildInError, ConfigError, NotAChunk};
use crate::handle::chunk::Chunk;
use crate::pool::SlabPool;
use crate::pool::builder::SlabPoolBuilder;
use crate::pool::inner::Inner;
#[cfg(feature = "alloc")]
use alloc::string::String;
use core::fmt;
#[cfg(feature = "alloc")]
use core::future::Future;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// The only class of a typed slab.
const CLASS: u8 = 0;

/// What one `T` takes of the arena, in bytes. A zero-sized type takes a chunk too, which bounds the
/// number of its values.
const fn chunk_bytes<T>() -> usize {
    let align = if align_of::<T>() > CHUNK_ALIGN {
        align_of::<T>()
    } else {
        CHUNK_ALIGN
    };
    let size = if size_of::<T>() == 0 {
        1
    } else {
        size_of::<T>()
    };
    size.next_multiple_of(align)
}

/// The unit of the chunk that begins at `at`, if `at` lies in the pool's arena.
#[inline(always)]
fn unit_at(pool: &Inner, at: NonNull<u8>) -> Option<u32> {
    // Below the base this wraps around, to far above the arena's size.
    let offset = at.addr().get().wrapping_sub(pool.arena.base().addr().get());
    (offset < pool.arena.bytes()).then_some((offset / CHUNK_ALIGN) as u32)
}

/// The chunk that a value lies in.
///
/// # Safety
/// `at` is the start of a chunk of this pool, which is a typed slab's, and the chunk's owner gives it
/// up.
#[inline(always)]
unsafe fn chunk_at(pool: NonNull<Inner>, at: NonNull<u8>) -> Chunk {
    // SAFETY: a pool is not unmapped while one of its chunks lives.
    let inner = unsafe { pool.as_ref() };
    let unit = unit_at(inner, at);
    debug_assert!(unit.is_some(), "a value outside of its slab");
    // SAFETY: the caller's promise.
    let unit = unsafe { unit.unwrap_unchecked() };
    // SAFETY: the caller's promise; it is of the only class.
    unsafe { Chunk::new(inner, CLASS, unit) }
}

/// A bounded pool of values of one type, shared by any number of threads.
///
/// `Tag` is a marker type of the user's choice, never a value: `Slab<Packet, Rx>` and
/// `Slab<Packet, Events>` are different types, and so are their [`SlabBox`]es, which therefore
/// cannot be mixed up. No two slabs ever share memory.
///
/// A value takes its size rounded up to a multiple of [`CHUNK_ALIGN`] bytes. Cloning gives another
/// handle to the same slab; values outlive the last handle.
///
/// ```
/// use slab_core::Slab;
///
/// struct Rx;
/// let rx = Slab::<[u64; 8], Rx>::builder().name("rx").max_objects(1000).build()?;
/// let mut packet = rx.try_insert([0; 8])?;
/// packet[3] = 7;
/// // A value can be dropped on any thread.
/// std::thread::spawn(move || assert_eq!(packet[3], 7)).join().unwrap();
/// assert_eq!(rx.pool().stats().in_use(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A handle of one tag is no handle of another:
///
/// ```compile_fail,E0308
/// use slab_core::{Slab, SlabBox};
///
/// struct Rx;
/// struct Events;
/// fn handle_event(event: SlabBox<u64, Events>) {}
/// let rx = Slab::<u64, Rx>::builder().build().unwrap();
/// handle_event(rx.try_insert(1).unwrap());
/// ```
pub struct Slab<T, Tag = ()> {
    pool: SlabPool,
    /// Holds no `T` itself: `Send` and `Sync` whatever `T` is.
    of: PhantomData<fn() -> (T, Tag)>,
}

impl<T, Tag> Slab<T, Tag> {
    /// Starts the configuration of a slab.
    pub fn builder() -> SlabBuilder<T, Tag> {
        SlabBuilder::default()
    }

    #[inline(always)]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn alloc(&self) -> Result<Chunk, AllocError> {
        self.pool.try_alloc(const { chunk_bytes::<T>() })
    }

    /// Moves a value into the slab.
    ///
    /// ```
    /// # use slab_core::Slab;
    /// let slab = Slab::<String>::builder().max_objects(1000).build()?;
    /// let name = || "slab".to_owned();
    /// let all: Vec<_> = std::iter::from_fn(|| slab.try_insert(name()).ok()).collect();
    /// assert_eq!(all.len(), slab.capacity());
    /// let refused = slab.try_insert("core".to_owned()).unwrap_err();
    /// assert_eq!(refused.value, "core");
    /// # Ok::<(), slab_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// Gives the value back, with the reason as [`SlabPool::try_alloc`] gives it.
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_insert(&self, value: T) -> Result<SlabBox<T, Tag>, InsertError<T>> {
        match self.alloc() {
            Ok(chunk) => Ok(SlabBox::fill(chunk, || value)),
            Err(error) => Err(InsertError { value, error }),
        }
    }

    /// Moves a value into the slab as [`try_insert`](Self::try_insert) does, but waits its turn while the slab is
    /// full, as [`SlabPool::alloc`] does.
    ///
    /// The future owns the value. It can be dropped at any moment: then nothing is inserted, and the value is dropped
    /// with it. Who must not lose it calls [`insert_with`](Self::insert_with) with a function that takes it from
    /// where it is kept.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # use slab_core::Slab;
    /// let slab = Slab::<[u8; 16384]>::builder().max_objects(1).build()?;
    /// let mut all: Vec<_> = (0..slab.capacity()).map_while(|_| slab.try_insert([0; 16384]).ok()).collect();
    /// let (value, ()) = tokio::join!(slab.insert([1; 16384]), async { drop(all.pop()) });
    /// assert_eq!(value?[0], 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Gives the value back, with the reason as [`SlabPool::alloc`] gives it: never [`AllocError::Exhausted`].
    // Not an `async fn`, which would be the caller that leak tracking sees.
    #[cfg(feature = "alloc")]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn insert(
        &self,
        value: T,
    ) -> impl Future<Output = Result<SlabBox<T, Tag>, InsertError<T>>> {
        let chunk = self.pool.alloc(const { chunk_bytes::<T>() });
        async {
            match chunk.await {
                Ok(chunk) => Ok(SlabBox::fill(chunk, || value)),
                Err(error) => Err(InsertError { value, error }),
            }
        }
    }

    /// Makes a value in the slab: `make` runs only if there is memory, and the compiler can build its
    /// result in place. If `make` panics, the memory is given back.
    ///
    /// ```
    /// # use slab_core::Slab;
    /// let frames = Slab::<[u8; 65536]>::builder().build()?;
    /// let frame = frames.try_insert_with(|| [0; 65536])?;
    /// assert_eq!(frame.len(), 65536);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`SlabPool::try_alloc`].
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_insert_with(&self, make: impl FnOnce() -> T) -> Result<SlabBox<T, Tag>, AllocError> {
        Ok(SlabBox::fill(self.alloc()?, make))
    }

    /// Makes a value in the slab as [`try_insert_with`](Self::try_insert_with) does, but waits its turn
    /// while the slab is full, as [`SlabPool::alloc`] does. Cancel-safe: `make` runs only once there is
    /// memory.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # use slab_core::Slab;
    /// let slab = Slab::<[u8; 16384]>::builder().max_objects(1).build()?;
    /// let mut all: Vec<_> = (0..slab.capacity()).map_while(|_| slab.try_insert([0; 16384]).ok()).collect();
    /// let (value, ()) = tokio::join!(slab.insert_with(|| [1; 16384]), async { drop(all.pop()) });
    /// assert_eq!(value?[0], 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`SlabPool::alloc`]: never [`AllocError::Exhausted`].
    // Not an `async fn`, which would be the caller that leak tracking sees.
    #[cfg(feature = "alloc")]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn insert_with(
        &self,
        make: impl FnOnce() -> T,
    ) -> impl Future<Output = Result<SlabBox<T, Tag>, AllocError>> {
        let chunk = self.pool.alloc(const { chunk_bytes::<T>() });
        async { Ok(SlabBox::fill(chunk.await?, make)) }
    }

    /// Allocates memory for a value that is to be built in place, field by field if need be, and never
    /// moved.
    ///
    /// ```
    /// # use slab_core::Slab;
    /// let frames = Slab::<[u32; 1024]>::builder().build()?;
    /// let mut frame = frames.try_uninit()?;
    /// for i in 0..1024 {
    ///     // SAFETY: within the array.
    ///     unsafe { frame.as_mut_ptr().cast::<u32>().add(i).write(i as u32) };
    /// }
    /// // SAFETY: every element was just written.
    /// let frame = unsafe { frame.assume_init() };
    /// assert_eq!(frame[1023], 1023);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`SlabPool::try_alloc`].
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn try_uninit(&self) -> Result<SlabBox<MaybeUninit<T>, Tag>, AllocError> {
        Ok(SlabBox::uninit(self.alloc()?))
    }

    /// Allocates memory for one `T`, uninitialised and aligned, as a bare pointer for callers that keep
    /// track of it themselves (foreign code). Give it back with [`free_raw`](Self::free_raw) or
    /// turn it into a [`SlabBox`] with [`box_from_raw`](Self::box_from_raw). It stays valid when all
    /// handles to the slab are gone.
    ///
    /// ```
    /// # use slab_core::Slab;
    /// let slab = Slab::<String>::builder().build()?;
    /// let at = slab.alloc_raw()?;
    /// // SAFETY: valid for one `String`.
    /// unsafe { at.write("raw".into()) };
    /// // SAFETY: of this slab, initialised, and not used again as a pointer.
    /// let text = unsafe { slab.box_from_raw(at) }?;
    /// assert_eq!(*text, "raw");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`SlabPool::try_alloc`].
    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub fn alloc_raw(&self) -> Result<NonNull<T>, AllocError> {
        Ok(SlabBox::into_raw(self.try_uninit()?).cast())
    }

    /// Gives memory back without running any destructor.
    ///
    /// # Errors
    /// [`NotAChunk`] if `at` is not a place for a value of this slab; nothing is freed.
    ///
    /// # Safety
    /// If it is one, it must have come from [`alloc_raw`](Self::alloc_raw) or [`SlabBox::into_raw`], and
    /// must not be used afterwards.
    #[inline]
    pub unsafe fn free_raw(&self, at: NonNull<T>) -> Result<(), NotAChunk> {
        // SAFETY: the caller's promise.
        unsafe { self.pool.free_raw(at.cast()) }
    }

    /// Takes ownership of the value at `at`.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw).
    ///
    /// # Safety
    /// As for `free_raw`, and a valid `T` must lie there.
    #[inline]
    pub unsafe fn box_from_raw(&self, at: NonNull<T>) -> Result<SlabBox<T, Tag>, NotAChunk> {
        // SAFETY: the caller's promise.
        let chunk = unsafe { self.pool.chunk_from_raw(at.cast()) }?;
        // SAFETY: a valid value lies in the chunk.
        Ok(unsafe { SlabBox::<MaybeUninit<T>, Tag>::uninit(chunk).assume_init() })
    }

    /// Returns the pool behind the slab, for its statistics, waiting times, [`trim`](SlabPool::trim) and so on: it has
    /// one class, and one chunk a value. A chunk that is taken from it takes the place of a value.
    ///
    /// ```
    /// # use slab_core::Slab;
    /// let slab = Slab::<[u8; 65536]>::builder().name("frames").build()?;
    /// let value = slab.try_insert_with(|| [1; 65536])?;
    /// assert_eq!(slab.pool().name(), "frames");
    /// assert_eq!(slab.pool().stats().in_use(), 1);
    /// assert!(slab.pool().resident_bytes().is_none_or(|bytes| bytes >= size_of_val(&*value)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "stats")]
    #[must_use]
    pub fn pool(&self) -> &SlabPool {
        &self.pool
    }

    /// Returns how many values fit: as many as were asked for, rounded up to whole slabs.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let inner = self.pool.inner();
        inner.arena.slabs() * inner.classes.geometry(CLASS).chunks_per_slab as usize
    }
}

impl<T, Tag> Clone for Slab<T, Tag> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            of: PhantomData,
        }
    }
}

impl<T, Tag> fmt::Debug for Slab<T, Tag> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("name", &self.pool.name())
            .field("of", &core::any::type_name::<T>())
            .field("tag", &core::any::type_name::<Tag>())
            .field("capacity", &self.capacity())
            .finish()
    }
}

/// The configuration of a [`Slab`].
#[must_use]
pub struct SlabBuilder<T, Tag = ()> {
    pool: SlabPoolBuilder,
    max_objects: usize,
    of: PhantomData<fn() -> (T, Tag)>,
}

impl<T, Tag> Default for SlabBuilder<T, Tag> {
    fn default() -> Self {
        Self {
            pool: SlabPool::builder(),
            max_objects: (64 << 20) / chunk_bytes::<T>(),
            of: PhantomData,
        }
    }
}

impl<T, Tag> SlabBuilder<T, Tag> {
    /// Sets the slab's name in metrics and log events. Default: `default`.
    #[cfg(feature = "alloc")]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.pool = self.pool.name(name);
        self
    }

    /// Sets the slab's name. Default: `default`.
    #[cfg(not(feature = "alloc"))]
    pub fn name(mut self, name: &'static str) -> Self {
        self.pool = self.pool.name(name);
        self
    }

    /// Sets how many values the slab holds at least, rounded up to whole slabs; 0 is an error. Default: 64
    /// MiB of them.
    pub fn max_objects(mut self, objects: usize) -> Self {
        self.max_objects = objects;
        self
    }

    /// Sets further options of the pool behind the slab. The slab overrides the pool's size classes and
    /// its cap, and makes no use of [`max_oversize_memory`](SlabPoolBuilder::max_oversize_memory).
    ///
    /// ```
    /// # use slab_core::{Growth, Slab};
    /// let slab = Slab::<[u8; 1500]>::builder()
    ///     .pool(|pool| pool.growth(Growth::Double).hardened(true))
    ///     .build()?;
    /// # Ok::<(), slab_core::ConfigError>(())
    /// ```
    pub fn pool(mut self, set: impl FnOnce(SlabPoolBuilder) -> SlabPoolBuilder) -> Self {
        self.pool = set(self.pool);
        self
    }

    /// Builds the slab: reserves its address range. Little memory is used yet, unless the pool is to be
    /// [backed](SlabPoolBuilder::backing) from the start.
    ///
    /// # Errors
    /// [`ConfigError::BadAlignment`] if `T` is aligned to more than [`MAX_CHUNK_ALIGN`] bytes,
    /// [`ConfigError::ClassTooLarge`] if it is larger than
    /// [`MAX_CHUNK_BYTES`](crate::MAX_CHUNK_BYTES), [`ConfigError::NoObjects`] if
    /// [`max_objects`](Self::max_objects) is 0; otherwise as [`SlabPoolBuilder::build`].
    #[cfg(feature = "alloc")]
    pub fn build(self) -> Result<Slab<T, Tag>, ConfigError> {
        let classes = Self::classes()?;
        // Not before: the default of values that are too large is 0.
        if self.max_objects == 0 {
            return Err(ConfigError::NoObjects);
        }
        let bytes = classes.largest();
        let slab_bytes = slab_bytes_for(bytes);
        let usable = slab_bytes - self.pool.guard_bytes(slab_bytes);
        let slabs = self.max_objects.div_ceil(usable / bytes);
        let pool = self
            .pool
            .size_classes(classes)
            .max_memory(slabs.saturating_mul(slab_bytes))
            .build()?;
        Ok(Slab {
            pool,
            of: PhantomData,
        })
    }

    /// Builds the slab over memory that the caller owns, as [`SlabPoolBuilder::build_in`] does. It holds as many
    /// values as fit there; [`max_objects`](Self::max_objects) is ignored.
    ///
    /// ```
    /// # use slab_core::Slab;
    /// # use std::mem::MaybeUninit;
    /// let memory = Box::leak(Box::<[u8]>::new_uninit_slice(1 << 20));
    /// let here = memory.as_ptr_range();
    /// let slab = Slab::<[u64; 8]>::builder().build_in(memory)?;
    /// let value = slab.try_insert([7; 8])?;
    /// assert!(here.contains(&(&raw const *value).cast()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`build`](Self::build), with the memory, which the caller gets back.
    #[cfg(feature = "alloc")]
    pub fn build_in(
        self,
        memory: &'static mut [MaybeUninit<u8>],
    ) -> Result<Slab<T, Tag>, BuildInError> {
        let classes = match Self::classes() {
            Ok(classes) => classes,
            Err(error) => return Err(BuildInError::new(error, memory)),
        };
        Ok(Slab {
            pool: self.pool.size_classes(classes).build_in(memory)?,
            of: PhantomData,
        })
    }

    /// Builds the slab over memory that the caller owns, with all bookkeeping in a second piece of it, as
    /// [`SlabPoolBuilder::build_all_in`] does: without an allocator. Otherwise as `build_in`.
    ///
    /// ```
    /// # use slab_core::{Mode, Slab};
    /// let piece = || Box::leak(Box::<[u8]>::new_uninit_slice(1 << 20));
    /// let slab = Slab::<[u64; 8]>::builder()
    ///     .pool(|pool| pool.mode(Mode::DepotOnly))
    ///     .build_all_in(piece(), piece())?;
    /// assert_eq!(*slab.try_insert([7; 8])?, [7; 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As `SlabPoolBuilder::build_all_in`, with both pieces, which the caller gets back;
    /// [`ConfigError::BadAlignment`] if `T` is aligned to more than [`MAX_CHUNK_ALIGN`] bytes,
    /// [`ConfigError::ClassTooLarge`] if it is larger than [`MAX_CHUNK_BYTES`](crate::MAX_CHUNK_BYTES).
    pub fn build_all_in(
        self,
        memory: &'static mut [MaybeUninit<u8>],
        bookkeeping: &'static mut [MaybeUninit<u8>],
    ) -> Result<Slab<T, Tag>, BuildInError> {
        let classes = match Self::classes() {
            Ok(classes) => classes,
            Err(error) => {
                return Err(BuildInError::new(error, memory).with_bookkeeping(bookkeeping));
            }
        };
        let pool = self.pool.size_classes(classes);
        Ok(Slab {
            pool: pool.build_all_in(memory, bookkeeping)?,
            of: PhantomData,
        })
    }

    fn classes() -> Result<SizeClasses, ConfigError> {
        if align_of::<T>() > MAX_CHUNK_ALIGN {
            return Err(ConfigError::BadAlignment {
                align: align_of::<T>(),
            });
        }
        SizeClasses::explicit(&[chunk_bytes::<T>()])
    }
}

impl<T, Tag> Clone for SlabBuilder<T, Tag> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            max_objects: self.max_objects,
            of: PhantomData,
        }
    }
}

impl<T, Tag> fmt::Debug for SlabBuilder<T, Tag> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabBuilder")
            .field("pool", &self.pool)
            .field("max_objects", &self.max_objects)
            .finish()
    }
}

/// The error of [`Slab::try_insert`] and [`Slab::insert`]: there was no memory for a value, which it gives back.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InsertError<T> {
    /// The value that found no place.
    pub value: T,
    /// Why; also the `source`.
    pub error: AllocError,
}

/// Leaves the value out, so that `T` need not implement `Debug`.
impl<T> fmt::Debug for InsertError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InsertError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Display for InsertError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value was not inserted")
    }
}

impl<T> core::error::Error for InsertError<T> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The reason alone; the value is dropped.
impl<T> From<InsertError<T>> for AllocError {
    fn from(refused: InsertError<T>) -> Self {
        refused.error
    }
}

/// The reason alone, as [`AllocError`] converts; the value is dropped.
#[cfg(feature = "std")]
impl<T> From<InsertError<T>> for std::io::Error {
    fn from(refused: InsertError<T>) -> Self {
        refused.error.into()
    }
}
