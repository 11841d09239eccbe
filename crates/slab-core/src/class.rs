//! Size classes: which chunk size serves a request, and how chunks of that size lie in a slab.
//!
//! Pure functions of the configuration: nothing here changes once a pool is built. A request of up
//! to [`TABLE_BYTES`] is looked up in a table, one entry per 64 bytes; a larger one by
//! comparing with the few classes above.

use crate::error::ConfigError;
use crate::sync::MODELLED;
use crate::thread_cache::Place;
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

/// Requests of up to this many bytes find their class by one load.
// Fewer in models: a pool is built on the stack, of which loom's threads have little.
const TABLE_BYTES: usize = if MODELLED { 4 << 10 } else { 64 << 10 };
const TABLE_LEN: usize = TABLE_BYTES / CHUNK_ALIGN + 1;
/// A slab holds at least this many chunks of the largest class.
const MIN_CHUNKS_PER_SLAB: usize = 4;
const MIN_SLAB_BYTES: usize = if MODELLED { 4 << 10 } else { 64 << 10 };
/// How many bytes of chunks move between a magazine and the depot at once, at most.
const BATCH_BYTES: usize = 256 << 10;
/// The most chunks in a batch. A magazine of two batches and its counters then take 512 bytes, and
/// a batch block in the depot 232.
///
/// Models have tiny batches (as they have tiny slabs and few classes), so that every path is taken
/// within a few steps; for Miri a batch costs time in proportion to its length.
pub(crate) const BATCH_MAX: usize = if MODELLED {
    2
} else if cfg!(miri) {
    8
} else {
    56
};

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
    /// Exactly these sizes in bytes.
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

    /// From `min` to `max` bytes, each `factor` times the one before, rounded up to
    /// [`CHUNK_ALIGN`]; `max` is always the last.
    ///
    /// ```
    /// # use slab_core::SizeClasses;
    /// let classes = SizeClasses::geometric(64, 1024, 2.0)?;
    /// assert_eq!(classes.sizes(), &[64, 128, 256, 512, 1024]);
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
            // A float above the last class saturates, so the cast cannot wrap.
            let bytes = (exact as usize).next_multiple_of(CHUNK_ALIGN).min(last);
            if sizes.last() != Some(&bytes) && sizes.try_push(bytes).is_err() {
                return Err(ConfigError::TooManyClasses {
                    count: MAX_CLASSES + 1,
                });
            }
            if bytes == last {
                return Self::explicit(&sizes);
            }
            exact *= factor;
        }
    }

    /// The default for networking: 64 B to 64 KiB, with the sizes that packets have (1280 for the
    /// smallest IPv6 MTU, 1536 for Ethernet, 9216 for jumbo frames, 64 KiB for a GRO super-buffer).
    /// From 32 B on nothing takes a chunk of more than twice its size, which is what 6144 is for.
    #[must_use]
    pub fn network() -> Self {
        let sizes = [
            64, 128, 256, 512, 1024, 1280, 1536, 2048, 4096, 6144, 9216, 16384, 32768, 65536,
        ];
        // Loom's models have room for fewer.
        Self::explicit(&sizes[..sizes.len().min(MAX_CLASSES)])
            .expect("the list is ascending and aligned")
    }

    /// The default for general use: powers of two from 64 B to 1 MiB.
    #[must_use]
    pub fn general() -> Self {
        Self::geometric(64, 1 << 20, 2.0).expect("fifteen powers of two")
    }

    /// The chunk sizes in bytes, ascending.
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The largest chunk size in bytes.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// The same classes with every size rounded up to a multiple of `align` bytes, so that every
    /// chunk is aligned to it; classes that become equal are one. Direct I/O wants 512 or 4096.
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

    /// What every chunk of a class is aligned to, in bytes: the largest power of two that divides
    /// its size, at most [`MAX_CHUNK_ALIGN`]. So 1536 promises 512, and 4096 promises 4096.
    ///
    /// # Panics
    /// If there is no such class.
    #[must_use]
    pub fn align(&self, class: usize) -> usize {
        // A slab starts on a multiple of its size, a power of two of at least 64 KiB, in an arena
        // that starts on a page; its chunks lie one behind the other.
        (1 << self.sizes[class].trailing_zeros()).min(MAX_CHUNK_ALIGN)
    }

    /// The index of the class whose chunks have exactly `len` bytes; `None` if none has.
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

    /// The usable bytes of the chunk that a request of `len` bytes gets; `None` if no class holds
    /// them.
    #[must_use]
    pub fn round_up(&self, len: usize) -> Option<usize> {
        self.class_for(len).map(|class| self.sizes[class])
    }

    /// The index of the smallest class that holds `len` bytes and whose chunks are aligned to
    /// `align` bytes; `None` if none does. Asking a pool for that class's size gives such a chunk.
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
        let first = self.class_for(len)?;
        (first..self.sizes.len()).find(|&class| self.align(class) >= align)
    }

    /// The index of the smallest class that holds `len` bytes; `None` if none does.
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

