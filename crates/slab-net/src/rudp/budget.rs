//! [`MemoryBudget`]: how much pool memory the sessions of an endpoint may promise and use.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// A limit, in bytes of pool memory, that sessions share. A session reserves here what it advertises as its window
/// and what it holds for sending, before it does either.
///
/// A budget only counts; it allocates no pool memory. Clones are handles to the same budget.
///
/// ```
/// use slab_net::rudp::MemoryBudget;
///
/// let budget = MemoryBudget::new(1 << 20);
/// assert_eq!((budget.limit(), budget.reserved()), (1 << 20, 0));
/// ```
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit: usize,
    reserved: AtomicUsize,
}

impl MemoryBudget {
    /// Creates a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            inner: Arc::new(Inner {
                limit,
                reserved: AtomicUsize::new(0),
            }),
        }
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.inner.limit
    }

    /// Returns the bytes reserved by all sessions; never more than the limit.
    #[must_use]
    pub fn reserved(&self) -> usize {
        self.inner.reserved.load(Ordering::Relaxed)
    }

    /// Opens an account without a reservation.
    pub(super) fn account(&self) -> Account {
        Account {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

/// One user's reservations; gives all of them back when dropped.
#[derive(Debug)]
pub(super) struct Account {
    budget: MemoryBudget,
    bytes: usize,
}

impl Account {
    /// Reserves `bytes` more; if they do not fit, reserves nothing and returns `false`.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        self.reserve_within(self.budget.limit(), bytes)
    }

    /// As [`reserve`](Self::reserve), for a session that can do without: leaves a fourth of the limit to those that
    /// cannot, such as new ones.
    pub(super) fn reserve_spare(&mut self, bytes: usize) -> bool {
        let limit = self.budget.limit();
        self.reserve_within(limit - limit / 4, bytes)
    }

    /// As [`reserve`](Self::reserve), for what a peer may send: leaves an eighth of the limit to what is sent to peers.
    /// Windows that had taken all of it would let their peers ask, and nobody answer. Alone, a session may take all.
    pub(super) fn reserve_promise(&mut self, bytes: usize) -> bool {
        let limit = self.budget.limit();
        self.reserve_within(limit - limit / 8, bytes)
            || self.budget.reserved() == self.bytes && self.reserve(bytes)
    }

    fn reserve_within(&mut self, limit: usize, bytes: usize) -> bool {
        let inner = &*self.budget.inner;
        let reserved =
            inner
                .reserved
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
                    let sum = reserved.checked_add(bytes)?;
                    (sum <= limit).then_some(sum)
                });
        if reserved.is_ok() {
            self.bytes += bytes;
        }
        reserved.is_ok()
    }

    /// Gives back `bytes` of the reservation.
    pub(super) fn release(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.bytes, "more given back than reserved");
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget
            .inner
            .reserved
            .fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded_and_is_given_back() {
        let budget = MemoryBudget::new(100);
        let (mut a, mut b) = (budget.account(), budget.account());
        assert!(a.reserve(60));
        assert!(!b.reserve(41));
        assert!(b.reserve(40));
        assert!(!b.reserve(usize::MAX), "no overflow");
        a.release(10);
        assert_eq!((a.bytes(), b.bytes(), budget.reserved()), (50, 40, 90));
        drop((a, b));
        assert_eq!(budget.reserved(), 0);
        let mut c = budget.account();
        assert!(c.reserve_spare(75) && !c.reserve_spare(1) && c.reserve(25));
        drop(c);
        let (mut one, mut other) = (budget.account(), budget.account());
        assert!(one.reserve_promise(88) && one.reserve_promise(12), "alone");
        one.release(50);
        assert!(!other.reserve_promise(39) && other.reserve_promise(38));
        assert!(!one.reserve_promise(1) && one.reserve(12));
    }
}
