//! The counters of an endpoint.

use super::super::measures::RoundTripTimes;
use super::super::stats::RudpStats;
use core::time::Duration;

/// A snapshot of an endpoint: how many sessions there are, and what was counted since it was bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Sessions now.
    pub sessions: usize,
    /// Sessions now whose peer has not proved its address.
    pub half_open: usize,
    /// Sessions now that wait to be accepted.
    pub backlog: usize,
    /// Bytes of pool memory reserved now, by all sessions.
    pub reserved_bytes: usize,
    /// Bytes of pool memory that may be reserved.
    pub reserve_limit_bytes: usize,
    /// Sessions opened so far, by either side.
    pub opened: u64,
    /// Datagrams that belonged to no session and opened none.
    pub unknown_session: u64,
    /// Sessions refused because there were too many.
    pub refused_table_full: u64,
    /// Sessions refused because too many had not proved their address.
    pub refused_half_open: u64,
    /// Sessions refused because too many of one prefix had not proved their address.
    pub refused_prefix: u64,
    /// Sessions refused because too many waited to be accepted.
    pub refused_backlog: u64,
    /// Sessions refused because the memory budget was used up.
    pub refused_memory: u64,
    /// Cookies sent to peers whose address is not proved, for lack of room or by configuration.
    pub cookies_sent: u64,
    /// Sessions opened because their peer sent a valid cookie.
    pub cookies_taken: u64,
    /// Times that the endpoint's task woke up, for datagrams or for a timer.
    pub wakeups: u64,
    /// Datagrams that the system refused to send, or that neither the socket nor the pool had room for. Their
    /// sessions treat them as lost.
    pub send_errors: u64,
    /// Times that the socket had no room for a session's datagrams. They wait until it has; each session waits with
    /// those of one call to the kernel at most.
    pub send_blocked: u64,
    /// Datagrams that could not be opened with the key, because they are somebody else's or damaged; and those that
    /// this endpoint has sealed itself.
    pub unopened: u64,
    /// The round-trip times that sessions have measured.
    pub round_trips: RoundTripTimes,
    /// How long sessions had something to send and no memory to keep it in, until acknowledgements freed some: the
    /// sum over all sessions.
    pub blocked_sending: Duration,
    /// How long peers filled a whole window that could not grow for want of memory in the budget: the sum over all
    /// sessions.
    pub blocked_receiving: Duration,
    /// The counters of error correction, for all peers together.
    #[cfg(feature = "fec")]
    pub fec: crate::rudp::fec::FecStats,
    /// The counters of all sessions together, including those that have ended.
    pub total: RudpStats,
}