/// How chunks of one class lie in a slab, and how they travel. Sizes are in units of
/// [`CHUNK_ALIGN`] bytes where the name says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub(crate) bytes: usize,
    pub(crate) units: u32,
    pub(crate) chunks_per_slab: u32,
    /// Chunks in a batch; a magazine holds twice as many.
    pub(crate) batch: u32,
    /// Right shift from a chunk's unit to its reference count's place: distinct for distinct chunks
    /// of the class, because they start at least `1 << count_shift` units apart.
    pub(crate) count_shift: u32,
}

/// The size of a slab in bytes, a power of two, when the largest class has `largest` bytes.
pub(crate) const fn slab_bytes_for(largest: usize) -> usize {
    let bytes = (largest * MIN_CHUNKS_PER_SLAB).next_power_of_two();
    if bytes < MIN_SLAB_BYTES {
        MIN_SLAB_BYTES
    } else {
        bytes
    }
}

/// The classes of one pool, ready for the fast path.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClassTable {
    /// Requests of up to this many bytes are in `lookup`.
    direct: usize,
    lookup: [Place; TABLE_LEN],
    geometry: [Geometry; MAX_CLASSES],
    classes: SizeClasses,
    slab_bytes: usize,
}

impl ClassTable {
    pub(crate) fn new(classes: SizeClasses, max_memory: usize) -> Self {
        let slab_bytes = slab_bytes_for(classes.largest());
        let empty = Geometry {
            bytes: 0,
            units: 0,
            chunks_per_slab: 0,
            batch: 0,
            count_shift: 0,
        };
        let mut geometry = [empty; MAX_CLASSES];
        // A batch is at most 1/256 of the cap, so that a few threads' magazines cannot hold it all.
        let batch_bytes = if MODELLED {
            BATCH_BYTES
        } else {
            BATCH_BYTES.min(max_memory / 256)
        };
        for (entry, &bytes) in geometry.iter_mut().zip(classes.sizes()) {
            let units = (bytes / CHUNK_ALIGN) as u32;
            let log2 = units.ilog2();
            *entry = Geometry {
                bytes,
                units,
                chunks_per_slab: (slab_bytes / bytes) as u32,
                batch: (batch_bytes / bytes).clamp(1, BATCH_MAX) as u32,
                // From 16 KiB on, a count has a cache line of its own: two cores that drop packets
                // of neighbouring super-buffers then share nothing.
                count_shift: if bytes >= 16 << 10 { log2 - 4 } else { log2 },
            };
        }
        let mut lookup = [Place::new(0, 0); TABLE_LEN];
        let mut from = 0;
        for (class, geometry) in (0_u8..).zip(&geometry[..classes.sizes().len()]) {
            let to = (geometry.bytes / CHUNK_ALIGN + 1).min(TABLE_LEN);
            lookup[from..to].fill(Place::new(class, geometry.count_shift));
            from = to;
        }
        Self {
            direct: classes.largest().min(TABLE_BYTES),
            lookup,
            geometry,
            classes,
            slab_bytes,
        }
    }

    /// Keeps the last `guard` bytes of each slab out of use.
    pub(crate) fn with_guard(mut self, guard: usize) -> Self {
        let usable = self.slab_bytes - guard;
        for geometry in &mut self.geometry[..self.classes.sizes.len()] {
            geometry.chunks_per_slab = (usable / geometry.bytes) as u32;
            debug_assert!(geometry.chunks_per_slab > 0);
        }
        self
    }

