//! Which sizes callers ask a pool for, for the [advisor](crate::diagnostics::advisor).
//!
//! A pool that records sends every allocation and free through the slow path, by the same gate that zeroing on free
//! uses; one that does not pays nothing. Each size that a class could have, one in 64 bytes, has two words of a table,
//! of which only the touched pages take memory.

use crate::class::{CHUNK_ALIGN, MAX_CHUNK_BYTES};
use crate::diagnostics::advisor::SizeHistogram;
use crate::pool::SlabPool;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Table};
use crate::sys::room::Room;

#[derive(Debug)]
pub(crate) struct SizeRecorder {
    /// For each size, how many requests, and then the sum of what they asked for.
    sizes: Table<AtomicU64>,
    /// The largest of them so far.
    largest: AtomicU32,
    too_large: AtomicU64,
}

impl SizeRecorder {
    /// # Errors
    /// The system's error number, if it would not give the memory.
    pub(crate) fn new(room: &mut Room) -> Result<Self, i32> {
        Ok(Self {
            sizes: Table::new(room, 2 * (MAX_CHUNK_BYTES / CHUNK_ALIGN))?,
            largest: AtomicU32::new(0),
            too_large: AtomicU64::new(0),
        })
    }

    pub(crate) fn record(&self, len: usize) {
        if len > MAX_CHUNK_BYTES {
            self.too_large.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let units = SizeHistogram::units(len);
        if units > self.largest.load(Ordering::Relaxed) {
            self.largest.fetch_max(units, Ordering::Relaxed);
        }
        let at = 2 * (units as usize - 1);
        self.sizes.at(at).fetch_add(1, Ordering::Relaxed);
        // Release: who sees these bytes sees the request that they are of.
        self.sizes
            .at(at + 1)
            .fetch_add(len as u64, Ordering::Release);
    }

    fn histogram(&self) -> SizeHistogram {
        let mut histogram = SizeHistogram::new();
        for units in 1..=self.largest.load(Ordering::Relaxed) {
            let at = 2 * (units as usize - 1);
            // In this order: what was asked for is never more than the chunks for it.
            let bytes = self.sizes.at(at + 1).load(Ordering::Acquire);
            let count = self.sizes.at(at).load(Ordering::Relaxed);
            histogram.add(units, count, bytes.into());
        }
        histogram.add_too_large(self.too_large.load(Ordering::Relaxed));
        histogram
    }
}

impl SlabPool {
    /// Returns the sizes of all requests so far: of those that got a chunk, before rounding to a size class, and of those
    /// above the largest class (but for those of [`try_alloc_spare`](SlabPool::try_alloc_spare)). Its
    /// [`advise`](SizeHistogram::advise) tells which classes would have wasted least.
    ///
    /// What needs no other chunk is no request, such as a `Vec` that grows in place. Of requests at the cap only those are
    /// there that were served in the end: a trial run should not lack memory. Where more than [`CHUNK_ALIGN`] bytes of
    /// alignment are asked for, and for RUDP's messages where their own class has run out, it is the size of the class
    /// that served them.
    ///
    /// Empty unless the pool was built with [`record_sizes`](crate::SlabPoolBuilder::record_sizes). Looks at each size up to the
    /// largest that was asked for, about a nanosecond each: a microsecond if that was 64 KiB. While threads run, the latest
    /// requests may be missing.
    ///
    /// ```
    /// # use slab_core::SlabPool;
    /// let pool = SlabPool::builder().record_sizes(true).build()?;
    /// for len in [60, 1350, 1350, 1400] {
    ///     drop(pool.try_alloc(len)?); // or whatever your program does with the pool
    /// }
    /// let seen = pool.size_histogram();
    /// assert_eq!(seen.requests(), 4);
    /// let advice = seen.advise(2)?;
    /// assert_eq!(advice.classes.sizes(), &[64, 1408]);
    /// assert!(advice.waste.bytes() < seen.waste(pool.size_classes()).bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn size_histogram(&self) -> SizeHistogram {
        let recorder = self.inner().recorder.as_ref();
        recorder.map_or_else(SizeHistogram::new, SizeRecorder::histogram)
    }
}
