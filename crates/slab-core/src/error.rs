//! What can go wrong: a configuration that makes no sense, or no memory to hand out.
//! No error repeats in its own text what its source says.

use core::fmt;
use core::mem::MaybeUninit;

/// Why a pool could not be built, or a list of size classes not be made. Nothing is left half-started: no memory stays
/// reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigError {
    /// The list of size classes is empty.
    NoClasses,
    /// More size classes than [`MAX_CLASSES`](crate::MAX_CLASSES).
    TooManyClasses {
        /// How many were asked for; of a geometric list, the count at which that was given up.
        count: usize,
    },
    /// A size class of zero bytes.
    ZeroClass,
    /// A size class that is not a multiple of [`CHUNK_ALIGN`](crate::CHUNK_ALIGN) bytes.
    UnalignedClass {
        /// The class's size in bytes.
        bytes: usize,
    },
    /// A size class above [`MAX_CHUNK_BYTES`](crate::MAX_CHUNK_BYTES).
    ClassTooLarge {
        /// The class's size in bytes.
        bytes: usize,
    },
    /// The size classes are not in strictly ascending order: one is smaller than its predecessor.
    UnsortedClasses {
        /// The class in bytes that stands before `next` but is larger.
        previous: usize,
        /// The class in bytes that should have stood earlier.
        next: usize,
    },
    /// The same size class twice.
    DuplicateClass {
        /// The class's size in bytes.
        bytes: usize,
    },
    /// An alignment that is not a power of two, or is above
    /// [`MAX_CHUNK_ALIGN`](crate::MAX_CHUNK_ALIGN).
    BadAlignment {
        /// The alignment in bytes.
        align: usize,
    },
    /// A growth factor for geometric classes that is not a finite number above 1.
    BadFactor,
    /// The smallest geometric class is larger than the largest.
    EmptyRange {
        /// The smallest class in bytes.
        min: usize,
        /// The largest class in bytes.
        max: usize,
    },
    /// A typed slab for no values: [`max_objects`](crate::SlabBuilder::max_objects) is 0.
    NoObjects,
    /// The memory cap does not hold even one slab.
    CapBelowOneSlab {
        /// The cap in bytes; of memory that was lent, what lies behind its first multiple of
        /// [`MAX_CHUNK_ALIGN`](crate::MAX_CHUNK_ALIGN).
        max_memory: usize,
        /// One slab in bytes, given the size classes.
        slab_bytes: usize,
    },
    /// The memory cap does not hold a slab for each class, as [`Mode::Ring`](crate::Mode::Ring)
    /// needs.
    CapBelowClasses {
        /// The slabs that the cap holds.
        slabs: usize,
        /// The size classes.
        classes: usize,
    },
    /// The memory cap is beyond what a chunk's index of 32 bits can address, which counts pieces of 64 bytes: 256 GiB, less
    /// 64 bytes.
    CapTooLarge {
        /// The cap in bytes.
        max_memory: usize,
        /// The largest cap in bytes.
        limit: usize,
    },
    /// Less was lent for the bookkeeping than it needs; only from
    /// [`build_all_in`](crate::SlabPoolBuilder::build_all_in).
    BookkeepingTooSmall {
        /// The bytes that were lent for it.
        bytes: usize,
        /// So many are enough, wherever they begin; from a multiple of 128 on, 127 less.
        needed: usize,
    },
    /// As many pools exist as a process can have. [`SlabPool`](crate::SlabPool#many-pools) tells how many that is; one
    /// counts until its last chunk is freed.
    TooManyPools,
    /// The operating system would not back the pool with memory, or not lock it, at the start.
    Back {
        /// How many bytes were asked for.
        bytes: usize,
        /// The system's error number.
        errno: i32,
    },
    /// The operating system would not reserve the address range; or it, or the heap, has no memory for the pool's tables.
    Reserve {
        /// The bytes of the pool's memory. What was refused may also be one of the tables beside it, which are mostly
        /// smaller.
        bytes: usize,
        /// The system's error number.
        errno: i32,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoClasses => write!(f, "the list of size classes is empty"),
            Self::TooManyClasses { count } => write!(
                f,
                "{count} size classes, but a pool has at most {}",
                crate::MAX_CLASSES
            ),
            Self::ZeroClass => write!(f, "a size class of 0 bytes"),
            Self::UnalignedClass { bytes } => write!(
                f,
                "size class of {bytes} bytes is not a multiple of {}",
                crate::CHUNK_ALIGN
            ),
            Self::ClassTooLarge { bytes } => write!(
                f,
                "size class of {bytes} bytes is above the largest possible, {} bytes",
                crate::MAX_CHUNK_BYTES
            ),
            Self::UnsortedClasses { previous, next } => write!(
                f,
                "size classes must ascend, but {next} bytes stands after {previous}"
            ),
            Self::DuplicateClass { bytes } => write!(f, "size class of {bytes} bytes stands twice"),
            Self::BadAlignment { align } => write!(
                f,
                "an alignment of {align} bytes is not a power of two up to {}",
                crate::MAX_CHUNK_ALIGN
            ),
            Self::BadFactor => write!(f, "the growth factor must be a finite number above 1"),
            Self::EmptyRange { min, max } => write!(
                f,
                "the smallest class, {min} bytes, is above the largest, {max} bytes"
            ),
            Self::NoObjects => write!(f, "max_objects is 0, but a slab holds at least one value"),
            Self::CapBelowOneSlab {
                max_memory,
                slab_bytes,
            } => write!(
                f,
                "a cap of {max_memory} bytes does not hold one slab of {slab_bytes} bytes; \
                 raise the cap or lower the largest size class (memory that was lent counts from its first multiple of 4096 on)"
            ),
            Self::CapBelowClasses { slabs, classes } => write!(
                f,
                "a cap of {slabs} slabs does not hold one for each of {classes} size classes; \
                 raise the cap or leave classes out"
            ),
            Self::CapTooLarge { max_memory, limit } => write!(
                f,
                "a cap of {max_memory} bytes is above the largest possible, {limit} bytes"
            ),
            Self::BookkeepingTooSmall { bytes, needed } => write!(
                f,
                "{bytes} bytes were lent for the bookkeeping, which needs {needed} bytes"
            ),
            Self::TooManyPools => {
                write!(
                    f,
                    "this process has as many pools as it can have; let several share one, or end some \
                     (a pool ends when its last handle and its last chunk are gone)"
                )
            }
            Self::Back { bytes, errno } => write!(
                f,
                "the operating system refused to back {bytes} bytes with memory (os error {errno})"
            ),
            Self::Reserve { bytes, errno } => write!(
                f,
                "there is no address space for a pool of {bytes} bytes, or no memory for its tables (os error {errno})"
            ),
        }
    }
}