    /// The class for a request, or `None` if it is above the largest class.
    #[inline]
    pub(crate) fn class_for(&self, len: usize) -> Option<Place> {
        if len > self.direct {
            return self.large_class_for(len);
        }
        // Rounds up; `div_ceil` would guard against an overflow that cannot be here.
        let granule = (len + (CHUNK_ALIGN - 1)) >> CHUNK_ALIGN.trailing_zeros();
        // SAFETY: `direct` is at most `TABLE_BYTES`, whose granule is the table's last.
        Some(unsafe { *self.lookup.get_unchecked(granule) })
    }

    #[cold]
    fn large_class_for(&self, len: usize) -> Option<Place> {
        let class = self.classes.class_for(len)?;
        Some(self.place(class as u8))
    }

    pub(crate) fn place(&self, class: u8) -> Place {
        Place::new(class, self.geometry(class).count_shift)
    }

    #[inline]
    pub(crate) fn geometry(&self, class: u8) -> &Geometry {
        debug_assert!(usize::from(class) < MAX_CLASSES);
        // SAFETY: a class index comes from `class_for`, or from a count of this table's classes, of
        // which there are at most `MAX_CLASSES`.
        unsafe { self.geometry.get_unchecked(usize::from(class)) }
    }

    pub(crate) fn least_count_shift(&self) -> u32 {
        let classes = &self.geometry[..self.count()];
        let shifts = classes.iter().map(|geometry| geometry.count_shift);
        shifts.min().unwrap_or(0)
    }

    pub(crate) fn classes(&self) -> &SizeClasses {
        &self.classes
    }

    pub(crate) fn count(&self) -> usize {
        self.classes.sizes.len()
    }

    pub(crate) fn slab_bytes(&self) -> usize {
        self.slab_bytes
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
    fn geometric_ends_at_max_and_refuses_nonsense() {
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
    fn table_agrees_with_the_search_on_every_length() {
        for classes in [
            SizeClasses::network(),
            SizeClasses::general(),
            SizeClasses::explicit(&[192, 1536, 131_072]).unwrap(),
        ] {
            let table = ClassTable::new(classes.clone(), 64 << 20);
            let step = if cfg!(miri) { 9973 } else { 1 };
            for len in (0..classes.largest() + 200).step_by(step) {
                assert_eq!(
                    table.class_for(len).map(|place| usize::from(place.class())),
                    classes.class_for(len),
                    "{len}"
                );
            }
            for len in [usize::MAX, usize::MAX - 62, isize::MAX as usize + 1] {
                assert_eq!(table.class_for(len), None);
            }
        }
    }

    #[test]
    fn requests_exact_rounded_and_aligned() {
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

    #[test]
    fn chunks_fit_their_slab_and_counts_are_distinct() {
        const SLABS: usize = 3;
        let lists = if cfg!(miri) {
            vec![SizeClasses::explicit(&[192, 1536, 9216, 20480]).unwrap()]
        } else {
            vec![SizeClasses::network(), SizeClasses::general()]
        };
        for classes in lists {
            let table = ClassTable::new(classes.clone(), 64 << 20);
            let slab_units = table.slab_bytes() / CHUNK_ALIGN;
            let counts_from = (SLABS * slab_units).next_power_of_two();
            let counts = (2 * counts_from) >> table.least_count_shift();
            // Which slab's and which shift's chunk counts there.
            let mut taken = vec![None; counts];
            for class in 0..table.count() as u8 {
                let g = table.geometry(class);
                assert!(g.chunks_per_slab as usize * g.bytes <= table.slab_bytes());
                assert!(g.chunks_per_slab >= 4);
                assert!((1..=BATCH_MAX as u32).contains(&g.batch));
                let chunks = (0..SLABS)
                    .flat_map(|slab| (0..g.chunks_per_slab as usize).map(move |at| (slab, at)));
                let mut last = None;
                for (slab, chunk) in chunks {
                    let unit = slab * slab_units + chunk * g.units as usize;
                    let count = (counts_from + unit) >> g.count_shift;
                    assert!(
                        last.is_none_or(|last| last < count),
                        "two chunks of a class"
                    );
                    last = Some(count);
                    // A slab has one class at a time.
                    let by = taken[count].replace((slab, g.count_shift));
                    assert!(by.is_none_or(|by| by == (slab, g.count_shift)));
                }
            }
        }
    }
}
