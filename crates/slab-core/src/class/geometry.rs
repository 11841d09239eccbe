//! How chunks of each size class lie in a slab and travel, and the table by which a request finds its
//! class.
//!
//! Pure functions of the configuration: nothing here changes once a pool is built. A request of up
//! to [`TABLE_BYTES`] is looked up in a table, one entry per 64 bytes. A larger one is looked up in a
//! coarse table, one entry per [`COARSE_BYTES`]; only if that many bytes hold several classes, and the
//! first is too small, are they searched.

use crate::class::place::Place;
use crate::class::{CHUNK_ALIGN, MAX_CHUNK_BYTES, MAX_CLASSES, SizeClasses};
use crate::directory::ClassNumbers;
use crate::error::ConfigError;
use crate::sync::MODELLED;

/// In models, because a pool is built on the stack, of which loom's threads have little; and for Miri, where filling
/// larger ones was most of what its tests took.
const SMALL_TABLES: bool = MODELLED || cfg!(miri);
/// Requests of up to this many bytes find their class by one load.
const TABLE_BYTES: usize = if SMALL_TABLES { 4 << 10 } else { 64 << 10 };
const TABLE_LEN: usize = TABLE_BYTES / CHUNK_ALIGN + 1;
const COARSE_BYTES: usize = if SMALL_TABLES { 4 << 20 } else { 64 << 10 };
const COARSE_LEN: usize = MAX_CHUNK_BYTES / COARSE_BYTES;
/// A slab holds at least this many chunks of the largest class.
const MIN_CHUNKS_PER_SLAB: usize = 4;
const MIN_SLAB_BYTES: usize = if MODELLED { 4 << 10 } else { 64 << 10 };
/// How many bytes of chunks move between a magazine and the depot at once, at most.
///
/// A magazine, of two such batches, should hold what a thread allocates and frees in turn: a bulk transfer has some
/// 1.4 MB of 64 KiB chunks under way. `ARCHITECTURE.md` says what 1 MiB gained over 256 KiB.
const BATCH_BYTES: usize = 1 << 20;
/// The most chunks in a magazine, which takes 512 bytes then, with its counters.
///
/// Models have tiny magazines (as they have tiny slabs and few classes), so that every path is taken within a few steps;
/// for Miri a batch costs time in proportion to its length.
pub(crate) const MAGAZINE_MAX: usize = if MODELLED {
    3
} else if cfg!(miri) {
    16
} else {
    112
};
/// The most chunks in a batch: three quarters of a magazine. The more there are, the seldomer a stream from thread to
/// thread comes to the depot; the rest is what a thread may take after it gave a batch away, or give after it took one,
/// before it comes again (`ARCHITECTURE.md` says what other shares cost).
pub(crate) const BATCH_MAX: usize = MAGAZINE_MAX * 3 / 4;

/// How chunks of one class lie in a slab, and how they travel. Sizes are in units of
/// [`CHUNK_ALIGN`] bytes where the name says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub(crate) bytes: usize,
    pub(crate) units: u32,
    pub(crate) chunks_per_slab: u32,
    /// Chunks in a batch.
    pub(crate) batch: u32,
    /// Right shift from a chunk's unit to its reference count's place: distinct for distinct chunks
    /// of the class, because they start at least `1 << count_shift` units apart.
    pub(crate) count_shift: u32,
}

