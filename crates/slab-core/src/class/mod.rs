//! Size classes: the chunk sizes that a pool is asked to have, and which of them serves a request.
//!
//! How a pool finds that class at each allocation is told in [`geometry`].

pub(crate) mod geometry;
pub(crate) mod place;

use crate::error::ConfigError;
use arrayvec::ArrayVec;

/// The most size classes that one pool can have: 24.
// Fewer where a checker has to look at each class's magazine, whether used or not.
pub const MAX_CLASSES: usize = if cfg!(loom) {
    2
} else if cfg!(any(shuttle, miri)) {
    16
} else {
    24
};
/// Every chunk starts on a multiple of this many bytes: one cache line.
pub const CHUNK_ALIGN: usize = 64;
/// The largest size class in bytes.
pub const MAX_CHUNK_BYTES: usize = 16 << 20;
/// The largest alignment in bytes that a size class can promise: the arena starts on a page.
pub const MAX_CHUNK_ALIGN: usize = 4096;

/// The chunk sizes of a pool in bytes, strictly ascending.
///
/// Sizes are multiples of [`CHUNK_ALIGN`] but need not be powers of two: 1536 for an Ethernet
/// MTU wastes less than 2048.
///
/// ```
/// use slab_core::SizeClasses;
///
/// let classes = SizeClasses::explicit(&[256, 1536, 9216])?;
/// assert_eq!(classes.class_for(1500), Some(1));
/// assert_eq!(classes.sizes(), &[256, 1536, 9216]);
/// # Ok::<(), slab_core::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeClasses {
    sizes: ArrayVec<usize, MAX_CLASSES>,
}

impl SizeClasses {
    /// Returns classes of exactly these sizes in bytes.
    ///
    /// ```
    /// # use slab_core::{ConfigError, SizeClasses, SlabPool};
    /// let classes = SizeClasses::explicit(&[1536, 65536])?; // an Ethernet frame, a GRO super-buffer
    /// let pool = SlabPool::builder().size_classes(classes).build()?;
    /// assert_eq!(pool.try_alloc(100)?.capacity(), 1536);
    /// assert_eq!(pool.try_alloc(1537)?.capacity(), 65536);
    ///
    /// let refused = SizeClasses::explicit(&[1500, 65536]).unwrap_err();
    /// assert_eq!(refused, ConfigError::UnalignedClass { bytes: 1500 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The list is empty, too long, not strictly ascending, or holds a size that is zero, not a
    /// multiple of [`CHUNK_ALIGN`], or above [`MAX_CHUNK_BYTES`].
    pub fn explicit(sizes: &[usize]) -> Result<Self, ConfigError> {
        if sizes.is_empty() {
            return Err(ConfigError::NoClasses);
        }
        if sizes.len() > MAX_CLASSES {
            return Err(ConfigError::TooManyClasses { count: sizes.len() });
        }
        let mut checked = ArrayVec::<usize, MAX_CLASSES>::new();
        for &bytes in sizes {
            if bytes == 0 {
                return Err(ConfigError::ZeroClass);
            }
            if bytes > MAX_CHUNK_BYTES {
                return Err(ConfigError::ClassTooLarge { bytes });
            }
            if !bytes.is_multiple_of(CHUNK_ALIGN) {
                return Err(ConfigError::UnalignedClass { bytes });
            }
            match checked.last() {
                Some(&previous) if previous == bytes => {
                    return Err(ConfigError::DuplicateClass { bytes });
                }
                Some(&previous) if previous > bytes => {
                    return Err(ConfigError::UnsortedClasses {
                        previous,
                        next: bytes,
                    });
                }
                _ => checked.push(bytes),
            }
        }
        Ok(Self { sizes: checked })
    }