impl core::error::Error for ConfigError {}

/// An error of the kind that fits, with this one in it.
#[cfg(feature = "std")]
impl From<ConfigError> for std::io::Error {
    fn from(error: ConfigError) -> Self {
        use ConfigError as E;
        use std::io::ErrorKind;
        let kind = match error {
            E::NoClasses
            | E::TooManyClasses { .. }
            | E::ZeroClass
            | E::UnalignedClass { .. }
            | E::ClassTooLarge { .. }
            | E::UnsortedClasses { .. }
            | E::DuplicateClass { .. }
            | E::BadAlignment { .. }
            | E::BadFactor
            | E::EmptyRange { .. }
            | E::NoObjects
            | E::CapBelowOneSlab { .. }
            | E::CapBelowClasses { .. }
            | E::CapTooLarge { .. }
            | E::BookkeepingTooSmall { .. } => ErrorKind::InvalidInput,
            E::TooManyPools => ErrorKind::QuotaExceeded,
            // Whatever the system calls it: a limit on locked memory has other numbers than ENOMEM, too.
            E::Back { .. } | E::Reserve { .. } => ErrorKind::OutOfMemory,
        };
        Self::new(kind, error)
    }
}

/// Why a pool could not be built in the caller's memory, which is in the error and comes back out of it.
///
/// ```
/// # use slab_core::{ConfigError, Mode, SlabPool};
/// let memory = Box::leak(Box::<[u8]>::new_uninit_slice(1 << 20));
/// let refused = SlabPool::builder().mode(Mode::Ring).build_in(memory).unwrap_err();
/// assert!(matches!(refused.error(), ConfigError::CapBelowClasses { .. }));
/// let pool = SlabPool::builder().build_in(refused.into_memory())?;
/// # Ok::<(), ConfigError>(())
/// ```
pub struct BuildInError {
    error: ConfigError,
    memory: &'static mut [MaybeUninit<u8>],
    bookkeeping: &'static mut [MaybeUninit<u8>],
}

