//! What a session counts.

use super::error::Rejection;
use core::ops::AddAssign;

/// The counters of one session, or the sums of several, since they began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Datagrams handed out for sending.
    pub sent_datagrams: u64,
    /// Bytes in these datagrams, headers included.
    pub sent_bytes: u64,
    /// PUSH segments sent; each transmission counts.
    pub sent_segments: u64,
    /// ACK segments sent.
    pub sent_acks: u64,
    /// Datagrams accepted.
    pub received_datagrams: u64,
    /// Bytes in these datagrams, headers included.
    pub received_bytes: u64,
    /// PUSH segments in these datagrams. Of a datagram that comes after the end of the session, only the first segment is
    /// looked at.
    pub received_segments: u64,
    /// Segments sent again because no acknowledgement came in time.
    pub retransmits_timeout: u64,
    /// Tail-loss probes: segments sent again to learn of the last ones sooner than by a time-out.
    pub retransmits_tail: u64,
    /// Segments sent again because later ones were acknowledged.
    pub retransmits_fast: u64,
    /// Retransmissions that were not needed: an earlier transmission was acknowledged.
    pub retransmits_spurious: u64,
    /// PUSH segments received that were here already. Empty ones do not count: by these a server asks for the proof
    /// of an address.
    pub duplicates: u64,
    /// PUSH segments dropped because they were beyond the window.
    pub dropped_beyond_window: u64,
    /// PUSH segments dropped, and not acknowledged, because there was no memory to keep them.
    pub dropped_no_memory: u64,
    /// PUSH segments copied out of a receive buffer that they would have kept in use.
    pub copied_segments: u64,
    /// Times that the receive window could not grow as wanted because the budget had no memory: every size tried
    /// counts, each half of the one before.
    pub window_refused: u64,
    /// Unreliable datagrams sent.
    pub sent_unreliable: u64,
    /// Unreliable datagrams received.
    pub received_unreliable: u64,
    /// Unreliable datagrams received and dropped because nobody read them while the session lasted, they came when it
    /// was closed, newer ones took their place, or there was no memory.
    pub dropped_unreliable: u64,
    /// WASK segments sent, each of which asks for the peer's window.
    pub probes: u64,
    /// Datagrams refused, by [`Rejection`]. Not public, as reasons may be added.
    pub(super) rejected: [u64; Rejection::ALL.len()],
}

impl SessionStats {
    /// Returns how many datagrams were refused for this reason.
    ///
    /// ```
    /// use slab_net::rudp::Rejection;
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{MemoryBudget, Session, SessionConfig, Side, Time};
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let budget = MemoryBudget::new(8 << 20);
    /// # let open = |side| Session::open(7, &SessionConfig::fast(), side, &pool, &budget, 1 << 32, Time::ZERO);
    /// # let mut session = open(Side::Server).unwrap();
    /// let noise = pool.try_copy_from_slice(b"noise")?;
    /// assert_eq!(session.handle_datagram(Time::ZERO, noise), Err(Rejection::TooShort));
    ///
    /// let stats = session.stats();
    /// for reason in Rejection::ALL.iter().filter(|&&reason| stats.rejected_for(reason) > 0) {
    ///     println!("{} of {}: {reason}", stats.rejected_for(*reason), stats.rejected_datagrams());
    /// }
    /// assert_eq!((stats.rejected_for(Rejection::TooShort), stats.rejected_datagrams()), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rejected_for(&self, reason: Rejection) -> u64 {
        self.rejected[reason as usize]
    }

    /// Returns how many datagrams were refused for any reason.
    #[must_use]
    pub fn rejected_datagrams(&self) -> u64 {
        self.rejected.iter().sum()
    }
}

impl AddAssign<&Self> for SessionStats {
    fn add_assign(&mut self, other: &Self) {
        self.sent_datagrams += other.sent_datagrams;
        self.sent_bytes += other.sent_bytes;
        self.sent_segments += other.sent_segments;
        self.sent_acks += other.sent_acks;
        self.received_datagrams += other.received_datagrams;
        self.received_bytes += other.received_bytes;
        self.received_segments += other.received_segments;
        self.retransmits_timeout += other.retransmits_timeout;
        self.retransmits_tail += other.retransmits_tail;
        self.retransmits_fast += other.retransmits_fast;
        self.retransmits_spurious += other.retransmits_spurious;
        self.duplicates += other.duplicates;
        self.dropped_beyond_window += other.dropped_beyond_window;
        self.dropped_no_memory += other.dropped_no_memory;
        self.copied_segments += other.copied_segments;
        self.window_refused += other.window_refused;
        self.sent_unreliable += other.sent_unreliable;
        self.received_unreliable += other.received_unreliable;
        self.dropped_unreliable += other.dropped_unreliable;
        self.probes += other.probes;
        for (mine, theirs) in self.rejected.iter_mut().zip(other.rejected) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_statistics_have_every_count() {
        let one = SessionStats {
            sent_datagrams: 1,
            sent_bytes: 2,
            sent_segments: 3,
            sent_acks: 4,
            received_datagrams: 5,
            received_bytes: 6,
            received_segments: 7,
            retransmits_timeout: 8,
            retransmits_tail: 9,
            retransmits_fast: 10,
            retransmits_spurious: 11,
            duplicates: 12,
            dropped_beyond_window: 13,
            dropped_no_memory: 14,
            copied_segments: 15,
            window_refused: 16,
            sent_unreliable: 17,
            received_unreliable: 18,
            dropped_unreliable: 19,
            probes: 20,
            rejected: core::array::from_fn(|at| 21 + at as u64),
        };
        let mut sum = SessionStats::default();
        sum += &one;
        assert_eq!(sum, one);
    }
}
