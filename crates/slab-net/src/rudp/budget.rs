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
    /// The part of it that peers may send.
    promised: AtomicUsize,
}

impl MemoryBudget {
    /// Creates a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            inner: Arc::new(Inner {
                limit,
                reserved: AtomicUsize::new(0),
                promised: AtomicUsize::new(0),
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

    /// How much more peers may be let send: all that they may is seven eighths of the limit.
    fn left_to_promise(&self) -> usize {
        let (limit, promised) = (self.limit(), &self.inner.promised);
        (limit - limit / 8).saturating_sub(promised.load(Ordering::Relaxed))
    }

    /// Opens an account without a reservation.
    pub(super) fn account(&self) -> Account {
        Account {
            budget: self.clone(),
            bytes: 0,
            is_promise: false,
        }
    }
}

/// One user's reservations; gives all of them back when dropped.
#[derive(Debug)]
pub(super) struct Account {
    budget: MemoryBudget,
    /// Below 4 GiB: idle sessions are to be small.
    bytes: u32,
    /// Is it for what a peer may send?
    is_promise: bool,
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

    /// Is nothing left to those that can do without?
    pub(super) fn is_short(&self) -> bool {
        let limit = self.budget.limit();
        self.budget.reserved() > limit - limit / 4
    }

    /// As [`reserve`](Self::reserve), for what a peer may send: leaves an eighth of the limit to what is sent to peers.
    /// Windows that had taken all of it would let their peers ask, and nobody answer. Alone, a session may take all.
    pub(super) fn reserve_promise(&mut self, bytes: usize) -> bool {
        debug_assert!(
            self.is_promise || self.bytes == 0,
            "it is for something else"
        );
        self.is_promise = true;
        self.budget.left_to_promise() >= bytes && self.reserve(bytes)
            || self.budget.reserved() == self.bytes() && self.reserve(bytes)
    }

    /// As [`reserve`](Self::reserve), for what is sent: leaves a sixteenth of the limit to windows, as far as those may
    /// take it. Two ends that had used up their memory for long messages would each wait for the other's window to
    /// grow, without which those do not arrive.
    pub(super) fn reserve_to_send(&mut self, bytes: usize) -> bool {
        let limit = self.budget.limit();
        let left = self.budget.left_to_promise().min(limit / 16);
        self.reserve_within(limit - left, bytes)
    }

    fn reserve_within(&mut self, limit: usize, bytes: usize) -> bool {
        let Ok(all) = u32::try_from(self.bytes().saturating_add(bytes)) else {
            return false;
        };
        let inner = &*self.budget.inner;
        let reserved =
            inner
                .reserved
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
                    let sum = reserved.checked_add(bytes)?;
                    (sum <= limit).then_some(sum)
                });
        if reserved.is_ok() {
            self.bytes = all;
            if self.is_promise {
                inner.promised.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        reserved.is_ok()
    }

    /// Gives back `bytes` of the reservation.
    pub(super) fn release(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.bytes(), "more given back than reserved");
        let bytes = bytes.min(self.bytes());
        self.bytes -= bytes as u32;
        let inner = &*self.budget.inner;
        if self.is_promise {
            inner.promised.fetch_sub(bytes, Ordering::Relaxed);
        }
        inner.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.release(self.bytes());
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

    /// Neither takes what the other needs.
    #[test]
    fn what_is_sent_leaves_memory_to_promise_and_the_reverse() {
        let budget = MemoryBudget::new(160);
        let (mut promised, mut sent) = (budget.account(), budget.account());
        assert!(promised.reserve_promise(100));
        assert!(!sent.reserve_to_send(51) && sent.reserve_to_send(50));
        assert!(!promised.reserve_promise(11) && promised.reserve_promise(10));
        promised.release(10);
        sent.release(49);
        assert!(!promised.reserve_promise(41) && promised.reserve_promise(40));
        assert!(!sent.reserve_to_send(20) && sent.reserve_to_send(19));
        drop(promised);
        sent.release(20);
        assert!(!sent.reserve_to_send(151) && sent.reserve_to_send(150));
    }
}