impl BuildInError {
    pub(crate) fn new(error: ConfigError, memory: &'static mut [MaybeUninit<u8>]) -> Self {
        let bookkeeping = &mut [];
        Self {
            error,
            memory,
            bookkeeping,
        }
    }

    pub(crate) fn with_bookkeeping(self, bookkeeping: &'static mut [MaybeUninit<u8>]) -> Self {
        Self {
            bookkeeping,
            ..self
        }
    }

    /// Returns why; also the `source`.
    #[must_use]
    pub fn error(&self) -> ConfigError {
        self.error
    }

    /// Returns the memory, all of it. What it holds may have changed.
    #[must_use = "the memory is lost otherwise"]
    pub fn into_memory(self) -> &'static mut [MaybeUninit<u8>] {
        self.memory
    }

    /// Returns the memory as [`into_memory`](Self::into_memory) does, and what was lent for the bookkeeping: nothing but
    /// after [`build_all_in`](crate::SlabPoolBuilder::build_all_in).
    #[must_use = "the memory is lost otherwise"]
    pub fn into_memory_and_bookkeeping(
        self,
    ) -> (
        &'static mut [MaybeUninit<u8>],
        &'static mut [MaybeUninit<u8>],
    ) {
        (self.memory, self.bookkeeping)
    }
}

/// Leaves the memory out.
impl fmt::Debug for BuildInError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildInError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for BuildInError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no pool was built in the memory that was lent")
    }
}

impl core::error::Error for BuildInError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The reason alone; the memory stays lent.
impl From<BuildInError> for ConfigError {
    fn from(refused: BuildInError) -> Self {
        refused.error
    }
}

/// The reason alone, as [`ConfigError`] converts; the memory stays lent.
#[cfg(feature = "std")]
impl From<BuildInError> for std::io::Error {
    fn from(refused: BuildInError) -> Self {
        refused.error.into()
    }
}

/// Why an allocation was refused. Nothing was taken from the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllocError {
    /// No chunk of the size class is free, and the pool is at its cap, or in
    /// [`Mode::Ring`](crate::Mode::Ring) the class at its share of the cap. Other classes may have free chunks:
    /// see [`max_memory`](crate::SlabPoolBuilder::max_memory).
    Exhausted {
        /// The chunk size in bytes that was needed.
        chunk_bytes: usize,
    },
    /// The request is larger than the largest size class: it can never be met.
    TooLarge {
        /// The bytes that were asked for.
        requested: usize,
        /// The largest size class in bytes.
        largest: usize,
    },
    /// The request is larger than the largest size class, and too little is left of what such requests
    /// may take of the heap; only from [`SlabPool::try_alloc_any`](crate::SlabPool::try_alloc_any).
    OversizeExhausted {
        /// The bytes that were asked for.
        requested: usize,
        /// What all such requests together may take, in bytes.
        limit: usize,
    },
    /// The operating system would not back a slab with memory, and the pool has no free memory of its
    /// own; or the heap has none for a request above the largest size class. [`SlabPool::alloc`] does not
    /// wait in this case either: the system does not tell when it has memory again.
    ///
    /// [`SlabPool::alloc`]: crate::SlabPool::alloc
    Commit {
        /// The system's error number.
        errno: i32,
    },
    /// As many tasks wait in the pool already as it allows; only from [`SlabPool::alloc`].
    ///
    /// [`SlabPool::alloc`]: crate::SlabPool::alloc
    TooManyWaiters {
        /// The most tasks that may wait.
        limit: usize,
    },
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exhausted { chunk_bytes } => write!(
                f,
                "no chunk of {chunk_bytes} bytes is free, and the memory cap, or the share that the class has of it, leaves no room for more"
            ),
            Self::TooLarge { requested, largest } => write!(
                f,
                "{requested} bytes asked for, but the largest size class has {largest} bytes"
            ),
            Self::OversizeExhausted { requested, limit } => write!(
                f,
                "{requested} bytes asked for, but of the {limit} bytes for requests above the largest size class too few are left"
            ),
            Self::Commit { errno } => {
                write!(f, "the operating system refused memory (os error {errno})")
            }
            Self::TooManyWaiters { limit } => {
                write!(f, "{limit} tasks wait for the pool's memory already")
            }
        }
    }
}

