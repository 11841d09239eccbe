//! The counters of a session, kept small: there are many sessions, and most count little of this.

use super::super::error::Rejection;
use super::super::stats::SessionStats;
use super::datagrams::Datagrams;
use super::receive::ReceiveQueue;

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) sent_datagrams: u64,
    pub(super) sent_bytes: u64,
    pub(super) sent_segments: u64,
    pub(super) sent_acks: u64,
    pub(super) received_datagrams: u64,
    pub(super) received_bytes: u64,
    pub(super) received_segments: u64,
    pub(super) retransmits_timeout: u64,
    pub(super) retransmits_tail: u64,
    pub(super) retransmits_fast: u64,
    pub(super) retransmits_spurious: u64,
    pub(super) duplicates: u64,
    pub(super) dropped_beyond_window: u64,
    pub(super) dropped_no_memory: u64,
    pub(super) probes: u64,
    pub(super) sent_unreliable: u64,
    pub(super) received_unreliable: u64,
    /// Allocated at the first rejection.
    rejected: Option<Box<[u64; Rejection::ALL.len()]>>,
}

impl Counts {
    #[cold]
    pub(super) fn reject(&mut self, reason: Rejection) {
        self.rejected.get_or_insert_default()[reason as usize] += 1;
    }

    pub(super) fn snapshot(
        &self,
        receive: &ReceiveQueue,
        datagrams: Option<&Datagrams>,
    ) -> SessionStats {
        SessionStats {
            sent_datagrams: self.sent_datagrams,
            sent_bytes: self.sent_bytes,
            sent_segments: self.sent_segments,
            sent_acks: self.sent_acks,
            received_datagrams: self.received_datagrams,
            received_bytes: self.received_bytes,
            received_segments: self.received_segments,
            retransmits_timeout: self.retransmits_timeout,
            retransmits_tail: self.retransmits_tail,
            retransmits_fast: self.retransmits_fast,
            retransmits_spurious: self.retransmits_spurious,
            duplicates: self.duplicates,
            dropped_beyond_window: self.dropped_beyond_window,
            dropped_no_memory: self.dropped_no_memory,
            copied_segments: receive.copied,
            window_refused: receive.growth_refused.into(),
            probes: self.probes,
            sent_unreliable: self.sent_unreliable,
            received_unreliable: self.received_unreliable,
            dropped_unreliable: datagrams.map_or(0, |datagrams| datagrams.dropped),
            rejected: self.rejected.as_deref().copied().unwrap_or_default(),
        }
    }
}