    /// Returns classes from `min` to `max` bytes: each size is `factor` times the one before, and all are then
    /// rounded up to multiples of [`CHUNK_ALIGN`], of which equal ones make one class. `max`, rounded up, is always
    /// the last.
    ///
    /// ```
    /// # use slab_core::SizeClasses;
    /// let classes = SizeClasses::geometric(64, 1024, 2.0)?;
    /// assert_eq!(classes.sizes(), &[64, 128, 256, 512, 1024]);
    /// // 100, 150, 225, 337.5 and 400
    /// assert_eq!(SizeClasses::geometric(100, 400, 1.5)?.sizes(), &[128, 192, 256, 384, 448]);
    /// # Ok::<(), slab_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// `min > max`, a factor that is not a finite number above 1, or a list that
    /// [`explicit`](Self::explicit) refuses.
    pub fn geometric(min: usize, max: usize, factor: f64) -> Result<Self, ConfigError> {
        if !factor.is_finite() || factor <= 1.0 {
            return Err(ConfigError::BadFactor);
        }
        if min > max {
            return Err(ConfigError::EmptyRange { min, max });
        }
        if max > MAX_CHUNK_BYTES {
            return Err(ConfigError::ClassTooLarge { bytes: max });
        }
        if min == 0 {
            return Err(ConfigError::ZeroClass);
        }
        let last = max.next_multiple_of(CHUNK_ALIGN);
        let mut sizes = ArrayVec::<usize, MAX_CLASSES>::new();
        let mut exact = min as f64;
        loop {
            // `min` comes before the conversion: a float above the largest `usize` would become that,
            // which has no multiple above it.
            let bytes = (exact.min(last as f64) as usize).next_multiple_of(CHUNK_ALIGN);
            if sizes.last() != Some(&bytes) && sizes.try_push(bytes).is_err() {
                return Err(ConfigError::TooManyClasses {
                    count: MAX_CLASSES + 1,
                });
            }
            if bytes == last {
                return Self::explicit(&sizes);
            }
            // At least a byte more, so that a factor just above 1 gets somewhere.
            exact = (exact * factor).max(exact + 1.0);
        }
    }

    /// Returns the default for networking: 64 B to 64 KiB, with the sizes that packets have (1280 for
    /// the smallest IPv6 MTU, 1536 for Ethernet, 9216 for jumbo frames, 64 KiB for a GRO super-buffer).
    /// A request of 32 B or more takes a chunk of at most twice its size, which is what 6144 is for.
    #[must_use]
    pub fn network() -> Self {
        let sizes = [
            64, 128, 256, 512, 1024, 1280, 1536, 2048, 4096, 6144, 9216, 16384, 32768, 65536,
        ];
        // Loom's models have room for fewer.
        Self::explicit(&sizes[..sizes.len().min(MAX_CLASSES)])
            .expect("the list is ascending and aligned")
    }

    /// Returns the default for general use: powers of two from 64 B to 1 MiB. Slabs then have 4 MiB, so that the
    /// [cap](crate::SlabPoolBuilder::max_memory) should hold many of them.
    #[must_use]
    pub fn general() -> Self {
        Self::geometric(64, 1 << 20, 2.0).expect("fifteen powers of two")
    }

    /// Returns the chunk sizes in bytes, ascending.
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the largest chunk size in bytes.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().build()?;
    /// let file = vec![7; 200_000];
    /// for piece in file.chunks(pool.size_classes().largest()) {
    ///     let mut chunk = pool.try_alloc(piece.len())?;
    ///     chunk.try_copy_from_slice(piece).expect("it fits");
    /// }
    /// # assert_eq!(pool.size_classes().largest(), 65536);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn largest(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// Returns the same classes with every size rounded up to a multiple of `align` bytes, so that every
    /// chunk is aligned to it; classes that become equal are merged. Direct I/O needs 512 or 4096.
    ///
    /// To align some classes only, give their sizes as multiples in [`explicit`](Self::explicit).
    ///
    /// ```
    /// # use slab_core::SizeClasses;
    /// let classes = SizeClasses::explicit(&[1536, 9216])?.aligned_to(4096)?;
    /// assert_eq!(classes.sizes(), &[4096, 12288]);
    /// assert_eq!(classes.align(1), 4096);
    /// # Ok::<(), slab_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// `align` is not a power of two or above [`MAX_CHUNK_ALIGN`].
    pub fn aligned_to(&self, align: usize) -> Result<Self, ConfigError> {
        if !align.is_power_of_two() || align > MAX_CHUNK_ALIGN {
            return Err(ConfigError::BadAlignment { align });
        }
        let mut sizes = ArrayVec::<usize, MAX_CLASSES>::new();
        for &bytes in &self.sizes {
            let bytes = bytes.next_multiple_of(align);
            if sizes.last() != Some(&bytes) {
                sizes.push(bytes);
            }
        }
        Self::explicit(&sizes)
    }

