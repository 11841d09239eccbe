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
    /// The part of it that is for what is sent.
    sent: AtomicUsize,
}

impl MemoryBudget {
    /// Creates a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            inner: Arc::new(Inner {
                limit,
                reserved: AtomicUsize::new(0),
                sent: AtomicUsize::new(0),
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

    fn sent(&self) -> usize {
        self.inner.sent.load(Ordering::Relaxed)
    }

    /// Is so much reserved that windows may soon grow no further?
    pub(super) fn is_short(&self) -> bool {
        let limit = self.limit();
        self.reserved() > limit - limit / 4 - limit / 8
    }

    /// What all windows may promise for long messages together, with what is sent now: without that, seven eighths.
    fn limit_for_messages(&self) -> usize {
        let limit = self.limit();
        limit.min(limit - limit / 8 + self.sent())
    }

    /// Opens an account without a reservation, for what is sent.
    pub(super) fn account_to_send(&self) -> SendAccount {
        SendAccount(self.account())
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

    /// As [`reserve_promise`](Self::reserve_promise), for a message that fills a window. What is sent may lie in the
    /// eighth that is left to it, and then takes nothing from the rest.
    pub(super) fn reserve_for_message(&mut self, bytes: usize) -> bool {
        self.reserve_within(self.budget.limit_for_messages(), bytes) || self.reserve_promise(bytes)
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

/// What the window for a message takes at most, in bytes, with an MTU of 1400 and the default size classes: 489 600 for 255
/// segments.
const WINDOW_OF_A_MESSAGE: usize = 512 << 10;

/// An [`Account`] for what is sent, which is counted apart, too.
#[derive(Debug)]
pub(super) struct SendAccount(Account);

impl SendAccount {
    /// Reserves `bytes` more; if they do not fit, reserves nothing and returns `false`. Leaves a sixteenth of the limit to
    /// windows that a message fills, as far as they may take that, or an eighth if that is no more than one needs: two
    /// ends that had used up their memory for long messages would each wait for the other's window to grow. If nobody else
    /// sends, it may take all, as nothing would be given back.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let budget = &self.0.budget;
        let left = match budget.sent() == self.0.bytes {
            true => 0,
            false => budget
                .limit_for_messages()
                .saturating_sub(budget.reserved()),
        };
        let limit = budget.limit();
        let for_messages = (limit / 16).max(WINDOW_OF_A_MESSAGE.min(limit / 8));
        let within = limit - left.min(for_messages);
        let reserved = self.0.reserve_within(within, bytes);
        self.count(bytes, reserved)
    }

    /// As [`Account::reserve_spare`].
    pub(super) fn reserve_spare(&mut self, bytes: usize) -> bool {
        let reserved = self.0.reserve_spare(bytes);
        self.count(bytes, reserved)
    }

    fn count(&self, bytes: usize, reserved: bool) -> bool {
        if reserved {
            self.0.budget.inner.sent.fetch_add(bytes, Ordering::Relaxed);
        }
        reserved
    }

    /// Gives back `bytes` of the reservation.
    pub(super) fn release(&mut self, bytes: usize) {
        let bytes = bytes.min(self.0.bytes);
        self.0.budget.inner.sent.fetch_sub(bytes, Ordering::Relaxed);
        self.0.release(bytes);
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.bytes
    }
}

impl Drop for SendAccount {
    fn drop(&mut self) {
        self.release(self.0.bytes);
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
    fn what_is_sent_leaves_memory_to_messages_and_the_reverse() {
        const M: usize = 1 << 20;
        let budget = MemoryBudget::new(160 * M);
        let mut window = budget.account();
        let [mut one, mut other] = [(); 2].map(|()| budget.account_to_send());
        assert!(window.reserve_promise(100 * M) && one.reserve(10 * M));
        assert!(!other.reserve(40 * M + 1) && other.reserve(40 * M));
        assert!(!window.reserve_for_message(10 * M + 1) && window.reserve_for_message(10 * M));
        other.release(40 * M);
        assert!(!window.reserve_for_message(30 * M + 1) && window.reserve_for_message(30 * M));
        assert!(other.reserve(10 * M), "windows have all that they may");
        drop((one, other));
        window.release(40 * M);
        assert!(
            budget.account_to_send().reserve(60 * M),
            "nobody else sends"
        );
        assert_eq!((budget.sent(), budget.reserved()), (0, 100 * M));
    }

    /// Where a sixteenth has no room for it.
    #[test]
    fn what_is_sent_leaves_room_for_one_message() {
        for (limit, left) in [
            (1 << 20, 128 << 10),
            (4 << 20, 512 << 10),
            (8 << 20, 512 << 10),
        ] {
            let budget = MemoryBudget::new(limit);
            let [mut one, mut other] = [(); 2].map(|()| budget.account_to_send());
            assert!(
                one.reserve(1) && !other.reserve(limit - left) && other.reserve(limit - left - 1)
            );
            assert!(budget.account().reserve_for_message(left));
        }
    }
}