impl core::error::Error for AllocError {}

/// An error of the kind that fits, with this one in it.
#[cfg(feature = "std")]
impl From<AllocError> for std::io::Error {
    fn from(error: AllocError) -> Self {
        use std::io::ErrorKind;
        let kind = match error {
            AllocError::Exhausted { .. }
            | AllocError::OversizeExhausted { .. }
            | AllocError::Commit { .. } => ErrorKind::OutOfMemory,
            AllocError::TooLarge { .. } => ErrorKind::InvalidInput,
            AllocError::TooManyWaiters { .. } => ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}

/// A pointer that is not the start of a chunk of the pool that was asked, or, where the pool is
/// [hardened](crate::SlabPoolBuilder::hardened), of a chunk that is not in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotAChunk(pub(crate) ());

impl fmt::Display for NotAChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pointer is not the start of a chunk in use of this pool")
    }
}

impl core::error::Error for NotAChunk {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{InsertError, Slab, SlabPool};
    use alloc::boxed::Box;
    use alloc::string::ToString;
    use alloc::vec;
    use alloc::vec::Vec;
    use core::error::Error;
    use core::iter::successors;

    /// One error for each variant; does not compile if one is missing.
    macro_rules! every {
        ($of:ty: $($variant:pat => $error:expr),* $(,)?) => {{
            let _ = |error: &$of| match error { $($variant => ()),* };
            vec![$($error),*]
        }};
    }

    fn config_errors() -> Vec<ConfigError> {
        use ConfigError as E;
        every!(E:
            E::NoClasses => E::NoClasses,
            E::TooManyClasses { .. } => E::TooManyClasses { count: 65 },
            E::ZeroClass => E::ZeroClass,
            E::UnalignedClass { .. } => E::UnalignedClass { bytes: 65 },
            E::ClassTooLarge { .. } => E::ClassTooLarge { bytes: usize::MAX },
            E::UnsortedClasses { .. } => E::UnsortedClasses { previous: 128, next: 64 },
            E::DuplicateClass { .. } => E::DuplicateClass { bytes: 64 },
            E::BadAlignment { .. } => E::BadAlignment { align: 3 },
            E::BadFactor => E::BadFactor,
            E::EmptyRange { .. } => E::EmptyRange { min: 128, max: 64 },
            E::NoObjects => E::NoObjects,
            E::CapBelowOneSlab { .. } => E::CapBelowOneSlab { max_memory: 1, slab_bytes: 2 },
            E::CapBelowClasses { .. } => E::CapBelowClasses { slabs: 1, classes: 2 },
            E::CapTooLarge { .. } => E::CapTooLarge { max_memory: 2, limit: 1 },
            E::BookkeepingTooSmall { .. } => E::BookkeepingTooSmall { bytes: 1, needed: 2 },
            E::Back { .. } => E::Back { bytes: 1, errno: 12 },
            E::TooManyPools => E::TooManyPools,
            E::Reserve { .. } => E::Reserve { bytes: 1, errno: 12 },
        )
    }

    fn alloc_errors() -> Vec<AllocError> {
        use AllocError as E;
        every!(E:
            E::Exhausted { .. } => E::Exhausted { chunk_bytes: 64 },
            E::TooLarge { .. } => E::TooLarge { requested: 2, largest: 1 },
            E::OversizeExhausted { .. } => E::OversizeExhausted { requested: 2, limit: 1 },
            E::Commit { .. } => E::Commit { errno: 12 },
            E::TooManyWaiters { .. } => E::TooManyWaiters { limit: 1 },
        )
    }