impl Geometry {
    /// Chunks in a full magazine: two batches, if it has room for them.
    pub(crate) fn magazine(&self) -> u8 {
        (2 * self.batch).min(MAGAZINE_MAX as u32) as u8
    }
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

/// Chunks of so many `bytes` in a batch, where a batch has at most `batch_bytes`.
pub(crate) fn batch_len(bytes: usize, batch_bytes: usize) -> u32 {
    (batch_bytes / bytes).clamp(1, BATCH_MAX) as u32
}

/// The smallest class of more bytes than the entry's index times [`COARSE_BYTES`].
#[derive(Debug, Clone, Copy)]
struct CoarseEntry {
    /// Without meaning if there is no such class.
    place: Place,
    /// Its size; 0 if there is no such class.
    bytes: usize,
}

/// The classes of one pool, ready for the fast path.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClassTable {
    /// Indexed by the request in units of [`CHUNK_ALIGN`], rounded up.
    lookup: [Option<Place>; TABLE_LEN],
    geometry: [Geometry; MAX_CLASSES],
    /// Indexed by `(len - 1) / COARSE_BYTES`.
    coarse: [CoarseEntry; COARSE_LEN],
    classes: SizeClasses,
    /// Requests of up to this many bytes have a class in `lookup`.
    lookup_bytes: usize,
    slab_bytes: usize,
    batch_bytes: usize,
    numbers: ClassNumbers,
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
                batch: batch_len(bytes, batch_bytes),
                // From 16 KiB on, a count has a cache line of its own: two cores that drop packets
                // of neighbouring super-buffers then share nothing.
                count_shift: if bytes >= 16 << 10 { log2 - 4 } else { log2 },
            };
        }
        let none = CoarseEntry {
            place: Place::new(0, 0, 0),
            bytes: 0,
        };
        let mut table = Self {
            lookup: [None; TABLE_LEN],
            geometry,
            coarse: [none; COARSE_LEN],
            lookup_bytes: classes.largest().min(TABLE_BYTES),
            classes,
            slab_bytes,
            batch_bytes,
            numbers: ClassNumbers::NONE,
        };
        table.fill_in_places();
        table
    }

    /// Gives the classes of a new pool their numbers.
    ///
    /// # Errors
    /// [`ConfigError::TooManyPools`].
    pub(crate) fn take_numbers(&mut self, has_magazines: bool) -> Result<(), ConfigError> {
        self.numbers = ClassNumbers::take(self.count(), has_magazines)?;
        self.fill_in_places();
        Ok(())
    }

    pub(crate) fn numbers(&self) -> &ClassNumbers {
        &self.numbers
    }

    /// Fills the tables that lead to the classes.
    fn fill_in_places(&mut self) {
        let (mut from, mut coarse_from) = (0, 0);
        for class in 0..self.count() as u8 {
            let (place, bytes) = (self.place(class), self.geometry(class).bytes);
            let to = (bytes / CHUNK_ALIGN + 1).min(TABLE_LEN);
            self.lookup[from..to].fill(Some(place));
            let coarse_to = bytes.div_ceil(COARSE_BYTES);
            self.coarse[coarse_from..coarse_to].fill(CoarseEntry { place, bytes });
            (from, coarse_from) = (to, coarse_to);
        }
    }

    /// Keeps the last `guard` bytes of each slab out of use.
    pub(crate) fn keep_out(&mut self, guard: usize) {
        let usable = self.slab_bytes - guard;
        for geometry in &mut self.geometry[..self.classes.sizes().len()] {
            geometry.chunks_per_slab = (usable / geometry.bytes) as u32;
            debug_assert!(geometry.chunks_per_slab > 0);
        }
    }

    /// The class for a request, or `None` if it is above the largest class. The look-up of small
    /// requests is inlined in each caller, that of larger ones is out of line.
    #[inline]
    pub(crate) fn place_for(&self, len: usize) -> Option<Place> {
        if len > TABLE_BYTES {
            return self.large_place_out_of_line(len);
        }
        self.small_place_for(len)
    }

    /// The same for callers that do not allocate, with both look-ups inlined.
    #[inline]
    pub(crate) fn class_for(&self, len: usize) -> Option<usize> {
        let place = if len > self.lookup_bytes {
            self.large_place_for(len)?
        } else {
            // SAFETY: `new` gave each granule up to the largest class an entry. (To test that it has one takes a sixth
            // of a look-up.)
            unsafe { self.small_place_for(len).unwrap_unchecked() }
        };
        Some(place.class().into())
    }

    /// `len` is at most [`TABLE_BYTES`].
    #[inline]
    fn small_place_for(&self, len: usize) -> Option<Place> {
        debug_assert!(len <= TABLE_BYTES);
        // Rounds up; `div_ceil` would guard against an overflow that cannot happen here.
        let granule = (len + (CHUNK_ALIGN - 1)) >> CHUNK_ALIGN.trailing_zeros();
        // SAFETY: the granule of `TABLE_BYTES` is the table's last.
        unsafe { *self.lookup.get_unchecked(granule) }
    }

    /// `len` is not zero, and there is no class for it in `lookup`.
    #[inline]
    fn large_place_for(&self, len: usize) -> Option<Place> {
        // A request beyond the table wraps around to the entry of a smaller one, whose class is too small.
        let first = &self.coarse[(len - 1) / COARSE_BYTES % COARSE_LEN];
        if len <= first.bytes {
            Some(first.place)
        } else {
            self.search(len)
        }
    }

    #[cold]
    #[inline(never)]
    fn large_place_out_of_line(&self, len: usize) -> Option<Place> {
        self.large_place_for(len)
    }

    /// A later class than the one in `coarse`; there may be none.
    #[cold]
    #[inline(never)]
    fn search(&self, len: usize) -> Option<Place> {
        let class = self.classes.class_for(len)?;
        Some(self.place(class as u8))
    }

    pub(crate) fn place(&self, class: u8) -> Place {
        let count_shift = self.geometry(class).count_shift;
        Place::new(class, count_shift, self.numbers.of(class))
    }

    #[inline]
    pub(crate) fn geometry(&self, class: u8) -> &Geometry {
        debug_assert!(usize::from(class) < MAX_CLASSES);
        // SAFETY: a class index comes from `place_for`, or from a count of this table's classes, of
        // which there are at most `MAX_CLASSES`.
        unsafe { self.geometry.get_unchecked(usize::from(class)) }
    }

    /// For a pool whose threads keep no magazines, which large batches could fill: the larger they are, the fewer blocks of
    /// the depot there have to be, each of which has room for the largest. (Models count on short ones.)
    pub(crate) fn without_magazines(&mut self) {
        if MODELLED {
            return;
        }
        let count = self.count();
        for geometry in &mut self.geometry[..count] {
            geometry.batch = BATCH_MAX as u32;
        }
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
        self.classes.sizes().len()
    }

    /// See [`batch_len`].
    pub(crate) fn batch_bytes(&self) -> usize {
        self.batch_bytes
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn table_agrees_with_the_search_on_every_length() {
        for classes in [
            SizeClasses::network(),
            SizeClasses::general(),
            SizeClasses::explicit(&[192, 1536, 131_072]).unwrap(),
            // None for the longest requests of the table.
            SizeClasses::explicit(&[64, 2048]).unwrap(),
            // Two, none and three classes in 64 KiB.
            SizeClasses::explicit(&[65_536, 65_600, 131_072, 300_032, 300_096, 327_680]).unwrap(),
        ] {
            let table = ClassTable::new(classes.clone(), 64 << 20);
            let step = if cfg!(miri) { 9973 } else { 1 };
            for len in (0..classes.largest() + 200).step_by(step) {
                let asked = classes.class_for(len);
                assert_eq!(
                    table.place_for(len).map(Place::class).map(usize::from),
                    asked,
                    "{len}"
                );
                assert_eq!(table.class_for(len), asked, "{len}");
            }
            for len in [usize::MAX, usize::MAX - 62, isize::MAX as usize + 1] {
                assert!(table.place_for(len).is_none());
                assert!(table.class_for(len).is_none());
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
            let slab_units = table.slab_bytes / CHUNK_ALIGN;
            let counts_from = (SLABS * slab_units).next_power_of_two();
            let counts = (counts_from + SLABS * slab_units) >> table.least_count_shift();
            // The slab and the shift of the chunk whose count lies there.
            let mut taken = vec![None; counts];
            for class in 0..table.count() as u8 {
                let g = table.geometry(class);
                assert!(g.chunks_per_slab as usize * g.bytes <= table.slab_bytes);
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
