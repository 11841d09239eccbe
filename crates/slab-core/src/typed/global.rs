//! Slabs in a `static`, and [`GlobalBox`], whose type identifies its slab.

use super::owner::as_its_value;
use super::{Slab, SlabBox, SlabBuilder, unit_at};
use crate::error::ConfigError;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::panic::UnwindSafe;
use core::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

/// A typed slab for a `static`: opened when it is first used, never closed.
///
/// In a library that programs load and unload, each load would so leave a pool behind: keep a
/// [`Slab`] in a `Mutex<Option<_>>` there, and take it out before the library goes.
///
/// ```
/// use slab_core::StaticSlab;
///
/// static SESSIONS: StaticSlab<[u64; 4]> = StaticSlab::new("sessions", 10_000);
///
/// let session = SESSIONS.get()?.try_insert([0; 4])?;
/// assert_eq!(SESSIONS.get()?.pool().stats().in_use(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StaticSlab<T, Tag = ()> {
    slab: OnceLock<Slab<T, Tag>>,
    /// Held by the one thread that builds it.
    opening: Mutex<()>,
    name: &'static str,
    max_objects: usize,
    configure: fn(SlabBuilder<T, Tag>) -> SlabBuilder<T, Tag>,
}

impl<T, Tag> StaticSlab<T, Tag> {
    /// Describes a slab by its name and by how many values it holds at least; opens nothing yet.
    #[must_use]
    pub const fn new(name: &'static str, max_objects: usize) -> Self {
        Self {
            slab: OnceLock::new(),
            opening: Mutex::new(()),
            name,
            max_objects,
            configure: |builder| builder,
        }
    }

    /// Sets further options, which are applied when the slab is opened: in place of those of an earlier call. `configure`
    /// must not use the slab itself, which waits for it.
    ///
    /// ```
    /// use slab_core::StaticSlab;
    ///
    /// static KEYS: StaticSlab<[u8; 32]> = StaticSlab::new("keys", 1000)
    ///     .configure(|builder| builder.pool(|pool| pool.zero_on_free(true)));
    ///
    /// assert!(KEYS.get()?.pool().zeroes_on_free());
    /// # Ok::<(), slab_core::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn configure(
        mut self,
        configure: fn(SlabBuilder<T, Tag>) -> SlabBuilder<T, Tag>,
    ) -> Self {
        self.configure = configure;
        self
    }

    /// Returns the slab; the first call opens it, and calls of other threads wait until it has.
    ///
    /// # Errors
    /// As [`SlabBuilder::build`](super::SlabBuilder::build). A later call tries again.
    #[inline]
    pub fn get(&self) -> Result<&Slab<T, Tag>, ConfigError> {
        match self.slab.get() {
            Some(slab) => Ok(slab),
            None => self.open(),
        }
    }

    #[cold]
    fn open(&self) -> Result<&Slab<T, Tag>, ConfigError> {
        // One at a time: another slab, if only for a moment, may be more than the system reserves.
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slab) = self.slab.get() {
            return Ok(slab);
        }
        let builder = Slab::builder()
            .name(self.name)
            .max_objects(self.max_objects);
        let slab = (self.configure)(builder).build()?;
        Ok(self.slab.get_or_init(|| slab))
    }
}

impl<T, Tag> fmt::Debug for StaticSlab<T, Tag> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticSlab")
            .field("name", &self.name)
            .field("max_objects", &self.max_objects)
            .field("slab", &self.slab.get())
            .finish()
    }
}

/// A tag that has one slab of `T` in the whole process, so that a handle need not say which.
///
/// ```
/// use slab_core::{GlobalTag, Slab, SlabBox, StaticSlab};
///
/// struct Rx;
/// impl GlobalTag<[u8; 64]> for Rx {
///     fn slab() -> &'static StaticSlab<[u8; 64], Rx> {
///         static SLAB: StaticSlab<[u8; 64], Rx> = StaticSlab::new("rx", 1000);
///         &SLAB
///     }
/// }
///
/// let packet = Slab::<[u8; 64], Rx>::global()?.try_insert([0; 64])?;
/// let packet = SlabBox::into_global(packet).expect("of the global slab");
/// assert_eq!(size_of_val(&packet), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait GlobalTag<T: 'static>: Sized + 'static {
    /// Returns the slab, always the same one.
    fn slab() -> &'static StaticSlab<T, Self>;
}

impl<T: 'static, Tag: GlobalTag<T>> Slab<T, Tag> {
    /// Returns the tag's slab in this process; the first call opens it.
    ///
    /// # Errors
    /// As [`StaticSlab::get`].
    #[inline]
    pub fn global() -> Result<&'static Self, ConfigError> {
        Tag::slab().get()
    }
}