    /// Returns the alignment in bytes that every chunk of a class has: the largest power of two that
    /// divides its size, at most [`MAX_CHUNK_ALIGN`]. So 1536 promises 512, and 4096 promises 4096.
    ///
    /// # Panics
    /// If there is no such class.
    #[must_use]
    pub fn align(&self, class: usize) -> usize {
        // A slab starts on a multiple of its size, a power of two of at least 64 KiB, in an arena
        // that starts on a page; its chunks lie one behind the other.
        (1 << self.sizes[class].trailing_zeros()).min(MAX_CHUNK_ALIGN)
    }

    /// Returns the index of the class whose chunks have exactly `len` bytes; `None` if none has.
    ///
    /// ```
    /// # use slab_core::SizeClasses;
    /// let classes = SizeClasses::network();
    /// assert_eq!(classes.exact(1536), Some(6));
    /// assert_eq!(classes.exact(1500), None);
    /// assert_eq!(classes.round_up(1500), Some(1536));
    /// ```
    #[must_use]
    pub fn exact(&self, len: usize) -> Option<usize> {
        self.sizes.binary_search(&len).ok()
    }

    /// Returns the usable bytes of the chunk that serves a request of `len` bytes; `None` if no class
    /// holds them.
    #[must_use]
    pub fn round_up(&self, len: usize) -> Option<usize> {
        self.class_for(len).map(|class| self.sizes[class])
    }

    /// Returns the index of the smallest class that holds `len` bytes and whose chunks are aligned to
    /// `align` bytes; `None` if none does, or if `align` is not a power of two. Ask a pool for that class's
    /// size to get such a chunk.
    ///
    /// ```
    /// # use slab_core::{SizeClasses, SlabPool};
    /// let pool = SlabPool::builder().build()?;
    /// let classes = pool.size_classes();
    /// let class = classes.class_for_aligned(1500, 1024).expect("2048 is a class");
    /// let chunk = pool.try_alloc(classes.sizes()[class])?;
    /// assert!(chunk.as_ptr().addr().get().is_multiple_of(1024));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn class_for_aligned(&self, len: usize, align: usize) -> Option<usize> {
        if !align.is_power_of_two() {
            return None;
        }
        let first = self.class_for(len)?;
        (first..self.sizes.len()).find(|&class| self.align(class) >= align)
    }

    /// Returns the index of the smallest class that holds `len` bytes; `None` if none does. Searches the
    /// sizes in turn; [`SlabPool::class_for`](crate::SlabPool::class_for) looks in a table.
    #[must_use]
    pub fn class_for(&self, len: usize) -> Option<usize> {
        self.sizes.iter().position(|&bytes| bytes >= len)
    }
}