    fn insert_error() -> InsertError<[u8; 16384]> {
        // Four of them fill a slab, which is few, for Miri.
        let slab = Slab::<[u8; 16384]>::builder()
            .max_objects(1)
            .build()
            .unwrap();
        let held: Vec<_> = (0..slab.capacity())
            .map(|_| slab.try_insert([0; 16384]).unwrap())
            .collect();
        let refused = slab.try_insert([1; 16384]).unwrap_err();
        drop(held);
        refused
    }

    fn build_in_error() -> BuildInError {
        SlabPool::builder().build_in(&mut []).unwrap_err()
    }

    fn boxed<E: Error + 'static>(errors: impl IntoIterator<Item = E>) -> Vec<Box<dyn Error>> {
        let boxed = errors
            .into_iter()
            .map(|error| Box::new(error) as Box<dyn Error>);
        boxed.collect()
    }

    #[test]
    fn no_error_says_what_its_source_says() {
        let all = [
            boxed(config_errors()),
            #[cfg(feature = "std")]
            boxed(config_errors().into_iter().map(std::io::Error::from)),
            boxed(alloc_errors()),
            #[cfg(feature = "std")]
            boxed(alloc_errors().into_iter().map(std::io::Error::from)),
            boxed([NotAChunk(())]),
            boxed([insert_error()]),
            boxed([build_in_error()]),
        ];
        for error in all.into_iter().flatten() {
            for error in successors(Some(&*error), |&error| error.source()) {
                let said = error.to_string();
                assert!(!said.is_empty());
                if let Some(source) = error.source() {
                    assert!(!said.contains(&source.to_string()), "{said}: {source}");
                }
            }
        }
    }

    #[cfg(feature = "std")]
    #[test]
    fn an_io_error_has_the_reason_in_it() {
        for error in alloc_errors() {
            let io = std::io::Error::from(error);
            let kept = io.get_ref().and_then(|inner| inner.downcast_ref());
            assert_eq!(kept, Some(&error));
            let is_memory = !matches!(
                error,
                AllocError::TooLarge { .. } | AllocError::TooManyWaiters { .. }
            );
            assert_eq!(io.kind() == std::io::ErrorKind::OutOfMemory, is_memory);
        }
        for error in config_errors() {
            use std::io::ErrorKind;
            let io = std::io::Error::from(error);
            let kept = io.get_ref().and_then(|inner| inner.downcast_ref());
            assert_eq!(kept, Some(&error));
            let kind = match error {
                ConfigError::Back { .. } | ConfigError::Reserve { .. } => ErrorKind::OutOfMemory,
                ConfigError::TooManyPools => ErrorKind::QuotaExceeded,
                _ => ErrorKind::InvalidInput,
            };
            assert_eq!(io.kind(), kind, "{error}");
        }
        let refused = insert_error();
        let why = refused.error;
        let io = std::io::Error::from(refused);
        let kept = io.get_ref().and_then(|inner| inner.downcast_ref());
        assert_eq!(kept, Some(&why));
    }

    #[test]
    fn why_a_value_was_not_inserted_is_a_source() {
        let refused = insert_error();
        let why = refused.source().and_then(|why| why.downcast_ref());
        assert_eq!(why, Some(&refused.error));
    }

    #[test]
    fn why_no_pool_was_built_in_lent_memory_is_a_source() {
        let refused = build_in_error();
        let why = refused.source().and_then(|why| why.downcast_ref());
        assert_eq!(why, Some(&refused.error()));
        let error = refused.error();
        assert_eq!(
            alloc::format!("{refused:?}"),
            alloc::format!("BuildInError {{ error: {error:?}, .. }}"),
            "without the memory"
        );
        #[cfg(feature = "std")]
        assert_eq!(
            std::io::Error::from(build_in_error()).kind(),
            std::io::ErrorKind::InvalidInput
        );
        assert_eq!(ConfigError::from(build_in_error()), refused.error());
    }
}