impl<T: 'static, Tag: GlobalTag<T>> SlabBox<T, Tag> {
    /// Turns the box into a handle of half the size, which finds its slab by its type.
    ///
    /// # Errors
    /// Gives the box back if it is not of the tag's global slab.
    #[inline]
    pub fn into_global(this: Self) -> Result<GlobalBox<T, Tag>, Self> {
        match Tag::slab().slab.get() {
            Some(slab) if slab.pool.inner_ptr() == this.pool_ptr() => Ok(GlobalBox {
                value: Self::into_raw(this),
                owner: core::marker::PhantomData,
            }),
            _ => Err(this),
        }
    }
}

/// A [`SlabBox`] of a [`GlobalTag`]'s slab, in 8 bytes. A smaller handle saves time where handles cross
/// cores, and memory where there are ten million of them.
///
/// Dropping one panics if [`GlobalTag::slab`] returns another slab than before.
pub struct GlobalBox<T: 'static, Tag: GlobalTag<T>> {
    value: NonNull<T>,
    /// `Send` and `Sync` as the box is.
    owner: core::marker::PhantomData<SlabBox<T, Tag>>,
}

// SAFETY: as for `SlabBox`; the slab is found by the type and is `Sync`.
unsafe impl<T: Send + 'static, Tag: GlobalTag<T>> Send for GlobalBox<T, Tag> {}
// SAFETY: as above.
unsafe impl<T: Sync + 'static, Tag: GlobalTag<T>> Sync for GlobalBox<T, Tag> {}
/// Moving the box does not move the value.
impl<T: 'static, Tag: GlobalTag<T>> Unpin for GlobalBox<T, Tag> {}
/// As a `Box` is.
impl<T: UnwindSafe + 'static, Tag: GlobalTag<T>> UnwindSafe for GlobalBox<T, Tag> {}

impl<T: 'static, Tag: GlobalTag<T>> GlobalBox<T, Tag> {
    /// Turns the handle into a [`SlabBox`], which carries its slab with it and has all the methods.
    ///
    /// ```
    /// # use slab_core::{GlobalBox, GlobalTag, Slab, SlabBox, StaticSlab};
    /// # struct Names;
    /// # impl GlobalTag<String> for Names {
    /// #     fn slab() -> &'static StaticSlab<String, Names> {
    /// #         static SLAB: StaticSlab<String, Names> = StaticSlab::new("names", 1000);
    /// #         &SLAB
    /// #     }
    /// # }
    /// let names = Slab::<String, Names>::global()?;
    /// let name = SlabBox::into_global(names.try_insert("slab".to_owned())?).expect("of that slab");
    /// let name: String = SlabBox::into_inner(GlobalBox::into_slab_box(name));
    /// assert_eq!((&*name, names.pool().stats().in_use()), ("slab", 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If [`GlobalTag::slab`] returns another slab than before.
    #[inline]
    #[must_use]
    pub fn into_slab_box(this: Self) -> SlabBox<T, Tag> {
        let this = ManuallyDrop::new(this);
        let slab = Tag::slab().slab.get().expect(SAME_SLAB);
        // The value is alive, so its arena is mapped; it can lie in the arena of its own slab only.
        let unit = unit_at(slab.pool.inner(), this.value.cast());
        assert!(unit.is_some(), "{SAME_SLAB}");
        // SAFETY: the value lies in a chunk of this slab and was this handle's.
        unsafe { SlabBox::from_parts(this.value, slab.pool.inner_ptr()) }
    }
}

/// As [`GlobalBox::into_slab_box`], which can panic.
impl<T: 'static, Tag: GlobalTag<T>> From<GlobalBox<T, Tag>> for SlabBox<T, Tag> {
    #[inline]
    fn from(this: GlobalBox<T, Tag>) -> Self {
        GlobalBox::into_slab_box(this)
    }
}

const SAME_SLAB: &str = "GlobalTag::slab must always return the same slab";

impl<T: 'static, Tag: GlobalTag<T>> Deref for GlobalBox<T, Tag> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the box owns a valid value there.
        unsafe { self.value.as_ref() }
    }
}

impl<T: 'static, Tag: GlobalTag<T>> DerefMut for GlobalBox<T, Tag> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the box owns a valid value there, and is borrowed mutably.
        unsafe { self.value.as_mut() }
    }
}

impl<T: 'static, Tag: GlobalTag<T>> Drop for GlobalBox<T, Tag> {
    #[inline]
    fn drop(&mut self) {
        drop(Self::into_slab_box(Self {
            value: self.value,
            owner: self.owner,
        }));
    }
}

as_its_value!([T: 'static, Tag: GlobalTag<T>] GlobalBox<T, Tag>);