impl Default for SizeClasses {
    fn default() -> Self {
        Self::network()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn bad_lists_are_refused_with_their_reason() {
        use ConfigError::*;
        let cases: &[(&[usize], ConfigError)] = &[
            (&[], NoClasses),
            (&[0], ZeroClass),
            (&[100], UnalignedClass { bytes: 100 }),
            (&[64, 64], DuplicateClass { bytes: 64 }),
            (
                &[128, 64],
                UnsortedClasses {
                    previous: 128,
                    next: 64,
                },
            ),
            (
                &[MAX_CHUNK_BYTES + 64],
                ClassTooLarge {
                    bytes: MAX_CHUNK_BYTES + 64,
                },
            ),
            (&[usize::MAX], ClassTooLarge { bytes: usize::MAX }),
        ];
        for (list, error) in cases {
            assert_eq!(SizeClasses::explicit(list).as_ref(), Err(error), "{list:?}");
        }
        let long: Vec<usize> = (1..=MAX_CLASSES + 1).map(|i| i * 64).collect();
        assert_eq!(
            SizeClasses::explicit(&long),
            Err(TooManyClasses {
                count: MAX_CLASSES + 1
            })
        );
    }

    #[test]
    fn geometric_ends_at_max_and_refuses_bad_arguments() {
        let odd = SizeClasses::geometric(100, 1000, 1.5).unwrap();
        assert_eq!(odd.sizes(), &[128, 192, 256, 384, 512, 768, 1024]);
        assert_eq!(
            SizeClasses::geometric(64, 64, 2.0).unwrap().sizes(),
            &[64usize]
        );
        for factor in [1.0, 0.5, 0.0, -2.0, f64::NAN, f64::INFINITY] {
            assert_eq!(
                SizeClasses::geometric(64, 128, factor),
                Err(ConfigError::BadFactor)
            );
        }
        assert_eq!(
            SizeClasses::geometric(0, 128, 2.0),
            Err(ConfigError::ZeroClass)
        );
        assert_eq!(
            SizeClasses::geometric(65, 64, 2.0),
            Err(ConfigError::EmptyRange { min: 65, max: 64 })
        );
        assert!(matches!(
            SizeClasses::geometric(64, usize::MAX, 2.0),
            Err(ConfigError::ClassTooLarge { .. })
        ));
        assert!(matches!(
            SizeClasses::geometric(64, 1 << 20, 1.01),
            Err(ConfigError::TooManyClasses { .. })
        ));
    }

    #[test]
    fn geometric_terminates_for_any_factor() {
        let tiny = SizeClasses::geometric(64, 128, 1.0 + f64::EPSILON).unwrap();
        assert_eq!(tiny.sizes(), &[64usize, 128]);
        assert!(matches!(
            SizeClasses::geometric(1, MAX_CHUNK_BYTES, 1.0 + f64::EPSILON),
            Err(ConfigError::TooManyClasses { .. })
        ));
        for factor in [1e18, 1e300, f64::MAX] {
            let huge = SizeClasses::geometric(64, 1000, factor).unwrap();
            assert_eq!(huge.sizes(), &[64usize, 1024], "{factor}");
        }
    }

    #[test]
    fn exact_round_up_align_and_class_for_aligned() {
        let classes = SizeClasses::explicit(&[192, 1536, 2048, 4096, 12288, 131_072]).unwrap();
        assert_eq!(classes.exact(1536), Some(1));
        assert_eq!(classes.exact(1535), None);
        assert_eq!(classes.round_up(193), Some(1536));
        assert_eq!(classes.round_up(131_073), None);
        let aligns: Vec<usize> = (0..6).map(|class| classes.align(class)).collect();
        assert_eq!(aligns, [64, 512, 2048, 4096, 4096, 4096]);
        for (len, align, class) in [
            (1, 1, Some(0)),
            (1, 64, Some(0)),
            (1, 128, Some(1)),
            (100, 1024, Some(2)),
            (5000, 4096, Some(4)),
            (1, 8192, None),
            (131_073, 1, None),
            (1, 0, None),
            (1, 96, None),
        ] {
            assert_eq!(
                classes.class_for_aligned(len, align),
                class,
                "{len} {align}"
            );
        }
        assert_eq!(
            SizeClasses::network().aligned_to(4096).unwrap().sizes(),
            &[4096usize, 8192, 12288, 16384, 32768, 65536]
        );
        for align in [0, 3, 8192] {
            assert_eq!(
                classes.aligned_to(align),
                Err(ConfigError::BadAlignment { align })
            );
        }
    }

    #[test]
    fn every_chunk_has_the_alignment_that_its_class_promises() {
        let classes = SizeClasses::explicit(&[64, 192, 512, 1536, 12288, 20480]).unwrap();
        let pool = crate::SlabPool::builder()
            .size_classes(classes.clone())
            .max_memory(2 << 20)
            .build()
            .unwrap();
        for (class, &bytes) in classes.sizes().iter().enumerate() {
            let chunks: Vec<_> = (0..20).map_while(|_| pool.try_alloc(bytes).ok()).collect();
            assert!(chunks.len() > 2, "more than a slab of {bytes}");
            for chunk in &chunks {
                let at = chunk.as_ptr().addr().get();
                assert!(at.is_multiple_of(classes.align(class)), "{bytes} at {at:x}");
            }
        }
    }
}
