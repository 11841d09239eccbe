//! [`Tally`]: a counter of datagrams and of their bytes of payload.

use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};
use core::sync::atomic::{AtomicU64, Ordering};

/// A number of datagrams and of their bytes of payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    pub(crate) fn new(datagrams: u64, bytes: u64) -> Self {
        Self { datagrams, bytes }
    }

    /// The larger number of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self::new(
            self.datagrams.max(other.datagrams),
            self.bytes.max(other.bytes),
        )
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::new(self.datagrams + other.datagrams, self.bytes + other.bytes)
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Saturates at zero: counters that others write meanwhile are read at different moments.
impl Sub for Amount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self::new(
            self.datagrams.saturating_sub(other.datagrams),
            self.bytes.saturating_sub(other.bytes),
        )
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Add::add)
    }
}

/// A sum of amounts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    datagrams: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    /// Adds an amount; any number of threads may do so at the same time.
    pub(crate) fn add(&self, amount: Amount) {
        self.datagrams
            .fetch_add(amount.datagrams, Ordering::Relaxed);
        self.bytes.fetch_add(amount.bytes, Ordering::Relaxed);
    }

    /// Adds an amount, where only one thread at a time does so.
    pub(crate) fn bump(&self, amount: Amount) {
        bump(&self.datagrams, amount.datagrams);
        bump(&self.bytes, amount.bytes);
    }

    pub(crate) fn read(&self) -> Amount {
        Amount {
            datagrams: self.datagrams.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Adds to a counter that only one thread at a time writes, without a read-modify-write.
pub(crate) fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}
